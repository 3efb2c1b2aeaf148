"""A projection's whole answer: how long, how sure, where the time goes, what to change."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import exp, hypot

from ppsim.base.errors import ConfigError
from ppsim.base.units import percent
from ppsim.costs.parts import MEASURED
from ppsim.machine.likeness import MEASURED_SPREAD
from ppsim.parallel.layer_partition import without_search
from ppsim.projection.budget import bottleneck, interval, loss_budget, sensitivities
from ppsim.projection.changes import projected_changes, projected_with_checkpoints
from ppsim.projection.fitted_spread import fitted_spread
from ppsim.projection.plan import Plan
from ppsim.projection.projection import Advice, Answer, Projection
from ppsim.schedule.table import Schedule
from ppsim.simulation.variation import Variation, relative_spread

_LEAST_GAIN = 0.005
"""Below half a percent nobody changes a plan."""


def advise(projection: Projection, project: Callable[[Plan], Projection], *, limit: int = 3) -> list[Advice]:
    """Return the changes that gain most throughput, best first: all fit in memory and gain at least 0.5 %.

    A change must run wherever the plan itself does. If the plan does not fit, these are the fastest changes that
    make it fit, whatever they gain: single ones or, if there are none, full recomputation together with another.
    """
    plan, is_too_large = projection.plan, projection.fits is False

    def balanced(other: Plan) -> Projection:
        return project(replace(other, split=without_search(other.how_split)))

    found = _useful(projection, projected_changes(plan, balanced, is_too_large=is_too_large))
    if is_too_large and not found:
        found = _useful(projection, projected_with_checkpoints(plan, balanced))
    return found[:limit]


def _useful(projection: Projection, changes: Iterable[tuple[str, Projection]]) -> list[Advice]:
    """The changes to recommend, fastest first."""
    found, is_too_large = [], projection.fits is False
    for change, made in changes:
        if made.fits is False or (made.not_in_runtime and not projection.not_in_runtime):
            continue
        if made.tokens_per_s is None or projection.tokens_per_s is None:  # without a model: the same microbatches
            gain = projection.iteration_time_s / made.iteration_time_s - 1
        else:
            gain = made.tokens_per_s / projection.tokens_per_s - 1
        if gain >= _LEAST_GAIN or is_too_large:
            found.append(Advice(change, made, gain, makes_it_fit=is_too_large))
    return sorted(found, key=lambda advice: (-advice.gain, advice.change))


IterationOf = Callable[[Plan, Schedule], tuple[float, float]]
"""A plan and a table → seconds of an iteration, and bytes."""

ESTIMATE_SPREAD = 0.14
"""Standard deviation taken for costs estimated from specifications, of a class that no run has said another of.

1.645 of it held nine of ten rows of dense models that `ppsim validate` marks fit before constants of their
classes were found from them; a class with such rows has its own, which they say (`benchmarks/fit_shares.py`)."""

EXPERTS_SPREAD = 0.21
"""The same for models with experts."""

JITTER = 0.03
"""For one action beside another of its kind, where no quartiles were measured."""


def answer_of(
    projection: Projection,
    *,
    project: Callable[[Plan], Projection],
    iteration_of: IterationOf,
    tokens: float | None,
    with_advice: bool,
) -> Answer:
    """Return the answer to a projection; `tokens` are those that the training takes in all.

    `project` projects the plans that the advice tries, `iteration_of` the same table with other constants.

    Raises `ConfigError` for tokens that are none.
    """
    if tokens is not None and not 0 < tokens < float("inf"):
        raise ConfigError(f"--tokens must be more than 0: got {tokens:g}")
    plan = projection.plan
    spread, jitter = _spreads(projection)
    schedule = projection.timeline.schedule

    def seconds_of(other: Plan) -> float:
        # The same run with other constants has the same layers per stage.
        split = projection.split if other.how_split == "auto" else other.split
        return iteration_of(replace(other, split=split), schedule)[0]

    spread = fitted_spread(plan, projection.iteration_time_s, seconds_of, spread) or spread
    found = sensitivities(projection)
    of_actions = percent(relative_spread(jitter))
    of_pace = ""
    if plan.rehearsal and plan.rehearsal.reference_s:
        of_pace = f" (drift of this machine's speed: {percent(plan.rehearsal.pace_drift)})"
    of_ranks = f"{percent(plan.rank_spread)} per rank, " if plan.rank_spread else ""
    return Answer(
        interval_s=interval(projection, spread=spread, jitter=jitter, rank_spread=plan.rank_spread or 0.0),
        sampled=f"cost error: {percent(spread)} common{of_pace}, {of_ranks}{of_actions} per action, 1 σ",
        budget_s=loss_budget(projection),
        gain_per_percent=found,
        bottleneck=bottleneck(found),
        advice=advise(projection, project) if with_advice else [],
        days=None if tokens is None else projection.days(tokens),
    )


def _spreads(projection: Projection) -> tuple[float, Variation]:
    """Of all costs together, and of each action: those of a calibration, a profile's own quartiles else."""
    plan = projection.plan
    told = plan.action_spread if plan.pass_factors is None else plan.pass_factors
    return spread_of(plan), (plan.source.jitter() or JITTER) if told is None else told


def spread_of(plan: Plan) -> float:
    """Return how far a projected step may be off, the standard deviation of its logarithm.

    Of a rehearsed profile that of measured costs and that of the machine's pace later on together, else that of the
    runs of the class of devices; where there are none, that of all classes' or, if it is more, that of the in-situ
    factor of its table.
    """
    job = plan.job
    if plan.rehearsal:
        return hypot(MEASURED_SPREAD, plan.rehearsal.pace_drift)
    if job is None or plan.measured is not None or all(basis == MEASURED for _, basis in job.bases):
        return MEASURED_SPREAD
    efficiency, has_experts = job.cluster.device.efficiency, any(layer.is_moe for layer in job.model.kinds)
    said = efficiency.experts_spread if has_experts else efficiency.spread
    prior = EXPERTS_SPREAD if has_experts else ESTIMATE_SPREAD
    in_situ = efficiency.in_situ if job.shares["table"] else None
    return said or max(prior, in_situ.sigma if in_situ else 0.0)


def interval_by_spread(seconds: float, spread: float) -> tuple[float, float]:
    """Return the bounds between which nine of ten steps are expected, of what is `seconds` if nothing is off.

    What single actions differ by is not in it, of which hundreds average out (`interval` samples both).
    """
    return seconds * exp(-_TIMES_OF_90 * spread), seconds * exp(_TIMES_OF_90 * spread)


_TIMES_OF_90 = 1.6448536269514722
"""Standard deviations below which 95 % of a normal distribution are."""
