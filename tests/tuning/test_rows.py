"""The command of every printed row gives the row's seconds and bytes, and the plan fits."""

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

import ppsim
from ppsim.catalog.build import find
from ppsim.model.execution import Execution
from ppsim.projection.project import iteration_of, table_of
from ppsim.trainers.stacks import stacks
from ppsim.tuning.evaluate import evaluate, exact_peak_bytes, task_of
from ppsim.tuning.lower_bounds import BoundsCalculator
from ppsim.tuning.space import Configuration
from tests.tuning.questions import question

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    check = importlib.import_module("check_tune")

SMALL = "--global-batch-size 16 --tp 1 --cp 1 --pp 1,2 --micro-batch-size 2 --top 3"


@pytest.mark.parametrize(
    "job",
    [
        f"--model gpt2 --gpus 8 --memory-limit 2GiB --stack plain {SMALL}",
        f"--model llama3.2-1b --gpus 8 --stack torchtitan --recompute none --split auto {SMALL}",
        f"--model gpt2 --gpus 4 --stack plain --recompute block/2,full/3,full@0-3 --zero 1 {SMALL}",
    ],
    ids=["little memory", "torchtitan", "some layers"],
)
def test_the_command_of_a_row_has_its_numbers_and_fits(job):
    found = check.search(job)
    assert [one.command for one in check.checks_of(found) if not one.is_right] == []
    assert sum(found.counts.values()) == 2 * found.counts["configurations"]


def test_the_simulated_peak_decides_whether_a_configuration_fits():
    asked = question("gpt2", gpus=2, batch=8, length=1024)
    one = Configuration(1, 1, 1, 1, 2, 1, 1, "block/1", "1f1b", "even")
    plan = asked.plan_of(one)
    _, simulated = iteration_of(plan, table_of(plan, find("1f1b"))[0])

    def status(limit_bytes):
        calculator = BoundsCalculator(replace(asked, memory_limit_bytes=limit_bytes))
        task = task_of(calculator, calculator.of(one))
        assert exact_peak_bytes(task) == pytest.approx(simulated, rel=1e-12)
        [(_, outcome)] = evaluate([task], front=())
        return outcome.status

    assert (status(0.97 * simulated), status(1.03 * simulated)) == ("does not fit", "fits")


def test_stacks_write_their_overlap_as_the_command_of_a_row_does():
    for stack in stacks().values():
        for line in stack.lines:
            if line.word == "overlap_tp":
                forward, backward = (float(part) for part in (line.value.split(",") * 2)[:2])
                assert Execution(hidden_tp_forward=forward, hidden_tp_backward=backward).overlap_tp == line.value


def test_what_a_stack_sets_by_the_pipeline_is_set_in_each_configuration() -> None:
    """TorchTitan shards weights (ZeRO 3, overlapped) without a pipeline, and keeps them whole in one."""
    job = {
        "model": "llama3-8b",
        "cluster": "dgx-h100",
        "gpus": 16,
        "global_batch": 32,
        "seq_len": 2048,
        "stack": "torchtitan",
        "compile": False,
    }
    found = ppsim.tune(
        **job, tp=[2], pp=[1, 2], micro_batch=[1], schedule=["1f1b"], recompute=["none"], split=["even"]
    )
    plans = {one.candidate.pp: one for one in found.simulated if not one.candidate.switched}
    assert {pp: one.candidate.zero for pp, one in plans.items()} == {1: 3, 2: 1}
    for pp, one in plans.items():
        made = ppsim.project(**job, tp=2, pp=pp, micro_batch=1, schedule="1f1b", split="even")
        assert one.iteration_time_s == pytest.approx(made.iteration_time_s, rel=1e-9)
    typed = ppsim.tune(**job, tp=[2], pp=[1, 2], micro_batch=[1], schedule=["1f1b"], zero=[1])
    assert {one.candidate.zero for one in typed.best} == {1}


def test_a_switched_option_cancels_settings_of_the_stack_as_in_a_projection() -> None:
    """Without sequence parallelism, Megatron-Bridge has no userbuffers, which overlap more of the communication."""
    job = {"model": "gpt2", "cluster": "dgx-h100", "gpus": 4, "global_batch": 8, "stack": "megatron-bridge"}
    found = ppsim.tune(**job, tp=[2], cp=[1], pp=[1], micro_batch=[1], recompute=["none"])
    own = replace(found.best[0].candidate, switched=())
    switched = own.changed({"sequence_parallel": False}, found.question.own_settings(own))
    made = ppsim.project(**job, tp=2, pp=1, sequence_parallel=False).plan.job
    assert found.question.job_of(switched).execution == made.execution
    assert made.execution.overlap_tp != found.question.job_of(own).execution.overlap_tp


def test_sequence_parallelism_without_tensor_parallel_ranks_is_off_as_in_a_projection() -> None:
    job = {"model": "qwen3-30b-a3b", "gpus": 16, "global_batch": 16, "stack": "plain", "etp": 2, "ep": 2}
    made = ppsim.project(**job, tp=1, pp=1, sequence_parallel=True)
    assert not made.plan.job.execution.sequence_parallel
    assert (
        replace(made.plan.job, execution=replace(made.plan.job.execution, sequence_parallel=True)) == made.plan.job
    )
