"""The sends and receives of a compute+comms table, matched to the transfers that they carry out."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ppsim.base.arrays import Ints32, Ints64
from ppsim.base.errors import ScheduleError
from ppsim.schedule.dependencies import index_of, transfers_of
from ppsim.schedule.table import NONE, Op, Schedule, is_compute, is_one_of

_SENT_OR_RECEIVED = Op.SEND_F, Op.RECV_F, Op.SEND_B, Op.RECV_B


@dataclass(frozen=True)
class MessageTable:
    """The position of the send and the receive of each transfer.

    `source` and `target` are indices into `compute`; `send` and `receive` are indices into `lowered`. `lowered` is
    `table` after its entries have moved to the positions `moved_to`.
    """

    table: Schedule
    compute: Schedule
    source: Ints32
    target: Ints32
    send: Ints32
    receive: Ints32
    moved_to: Ints32 | None = None

    @property
    def lowered(self) -> Schedule:
        if self.moved_to is None:
            return self.table
        order = np.empty_like(self.moved_to)
        order[self.moved_to] = np.arange(len(order), dtype=np.int32)
        return self.table.scaled(order)

    @cached_property
    def _in_rows(self) -> tuple[Ints32, Ints32]:
        op = self.table.op
        if self.moved_to is not None:
            op = np.empty_like(op)
            op[self.moved_to] = self.table.op
        is_end, number = is_one_of(op, _SENT_OR_RECEIVED), np.arange(2 * len(self.send), dtype=np.int32)
        positions = np.empty(len(op), dtype=np.int32)
        positions[self.send], positions[self.receive] = np.split(number, 2)
        return positions[is_end], np.cumsum(is_compute(op), dtype=np.int32)[is_end]

    @property
    def ends(self) -> Ints32:
        """Sends and receives in row order: t is the send of transfer t, T + t its receive (of T transfers)."""
        return self._in_rows[0]

    @property
    def following(self) -> Ints32:
        """The next compute action after each of `ends`, possibly on the next rank."""
        return self._in_rows[1]

    @cached_property
    def num_ends(self) -> Ints64:
        routes = np.bincount(self.route, minlength=self.compute.num_ranks**2).reshape(self.compute.num_ranks, -1)
        counts: Ints64 = routes.sum(axis=0) + routes.sum(axis=1)
        return counts

    @cached_property
    def after(self) -> Ints32:
        """Compute action before each SEND and each RECV on its rank, −1 if there is none; shape [2, T]."""
        last = self.following - np.int32(1)
        last[last < np.repeat(self.compute.rank_offsets[:-1].astype(np.int32), self.num_ends)] = NONE
        followers = np.empty(len(last), dtype=np.int32)
        followers[self.ends] = last
        return followers.reshape(2, -1)

    @cached_property
    def route(self) -> Ints32:
        """p · sender + receiver"""
        rank = self.compute.rank
        return rank[self.source] * self.compute.num_ranks + rank[self.target]

    @cached_property
    def by_route(self) -> Ints32:
        """Transfers grouped by route, within a route in sending order."""
        sent = np.full(len(self.table), NONE, dtype=np.int32)
        sent[self.send] = np.arange(len(self.send), dtype=np.int32)
        by_send = sent[sent != NONE]
        messages: Ints32 = by_send[sorted_by(self.route[by_send])]
        return messages

    def moved(self, **places: Any) -> "MessageTable":
        moved = replace(self, **places)
        vars(moved).update(route=self.route, by_route=self.by_route)
        return moved

    def check_order(self) -> None:
        """Raise `ScheduleError` if a rank receives messages of one sender in another order than they are sent.

        Runtimes do not match messages by tags.
        """
        by_send, route = self.by_route, self.route[self.by_route]
        if ((np.diff(self.receive[by_send]) > 0) | (np.diff(route) > 0)).all():
            return
        by_receive = by_send[np.lexsort((self.receive[by_send], route))]
        wrong = int(np.argmax(by_send != by_receive))
        sent, taken = int(by_send[wrong]), int(by_receive[wrong])
        (sender, receiver), table = divmod(int(route[wrong]), self.compute.num_ranks), self.lowered
        raise ScheduleError(
            f"messages match out of order: rank {sender} sends {table[int(self.send[sent])]} to rank {receiver} "
            f"before {table[int(self.send[taken])]}, but rank {receiver} posts {table[int(self.receive[taken])]} "
            f"before {table[int(self.receive[sent])]} and would receive the wrong data"
        )


def sorted_by(key: Ints32) -> Ints64:
    return np.argsort(key.astype(np.min_scalar_type(int(key.max(initial=0)))), kind="stable")


def messages_of(lowered: Schedule, compute: Schedule) -> MessageTable:
    """Raises `ScheduleError` for a missing, duplicate, unmatched or misplaced SEND or RECV."""
    source, target = transfers_of(compute)
    send = _find(lowered, compute, source, (Op.SEND_F, Op.SEND_B))
    receive = _find(lowered, compute, target, (Op.RECV_F, Op.RECV_B))
    _refuse_strays(lowered, send, receive)

    messages = MessageTable(lowered, compute, source, target, send, receive)
    early = np.flatnonzero(messages.after[0] < source)
    if len(early):
        made, sent = compute[int(source[early[0]])], lowered[int(send[early[0]])]
        raise ScheduleError(f"what {made} makes is sent before it is made: {sent} stands before it")
    late = np.flatnonzero(messages.after[1] >= target)
    if len(late):
        used, received = compute[int(target[late[0]])], lowered[int(receive[late[0]])]
        raise ScheduleError(f"what {used} needs is received after it is used: {received} stands behind it")
    return messages


def _find(lowered: Schedule, compute: Schedule, actions: Ints32, ops: tuple[Op, Op]) -> Ints32:
    tables = [index_of(lowered, (op,)) for op in ops]
    for op, table in zip(ops, tables, strict=True):
        entries = np.flatnonzero(lowered.op == op)
        if np.count_nonzero(table != NONE) < len(entries):
            keys = lowered.stage[entries].astype(np.int64) * lowered.num_units + lowered.microbatch[entries]
            doubled = np.flatnonzero(np.bincount(keys) > 1)[0]
            raise ScheduleError(f"{lowered[int(entries[keys == doubled][1])]} stands twice in the table")
    is_backward = (compute.op[actions] != Op.F).view(np.int8)
    entry: Ints32 = np.stack(tables)[is_backward, compute.stage[actions], compute.microbatch[actions]]
    missing = np.flatnonzero(entry == NONE)
    if len(missing):
        action, rank = compute[int(actions[missing[0]])], int(compute.rank[actions[missing[0]]])
        name = f"{action.stage}{ops[is_backward[missing[0]]].name}{action.microbatch}"
        raise ScheduleError(f"{name} is missing: {action} on rank {rank} needs it")
    home, begins = compute.rank[actions], lowered.rank_offsets
    misplaced = np.flatnonzero((entry < begins[home]) | (entry >= begins[home + 1]))
    if len(misplaced):
        where = int(entry[misplaced[0]])
        raise ScheduleError(
            f"{lowered[where]} stands on rank {int(lowered.rank[where])}, but its stage is on rank "
            f"{int(home[misplaced[0]])}"
        )
    return entry


def _refuse_strays(lowered: Schedule, *known: Ints32) -> None:
    is_message = is_one_of(lowered.op, _SENT_OR_RECEIVED)
    for entries in known:
        is_message[entries] = False
    strays = np.flatnonzero(is_message)
    if len(strays):
        stray = int(strays[0])
        raise ScheduleError(
            f"{lowered[stray]} on rank {int(lowered.rank[stray])} belongs to no transfer between two ranks"
        )
