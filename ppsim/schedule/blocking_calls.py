"""Positions of the sends and receives in Megatron-LM's pipeline loops, and which of these calls block a rank.

Source: `megatron/core/pipeline_parallel/schedules.py` (megatron-core 0.16.1).

1F1B: all calls block. In the steady state, one call with the next rank follows each forward, and one call with the
previous rank follows each backward. Warm-up and cool-down use single calls, a send and then a receive.

Interleaved 1F1B: calls block in warm-up and cool-down. In the steady state with `overlap_p2p_comm`, a rank issues
its transfers after each action without blocking. Without `overlap_p2p_comm`, one blocking call after each
forward-backward pair makes all four sends and receives.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Ints32, Ints64
from ppsim.base.errors import ScheduleError
from ppsim.schedule.analysis_cache import cached
from ppsim.schedule.dependencies import transfers_of
from ppsim.schedule.table import NONE, Op, Schedule

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class MessageEnds:
    """One end (send or receive) of each message.

    `after`: the compute action before the call, or −1. `turn`: 0 for the first call after that action, 1 for the
    second. `holds`: whether the rank blocks until the call is done.
    """

    after: Ints32
    turn: Ints32
    holds: Bools

    @classmethod
    def of(cls, after: Ints32, *, turn: Ints32 | int = 0, holds: Bools | bool = True) -> "MessageEnds":
        shape = after.shape
        return cls(after, np.broadcast_to(turn, shape).astype(np.int32), np.broadcast_to(holds, shape))

    def where(self, condition: Bools, other: "MessageEnds") -> "MessageEnds":
        return MessageEnds(*(np.where(condition, *both) for both in zip(self.columns, other.columns, strict=True)))

    @property
    def columns(self) -> tuple[Ints32, Ints32, Bools]:
        return self.after, self.turn, self.holds


@dataclass(frozen=True)
class _Row:
    """The rows of a table in Megatron-LM's order.

    `forward` and `backward` are the table entries of each rank's forwards and backwards, with shape [ranks, count].
    `number` is the index of each table entry among the entries of its kind on its rank. `warmup` is the number of
    forwards before the first steady-state pair.
    """

    forward: Ints64
    backward: Ints64
    number: Ints64
    warmup: Ints64

    @property
    def count(self) -> int:
        return len(self.forward[0])

    @classmethod
    def of(cls, table: Schedule) -> "_Row":
        """Raises `ScheduleError` if the rows are not in Megatron-LM's order."""
        p, is_forward = table.num_ranks, table.op == Op.F
        lengths = np.diff(table.rank_offsets)
        in_a_loop = np.array_equal(table.stage_to_rank, np.arange(table.num_stages) % p)
        if not in_a_loop or not np.all(is_forward | (table.op == Op.B)) or np.ptp(lengths) or p < 2:
            raise ScheduleError(_NOT_MEGATRON)
        forward, backward = (np.flatnonzero(one).reshape(p, -1) for one in (is_forward, ~is_forward))
        count = forward.shape[1]
        before = backward[:, 0] - table.rank_offsets[:-1]  # includes one forward of the steady state
        is_all = before == count  # no steady state, as with p microbatches
        warmup = np.where(is_all, count, before - 1)
        if table.num_stages == p:
            warmup = np.minimum(p - 1 - np.arange(p), count)
            if np.any(before != np.minimum(warmup + 1, count)):
                raise ScheduleError(_NOT_MEGATRON)
        positions = np.arange(count)
        steady = positions < count - warmup[:, None]
        behind = np.take_along_axis(forward, np.minimum(positions + warmup[:, None], count - 1), axis=1)
        if np.any((behind + 1 != backward) & steady):
            raise ScheduleError(_NOT_MEGATRON)
        number = np.zeros(len(table), dtype=np.int64)
        number[forward], number[backward] = positions, positions
        return cls(forward, backward, number, warmup)


_NOT_MEGATRON = (
    "Megatron-LM's calls are those of its own loops: it runs 1f1b and interleaved-1f1b on two ranks or more, "
    "compute-only tables of forwards and full backwards; choose another communication for this one"
)


def megatron_calls(
    table: Schedule, source: Ints32, target: Ints32, *, overlap: bool
) -> tuple[MessageEnds, MessageEnds]:
    """Return the sends and receives of the messages from actions `source` to `target`.

    Raises `ScheduleError` for a table that no loop of Megatron-LM runs.
    """
    row = _Row.of(table)
    downstream = table.op[source] == Op.F
    if table.num_stages == table.num_ranks:
        forward = _single_forward(table, row, source, target)
        backward = _single_backward(table, row, source, target)
    else:
        slots = _slots(table, row, source, target)
        if np.any(slots >= row.number[target]):
            raise ScheduleError(_NOT_MEGATRON)
        forward = _interleaved_forward(table, row, source, target, slots, overlap)
        backward = _interleaved_backward(table, row, source, target, slots, overlap)
    sends, receives = (one.where(downstream, other) for one, other in zip(forward, backward, strict=True))
    return sends, receives


def has_megatron_loop(table: Schedule) -> bool:
    return cached(table, "has a loop of Megatron-LM", lambda: _has_loop(table))


def _has_loop(table: Schedule) -> bool:
    try:
        megatron_calls(table, *transfers_of(table), overlap=True)
    except ScheduleError:
        return False
    return True


def _at(entries: Ints64, rank: Ints32, number: Ints64) -> Ints32:
    entry = entries[rank, np.clip(number, 0, entries.shape[1] - 1)]
    return np.where(number < 0, NONE, entry).astype(np.int32)


def _single_forward(table: Schedule, row: _Row, source: Ints32, target: Ints32) -> tuple[MessageEnds, MessageEnds]:
    rank, number = table.rank[target], row.number[target]
    warmup = row.warmup[rank]
    alone = MessageEnds.of(_at(row.forward, rank, number - 1), turn=1)  # recv_forward, after a send_forward
    with_a_send = MessageEnds.of(_at(row.backward, rank, number - 1 - warmup))  # send_backward_recv_forward
    return MessageEnds.of(source), alone.where(number <= warmup, with_a_send)


def _single_backward(table: Schedule, row: _Row, source: Ints32, target: Ints32) -> tuple[MessageEnds, MessageEnds]:
    rank, number = table.rank[target], row.number[target]
    warmup = row.warmup[rank]
    with_a_send = MessageEnds.of(_at(row.forward, rank, number + warmup))  # send_forward_recv_backward
    last_forward = _at(row.forward, rank, np.full_like(number, row.count - 1))
    alone = MessageEnds.of(np.where(number == 0, last_forward, _at(row.backward, rank, number - 1)), turn=1)
    return MessageEnds.of(source), with_a_send.where(number < row.count - warmup, alone)


def _slots(table: Schedule, row: _Row, source: Ints32, target: Ints32) -> Ints64:
    """Return the running number of the action after which a rank receives, or −1.

    In general this is the action before the one that needs the message. Wrap-around messages (forwards to the first
    rank, backwards to the last) are received when the sender sends; the receiver is then p − 1 actions ahead.
    """
    wraps = np.abs(table.rank[source] - table.rank[target]) > 1
    if table.num_ranks == 2:
        step = np.where(table.op[source] == Op.F, 1, -1)
        wraps = table.rank[source] + step != table.rank[target]
    return np.where(wraps, row.number[source] + table.num_ranks - 1, row.number[target] - 1)


def _interleaved_forward(
    table: Schedule, row: _Row, source: Ints32, target: Ints32, slots: Ints64, overlap: bool
) -> tuple[MessageEnds, MessageEnds]:
    def end(rank: Ints32, number: Ints64) -> MessageEnds:
        steady = number - row.warmup[rank]
        own = _at(row.forward, rank, number)
        held = own if overlap else np.where(steady < 0, own, _at(row.backward, rank, steady)).astype(np.int32)
        return MessageEnds.of(held, holds=(steady < 0) | (not overlap))

    return end(table.rank[source], row.number[source]), end(table.rank[target], slots)


def _interleaved_backward(
    table: Schedule, row: _Row, source: Ints32, target: Ints32, slots: Ints64, overlap: bool
) -> tuple[MessageEnds, MessageEnds]:
    def end(rank: Ints32, number: Ints64) -> MessageEnds:
        cools = number >= row.count - row.warmup[rank]
        return MessageEnds.of(_at(row.backward, rank, number), holds=cools | (not overlap))

    rank = table.rank[target]
    warmup = row.warmup[rank]
    is_all_warmup = warmup == row.count
    first = MessageEnds.of(
        _at(row.forward, rank, warmup - 1),
        turn=(is_all_warmup | overlap).astype(np.int32),
        holds=is_all_warmup | (not overlap),
    )
    return end(table.rank[source], row.number[source]), first.where(slots < 0, end(rank, slots))
