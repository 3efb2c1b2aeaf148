"""Single options that the advice and the search change."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import ppsim
from ppsim import project
from ppsim.base.errors import ConfigError, PpsimError
from ppsim.costs.job import Job
from ppsim.model.optimizer import Optimizer
from ppsim.projection.changes import (
    change_text,
    changed_job,
    changed_plan,
    changes,
    changes_of_job,
    projected_changes,
)
from ppsim.projection.plan import Plan
from tests.projection.jobs import job


def changed_jobs(own: Job, **how: Any) -> Iterator[tuple[str, Job]]:
    for change in changes_of_job(own, **how):
        try:
            yield change_text(change), changed_job(own, change)
        except PpsimError:
            continue


def names_of(plan: Plan, **how: Any) -> list[str]:
    return [change_text(change) for change in changes(plan, **how)]


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Of a profile: 1f1b."""
    return project(pp=4, microbatches=8).plan


def test_a_plan_of_a_profile_changes_its_schedule_and_chunks(plan: Plan) -> None:
    one = ["zb-h1", "zb-h2"]
    two = ["interleaved-1f1b --vpp 2", "zbv-fixed --vpp 2", "interleaved-zb --vpp 2"]
    assert names_of(plan) == [f"--schedule {name}" for name in (*one, *two, "interleaved-1f1b --vpp 4")]
    assert [changed_plan(plan, change).vpp for change in changes(plan)] == [None, None, 2, 2, 2, 4]
    interleaved = replace(plan, schedule="interleaved-1f1b", vpp=2)
    assert names_of(interleaved) == [
        "--schedule 1f1b --vpp 1", "--schedule zb-h1 --vpp 1", "--schedule zb-h2 --vpp 1", "--schedule zbv-fixed",
        "--schedule interleaved-zb", "--schedule interleaved-1f1b --vpp 4",
    ]  # fmt: skip


def test_changes_of_a_plan_are_schedules_that_its_trainer_runs(plan: Plan) -> None:
    megatron = replace(plan, runtime="megatron")
    assert names_of(megatron) == ["--schedule interleaved-1f1b --vpp 2", "--schedule interleaved-1f1b --vpp 4"]
    forced = replace(megatron, schedule="zb-h1")
    assert set(names_of(forced)) == {"--schedule 1f1b", *names_of(plan)} - {"--schedule zb-h1"}
    assert names_of(replace(plan, runtime="ideal")) == names_of(plan)


def test_searched_schedules_are_for_plans_that_are_too_large_and_small_searches(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = {"--schedule zb-auto", "--schedule v-flex --vpp 2"}
    assert set(names_of(plan, saving=True)) == set(names_of(plan)) | searched
    monkeypatch.setattr("ppsim.projection.changes._MOST_SEARCHED", 3 * 4 * 8)
    assert searched & set(names_of(plan, saving=True)) == {"--schedule zb-auto"}
    monkeypatch.setattr("ppsim.projection.changes._MOST_SEARCHED", 3 * 4 * 8 - 1)
    assert names_of(plan, saving=True) == names_of(plan)


def test_one_round_of_a_step_is_tried_if_there_are_several(plan: Plan) -> None:
    several = replace(plan, gradient_accumulation_steps=2)
    assert "--gradient-accumulation-steps 1" in names_of(several)
    assert changed_plan(several, {"gradient_accumulation_steps": 1}).gradient_accumulation_steps == 1
    assert "--gradient-accumulation-steps 1" not in names_of(plan)


def test_changes_that_cannot_be_projected_are_skipped(plan: Plan) -> None:
    def projected(other: Plan) -> str:
        if other.vpp == 2:
            raise ConfigError("too few layers")
        return other.schedule_name

    assert list(projected_changes(plan, projected)) == [
        ("--schedule zb-h1", "zb-h1"), ("--schedule zb-h2", "zb-h2"),
        ("--schedule interleaved-1f1b --vpp 4", "interleaved-1f1b"),
    ]  # fmt: skip


def test_a_job_halves_and_doubles_its_sizes_with_the_same_number_of_gpus() -> None:
    jobs = dict(changed_jobs(job(tp=2, dp=4, pp=2)))
    sizes = ["--micro-batch-size 2", "--tp 4 --dp 2", "--tp 1 --dp 8", "--cp 2 --dp 2", "--pp 4 --dp 2",
             "--pp 1 --dp 8"]  # fmt: skip
    assert list(jobs) == [*sizes, "--zero 0", "--rank-order tp-cp-ep-pp-dp", "--cuda-graphs layer"]
    layouts = {name: (one.layout.tp, one.layout.pp, one.layout.dp) for name, one in jobs.items()}
    assert layouts["--tp 4 --dp 2"] == (4, 2, 2)
    assert layouts["--tp 1 --dp 8"] == (1, 2, 8)
    assert layouts["--pp 1 --dp 8"] == (2, 1, 8)
    assert jobs["--micro-batch-size 2"].micro_batch == 2
    assert jobs["--zero 0"].optimizer.zero_stage == 0


def test_changes_that_save_memory_and_no_time_are_for_plans_that_are_too_large() -> None:
    own = job(dp=4, pp=2)
    more = dict(changed_jobs(own, saving=True)).keys() - dict(changed_jobs(own)).keys()
    assert {change.split()[0] for change in more} == {
        "--recompute", "--offload-modules", "--offload", "--optimizer-offload-fraction",
    }  # fmt: skip
    full = replace(own, execution=replace(own.execution, recompute="full"))
    assert "--recompute none" in dict(changed_jobs(full))


def test_sequences_are_divided_by_the_tensor_parallel_ranks_that_a_change_adds() -> None:
    added = dict(changed_jobs(job(tp=1, dp=4, pp=2)))["--tp 2 --dp 2"]
    removed = dict(changed_jobs(job(tp=2, dp=4, pp=2)))["--tp 1 --dp 8"]
    assert added.execution.sequence_parallel
    assert not removed.execution.sequence_parallel
    whole = job(tp=2, dp=4, pp=2)
    whole = replace(whole, execution=replace(whole.execution, sequence_parallel=False))
    changes = dict(changed_jobs(whole))
    assert not changes["--tp 4 --dp 2"].execution.sequence_parallel
    assert changes["--sequence-parallel"].execution.sequence_parallel


@pytest.mark.parametrize(
    ("fields", "overlap"),
    [
        ({"overlap_grad_reduce": False}, ["--overlap-grad-reduce"]),
        ({"overlap_param_gather": False}, ["--overlap-param-gather"]),
        ({"overlap_param_gather": False, "optimizer": Optimizer(zero_stage=0)}, []),
        ({}, []),
    ],
)
def test_exposed_data_parallel_messages_are_overlapped(fields: dict[str, Any], overlap: list[str]) -> None:
    changes = [change for change, _ in changed_jobs(job(dp=4, pp=2, **fields)) if change.startswith("--overlap")]
    assert changes == overlap


@pytest.mark.parametrize(
    ("model", "options", "modules"),
    [
        ("llama3-8b", {}, "mlp"),
        ("mixtral-8x7b", {"ep": 2}, "layernorm+moe_act"),
        ("llama3-8b", {"attention": "unfused"}, "core_attn"),
    ],
)
def test_parts_of_a_layer_are_recomputed_by_its_kind(model: str, options: dict[str, Any], modules: str) -> None:
    found = job(model, dp=4, pp=2, **options)
    assert f"--recompute {modules}" in dict(changed_jobs(found, saving=True))
    partly = replace(found, execution=replace(found.execution, recompute="full"))
    assert "--recompute full" not in dict(changed_jobs(partly))


@pytest.mark.parametrize(
    ("cluster", "dispatcher", "changes"),
    [("dgx-h100", "deepep", ["alltoall"]), ("dgx-a100", "alltoall", ["deepep"]), ("dgx-h100", "alltoall", ["deepep"]), ("gb200-nvl72", "hybridep", ["alltoall"])],
)  # fmt: skip
def test_other_token_dispatchers_of_the_device_are_tried(cluster: str, dispatcher: str, changes: list[str]) -> None:
    made = ppsim.job(model="gpt-oss-20b", cluster=cluster, tp=1, pp=1, dp=8, ep=8, micro_batch=1, global_batch=8,
                     seq_len=1024, moe_dispatcher=dispatcher)  # fmt: skip
    assert [change.split()[1] for change, _ in changed_jobs(made) if "dispatcher" in change] == changes


def test_changes_leave_out_zero_stages_that_the_optimizer_does_not_have() -> None:
    optimizer = Optimizer(zero_stage=3, num_distributed_optimizer_instances=2, outer_dp_sharding_strategy="optim")
    changes = [change for change, _ in changed_jobs(job(pp=1, dp=8, optimizer=optimizer), saving=True)]
    assert not [change for change in changes if change.startswith("--zero")]
    assert "--recompute full" in changes


def test_an_option_is_tried_if_the_stack_of_the_job_has_it() -> None:
    own = job(tp=2, dp=4, pp=1, fully_shard=True)
    names = {name for change in changes_of_job(own, saving=True) for name in change}
    assert {"compile", "recompute", "zero"} <= names
    assert not names & {"cuda_graphs", "order", "offload_modules"}
    assert [change["zero"] for change in changes_of_job(own) if "zero" in change] == [2, 3]
    assert "compile" not in {name for change in changes_of_job(job(tp=2, dp=4, pp=1)) for name in change}


def test_overlapped_experts_get_pairs_of_passes_and_stages() -> None:
    plan = ppsim.project(model="gpt-oss-20b", stack="plain", gpus=16, ep=4, pp=2, seq_len=1024).plan
    [change] = [change for change in changes(plan) if "overlap_ep" in change]
    assert change == {"overlap_ep": "megatron", "schedule": "combined-1f1b", "vpp": 2}
    [back] = [one for one in changes(changed_plan(plan, change)) if "overlap_ep" in one]
    assert back == {"overlap_ep": 0.0, "schedule": "interleaved-1f1b"}
