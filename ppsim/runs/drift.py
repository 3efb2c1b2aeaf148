"""Drift: actions that get slower or faster over a step or a run."""

import math
from itertools import combinations

import numpy as np

from ppsim.base.arrays import Floats, Ints64
from ppsim.schedule.table import Schedule

_DEVIATIONS = 5
"""Minimum trend over the step, in standard errors of its slope."""

_STEP_DEVIATIONS = 3
"""Minimum trend over steps: Kendall's sum of signs, in standard deviations of the sum for random orders."""

_LEAST_DRIFT = 0.02
"""Minimum relative change from the first step to the last."""

_LEAST_PAIRS = 4

_LEAST_SLOPE = 1e-6
"""Smaller slopes are rounding errors, for example of projected actions, which do not vary."""


def drift_over_steps(paces: Floats) -> Floats:
    """Return the linear trend of relative action times over the steps, 1 at the faster end; all 1 without a trend.

    A Mann-Kendall test, which needs at least seven steps, detects the trend. The slope is the Theil-Sen estimate.
    """
    n, pairs = len(paces), list(combinations(range(len(paces)), 2))
    signs = sum(float(np.sign(paces[j] - paces[i])) for i, j in pairs)
    if abs(signs) <= _STEP_DEVIATIONS * math.sqrt(n * (n - 1) * (2 * n + 5) / 18):
        return np.ones(n)
    slope = float(np.median([(paces[j] - paces[i]) / (j - i) for i, j in pairs]))
    if abs(slope) * (n - 1) < _LEAST_DRIFT:
        return np.ones(n)
    return 1 + _beyond_fast_end(slope, np.arange(n, dtype=np.float64), paces)


def drift_within_step(schedule: Schedule, durations: Floats, usual: Floats) -> Floats:
    """Return the linear trend within each rank's step: relative excess per action over the faster end of the step.

    Without a trend the excess is 0.
    `durations` has shape [steps, actions]. The slope is the median over pairs of actions of one kind and stage.
    """
    ratio = np.median(durations, axis=0) / np.where(usual > 0, usual, np.inf)
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
    if not slope:
        return np.zeros_like(place)
    line = float(np.median((pace - slope * place)[pace > 0])) + slope * place
    beyond: Floats = line / line.min() - 1
    return beyond


def _slope(kinds: Ints64, place: Floats, ratio: Floats) -> float:
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
