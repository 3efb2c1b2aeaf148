"""A projection's whole answer: how long, how sure, does it fit, where the time goes, what to change."""

from dataclasses import dataclass
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.units import percent
from ppsim.costs.measured import MEASURED
from ppsim.projection.advice import Advice, advise
from ppsim.projection.budget import Interval, bottleneck, interval, loss_budget, sensitivities
from ppsim.projection.project import Projection

ESTIMATE_SPREAD = 0.06
"""Standard deviation taken for costs estimated from specifications: what docs/accuracy.md finds of their errors."""

MEASURED_SPREAD = 0.02
"""For measured costs: what a step differs by from its replay, and one measurement from the next."""

JITTER = 0.03
"""For one action beside another of its kind, where no quartiles were measured."""


@dataclass(frozen=True)
class Fit:
    """The fullest rank and what is left there, in bytes; `limit_bytes` None: nobody said how much there is."""

    rank: int
    peak_bytes: float
    limit_bytes: float | None

    @property
    def margin_bytes(self) -> float | None:
        """What is left, negative where it does not fit."""
        return None if self.limit_bytes is None else self.limit_bytes - self.peak_bytes


@dataclass(frozen=True)
class Answer:
    """What `ppsim project` says beside the projection itself.

    `interval_s` is the 5th to 95th percentile of the iteration over sampled costs, `sampled` says of which spread.
    `days` is None where no number of tokens was given.
    """

    interval_s: Interval
    sampled: str
    fit: Fit
    budget_s: dict[str, float]
    sensitivities: dict[str, float]
    bottleneck: str
    advice: list[Advice]
    days: float | None

    def to_json(self) -> dict[str, Any]:
        """Return the answer with units in its keys."""
        return {
            "iteration_time_interval_s": list(self.interval_s),
            "memory_fit": {
                "rank": self.fit.rank,
                "peak_bytes": self.fit.peak_bytes,
                "limit_bytes": self.fit.limit_bytes,
                "margin_bytes": self.fit.margin_bytes,
            },
            "loss_budget_s": self.budget_s,
            "gain_per_percent": self.sensitivities,
            "bottleneck": self.bottleneck,
            "advice": [
                {"change": one.change, "gain": one.gain, "iteration_time_s": one.projection.iteration_s}
                for one in self.advice
            ],
            "days": self.days,
        }


def answer_of(projection: Projection, *, tokens: float | None = None, with_advice: bool = True) -> Answer:
    """Return the answer to a projection; `tokens` are those that the training takes in all.

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
    return Answer(
        interval_s=interval(projection, spread=spread, jitter=jitter),
        sampled=f"costs off by {percent(spread)} together, each action by {percent(jitter)} (standard deviations)",
        fit=Fit(rank, float(peaks[rank]), limit),
        budget_s=loss_budget(projection),
        sensitivities=found,
        bottleneck=bottleneck(found),
        advice=advise(projection) if with_advice else [],
        days=None if tokens is None else projection.days(tokens),
    )


def _spreads(projection: Projection) -> tuple[float, float]:
    """Of all costs together, and of each action: a profile's own quartiles where it has them."""
    plan = projection.plan
    is_measured = plan.job is None or all(basis == MEASURED for _, basis in plan.job.bases)
    return MEASURED_SPREAD if is_measured else ESTIMATE_SPREAD, plan.source.jitter() or JITTER
