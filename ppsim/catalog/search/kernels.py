"""The inner loops of fitting: functions over named tuples of arrays (`ppsim.catalog.search.pipeline`).

They run compiled or as plain Python (`ppsim.base.compiling`) with the same bits: they add and compare in one order.
"""

from ppsim.base.arrays import Floats
from ppsim.catalog.search.pipeline import NOTHING, Backlog, Codes, Counts, Idleness, Memory, Pipeline, Table

NOT_KNOWN = -1.0
"""An arrival of what has not been sent yet."""


def arrival(pipeline: Pipeline, table: Table, code: int) -> float:
    """When what the next pass of this code needs has arrived: `NOT_KNOWN`, or 0 where only its own rank matters."""
    number = table.done[code]
    if code >= pipeline.num_stages and table.done[code - pipeline.num_stages] <= number:  # its own F, or I
        return NOT_KNOWN
    needed = pipeline.needs[code]
    if needed < 0:
        return 0.0
    if table.done[needed] <= number:
        return NOT_KNOWN
    arrives_s: float = table.end_s[needed * pipeline.num_microbatches + number] + pipeline.hop_s[code]
    return arrives_s


def place(pipeline: Pipeline, table: Table, rank: int, code: int, ready_s: float) -> None:
    """Put the next pass of this code at the end of the rank's row; it starts as soon as the rank is free."""
    table.order[table.at[rank]] = code
    table.at[rank] += 1
    table.now_s[rank] = max(table.now_s[rank], ready_s) + pipeline.cost_s[code]
    if code < 2 * pipeline.num_stages:  # nobody waits for a W
        table.end_s[code * pipeline.num_microbatches + table.done[code]] = table.now_s[rank]
    table.done[code] += 1


def count_idle(idleness: Idleness, table: Table, rank: int, ready_s: float) -> None:
    """Add the gap before the rank's next pass; the wait for the first microbatch is no bubble."""
    if ready_s > table.now_s[rank] and table.done[rank] > 0:
        idleness.idle_s[rank] += ready_s - table.now_s[rank]
        idleness.worst_s[0] = max(idleness.worst_s[0], idleness.idle_s[rank])


def there_and_back(visit: int, num_ranks: int) -> int:
    """The rank of a visit, 0 to 2p − 1, down the ranks and up again: as gradients and activations travel."""
    return visit if visit < num_ranks else 2 * num_ranks - 1 - visit


def latest_starts(
    pipeline: Pipeline, order: Codes, at: Counts, deadline_s: Floats, latest_s: Floats, undone: Counts
) -> None:
    """Fill `latest_s`, a start a node, from the deadline of each rank backwards.

    Every rank in turn goes back until it has to wait: as each time is a minimum of what came before, the order of
    these turns changes none, and a round in which nobody moves is a deadlock. `at` goes in as the last place of
    each row and `undone` as m a code; 0 comes back where all could be told.
    """
    num_left = len(order)
    moved = True
    while moved and num_left > 0:
        moved = False
        for visit in range(2 * pipeline.num_ranks):
            rank = there_and_back(visit, pipeline.num_ranks)
            num_told = _retreat(pipeline, rank, order, at, deadline_s, latest_s, undone)
            moved = moved or num_told > 0
            num_left -= num_told


def _retreat(
    pipeline: Pipeline, rank: int, order: Codes, at: Counts, deadline_s: Floats, latest_s: Floats, undone: Counts
) -> int:
    """Go back along a row to a pass whose output is wanted at a time not known yet; return past how many."""
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


def put(
    pipeline: Pipeline, memory: Memory, table: Table, backlog: Backlog, rank: int, code: int, ready_s: float
) -> None:
    """`place`, and keep account of the memory and of the weight gradients that wait."""
    place(pipeline, table, rank, code, ready_s)
    backlog.held[rank] += memory.changes[code]
    if code >= 2 * pipeline.num_stages:
        backlog.num_run[rank] += 1
    elif code >= pipeline.num_stages:
        last = pipeline.num_microbatches * pipeline.firsts[rank] + backlog.num_queued[rank]
        backlog.queue[last] = code + pipeline.num_stages
        backlog.num_queued[rank] += 1


def oldest_weight(pipeline: Pipeline, backlog: Backlog, rank: int) -> int:
    """The code of the weight gradient that has waited longest on a rank, or `NOTHING`."""
    if backlog.num_run[rank] == backlog.num_queued[rank]:
        return NOTHING
    code: int = backlog.queue[pipeline.num_microbatches * pipeline.firsts[rank] + backlog.num_run[rank]]
    return code


def lacks_memory(pipeline: Pipeline, memory: Memory, backlog: Backlog, rank: int, code: int) -> bool:
    """Whether a forward would lift its rank above the cap; any other pass frees memory."""
    return code < pipeline.num_stages and backlog.held[rank] + memory.activation[code] > memory.cap[rank]


def fill(
    pipeline: Pipeline, memory: Memory, passes: Counts, least_gap: float, table: Table, backlog: Backlog
) -> bool:
    """Put weight gradients, oldest first, between the forwards and input gradients of `passes`, in their order.

    One goes where a forward lacks memory, where a whole one fits before the next pass can start, or where at
    least `least_gap` of one would be idle time. Return whether all could run.
    """
    num_left = len(passes)
    moved = True
    while moved and num_left > 0:
        moved = False
        for visit in range(2 * pipeline.num_ranks):
            rank = there_and_back(visit, pipeline.num_ranks)
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
            put(pipeline, memory, table, backlog, rank, late, 0.0)
            late = oldest_weight(pipeline, backlog, rank)
    return True


def _run_filled(
    pipeline: Pipeline,
    memory: Memory,
    passes: Counts,
    least_gap: float,
    table: Table,
    backlog: Backlog,
    rank: int,
) -> int:
    """Run a rank until it has to wait; return how many of `passes` it ran, −1 where one lacks memory for good."""
    m, first, behind = pipeline.num_microbatches, pipeline.firsts[rank], pipeline.firsts[rank + 1]
    at = table.at[rank] - m * first - backlog.num_run[rank]  # two passes here where a row has three
    num_run = 0
    while at < 2 * m * behind:
        code = passes[at]
        ready_s = arrival(pipeline, table, code)
        if ready_s < 0:
            break
        late = oldest_weight(pipeline, backlog, rank)
        while late >= 0:
            gap = ready_s - table.now_s[rank]
            cost = pipeline.cost_s[late]
            if not (
                lacks_memory(pipeline, memory, backlog, rank, code)
                or cost <= gap + pipeline.tolerance_s
                or (gap > pipeline.tolerance_s and gap >= least_gap * cost)
            ):
                break
            put(pipeline, memory, table, backlog, rank, late, 0.0)
            late = oldest_weight(pipeline, backlog, rank)
        if lacks_memory(pipeline, memory, backlog, rank, code):
            return -1
        put(pipeline, memory, table, backlog, rank, code, ready_s)
        at += 1
        num_run += 1
    return num_run
