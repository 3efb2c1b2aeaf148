"""The inner loop of the zero-bubble heuristic, one stage a rank: stage r is rank r's.

Codes and named tuples as in `ppsim.catalog.search.pipeline`: those of rank r are r, p + r and 2p + r.
"""

from typing import NamedTuple

from ppsim.catalog.search.kernels import arrival, count_idle, place, there_and_back
from ppsim.catalog.search.pipeline import Counts, Idleness, Memory, Pipeline, Table


class Choices(NamedTuple):
    """The three choices between which the authors' scheduler tries all eight ways."""

    keep_first_input_on_time: bool
    """Whether warm-up ends before the first gradient comes back, or with the forward that is under way then."""
    may_skip: bool
    """Whether a rank may leave out a forward that would keep the next one waiting."""
    greedy: bool
    """Whether a weight gradient goes into any gap, or only into those that would make the rank the worst."""


def heuristic(
    pipeline: Pipeline, memory: Memory, choices: Choices, table: Table, idleness: Idleness, takes: Counts
) -> None:
    """One run of the zero-bubble scheduler (arXiv 2401.10241, §3.1): fill `table`.

    `takes`, working space, counts the forwards that each rank takes next; it comes as zeros.
    """
    m, p = pipeline.num_microbatches, pipeline.num_ranks
    _warm_up(pipeline, memory, choices.keep_first_input_on_time, table, idleness, takes)
    for _ in range(1, m):
        _choose_forwards(pipeline, memory, choices.may_skip, table, idleness, takes)
        _round(pipeline, memory, choices.greedy, table, idleness, takes)
    for rank in range(p):
        while table.done[2 * p + rank] < m:
            place(pipeline, table, rank, 2 * p + rank, 0.0)


def _put(pipeline: Pipeline, table: Table, idleness: Idleness, rank: int, code: int) -> None:
    ready_s = arrival(pipeline, table, code)
    count_idle(idleness, table, rank, ready_s)
    place(pipeline, table, rank, code, ready_s)


def _held(pipeline: Pipeline, memory: Memory, table: Table, rank: int) -> float:
    p, done = pipeline.num_ranks, table.done
    alive, waiting = done[rank] - done[p + rank], done[p + rank] - done[2 * p + rank]
    held: float = alive * memory.activation[rank] + waiting * memory.kept[rank]
    return held


def _warm_up(
    pipeline: Pipeline,
    memory: Memory,
    keep_first_input_on_time: bool,
    table: Table,
    idleness: Idleness,
    takes: Counts,
) -> None:
    """The first microbatch down the ranks, as many more as fit before its gradient is back, and that gradient."""
    m, p = pipeline.num_microbatches, pipeline.num_ranks
    for rank in range(p):
        _put(pipeline, table, idleness, rank, rank)
    _choose_warm_up(pipeline, memory, keep_first_input_on_time, table, takes)
    for rank in range(1, p):  # each rank at least one ahead of the next, until all are through
        while takes[rank] > takes[rank - 1] or 0 < takes[rank] == takes[rank - 1] < m - 1:
            takes[rank] -= 1
    for rank in range(p):
        for _ in range(takes[rank]):
            _put(pipeline, table, idleness, rank, rank)
    for rank in range(p - 1, -1, -1):
        _put(pipeline, table, idleness, rank, p + rank)


def _choose_warm_up(
    pipeline: Pipeline, memory: Memory, keep_first_input_on_time: bool, table: Table, takes: Counts
) -> None:
    """Let each rank take forwards until the first gradient is back, from the last rank up, each for itself."""
    m, p, tolerance_s = pipeline.num_microbatches, pipeline.num_ranks, pipeline.tolerance_s
    back_s = table.now_s[p - 1] + pipeline.cost_s[2 * p - 1]  # when the first gradient leaves a rank
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
    pipeline: Pipeline, memory: Memory, may_skip: bool, table: Table, idleness: Idleness, takes: Counts
) -> None:
    """Set which ranks take a forward in a round: all that have one left, but for those that skip it.

    Where a rank skips, all above it do: one that ran on alone would only fill its memory.
    """
    p = pipeline.num_ranks
    for rank in range(p):
        takes[rank] = 1 if table.done[rank] < pipeline.num_microbatches else 0
        if may_skip and takes[rank] == 1 and _skips(pipeline, memory, table, idleness, rank):
            takes[rank] = 0
    for rank in range(p - 2, -1, -1):
        takes[rank] = min(takes[rank], takes[rank + 1])


def _skips(pipeline: Pipeline, memory: Memory, table: Table, idleness: Idleness, rank: int) -> bool:
    """Whether a rank leaves out a forward: the next one has enough, and its gradient would have to wait.

    That gradient is here once the next rank has done a forward and an input gradient more. It would wait where the
    forward ends later, the weight gradients counted that must make room for it; rather than let it, the rank idles,
    as long as it is not the worst then.
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
    pipeline: Pipeline, memory: Memory, greedy: bool, table: Table, idleness: Idleness, takes: Counts
) -> None:
    """Forwards down the ranks where they take one, then an input gradient up; weight gradients in between.

    They go where a rank lacks memory, where a whole one fits, or where the gap would make this rank the worst. Rank
    0 hands its gradients to nobody: behind its last forward all that wait go first.
    """
    p, done = pipeline.num_ranks, table.done
    for visit in range(2 * p):
        rank = there_and_back(visit, p)
        is_forward = visit < p
        if is_forward and takes[rank] == 0:
            continue
        code = rank if is_forward else p + rank
        weight = 2 * p + rank
        ready_s = arrival(pipeline, table, code)
        all_go = code == p and done[0] == pipeline.num_microbatches
        while done[weight] < done[p + rank]:
            lacks_memory = (
                is_forward and _held(pipeline, memory, table, rank) + memory.activation[rank] > memory.cap[rank]
            )
            if not (all_go or lacks_memory or _fills(pipeline, greedy, table, idleness, rank, ready_s)):
                break
            place(pipeline, table, rank, weight, 0.0)
        _put(pipeline, table, idleness, rank, code)


def _fills(pipeline: Pipeline, greedy: bool, table: Table, idleness: Idleness, rank: int, ready_s: float) -> bool:
    """Whether a weight gradient goes into the gap before what is ready at this time."""
    gap_s, tolerance_s = ready_s - table.now_s[rank], pipeline.tolerance_s
    if pipeline.cost_s[2 * pipeline.num_ranks + rank] <= gap_s + tolerance_s:
        return True
    is_worst = gap_s > idleness.worst_s[0] - idleness.idle_s[rank] + tolerance_s
    return gap_s > tolerance_s and (greedy or is_worst)
