"""Late ranks: the time that each rank's lateness costs the step and the other ranks."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.runs.step_replay import MeasuredSteps, median_gap_s, rank_waits_s, replay
from ppsim.schedule.graph import EventGraph
from ppsim.schedule.table import NONE


@dataclass(frozen=True)
class LateRank:
    """A rank that holds up the step, and the time saved if its actions and gaps took at most their usual times.

    `action` is the rank's action on the critical path with the largest excess over the median stage.
    """

    rank: int
    gain_s: float
    others_wait_s: float
    action: str
    action_s: float


def late_ranks(graph: EventGraph, step: MeasuredSteps, even: Floats) -> list[LateRank]:
    """Replay the step once per rank, with the rank's actions and gaps limited to usual values.

    These are `even`, the actions' times on the median stage, and the median gap.
    """
    schedule, gap = graph.schedule, median_gap_s(step)
    as_it_was = replay(graph, step)
    ends = as_it_was.end[: graph.num_actions]
    waited, on_path = rank_waits_s(graph, ends), _critical_path(as_it_was.blocker, ends)
    excess = np.where(np.isin(np.arange(len(schedule)), on_path), step.taken[0] - even, 0.0)
    found = []
    for rank in range(schedule.num_ranks):
        its = schedule.rank == rank
        on_time = MeasuredSteps(
            np.where(its, np.minimum(step.taken, even), step.taken),
            step.hop,
            np.where(its, np.minimum(step.after_own, gap), step.after_own),
        )
        sooner = replay(graph, on_time).end[: graph.num_actions]
        gain = float(ends.max()) - float(sooner.max())
        if gain <= 0:
            continue
        others = float(np.delete(waited - rank_waits_s(graph, sooner), rank).sum())
        worst = int(np.argmax(np.where(its, excess, -np.inf)))
        named = excess[worst] > 0
        found.append(
            LateRank(rank, gain, others, str(schedule[worst]) if named else "", max(float(excess[worst]), 0.0))
        )
    return sorted(found, key=lambda late: -late.gain_s)


def _critical_path(blocker: Any, end: Floats) -> list[int]:
    node, path = int(np.argmax(end)), []
    while node != NONE:
        path.append(node)
        node = int(blocker[node])
    return path
