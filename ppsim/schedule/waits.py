"""Explicit waits of torch 2.15: one for every send and one for every gradient reduction.

torch 2.15 (`_add_wait_send`, `_add_reduce_grad`) holds a send's buffer until its wait, and refuses a compute+comms
table without waits:

- WAIT_REDUCE_GRAD after the REDUCE_GRAD; only receives may be between them;
- WAIT_SEND_F after the same stage's B or I of the microbatch, which can run only after the next stage has received
  the message;
- WAIT_SEND_B, and WAIT_SEND_F without such a backward, at the end of the row, in the order of sending.

At these places no wait delays a rank, so the event graph and the simulator ignore waits.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ppsim.base.arrays import Ints64
from ppsim.schedule.dependencies import index_of
from ppsim.schedule.table import NONE, Action, Op, Schedule, last_of_cell

_WAIT_FOR = {Op.SEND_F: Op.WAIT_SEND_F, Op.SEND_B: Op.WAIT_SEND_B}
_WAITS = (*_WAIT_FOR.values(), Op.WAIT_REDUCE_GRAD)


def has_waits(schedule: Schedule) -> bool:
    return bool(np.isin(schedule.op, _WAITS).any())


def without_waits(schedule: Schedule) -> Schedule:
    """torch 2.10 to 2.14 write tables without waits."""
    return schedule.select(~np.isin(schedule.op, _WAITS))


def with_waits(schedule: Schedule) -> Schedule:
    """Replace the waits of a compute+comms table by torch 2.15's."""
    return with_send_waits(_with_reduce_waits(without_waits(schedule)))


def _with_reduce_waits(schedule: Schedule) -> Schedule:
    reductions = np.flatnonzero(schedule.op == Op.REDUCE_GRAD)
    ops = np.full(len(reductions), Op.WAIT_REDUCE_GRAD)
    return _inserted(schedule, reductions + 1, ops, reductions)


def with_send_waits(schedule: Schedule) -> Schedule:
    """The table must have no such waits yet."""
    sends = np.flatnonzero((schedule.op == Op.SEND_F) | (schedule.op == Op.SEND_B))
    is_forward = schedule.op[sends] == Op.SEND_F
    backward = index_of(schedule, (Op.B, Op.I))[schedule.stage[sends], schedule.microbatch[sends]]
    in_row = is_forward & (backward > sends) & (schedule.rank[backward] == schedule.rank[sends])
    positions = np.where(
        in_row, last_of_cell(schedule)[backward] + 1, schedule.rank_offsets[schedule.rank[sends] + 1]
    )
    # Several waits at one place follow the cell's parts or, at the end of the row, the sending order.
    order = np.lexsort((np.where(in_row, backward, sends), ~in_row, positions))
    ops = np.where(is_forward, Op.WAIT_SEND_F, Op.WAIT_SEND_B)
    return _inserted(schedule, positions[order], ops[order], sends[order])


def _inserted(schedule: Schedule, positions: Ints64, op: Ints64, of: Ints64) -> Schedule:
    """Insert `op` before the entries `place` (ascending), with stage and microbatch of the entries `of`.

    An insertion before the first entry of a row goes to the end of the previous row.
    """
    counts = np.searchsorted(positions, schedule.rank_offsets, side="right")
    return replace(
        schedule,
        op=np.insert(schedule.op, positions, op.astype(np.int8)),
        stage=np.insert(schedule.stage, positions, schedule.stage[of]),
        microbatch=np.insert(schedule.microbatch, positions, schedule.microbatch[of]),
        fused=np.insert(schedule.fused, positions, NONE),
        rank_offsets=schedule.rank_offsets + counts,
    )


def broken_waits(schedule: Schedule) -> Iterator[str]:
    """Yield a sentence for each unmatched wait, and for each send or reduction without a wait.

    A table without any wait is valid.
    """
    if not has_waits(schedule):
        return
    for rank, row in enumerate(schedule.rows()):
        sent: dict[Action, Action] = {}  # key: the wait that the send needs
        reduced: Action | None = None
        for cell in row:
            if not isinstance(cell, Action):
                continue
            if cell.op in _WAIT_FOR:
                sent[cell._replace(op=_WAIT_FOR[cell.op])] = cell
            elif cell.op in _WAIT_FOR.values() and sent.pop(cell, None) is None:
                yield f"rank {rank} runs {cell} without a send before it that is still to be waited for"
            elif cell.op is Op.REDUCE_GRAD:
                if reduced is not None:
                    yield f"rank {rank} starts {cell} before it has waited for {reduced}"
                reduced = cell
            elif cell.op is Op.WAIT_REDUCE_GRAD:
                if reduced is None or reduced.stage != cell.stage:
                    yield f"rank {rank} runs {cell} while {reduced or 'no reduction'} is under way"
                reduced = None
        for action in [*sent.values(), *([] if reduced is None else [reduced])]:
            yield f"rank {rank} never waits for {action}; torch 2.15 refuses a table with some waits but not all"
