"""Greedy list scheduling: every rank runs what is ready, backwards first. Any placement, any number of chains.

Chimera (Li and Hoefler 2021, arXiv 2107.06925): two chains of stages in opposite directions, so that one fills the
other's bubbles; each runs half of the microbatches as 1F1B does. Hanayo (Liu et al. 2023, SC'23, "Hanayo:
Harnessing Wave-like Pipeline Parallelism", arXiv 2308.15762): v stages a rank in v/2 waves, down and up the ranks,
of which each shortens the bubble, no weights doubled.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ppsim.base.compiling import Engine, run_kernel
from ppsim.schedule.placement import v_shape
from ppsim.schedule.table import NONE, Op, Schedule


def chimera(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return Chimera's table: chain 0 down the ranks, chain 1 back up; needs an even p and an even m.

    The merge of the two directions is greedy list scheduling at equal F and B. For m = p that has the bubble and
    the memory that the paper states. For m > p the paper concatenates units of p microbatches; the merge goes on
    instead, which for multiples of p has the bubble of concatenated units at F = B and holds no more. That it is
    the paper's very order has not been checked against its figures. Forward doubling and backward halving, the
    paper's remedies where B = 2F, are not here.
    """
    placement = v_shape(num_ranks, 2 * num_ranks)
    return greedy(stage_to_rank=placement, num_microbatches=num_microbatches, num_replicas=2, name="chimera")


def hanayo(*, num_ranks: int, vpp: int, num_microbatches: int) -> Schedule:
    """Return the table of v/2 waves; v is even.

    Stages zigzag over the ranks and full backwards are run as soon as they can be: greedy list scheduling at equal
    F and B, which is how the abstract describes it. The bubble formula of the catalogue is that of this table; the
    paper's own table of bubbles has not been checked. Where B is longer than F the table is the same and idles
    longer than a greedy one for those costs might.
    """
    placement = v_shape(num_ranks, vpp * num_ranks)
    return greedy(stage_to_rank=placement, num_microbatches=num_microbatches, name="hanayo")


def greedy(
    *,
    stage_to_rank: Sequence[int],
    num_microbatches: int,
    num_replicas: int = 1,
    name: str = "",
    engine: Engine = "auto",
) -> Schedule:
    """Return the table in which each rank, in each slot of time, runs the first action of its list that is ready.

    A forward and a full backward take a slot each, on every stage. Ready backwards come before forwards; of
    either, the one whose microbatch is earliest in its chain; of several, that of the latest model stage, then of
    the first chain. `stage_to_rank` has one entry a stage, chain after chain. Memory is not bounded: waves, and two
    opposite chains on an even number of ranks, have been seen to hold p microbatches a rank and no more; a chain
    with one stage a rank runs ahead, which is eager 1F1B. Time: slots × stages.

    >>> [str(action) for action in greedy(stage_to_rank=[0, 1], num_microbatches=2)]
    ['0F0', '0F1', '0B0', '0B1', '1F0', '1B0', '1F1', '1B1']
    """
    placement = np.array(stage_to_rank, dtype=np.int32)
    num_stages, num_ranks = len(placement), int(placement.max()) + 1
    depth = num_stages // num_replicas
    chain = np.arange(num_stages) // depth
    first = -(-np.arange(num_replicas + 1) * num_microbatches // num_replicas)  # of each chain's microbatches
    share = np.diff(first)[chain]

    by_rank = np.lexsort((chain, -(np.arange(num_stages) % depth), placement))  # the order in which ties are broken
    offsets = np.concatenate(([0], np.cumsum(np.bincount(placement, weights=2 * share, minlength=num_ranks))))
    offsets = offsets.astype(np.int64)
    stage, count, is_backward = (np.zeros(offsets[-1], dtype=np.int32) for _ in range(3))
    run_kernel(
        _fill_slots,
        inputs=(by_rank, np.searchsorted(placement[by_rank], np.arange(num_ranks + 1)), depth, share,
                int(offsets[-1])),
        outputs=(offsets[:-1].copy(), np.zeros((num_stages, 2), dtype=np.int64).ravel(),
                 np.full(num_ranks, NONE, dtype=np.int64), stage, count, is_backward),
        size=int(offsets[-1]) * num_stages // num_ranks, engine=engine,
    )  # fmt: skip
    return Schedule(
        op=np.where(is_backward, Op.B, Op.F).astype(np.int8),
        stage=stage,
        microbatch=(count + first[chain[stage]]).astype(np.int32),
        fused=np.full(len(stage), NONE, dtype=np.int32),
        rank_offsets=offsets,
        stage_to_rank=placement,
        num_microbatches=num_microbatches,
        name=name,
        num_replicas=num_replicas,
    )


def _fill_slots(
    by_rank: Any, rank_begin: Any, depth: Any, share: Any, num_actions: Any,
    row_end: Any, done: Any, chosen: Any, stage: Any, count: Any, is_backward: Any,
) -> None:  # fmt: skip
    """Slot by slot: choose for all ranks, then do it. done[2s], done[2s + 1]: forwards, backwards of stage s."""
    num_ranks = len(rank_begin) - 1
    left = num_actions
    while left > 0:
        for rank in range(num_ranks):
            best, best_count, best_backward = -1, -1, False
            for k in range(rank_begin[rank], rank_begin[rank + 1]):
                s = by_rank[k]
                # What feeds the next backward and the next forward of this stage, and how many of it are done.
                fed_back = done[2 * s] if s % depth == depth - 1 else done[2 * s + 3]
                fed = share[s] if s % depth == 0 else done[2 * s - 2]
                if done[2 * s + 1] < fed_back:
                    if not best_backward or done[2 * s + 1] < best_count:
                        best, best_count, best_backward = s, done[2 * s + 1], True
                elif not best_backward and done[2 * s] < fed and (best == -1 or done[2 * s] < best_count):
                    best, best_count = s, done[2 * s]
            chosen[rank] = -1
            if best != -1:
                chosen[rank] = 2 * best + (1 if best_backward else 0)
        for rank in range(num_ranks):
            one = chosen[rank]
            if one != -1:
                entry = row_end[rank]
                stage[entry] = one // 2
                is_backward[entry] = one % 2
                count[entry] = done[one]
                done[one] += 1
                row_end[rank] += 1
                left -= 1
