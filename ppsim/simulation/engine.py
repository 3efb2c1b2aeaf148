"""Start and end times from an event graph and durations: the longest path, computed in one pass.

``start[j] = max(end[i] + overhead[j] for i in waits[j])``, but between two transfers in one queue the overhead is
0, because the second is issued while the first is in flight.
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from ppsim.base.arrays import Floats, Ints32
from ppsim.base.numba_jit import run_kernel
from ppsim.schedule.graph import EventGraph
from ppsim.schedule.table import NONE


@dataclass(frozen=True)
class NodeTimes:
    """Start, end and blocker of each node.

    `start` is after the node's overhead. `blocker` is the predecessor that ended last (−1: none).
    """

    start: Floats
    end: Floats
    blocker: Ints32


@dataclass(frozen=True)
class RankTimes:
    """First start and last end of each rank, with shape [sets of durations, ranks]."""

    first_start: Floats
    last_end: Floats

    @property
    def step_time_s(self) -> Floats:
        times: Floats = self.last_end.max(axis=1) - self.first_start.min(axis=1)
        return times

    @property
    def span_s(self) -> Floats:
        """Longest time from a rank's own first start to its own last end."""
        times: Floats = (self.last_end - self.first_start).max(axis=1)
        return times


def evaluate(
    graph: EventGraph,
    duration: Floats,
    overhead: Floats,
    *,
    earliest: Floats | None = None,
    num_sets: int = 1,
) -> NodeTimes:
    """Return the times of every node for durations and overheads in seconds.

    `num_sets` is the number of planned evaluations, which decides whether compilation pays. A node delayed by
    `earliest` has no blocker. Plain and compiled engines give identical bits.
    """
    return evaluate_there(graph, duration.copy(), overhead.copy(), earliest=earliest, num_sets=num_sets)


def evaluate_there(
    graph: EventGraph, duration: Floats, overhead: Floats, *, earliest: Floats | None = None, num_sets: int = 1
) -> NodeTimes:
    """Run `evaluate` in place: `overhead` becomes the starts and `duration` the ends."""
    if earliest is None:
        earliest = np.zeros(graph.num_nodes)
    blocker = np.full(graph.num_nodes, NONE, dtype=np.int32)
    run_kernel(
        _longest_path,
        inputs=(graph.num_actions, graph.order, graph.offsets, graph.waits_for, earliest),
        outputs=(overhead, duration, blocker), size=num_sets * graph.num_nodes,
    )  # fmt: skip
    return NodeTimes(overhead, duration, blocker)


_SIDE_BY_SIDE = 1_000_000
"""Up to this total number of nodes, evaluating all sets in numpy is faster than importing numba."""


def evaluate_many(graph: EventGraph, durations: Floats, overheads: Floats) -> RankTimes:
    """`durations` and `overheads` have shape [sets, nodes]; a single set of either is used for all."""
    durations, overheads = np.atleast_2d(durations), np.atleast_2d(overheads)
    num_sets = max(len(durations), len(overheads))
    durations = np.broadcast_to(durations, (num_sets, graph.num_nodes))
    overheads = np.broadcast_to(overheads, (num_sets, graph.num_nodes))
    if 1 < num_sets * graph.num_nodes < _SIDE_BY_SIDE and "numba" not in sys.modules:
        return _side_by_side(graph, durations, overheads)
    begins = graph.schedule.rank_offsets
    first_start, last_end = np.zeros((num_sets, len(begins) - 1)), np.zeros((num_sets, len(begins) - 1))
    for k in range(num_sets):
        times = evaluate(
            graph, np.ascontiguousarray(durations[k]), np.ascontiguousarray(overheads[k]), num_sets=num_sets
        )
        first_start[k] = times.start[begins[:-1]]
        last_end[k] = times.end[begins[1:] - 1]
    return RankTimes(first_start, last_end)


def _side_by_side(graph: EventGraph, durations: Floats, overheads: Floats) -> RankTimes:
    """`_longest_path` returns the same bits."""
    num_actions, offsets, waits_for = graph.num_actions, graph.offsets.tolist(), graph.waits_for.tolist()
    duration, overhead = np.ascontiguousarray(durations.T), np.ascontiguousarray(overheads.T)
    end, begins = np.zeros_like(duration), graph.schedule.rank_offsets
    has_overhead: list[bool] = np.any(overhead, axis=1).tolist()
    first_start = dict.fromkeys(begins[:-1].tolist(), overhead[0])
    for node in graph.order.tolist():
        waits = waits_for[offsets[node] : offsets[node + 1]]
        begin: Any = overhead[node] if not waits else None
        for candidate in waits:
            ready = end[candidate]
            if has_overhead[node] and (candidate < num_actions or node < num_actions):
                ready = ready + overhead[node]
            begin = ready if begin is None else np.maximum(begin, ready)
        if node in first_start:
            first_start[node] = begin
        np.add(begin, duration[node], out=end[node])
    return RankTimes(
        np.stack([first_start[node] for node in begins[:-1].tolist()], axis=1), end[begins[1:] - 1].T.copy()
    )


def blockers_of(graph: EventGraph, end: Floats) -> Ints32:
    """Return, for each node and measured ends, the predecessor that ended last (−1: none)."""
    blocker = np.full(graph.num_nodes, NONE, dtype=np.int32)
    inputs = graph.offsets, graph.waits_for, end
    run_kernel(_last_to_end, inputs=inputs, outputs=(blocker,), size=graph.num_nodes)
    return blocker


def _last_to_end(offsets: Any, waits_for: Any, end: Any, blocker: Any) -> None:
    for node in range(len(blocker)):
        cause = -1
        for k in range(offsets[node], offsets[node + 1]):
            candidate = waits_for[k]
            if cause == -1 or end[candidate] > end[cause]:
                cause = candidate
        blocker[node] = cause


def _longest_path(
    num_actions: Any,
    order: Any,
    offsets: Any,
    waits_for: Any,
    earliest: Any,
    start: Any,
    end: Any,
    blocker: Any,
) -> None:
    """On entry `start` holds each node's overhead and `end` its duration."""
    for node in order:
        begin = overhead = start[node]
        cause = -1
        for k in range(offsets[node], offsets[node + 1]):
            candidate = waits_for[k]
            ready = end[candidate]
            if candidate < num_actions or node < num_actions:
                ready += overhead
            if cause == -1 or ready > begin:
                begin = ready
                cause = candidate
        if earliest[node] > begin:
            begin = earliest[node]
            cause = -1
        start[node] = begin
        end[node] += begin
        blocker[node] = cause
