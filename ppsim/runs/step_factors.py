"""Factors that make a run's actions longer or shorter than usual: pauses, slow steps, drift and microbatch sizes.

An action takes `pause + usual(stage) · relative time(step, rank) · drift(action) · size(step, microbatch)`, times
unexplained variation. Factors are medians, which rare long actions do not affect.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from ppsim.base.arrays import Floats, Ints64
from ppsim.runs.pauses import pauses_beyond
from ppsim.runs.run import pass_medians
from ppsim.schedule.table import Op, Schedule

_LEAST_SPREAD = 0.05
"""Sizes of microbatches and relative times of steps that differ by less than this fraction count as equal."""
_DEVIATIONS = 4
"""Such a difference must also exceed this number of standard errors of a median."""
_TO_DEVIATION = 1.25 / 1.15
"""Standard error of the median of n normal samples = this · upper quartile of distances from the median / √n."""
_LEAST_OF_RANK = 6
"""With fewer actions of a rank per step, a slow step cannot be distinguished from a slow action."""
_ALIKE = 0.2
"""Kinds of actions whose microbatch sizes differ by less than this fraction count as equally sized."""
_TINY = 1e-9
_CLEARLY = 0.8
"""Sizes are estimated before the drift if they leave less than this fraction of the variation."""
_LEAST_PASSES = 2
"""With fewer actions per kind and microbatch, over all stages, sizes of microbatches cannot be estimated."""


@dataclass(frozen=True)
class StepFactors:
    """Estimates of all factors in the formula above, from action times `taken` [steps, actions] in seconds.

    A trend from the first microbatch to the last resembles a drift over the step. With `sizes_first`, the sizes of
    microbatches are estimated before the drift.
    """

    schedule: Schedule
    taken: Floats
    step_s: float
    sizes_first: bool = False

    @classmethod
    def fitted(cls, schedule: Schedule, taken: Floats, step_s: float) -> "StepFactors":
        """Return the factors in the order that leaves less variation: drift follows the clock, sizes do not."""
        factors = cls(schedule, taken, step_s)
        if (factors.drift_in_step == 1).all():
            return factors
        other = cls(schedule, taken, step_s, sizes_first=True)
        return other if other.unexplained < _CLEARLY * factors.unexplained else factors

    @property
    def unexplained(self) -> float:
        """Mean relative deviation of the actions' times from their expected times."""
        return float(np.abs(_over(np.median(self.without_pauses / self._all, axis=0), self.usual) - 1).mean())

    @cached_property
    def firsts(self) -> Any:
        """Mask of the first action of each kind and stage."""
        key = self.schedule.op.astype(np.int64) * self.schedule.num_stages + self.schedule.stage
        first = np.zeros(len(self.schedule), dtype=bool)
        first[np.unique(key, return_index=True)[1]] = True
        return first

    @cached_property
    def _alike(self) -> Floats:
        """Action times, divided by the microbatch sizes if these change from step to step."""
        return self.taken / self.sizes if self._sizes_vary else self.taken

    @cached_property
    def _of_place(self) -> Floats:
        """Usual time of each action; the lower median, so that half of the steps may be slow."""
        usual: Floats = np.quantile(self._alike, 0.5, axis=0, method="lower")
        return usual

    @cached_property
    def _paces(self) -> Floats:
        """Median ratio of the actions' times to their usual times, [steps, ranks]."""
        ratio, ranks = _over(self._alike, self._of_place), self.schedule.rank
        is_recorded = self._of_place > 0
        paces = np.ones((len(ratio), self.schedule.num_ranks))
        for rank in np.unique(ranks[is_recorded]):
            its = is_recorded & (ranks == rank)
            if its.sum() >= _LEAST_OF_RANK:
                paces[:, rank] = np.median(ratio[:, its], axis=1)
        return paces

    @cached_property
    def _common_pace(self) -> Floats:
        """Relative time of the steps on the median rank; a trend of half of the ranks or fewer is not common."""
        trends = np.stack([drift_over_steps(pace) for pace in self._paces.T], axis=1)
        is_common = (trends != 1).any(axis=0).mean() > 0.5
        pace: Floats = np.quantile(
            self._paces if is_common else self._paces / trends, 0.5, axis=1, method="lower", keepdims=True
        )
        return pace

    @cached_property
    def drift_of_all(self) -> Floats:
        """Trend over the steps, [steps, 1]; 1 without a trend."""
        return drift_over_steps(self._common_pace[:, 0])[:, None]

    @cached_property
    def drift_of_ranks(self) -> Floats:
        """Trend of each rank relative to the trend of all ranks, [steps, ranks]."""
        beyond = self._paces / self._common_pace
        return np.stack([drift_over_steps(one) for one in beyond.T], axis=1)

    @cached_property
    def drift(self) -> Floats:
        return self.drift_of_all * self.drift_of_ranks

    @cached_property
    def slow_steps(self) -> Floats:
        """Factor by which a rank is slower than in other steps, [steps, ranks]."""
        of_ranks = self._paces / self._common_pace / self.drift_of_ranks
        return _outliers(self._common_pace / self.drift_of_all) * _outliers(of_ranks)

    @cached_property
    def of_steps(self) -> Floats:
        """Factors that depend on the step, [steps, actions]."""
        factors: Floats = (self.drift * self.slow_steps)[:, self.schedule.rank]
        return factors

    @cached_property
    def drift_in_step(self) -> Floats:
        """Factor of each action by the trend within its rank's step; 1 at the faster end of the step."""
        taken = self.taken / self.of_steps / (self.sizes if self.sizes_first else 1.0)
        return 1 + drift_within_step(self.schedule, taken, self.each(pass_medians(self.schedule, taken)))

    @cached_property
    def _ratios(self) -> Floats:
        """Ratios of action times to the median of their kind and stage, without the drift over the step."""
        schedule = self.schedule
        taken = self.taken
        if not self.sizes_first:
            taken = taken / (1 + drift_within_step(schedule, taken, self.each(pass_medians(schedule, taken))))
        return _over(taken, self.each(pass_medians(schedule, taken)))

    @cached_property
    def _kinds(self) -> Any:
        return np.unique(self.schedule.op, return_inverse=True)[1]

    @cached_property
    def _median_ratios(self) -> Floats:
        """Median of `_ratios` over the stages, relative to the kind's mean, [steps, kinds, microbatches].

        The first action of a kind on a stage may be slow for a reason other than the size of its microbatch. At
        such microbatches, each ratio is therefore replaced by the smallest of the step's ratios over the kinds.
        """
        schedule, kinds = self.schedule, self._kinds
        ratios = np.ones((len(self.taken), int(kinds.max()) + 1, schedule.num_units))
        for kind, unit in {(int(kind), int(unit)) for kind, unit in zip(kinds, schedule.microbatch, strict=True)}:
            its = (kinds == kind) & (schedule.microbatch == unit)
            ratios[:, kind, unit] = np.quantile(self._ratios[:, its], 0.5, axis=1, method="lower")
        of_firsts = np.unique(schedule.microbatch[self.firsts])
        others = np.delete(ratios, of_firsts, axis=2)
        if others.shape[2]:
            ratios /= others.mean(axis=(0, 2), keepdims=True)
            others = np.delete(ratios, of_firsts, axis=2)
        # Kinds that differ at other microbatches (for example, only forwards are uneven) may differ here too.
        if not others.size or np.median(np.ptp(others, axis=1), axis=0).max() < _ALIKE:
            ratios[:, :, of_firsts] = ratios[:, :, of_firsts].min(axis=1, keepdims=True)
        return ratios

    @cached_property
    def _size_deviation(self) -> float:
        schedule, ratios = self.schedule, self._median_ratios
        passes = len(schedule) / ratios[0].size
        if passes < _LEAST_PASSES:
            return math.inf
        beyond = self._ratios / np.maximum(ratios, _TINY)[:, self._kinds, schedule.microbatch]
        middle = np.array([np.median(beyond[:, self._kinds == kind]) for kind in range(ratios.shape[1])])
        apart = np.abs(beyond / np.maximum(middle, _TINY)[self._kinds] - 1)
        return _TO_DEVIATION * float(np.quantile(apart, 0.75)) / math.sqrt(passes)

    @cached_property
    def _fixed_sizes(self) -> Floats:
        """Median of `_median_ratios` over the steps, relative to the median microbatch, [kinds, microbatches]."""
        ratios = self._median_ratios
        fixed: Floats = np.median(ratios / np.median(ratios, axis=2, keepdims=True), axis=0)
        return fixed

    @cached_property
    def _sizes_vary(self) -> bool:
        beyond = self._median_ratios / np.maximum(self._fixed_sizes, _TINY)
        apart = np.abs(beyond / np.median(beyond, axis=2, keepdims=True) - 1)
        typical = float(np.median(np.median(apart, axis=(1, 2))))
        return len(beyond) > 1 and typical > max(_LEAST_SPREAD, _DEVIATIONS * self._size_deviation)

    @cached_property
    def sizes(self) -> Floats:
        """Size of each action's microbatch relative to the mean size, [steps, actions]."""
        fixed = self._fixed_sizes
        noise = _DEVIATIONS * self._size_deviation / math.sqrt(len(self.taken))
        if self._sizes_vary:
            relative = self._median_ratios / self._median_ratios.mean(axis=(0, 2), keepdims=True)
        elif np.abs(fixed / np.median(fixed, axis=1, keepdims=True) - 1).max() > max(_LEAST_SPREAD, noise):
            relative = np.broadcast_to(fixed / fixed.mean(axis=1, keepdims=True), self._median_ratios.shape)
        else:
            return np.ones_like(self.taken)
        sizes: Floats = np.maximum(relative, _TINY)[:, self._kinds, self.schedule.microbatch]
        return sizes

    @cached_property
    def _all(self) -> Floats:
        return self.of_steps * self.drift_in_step * self.sizes

    @cached_property
    def pauses(self) -> Floats:
        """Seconds by which single actions far exceed their expected time."""
        expected = self._all * self.each(pass_medians(self.schedule, self.taken / self._all))
        # An action that is long in most steps is not a pause.
        if len(self.taken) > 1:
            sizes = self.sizes if self._sizes_vary else 1.0
            expected = np.maximum(expected, self._of_place * self.of_steps * sizes)
        else:
            expected = np.where(self.firsts, self.taken, expected)
        return pauses_beyond(self.taken, expected, self.step_s)

    @cached_property
    def without_pauses(self) -> Floats:
        return self.taken - self.pauses

    @cached_property
    def medians(self) -> dict[tuple[Op, int], float]:
        """Median times with all factors removed."""
        return pass_medians(self.schedule, self.without_pauses / self._all)

    @cached_property
    def usual(self) -> Floats:
        return self.each(self.medians)

    @cached_property
    def expected(self) -> Floats:
        """Action times without unexplained variation, [steps, actions]."""
        return self.usual * self._all

    def each(self, medians: dict[tuple[Op, int], float]) -> Floats:
        schedule = self.schedule
        return np.array([medians[Op(op), stage] for op, stage in zip(schedule.op, schedule.stage, strict=True)])


def _outliers(paces: Floats) -> Floats:
    """Return the times of unusual steps relative to the median step, 1 for other steps."""
    apart = paces - np.median(paces, axis=0)
    usual = _DEVIATIONS * 1.48 * np.median(np.abs(apart), axis=0)
    return np.where(np.abs(apart) > np.maximum(usual, _LEAST_SPREAD), paces / np.median(paces, axis=0), 1.0)


def _over(values: Floats, usual: Floats) -> Floats:
    return np.divide(values, usual, out=np.ones_like(values), where=np.broadcast_to(usual > 0, values.shape))


_SLOPE_DEVIATIONS = 5
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
        positions = np.arange(end - begin) / max(end - begin - 1, 1)
        kinds = _kinds(schedule)[begin:end]
        beyond[begin:end] = _beyond_fast_end(
            _slope(kinds, positions, ratio[begin:end]), positions, ratio[begin:end]
        )
    return beyond


def _kinds(schedule: Schedule) -> Ints64:
    kinds: Ints64 = schedule.op.astype(np.int64) * schedule.num_stages + schedule.stage
    return kinds


def _beyond_fast_end(slope: float, positions: Floats, pace: Floats) -> Floats:
    if not slope:
        return np.zeros_like(positions)
    line = float(np.median((pace - slope * positions)[pace > 0])) + slope * positions
    beyond: Floats = line / line.min() - 1
    return beyond


def _slope(kinds: Ints64, positions: Floats, ratio: Floats) -> float:
    slopes: list[float] = []
    for kind in np.unique(kinds):
        those = np.flatnonzero((kinds == kind) & (ratio > 0))[1:]
        half = len(those) // 2
        low, high = those[:half], those[len(those) - half :]
        slopes += ((ratio[high] - ratio[low]) / (positions[high] - positions[low])).tolist()
    if len(slopes) < _LEAST_PAIRS:
        return 0.0
    middle = float(np.median(slopes))
    deviation = 1.25 * 1.48 * float(np.median(np.abs(np.array(slopes) - middle))) / math.sqrt(len(slopes))
    return middle if abs(middle) > max(_SLOPE_DEVIATIONS * deviation, _LEAST_SLOPE) else 0.0
