"""Recomputation and offloading of a job, per model stage."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ppsim.base.errors import ConfigError
from ppsim.costs.job import Job
from ppsim.model.pipeline_stages import Stage, StagePlan, plans_of_stages
from ppsim.model.recompute import Recompute, by_number, of_layer, plan_of_stage


def stages_with_plans(
    job: Job,
    stages: Sequence[Stage],
    stages_of_ranks: Iterable[Sequence[int]],
    plans: Sequence[StagePlan] | None = None,
) -> list[Stage]:
    """Return stages of the model with their plans; raises `ConfigError` for plans of another number of stages.

    >>> import ppsim
    >>> job = ppsim.job(model="llama3-8b", gpus=8, pp=2, recompute="block/2")
    >>> [one.layers for one in stages_with_plans(job, [Stage(job.model.layers)], [[0]])[0].plan]
    [2, 30]
    """
    plans = plans or plans_of(job, len(stages))
    if len(plans) != len(stages):
        raise ConfigError(f"the plan has {len(plans)} stages, but the schedule has {len(stages)}")
    layers = [len(stage.layers) for stage in stages]
    recomputed = plans_of_stages(layers, [one.recompute for one in plans], stages_of_ranks)
    return [
        replace(stage, plan=plan, offload_modules=one.offload_modules)
        for stage, plan, one in zip(stages, recomputed, plans, strict=True)
    ]


def plans_of(job: Job, num_stages: int) -> tuple[StagePlan, ...]:
    """Return the plan of each model stage."""
    return job.stage_plans or (StagePlan(job.execution.recompute, job.offload_modules),) * num_stages


def with_plans(job: Job, plans: Sequence[StagePlan], layers: Sequence[int] | None) -> Job:
    """Return the job with a plan for each stage, written as a single option for all stages if possible.

    >>> import ppsim
    >>> job = ppsim.job(model="llama3-8b", gpus=8, pp=2)
    >>> with_plans(job, [StagePlan("full*2"), StagePlan()], [16, 16]).execution.recompute
    'full@0-1'
    """
    text = plans[0].recompute if len({plan.recompute for plan in plans}) == 1 else None
    if text is None and layers is not None:
        text = by_number(map(plan_of_stage, [plan.recompute for plan in plans], layers))
    if text is None or len({plan.offload_modules for plan in plans}) > 1:
        return replace(job, stage_plans=tuple(plans))
    execution = replace(job.execution, recompute=text)
    return replace(job, execution=execution, offload_modules=plans[0].offload_modules, stage_plans=())


def recomputing(job: Job, recompute: Recompute) -> Job:
    """Return the job with the same recomputation for all layers."""
    if recompute == of_layer(job.execution.recompute):
        return job
    return replace(job, execution=replace(job.execution, recompute=recompute), stage_plans=())
