"""Where Megatron-LM's pipeline loops send and receive, and at which of these calls a rank stands still.

From `megatron/core/pipeline_parallel/schedules.py` (megatron-core 0.16.1). 1F1B sends and receives by calls that
return when they are done: one with the next rank between a forward and the backward behind it, one with the rank
before between a backward and a forward, and single ones, a send and then a receive, in warm-up and cool-down.
Interleaved, a rank stands still at the calls of warm-up and cool-down; in the steady state it hands its transfers
over after each action and waits for what it needs (`overlap_p2p_comm`) or, without that, makes one call for all
four directions after each pair of a forward and a backward.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Ints32, Ints64
from ppsim.base.errors import ScheduleError
from ppsim.schedule.dependencies import transfers_of
from ppsim.schedule.kept import kept
from ppsim.schedule.table import NONE, Op, Schedule

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Ends:
    """One end of each message, its sends or its receives; arrays have one entry a message.

    `after`: the compute action behind which the call stands, −1 for one before a rank's first; `turn`: whether it
    is the first call there (0) or the second (1); `holds`: whether the rank stands still until it is done.
    """

    after: Ints32
    turn: Ints32
    holds: Bools

    @classmethod
    def of(cls, after: Ints32, *, turn: Ints32 | int = 0, holds: Bools | bool = True) -> "Ends":
        """Return ends whose turn and holding may be one value for all."""
        shape = after.shape
        return cls(after, np.broadcast_to(turn, shape).astype(np.int32), np.broadcast_to(holds, shape))

    def where(self, condition: Bools, other: "Ends") -> "Ends":
        """Return these ends where the condition is true, the other's elsewhere."""
        return Ends(*(np.where(condition, *both) for both in zip(self.columns, other.columns, strict=True)))

    @property
    def columns(self) -> tuple[Ints32, Ints32, Bools]:
        """All three."""
        return self.after, self.turn, self.holds


@dataclass(frozen=True)
class _Row:
    """A table in Megatron-LM's order: what each rank runs, by the running number of its forwards and backwards.

    `forward` and `backward` have shape [ranks, actions a rank of that kind] and hold entries of the table; `number`
    is the place of every entry among those of its kind on its rank; `warmup` counts the forwards before the first
    backward of each rank.
    """

    forward: Ints64
    backward: Ints64
    number: Ints64
    warmup: Ints64

    @property
    def count(self) -> int:
        """Forwards, and as many backwards, of a rank."""
        return len(self.forward[0])

    @classmethod
    def of(cls, table: Schedule) -> "_Row":
        """Raises `ScheduleError` for a table in another order than Megatron-LM's."""
        p, is_forward = table.num_ranks, table.op == Op.F
        lengths = np.diff(table.rank_offsets)
        in_a_loop = np.array_equal(table.stage_to_rank, np.arange(table.num_stages) % p)
        if not in_a_loop or not np.all(is_forward | (table.op == Op.B)) or np.ptp(lengths) or p < 2:
            raise ScheduleError(_NOT_MEGATRON)
        forward, backward = (np.flatnonzero(one).reshape(p, -1) for one in (is_forward, ~is_forward))
        count = forward.shape[1]
        before = backward[:, 0] - table.rank_offsets[:-1]  # a forward of the steady state among them
        is_all = before == count  # nothing but warm-up and cool-down, as with p microbatches
        warmup = np.where(is_all, count, before - 1)
        if table.num_stages == p:
            warmup = np.minimum(p - 1 - np.arange(p), count)
            if np.any(before != np.minimum(warmup + 1, count)):
                raise ScheduleError(_NOT_MEGATRON)
        place = np.arange(count)
        steady = place < count - warmup[:, None]
        behind = np.take_along_axis(forward, np.minimum(place + warmup[:, None], count - 1), axis=1)
        if np.any((behind + 1 != backward) & steady):
            raise ScheduleError(_NOT_MEGATRON)
        number = np.zeros(len(table), dtype=np.int64)
        number[forward], number[backward] = place, place
        return cls(forward, backward, number, warmup)


_NOT_MEGATRON = (
    "Megatron-LM's calls are those of its own loops: it runs 1f1b and interleaved-1f1b on two ranks or more, "
    "compute-only tables of forwards and full backwards; choose another communication for this one"
)


def megatron_calls(table: Schedule, source: Ints32, target: Ints32, *, overlap: bool) -> tuple[Ends, Ends]:
    """Return where Megatron-LM sends and receives what goes from each action `source` to `target` of a table.

    `overlap`: what `--overlap-p2p-communication` makes of interleaved tables; 1F1B has no such choice. Raises
    `ScheduleError` for a table that Megatron-LM has no loop for.
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
    """Return whether Megatron-LM has a loop that runs this compute-only table."""
    return kept(table, "has a loop of Megatron-LM", lambda: _has_loop(table))


def _has_loop(table: Schedule) -> bool:
    try:
        megatron_calls(table, *transfers_of(table), overlap=True)
    except ScheduleError:
        return False
    return True


def _at(entries: Ints64, rank: Ints32, number: Ints64) -> Ints32:
    """The entries of these running numbers, −1 for a number below 0."""
    found = entries[rank, np.clip(number, 0, entries.shape[1] - 1)]
    return np.where(number < 0, NONE, found).astype(np.int32)


def _single_forward(table: Schedule, row: _Row, source: Ints32, target: Ints32) -> tuple[Ends, Ends]:
    rank, number = table.rank[target], row.number[target]
    warmup = row.warmup[rank]
    alone = Ends.of(_at(row.forward, rank, number - 1), turn=1)  # recv_forward, behind a send_forward
    with_a_send = Ends.of(_at(row.backward, rank, number - 1 - warmup))  # send_backward_recv_forward
    return Ends.of(source), alone.where(number <= warmup, with_a_send)


def _single_backward(table: Schedule, row: _Row, source: Ints32, target: Ints32) -> tuple[Ends, Ends]:
    rank, number = table.rank[target], row.number[target]
    warmup = row.warmup[rank]
    with_a_send = Ends.of(_at(row.forward, rank, number + warmup))  # send_forward_recv_backward
    last_forward = _at(row.forward, rank, np.full_like(number, row.count - 1))
    alone = Ends.of(np.where(number == 0, last_forward, _at(row.backward, rank, number - 1)), turn=1)
    return Ends.of(source), with_a_send.where(number < row.count - warmup, alone)


def _slots(table: Schedule, row: _Row, source: Ints32, target: Ints32) -> Ints64:
    """The running number of the action behind which a rank receives; −1: before its first.

    That is the one before the taker, but on the ranks that lead, the first forwards and the last backwards: these
    are p − 1 actions ahead of the rank they receive from, and receive when it sends.
    """
    wraps = np.abs(table.rank[source] - table.rank[target]) > 1
    if table.num_ranks == 2:
        step = np.where(table.op[source] == Op.F, 1, -1)
        wraps = table.rank[source] + step != table.rank[target]
    return np.where(wraps, row.number[source] + table.num_ranks - 1, row.number[target] - 1)


def _interleaved_forward(
    table: Schedule, row: _Row, source: Ints32, target: Ints32, slots: Ints64, overlap: bool
) -> tuple[Ends, Ends]:
    def end(rank: Ints32, number: Ints64) -> Ends:
        steady = number - row.warmup[rank]
        own = _at(row.forward, rank, number)
        held = own if overlap else np.where(steady < 0, own, _at(row.backward, rank, steady)).astype(np.int32)
        return Ends.of(held, holds=(steady < 0) | (not overlap))

    return end(table.rank[source], row.number[source]), end(table.rank[target], slots)


def _interleaved_backward(
    table: Schedule, row: _Row, source: Ints32, target: Ints32, slots: Ints64, overlap: bool
) -> tuple[Ends, Ends]:
    def end(rank: Ints32, number: Ints64) -> Ends:
        cools = number >= row.count - row.warmup[rank]
        return Ends.of(_at(row.backward, rank, number), holds=cools | (not overlap))

    rank = table.rank[target]
    warmup = row.warmup[rank]
    is_all_warmup = warmup == row.count
    first = Ends.of(
        _at(row.forward, rank, warmup - 1),
        turn=(is_all_warmup | overlap).astype(np.int32),
        holds=is_all_warmup | (not overlap),
    )
    return end(table.rank[source], row.number[source]), first.where(slots < 0, end(rank, slots))
