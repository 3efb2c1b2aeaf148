"""`--split auto`: the layers per stage with the shortest iteration, by a local search over simulated splits.

Each simulated split gives a lower bound on the iteration of every other split: its critical path, at the other
split's costs. A path is a linear function of the layers per stage, and so is the work of each rank. The search
moves single layers while the largest of these bounds falls, simulates the split that it reaches, and adds the
critical path of that split to the bounds. It ends when no move is left that may be faster, or after a fixed
number of simulations.
"""

from collections.abc import Callable

import numpy as np

from ppsim.costs.assembled import LayerCosts
from ppsim.layout.balance import Functions, moved, possible_moves
from ppsim.layout.split import even_split
from ppsim.projection.split_bounds import Trial, byte_weights, path_weights, rank_bounds
from ppsim.simulation.bounds.problem import CAP_ROUNDING

_MOST_TRIALS = 24
"""Splits that are simulated at most."""

_LEAST_TRIALS, _MOST_NODES = 3, 10_000
"""Fewer are simulated of a large table, as many as have so many nodes of the event graph together."""

_RADIUS = 2
"""Moves before the first simulation; twice as many after a faster split, half as many after a slower one."""

_GAIN = 1e-3
"""A split is simulated if its bound says that it may be faster by more than this part of the iteration."""

_MARGIN = 0.01
"""By what part of the iteration a bound may be too high, since layers are taken to add equal times to any stage."""

_MOST_STEPS, _MOST_EXPANDED = 3, 8
"""Moves from the best split that are tried together when a descent ends, and splits expanded after each move."""

_MOST_MOVES = 256
"""Moves that are weighed against all bounds, those that lower the largest one most."""


class SplitSearch:
    """One search: `simulate` makes the trial of a split, or of the balanced one if it is given None."""

    def __init__(
        self,
        simulate: Callable[[tuple[int, ...] | None], Trial],
        layer: LayerCosts,
        limit_bytes: float | None,
    ) -> None:
        self._simulate, self._limit = simulate, np.inf if limit_bytes is None else limit_bytes * CAP_ROUNDING
        start = simulate(None)
        num_stages = len(start.counts)
        self._trials: dict[tuple[int, ...], Trial] = {}
        self._layer, num_layers = layer, len(layer.work_s)
        self._seconds = Functions(layer.work_s.tolist(), num_stages)
        self._bytes = Functions([1.0] * num_layers, num_stages)
        most = _MOST_NODES // start.step.timeline.graph.num_nodes
        self._most_trials = min(_MOST_TRIALS, max(_LEAST_TRIALS, most))
        self._patience = max(2, self._most_trials // 2)
        self._radius = _RADIUS
        self._seconds.add(*rank_bounds(start, layer))
        self._add(start)

    def best(self) -> Trial:
        """Return the best split found, never a slower one than the even split unless only it fits."""
        self._find_room()
        self._go_down()
        even = tuple(even_split(sum(self._best.counts), len(self._best.counts)))
        if even not in self._trials and not self._is_slower(even):
            self._try(even)
            self._go_down()
        return self._best

    @property
    def _best(self) -> Trial:
        """Of those that fit, or of all if none fits, the fastest; of equals the most even."""
        fitting = [one for one in self._trials.values() if one.peak_bytes.max() <= self._limit]
        best_s = min(one.seconds for one in fitting or self._trials.values())
        equal = [one for one in fitting or self._trials.values() if one.seconds <= best_s * (1 + 1e-9)]
        return min(equal, key=lambda one: (sum(count**2 for count in one.counts), one.seconds, one.counts))

    def _is_slower(self, counts: tuple[int, ...]) -> bool:
        """Whether the bounds say for sure that a split is slower than the best."""
        return bool(self._seconds.values(counts).max() > self._best.seconds * (1 + _MARGIN))

    def _try(self, counts: tuple[int, ...]) -> None:
        self._add(self._simulate(counts))

    def _add(self, trial: Trial) -> None:
        self._trials[trial.counts] = trial
        weights = path_weights(trial, self._layer)
        self._seconds.add(weights[None, :], trial.counts, np.array([trial.seconds]))
        if np.isfinite(self._limit):
            self._bytes.add(byte_weights(trial, self._layer), trial.counts, trial.peak_bytes)

    def _find_room(self) -> None:
        """Simulate splits whose fullest rank holds less until one fits, if any may fit."""
        while self._best.peak_bytes.max() > self._limit and len(self._trials) < self._most_trials:
            least = min(self._trials.values(), key=lambda one: float(one.peak_bytes.max()))
            counts, bytes_ = self._descend(self._bytes, least.counts, enough=self._limit)
            if bytes_ > self._limit or counts in self._trials:
                return
            self._try(counts)

    def _go_down(self) -> None:
        """Simulate splits that may be faster than the best: the end of a descent, else the best neighbour."""
        since = len(self._trials)
        while len(self._trials) < min(self._most_trials, since + self._patience):
            before = self._best
            most = before.seconds * (1 - _GAIN)
            counts, bound_s = self._descend(self._seconds, self._best.counts, most_moves=self._radius)
            if bound_s > most or counts in self._trials:
                bound_s, counts = self._nearest(most)
            if bound_s > most:
                return
            self._try(counts)
            if self._best is not before:
                since = len(self._trials)
                self._radius *= 2
            else:
                self._radius = max(1, self._radius // 2)

    def _nearest(self, most: float) -> tuple[float, tuple[int, ...]]:
        """The split with the lowest bound among those a few moves from the best that were not simulated."""
        around = [self._best.counts]
        for _ in range(_MOST_STEPS):
            found = sorted({one for counts in around for one in self._neighbours(counts)})
            new = next((one for one in found if one[1] not in self._trials), (np.inf, self._best.counts))
            if new[0] <= most:
                break
            around = [counts for _, counts in found[:_MOST_EXPANDED]]
        return new

    def _neighbours(self, counts: tuple[int, ...]) -> list[tuple[float, tuple[int, ...]]]:
        """The splits one move away with their bounds."""
        giving, taking = possible_moves(counts)
        after = (self._seconds.values(counts)[:, None] + self._seconds.changes(counts, giving, taking)).max(axis=0)
        chosen = np.argsort(after, kind="stable")[:_MOST_MOVES]
        return [(float(after[move]), moved(counts, int(giving[move]), int(taking[move]))) for move in chosen]

    def _descend(
        self,
        functions: Functions,
        counts: tuple[int, ...],
        *,
        enough: float = -np.inf,
        most_moves: int = _MOST_MOVES,
    ) -> tuple[tuple[int, ...], float]:
        """Move layers while that lowers the largest of the functions; return the split and that largest value."""
        keeps_limit = functions is self._seconds and self._best.peak_bytes.max() <= self._limit
        values = functions.values(counts)
        for _ in range(most_moves):
            if values.max() <= enough:
                break
            giving, taking = possible_moves(counts)
            of_largest = functions.changes(counts, giving, taking, [int(values.argmax())])[0]
            chosen = np.argsort(of_largest, kind="stable")[:_MOST_MOVES]
            chosen = chosen[of_largest[chosen] < 0]
            giving, taking = giving[chosen], taking[chosen]
            if keeps_limit and len(self._bytes):
                held = self._bytes.values(counts)[:, None] + self._bytes.changes(counts, giving, taking)
                giving, taking = (one[held.max(axis=0) <= self._limit] for one in (giving, taking))
            if not len(giving):
                break
            after = (values[:, None] + functions.changes(counts, giving, taking)).max(axis=0)
            best = int(after.argmin())
            if after[best] >= values.max() * (1 - 1e-9):
                break
            counts = moved(counts, int(giving[best]), int(taking[best]))
            values = functions.values(counts)
        return counts, float(values.max())
