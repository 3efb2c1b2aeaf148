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
from ppsim.model.pipeline_stages import StagePlan
from ppsim.projection.changes import (
    SWITCHES,
    can_switch,
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
    others = ["--zero 0", "--rank-order tp-cp-ep-pp-dp", "--no-sequence-parallel", "--cuda-graphs layer"]
    assert list(jobs) == [*sizes, *others]
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


def settings(name: str, own: Job) -> tuple[Any, ...]:
    return tuple(SWITCHES[name].settings(own))


def moe(**options: Any) -> Job:
    return job("mixtral-8x7b", **options)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("cp", {"cp": 2, "sequence_length": 8192}, (4, 1)),
        ("cp", {"cp": 2, "sequence_length": 8188}, (1,)),
        ("cp", {"cp": 1, "sequence_length": 4096}, (2, 0)),
        ("micro_batch", {"micro_batch": 3, "global_batch": 6}, (6, 1)),
        ("ep", {"name": "mixtral-8x7b", "ep": 4, "dp": 4}, (8, 2)),
        ("ep", {"dp": 4}, ()),
        ("etp", {"name": "mixtral-8x7b", "tp": 4}, (1, 4, 8, 2)),
        ("etp", {"name": "mixtral-8x7b"}, (1, 2, 0)),
        ("etp", {"tp": 4}, ()),
        ("zero", {"pp": 2}, ()),
        ("zero", {"dp": 2, "pp": 2}, (0, 1)),
        ("zero", {"cp": 2}, (0, 1, 2, 3)),
        ("zero", {"dp": 2, "optimizer": Optimizer(name="muon")}, ()),
        ("zero", {"dp": 2, "pp": 2, "fully_shard": True}, ()),
        ("num_distributed_optimizer_instances", {"dp": 16}, (1, 2)),
        ("num_distributed_optimizer_instances", {"dp": 16, "tp": 2}, (1, 4)),
        ("num_distributed_optimizer_instances", {"dp": 16, "cp": 2}, (1, 4)),
        ("num_distributed_optimizer_instances", {"dp": 16, "tp": 8}, (1,)),
        ("num_distributed_optimizer_instances", {"dp": 8}, (1,)),
        ("num_distributed_optimizer_instances", {"dp": 12}, (1,)),
        ("num_distributed_optimizer_instances", {"dp": 16, "optimizer": Optimizer(zero_stage=0)}, (1,)),
        ("moe_dispatcher", {"dp": 8}, ()),
        ("moe_dispatcher", {"name": "mixtral-8x7b", "ep": 8, "dp": 8}, ("alltoall", "deepep")),
        ("order", {"dp": 2}, ()),
        ("order", {"pp": 2}, ()),
        ("order", {"dp": 2, "pp": 2}, ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")),
        ("cuda_graphs", {}, ("none", "layer")),
        ("cuda_graphs", {"name": "mixtral-8x7b"}, ("none", "attn+moe_router+moe_preprocess")),
        ("cuda_graphs", {"cluster": "mi300x"}, ()),
        ("offload_modules", {}, ("", "core_attn", "attn_proj", "core_attn+attn_proj")),
        ("offload_modules", {"offload": 0.5}, ()),
        ("offload", {}, (0.0, 0.25, 0.5)),
        ("offload", {"offload_modules": "core_attn"}, ()),
        ("optimizer_offload_fraction", {}, (0.0, 1.0)),
        ("context", {}, ()),
        ("context", {"cp": 2}, ("ring", "all-to-all", "all-gather")),
        ("context", {"cp": 2, "fully_shard": True}, ("ring", "all-gather")),
        ("overlap_ep", {"name": "mixtral-8x7b", "ep": 1, "dp": 2}, ()),
        ("overlap_ep", {"name": "mixtral-8x7b", "ep": 2, "dp": 2}, (0, "megatron")),
        ("sequence_parallel", {"tp": 2}, (True, False)),
        ("sequence_parallel", {"name": "mixtral-8x7b", "tp": 2}, (True,)),
        ("sequence_parallel", {"tp": 1}, ()),
        ("compile", {}, (True, False)),
        ("overlap_grad_reduce", {}, (True,)),
        ("overlap_param_gather", {}, (True,)),
        ("overlap_param_gather", {"optimizer": Optimizer(zero_stage=0)}, ()),
        ("attention", {}, ()),
        ("attention", {"attention": "unfused"}, ("fused",)),
        ("cross_entropy", {}, ("fused",)),
        ("gradient_accumulation_fusion", {}, (True,)),
        ("moe_permute_fusion", {"name": "mixtral-8x7b"}, (True,)),
        ("moe_permute_fusion", {}, ()),
    ],
)  # fmt: skip
def test_settings_that_suit_a_job_are_tried(name: str, options: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert settings(name, job(**options)) == expected


def test_experts_offload_their_inputs_too_and_graphs_nothing() -> None:
    assert len(settings("offload_modules", moe())) == 8
    captured = job(dp=2)
    captured = replace(captured, execution=replace(captured.execution, cuda_graphs="layer"))
    assert (settings("offload_modules", captured), settings("offload", captured)) == ((), ())
    assert settings("zero", captured) == (0, 1)


@pytest.mark.parametrize(
    ("stack", "options", "names"),
    [
        ("plain", {}, {"tp": True, "context": True, "order": True, "compile": False}),
        ("plain", {"fully_shard": True}, {"tp": True, "context": True, "order": False, "compile": True}),
    ],
)
def test_a_stack_has_options_of_its_runtime(stack: str, options: dict[str, Any], names: dict[str, bool]) -> None:
    own = replace(job(**options), stack=stack)
    assert {name: can_switch(own, name) for name in names} == names


def test_a_change_of_a_job_keeps_what_does_not_depend_on_it() -> None:
    own = replace(job(tp=2, dp=4, pp=2), stage_plans=())
    assert changed_job(own, {"recompute": "full"}).execution.recompute == "full"
    assert changed_job(own, {"zero": 0, "micro_batch": 2}).micro_batch == 2
    assert changed_job(own, {"zero": 0, "micro_batch": 2}).optimizer.zero_stage == 0
    assert changed_job(own, {"tp": 1}, rest_s=3.0).rest_s == 3
    sms = replace(own, execution=replace(own.execution, dispatcher_sms=8))
    assert changed_job(sms, {"moe_dispatcher": "alltoall"}).execution.dispatcher_sms is None
    assert changed_job(sms, {"recompute": "full"}).execution.dispatcher_sms == 8


def test_a_change_of_the_schedule_forgets_its_groups_and_slices(plan: Plan) -> None:
    given = replace(plan, schedule="interleaved-1f1b", vpp=2, group_size=4, split=(8,) * 4 + (0,) * 4)
    other = changed_plan(given, {"schedule": "1f1b", "vpp": 1})
    assert (other.schedule, other.vpp, other.group_size, other.split) == ("1f1b", 1, None, None)
    assert changed_plan(replace(given, split="even"), {"schedule": "1f1b"}).split == "even"
    assert changed_plan(given, {"vpp": 4}).group_size == 4


def test_a_plan_with_slow_ranks_keeps_its_ranks() -> None:
    own = Plan(job=job(dp=4, pp=2, layers=8), pp=2, microbatches=4, stragglers=((1, 1.5),))
    assert not [change for change in changes(own) if "pp" in change]
    assert [change for change in changes(replace(own, stragglers=())) if "pp" in change]


def test_full_recomputation_is_added_to_each_change() -> None:
    own = Plan(job=job(dp=4, pp=2, layers=8), pp=2, microbatches=4)
    added = dict(projected_changes(own, lambda one: one, together={"recompute": "full"}))
    assert added
    assert all(one.job is not None and one.job.execution.recompute == "full" for one in added.values())
    assert all(name.startswith("--recompute full ") for name in added)


def test_layers_are_split_by_simulation_if_they_are_not() -> None:
    own = Plan(job=job(dp=4, pp=2, layers=8), pp=2, microbatches=4, split="even")
    assert [change for change in changes(own) if "split" in change] == [{"split": "auto"}]
    assert not [change for change in changes(replace(own, split="auto")) if "split" in change]


def test_each_switch_has_the_stacks_that_have_it_and_the_fastest_of_the_settings_that_save_memory() -> None:
    saving = {"recompute": "none", "offload_modules": "", "offload": 0.0, "optimizer_offload_fraction": 0.0}
    assert {name: one.fastest for name, one in SWITCHES.items() if one.saves_memory} == saving
    assert all(one.fastest is None for name, one in SWITCHES.items() if name not in saving)
    stacks = {name: one.stacks for name, one in SWITCHES.items() if one.stacks not in ("all", "megatron")}
    current = (
        "num_distributed_optimizer_instances", "moe_dispatcher", "context", "sequence_parallel",
        "overlap_grad_reduce", "overlap_param_gather", "attention",
    )  # fmt: skip
    assert stacks == dict.fromkeys(current, "current") | {"compile": "torch"}
    everywhere = {name for name, one in SWITCHES.items() if one.stacks == "all"}
    assert everywhere == {"micro_batch", "tp", "cp", "pp", "ep", "recompute", "zero"}


def test_a_plan_without_a_pipeline_has_no_other_schedule_rounds_or_split(plan: Plan) -> None:
    alone = replace(plan, pp=1, gradient_accumulation_steps=2)
    assert names_of(alone) == []
    own = Plan(job=job(dp=4, layers=8), pp=1, microbatches=4, split="even")
    assert not [change for change in changes(own) if "split" in change]
    assert [change for change in changes(replace(own, vpp=2)) if "split" in change] == [{"split": "auto"}]


def test_a_recomputation_replaces_the_plans_of_stages() -> None:
    own = replace(job(tp=2, dp=4, pp=2), stage_plans=(StagePlan("full"), StagePlan("none")))
    assert changed_job(own, {"zero": 0}).stage_plans == own.stage_plans
    assert changed_job(own, {"recompute": "none"}).stage_plans == ()
