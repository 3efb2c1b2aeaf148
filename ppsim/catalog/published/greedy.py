"""Greedy list scheduling for any placement and number of chains.

Chimera (Li and Hoefler 2021, arXiv 2107.06925) merges two chains of stages in opposite directions, each with half
of the microbatches in 1F1B. Hanayo (Liu et al. 2023, SC'23, arXiv 2308.15762) places v stages per rank in v/2
waves.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ppsim.base.numba_jit import Engine, run_kernel
from ppsim.schedule.placement import v_shape
from ppsim.schedule.table import NONE, Op, Schedule


def chimera(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Chain 0 runs down the ranks, chain 1 back up; needs an even p and an even m.

    For m = p the bubble and the memory are those in the paper. For larger multiples of p, the paper concatenates
    units of p microbatches. At F = B the bubble here is the same, and the memory is not larger. The order has not
    been compared with the paper's figures. Forward doubling and backward halving, the paper's remedies for B = 2F,
    are not implemented.
    """
    placement = v_shape(num_ranks, 2 * num_ranks)
    return greedy(stage_to_rank=placement, num_microbatches=num_microbatches, num_replicas=2, name="chimera")


def hanayo(*, num_ranks: int, vpp: int, num_microbatches: int) -> Schedule:
    """Needs an even v.

    This is list scheduling with F = B, as in the paper's abstract; the paper's table of bubbles has not been
    checked. For B longer than F, a greedy table for those costs may idle less.
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
    """Let each rank, in each time slot, run the first ready action.

    A forward and a full backward take one slot each. Priorities: backwards before forwards, then the earliest
    microbatch of the chain, then the latest model stage, then the first chain. `stage_to_rank` has one entry per
    stage, chain after chain.

    Memory is not bounded. Waves, and two opposite chains on an even number of ranks, held at most p microbatches
    per rank in our tests. A chain with one stage per rank gives eager 1F1B.

    >>> [str(action) for action in greedy(stage_to_rank=[0, 1], num_microbatches=2)]
    ['0F0', '0F1', '0B0', '0B1', '1F0', '1B0', '1F1', '1B1']
    """
    placement = np.array(stage_to_rank, dtype=np.int32)
    num_stages, num_ranks = len(placement), int(placement.max()) + 1
    depth = num_stages // num_replicas
    chain = np.arange(num_stages) // depth
    first = -(-np.arange(num_replicas + 1) * num_microbatches // num_replicas)  # first microbatch of each chain
    share = np.diff(first)[chain]

    by_rank = np.lexsort((chain, -(np.arange(num_stages) % depth), placement))  # order of ties
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
    return Schedule.from_columns(
        np.where(is_backward, Op.B, Op.F), stage, count + first[chain[stage]], None, offsets,
        stage_to_rank=placement, num_microbatches=num_microbatches, name=name, num_replicas=num_replicas,
    )  # fmt: skip


def _fill_slots(
    by_rank: Any, rank_begin: Any, depth: Any, share: Any, num_actions: Any,
    row_end: Any, done: Any, chosen: Any, stage: Any, count: Any, is_backward: Any,
) -> None:  # fmt: skip
    """done[2s] and done[2s + 1] count the forwards and backwards of stage s."""
    num_ranks = len(rank_begin) - 1
    left = num_actions
    while left > 0:
        for rank in range(num_ranks):
            best, best_count, best_backward = -1, -1, False
            for k in range(rank_begin[rank], rank_begin[rank + 1]):
                s = by_rank[k]
                # inputs available to this stage's backwards and forwards
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
