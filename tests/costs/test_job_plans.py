"""Recomputation and offloading of a job by stage."""

from dataclasses import replace

from ppsim.costs.job_plans import with_plans
from ppsim.model.pipeline_stages import StagePlan
from tests.projection.jobs import job


def test_plans_of_stages_are_one_option_if_that_says_all() -> None:
    usual = job(pp=2)
    alike = with_plans(
        replace(usual, stage_plans=(StagePlan("mlp"),) * 2), [StagePlan("full", "moe_act")] * 2, None
    )
    assert (alike.execution.recompute, alike.offload_modules, alike.stage_plans) == ("full", "moe_act", ())
    by_layer = with_plans(usual, [StagePlan("full*2"), StagePlan("none")], [16, 16])
    assert (by_layer.execution.recompute, by_layer.stage_plans) == ("full@0-1", ())
    for plans, layers in (
        ((StagePlan("full", "moe_act"), StagePlan("full", "")), None),
        ((StagePlan("full*2", "moe_act"), StagePlan("none", "")), [16, 16]),
        ((StagePlan("full"), StagePlan("none")), None),
    ):
        apart = with_plans(usual, plans, layers)
        assert apart.stage_plans == plans
        assert (apart.execution, apart.offload_modules) == (usual.execution, usual.offload_modules)
