"""Local search: passes of critical paths move along their rows, by chance and with a falling heat."""

from collections.abc import Iterator

import numpy as np

from ppsim.catalog.search.anneal import anneal
from ppsim.catalog.search.target import Candidate

_HEATS = (0.1, 1.0, 2.0, 0.3, 4.0)  # at the start of a round, in parts of the mean pass
_REACHES = (2, 8)  # how far a pass may move, by turns


def searched(start: Candidate, *, moves_a_round: int, seed: int = 0) -> Iterator[Candidate]:
    """Yield the best candidate known after each round of so many moves, the first after none; endless.

    Each round begins at the best with another heat; it is over once the lower bound is met. Never worse than
    `start`; the same for the same seed. A move costs some 10 ns a pass of the table.
    """
    target = start.target
    cells = target.num_actions
    state = np.array([1 + seed % 2147483646, 0], dtype=np.int64)
    mean_s = float(target.work_s.sum()) / target.num_actions
    spare = (
        target.empty_counts(), np.zeros(cells), np.zeros(cells, dtype=np.int64), np.zeros(cells),
        np.zeros(cells, dtype=np.int64), np.zeros(cells, dtype=np.int64),
    )  # fmt: skip
    best, number = start, 0
    while True:
        yield best
        heat_s = mean_s * _HEATS[number % len(_HEATS)]
        reach = _REACHES[number % len(_REACHES)]
        order, found, scores = best.order.copy(), best.order.copy(), np.array([np.inf, best.score_s])
        target.run(
            anneal,
            inputs=(target.memory_changes, target.problem.cap, target.handicap_s, target.bound_s, heat_s, 0.0,
                    moves_a_round, reach),
            outputs=(order, found, state, scores, *spare),
        )  # fmt: skip
        if scores[1] < best.score_s - target.tolerance_s:
            again = target.timed(found)
            assert again
            best = again
        number += 1
