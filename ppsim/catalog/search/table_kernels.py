"""Inner loops shared by the searches (`ppsim.catalog.search.pipeline` explains their data).

Compiled or in plain Python, they give identical bits: the order of operations is the same.
"""

from ppsim.base.arrays import Floats
from ppsim.catalog.search.pipeline import (
    NOTHING,
    Codes,
    Counts,
    IdleTime,
    MemoryCaps,
    PendingWeightGradients,
    Pipeline,
    SearchTable,
)

NOT_KNOWN = -1.0
"""Arrival of a message that has not been sent yet."""


def input_arrival_s(pipeline: Pipeline, table: SearchTable, code: int) -> float:
    """Return `NOT_KNOWN` if the next action with this code cannot run yet; 0 if it needs no other stage."""
    number = table.done[code]
    if code >= pipeline.num_stages and table.done[code - pipeline.num_stages] <= number:  # its F or I has not run
        return NOT_KNOWN
    needed = pipeline.needs[code]
    if needed < 0:
        return 0.0
    if table.done[needed] <= number:
        return NOT_KNOWN
    arrives_s: float = table.end_s[needed * pipeline.num_microbatches + number] + pipeline.hop_s[code]
    return arrives_s


def append_action(pipeline: Pipeline, table: SearchTable, rank: int, code: int, ready_s: float) -> None:
    table.order[table.at[rank]] = code
    table.at[rank] += 1
    table.now_s[rank] = max(table.now_s[rank], ready_s) + pipeline.cost_s[code]
    if code < 2 * pipeline.num_stages:  # no action waits for a W
        table.end_s[code * pipeline.num_microbatches + table.done[code]] = table.now_s[rank]
    table.done[code] += 1


def count_idle(idleness: IdleTime, table: SearchTable, rank: int, ready_s: float) -> None:
    """The wait for the first microbatch does not count."""
    if ready_s > table.now_s[rank] and table.done[rank] > 0:
        idleness.idle_s[rank] += ready_s - table.now_s[rank]
        idleness.worst_s[0] = max(idleness.worst_s[0], idleness.idle_s[rank])


def rank_of_visit(visit: int, num_ranks: int) -> int:
    """Visits 0 to 2p − 1 go down the ranks and up again."""
    return visit if visit < num_ranks else 2 * num_ranks - 1 - visit


def latest_starts(
    pipeline: Pipeline, order: Codes, at: Counts, deadline_s: Floats, latest_s: Floats, undone: Counts
) -> None:
    """Compute the latest start of every action from the deadline of each rank, going backwards.

    A round without progress is a deadlock. At the start, `at` is the last place of each row and `undone` is m per
    code. At the end, `undone` is 0 if all times were found.
    """
    num_left = len(order)
    moved = True
    while moved and num_left > 0:
        moved = False
        for visit in range(2 * pipeline.num_ranks):
            rank = rank_of_visit(visit, pipeline.num_ranks)
            num_told = _retreat(pipeline, rank, order, at, deadline_s, latest_s, undone)
            moved = moved or num_told > 0
            num_left -= num_told


def _retreat(
    pipeline: Pipeline, rank: int, order: Codes, at: Counts, deadline_s: Floats, latest_s: Floats, undone: Counts
) -> int:
    m = pipeline.num_microbatches
    num_told = 0
    while at[rank] >= 3 * m * pipeline.firsts[rank]:
        code = order[at[rank]]
        number = undone[code] - 1
        fed = pipeline.feeds[code]
        if fed >= 0:
            if undone[fed] > number:
                break
            deadline_s[rank] = min(deadline_s[rank], latest_s[fed * m + number] - pipeline.hop_s[fed])
        deadline_s[rank] -= pipeline.cost_s[code]
        latest_s[code * m + number] = deadline_s[rank]
        undone[code] -= 1
        at[rank] -= 1
        num_told += 1
    return num_told


def append_with_memory(
    pipeline: Pipeline,
    memory: MemoryCaps,
    table: SearchTable,
    backlog: PendingWeightGradients,
    rank: int,
    code: int,
    ready_s: float,
) -> None:
    append_action(pipeline, table, rank, code, ready_s)
    backlog.held[rank] += memory.changes[code]
    if code >= 2 * pipeline.num_stages:
        backlog.num_run[rank] += 1
    elif code >= pipeline.num_stages:
        last = pipeline.num_microbatches * pipeline.firsts[rank] + backlog.num_queued[rank]
        backlog.queue[last] = code + pipeline.num_stages
        backlog.num_queued[rank] += 1


def oldest_weight(pipeline: Pipeline, backlog: PendingWeightGradients, rank: int) -> int:
    if backlog.num_run[rank] == backlog.num_queued[rank]:
        return NOTHING
    code: int = backlog.queue[pipeline.num_microbatches * pipeline.firsts[rank] + backlog.num_run[rank]]
    return code


def exceeds_cap(
    pipeline: Pipeline, memory: MemoryCaps, backlog: PendingWeightGradients, rank: int, code: int
) -> bool:
    """Only forwards can exceed the cap; all other actions free memory."""
    return code < pipeline.num_stages and backlog.held[rank] + memory.activation[code] > memory.cap[rank]


def place_weight_gradients(
    pipeline: Pipeline,
    memory: MemoryCaps,
    passes: Counts,
    least_gap: float,
    table: SearchTable,
    backlog: PendingWeightGradients,
) -> bool:
    """Place weight gradients, oldest first, between the actions of `passes`; return False if impossible.

    A weight gradient runs if a forward lacks memory, if it fits before the next action can start, or if the gap is
    at least `least_gap` of its duration.
    """
    num_left = len(passes)
    moved = True
    while moved and num_left > 0:
        moved = False
        for visit in range(2 * pipeline.num_ranks):
            rank = rank_of_visit(visit, pipeline.num_ranks)
            num_run = _run_filled(pipeline, memory, passes, least_gap, table, backlog, rank)
            if num_run < 0:
                return False
            moved = moved or num_run > 0
            num_left -= num_run
    if num_left > 0:
        return False
    for rank in range(pipeline.num_ranks):
        late = oldest_weight(pipeline, backlog, rank)
        while late >= 0:
            append_with_memory(pipeline, memory, table, backlog, rank, late, 0.0)
            late = oldest_weight(pipeline, backlog, rank)
    return True


def _run_filled(
    pipeline: Pipeline,
    memory: MemoryCaps,
    passes: Counts,
    least_gap: float,
    table: SearchTable,
    backlog: PendingWeightGradients,
    rank: int,
) -> int:
    """Return how many of `passes` ran, or −1 if one can never fit into memory."""
    m, first, behind = pipeline.num_microbatches, pipeline.firsts[rank], pipeline.firsts[rank + 1]
    at = table.at[rank] - m * first - backlog.num_run[rank]  # `passes` has two of a row's three actions
    num_run = 0
    while at < 2 * m * behind:
        code = passes[at]
        ready_s = input_arrival_s(pipeline, table, code)
        if ready_s < 0:
            break
        late = oldest_weight(pipeline, backlog, rank)
        while late >= 0:
            gap = ready_s - table.now_s[rank]
            cost = pipeline.cost_s[late]
            if not (
                exceeds_cap(pipeline, memory, backlog, rank, code)
                or cost <= gap + pipeline.tolerance_s
                or (gap > pipeline.tolerance_s and gap >= least_gap * cost)
            ):
                break
            append_with_memory(pipeline, memory, table, backlog, rank, late, 0.0)
            late = oldest_weight(pipeline, backlog, rank)
        if exceeds_cap(pipeline, memory, backlog, rank, code):
            return -1
        append_with_memory(pipeline, memory, table, backlog, rank, code, ready_s)
        at += 1
        num_run += 1
    return num_run
