"""A timeline as lanes, the input of every picture: rows of cells that tile the step.

A cell is an action, a transfer, or idle time. Times are in seconds from the step's first start.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats, Ints32
from ppsim.schedule.table import NONE, Op, Schedule
from ppsim.simulation.idle_causes import CAUSES, compute_causes, critical_path, gaps
from ppsim.simulation.timeline import Timeline

HALF_HEIGHT = 0.42  # of a cell, if a rank's row is 1 high
PATH_OFFSET = 0.27  # critical path from a row's middle: below the labels, inside the cells
MOST_HAIRLINES = 5000  # transfers; with more, the lines at their starts would merge into an area
MOST_LABELS = 2000  # actions; with more, cells have no labels, because text is slow in browsers
MOST_MEMORY_LINES = 16  # more lines cannot be distinguished and are slow in browsers
_ROUNDING = 1e-9  # × step time: smaller gaps are floating-point rounding, not waiting


@dataclass(frozen=True, eq=False)
class Lane:
    """A row of cells: cell i reaches from `edges[i]` to `edges[i + 1]`.

    `node` is the timeline's node, `NONE` if idle. `action` is the node itself or, for a transfer, the action that
    produced its content. `kind` is an `Op`. `chunk` is the index of the stage on its rank. `cause` is an index into
    `list(CAUSES)`, −1 if busy or not requested.
    """

    rank: int
    edges: Floats
    node: Ints32
    action: Ints32
    kind: NDArray[np.int8]
    chunk: Ints32
    cause: NDArray[np.int8]

    @property
    def is_transfers(self) -> bool:
        return bool(self.kind.max(initial=Op.IDLE) > Op.W)

    @property
    def durations_s(self) -> Floats:
        return np.diff(self.edges)

    @property
    def is_idle(self) -> NDArray[np.bool_]:
        idle: NDArray[np.bool_] = self.node == NONE
        return idle

    @property
    def next_node(self) -> list[int]:
        """The node of the first busy cell at or after each cell."""
        following, nodes = NONE, []
        for node in reversed(self.node.tolist()):
            following = following if node == NONE else node
            nodes.append(following)
        return nodes[::-1]


def compute_lanes(timeline: Timeline, *, by_cause: bool = False) -> list[Lane]:
    """If a measured action starts slightly before the previous one ends, its start is moved to that end."""
    chunks, offsets = chunk_of_stage(timeline.schedule), timeline.schedule.rank_offsets
    waits = _waits(timeline) if by_cause else None
    return [
        _lane(timeline, rank, np.arange(offsets[rank], offsets[rank + 1], dtype=np.int32), chunks, waits)
        for rank in range(timeline.schedule.num_ranks)
    ]


def has_transfers(timeline: Timeline) -> bool:
    return bool(np.any((timeline.end > timeline.start)[timeline.num_actions :]))


def has_memory(timeline: Timeline) -> bool:
    """The costs of a measured run contain no memory."""
    return bool(timeline.memory.peak_bytes.max() > 0)


def transfer_lanes(timeline: Timeline) -> list[Lane]:
    """Lanes by sending rank; several if transfers of a rank overlap."""
    num_actions, chunks = timeline.num_actions, chunk_of_stage(timeline.schedule)
    sender = timeline.schedule.rank[timeline.graph.source]
    lanes = []
    for rank in range(timeline.schedule.num_ranks):
        sent = num_actions + np.flatnonzero(sender == rank)
        start = timeline.start[sent]
        end = np.maximum(timeline.end[sent], start)
        sent = sent[np.lexsort((end, start))]
        lane_of = pack_intervals(timeline.start[sent], timeline.end[sent])
        for lane in range(lane_of.max(initial=NONE) + 1):
            lanes.append(_lane(timeline, rank, sent[lane_of == lane].astype(np.int32), chunks))
    return lanes


def placed_transfer_lanes(timeline: Timeline) -> list[tuple[Lane, float, float]]:
    """Return (lane, middle, half of its height) in units of a rank's row."""
    lanes = transfer_lanes(timeline)
    num_lanes = np.bincount([lane.rank for lane in lanes])
    height = 2 * HALF_HEIGHT / int(num_lanes.max(initial=1))
    placed, seen = [], [0] * timeline.schedule.num_ranks
    for lane in lanes:
        placed.append((lane, lane.rank - HALF_HEIGHT + height * (seen[lane.rank] + 0.5), height / 2))
        seen[lane.rank] += 1
    return placed


def pack_intervals(start: Floats, end: Floats) -> Ints32:
    """Return a lane for each interval (sorted by start) so that intervals of one lane do not overlap.

    Each interval gets the lowest free lane, which minimises the number of lanes. Only groups of overlapping
    intervals go through the Python loop.
    """
    lanes = np.zeros(len(start), dtype=np.int32)
    if not len(start):
        return lanes
    ended = np.maximum.accumulate(np.maximum(end, start))
    begins = np.flatnonzero(np.append(True, start[1:] >= ended[:-1]))
    sizes = np.diff(np.append(begins, len(start)))
    for begin, length in zip(begins[sizes > 1].tolist(), sizes[sizes > 1].tolist(), strict=True):
        here = slice(begin, begin + length)
        lanes[here] = _dealt(start[here].tolist(), end[here].tolist())
    return lanes


def _dealt(start: Iterable[float], end: Iterable[float]) -> list[int]:
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    lanes = []
    for begin, stop in zip(start, end, strict=True):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (max(begin, stop), lane))
        lanes.append(lane)
    return lanes


def chunk_of_stage(schedule: Schedule) -> Ints32:
    """Index of each stage among the stages of its rank."""
    chunk = np.zeros(schedule.num_stages, dtype=np.int32)
    for rank in range(schedule.num_ranks):
        stages = schedule.stages_of(rank)
        chunk[stages] = np.arange(len(stages))
    return chunk


def critical_line(timeline: Timeline, *, y_of_rank: Floats) -> tuple[Floats, Floats]:
    """Return x (seconds) and y of a line along the critical path's actions."""
    nodes = critical_path(timeline)
    actions = nodes[nodes < timeline.num_actions]
    rank = timeline.schedule.rank[actions]
    x = np.stack([timeline.start[actions], timeline.end[actions]], axis=1).ravel() - timeline.begin_s
    on_rank = np.repeat(rank, 2)
    corner = np.ones(len(x), dtype=np.bool_)
    corner[1:-1] = (on_rank[1:-1] != on_rank[:-2]) | (on_rank[1:-1] != on_rank[2:])
    return x[corner], y_of_rank[on_rank[corner]]


@dataclass(frozen=True, eq=False)
class MemoryLine:
    """Memory of one rank: `held_bytes[i]`, static bytes included, from `at_s[i]` to `at_s[i + 1]`."""

    rank: int
    at_s: Floats
    held_bytes: Floats


def shown_ranks(timeline: Timeline) -> list[int]:
    """Return at most `MOST_MEMORY_LINES` evenly spaced ranks, and the rank with the highest peak."""
    ranks = spread_evenly(range(timeline.schedule.num_ranks), MOST_MEMORY_LINES)
    return sorted({*ranks, int(np.argmax(timeline.memory.peak_bytes))})


def spread_evenly(ranks: Sequence[int], most: int) -> list[int]:
    places = np.linspace(0, len(ranks) - 1, min(len(ranks), most)).round().astype(int)
    return [ranks[index] for index in places.tolist()]


def memory_caption(timeline: Timeline) -> str:
    shown, num_ranks = len(shown_ranks(timeline)), timeline.schedule.num_ranks
    return "memory by rank" if shown == num_ranks else f"memory by rank, {shown} of {num_ranks} ranks"


def memory_lines(timeline: Timeline, ranks: Sequence[int] | None = None) -> list[MemoryLine]:
    """Memory that is freed and allocated again at the same moment is no change."""
    memory, offsets = timeline.memory, timeline.schedule.rank_offsets
    lines = []
    for rank in range(timeline.schedule.num_ranks) if ranks is None else ranks:
        here = slice(offsets[rank], offsets[rank + 1])
        times = np.stack([timeline.start[here], timeline.end[here]], axis=1).ravel() - timeline.begin_s
        at = np.maximum.accumulate(np.concatenate(([0.0], times, [timeline.step_time_s])))
        held = np.stack([memory.during[here], memory.after[here]], axis=1).ravel()
        held = np.concatenate(([0.0], held, held[-1:])) + timeline.costs.static_bytes[rank]
        lasts = np.append(np.diff(at) > _ROUNDING * timeline.step_time_s, True)
        at, held = at[lasts], held[lasts]
        at[0] = 0.0
        changes = np.append(True, held[1:] != held[:-1])
        changes[-1] = True
        lines.append(MemoryLine(rank, at[changes], held[changes]))
    return lines


@dataclass(frozen=True, eq=False)
class _Waits:
    """Waits before actions: for compute until `made_s`, for the transfer until `ready_s`, then overhead."""

    made_s: Floats
    ready_s: Floats
    cause: NDArray[np.int8]


_COMMUNICATION, _OVERHEAD, _COOL_DOWN = (
    list(CAUSES).index(cause) for cause in ("exposed_communication", "overhead", "cool_down")
)


def _waits(timeline: Timeline) -> _Waits:
    before = gaps(timeline)
    ready_s = before.begin_s + before.compute_s
    return _Waits(ready_s, ready_s + before.communication_s, compute_causes(timeline.schedule))


def _lane(timeline: Timeline, rank: int, nodes: Ints32, chunk_of: Ints32, waits: _Waits | None = None) -> Lane:
    """Idle cells between nodes are added, except gaps of rounding length."""
    schedule, num_actions = timeline.schedule, timeline.num_actions
    start, end = timeline.start[nodes], timeline.end[nodes]
    columns = [start, end] if waits is None else [waits.made_s[nodes], waits.ready_s[nodes], start, end]
    per_node = len(columns)
    bounds = np.stack(columns, axis=1).ravel() - timeline.begin_s
    bounds = np.maximum.accumulate(np.concatenate(([0.0], bounds, [timeline.step_time_s])))
    cell = np.full(len(bounds) - 1, NONE, dtype=np.int32)
    cell[per_node - 1 :: per_node] = nodes
    cause = np.full(len(cell), NONE, dtype=np.int8)
    if waits is not None:
        cause[:-1:4], cause[1::4], cause[2::4] = waits.cause[nodes], _COMMUNICATION, _OVERHEAD
        cause[-1] = _COOL_DOWN
    keep = (cell != NONE) | (np.diff(bounds) > _ROUNDING * timeline.step_time_s)
    cell, cause, edges = cell[keep], cause[keep], np.append(bounds[:-1][keep], bounds[-1])
    edges[0] = 0.0  # a gap of rounding size before the first action was dropped

    is_transfer = cell >= num_actions
    action = cell.copy()
    action[is_transfer] = timeline.graph.source[cell[is_transfer] - num_actions]
    kind = np.where(is_transfer, np.where(schedule.op[action] == Op.F, Op.SEND_F, Op.SEND_B), schedule.op[action])
    chunk = chunk_of[schedule.stage[action]]
    idle = cell == NONE
    return Lane(
        rank=rank,
        edges=edges,
        node=cell,
        action=action,
        kind=np.where(idle, np.int8(Op.IDLE), kind).astype(np.int8),
        chunk=np.where(idle, NONE, chunk).astype(np.int32),
        cause=cause,
    )
