"""Spread of action times and of ranks in measured steps, the input of projection intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ppsim.base.arrays import Floats, Ints64
from ppsim.runs.run import Run, passes_of
from ppsim.schedule.table import Schedule

_NORMAL = 1.349
"""Distance between the quartiles of a normal distribution, in standard deviations."""

_TO_DEVIATIONS = 1.48
"""Standard deviation of a normal distribution over its median absolute deviation."""

_UNCERTAIN = 1.17
"""Relative standard error, times √n, of a standard deviation that is estimated from n samples.

It holds for the quartiles and for the median absolute deviation.
"""

_LEAST_RANKS = 3
_NUM_FACTORS = 20
_DIGITS = 6


@dataclass(frozen=True)
class TimeSpreads:
    """Relative standard deviations (None if there are too few samples) and their standard errors.

    `rank` excludes the first and the last rank, which hold more than layers. `factors` are equally likely ratios of
    an action's time to its median.
    """

    action: float | None = None
    rank: float | None = None
    factors: tuple[float, ...] | None = None
    action_deviation: float = 0.0
    rank_deviation: float = 0.0


def spreads_of(runs: Sequence[Run], slowdown: float = 0.0) -> TimeSpreads:
    """Estimate the spreads from quartiles and the median absolute deviation, which stragglers hardly affect.

    `factors` exclude each rank's first action and the last action of the first stage's rank.
    """
    of_actions: list[Floats] = []
    of_ranks: list[Floats] = []
    of_steps: list[Floats] = []
    for run in runs:
        schedule, taken = run.graph.schedule, run.alone(slowdown * run.knows_transfers)
        apart, medians = _apart(schedule, taken)
        of_actions += apart
        of_ranks += _ranks_apart(schedule, medians)
        if (quantiles := _quantiles(schedule, taken)) is not None:
            of_steps.append(quantiles)
    action = rank = factors = None
    action_deviation = rank_deviation = 0.0
    if of_actions:
        together = np.concatenate(of_actions)
        low, high = np.quantile(together, [0.25, 0.75])
        action = float(high - low) / _NORMAL
        action_deviation = _UNCERTAIN * action / len(together) ** 0.5
    if of_ranks and max(map(len, of_ranks)) >= _LEAST_RANKS:
        together = np.concatenate(of_ranks)
        rank = float(_TO_DEVIATIONS * np.median(np.abs(together)))
        rank_deviation = _UNCERTAIN * rank / len(together) ** 0.5
    if of_steps:
        factors = tuple(np.round(np.median(np.concatenate(of_steps), axis=0), _DIGITS).tolist())
    return TimeSpreads(action, rank, factors, action_deviation, rank_deviation)


def ends_of(schedule: Schedule) -> tuple[Ints64, int]:
    """Return the ranks' first entries, and the last entry of the rank with the first stage."""
    first_rank = int(schedule.stage_to_rank[0])
    return schedule.rank_offsets[:-1].astype(np.int64), int(schedule.rank_offsets[first_rank + 1]) - 1


def _apart(schedule: Schedule, taken: Floats) -> tuple[list[Floats], dict[tuple[int, int], float]]:
    ranges, medians = [], {}
    for (op, stage), chosen in passes_of(schedule):
        middle = np.median(taken[:, chosen], axis=1, keepdims=True)
        if (middle > 0).all():
            medians[int(op), stage] = float(np.median(middle))
            if chosen.sum() > 1:
                ranges.append((taken[:, chosen] / middle - 1).ravel())
    return ranges, medians


def _ranks_apart(schedule: Schedule, medians: dict[tuple[int, int], float]) -> list[Floats]:
    ranges = []
    for op in {op for op, _ in medians}:
        of_rank: dict[int, list[float]] = {}
        for (kind, stage), seconds in medians.items():
            rank = int(schedule.stage_to_rank[stage])
            if kind == op and 0 < rank < schedule.num_ranks - 1:
                of_rank.setdefault(rank, []).append(seconds)
        if of_rank:
            each = np.array([np.median(one) for one in of_rank.values()])
            ranges.append(each / np.median(each) - 1)
    return ranges


def _quantiles(schedule: Schedule, taken: Floats) -> Floats | None:
    factors = np.full_like(taken, np.nan)
    for _, chosen in passes_of(schedule):
        middle = np.median(taken[:, chosen])
        if middle > 0 and chosen.sum() > 1:
            factors[:, chosen] = taken[:, chosen] / middle
    firsts, last = ends_of(schedule)
    factors[:, firsts], factors[:, last] = np.nan, np.nan
    factors = factors[:, ~np.isnan(factors).any(axis=0)]
    if not factors.shape[1]:
        return None
    places = (np.arange(_NUM_FACTORS) + 0.5) / _NUM_FACTORS
    quantiles: Floats = np.quantile(factors, places, axis=1).T
    return quantiles
