"""Projection of a case."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.model.memory_settings import RESERVED_PER_ALLOCATED
from ppsim.projection.plan import Plan
from ppsim.projection.project import outcome_of, peaks_of
from ppsim.trainers.recipe_table import TITLES
from ppsim.trainers.run_config import RunConfig
from ppsim.validation.published_runs import PublishedRun, case_sets, cases_of, flops_a_token

PlanOf = Callable[[Mapping[str, Any]], Plan]
"""Function from options of `ppsim project` to its plan (`ppsim.api.project.plan_of_keywords`)."""


def project_run(case: PublishedRun, plan: Plan) -> float:
    """Return the projected seconds of an iteration, or the peak bytes of the case's rank.

    For memory reserved by an allocator, this is the projected reserved memory; raises `ConfigError` if it is
    unknown.
    """
    if not case.is_memory:
        return outcome_of(plan)[0]
    peaks = peaks_of(plan)
    peak = peaks[-1] if case.properties.rank == "last" else max(peaks)
    if case.properties.bytes_are == "allocated":
        return peak
    if plan.job is None or not plan.job.settings.fully_shard:
        raise ConfigError("the memory that an allocator reserves is known with --fully-shard only")
    return round(RESERVED_PER_ALLOCATED * peak)


def measured_of(case: PublishedRun, plan: Plan) -> float:
    """Return seconds per step or bytes per device, converted with the plan's model and batch."""
    source, job = plan.modelled_source, plan.job
    tokens = source.tokens_per_microbatch * plan.num_microbatches
    flops = flops_a_token(job.model, job.length, case.properties.counted) * tokens if job else 0.0
    return case.measured(
        num_gpus=plan.pp * source.gpus_per_rank, sequences=tokens // source.sequence_length, tokens=tokens,
        flops=flops, peak=job.cluster.device.peak(job.execution.dtype) if job else 0.0,
    )  # fmt: skip


@dataclass(frozen=True)
class PublishedResult:
    """A published run of a recipe; `value` is as published."""

    seconds: float
    value: float
    metric: str
    table: str
    source: str

    def to_json(self, projected_s: float) -> dict[str, Any]:
        return {
            "iteration_time_s": self.seconds, "value": self.value, "metric": self.metric, "table": self.table,
            "source": self.source,
            "error": projected_s / self.seconds - 1,
        }  # fmt: skip


def published_of(config: RunConfig, plan: Plan) -> PublishedResult | None:
    """Return None if no published run of the release names this recipe without changes.

    The FLOPs of the recipe's `plan` convert a published throughput to seconds.
    """
    recipe = config.recipe
    if recipe is None:
        return None
    title = TITLES[recipe.trainer]
    for name, case_set in case_sets().items():
        for case in cases_of(name) if title in case_set.source else ():
            properties = case.properties
            if properties.table == f"{title} {recipe.release}" and case.options == {"recipe": recipe.name}:
                return PublishedResult(
                    measured_of(case, plan), properties.value, properties.metric, properties.table, case_set.source
                )
    return None
