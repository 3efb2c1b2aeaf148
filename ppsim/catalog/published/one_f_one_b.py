"""One stage per rank: GPipe, 1F1B, eager 1F1B, Seq1F1B, ZB-H1 and ZB-H2.

GPipe: Huang et al. 2019, §2.3. 1F1B: PipeDream-Flush (Narayanan et al. 2021, arXiv 2006.09503, §3.2), DAPPLE (arXiv
2007.01045). Eager: Zhuang et al. 2023; drawn in Qi et al. 2024 (arXiv 2405.15362), Figure 1b. Seq1F1B: Sun et al.
2024 (arXiv 2406.03488). ZB-H1 and ZB-H2: Qi et al. 2024 (arXiv 2401.10241), §2.1 and §2.2, which writes B for I.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from ppsim.base.arrays import Ints32
from ppsim.schedule.placement import loop
from ppsim.schedule.table import NONE, Op, Schedule


def gpipe(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Backwards run in microbatch order, as in torch."""
    visits = [visits_of_stage(rank, range(num_microbatches)) for rank in range(num_ranks)]
    rows = [full_row(own, own, num_warm_up=num_microbatches) for own in visits]
    return table_of_rows(rows, stage_to_rank=loop(num_ranks, num_ranks), name="gpipe")


def one_f_one_b(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Rank r holds at most p−r activations, the fewest that fill the pipeline."""
    return _by_turns("1f1b", num_ranks, num_microbatches, ahead=1)  # one way to the last rank


def eager_one_f_one_b(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Forwards run twice as far ahead, so that transfers are hidden; rank r holds at most 2(p−r)−1 activations."""
    return _by_turns("eager-1f1b", num_ranks, num_microbatches, ahead=2)  # a round trip to the last rank


def seq_one_f_one_b(*, num_ranks: int, num_microbatches: int, num_slices: int) -> Schedule:
    """With causal attention, the forwards of a microbatch's slices run in order and the backwards in reverse
    order.
    """
    slices = range(num_microbatches * num_slices)
    backwards = [
        microbatch * num_slices + slice_of_unit
        for microbatch in range(num_microbatches)
        for slice_of_unit in reversed(range(num_slices))
    ]
    rows = []
    for rank in range(num_ranks):
        # the ranks after this one, and the slices before the one whose backward comes first
        num_warm_up = num_ranks - 1 - rank + num_slices - 1
        visits = visits_of_stage(rank, slices), visits_of_stage(rank, backwards)
        rows.append(full_row(*visits, num_warm_up=num_warm_up))
    return table_of_rows(
        rows, stage_to_rank=loop(num_ranks, num_ranks), num_microbatches=num_microbatches, name="seq1f1b",
        num_slices=num_slices,
    )  # fmt: skip


def zb_h1(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """A third of the bubble of 1F1B at 1F1B's peak memory."""
    # Later ranks postpone more weight gradients: they have a longer cool-down to fill.
    return _by_turns("zb-h1", num_ranks, num_microbatches, ahead=1, splits=True)


def zb_h2(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """No bubble within a rank's own span, at twice the activations of 1F1B; the closed form needs m ≥ 2p−1."""
    return _by_turns("zb-h2", num_ranks, num_microbatches, ahead=2, splits=True)


def _by_turns(name: str, num_ranks: int, num_microbatches: int, *, ahead: int, splits: bool = False) -> Schedule:
    rows = []
    for rank in range(num_ranks):
        visits, num_warm_up = visits_of_stage(rank, range(num_microbatches)), ahead * (num_ranks - 1 - rank)
        if splits:
            rows.append(split_row(visits, visits, num_warm_up=num_warm_up, num_put_off=ahead * rank))
        else:
            rows.append(full_row(visits, visits, num_warm_up=num_warm_up))
    return table_of_rows(rows, stage_to_rank=loop(num_ranks, num_ranks), name=name)


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
    offsets = np.cumsum([0, *(row.shape[1] for row in rows)])
    fused = None
    if pairs is not None:
        before = np.cumsum([0, *(pair.max(initial=NONE) + 1 for pair in pairs)])
        fused = np.concatenate(
            [np.where(pair == NONE, NONE, pair + first) for pair, first in zip(pairs, before, strict=False)]
        )
    return Schedule.from_columns(op, stage, microbatch, fused, offsets, **labels)


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
