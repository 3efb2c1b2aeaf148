"""The sends and receives of a compute+comms table, matched to the transfers they carry out."""

from dataclasses import dataclass

import numpy as np

from ppsim.base.arrays import Ints32, Ints64
from ppsim.base.errors import ScheduleError
from ppsim.schedule.table import NONE, Op, Schedule


@dataclass(frozen=True)
class Messages:
    """Where each transfer is sent and received; every array has one entry a transfer.

    `source` and `target` are actions of the `compute`-only table, `send` and `receive` entries of `lowered`;
    `sent_after` and `received_after` the compute action that stands before the SEND and RECV on their rank, −1
    where none does.
    """

    lowered: Schedule
    compute: Schedule
    source: Ints32
    target: Ints32
    send: Ints64
    receive: Ints64
    sent_after: Ints32
    received_after: Ints32

    def check_order(self) -> None:
        """Raise `ScheduleError` where a pair of ranks sends in one order and receives in another.

        Messages carry no tags that a runtime matches by: the first receive takes what was sent first.
        """
        sender, receiver = self.lowered.rank[self.send], self.lowered.rank[self.receive]
        pair = sender.astype(np.int64) * self.lowered.num_ranks + receiver
        num_entries = len(self.lowered)
        by_send, by_receive = (in_order_of_rows(num_entries, one) for one in (self.send, self.receive))
        by_send, by_receive = (one[sorted_by(pair[one])] for one in (by_send, by_receive))
        wrong = np.flatnonzero(by_send != by_receive)
        if len(wrong):
            sent, taken = int(by_send[wrong[0]]), int(by_receive[wrong[0]])
            table = self.lowered
            raise ScheduleError(
                f"messages match out of order: rank {sender[sent]} sends {table[int(self.send[sent])]} to rank "
                f"{receiver[sent]} before {table[int(self.send[taken])]}, but rank {receiver[sent]} posts "
                f"{table[int(self.receive[taken])]} before {table[int(self.receive[sent])]} and would take the "
                f"one for the other"
            )


def in_order_of_rows(num_entries: int, *entries: Ints64) -> Ints64:
    """Return the order that sorts `entries` of a table, one after the other, each of them once; in linear time."""
    place = np.full(num_entries, NONE, dtype=np.int64)
    place[np.concatenate(entries)] = np.arange(sum(map(len, entries)))
    found: Ints64 = place[place != NONE]
    return found


def sorted_by(key: Ints64) -> Ints64:
    """Return the stable order of numbers from 0 on, by radix where they are small."""
    return np.argsort(key.astype(np.min_scalar_type(int(key.max(initial=0)))), kind="stable")


def messages_of(lowered: Schedule, compute: Schedule, source: Ints32, target: Ints32) -> Messages:
    """Return the messages of `lowered` for the transfers `source` → `target` of its `compute` table.

    Raises `ScheduleError` for a transfer without its SEND or RECV, a doubled or a stray one, one on a rank that
    does not hold the stage, one sent before it is made or received after it is used.
    """
    send = _find(lowered, compute, source, {Op.F: Op.SEND_F, Op.B: Op.SEND_B, Op.I: Op.SEND_B})
    receive = _find(lowered, compute, target, {Op.F: Op.RECV_F, Op.B: Op.RECV_B, Op.I: Op.RECV_B})
    _refuse_strays(lowered, np.concatenate([send, receive]))

    is_compute = (lowered.op >= Op.F) & (lowered.op <= Op.W)
    count = np.cumsum(is_compute)  # compute actions up to and including an entry, over all ranks
    begins = compute.rank_offsets
    last_before = (count - 1).astype(np.int32)
    messages = Messages(
        lowered=lowered, compute=compute, source=source, target=target, send=send, receive=receive,
        sent_after=_within_rank(last_before[send], begins[lowered.rank[send]]),
        received_after=_within_rank(last_before[receive], begins[lowered.rank[receive]]),
    )  # fmt: skip
    early = np.flatnonzero(messages.sent_after < source)
    if len(early):
        made, sent = compute[int(source[early[0]])], lowered[int(send[early[0]])]
        raise ScheduleError(f"what {made} makes is sent before it is made: {sent} stands before it")
    late = np.flatnonzero(messages.received_after >= target)
    if len(late):
        used, received = compute[int(target[late[0]])], lowered[int(receive[late[0]])]
        raise ScheduleError(f"what {used} needs is received after it is used: {received} stands behind it")
    return messages


def _within_rank(entry: Ints32, begin: Ints64) -> Ints32:
    return np.where(entry >= begin, entry, NONE).astype(np.int32)


def _find(lowered: Schedule, compute: Schedule, actions: Ints32, op_of: dict[Op, Op]) -> Ints64:
    """The entry of the one SEND or RECV that belongs to each of `actions`."""
    num_keys = compute.num_stages * compute.num_units
    found = np.full(num_keys * 2, NONE, dtype=np.int64)
    for is_backward, wanted in enumerate(sorted(set(op_of.values()))):
        entries = np.flatnonzero(lowered.op == wanted)
        keys = lowered.stage[entries].astype(np.int64) * compute.num_units + lowered.microbatch[entries]
        doubled = np.flatnonzero(np.bincount(keys, minlength=1) > 1)
        if len(doubled):
            raise ScheduleError(f"{lowered[int(entries[keys == doubled[0]][1])]} stands twice in the table")
        found[is_backward * num_keys + keys] = entries
    is_backward_of = (compute.op[actions] != Op.F).astype(np.int64)
    key = compute.stage[actions].astype(np.int64) * compute.num_units + compute.microbatch[actions]
    entry: Ints64 = found[is_backward_of * num_keys + key]
    missing = np.flatnonzero(entry == NONE)
    if len(missing):
        action, rank = compute[int(actions[missing[0]])], int(compute.rank[actions[missing[0]]])
        name = f"{action.stage}{op_of[action.op].name}{action.microbatch}"
        raise ScheduleError(f"{name} is missing: {action} on rank {rank} needs it")
    misplaced = np.flatnonzero(lowered.rank[entry] != compute.rank[actions])
    if len(misplaced):
        where, home = int(entry[misplaced[0]]), int(compute.rank[actions[misplaced[0]]])
        raise ScheduleError(
            f"{lowered[where]} stands on rank {int(lowered.rank[where])}, but its stage is on rank {home}"
        )
    return entry


def _refuse_strays(lowered: Schedule, known: Ints64) -> None:
    is_message = np.isin(lowered.op, (Op.SEND_F, Op.RECV_F, Op.SEND_B, Op.RECV_B))
    is_message[known] = False
    strays = np.flatnonzero(is_message)
    if len(strays):
        stray = int(strays[0])
        raise ScheduleError(
            f"{lowered[stray]} on rank {int(lowered.rank[stray])} belongs to no transfer between two ranks"
        )
