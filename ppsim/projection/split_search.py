"""`--split auto`: a local search over simulated splits for the layers per stage with the shortest iteration.

A nearby split is simulated only if the bounds from simulated splits say that it may be faster.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.costs.stage_cost_set import LayerCosts
from ppsim.parallel.layer_balance import LinearFunctions, move_layer, possible_moves
from ppsim.parallel.layer_partition import even_split
from ppsim.projection.split_bounds import SimulatedSplit, byte_weights, path_weights, rank_bounds
from ppsim.simulation.bounds.problem import CAP_ROUNDING

_MOST_TRIALS = 24
"""Maximum number of simulated splits."""

_LEAST_TRIALS, _MOST_NODES = 6, 10_000
"""For large tables: minimum number of simulated splits, and limit on the nodes of all their event graphs."""

_GAIN = 3e-4
"""Minimum relative gain that the bounds must allow before a split is simulated."""

_WIDTH, _PATIENCE = 6, 6
"""Number of splits whose neighbours are considered after each move; number of moves without progress."""

_MOST_MOVES = 256
"""Maximum number of moves that are compared with all bounds: those that lower the largest bound most."""

_TICK = 1e-10
"""Relative difference of seconds that is rounding: the position decides between splits that are equal up to it."""

_Rank: TypeAlias = tuple[float, float, tuple[int, ...]]
"""Sort key of splits: bytes over the memory limit, seconds, layers per stage."""


class SplitSearch:
    """`simulate` runs the trial of a split, or of the balanced split for None."""

    def __init__(
        self,
        simulate: Callable[[tuple[int, ...] | None], SimulatedSplit],
        layer: LayerCosts,
        limit_bytes: float | None,
    ) -> None:
        self._simulate, self._layer = simulate, layer
        self._limit = np.inf if limit_bytes is None else limit_bytes * CAP_ROUNDING
        start = simulate(None)
        num_stages, self._tick_s = len(start.counts), start.seconds * _TICK or 1.0
        self._trials: dict[tuple[int, ...], SimulatedSplit] = {}
        self._seconds = LinearFunctions(layer.work_s.tolist(), num_stages, layer.fixed * float(layer.work_s.mean()))
        self._bytes = LinearFunctions([1.0] * len(layer.work_s), num_stages)
        self._seconds.add(*rank_bounds(start, layer))
        self._add(start)
        even = tuple(even_split(sum(start.counts), num_stages))
        if even != start.counts:
            self._add(simulate(even))
        most = _MOST_NODES // start.step.timeline.graph.num_nodes
        self._most_trials = min(_MOST_TRIALS, max(_LEAST_TRIALS, most))

    def best(self) -> SimulatedSplit:
        """Return the best split found, not slower than the even split unless the even split does not fit."""
        self._search()
        if self._over(self._best.peak_bytes) > 0:  # no split fits: search again without a limit
            self._limit = np.inf
            self._search()
        return self._best

    def _search(self) -> None:
        while len(self._trials) < self._most_trials:
            best = self._best
            enough = float(self._over(best.peak_bytes)), best.seconds * (1 - _GAIN), ()
            lowest = self._lowest(enough)
            if lowest >= enough:
                break
            self._add(self._simulate(lowest[2]))

    @property
    def _best(self) -> SimulatedSplit:
        """If no split fits, the smallest excess counts; ties go to the most even split."""
        over = [float(self._over(trial.peak_bytes)) for trial in self._trials.values()]
        fitting = [trial for trial, excess in zip(self._trials.values(), over, strict=True) if excess == min(over)]
        best_s = min(one.seconds for one in fitting)
        equal = [one for one in fitting if one.seconds <= best_s * (1 + 1e-9)]
        return min(equal, key=lambda one: (sum(count**2 for count in one.counts), one.seconds, one.counts))

    def _over(self, peak_bytes: Floats) -> Floats:
        over: Floats = np.maximum(peak_bytes - self._limit, 0.0).sum(axis=0)
        return over

    def _add(self, trial: SimulatedSplit) -> None:
        self._trials[trial.counts] = trial
        weights = path_weights(trial, self._layer)
        self._seconds.add(weights[None, :], trial.counts, np.array([trial.seconds]))
        if np.isfinite(self._limit):
            self._bytes.add(byte_weights(trial, self._layer), trial.counts, trial.peak_bytes)

    def _lowest(self, enough: _Rank) -> _Rank:
        """Return the nearest split with bounds below `enough`, or the split with the lowest bounds found.

        If this split does not fit in memory, the search continues for one that fits.
        """
        seen, around = set(self._trials), [self._best.counts]
        lowest: _Rank = (np.inf, np.inf, ())
        since = 0
        while since < _PATIENCE and (lowest[0] > 0 or lowest >= enough):
            found = sorted(
                {
                    neighbour
                    for counts in around
                    for neighbour in self._neighbours(counts)
                    if neighbour[2] not in seen
                }
            )
            if not found:
                break
            since = 0 if found[0] < lowest else since + 1
            lowest = min(lowest, found[0])
            around = [counts for *_, counts in found[:_WIDTH]]
            seen.update(around)
        return lowest

    def _neighbours(self, counts: tuple[int, ...]) -> list[_Rank]:
        bound_s, peak_bytes = self._seconds.values(counts), self._bytes.values(counts)
        giving, taking = possible_moves(counts)
        if len(giving) > _MOST_MOVES:
            functions, values = (self._bytes, peak_bytes) if self._over(peak_bytes) else (self._seconds, bound_s)
            of_largest = functions.changes(counts, giving, taking, [int(values.argmax())])[0]
            chosen = np.argsort(of_largest, kind="stable")[:_MOST_MOVES]
            giving, taking = giving[chosen], taking[chosen]
        after_s = (bound_s[:, None] + self._seconds.changes(counts, giving, taking)).max(axis=0)
        after_s = (after_s / self._tick_s).round() * self._tick_s
        over = self._over(peak_bytes[:, None] + self._bytes.changes(counts, giving, taking)).round()
        order = np.lexsort((after_s, over))[: 2 * _WIDTH].tolist()
        return [
            (float(over[move]), float(after_s[move]), move_layer(counts, int(giving[move]), int(taking[move])))
            for move in order
        ]
