"""Add communication to a compute-only table, as torch.distributed.pipelining does when it loads one (torch 2.13).

1. UNSHARD the next three distinct stages that a rank computes, RESHARD the others (no effect without FSDP).
2. REDUCE_GRAD after the last weight gradient of a stage.
3. WAIT_REDUCE_GRAD after each REDUCE_GRAD, from torch 2.15 on.
4. Round-robin over the ranks: take a rank's next cell if the actions that produce its inputs are already placed.
   Its SENDs follow it at once. The matching RECV is appended to the receiver's row *as it is at that moment*,
   which decides how long transfers block each other.
5. WAIT_SEND_F and WAIT_SEND_B, from torch 2.15 on.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Ints32, Ints64
from ppsim.base.errors import ScheduleError
from ppsim.base.numba_jit import run_kernel
from ppsim.schedule.dependencies import dependencies, transfers_of
from ppsim.schedule.messages import MessageTable, sorted_by
from ppsim.schedule.option_types import Receives
from ppsim.schedule.table import NONE, Op, Schedule, first_of_cell, is_compute
from ppsim.schedule.waits import with_send_waits

RECEIVES: dict[Receives, str] = {
    "torch": "as early as torch's lowering appends them",
    "deferred": "just before their use, but before a send to a higher peer (torch's defer_pp_recv)",
    "ordered": "just before their use, in the order in which the peer sends",
}

NUM_UNSHARDED = 3  # stages that torch holds unsharded per rank: one forward, one backward, one prefetched

_FETCH, _EVICT, _REDUCE, _WAIT = 1, 2, 3, 4  # codes of stage operations
_NUM_ROLES = 5
_STAGE_OPS = np.array([Op.IDLE, Op.UNSHARD, Op.RESHARD, Op.REDUCE_GRAD, Op.WAIT_REDUCE_GRAD], dtype=np.int8)
_SEND, _RECEIVE = 1, 2  # 0: the action itself
_ROLES = np.array([
    (Op.F, Op.SEND_F, Op.RECV_F), (Op.B, Op.SEND_B, Op.RECV_B), (Op.I, Op.SEND_B, Op.RECV_B), (Op.W, NONE, NONE),
], dtype=np.int8)  # fmt: skip
"""Op of an action, of the send of its result and of the receive of its input, indexed by the action's op."""


def lower(schedule: Schedule, *, receives: Receives = "torch", waits: bool = False) -> Schedule:
    """The table must have passed `ppsim.schedule.check.validate`; `waits=True` adds torch 2.15's waits.

    Raises `ScheduleError` if a part of a fused cell needs the result of another part.
    """
    lowered = with_receives(lowered_messages(schedule.compute_only(), waits=waits), receives).lowered
    return with_send_waits(lowered) if waits else lowered


def lowered_messages(compute: Schedule, *, waits: bool = False) -> MessageTable:
    lowered, entry, role = _torch_order(compute, waits)
    positions = np.empty(len(compute), dtype=np.int32)

    def placed(what: int, actions: Ints32) -> Ints32:
        here = np.flatnonzero(role == what)
        positions[entry[here]] = here
        return positions[actions]

    source, target = transfers_of(compute)
    return MessageTable(
        lowered, compute, source, target, send=placed(_SEND, source), receive=placed(_RECEIVE, target)
    )


def with_receives(messages: MessageTable, receives: Receives) -> MessageTable:
    """The messages must be in torch's order."""
    if receives == "torch":
        return messages
    return _deferred(messages) if receives == "deferred" else _ordered(messages)


# --- torch's own order ---


def _torch_order(schedule: Schedule, waits: bool) -> tuple[Schedule, Ints32, NDArray[np.int8]]:
    """Return the table, and the action and role of each entry.

    Roles: 0 the action itself, 1 the send of its result, 2 the receive of its input.
    """
    items, item_offsets = _items(schedule, waits)
    needs = dependencies(schedule).neighbour
    remote = (needs != NONE) & (schedule.rank[needs] != schedule.rank)
    consumer = np.full(len(schedule), NONE, dtype=np.int32)
    consumer[needs[remote]] = np.flatnonzero(remote)

    # a row has the rank's items, a SEND per result for another rank, and a RECV per input from another rank
    num_cells = np.diff(item_offsets) + sum(
        np.bincount(schedule.rank[extra], minlength=schedule.num_ranks) for extra in (remote, consumer != NONE)
    )
    offsets = np.concatenate(([0], np.cumsum(num_cells)))
    codes = np.zeros(offsets[-1], dtype=np.int32)
    num_placed = run_kernel(
        _place_transfers,
        inputs=(items, item_offsets, schedule.fused, needs, consumer, schedule.rank, offsets[:-1].copy()),
        outputs=(item_offsets[:-1].copy(), np.zeros(len(schedule), dtype=np.bool_), codes),
        size=len(codes),
    )  # fmt: skip
    if num_placed != len(codes):
        raise ScheduleError(
            "torch cannot order the sends of this table: a fused cell needs what another part of it makes"
        )
    return _decode(schedule, codes, offsets)


def _items(schedule: Schedule, waits: bool) -> tuple[Ints64, Ints64]:
    """Return each rank's entries with its stage operations, coded as −(5·stage + code), and the rank offsets."""
    parts = []
    num_weights = np.bincount(
        schedule.stage[(schedule.op == Op.B) | (schedule.op == Op.W)], minlength=schedule.num_stages
    )
    next_use, chunk_of = _next_use(schedule.stage), np.zeros(schedule.num_stages, dtype=np.int64)
    for rank in range(schedule.num_ranks):
        begin, end = int(schedule.rank_offsets[rank]), int(schedule.rank_offsets[rank + 1])
        stages = np.array(schedule.stages_of(rank), dtype=np.int64)
        chunk_of[stages] = np.arange(len(stages))
        chunk = chunk_of[schedule.stage[begin:end]]
        first_use = np.array([begin + int(np.argmax(chunk == c)) for c in range(len(stages))], dtype=np.int64)
        items = np.zeros((end - begin) * (1 + 2 * min(len(stages), NUM_UNSHARDED + 1)) + 3 * len(stages) + 1,
                         dtype=np.int64)  # fmt: skip
        used = run_kernel(
            _add_stage_actions,
            inputs=(schedule.op, schedule.fused, next_use, chunk, stages, begin, end, waits),
            outputs=(first_use, num_weights[stages], np.zeros(len(stages), dtype=np.bool_),
                     np.zeros(len(stages), dtype=np.bool_), items),
            size=end - begin,
        )  # fmt: skip
        parts.append(items[:used])
    return np.concatenate(parts), np.concatenate(([0], np.cumsum([len(part) for part in parts])))


def _next_use(stage: Ints32) -> Ints64:
    next_use = np.full(len(stage), len(stage), dtype=np.int64)
    by_stage = sorted_by(stage)
    same = stage[by_stage[1:]] == stage[by_stage[:-1]]
    next_use[by_stage[:-1][same]] = by_stage[1:][same]
    return next_use


def _add_stage_actions(
    op: Any, fused: Any, next_use: Any, chunk: Any, stages: Any, begin: Any, end: Any, waits: Any,
    upcoming: Any, weights_left: Any, active: Any, wanted: Any, items: Any,
) -> Any:  # fmt: skip
    used = 0
    entry = begin
    first_unwanted, is_same = 0, False
    while entry < end:
        stop = entry + 1
        while stop < end and fused[entry] != -1 and fused[stop] == fused[entry]:
            stop += 1
        if not is_same:
            first_unwanted = _want_next(fused, upcoming, entry, end, wanted)
            used = _evict_unwanted(stages, wanted, active, items, used)
            used = _fetch_wanted(stages, upcoming, wanted, active, items, used)
        for e in range(entry, stop):
            items[used] = e
            used += 1
            upcoming[chunk[e - begin]] = next_use[e]
        is_same = stop == entry + 1 and next_use[entry] < first_unwanted
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
    for c in range(len(wanted)):
        wanted[c] = False
    return _evict_unwanted(stages, wanted, active, items, used)


def _want_next(fused: Any, upcoming: Any, entry: Any, end: Any, wanted: Any) -> Any:
    """Mark the next NUM_UNSHARDED chunks of a rank, and all chunks of the fused cell that has the last of these.

    Returns the first entry of an unmarked chunk: until then the marks stay valid. Returns 0 if a fused cell could
    change the marks earlier: the cell of that entry, or the cell for which more than NUM_UNSHARDED are marked.
    """
    for c in range(len(wanted)):
        wanted[c] = False
    num_wanted, horizon = 0, entry
    while True:
        nearest = -1
        for c in range(len(wanted)):
            if not wanted[c] and upcoming[c] < end and (nearest == -1 or upcoming[c] < upcoming[nearest]):
                nearest = c
        if nearest == -1:
            return end if num_wanted <= NUM_UNSHARDED else 0
        same_cell = fused[upcoming[nearest]] != -1 and fused[upcoming[nearest]] == fused[horizon]
        if num_wanted >= NUM_UNSHARDED and not same_cell:
            return upcoming[nearest] if fused[upcoming[nearest]] == -1 and num_wanted == NUM_UNSHARDED else 0
        wanted[nearest] = True
        horizon = upcoming[nearest]
        num_wanted += 1


def _evict_unwanted(stages: Any, wanted: Any, active: Any, items: Any, used: Any) -> Any:
    for c in range(len(stages)):
        if active[c] and not wanted[c]:
            active[c] = False
            items[used] = -(_NUM_ROLES * stages[c] + _EVICT)
            used += 1
    return used


def _fetch_wanted(stages: Any, upcoming: Any, wanted: Any, active: Any, items: Any, used: Any) -> Any:
    while True:
        nearest = -1
        for c in range(len(stages)):
            if wanted[c] and not active[c] and (nearest == -1 or upcoming[c] < upcoming[nearest]):
                nearest = c
        if nearest == -1:
            return used
        active[nearest] = True
        items[used] = -(_NUM_ROLES * stages[nearest] + _FETCH)
        used += 1


def _place_transfers(
    items: Any, item_offsets: Any, fused: Any, needs: Any, consumer: Any, rank_of: Any, row_begin: Any,
    next_item: Any, placed: Any, codes: Any,
) -> Any:  # fmt: skip
    """Codes are 3·entry for an action, +1 for its SEND, +2 for its RECV. Stage operations have negative codes."""
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


def _decode(schedule: Schedule, codes: Ints32, offsets: Ints64) -> tuple[Schedule, Ints32, NDArray[np.int8]]:
    others = np.flatnonzero(codes < 0)  # operations on a whole stage
    entry = codes // np.int32(3)
    role = (codes - 3 * entry).astype(np.int8)
    entry[others], role[others] = 0, 0
    op, stage, microbatch = _ROLES[schedule.op[entry], role], schedule.stage[entry], schedule.microbatch[entry]
    fused = np.where(role == 0, schedule.fused[entry], np.int32(NONE))
    stage[others], what = np.divmod(-codes[others], _NUM_ROLES)
    op[others] = _STAGE_OPS[what]
    microbatch[others] = fused[others] = NONE
    lowered = replace(
        schedule, op=op, stage=stage, microbatch=microbatch, fused=fused, rank_offsets=offsets.astype(np.int64)
    )
    return lowered, entry, role


# --- other places for the receives ---


def _deferred(messages: MessageTable) -> MessageTable:
    """Place each receive as torch's `defer_pp_recv`: just before its consumer.

    If the peer is a higher rank and a send to it comes earlier, the receive is just before that send. Each receive
    is placed independently, so messages may be received in another order than sent.
    """
    consumer, num_entries = _consumers(messages), len(messages.table)
    sent, route = messages.by_route, messages.route
    send = messages.send[sent]
    sender, receiver = np.divmod(route, messages.compute.num_ranks)
    back = receiver * messages.compute.num_ranks + sender
    behind = np.searchsorted(
        route[sent].astype(np.int64) * num_entries + send, back.astype(np.int64) * num_entries + messages.receive
    )
    next_send = np.append(send, np.int32(NONE))[behind]
    is_there = (np.append(route[sent], np.int32(NONE))[behind] == back) & (sender > receiver)
    cell = first_of_cell(messages.table)[consumer]
    is_earlier = is_there & (next_send < cell)
    return _received_before(
        messages, np.where(is_earlier, next_send, cell), np.where(is_earlier, messages.receive, consumer)
    )


def _ordered(messages: MessageTable) -> MessageTable:
    """Place each receive just before its consumer, together with the earlier messages of the same peer."""
    sent, consumer = messages.by_route, _consumers(messages)
    floor = messages.route[sent].astype(np.int64) * len(messages.table)  # offset that separates the routes
    taker = consumer.copy()  # earliest consumer of this message or of a later one
    taker[sent] = np.minimum.accumulate((floor + consumer[sent])[::-1])[::-1] - floor
    return _received_before(messages, first_of_cell(messages.table)[taker], taker)


def _consumers(messages: MessageTable) -> Ints32:
    return np.flatnonzero(is_compute(messages.table.op)).astype(np.int32)[messages.target]


def _received_before(messages: MessageTable, positions: Ints32, turn: Ints32) -> MessageTable:
    """Move each receive before the entry `place`; order receives at the same place by `turn`, then by sending."""
    num_entries = len(messages.table)
    key = positions.astype(np.int64) * num_entries + turn
    turns = messages.by_route[np.argsort(key[messages.by_route], kind="stable")]
    stays = np.ones(num_entries, dtype=np.bool_)
    stays[messages.receive] = False
    num_before = np.cumsum(stays, dtype=np.int32) - stays  # entries that do not move
    moved_to = num_before + np.cumsum(np.bincount(positions, minlength=num_entries), dtype=np.int32)
    moved_to[messages.receive[turns]] = num_before[positions[turns]] + np.arange(len(turns), dtype=np.int32)
    return messages.moved(send=moved_to[messages.send], receive=moved_to[messages.receive], moved_to=moved_to)
