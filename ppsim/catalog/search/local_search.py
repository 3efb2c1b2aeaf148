"""Local search by simulated annealing: actions on critical paths move along their rows."""

from collections.abc import Iterator
from itertools import count

import numpy as np

from ppsim.catalog.search.anneal import AnnealParameters, anneal, empty_timing
from ppsim.catalog.search.target import Candidate

_HEATS = (0.1, 1.0, 2.0, 0.3, 4.0)  # initial temperatures, relative to the mean duration of an action
_REACHES = (2, 8)  # reaches of rounds, alternating


def local_search(start: Candidate, *, moves_a_round: int, seed: int = 0) -> Iterator[Candidate]:
    """Yield the best candidate after each round, endlessly, starting with `start` itself.

    A move takes some 10 ns per action of the table.
    """
    target = start.target
    mean_s = float(target.work_s.sum()) / target.num_actions
    dice = np.array([1 + seed % 2147483646], dtype=np.int64)
    timing, path = empty_timing(target.pipeline), np.zeros(target.num_actions, dtype=np.int64)
    best = start
    for number in count():
        yield best
        rules = AnnealParameters(
            target.handicap_s,
            bound_s=target.bound_s,
            heat_s=mean_s * _HEATS[number % len(_HEATS)],
            num_moves=moves_a_round,
            reach=_REACHES[number % len(_REACHES)],
        )
        found = best.order.copy()
        outputs = (dice, best.order.copy(), found, timing, path)
        score_s = target.run(anneal, inputs=(target.memory, rules), outputs=outputs, times=1 + moves_a_round)
        if score_s < best.score_s - target.tolerance_s:
            again = target.timed(found)
            assert again
            best = again
