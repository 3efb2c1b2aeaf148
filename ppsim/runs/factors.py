"""What makes the passes of a run longer or shorter than usual: pauses, slow steps, drift and microbatch sizes.

The time of a pass is a product, and a pause is added to it::

    pause(step, pass) + usual(stage) · pace(step, rank) · drift over the step(pass) · size(step, microbatch)

times what varies without a pattern. Each factor is a median over all that share it, so that a rare long pass moves
none of them. `usual` is a median too, and is split into stages and ranks later (`ppsim.runs.causes`).
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.runs.drift import over_steps, over_the_step
from ppsim.runs.pauses import pauses_beyond
from ppsim.runs.run import pass_medians
from ppsim.schedule.table import Op, Schedule

_LEAST_SPREAD = 0.05
"""Sizes of microbatches and paces of steps that differ by less than this are taken as alike."""
_DEVIATIONS = 4
"""So many deviations of a median must such a difference be."""
_TO_DEVIATION = 1.25 / 1.15
"""Times the upper quartile of distances from a median, over √n: the deviation of a median of n normal samples."""
_LEAST_OF_RANK = 6
"""Fewer passes of a rank than this in a step do not tell a slow step from a slow pass."""
_ALIKE = 0.2
"""Kinds of passes whose sizes differ by less than this have the same sizes."""
_TINY = 1e-9
_LEAST_PASSES = 2
"""Fewer passes of a kind than this, over all stages, do not tell the size of a microbatch."""


@dataclass(frozen=True)
class Factors:
    """The factors of each pass; `taken` has shape [steps, actions], in seconds."""

    schedule: Schedule
    taken: Floats
    step_s: float

    @cached_property
    def firsts(self) -> Any:
        """Which passes are the first of their kind of a stage."""
        key = self.schedule.op.astype(np.int64) * self.schedule.num_stages + self.schedule.stage
        first = np.zeros(len(self.schedule), dtype=bool)
        first[np.unique(key, return_index=True)[1]] = True
        return first

    @cached_property
    def _alike(self) -> Floats:
        """What passes take, sizes of microbatches that change from step to step taken out."""
        return self.taken / self.sizes if self._sizes_vary else self.taken

    @cached_property
    def _of_place(self) -> Floats:
        """The usual time of each pass over all steps; the faster of two in the middle, so that half may be slow."""
        usual: Floats = np.quantile(self._alike, 0.5, axis=0, method="lower")
        return usual

    @cached_property
    def _paces(self) -> Floats:
        """The pace of each rank in each step, [steps, ranks]: the median of its passes over their usual."""
        ratio, ranks = _over(self._alike, self._of_place), self.schedule.rank
        known = self._of_place > 0
        paces = np.ones((len(ratio), self.schedule.num_ranks))
        for rank in np.unique(ranks[known]):
            its = known & (ranks == rank)
            if its.sum() >= _LEAST_OF_RANK:
                paces[:, rank] = np.median(ratio[:, its], axis=1)
        return paces

    @cached_property
    def _common_pace(self) -> Floats:
        """The pace of all ranks in each step, [steps, 1]."""
        pace: Floats = np.quantile(self._paces, 0.5, axis=1, method="lower", keepdims=True)
        return pace

    @cached_property
    def drift_of_all(self) -> Floats:
        """The trend of all ranks over the steps, [steps, 1]; 1 without one."""
        return over_steps(self._common_pace[:, 0])[:, None]

    @cached_property
    def drift_of_ranks(self) -> Floats:
        """The trend of each rank over the steps beyond the trend of all, [steps, ranks]."""
        beyond = self._paces / self._common_pace
        return np.stack([over_steps(one) for one in beyond.T], axis=1)

    @cached_property
    def drift(self) -> Floats:
        """The trend of each rank over the steps, [steps, ranks]."""
        return self.drift_of_all * self.drift_of_ranks

    @cached_property
    def slow_steps(self) -> Floats:
        """What the passes of a rank take in a step beyond other steps, [steps, ranks]; 1 for a usual step."""
        of_ranks = self._paces / self._common_pace / self.drift_of_ranks
        return _outliers(self._common_pace / self.drift_of_all) * _outliers(of_ranks)

    @cached_property
    def of_steps(self) -> Floats:
        """All that steps differ by, per pass: [steps, actions]."""
        factors: Floats = (self.drift * self.slow_steps)[:, self.schedule.rank]
        return factors

    @cached_property
    def in_step(self) -> Floats:
        """What each pass takes as a factor of those at the fast end of its rank's step."""
        taken = self.taken / self.of_steps
        return 1 + over_the_step(self.schedule, taken, self.each(pass_medians(self.schedule, taken)))

    @cached_property
    def _ratios(self) -> Floats:
        """The time of each pass over the median of its stage, drift over the step taken out."""
        schedule = self.schedule
        beyond = over_the_step(schedule, self.taken, self.each(pass_medians(schedule, self.taken)))
        taken = self.taken / (1 + beyond)
        return _over(taken, self.each(pass_medians(schedule, taken)))

    @cached_property
    def _kinds(self) -> Any:
        """The kind of each pass, by number."""
        return np.unique(self.schedule.op, return_inverse=True)[1]

    @cached_property
    def _median_ratios(self) -> Floats:
        """The median over the stages of `_ratios`, [steps, kinds of pass, microbatches]; 1 without such a pass.

        Each kind is divided by its mean. The first pass of each kind may be slow by itself: for these microbatches
        the kind with the smallest ratio counts, if all kinds have the same sizes.
        """
        schedule, kinds = self.schedule, self._kinds
        found = np.ones((len(self.taken), int(kinds.max()) + 1, schedule.num_units))
        for kind, unit in {(int(kind), int(unit)) for kind, unit in zip(kinds, schedule.microbatch, strict=True)}:
            its = (kinds == kind) & (schedule.microbatch == unit)
            found[:, kind, unit] = np.quantile(self._ratios[:, its], 0.5, axis=1, method="lower")
        of_firsts = np.unique(schedule.microbatch[self.firsts])
        others = np.delete(found, of_firsts, axis=2)
        if others.shape[2]:
            found /= others.mean(axis=(0, 2), keepdims=True)
            others = np.delete(found, of_firsts, axis=2)
        # Kinds that differ in other microbatches, as of a model whose forwards alone are uneven, do so in this one.
        if not others.size or np.median(np.ptp(others, axis=1), axis=0).max() < _ALIKE:
            found[:, :, of_firsts] = found[:, :, of_firsts].min(axis=1, keepdims=True)
        return found

    @cached_property
    def _size_deviation(self) -> float:
        """The deviation of one of the `_median_ratios` by noise."""
        schedule, found = self.schedule, self._median_ratios
        passes = len(schedule) / found[0].size
        if passes < _LEAST_PASSES:
            return math.inf
        beyond = self._ratios / np.maximum(found, _TINY)[:, self._kinds, schedule.microbatch]
        middle = np.array([np.median(beyond[:, self._kinds == kind]) for kind in range(found.shape[1])])
        apart = np.abs(beyond / np.maximum(middle, _TINY)[self._kinds] - 1)
        return _TO_DEVIATION * float(np.quantile(apart, 0.75)) / math.sqrt(passes)

    @cached_property
    def _fixed_sizes(self) -> Floats:
        """The size of each microbatch if all steps are alike, pace taken out: [kinds, microbatches]."""
        found = self._median_ratios
        fixed: Floats = np.median(found / np.median(found, axis=2, keepdims=True), axis=0)
        return fixed

    @cached_property
    def _sizes_vary(self) -> bool:
        """Whether microbatches have other sizes in each step, beyond noise."""
        beyond = self._median_ratios / np.maximum(self._fixed_sizes, _TINY)
        apart = np.abs(beyond / np.median(beyond, axis=2, keepdims=True) - 1)
        typical = float(np.median(np.median(apart, axis=(1, 2))))
        return len(beyond) > 1 and typical > max(_LEAST_SPREAD, _DEVIATIONS * self._size_deviation)

    @cached_property
    def sizes(self) -> Floats:
        """The size of each pass's microbatch over the mean size, [steps, actions]; 1 if all are alike."""
        fixed = self._fixed_sizes
        noise = _DEVIATIONS * self._size_deviation / math.sqrt(len(self.taken))
        if self._sizes_vary:
            found = self._median_ratios / self._median_ratios.mean(axis=(0, 2), keepdims=True)
        elif np.abs(fixed / np.median(fixed, axis=1, keepdims=True) - 1).max() > max(_LEAST_SPREAD, noise):
            found = np.broadcast_to(fixed / fixed.mean(axis=1, keepdims=True), self._median_ratios.shape)
        else:
            return np.ones_like(self.taken)
        sizes: Floats = np.maximum(found, _TINY)[:, self._kinds, self.schedule.microbatch]
        return sizes

    @cached_property
    def _all(self) -> Floats:
        return self.of_steps * self.in_step * self.sizes

    @cached_property
    def pauses(self) -> Floats:
        """What single passes take far beyond what is expected of them, in seconds; 0 for all others."""
        expected = self._all * self.each(pass_medians(self.schedule, self.taken / self._all))
        # What a pass takes in most steps is no pause, however long it is.
        if len(self.taken) > 1:
            sizes = self.sizes if self._sizes_vary else 1.0
            expected = np.maximum(expected, self._of_place * self.of_steps * sizes)
        else:
            expected = np.where(self.firsts, self.taken, expected)
        return pauses_beyond(self.taken, expected, self.step_s)

    @cached_property
    def without_pauses(self) -> Floats:
        """What passes take, pauses left out."""
        return self.taken - self.pauses

    @cached_property
    def medians(self) -> dict[tuple[Op, int], float]:
        """Of each kind of pass of each stage, all factors taken out."""
        return pass_medians(self.schedule, self.without_pauses / self._all)

    @cached_property
    def usual(self) -> Floats:
        """The median of its stage for each pass."""
        return self.each(self.medians)

    @cached_property
    def expected(self) -> Floats:
        """What each pass would take if nothing varied without a pattern, [steps, actions]."""
        return self.usual * self._all

    def each(self, medians: dict[tuple[Op, int], float]) -> Floats:
        """Return the entry of its kind and stage for each pass."""
        schedule = self.schedule
        return np.array([medians[Op(op), stage] for op, stage in zip(schedule.op, schedule.stage, strict=True)])


def _outliers(paces: Floats) -> Floats:
    """The paces, 1 for those of most steps; [steps, columns]."""
    apart = paces - np.median(paces, axis=0)
    usual = _DEVIATIONS * 1.48 * np.median(np.abs(apart), axis=0)
    return np.where(np.abs(apart) > np.maximum(usual, _LEAST_SPREAD), paces / np.median(paces, axis=0), 1.0)


def _over(values: Floats, usual: Floats) -> Floats:
    """Each value over its usual one, 1 where that is nothing."""
    return np.divide(values, usual, out=np.ones_like(values), where=np.broadcast_to(usual > 0, values.shape))
