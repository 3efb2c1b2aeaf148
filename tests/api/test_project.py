"""Which plan the options of a projection ask for, and which combinations have no meaning."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ppsim
from ppsim.api import project
from ppsim.api.keyword_options import option_types
from ppsim.api.project import plan_of_keywords
from ppsim.costs.cost_sources import RankCosts
from ppsim.costs.profile import DEFAULT, CalibrationRun, load_profile
from ppsim.errors import ConfigError
from ppsim.parallel.layer_partition import MegatronSplit
from ppsim.projection.options import PlanOptions
from ppsim.projection.plan import Plan
from ppsim.trainers.same_settings import MEGATRON_SPLIT

PIPELINE: dict[str, Any] = {"pp": 4, "microbatches": 8}
BY_HAND = PIPELINE | {"forward_ms": 1.0, "backward_input_ms": 2.0, "backward_weight_ms": 3.0}
MODEL: dict[str, Any] = {"model": "gpt2", "gpus": 4, "pp": 2, "global_batch": 16, "stack": "plain"}
OVERHEADS = Path(__file__).parents[1] / "frozen" / "files" / "overheads.json"


def plan_of(**options: Any) -> Plan:
    return plan_of_keywords(options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"pp": None}, r"^--pp must be given: the number of pipeline ranks \(1: no pipeline\)$"),
        ({"vpp": 0}, r"^vpp must be at least 1: got 0$|--vpp must be at least 1"),
        ({"layers": 0}, r"--layers"),
        ({"search_time": 3.0}, r"^--search-time is for --schedule auto$"),
        ({"seed": 3}, r"^--seed is for --schedule auto and for --sequence-lengths$"),
        ({"transfer_ms": -2.5}, r"^--transfer-ms must not be negative: got -2.5$"),
        ({"transfer_ms": "1,2"}, r"^--transfer-ms has 2 values: one behind each stage needs --forward-ms too$"),
        ({"without": ["bubble"]}, r"^--without removes a cause from a recorded run: give --run$"),
        ({"run": "a", "transfer_ms": 1.0}, r"^--transfer-ms and --run are both measured costs: give one of them$"),
        ({"run": "a", "backward_input_ms": 1.0}, r"^--backward-input-ms and --run are both measured costs"),
        ({"stage_plan": "plan.toml"}, r"^--plan plan.toml is of the stages of a model: give --model$"),
        ({"micro_batch": 3.5}, r"micro_batch must be a whole number"),
        ({"micro_batch": 0}, r"^no --model was given, so the default profile is projected: "),
        ({"lengths": []}, r"^lengths are the tokens of sequences: give at least one, each a whole number from 1 on$"),
        ({"lengths": [3, 0]}, r"^lengths are the tokens of sequences"),
        ({"split": "even", "decoder_first_pipeline_num_layers": 3}, r"^--decoder-first-pipeline-num-layers is of "
         r"Megatron-LM's own rule: leave out --split even$"),
    ],
)  # fmt: skip
def test_options_of_a_pipeline_that_have_no_meaning_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        plan_of(**PIPELINE | options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        *(
            ({name: setting}, rf"^--{flag} {setting} is of a model, and times given by hand have none: give --model or "
             r"--profile too, or leave it out$")
            for name, flag, setting in (
                ("layers", "layers", 4), ("seq_len", "seq-len", 128), ("micro_batch", "micro-batch-size", 2),
                ("recompute", "recompute", "full"), ("split", "split", "even"), ("lengths", "sequence-lengths", "x.txt"),
            )
        ),
        ({"account_for_loss_in_pipeline_split": True}, r"-account-for-loss-in-pipeline-split True is of a model"),
        ({"memory_limit": "1GiB"}, r"^--memory-limit 1GiB cannot be checked: times given by hand have no bytes; give "
         r"--activation-memory, --model or --profile too$"),
        ({"backward_weight_ms": None}, r"^--forward-ms needs --backward-weight-ms too$"),
        ({"forward_ms": None, "backward_weight_ms": None}, r"^--backward-input-ms needs --forward-ms and "
         r"--backward-weight-ms too$"),
    ],
)  # fmt: skip
def test_options_of_a_model_next_to_times_by_hand_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        plan_of(**BY_HAND | options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"transfer_ms": 1.0}, r"^--transfer-ms is for one pipeline of a profile: with --model, hops are the cluster's links$"),
        ({"job": ppsim.job(**MODEL), "model": None, "gpus": 8, "pp": None, "global_batch": None, "stack": None},
         r"^the job says everything itself: leave out gpus, or give it to ppsim.job$"),
        ({"calibration": str(OVERHEADS), "launch_ms": 1.0}, r"^--launch-ms and the overheads of --calibration"),
    ],
)  # fmt: skip
def test_options_of_a_model_that_have_no_meaning_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        plan_of(**MODEL | options)


def test_times_by_hand_are_seconds_of_a_rank_and_need_no_profile() -> None:
    plan = plan_of(
        **BY_HAND | {"transfer_ms": "0.25,0.5,0.75,1", "activation_memory": "3KiB", "memory_limit": "1MiB"}
    )
    assert plan.measured == RankCosts(0.001, 0.002, 0.003, (0.00025, 0.0005, 0.00075, 0.001), 3072)
    assert (plan.profile, plan.job, plan.transfer_s, plan.memory_limit_bytes) == (None, None, None, 2**20)
    assert plan_of(**BY_HAND).measured == RankCosts(0.001, 0.002, 0.003, 0.0, None)
    next_to_a_profile = plan_of(**BY_HAND, profile=DEFAULT, layers=8, seed=None)
    assert next_to_a_profile.profile is not None
    assert (next_to_a_profile.num_layers, next_to_a_profile.measured) == (8, plan_of(**BY_HAND).measured)


def test_options_of_a_pipeline_are_fields_of_its_plan() -> None:
    plan = plan_of(
        **PIPELINE, transfer_ms=2.5, stragglers={3: 1.5, 1: 1.25}, schedule="auto", search_time=3.0, seed=5
    )
    assert plan.transfer_s == 0.0025
    assert plan.stragglers == ((3, 1.5), (1, 1.25))
    assert (plan.schedule, plan.search_time_s, plan.seed, plan.searches_stages) == ("auto", 3.0, 5, False)
    assert (plan.names_trainer, plan.is_recipe, plan.on_gpus, plan.by_stack) == (False, False, None, {})
    assert plan_of(**PIPELINE, runtime="ideal").names_trainer
    assert plan_of(**PIPELINE, lengths=[7, 5, 7], seed=2).lengths == (7, 5, 7)


def test_lengths_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("5\n3\n2\n")
    assert plan_of(**PIPELINE, lengths=path).lengths == (5, 3, 2)


@pytest.mark.parametrize(("split", "vpp"), [([2, 4, 4, 2], 2), ([6, 6], 1), ([4, 4, 4], None), ("even", None)])
def test_layers_of_each_stage_say_how_many_stages_a_rank_has(split: Any, vpp: int | None) -> None:
    plan = plan_of(**MODEL, split=split)
    assert plan.vpp == vpp
    assert plan_of(**MODEL, split=split, vpp=4).vpp == 4


def test_megatrons_rule_is_a_split() -> None:
    assert plan_of(**MODEL, split="megatron").split == MegatronSplit()
    plan = plan_of(**MODEL, decoder_first_pipeline_num_layers=5)
    assert plan.split == MegatronSplit(first=5)
    assert plan_of(**MODEL).split is None


def test_a_job_has_the_microbatches_and_layers_and_may_have_the_ranks() -> None:
    plan = plan_of(**MODEL, layers=4)
    assert plan.job is not None
    assert (plan.microbatches, plan.num_layers, len(plan.job.model.layers)) == (None, None, 4)
    assert plan.profile is None
    assert plan_of(job=plan.job).pp == 2
    assert plan_of(job=plan.job, vpp=2).vpp == 2


def test_a_plan_on_an_assumed_number_of_gpus_knows_itself_on_another() -> None:
    options = {name: setting for name, setting in MODEL.items() if name != "gpus"}
    plan = plan_of(**options)
    assert plan.on_gpus is not None
    assert plan.on_gpus(8) == plan_of(**options, gpus=8)
    assert plan_of(**MODEL).on_gpus is None
    assert plan_of(job=plan.job).on_gpus is None


@pytest.mark.parametrize("changed", [{"schedule": "auto"}, {"stage_plan": "auto"}, {"stack": "plain"}])
def test_other_stacks_are_compared_only_if_none_was_named_and_nothing_is_searched(changed: dict[str, Any]) -> None:
    unnamed = MODEL | {"model": "llama3-8b", "stack": None}
    assert list(plan_of(**unnamed).by_stack) == ["plain", "torchtitan"]
    assert plan_of(**unnamed).by_stack["torchtitan"] == plan_of(**unnamed | {"stack": "torchtitan"})
    assert plan_of(**unnamed | changed).by_stack == {}


def test_overheads_of_a_calibration_include_the_launches_of_a_job() -> None:
    plan = plan_of(**MODEL, calibration=str(OVERHEADS))
    assert plan.job is not None
    assert (plan.job.launch_s, plan_of(**MODEL).job.launch_s) == (0.0, None)  # type: ignore[union-attr]
    assert plan.action_overhead_s > 0
    assert plan_of(**PIPELINE, calibration=str(OVERHEADS)).action_overhead_s == plan.action_overhead_s


@pytest.mark.parametrize(
    ("pp", "processes", "overheads", "factors"),
    [(4, 4, (0.25, 0.5), (1.0, 1.5)), (2, 4, (0.25, 0.5), None), (1, 2, (0.0, 0.0), None)],
)
def test_a_profile_s_calibration_run_gives_overheads_of_pipelines_and_factors_of_its_number_of_ranks(
    pp: int, processes: int, overheads: tuple[float, float], factors: tuple[float, ...] | None
) -> None:
    run = CalibrationRun(
        num_processes=processes, num_threads=1, slowdown=1.0, action_overhead_s=0.25, hop_overhead_s=0.5,
        step_spread=0.0, pass_factors=[1.0, 1.5],
    )  # fmt: skip
    profile = replace(load_profile(DEFAULT), rehearsal=run)
    plan = plan_of(pp=pp, profile=profile)
    assert (plan.action_overhead_s, plan.hop_overhead_s) == overheads
    assert plan.pass_factors == factors


@pytest.mark.parametrize(
    ("given", "schedule", "num_stages"),
    [({"split": "even"}, "interleaved-1f1b", 8), ({"split": "even"}, "dualpipe", 4), ({"split": "even"}, "auto", 8), ({"vpp": 2}, None, None)],
)  # fmt: skip
def test_a_split_of_a_file_that_does_not_fit_is_named(
    given: dict[str, Any], schedule: str | None, num_stages: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 4 ranks with two stages each, or two chains of four stages."""
    asked: list[Any] = []

    def refuse(job: Any, number: int, split: Any, ranks: Any) -> None:
        asked.append((job, number, split, ranks))
        raise ConfigError("odd")

    monkeypatch.setattr("ppsim.costs.assemble_job.stages_of_split", refuse)
    config: Any = SimpleNamespace(source="run.sh", options={"split": "even"})
    plan = plan_of(**MODEL | {"pp": 4, "vpp": 2, "split": "even", "schedule": schedule})
    options = dict.fromkeys(("split", *MEGATRON_SPLIT)) | given
    if num_stages is None:
        project._require_split_of(config, plan, options)
        assert asked == []
        return
    with pytest.raises(ConfigError, match=r"^odd; --split is from run\.sh: replace it, as by --split even$"):
        project._require_split_of(config, plan, options)
    assert asked == [(plan.job, num_stages, "even", [[stage] for stage in range(num_stages)])]
    asked.clear()
    project._require_split_of(config, replace(plan, job=None), options)
    project._require_split_of(config, plan, options | {"split": "auto"})
    assert asked == [], "there are no layers, or the user replaced the file's"


def test_a_recorded_run_fills_in_what_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    table = ppsim.build("zbv", pp=4, microbatches=8)
    asked: list[Any] = []

    def costs_of(*given: Any) -> Any:
        asked.append(given)
        return SimpleNamespace(schedule="zbv", costs=SimpleNamespace(table=table))

    monkeypatch.setattr("ppsim.api.recorded_costs.recorded_costs", costs_of)
    open_ = dict.fromkeys([*option_types(PlanOptions)]) | {"run": "r.json"}

    def filled(**given: Any) -> list[Any]:
        options = open_ | given
        project._recorded(options)
        return [options[name] for name in ("schedule", "vpp", "pp", "microbatches")]

    assert filled() == ["zbv", 2, 4, 8]
    assert asked.pop() == ("r.json", None, "even", ())
    assert filled(schedule="1f1b") == ["1f1b", None, 4, 8]
    assert filled(vpp=1) == [None, 1, 4, 8]
    assert filled(pp=2, microbatches=16) == ["zbv", 2, 2, 16]
    assert filled(global_batch=64) == ["zbv", 2, 4, None]
    assert filled(job="a job") == ["zbv", 2, 4, None]
    asked.clear()
    config = SimpleNamespace(options={"split": "auto"})
    filled(activation_memory="1KiB,2KiB", without=["host"], run_config=config)
    assert asked == [("r.json", (1024, 2048), "auto", ["host"])]
    assert project._recorded(open_ | {"run": None}) is None
