"""Inner loop of the ZB-V heuristic; codes and named tuples are explained in `ppsim.catalog.search.pipeline`.

Rank r has stage r on the way down the V and stage 2p − 1 − r on the way up.
"""

from typing import NamedTuple

from ppsim.base.arrays import Floats
from ppsim.catalog.search.pipeline import (
    Counts,
    IdleTime,
    MemoryCaps,
    PendingWeightGradients,
    Pipeline,
    SearchTable,
)
from ppsim.catalog.search.table_kernels import (
    append_with_memory,
    count_idle,
    exceeds_cap,
    input_arrival_s,
    oldest_weight,
)


class VChoices(NamedTuple):
    """Whether a weight gradient that does not fit the gap may run before these actions.

    This happens only if the gap would make the rank idle longest.
    """

    before_forward: bool
    before_first_gradient: bool
    """Before the input gradient of the stage on the way up, the first half of a rank's backward."""


class VHeuristicState(NamedTuple):
    """State of one run."""

    pipeline: Pipeline
    memory: MemoryCaps
    spare_s: Floats
    """Idle time allowed on each rank: the longest idle time in the last run minus the rank's own."""
    table: SearchTable
    backlog: PendingWeightGradients
    idleness: IdleTime


def v_heuristic(
    pipeline: Pipeline,
    memory: MemoryCaps,
    spare_s: Floats,
    choices: VChoices,
    table: SearchTable,
    backlog: PendingWeightGradients,
    idleness: IdleTime,
    takes_down: Counts,
) -> bool:
    """Run the ZB-V scheduler (arXiv 2401.10241, §6) once; return whether the cap was respected."""
    run = VHeuristicState(pipeline, memory, spare_s, table, backlog, idleness)
    _first_microbatch(run)
    _level(run)
    for _ in range(2 * pipeline.num_microbatches):
        _choose_gradients(run, takes_down)
        if not _gradients(run, takes_down, choices.before_first_gradient):
            return False
        if not _forwards(run, choices.before_forward):
            return False
    for rank in range(pipeline.num_ranks):
        while _put_weight(run, rank):
            pass
    return True


def _put(run: VHeuristicState, rank: int, code: int) -> None:
    ready_s = input_arrival_s(run.pipeline, run.table, code)
    count_idle(run.idleness, run.table, rank, ready_s)
    append_with_memory(run.pipeline, run.memory, run.table, run.backlog, rank, code, ready_s)


def _put_weight(run: VHeuristicState, rank: int) -> bool:
    late = oldest_weight(run.pipeline, run.backlog, rank)
    if late >= 0:
        append_with_memory(run.pipeline, run.memory, run.table, run.backlog, rank, late, 0.0)
    return late >= 0


def _put_after_weights(run: VHeuristicState, rank: int, code: int, may_fill: bool) -> bool:
    """Run the action after the weight gradients that fit before it; return whether the action fits the cap.

    With `may_fill`, a weight gradient also runs in a gap that is too short if idling would make this rank's idle
    time the longest.
    """
    while exceeds_cap(run.pipeline, run.memory, run.backlog, rank, code):
        if not _put_weight(run, rank):
            return False
    ready_s, now_s = input_arrival_s(run.pipeline, run.table, code), run.table.now_s
    tolerance_s = run.pipeline.tolerance_s
    late = oldest_weight(run.pipeline, run.backlog, rank)
    while late >= 0 and ready_s >= now_s[rank] + run.pipeline.cost_s[late] - tolerance_s:
        _put_weight(run, rank)
        late = oldest_weight(run.pipeline, run.backlog, rank)
    gap_s = ready_s - now_s[rank]
    if may_fill and gap_s > tolerance_s:
        worst_s = max(run.idleness.worst_s[0], run.spare_s[rank])
        if gap_s > worst_s - run.idleness.idle_s[rank] + tolerance_s:
            _put_weight(run, rank)
    _put(run, rank, code)
    return True


def _first_microbatch(run: VHeuristicState) -> None:
    """The cap holds a microbatch on each rank, and `_one_more_fits` leaves memory for the way up."""
    p, num_stages = run.pipeline.num_ranks, run.pipeline.num_stages
    for rank in range(p):
        _put(run, rank, rank)
    for rank in range(p - 1, -1, -1):
        while rank < p - 1 and _one_more_fits(run, rank):
            for above in range(rank + 1):
                _put(run, above, above)
        _put(run, rank, num_stages - 1 - rank)


def _one_more_fits(run: VHeuristicState, rank: int) -> bool:
    """Return whether one more microbatch can reach this rank before the first returns.

    As in the authors' scheduler, rank r must then have memory for 2r + 2 more activations, and each rank up to r
    for one more activation of each of its stages.
    """
    activation, cap, held = run.memory.activation, run.memory.cap, run.backlog.held
    up = run.pipeline.num_stages - 1 - rank
    comes_s = input_arrival_s(run.pipeline, run.table, up)
    ends_s = run.table.now_s[rank] + run.pipeline.cost_s[rank]
    if run.table.done[rank] >= run.pipeline.num_microbatches or ends_s > comes_s + run.pipeline.tolerance_s:
        return False
    if held[rank] + (1 + 2 * rank) * activation[rank] + activation[up] > cap[rank]:
        return False
    for above in range(rank + 1):
        if held[above] + activation[above] + activation[run.pipeline.num_stages - 1 - above] > cap[above]:
            return False
    return True


def _level(run: VHeuristicState) -> None:
    """Give each rank the same number of forwards as the rank above, alternating down and up."""
    m, p, num_stages = run.pipeline.num_microbatches, run.pipeline.num_ranks, run.pipeline.num_stages
    done = run.table.done
    goes_up = False
    for rank in range(1, p):
        up = num_stages - 1 - rank
        num_idle = 0
        while num_idle < 2 and (
            done[rank] + done[up] < done[rank - 1] + done[up + 1] or (done[up] <= done[up + 1] and done[up + 1] < m)
        ):
            num_idle += 1
            for below in range(p - 1, rank - 1, -1):
                code = num_stages - 1 - below if goes_up else below
                is_there = done[code] < m and input_arrival_s(run.pipeline, run.table, code) >= 0
                if is_there and not exceeds_cap(run.pipeline, run.memory, run.backlog, below, code):
                    _put(run, below, code)
                    num_idle = 0
            goes_up = not goes_up


def _choose_gradients(run: VHeuristicState, takes_down: Counts) -> None:
    """Choose the stage on the way down if it has run fewer input gradients than the rank's other stage.

    The input of the stage on the way down must also have arrived, unless the stage on the way up has no input
    gradient left.
    """
    m, p, num_stages = run.pipeline.num_microbatches, run.pipeline.num_ranks, run.pipeline.num_stages
    for rank in range(p):
        up, down = 2 * num_stages - 1 - rank, num_stages + rank
        is_there = input_arrival_s(run.pipeline, run.table, down) >= 0
        num_up = run.table.done[up]
        takes_down[rank] = 1 if run.table.done[down] < num_up and (is_there or num_up >= m) else 0


def _gradients(run: VHeuristicState, takes_down: Counts, may_fill: bool) -> bool:
    """Go from the last rank to rank 0 and back, in dependency order."""
    p, num_stages = run.pipeline.num_ranks, run.pipeline.num_stages
    for visit in range(2 * p):
        is_down = visit < p
        rank = p - 1 - visit if is_down else visit - p
        if (takes_down[rank] == 1) != is_down:
            continue
        code = num_stages + rank if is_down else 2 * num_stages - 1 - rank
        if (
            run.table.done[code] >= run.pipeline.num_microbatches
            or input_arrival_s(run.pipeline, run.table, code) < 0
        ):
            return False
        _put_after_weights(run, rank, code, is_down or may_fill)
    return True


def _forwards(run: VHeuristicState, may_fill: bool) -> bool:
    """Place a forward on each rank, on the way up if possible; return whether all fit the cap."""
    m, p, num_stages = run.pipeline.num_microbatches, run.pipeline.num_ranks, run.pipeline.num_stages
    done = run.table.done
    for rank in range(p):
        up = num_stages - 1 - rank
        is_up = done[up] < done[rank] and input_arrival_s(run.pipeline, run.table, up) >= 0
        code = up if is_up else rank
        if done[up] >= m or done[code] >= m or input_arrival_s(run.pipeline, run.table, code) < 0:
            continue
        if not _put_after_weights(run, rank, code, may_fill):
            return False
    return True
