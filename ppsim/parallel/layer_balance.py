"""Balance layers over ranks by moving one layer at a time.

A move shifts all stage boundaries between the giving and the receiving stage.
"""

from collections.abc import Sequence

import numpy as np

from ppsim.base.arrays import Floats, Ints64


def possible_moves(counts: Sequence[int]) -> tuple[Ints64, Ints64]:
    """Return the giving and the receiving stage of every possible move of one layer.

    A stage keeps at least one layer, except the first and the last, which also hold embedding and head.
    """
    spare = np.asarray(counts) > 1
    spare[[0, -1]] = np.asarray(counts)[[0, -1]] > 0
    giving, taking = np.nonzero(spare[:, None] & ~np.eye(len(counts), dtype=bool))
    return giving, taking


def move_layer(counts: Sequence[int], source: int, target: int) -> tuple[int, ...]:
    """Return the layers per stage after the move of one layer.

    >>> move_layer((2, 2, 2), 0, 2)
    (1, 2, 3)
    """
    after = list(counts)
    after[source] -= 1
    after[target] += 1
    return tuple(after)


class LinearFunctions:
    """Sums of weight × cost over the stages, such as loads of ranks, critical paths or bytes in flight.

    `fixed` is an additional cost of each stage that has layers.
    """

    def __init__(self, layer_costs: Sequence[float], num_stages: int, fixed: float = 0.0) -> None:
        self._fixed = fixed
        self._costs = np.asarray(layer_costs, dtype=np.float64)
        self._sums = np.concatenate([[0.0], np.cumsum(self._costs)])
        self._weights = np.zeros((0, num_stages))
        self._constants = np.zeros(0)

    def __len__(self) -> int:
        return len(self._constants)

    def add(self, weights: Floats, counts: Sequence[int], values: Floats) -> None:
        """Add functions: `weights` have shape [functions, stages], `values` are their values at `counts`."""
        self._weights = np.concatenate([self._weights, weights])
        self._constants = np.concatenate([self._constants, values - weights @ self.stage_costs(counts)])

    def values(self, counts: Sequence[int]) -> Floats:
        bounds: Floats = self._constants + self._weights @ self.stage_costs(counts)
        return bounds

    def changes(
        self, counts: Sequence[int], giving: Ints64, taking: Ints64, chosen: Sequence[int] | None = None
    ) -> Floats:
        """Return the change of each function by each move, with shape [functions, moves]."""
        weights = self._weights if chosen is None else self._weights[list(chosen)]
        boundaries, last = np.cumsum(counts)[:-1], len(self._costs) - 1
        step = np.diff(weights, axis=1)
        # Effect of moving a boundary one layer down or up, summed over the boundaries before each stage.
        down = step * self._costs[np.maximum(boundaries - 1, 0)]
        up = -step * self._costs[np.minimum(boundaries, last)]
        below, above = (
            np.concatenate([np.zeros((len(weights), 1)), one.cumsum(axis=1)], axis=1) for one in (down, up)
        )
        changes: Floats = np.where(
            giving < taking, below[:, taking] - below[:, giving], above[:, giving] - above[:, taking]
        )
        if self._fixed:
            now = np.asarray(counts)
            changes += self._fixed * (
                weights[:, taking] * (now[taking] == 0) - weights[:, giving] * (now[giving] == 1)
            )
        return changes

    def stage_costs(self, counts: Sequence[int]) -> Floats:
        ends = np.cumsum(counts)
        stage_costs: Floats = self._sums[ends] - self._sums[ends - np.asarray(counts)]
        if self._fixed:
            stage_costs += self._fixed * (np.asarray(counts) > 0)
        return stage_costs


_POWER = 8
"""Exponent of the minimised sum of powers: the largest loads dominate it, also if several ranks have them."""


def balance_ranks(
    counts: Sequence[int],
    layer_costs: Sequence[float],
    end_costs: tuple[float, float],
    stages_of_ranks: Sequence[Sequence[int]],
) -> list[int]:
    """Return layers per stage after moving layers away from the busiest rank as long as that helps.

    `end_costs` are the costs of the first and the last stage without layers.

    >>> balance_ranks([1, 2, 2, 2, 1, 1], [1.0] * 9, (0.0, 0.0), [[0, 5], [1, 4], [2, 3]])
    [2, 2, 1, 2, 1, 1]
    """
    if all(len(stages) == 1 for stages in stages_of_ranks):
        return list(counts)
    functions, now, least = LinearFunctions(layer_costs, len(counts)), tuple(counts), min(layer_costs)
    of_stages = functions.stage_costs(now)
    of_stages[0] += end_costs[0]
    of_stages[-1] += end_costs[1]
    seconds = of_stages.tolist()
    first = [sum(seconds[stage] for stage in stages) for stages in stages_of_ranks]
    if max(first) - min(first) <= least:  # any rank that took a layer would be the busiest
        return list(counts)
    holds = np.zeros((len(stages_of_ranks), len(counts)))
    for rank, stages in enumerate(stages_of_ranks):
        holds[rank, list(stages)] = 1.0
    functions.add(holds, now, np.array(first))
    while True:
        loads = functions.values(now)
        if loads.max() - loads.min() <= least:
            return list(now)
        giving, taking = possible_moves(now)
        of_busiest = holds[(loads / loads.max()).round(9).argmax(), giving] > 0
        giving, taking = giving[of_busiest], taking[of_busiest]
        if not len(giving) or not loads.any():
            return list(now)
        after = (loads[:, None] + functions.changes(now, giving, taking)) / loads.max()
        unevenness = (after**_POWER).sum(axis=0)
        best = int(np.lexsort((_squares(now, giving, taking), unevenness.round(9)))[0])
        if unevenness[best] >= ((loads / loads.max()) ** _POWER).sum() - 1e-9:
            return list(now)
        now = move_layer(now, int(giving[best]), int(taking[best]))


def _squares(counts: Sequence[int], giving: Ints64, taking: Ints64) -> Ints64:
    """Change of the sum of squared layers per stage by each move."""
    now = np.asarray(counts)
    changes: Ints64 = 2 * (now[taking] - now[giving] + 1)
    return changes
