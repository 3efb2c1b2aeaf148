"""Building blocks of schedule rows."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from ppsim.base.arrays import Ints32
from ppsim.schedule.table import NONE, Op, Schedule

Visits: TypeAlias = Ints32
"""Array [2, visits]: stage and microbatch of each visit, in a rank's order."""

Row: TypeAlias = Ints32
"""Array [3, actions]: op, stage and microbatch of each action of a rank."""


def full_row(forwards: Visits, backwards: Visits, *, num_warm_up: int) -> Row:
    return _row((Op.F, forwards, -min(num_warm_up, forwards.shape[1])), (Op.B, backwards, 0))


def paired_row(forwards: Visits, backwards: Visits, *, num_warm_up: int) -> tuple[Row, Ints32]:
    """Fuse forwards after the warm-up with the next backward; return the row and each action's pair, or NONE."""
    row = full_row(forwards, backwards, num_warm_up=num_warm_up)
    num_alone = min(num_warm_up, forwards.shape[1])
    pair = np.full(row.shape[1], NONE, dtype=np.int32)
    pair[num_alone : 2 * forwards.shape[1] - num_alone] = np.repeat(np.arange(forwards.shape[1] - num_alone), 2)
    return row, pair


def split_row(forwards: Visits, backwards: Visits, *, num_warm_up: int, num_put_off: int = 0) -> Row:
    """Each W follows the I `num_put_off` positions later."""
    return _row(
        (Op.F, forwards, -min(num_warm_up, forwards.shape[1])),
        (Op.I, backwards, 0),
        (Op.W, backwards, num_put_off),
    )


def _row(*parts: tuple[Op, Visits, int]) -> Row:
    """Merge sequences of actions by step: each starts at its own step and has one action per step."""
    actions = [np.vstack([np.full(visits.shape[1], op, dtype=np.int32), visits]) for op, visits, _ in parts]
    steps = [np.arange(begin, begin + visits.shape[1]) for _, visits, begin in parts]
    row: Row = np.hstack(actions)[:, np.argsort(np.concatenate(steps), kind="stable")]
    return row


def table_of_rows(rows: Sequence[Row], pairs: Sequence[Ints32] | None = None, **labels: Any) -> Schedule:
    """`labels` are arguments of `Schedule.from_rows`; `pairs` has the second result of `paired_row` per rank."""
    op, stage, microbatch = (np.concatenate(column) for column in zip(*rows, strict=True))
    offsets = np.cumsum([0, *(row.shape[1] for row in rows)], dtype=np.int64)
    fused = np.full(len(op), NONE, dtype=np.int32)
    if pairs is not None:
        before = np.cumsum([0, *(pair.max(initial=NONE) + 1 for pair in pairs)])
        fused = np.concatenate(
            [np.where(pair == NONE, NONE, pair + first) for pair, first in zip(pairs, before, strict=False)]
        ).astype(np.int32)
    return Schedule.from_columns(op.astype(np.int8), stage, microbatch, fused, offsets, **labels)


def visits_of_stage(stage: int, microbatches: Sequence[int]) -> Visits:
    return np.array([[stage] * len(microbatches), microbatches], dtype=np.int32)


def visits_in_groups(
    num_ranks: int, vpp: int, num_microbatches: int, group_size: int
) -> Iterator[tuple[Visits, Visits]]:
    """Yield each rank's forwards and backwards in the depth-first order of looped schedules.

    A rank runs `group_size` microbatches through its first chunk, then through the next chunks, and then starts the
    next group. Backwards visit the chunks in reverse order.
    """
    order = [
        (chunk * num_ranks, microbatch)
        for first in range(0, num_microbatches, group_size)
        for chunk in range(vpp)
        for microbatch in range(first, min(first + group_size, num_microbatches))
    ]
    stage, microbatch = np.array(order, dtype=np.int32).T
    for rank in range(num_ranks):
        yield (
            np.stack([stage + rank, microbatch]),
            np.stack([(vpp - 1) * num_ranks - stage + rank, microbatch]),
        )
