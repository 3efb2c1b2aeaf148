"""Slow-down s of compute that overlaps with communication.

An action that takes c alone and overlaps with transfers of its rank for a fraction f of its time takes ``c · (1 + s
· f)``.
"""

from itertools import pairwise

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.schedule.graph import EventGraph
from ppsim.simulation.engine import NodeTimes, evaluate, evaluate_there

_MOST_ROUNDS, _PLAIN_ROUNDS = 12, 3
_CONVERGED = 1e-4


def overlapped_fraction(graph: EventGraph, start: Floats, end: Floats) -> Floats:
    """Simultaneous transfers count once; the result has one entry per action."""
    num_actions, offsets = graph.num_actions, graph.schedule.rank_offsets
    begin, finish = start[num_actions:], end[num_actions:]
    sender, receiver = graph.schedule.rank[graph.source], graph.schedule.rank[graph.target]
    fraction = np.zeros(num_actions)
    for rank, (first, last) in enumerate(pairwise(offsets.tolist())):
        at_rank = (sender == rank) | (receiver == rank)
        from_s, to_s = start[first:last], end[first:last]
        under_way = _covered(begin[at_rank], finish[at_rank], to_s) - _covered(
            begin[at_rank], finish[at_rank], from_s
        )
        taken = to_s - from_s
        fraction[first:last] = np.divide(under_way, taken, out=np.zeros(last - first), where=taken > 0)
    return np.clip(fraction, 0.0, 1.0)


def _covered(begin: Floats, finish: Floats, moments: Floats) -> Floats:
    """Return the seconds before each moment in which at least one interval is open."""
    if not len(begin):
        return np.zeros(len(moments))
    order = np.argsort(begin, kind="stable")
    begin, finish = begin[order], np.maximum.accumulate(finish[order])
    # Count only the part of an interval after the end of all earlier intervals.
    opens = np.maximum(begin, np.concatenate(([-np.inf], finish[:-1])))
    adds = np.maximum(finish - opens, 0.0)
    before = np.concatenate(([0.0], np.cumsum(adds)))
    last = np.searchsorted(opens, moments, side="right")
    inside = np.concatenate(([0.0], adds))[last]
    since = np.where(last > 0, moments - opens[np.maximum(last - 1, 0)], 0.0)
    covered: Floats = before[last] - inside + np.minimum(since, inside)
    return covered


def evaluate_slowed(
    graph: EventGraph,
    duration: Floats,
    overhead: Floats,
    slowdown: float,
    *,
    earliest: Floats | None = None,
) -> NodeTimes:
    """Return the times of every node if overlapping compute takes ``1 + slowdown`` times as long.

    Each round uses the overlaps of the previous round. From the fourth round on, each action takes the mean of its
    last two values, because a few actions may oscillate. Without slow-down the given arrays are overwritten.
    """
    if slowdown == 0 or not graph.num_transfers:
        return evaluate_there(graph, duration, overhead, earliest=earliest)
    times = evaluate(graph, duration, overhead, earliest=earliest)
    compute = duration[: graph.num_actions]
    slowed = duration.copy()
    for round_number in range(_MOST_ROUNDS):
        longer = compute * (1 + slowdown * overlapped_fraction(graph, times.start, times.end))
        before = slowed[: graph.num_actions]
        if np.abs(longer - before).max() <= _CONVERGED * longer.max():
            break
        slowed[: graph.num_actions] = longer if round_number < _PLAIN_ROUNDS else (longer + before) / 2
        times = evaluate(graph, slowed, overhead, earliest=earliest)
    return times
