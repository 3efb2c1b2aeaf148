"""A projection's whole answer: how long, how sure, does it fit, where the time goes, what to change."""

from collections.abc import Callable

from ppsim.base.errors import ConfigError
from ppsim.base.units import percent
from ppsim.costs.measured import MEASURED
from ppsim.projection.advice import advise
from ppsim.projection.budget import bottleneck, interval, loss_budget, sensitivities
from ppsim.projection.plan import Plan
from ppsim.projection.projection import Answer, Fit, Projection

ESTIMATE_SPREAD = 0.06
"""Standard deviation taken for costs estimated from specifications: what docs/accuracy.md finds of their errors."""

MEASURED_SPREAD = 0.02
"""For measured costs: what a step differs by from its replay, and one measurement from the next."""

JITTER = 0.03
"""For one action beside another of its kind, where no quartiles were measured."""


def answer_of(
    projection: Projection, *, project: Callable[[Plan], Projection], tokens: float | None, with_advice: bool
) -> Answer:
    """Return the answer to a projection; `tokens` are those that the training takes in all.

    `project` projects the plans that the advice tries.

    Raises `ConfigError` for tokens that are none.
    """
    if tokens is not None and not 0 < tokens < float("inf"):
        raise ConfigError(f"--tokens must be more than 0: got {tokens:g}")
    plan = projection.plan
    spread, jitter = _spreads(projection)
    peaks = projection.timeline.memory.peak_bytes
    rank = int(peaks.argmax())
    limit = plan.memory_bound_bytes
    found = sensitivities(projection)
    of_ranks = f"each rank by {percent(plan.rank_spread)}, " if plan.rank_spread else ""
    return Answer(
        interval_s=interval(projection, spread=spread, jitter=jitter, rank_spread=plan.rank_spread or 0.0),
        sampled=f"costs off by {percent(spread)} together, {of_ranks}each action by {percent(jitter)} "
        "(standard deviations)",
        fit=Fit(rank, float(peaks[rank]), limit),
        budget_s=loss_budget(projection),
        sensitivities=found,
        bottleneck=bottleneck(found),
        advice=advise(projection, project) if with_advice else [],
        days=None if tokens is None else projection.days(tokens),
    )


def _spreads(projection: Projection) -> tuple[float, float]:
    """Of all costs together, and of each action: those of a calibration, a profile's own quartiles else.

    What is by a table of kernels is as uncertain as its in-situ factor, and off in one direction with the rest.
    """
    plan = projection.plan
    jitter = plan.source.jitter() or JITTER if plan.action_spread is None else plan.action_spread
    if plan.job is None or plan.measured is not None or all(basis == MEASURED for _, basis in plan.job.bases):
        return MEASURED_SPREAD, jitter
    table, in_situ = plan.job.shares["table"], plan.job.cluster.device.efficiency.in_situ
    if not table or in_situ is None:
        return ESTIMATE_SPREAD, jitter
    of_table = table / (table + plan.job.shares["data sheet"])
    return of_table * in_situ.sigma + (1 - of_table) * ESTIMATE_SPREAD, jitter
