"""The answer to a projection: interval, loss budget, sensitivities, bottleneck and advice."""

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import hypot
from typing import TYPE_CHECKING

import numpy as np

from ppsim.base.errors import ConfigError, PpsimError
from ppsim.base.units import percent, seconds
from ppsim.costs.similar_jobs import features_of
from ppsim.costs.time_breakdown import MEASURED
from ppsim.machine.job_similarity import MEASURED_SPREAD, SHARES, correction_of
from ppsim.parallel.layer_partition import without_search
from ppsim.projection.changes import projected_changes
from ppsim.projection.cost import TrainingCost, require_training_tokens
from ppsim.projection.error_classes import UNMEASURED_SPREAD, error_class_of, why_unmeasured
from ppsim.projection.loss_breakdown import interval, loss_budget, sensitivities
from ppsim.projection.plan import AUTO, Plan
from ppsim.projection.projection import ConfigurationChange, Projection, ProjectionSummary
from ppsim.schedule.table import Schedule
from ppsim.simulation.variation import Variation, relative_spread

if TYPE_CHECKING:
    from ppsim.costs.job import Job
    from ppsim.machine.cluster import Constant

SecondsOf = Callable[[Plan], float]
"""Function that returns the iteration time of a plan."""


def fitted_spread(plan: Plan, seconds: float, seconds_of: SecondsOf, class_spread: float) -> float | None:
    """Return the standard deviation of the logarithm of the iteration time, or None if no run was fitted.

    It combines the variation between runs of the same job, the differences from the fitted runs, and the
    uncertainty of the constants.
    """
    job = plan.job
    if job is None or job.execution.compute_share is not None or not job.cluster.constants.runs:
        return None
    constants, said = job.cluster.constants, correction_of(job.cluster.constants.runs, features_of(job))
    unsure = {name: one for name, one in constants.named.items() if one.sigma and one.value}
    machine = SHARES.machine * class_spread
    if f"compute_share.{job.execution.dtype}" in unsure or any(
        name.startswith("operator_time.") for name in unsure
    ):
        effects = np.array([_effect(plan, seconds, seconds_of, name, one) for name, one in unsure.items()])
        correlation, names = np.eye(len(unsure)), list(unsure)
        for pair, number in constants.correlation.items():
            if unsure.keys() >= set(pair.split()):
                here, there = map(names.index, pair.split())
                correlation[here, there] = correlation[there, here] = number
        machine = math.sqrt(max(0.0, float(effects @ correlation @ effects)))
    return math.hypot(MEASURED_SPREAD, said.unknown * class_spread, (1 - said.weight) * machine)


def _effect(plan: Plan, seconds: float, seconds_of: SecondsOf, name: str, constant: "Constant") -> float:
    assert plan.job is not None
    assert constant.sigma is not None
    cluster = plan.job.cluster
    less = replace(constant, value=constant.value * math.exp(-constant.sigma / constant.value))
    moved = cluster.with_constants(cluster.constants.having({name: less}))
    return math.log(seconds_of(replace(plan, job=replace(plan.job, cluster=moved))) / seconds)


_LEAST_GAIN = 0.005
"""Smallest gain of a recommended change."""


def advise(
    projection: Projection, project: Callable[[Plan], Projection], *, limit: int = 3
) -> list[ConfigurationChange]:
    """Return the changes that gain most throughput, best first; all fit in memory and gain at least 0.5 %.

    If the plan does not fit, the result is the fastest changes that make it fit, together with full recomputation
    if no single change does.
    """
    plan, is_too_large = projection.plan, projection.is_too_large

    def balanced(other: Plan) -> Projection:
        return project(replace(other, split=without_search(other.layer_split_rule)))

    changes = _useful(projection, projected_changes(plan, balanced, is_too_large=is_too_large))
    job = plan.job if plan.measured is None else None
    if is_too_large and not changes and job is not None and job.execution.recompute != "full":
        changes = _useful(projection, projected_changes(plan, balanced, together={"recompute": "full"}))
    return changes[:limit]


def _useful(projection: Projection, changes: Iterable[tuple[str, Projection]]) -> list[ConfigurationChange]:
    useful, is_too_large = [], projection.is_too_large
    for change, other in changes:
        if other.is_too_large or (other.runtime_error and not projection.runtime_error):
            continue
        if other.tokens_per_s is None or projection.tokens_per_s is None:  # no model: same microbatches
            gain = projection.iteration_time_s / other.iteration_time_s - 1
        else:
            gain = other.tokens_per_s / projection.tokens_per_s - 1
        if gain >= _LEAST_GAIN or is_too_large:
            useful.append(ConfigurationChange(change, other, gain, makes_it_fit=is_too_large))
    return sorted(useful, key=lambda advice: (-advice.throughput_gain, advice.change))


IterationOf = Callable[[Plan, Schedule], tuple[float, float]]
"""Function from a plan and a table to the seconds of an iteration and the peak bytes."""

ESTIMATE_SPREAD = 0.14
"""Standard deviation of costs estimated from specifications, for GPU types without calibration runs.

±1.645 times this value contained 9 of 10 calibration rows of dense models before calibration constants per GPU type
were fitted to them (`benchmarks/fit_shares.py`).
"""

EXPERTS_SPREAD = 0.21
"""`ESTIMATE_SPREAD` for models with experts."""

JITTER = 0.03
"""Relative standard deviation of single actions, if no quartiles were measured."""


def projection_summary(
    projection: Projection,
    *,
    project: Callable[[Plan], Projection],
    iteration_of: IterationOf,
    tokens: float | None,
    with_advice: bool,
) -> ProjectionSummary:
    """`project` projects the plans that the advice tries, `iteration_of` the same table with other constants."""
    require_training_tokens(tokens)
    plan = projection.plan
    spread, jitter = _spreads(projection)
    schedule = projection.timeline.schedule

    def seconds_of(other: Plan) -> float:
        # Changed constants must not change the split.
        split = projection.split if other.layer_split_rule == "auto" else other.split
        return iteration_of(replace(other, split=split), schedule)[0]

    fitted = fitted_spread(plan, projection.iteration_time_s, seconds_of, spread)
    spread, slow_s = fitted or source_spread(plan), slow_host_s(plan, projection.iteration_time_s, seconds_of)
    exposed_s = exposed_dp_s(plan, projection.iteration_time_s, seconds_of) or 0.0
    low_s, high_s = interval(projection, spread=spread, jitter=jitter, rank_spread=plan.rank_spread or 0.0)
    above_s = exposed_s if exposed_s > high_s else None
    short_share = short_documents_share(plan, projection.iteration_time_s, seconds_of)
    low_s *= short_share
    of_actions = percent(relative_spread(jitter))
    of_pace = ""
    if plan.rehearsal and plan.rehearsal.reference_s:
        of_pace = f" (drift of this machine's speed: {percent(plan.rehearsal.pace_drift)})"
    of_ranks = f"{percent(plan.rank_spread)} per rank, " if plan.rank_spread else ""
    return ProjectionSummary(
        iteration_time_interval_s=(low_s, max(high_s, slow_s or 0.0, exposed_s)),
        interval_scope="" if fitted else _interval_scope(plan, slow_s, short_share, above_s),
        interval_basis=f"cost error: {percent(spread)} common{of_pace}, {of_ranks}{of_actions} per action, 1 σ",
        time_breakdown_s=loss_budget(projection),
        advice=advise(projection, project) if with_advice else [],
        cost=TrainingCost(
            projection.num_gpus,
            projection.iteration_time_s,
            plan.job.cluster.price_per_gpu_hour if plan.job else None,
            None if tokens is None else projection.training_days(tokens),
        ),
        by_stack_s=_by_stack(projection, project) if with_advice else {},
        sensitivities_function=partial(sensitivities, projection),
    )


def _interval_scope(plan: Plan, slow_s: float | None, short_share: float, exposed_s: float | None) -> str:
    job = plan.job
    if job is None or spread_of(plan) == MEASURED_SPREAD:
        return ""
    reasons = []
    if error_class_of(job) is None:
        reasons.append(f"wider: {why_unmeasured(job)}")
    if slow_s is not None:
        reasons.append(
            f"the host may limit this eager step: up to {seconds(slow_s)} with {1e6 * EAGER_LAUNCH_S:g} µs per "
            "launch. Fit one step (ppsim fit), or give --cuda-graphs"
        )
    elif short_share < 1:
        reasons.append("wider: the sequences may be packed from short documents (--document-length)")
    if exposed_s is not None:
        reasons.append(f"up to {seconds(exposed_s)} if no data-parallel communication overlaps with compute")
    return "; ".join(reasons) or "for trainers measured here"


def _by_stack(projection: Projection, project: Callable[[Plan], Projection]) -> dict[str, float]:
    """Each stack has its own layers per stage, as with `--stack`. Searches for tables or plans are not repeated."""
    job = projection.plan.job
    plans = projection.plan.by_stack.items()
    others = {name: other for name, other in plans if other.schedule != AUTO and not other.searches_stages}
    if job is None or not others:
        return {}
    seconds_of_stack = {job.stack_name: projection.iteration_time_s}
    for name, other in others.items():
        with suppress(PpsimError):
            seconds_of_stack[name] = project(other).iteration_time_s
    return dict(sorted(seconds_of_stack.items(), key=lambda one: one[1]))


def _spreads(projection: Projection) -> tuple[float, Variation]:
    plan = projection.plan
    factors = plan.action_spread if plan.pass_factors is None else plan.pass_factors
    return spread_of(plan), (plan.source.jitter() or JITTER) if factors is None else factors


def spread_of(plan: Plan) -> float:
    """Return the standard deviation of the logarithm of a projected step time.

    Without calibration runs on the GPU type, it is the common spread of all GPU types, or the spread of the type's
    in-situ factors if that is larger.
    """
    job = plan.job
    if plan.rehearsal:
        return hypot(MEASURED_SPREAD, plan.rehearsal.pace_drift)
    if job is None or plan.measured is not None or all(basis == MEASURED for _, basis in job.costs.bases):
        return MEASURED_SPREAD
    efficiency, has_experts = job.cluster.device.efficiency, job.model.has_experts
    said = efficiency.experts_spread if has_experts else efficiency.spread
    prior = EXPERTS_SPREAD if has_experts else ESTIMATE_SPREAD
    in_situ = efficiency.in_situ if job.costs.shares["table"] else None
    return said or max(prior, in_situ.sigma if in_situ else 0.0)


def source_spread(plan: Plan) -> float:
    """Return the standard deviation of the logarithm of a projected step time, for a source of runs never seen."""
    job, spread = plan.job, spread_of(plan)
    if job is None or spread == MEASURED_SPREAD or plan.rehearsal:
        return spread
    error_class = error_class_of(job)
    return max(spread, UNMEASURED_SPREAD if error_class is None else error_class.spread)


EAGER_LAUNCH_S = 155e-6
"""Host seconds per kernel launch of runs that were not tuned.

Megatron-Bridge's verification cards of Qwen3-8B (067f987, H100, 2,048 tokens): 6.4 ms (SFT, tp 4) and 6.8 ms (LoRA)
per layer and microbatch. Tuned runs take far less, so this is the upper end of an interval only.
"""


def slow_host_s(plan: Plan, seconds: float, seconds_of: SecondsOf) -> float | None:
    """Return the iteration time with `EAGER_LAUNCH_S` per launch, if the device then waits for the host.

    None for CUDA graphs and compiled blocks, published recipes, measured costs and clusters with fitted runs.
    """
    job = _job_without_measurements(plan)
    if job is None or plan.is_recipe or job.execution.cuda_graphs != "none" or job.execution.compile:
        return None
    slow_s = seconds_of(with_launches_of(plan, EAGER_LAUNCH_S))
    return slow_s if slow_s > (1 + _NOTABLE) * seconds else None


def exposed_dp_s(plan: Plan, seconds: float, seconds_of: SecondsOf) -> float | None:
    """Return the iteration time without overlap of data-parallel communication, if it is notably longer.

    The network of a cluster that was never seen may be slower, or its collectives may wait for the compute. MLPerf
    v5.1, Llama 3.1 8B on eight nodes, one microbatch: H200 of one submitter took 1 % less than this time, B200 of
    three others as long as projected. None for pipelines, ZeRO 2 and 3, measured costs and fitted clusters.
    """
    job = _job_without_measurements(plan)
    if job is None or plan.pp > 1 or job.optimizer.zero_stage > 1:
        return None
    exposed_s = seconds_of(replace(plan, job=replace(job, overlap_grad_reduce=False, overlap_param_gather=False)))
    return exposed_s if exposed_s > (1 + _NOTABLE) * seconds else None


def short_documents_share(plan: Plan, seconds: float, seconds_of: SecondsOf) -> float:
    """Return the least share of a fine-tuning's iteration time if its sequences are packed from short documents."""
    job = _job_without_measurements(plan)
    if job is None or not (job.lora or job.freeze) or job.document_length:
        return 1.0
    with suppress(ConfigError):
        share = seconds_of(replace(plan, job=replace(job, document_length=1))) / seconds
        return share if share < 1 - _NOTABLE else 1.0
    return 1.0


def _job_without_measurements(plan: Plan) -> "Job | None":
    job = plan.job
    if job is None or plan.measured is not None or job.profile is not None or job.cluster.constants.runs:
        return None
    return job


def with_launches_of(plan: Plan, host_s: float) -> Plan:
    """Return the plan with other host seconds per kernel launch."""
    from ppsim.machine.cluster import Constant  # heavy import

    assert plan.job is not None
    cluster = plan.job.cluster
    constants = cluster.constants.having({"host_s": Constant(value=host_s)})
    return replace(plan, job=replace(plan.job, cluster=cluster.with_constants(constants)))


_NOTABLE = 0.05
"""Fraction of an iteration below which the host's launches are no matter for the interval."""
