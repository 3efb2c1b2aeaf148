"""From a compute-only table to one with communication: the same pass for simulator, checker and export.

What torch.distributed.pipelining does to a table when it loads it (torch 2.13; RECV placement is what decides
how long transfers block each other):

1. UNSHARD the next three distinct stages a rank will meet, RESHARD the others (they do nothing without FSDP);
2. REDUCE_GRAD after the last weight gradient of a stage;
3. WAIT_REDUCE_GRAD after each of these, from torch 2.15 on;
4. round-robin over the ranks, take each next cell whose inputs are known; right after it go its SENDs, and the
   matching RECV goes to the end of the receiver's row *at that moment*;
5. WAIT_SEND_F and WAIT_SEND_B, from torch 2.15 on.

Receives can then be moved ("receives"): see `RECEIVES`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppsim.base.compiling import Engine, run_kernel
from ppsim.base.errors import ScheduleError
from ppsim.schedule.choices import Receives
from ppsim.schedule.dependencies import dependencies
from ppsim.schedule.table import NONE, Action, Op, Schedule
from ppsim.schedule.waits import with_send_waits

RECEIVES: dict[Receives, str] = {
    "torch": "as early as torch's lowering appends them",
    "deferred": "just before their use, but before a send to a higher peer (torch's defer_pp_recv)",
    "ordered": "just before their use, in the order in which the peer sends",
}

NUM_UNSHARDED = 3  # stages torch keeps gathered a rank: one forward, one backward, one being fetched

_FETCH, _EVICT, _REDUCE, _WAIT = 1, 2, 3, 4  # what an item that is no action does to a stage
_NUM_ROLES = 5
_STAGE_OPS = np.array([Op.IDLE, Op.UNSHARD, Op.RESHARD, Op.REDUCE_GRAD, Op.WAIT_REDUCE_GRAD])


def lower(
    schedule: Schedule, *, receives: Receives = "torch", waits: bool = False, engine: Engine = "auto"
) -> Schedule:
    """Return the compute+comms table that a runtime executes for this compute-only table.

    The table must have passed `ppsim.schedule.check.validate`. With `waits` the result is torch 2.15's, with a
    wait for every send and every reduction: see `ppsim.schedule.waits`. Raises `ScheduleError` where a fused cell
    needs what another part of the same cell makes.
    """
    lowered = _torch_order(schedule.compute_only(), waits, engine)
    if receives != "torch":
        moved = _deferred if receives == "deferred" else _ordered
        lowered = _with_rows(lowered, [list(moved(lowered, rank)) for rank in range(lowered.num_ranks)])
    return with_send_waits(lowered) if waits else lowered


# --- torch's own order ---


def _torch_order(schedule: Schedule, waits: bool, engine: Engine) -> Schedule:
    items, item_offsets = _items(schedule, waits, engine)
    needs = dependencies(schedule).neighbour
    remote = (needs != NONE) & (schedule.rank[needs] != schedule.rank)
    consumer = np.full(len(schedule), NONE, dtype=np.int32)
    consumer[needs[remote]] = np.flatnonzero(remote)

    # A rank's row grows by its items, a SEND for each result another rank needs, a RECV for each it needs.
    num_cells = np.diff(item_offsets) + sum(
        np.bincount(schedule.rank[extra], minlength=schedule.num_ranks) for extra in (remote, consumer != NONE)
    )
    offsets = np.concatenate(([0], np.cumsum(num_cells)))
    codes = np.zeros(offsets[-1], dtype=np.int64)
    num_placed = run_kernel(
        _place_transfers,
        inputs=(items, item_offsets, schedule.fused, needs, consumer, schedule.rank, offsets[:-1].copy()),
        outputs=(item_offsets[:-1].copy(), np.zeros(len(schedule), dtype=np.bool_), codes),
        size=len(codes), engine=engine,
    )  # fmt: skip
    if num_placed != len(codes):
        raise ScheduleError(
            "torch cannot order the sends of this table: a fused cell needs what another part of it makes"
        )
    return _decode(schedule, codes, offsets)


def _items(schedule: Schedule, waits: bool, engine: Engine) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each rank's actions with gathering and reduction around them; −(5·stage + what) where it is no action."""
    parts = []
    num_weights = np.bincount(
        schedule.stage[(schedule.op == Op.B) | (schedule.op == Op.W)], minlength=schedule.num_stages
    )
    next_use = _next_use(schedule.stage, schedule.rank)
    for rank in range(schedule.num_ranks):
        begin, end = int(schedule.rank_offsets[rank]), int(schedule.rank_offsets[rank + 1])
        stages = np.array(schedule.stages_of(rank), dtype=np.int64)
        chunk = np.searchsorted(stages, schedule.stage[begin:end])
        first_use = np.array([begin + int(np.argmax(chunk == c)) for c in range(len(stages))], dtype=np.int64)
        items = np.zeros((end - begin) * (1 + 2 * min(len(stages), NUM_UNSHARDED + 1)) + 3 * len(stages) + 1,
                         dtype=np.int64)  # fmt: skip
        used = run_kernel(
            _add_stage_actions,
            inputs=(schedule.op, schedule.fused, next_use, chunk, stages, begin, end, waits),
            outputs=(first_use, num_weights[stages], np.zeros(len(stages), dtype=np.bool_),
                     np.zeros(len(stages), dtype=np.bool_), items),
            size=end - begin, engine=engine,
        )  # fmt: skip
        parts.append(items[:used])
    return np.concatenate(parts), np.concatenate(([0], np.cumsum([len(part) for part in parts])))


def _next_use(stage: NDArray[np.int32], rank: NDArray[np.int32]) -> NDArray[np.int64]:
    """The next entry of the same stage, or the number of entries where there is none."""
    next_use = np.full(len(stage), len(stage), dtype=np.int64)
    by_stage = np.argsort(stage, kind="stable")
    same = stage[by_stage[1:]] == stage[by_stage[:-1]]
    next_use[by_stage[:-1][same]] = by_stage[1:][same]
    return next_use


def _add_stage_actions(
    op: Any, fused: Any, next_use: Any, chunk: Any, stages: Any, begin: Any, end: Any, waits: Any,
    upcoming: Any, weights_left: Any, active: Any, wanted: Any, items: Any,
) -> Any:  # fmt: skip
    """UNSHARD and RESHARD around a rank's cells, REDUCE_GRAD and its wait behind a stage's last gradient."""
    num_chunks = len(stages)
    used = 0
    entry = begin
    while entry < end:
        stop = entry + 1
        while stop < end and fused[entry] != -1 and fused[stop] == fused[entry]:
            stop += 1
        # The next NUM_UNSHARDED chunks this rank meets, and the rest of the cell in which the last is met.
        num_wanted, horizon = 0, entry
        for c in range(num_chunks):
            wanted[c] = False
        while True:
            nearest = -1
            for c in range(num_chunks):
                if (not wanted[c] and upcoming[c] < end
                        and (nearest == -1 or upcoming[c] < upcoming[nearest])):  # fmt: skip
                    nearest = c
            if nearest == -1:
                break
            same_cell = fused[upcoming[nearest]] != -1 and fused[upcoming[nearest]] == fused[horizon]
            if num_wanted >= NUM_UNSHARDED and not same_cell:
                break
            wanted[nearest] = True
            horizon = upcoming[nearest]
            num_wanted += 1
        for c in range(num_chunks):
            if active[c] and not wanted[c]:
                active[c] = False
                items[used] = -(_NUM_ROLES * stages[c] + _EVICT)
                used += 1
        while True:  # fetch in the order in which the chunks will be met
            nearest = -1
            for c in range(num_chunks):
                if wanted[c] and not active[c] and (nearest == -1 or upcoming[c] < upcoming[nearest]):
                    nearest = c
            if nearest == -1:
                break
            active[nearest] = True
            items[used] = -(_NUM_ROLES * stages[nearest] + _FETCH)
            used += 1
        for e in range(entry, stop):
            items[used] = e
            used += 1
            upcoming[chunk[e - begin]] = next_use[e]
        for e in range(entry, stop):
            if op[e] == 1 or op[e] == 3:  # B or W
                c = chunk[e - begin]
                weights_left[c] -= 1
                if weights_left[c] == 0:
                    items[used] = -(_NUM_ROLES * stages[c] + _REDUCE)
                    used += 1
                    if waits:
                        items[used] = -(_NUM_ROLES * stages[c] + _WAIT)
                        used += 1
        entry = stop
    for c in range(num_chunks):
        if active[c]:
            items[used] = -(_NUM_ROLES * stages[c] + _EVICT)
            used += 1
    return used


def _place_transfers(
    items: Any, item_offsets: Any, fused: Any, needs: Any, consumer: Any, rank_of: Any, row_begin: Any,
    next_item: Any, placed: Any, codes: Any,
) -> Any:  # fmt: skip
    """Round-robin over the ranks; a code is 3·entry for an action, +1 for its SEND, +2 for its RECV."""
    num_ranks = len(row_begin)
    num_codes = 0
    moved = True
    while moved:
        moved = False
        for rank in range(num_ranks):
            item = next_item[rank]
            last = item_offsets[rank + 1]
            if item == last:
                continue
            moved_here = True
            stop = item + 1
            first = items[item]
            if first >= 0 and fused[first] != -1:
                while stop < last and items[stop] >= 0 and fused[items[stop]] == fused[first]:
                    stop += 1
            for k in range(item, stop):
                if items[k] >= 0 and needs[items[k]] != -1 and not placed[needs[items[k]]]:
                    moved_here = False
            if not moved_here:
                continue
            for k in range(item, stop):
                codes[row_begin[rank]] = 3 * items[k] if items[k] >= 0 else items[k]
                row_begin[rank] += 1
                num_codes += 1
            for k in range(item, stop):
                entry = items[k]
                if entry < 0:
                    continue
                placed[entry] = True
                if consumer[entry] != -1:
                    codes[row_begin[rank]] = 3 * entry + 1
                    row_begin[rank] += 1
                    receiver = rank_of[consumer[entry]]
                    codes[row_begin[receiver]] = 3 * consumer[entry] + 2
                    row_begin[receiver] += 1
                    num_codes += 2
            next_item[rank] = stop
            moved = True
    return num_codes


def _decode(schedule: Schedule, codes: NDArray[np.int64], offsets: NDArray[np.int64]) -> Schedule:
    is_action = codes >= 0
    entry = np.where(is_action, codes // 3, 0)
    role = np.where(is_action, codes % 3, 0)
    stage_code = np.where(is_action, 0, -codes)

    op_of = schedule.op[entry]
    transfer_op = np.where(op_of == Op.F, Op.SEND_F, Op.SEND_B) + (role == 2)
    stage_op = _STAGE_OPS[stage_code % _NUM_ROLES]
    op = np.where(is_action, np.where(role == 0, op_of, transfer_op), stage_op)
    return replace(
        schedule,
        op=op.astype(np.int8),
        stage=np.where(is_action, schedule.stage[entry], stage_code // _NUM_ROLES).astype(np.int32),
        microbatch=np.where(is_action, schedule.microbatch[entry], NONE).astype(np.int32),
        fused=np.where(is_action & (role == 0), schedule.fused[entry], NONE).astype(np.int32),
        rank_offsets=offsets.astype(np.int64),
    )


# --- other places for the receives ---

_CONSUMED_BY = {Op.F: Op.RECV_F, Op.B: Op.RECV_B, Op.I: Op.RECV_B}


def _peer(schedule: Schedule, action: Action) -> int:
    """The rank at the other end of a SEND or RECV."""
    step = 1 if action.op in (Op.SEND_F, Op.RECV_B) else -1
    return int(schedule.stage_to_rank[action.stage + step])


def _row(schedule: Schedule, rank: int) -> Iterator[tuple[int, Action]]:
    for entry in range(schedule.rank_offsets[rank], schedule.rank_offsets[rank + 1]):
        yield entry, schedule[entry]


def _deferred(lowered: Schedule, rank: int) -> Iterator[int]:
    """torch's `defer_pp_recv`: a receive goes just before its consumer, or before a send to a higher peer.

    A receive does not wait for its turn among the others, which is why this order can break first in, first out.
    """
    waiting: dict[Action, int] = {}
    for entry, action in _row(lowered, rank):
        if action.op in (Op.RECV_F, Op.RECV_B):
            waiting[action] = entry
            continue
        if action.op in (Op.SEND_F, Op.SEND_B) and rank < (peer := _peer(lowered, action)):
            for receive in [receive for receive in waiting if _peer(lowered, receive) == peer]:
                yield waiting.pop(receive)
        for receive in _consumed_by_cell(lowered, entry):
            if receive in waiting:
                yield waiting.pop(receive)
        yield entry


def _ordered(lowered: Schedule, rank: int) -> Iterator[int]:
    """A receive goes just before its consumer, and takes along what the same peer sends before it."""
    queues = {peer: list(_received_in_send_order(lowered, peer, rank)) for peer in range(lowered.num_ranks)}
    entry_of = {action: entry for entry, action in _row(lowered, rank)}
    posted: set[Action] = set()
    for entry, action in _row(lowered, rank):
        if action.op in (Op.RECV_F, Op.RECV_B):
            continue
        for receive in _consumed_by_cell(lowered, entry):
            if receive in entry_of and receive not in posted:
                queue = queues[_peer(lowered, receive)]
                for taken in queue[: queue.index(receive) + 1]:
                    posted.add(taken)
                    yield entry_of[taken]
                del queue[: queue.index(receive) + 1]
        yield entry


def _received_in_send_order(lowered: Schedule, sender: int, receiver: int) -> Iterator[Action]:
    for _, action in _row(lowered, sender):
        if action.op in (Op.SEND_F, Op.SEND_B) and _peer(lowered, action) == receiver:
            step = 1 if action.op is Op.SEND_F else -1
            yield Action(Op(action.op + 1), action.stage + step, action.microbatch)


def _consumed_by_cell(lowered: Schedule, entry: int) -> list[Action]:
    """The receives that the cell starting at `entry` consumes; none where `entry` is inside a fused cell."""
    group = int(lowered.fused[entry])
    if group != NONE and entry > 0 and lowered.fused[entry - 1] == group:
        return []
    members = [entry]
    while group != NONE and members[-1] + 1 < len(lowered) and lowered.fused[members[-1] + 1] == group:
        members.append(members[-1] + 1)
    return [
        Action(_CONSUMED_BY[action.op], action.stage, action.microbatch)
        for member in members
        if (action := lowered[member]).op in _CONSUMED_BY
    ]


def _with_rows(lowered: Schedule, rows: list[list[int]]) -> Schedule:
    order = np.array([entry for row in rows for entry in row], dtype=np.int64)
    return replace(
        lowered, op=lowered.op[order], stage=lowered.stage[order], microbatch=lowered.microbatch[order],
        fused=lowered.fused[order],
    )  # fmt: skip
