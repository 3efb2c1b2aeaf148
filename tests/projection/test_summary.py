"""Spread of projections by GPU type and model."""

from dataclasses import replace
from typing import Any

import pytest

import ppsim
from ppsim import project
from ppsim.base.errors import ConfigError
from ppsim.projection.plan import Plan
from ppsim.projection.summary import (
    ESTIMATE_SPREAD,
    EXPERTS_SPREAD,
    changed_jobs,
    changed_plans,
    projected_changes,
    spread_of,
)
from tests.projection.jobs import job


def plan_with(plan: Plan, **spreads: float | None) -> Plan:
    """The plan on a GPU type with these spreads of its calibration runs."""
    assert plan.job is not None
    cluster = plan.job.cluster
    efficiency = replace(cluster.device.efficiency, in_situ=None, **spreads)
    device = replace(cluster.device, efficiency=efficiency)
    return replace(plan, job=replace(plan.job, cluster=replace(cluster, device=device)))


@pytest.mark.parametrize(
    ("model", "prior", "calibrated"), [("llama3-8b", ESTIMATE_SPREAD, 0.01), ("mixtral-8x7b", EXPERTS_SPREAD, 0.02)]
)
def test_models_with_experts_have_a_spread_of_their_own(model: str, prior: float, calibrated: float) -> None:
    plan = ppsim.project(model=model, stack="plain", gpus=16, pp=2, memory_limit=None).plan
    assert spread_of(plan_with(plan, spread=0.01, experts_spread=0.02)) == calibrated
    assert spread_of(plan_with(plan, spread=None, experts_spread=None)) == prior


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Of a profile: 1f1b."""
    return project(pp=4, microbatches=8).plan


def names_of(plan: Plan, **how: Any) -> list[str]:
    return [change for change, _ in changed_plans(plan, **how)]


def test_a_plan_of_a_profile_changes_its_schedule_and_chunks(plan: Plan) -> None:
    one = ["zb-h1", "zb-h2"]
    two = ["interleaved-1f1b --vpp 2", "zbv-fixed --vpp 2", "interleaved-zb --vpp 2"]
    assert names_of(plan) == [f"--schedule {name}" for name in (*one, *two, "interleaved-1f1b --vpp 4")]
    assert [other.vpp for _, other in changed_plans(plan)] == [1, 1, 2, 2, 2, 4]
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
    assert set(names_of(plan, is_too_large=True)) == set(names_of(plan)) | searched
    monkeypatch.setattr("ppsim.projection.summary._MOST_SEARCHED", 3 * 4 * 8)
    assert searched & set(names_of(plan, is_too_large=True)) == {"--schedule zb-auto"}
    monkeypatch.setattr("ppsim.projection.summary._MOST_SEARCHED", 3 * 4 * 8 - 1)
    assert names_of(plan, is_too_large=True) == names_of(plan)


def test_one_round_of_a_step_is_tried_if_there_are_several(plan: Plan) -> None:
    several = dict(changed_plans(replace(plan, gradient_accumulation_steps=2)))
    assert several["--gradient-accumulation-steps 1"].gradient_accumulation_steps == 1
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
    assert list(jobs) == [
        "--micro-batch-size 2", "--tp 4 --dp 2", "--tp 1 --dp 8", "--pp 4 --dp 2", "--pp 1 --dp 8",
        "--recompute mlp", "--recompute full", "--zero 3",
    ]  # fmt: skip
    layouts = {name: (one.layout.tp, one.layout.pp, one.layout.dp) for name, one in jobs.items()}
    assert layouts["--tp 4 --dp 2"] == (4, 2, 2)
    assert layouts["--tp 1 --dp 8"] == (1, 2, 8)
    assert layouts["--pp 1 --dp 8"] == (2, 1, 8)
    assert jobs["--micro-batch-size 2"].micro_batch == 2
    assert jobs["--recompute full"].execution.recompute == "full"
    assert jobs["--zero 3"].optimizer.zero_stage == 3


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
        ({"overlap_grad_reduce": False, "overlap_param_gather": False}, "--overlap-dp"),
        ({"overlap_grad_reduce": True, "overlap_param_gather": False}, "--overlap-param-gather"),
        ({"overlap_grad_reduce": True, "overlap_param_gather": True}, None),
    ],
)
def test_the_next_overlap_of_data_parallel_messages_is_tried(fields: dict[str, bool], overlap: str | None) -> None:
    changes = [change for change, _ in changed_jobs(job(dp=4, pp=2, **fields)) if change.startswith("--overlap")]
    assert changes == ([overlap] if overlap else [])


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
    assert f"--recompute {modules}" in dict(changed_jobs(found))
    partly = replace(found, execution=replace(found.execution, recompute="full"))
    assert "--recompute none" in dict(changed_jobs(partly))
    assert "--recompute full" not in dict(changed_jobs(partly))


@pytest.mark.parametrize(
    ("cluster", "dispatcher", "changes"),
    [("dgx-h100", "deepep", ["alltoall"]), ("dgx-a100", "alltoall", ["deepep"]), ("dgx-h100", "alltoall", ["deepep"]), ("gb200-nvl72", "hybridep", ["alltoall"])],
)  # fmt: skip
def test_other_token_dispatchers_of_the_device_are_tried(cluster: str, dispatcher: str, changes: list[str]) -> None:
    made = ppsim.job(model="gpt-oss-20b", cluster=cluster, tp=1, pp=1, dp=8, ep=8, micro_batch=1, global_batch=8,
                     seq_len=1024, moe_dispatcher=dispatcher)  # fmt: skip
    assert [change.split()[1] for change, _ in changed_jobs(made) if "dispatcher" in change] == changes
