"""Inner loop of the zero-bubble heuristic with one stage per rank: the codes of rank r are r, p + r and 2p + r.

Codes and named tuples are explained in `ppsim.catalog.search.pipeline`.
"""

from typing import NamedTuple

from ppsim.catalog.search.pipeline import Counts, IdleTime, MemoryCaps, Pipeline, SearchTable
from ppsim.catalog.search.table_kernels import append_action, count_idle, input_arrival_s, rank_of_visit


class OneChunkChoices(NamedTuple):
    """The authors' scheduler tries all eight combinations."""

    keep_first_input_on_time: bool
    """End the warm-up before the first gradient returns, not with the forward that runs at that time."""
    may_skip: bool
    """Let a rank skip a forward that would delay the next gradient."""
    greedy: bool
    """Place a weight gradient in any gap, not only in gaps that would make the rank idle longest."""


def heuristic(
    pipeline: Pipeline,
    memory: MemoryCaps,
    choices: OneChunkChoices,
    table: SearchTable,
    idleness: IdleTime,
    takes: Counts,
) -> None:
    """Run the zero-bubble scheduler (arXiv 2401.10241, §3.1) once.

    `takes`, zero at the start, is the number of forwards that each rank takes next.
    """
    m, p = pipeline.num_microbatches, pipeline.num_ranks
    _warm_up(pipeline, memory, choices.keep_first_input_on_time, table, idleness, takes)
    for _ in range(1, m):
        _choose_forwards(pipeline, memory, choices.may_skip, table, idleness, takes)
        _round(pipeline, memory, choices.greedy, table, idleness, takes)
    for rank in range(p):
        while table.done[2 * p + rank] < m:
            append_action(pipeline, table, rank, 2 * p + rank, 0.0)


def _put(pipeline: Pipeline, table: SearchTable, idleness: IdleTime, rank: int, code: int) -> None:
    ready_s = input_arrival_s(pipeline, table, code)
    count_idle(idleness, table, rank, ready_s)
    append_action(pipeline, table, rank, code, ready_s)


def _held(pipeline: Pipeline, memory: MemoryCaps, table: SearchTable, rank: int) -> float:
    p, done = pipeline.num_ranks, table.done
    alive, waiting = done[rank] - done[p + rank], done[p + rank] - done[2 * p + rank]
    held: float = alive * memory.activation[rank] + waiting * memory.kept[rank]
    return held


def _warm_up(
    pipeline: Pipeline,
    memory: MemoryCaps,
    keep_first_input_on_time: bool,
    table: SearchTable,
    idleness: IdleTime,
    takes: Counts,
) -> None:
    m, p = pipeline.num_microbatches, pipeline.num_ranks
    for rank in range(p):
        _put(pipeline, table, idleness, rank, rank)
    _choose_warm_up(pipeline, memory, keep_first_input_on_time, table, takes)
    for rank in range(1, p):  # each rank at least one ahead of the next, until all have finished
        while takes[rank] > takes[rank - 1] or 0 < takes[rank] == takes[rank - 1] < m - 1:
            takes[rank] -= 1
    for rank in range(p):
        for _ in range(takes[rank]):
            _put(pipeline, table, idleness, rank, rank)
    for rank in range(p - 1, -1, -1):
        _put(pipeline, table, idleness, rank, p + rank)


def _choose_warm_up(
    pipeline: Pipeline, memory: MemoryCaps, keep_first_input_on_time: bool, table: SearchTable, takes: Counts
) -> None:
    """Each rank runs forwards until the first gradient returns."""
    m, p, tolerance_s = pipeline.num_microbatches, pipeline.num_ranks, pipeline.tolerance_s
    back_s = table.now_s[p - 1] + pipeline.cost_s[2 * p - 1]  # time when the first gradient leaves a rank
    for rank in range(p - 2, -1, -1):
        back_s += pipeline.hop_s[p + rank]
        forward_s, until_s = pipeline.cost_s[rank], table.now_s[rank]
        while 1 + takes[rank] < m and (2 + takes[rank]) * memory.activation[rank] <= memory.cap[rank]:
            if keep_first_input_on_time:
                is_late = until_s + forward_s > back_s + tolerance_s
            else:
                is_late = until_s >= back_s - tolerance_s
            if is_late:
                break
            until_s += forward_s
            takes[rank] += 1
        back_s = max(until_s, back_s) + pipeline.cost_s[p + rank]


def _choose_forwards(
    pipeline: Pipeline, memory: MemoryCaps, may_skip: bool, table: SearchTable, idleness: IdleTime, takes: Counts
) -> None:
    """If a rank skips a forward, all ranks above it skip too: running ahead alone would only fill their memory."""
    p = pipeline.num_ranks
    for rank in range(p):
        takes[rank] = 1 if table.done[rank] < pipeline.num_microbatches else 0
        if may_skip and takes[rank] == 1 and _skips(pipeline, memory, table, idleness, rank):
            takes[rank] = 0
    for rank in range(p - 2, -1, -1):
        takes[rank] = min(takes[rank], takes[rank + 1])


def _skips(pipeline: Pipeline, memory: MemoryCaps, table: SearchTable, idleness: IdleTime, rank: int) -> bool:
    """Return whether the rank skips a forward in order to idle until the next rank's gradient arrives.

    It skips if it is at least two forwards ahead of the next rank, and the forward would end after the arrival.
    The forward includes the weight gradients that must run first to free memory. The rank does not skip if idling
    would make its idle time the longest.
    """
    p, done, now_s, cost_s = pipeline.num_ranks, table.done, table.now_s, pipeline.cost_s
    if rank == p - 1 or done[rank] < done[rank + 1] + 2:
        return False
    gradient_s = now_s[rank + 1] + cost_s[rank + 1] + cost_s[p + rank + 1] + pipeline.hop_s[p + rank]
    if now_s[rank] >= gradient_s - pipeline.tolerance_s:
        return True
    until_s = now_s[rank] + cost_s[rank]
    held = _held(pipeline, memory, table, rank) + memory.activation[rank]
    num_weights = done[p + rank] - done[2 * p + rank]
    while held > memory.cap[rank] and num_weights > 0:
        until_s += cost_s[2 * p + rank]
        held -= memory.kept[rank]
        num_weights -= 1
    may_idle_s = idleness.worst_s[0] - idleness.idle_s[rank] + pipeline.tolerance_s
    is_late: bool = until_s > gradient_s + pipeline.tolerance_s
    return is_late and gradient_s - now_s[rank] <= may_idle_s


def _round(
    pipeline: Pipeline, memory: MemoryCaps, greedy: bool, table: SearchTable, idleness: IdleTime, takes: Counts
) -> None:
    """Run the chosen forwards down the ranks, then an input gradient up the ranks.

    No rank waits for the input gradients of rank 0, so after its last forward all waiting weight gradients run
    first.
    """
    p, done = pipeline.num_ranks, table.done
    for visit in range(2 * p):
        rank = rank_of_visit(visit, p)
        is_forward = visit < p
        if is_forward and takes[rank] == 0:
            continue
        code = rank if is_forward else p + rank
        weight = 2 * p + rank
        ready_s = input_arrival_s(pipeline, table, code)
        all_go = code == p and done[0] == pipeline.num_microbatches
        while done[weight] < done[p + rank]:
            lacks_memory = (
                is_forward and _held(pipeline, memory, table, rank) + memory.activation[rank] > memory.cap[rank]
            )
            if not (all_go or lacks_memory or _fills(pipeline, greedy, table, idleness, rank, ready_s)):
                break
            append_action(pipeline, table, rank, weight, 0.0)
        _put(pipeline, table, idleness, rank, code)


def _fills(
    pipeline: Pipeline, greedy: bool, table: SearchTable, idleness: IdleTime, rank: int, ready_s: float
) -> bool:
    gap_s, tolerance_s = ready_s - table.now_s[rank], pipeline.tolerance_s
    if pipeline.cost_s[2 * pipeline.num_ranks + rank] <= gap_s + tolerance_s:
        return True
    is_worst = gap_s > idleness.worst_s[0] - idleness.idle_s[rank] + tolerance_s
    return gap_s > tolerance_s and (greedy or is_worst)
