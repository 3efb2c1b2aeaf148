"""Spread of projections by GPU type and model."""

from dataclasses import replace

import pytest

import ppsim
from ppsim.projection.plan import Plan
from ppsim.projection.summary import (
    ESTIMATE_SPREAD,
    EXPERTS_SPREAD,
    spread_of,
)


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


@pytest.mark.parametrize(
    ("options", "scope"),
    [
        ({"gpus": 16, "pp": 2}, "for trainers measured here"),
        (
            {"gpus": 16, "pp": 2, "stack": "deepspeed-2021"},
            "wider: deepspeed-2021 was not measured on NVIDIA H100 SXM",
        ),
        (
            {"gpus": 8, "tp": 4, "global_batch": 16, "seq_len": 2048, "lora": 16},
            "the host may limit this eager step",
        ),
    ],
)
def test_an_interval_says_for_which_runs_it_is(options, scope):
    answer = ppsim.project(model="llama3-8b", **options).summarise(with_advice=False)
    assert answer.interval_scope.startswith(scope)
    low_s, high_s = answer.iteration_time_interval_s
    is_wide = high_s / low_s > 2
    assert is_wide == (scope != "for trainers measured here")
