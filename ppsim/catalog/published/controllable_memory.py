"""Patterns in a V: ZB-V, and 1F1B-V, V-Half and V-Min, repeated every 6 cells, with less memory than 1F1B.

Qi et al. 2024 (arXiv 2405.15362), §3 and Appendix A, and the authors' generator. A cell is one unit of time;
microbatch i follows 6·i cells after microbatch 0. If F, I and W differ, a rank takes up to 6·max(F, I, W)
per microbatch, with the times of one chunk. The paper writes B for I.
"""

from itertools import product

import numpy as np

from ppsim.base.arrays import Ints64
from ppsim.catalog.published.cell_grid import (
    FREE,
    NUM_KINDS,
    advance_actions,
    advance_cool_down,
    compact_grid,
    repeat_pattern,
    table_of,
    with_weights,
    without_weights,
)
from ppsim.schedule.table import Op, Schedule

_STEPS = range(1, 6)  # cells between neighbouring ranks


def v_min_fixed(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """At most ⌊(p+4)/3⌋ activations on any rank, a third of 1F1B's."""
    rank = np.arange(num_ranks)
    gap = 2 if num_ranks % 3 == 0 else 0  # so that two passes of a rank never share a cell
    starts = np.array([
        rank,  # F on the way down
        2 * num_ranks - 1 - rank,  # F on the way up
        2 * num_ranks + gap + rank,  # I on the way up, from rank 0 on
        4 * num_ranks + gap - 1 - rank,  # I on the way down, from rank p − 1 back
    ])  # fmt: skip
    return from_block("v-min-fixed", starts, num_microbatches)


def v_half_fixed(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """At most ⌊(p+2)/2⌋ activations on any rank, half of 1F1B's."""
    rank = np.arange(num_ranks)
    gap = 3 if num_ranks % 2 == 0 else 0  # so that two passes of a rank never share a cell
    starts = np.array([
        2 * rank,  # F on the way down, with one cell between ranks
        3 * num_ranks - 2 - rank,  # F on the way up
        3 * num_ranks + gap - 1 + 2 * rank,  # I on the way up, from rank 0 on
        6 * num_ranks + gap - 2 - rank,  # I on the way down, from rank p − 1 back
    ])  # fmt: skip
    return from_block("v-half-fixed", starts, num_microbatches)


def one_f_one_b_v(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Full backwards, and two thirds of 1F1B's activation memory."""
    rank = np.arange(num_ranks)
    hop = np.arange(2 * num_ranks)  # positions along the V
    gap = 3 if num_ranks % 3 == 0 else 0
    # Three backwards of two cells fill the 6 cells of a repeat, so every third position skips three cells.
    num_skips = (hop + (1 - num_ranks) % 3) // 3
    backward = 2 * num_ranks + gap + 2 * hop + 3 * num_skips
    starts = np.array([
        rank,
        2 * num_ranks - 1 - rank,
        backward[:num_ranks],
        backward[:num_ranks - 1:-1],
    ])  # fmt: skip
    grid = repeat_pattern(starts, num_microbatches, backward_cells=2)
    return table_of("1f1b-v", advance_actions(grid, num_microbatches, backward_cells=2), backward=Op.B)


def building_blocks(num_ranks: int) -> list[Ints64]:
    """Return all 6-cell patterns whose actions occupy different cells on every rank, shortest lifetime first.

    Each pattern is an array [4, ranks] of the cells in which microbatch 0 starts: F down, F up, I on the way up, I
    on the way down. From some rank on, actions may follow without a pause (arXiv 2405.15362, App. A).
    """
    rank = np.arange(num_ranks)
    turns = np.array(list(product(range(1, 7), repeat=3)))
    blocks: list[Ints64] = []
    for paused, down, up in product(sorted({num_ranks, num_ranks // 2, num_ranks // 4} - {0}), _STEPS, _STEPS):
        if paused < num_ranks and down == up == 1:
            continue  # same as without a pause
        on_way_down = np.concatenate(([0], np.cumsum(np.where(rank < paused, down, 1))[:-1]))
        on_way_up = np.concatenate(([0], np.cumsum(np.where(rank < paused, up, 1)[-2::-1])))[::-1]
        ways = np.stack([on_way_down, on_way_up, on_way_down, on_way_up])
        passed = np.cumsum(turns + ways[:3].max(axis=1), axis=1)
        starts = ways + np.pad(passed, ((0, 0), (1, 0)))[:, :, None]  # [turns, passes, ranks]
        are_apart = (np.diff(np.sort(starts % 6, axis=1), axis=1) > 0).all(axis=(1, 2))
        blocks.extend(starts[are_apart])
    return sorted(blocks, key=lambda starts: int((starts[3] - starts[0] + starts[2] - starts[1]).max()))


def from_block(name: str, starts: Ints64, num_microbatches: int, *, are_weights_in_order: bool = True) -> Schedule:
    """Warm-up and cool-down start earlier if peak memory does not grow."""
    grid = with_weights(repeat_pattern(starts, num_microbatches))
    grid = advance_actions(grid, num_microbatches, are_weights_in_order=are_weights_in_order)
    grid = compact_grid(grid, num_microbatches)
    # Compact the end again, with the weight gradients placed last, in any free cell.
    grid = advance_cool_down(without_weights(grid), num_microbatches)
    grid = compact_grid(with_weights(grid), num_microbatches)
    return table_of(name, with_weights(without_weights(grid)), backward=Op.I)


_F_DOWN, _F_UP, _I_UP, _I_DOWN, _W_UP, _W_DOWN = range(NUM_KINDS)  # down and up: stages on the two legs of the V


def zbv_fixed(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """ZB-V (Qi et al. 2024, arXiv 2401.10241, §6 and Figure 9), with the memory of 1F1B.

    Build the pattern for at least 2p−1 microbatches, and remove those beyond m.
    """
    laid_out = max(num_microbatches, 2 * num_ranks - 1)
    rows = b"".join(bytes(_row(rank, num_ranks, laid_out)) for rank in range(num_ranks))
    grid = np.frombuffer(rows, dtype=np.uint8).reshape(num_ranks, -1).astype(np.int64)
    for kind in range(NUM_KINDS) if laid_out > num_microbatches else ():
        here = grid == kind
        grid[here & (np.cumsum(here, axis=1) > num_microbatches)] = FREE
    return table_of("zbv-fixed", grid, backward=Op.I)


def _row(rank: int, num_ranks: int, num_microbatches: int) -> list[int]:
    num_below = num_ranks - rank  # including itself
    # warm-up: 2p−1 forwards on every rank
    row = [_F_DOWN] * (2 * num_below - 1) + [_F_UP, _F_DOWN] * rank
    # Each of the p−r microbatches on the way up gets its forward and backward; then the two chunks alternate.
    row += [_F_UP, _I_UP, _W_UP] * num_below
    num_with_forward = num_microbatches - num_ranks - num_below + 1
    row += [_F_DOWN, _I_DOWN, _W_DOWN, _F_UP, _I_UP, _W_UP] * num_with_forward
    row += [_I_DOWN, _W_DOWN, _F_UP, _I_UP, _W_UP] * (num_below - 1)
    # cool-down: weight gradients fill the gaps
    row += [_I_DOWN, _I_UP] * rank + [_I_DOWN, _W_DOWN] * num_below
    return row + [_W_UP] * rank + [_W_DOWN] * rank
