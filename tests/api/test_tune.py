"""Which search the options of `tune` ask for, without running it."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.api import tune as module
from ppsim.api.keyword_options import option_types
from ppsim.api.tune import kept_options, row_of_search, search_of, tune
from ppsim.base.errors import ConfigError
from ppsim.machine.cluster_files import load_cluster
from ppsim.tuning import search
from ppsim.tuning.options import TuneOptions
from ppsim.tuning.refine import REFINEMENTS
from ppsim.tuning.space import SearchProblem, SearchSpace

DENSE: dict[str, Any] = {"model": "gpt2", "gpus": 4, "global_batch": 16, "stack": "plain"}
SPARSE = DENSE | {"model": "mixtral-8x7b", "gpus": 8}
SMALL_CLUSTER = replace(load_cluster("dgx-h100"), num_devices=8)
SCRIPT = """
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \\
  --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50257 --micro-batch-size 2 --global-batch-size 64 --bf16 \\
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --use-distributed-optimizer --recompute-activations
"""


def asked(**options: Any) -> "partial[Any]":
    made = search_of(dict.fromkeys(option_types(TuneOptions)) | options)
    assert isinstance(made, partial)
    return made


def question_of(**options: Any) -> SearchProblem:
    question = asked(**options).args[0]
    assert isinstance(question, SearchProblem)
    return question


def space_of(**options: Any) -> SearchSpace:
    space = asked(**options).args[1]
    assert isinstance(space, SearchSpace)
    return space


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    return path


def test_without_options_a_search_has_one_process_the_default_ranges_and_all_refinements() -> None:
    made = asked(**DENSE)
    assert made.func is search.tune
    assert made.keywords == {
        "top": 10, "processes": 1, "seed": 0, "search_s": 10.0, "state": None, "refined": REFINEMENTS,
    }  # fmt: skip
    question, space = made.args
    assert (question.num_gpus, question.memory_limit_bytes, question.sequence_parallel) == (4, None, None)
    assert (question.job.gpus_assumed, question.job.global_batch, question.etp) == (0, 16, None)
    assert (space.tp, space.zero, space.fixed, space.start) == ((1, 2, 4), None, frozenset(), None)


def test_options_of_a_search_are_handed_over(tmp_path: Path) -> None:
    made = asked(
        **DENSE, top=3, jobs=5, seed=7, search_time=11.0, resume=tmp_path / "state.json", stage_plan=True, tp=[2, 1], pp=[2],
        sequence_parallel=False, runtime="ideal", zero=[2, 3],
    )  # fmt: skip
    assert made.keywords == {
        "top": 3, "processes": 5, "seed": 7, "search_s": 11.0, "state": tmp_path / "state.json",
        "refined": (*REFINEMENTS, "plan"),
    }  # fmt: skip
    question, space = made.args
    assert (question.sequence_parallel, question.runtime, question.job.optimizer.zero_stage) == (False, "ideal", 2)
    assert (space.tp, space.pp, space.zero) == ((2, 1), (2,), (2, 3))
    assert space.fixed >= {"tp", "pp", "zero"}
    assert "cp" not in space.fixed


def test_an_expert_size_is_a_range_of_one_and_the_smallest_is_that_of_the_question() -> None:
    assert space_of(**SPARSE, etp=2).etp == (2,)
    made = asked(**SPARSE, etp=[4, 1, 2])
    assert (made.args[1].etp, made.args[0].etp) == ((4, 1, 2), 1)
    with pytest.raises(ConfigError, match=r"^--etp is for a model with experts: gpt2 has none$"):
        asked(**DENSE, etp=[1])


def test_all_devices_of_a_cluster_can_be_searched_for() -> None:
    assert question_of(**DENSE | {"cluster": SMALL_CLUSTER, "gpus": 8}).num_gpus == 8


def test_switches_that_are_typed_stay() -> None:
    made = asked(**DENSE, attention="unfused", overlap_dp=False)
    assert "attention" in made.args[1].fixed
    assert made.args[0].job.execution.attention == "unfused"
    assert made.args[0].typed["attention"] == "unfused"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gpus": None}, r"^--gpus must be given: tune searches the layout for it$"),
        ({"global_batch": None}, r"^--global-batch-size must be given"),
        ({"model": None}, r"^--model must be given"),
        ({"gpus": 0}, r"^--gpus and --global-batch-size are at least 1: got 0 and 16$"),
        ({"global_batch": 0}, r"at least 1: got 4 and 0$"),
        ({"tp": 2}, r"^tp is a list of what to try: got 2 \(nearest: \[2\]\)$"),
        ({"split": ["even", "odd"]}, r"^--split is 'even,odd': odd is none of auto, even$"),
        ({"recompute": ["none", "block/13"]}, r"13"),
        ({"memory_limit": "1GiB", "memory_share": 0.5}, r"^--memory-limit and --memory-share say the same twice"),
        ({"memory_share": 0.0}, r"^--memory-share is a part above 0, up to 1: got 0$"),
        ({"memory_share": 1.5}, r"up to 1: got 1.5$"),
        ({"cluster": SMALL_CLUSTER, "gpus": 9}, r"^--gpus is 9, but the cluster has 8 devices$"),
    ],
)
def test_an_impossible_search_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        asked(**DENSE | options)


@pytest.mark.parametrize(("share", "part"), [(1.0, 1.0), (0.25, 0.25)])
def test_a_share_of_the_memory_is_its_limit(share: float, part: float) -> None:
    question = question_of(**DENSE, memory_share=share)
    assert question.memory_limit_bytes == part * question.job.cluster.device.memory_bytes
    assert question_of(**DENSE, memory_limit="3GiB").memory_limit_bytes == 3 * 2**30


@pytest.mark.parametrize(
    ("options", "trainer", "schedule", "names"),
    [
        ({"stack": None}, "megatron", ("1f1b",), False),
        ({"stack": "megatron-bridge"}, "megatron", ("1f1b",), True),
        ({"stack": "megatron-bridge", "schedule": ["any"]}, "", ("1f1b",), False),
        ({"stack": "megatron-bridge", "schedule": ["zb-h1"]}, "", ("zb-h1",), False),
    ],
)
def test_schedules_of_the_trainer_rank_first_unless_schedules_are_given(
    options: dict[str, Any], trainer: str, schedule: tuple[str, ...], names: bool
) -> None:
    question, space = asked(**DENSE | options).args
    assert (question.trainer, question.names_trainer) == (trainer, names)
    assert space.schedule[:1] == schedule
    assert ("schedule" in space.fixed) == (schedule == ("zb-h1",))


def test_recomputations_are_read_as_those_of_a_projection() -> None:
    assert space_of(**DENSE, recompute=["selective", "block/12"]).recompute == ("core_attn", "block/12")


def test_a_search_of_a_configuration_starts_from_its_plan_and_keeps_what_it_is_told_to(script: Path) -> None:
    file = {"run_config": script, "gpus": 16}
    start = space_of(**file).start
    assert start is not None
    assert (start.tp, start.pp, start.micro_batch, start.recompute) == (2, 4, 2, "core_attn")
    space = space_of(**file, keep=["tp", "--micro-batch-size", "attention", "schedule"])
    assert (space.tp, space.micro_batch, space.schedule) == ((2,), (2,), ("1f1b",))
    assert space.fixed >= {"tp", "micro_batch", "attention", "schedule"}
    assert space_of(**file, keep=["tp"], tp=[1, 4]).tp == (1, 4), "typed"
    assert space_of(**file, keep=["zero"]).zero == (1,)
    assert space_of(**file, keep=["split"]).split in (("auto",), ("even",))
    with pytest.raises(ConfigError, match=rf"^--keep dp: {script} does not set it; give --dp a value$"):
        asked(**file, keep=["dp"], global_batch=63)
    with pytest.raises(ConfigError, match=r"^--keep tp: no configuration sets it; give --tp a value$"):
        asked(**DENSE, keep=["tp"])


def test_options_that_a_search_keeps_are_those_that_it_changes_by_any_of_their_names() -> None:
    assert [*kept_options(["tp", "--micro-batch-size", "overlap-grad-reduce", " zero "])] == [
        "tp", "micro_batch", "overlap_grad_reduce", "zero",
    ]  # fmt: skip
    with pytest.raises(
        ConfigError, match=r"^--keep tpp is no option that tune changes: did you mean tp or pp or vpp\?$"
    ):
        list(kept_options(["tpp"]))


def test_options_of_the_file_and_of_the_user_are_decided(script: Path) -> None:
    typed = question_of(run_config=script, gpus=16, dropout=True).typed
    assert typed["dropout"] is True
    assert not {"tp", "pp", "micro_batch", "schedule"} & typed.keys(), "ranges are searched"


def test_options_of_a_stack_depend_on_the_pipeline_unless_they_are_given() -> None:
    """DeepSpeed's pipeline has ZeRO 1 and reduces gradients after the last backward."""
    stack = DENSE | {"stack": "deepspeed-2021"}
    by_pipeline = question_of(**stack).by_pipeline
    assert {pp: (one["zero"], one["overlap_grad_reduce"]) for pp, one in by_pipeline.items()} == {
        False: (3, True), True: (1, False),
    }  # fmt: skip
    assert "zero" not in question_of(**stack, zero=[2]).by_pipeline[True]
    assert question_of(**DENSE).by_pipeline == {}


def test_overheads_of_a_calibration_are_those_of_all_plans() -> None:
    file = Path(__file__).parents[1] / "frozen" / "files" / "overheads.json"
    question = question_of(**DENSE, calibration=str(file))
    assert question.calibration_file == str(file)
    assert dict(question.overheads)["action_overhead_s"] > 0
    assert "runtime" not in dict(question.overheads)
    assert question.job.launch_s == 0.0
    assert question_of(**DENSE).calibration_file is None


def test_instances_of_the_distributed_optimizer_are_of_each_configuration() -> None:
    """On one GPU, as the question is first read, two would be impossible."""
    question = question_of(**DENSE, num_distributed_optimizer_instances=2)
    assert question.job.optimizer.num_distributed_optimizer_instances == 2
    assert question_of(**DENSE).job.optimizer.num_distributed_optimizer_instances == 1


def test_the_row_of_a_search_is_that_of_its_best_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    best = SimpleNamespace(candidate=SimpleNamespace(key="key of best"))
    question = SimpleNamespace(plan_of=lambda candidate: f"plan of {candidate.key}")
    monkeypatch.setattr(module, "row_of_plan", lambda plan, tokens: {"plan": plan, "tokens": tokens})
    monkeypatch.setattr(module, "command_of", lambda question, candidate: f"ppsim project {candidate.key}")
    tuned: Any = SimpleNamespace(best=[best, SimpleNamespace()], question=question)
    assert row_of_search(tuned, 5.0) == {
        "plan": "plan of key of best", "tokens": 5.0, "configuration": "key of best",
        "command": "ppsim project key of best",
    }  # fmt: skip


def test_progress_is_told_to_the_caller_or_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "search_of", lambda options: lambda progress: progress)

    def show(*progress: Any) -> None:
        return None

    assert tune(**DENSE, progress=show) is show
    assert callable(tune(**DENSE))


def test_schedules_that_the_trainer_of_a_recipe_refuses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("ppsim.trainers.read_recipe.require_accepted", lambda *given: asked.append(given))
    recipe: Any = "recipe"
    module._require_schedules(recipe, {"schedule": ["1f1b", "zb-h1"], "tp": 2})
    assert asked == [("recipe", {"schedule": name, "tp": 2}, {"schedule": name}) for name in ("1f1b", "zb-h1")]
    asked.clear()
    module._require_schedules(recipe, {"schedule": None, "tp": 2})
    assert asked == []
