"""Whether passes get slower, or faster, over a step or over the steps of a run, by more than noise explains."""

import math
from itertools import combinations

import numpy as np

from ppsim.base.arrays import Floats, Ints64
from ppsim.schedule.table import Schedule

_DEVIATIONS = 5
"""A trend over the step is told where its slope is so many deviations of itself."""

_STEP_DEVIATIONS = 3
"""A trend over steps is told where Kendall's sum is so many deviations from that of steps in any order."""

_LEAST_DRIFT = 0.02
"""A change by less than this from the first step to the last is no drift."""

_LEAST_PAIRS = 4

_LEAST_SLOPE = 1e-6
"""Below that a trend is rounding, of projected passes that do not vary at all."""


def over_steps(paces: Floats) -> Floats:
    """Return the trend in the pace of steps: each entry over the fast end of the run; 1 without a trend.

    `paces` has one entry per step: the time of its passes over the usual one. A trend is what Mann and Kendall's
    test finds, its slope Theil and Sen's: the median of all pairs. Fewer than seven steps tell none.
    """
    n, pairs = len(paces), list(combinations(range(len(paces)), 2))
    signs = sum(float(np.sign(paces[j] - paces[i])) for i, j in pairs)
    if abs(signs) <= _STEP_DEVIATIONS * math.sqrt(n * (n - 1) * (2 * n + 5) / 18):
        return np.ones(n)
    slope = float(np.median([(paces[j] - paces[i]) / (j - i) for i, j in pairs]))
    if abs(slope) * (n - 1) < _LEAST_DRIFT:
        return np.ones(n)
    return 1 + _beyond_fast_end(slope, np.arange(n, dtype=np.float64), paces)


def over_the_step(schedule: Schedule, taken: Floats, usual: Floats) -> Floats:
    """Return what each pass takes beyond those at the fast end of its rank's row, as a part; 0 without a trend.

    `taken` has shape [steps, actions], `usual` one entry an action. Each rank has its own slope: the median of
    pairs of passes of one kind and stage, of which one is of the first half and one of the second. First passes
    are left out: they are slow for reasons of their own.
    """
    ratio = np.median(taken, axis=0) / np.where(usual > 0, usual, np.inf)
    beyond = np.zeros(len(schedule))
    for begin, end in zip(schedule.rank_offsets[:-1], schedule.rank_offsets[1:], strict=True):
        place = np.arange(end - begin) / max(end - begin - 1, 1)
        kinds = _kinds(schedule)[begin:end]
        beyond[begin:end] = _beyond_fast_end(_slope(kinds, place, ratio[begin:end]), place, ratio[begin:end])
    return beyond


def _kinds(schedule: Schedule) -> Ints64:
    kinds: Ints64 = schedule.op.astype(np.int64) * schedule.num_stages + schedule.stage
    return kinds


def _beyond_fast_end(slope: float, place: Floats, pace: Floats) -> Floats:
    """What a line of this slope through the middle of the paces has beyond its lower end, as a part of that."""
    if not slope:
        return np.zeros_like(place)
    line = float(np.median((pace - slope * place)[pace > 0])) + slope * place
    beyond: Floats = line / line.min() - 1
    return beyond


def _slope(kinds: Ints64, place: Floats, ratio: Floats) -> float:
    """The median slope of the pairs, 0 where it is not told from none."""
    slopes: list[float] = []
    for kind in np.unique(kinds):
        those = np.flatnonzero((kinds == kind) & (ratio > 0))[1:]
        half = len(those) // 2
        low, high = those[:half], those[len(those) - half :]
        slopes += ((ratio[high] - ratio[low]) / (place[high] - place[low])).tolist()
    if len(slopes) < _LEAST_PAIRS:
        return 0.0
    middle = float(np.median(slopes))
    deviation = 1.25 * 1.48 * float(np.median(np.abs(np.array(slopes) - middle))) / math.sqrt(len(slopes))
    return middle if abs(middle) > max(_DEVIATIONS * deviation, _LEAST_SLOPE) else 0.0
