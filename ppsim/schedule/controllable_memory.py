"""1F1B-V, V-Half and V-Min: a pattern in a V, repeated every 6 cells, that holds less memory than 1F1B.

Qi et al. 2024 (arXiv 2405.15362), §3 and Appendix A, and the authors' generator. A cell is one unit of time. The
pattern says in which cell each rank starts the passes of microbatch 0; microbatch i follows 6·i cells later. How
long a microbatch lives in the pattern decides the peak. Passes before and after the steady state are then moved
ahead where the peak does not grow. Measured costs are not looked at: where F, I and W differ, a rank takes up to
6·max(F, I, W) of a chunk for each microbatch. The paper writes B for what torch and ppsim call I.
"""

import numpy as np

from ppsim.schedule.cell_grid import (
    Ints,
    drained,
    moved_ahead,
    repeated,
    squeezed,
    table_of,
    with_weights,
    without_weights,
)
from ppsim.schedule.table import Op, Schedule


def v_min(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the V-Min table: a third of 1F1B's activations, ⌊(p+4)/3⌋ on the fullest rank.

    Any number of microbatches is legal.
    """
    rank = np.arange(num_ranks)
    gap = 2 if num_ranks % 3 == 0 else 0  # lest two passes of a rank fall into one cell
    starts = np.array([
        rank,  # F down the ranks
        2 * num_ranks - 1 - rank,  # F up
        2 * num_ranks + gap + rank,  # I of the way up, down the ranks
        4 * num_ranks + gap - 1 - rank,  # I of the way down
    ])  # fmt: skip
    return _split_backward("v-min", starts, num_microbatches)


def v_half(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the V-Half table: half of 1F1B's activations, ⌊(p+2)/2⌋ on the fullest rank.

    Any number of microbatches is legal.
    """
    rank = np.arange(num_ranks)
    gap = 3 if num_ranks % 2 == 0 else 0  # lest two passes of a rank fall into one cell
    starts = np.array([
        2 * rank,  # F down the ranks, one cell after each
        3 * num_ranks - 2 - rank,  # F up
        3 * num_ranks + gap - 1 + 2 * rank,  # I of the way up, down the ranks
        6 * num_ranks + gap - 2 - rank,  # I of the way down
    ])  # fmt: skip
    return _split_backward("v-half", starts, num_microbatches)


def one_f_one_b_v(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the 1F1B-V table: full backwards, which take two cells, and two thirds of 1F1B's activations.

    Any number of microbatches is legal.
    """
    rank = np.arange(num_ranks)
    hop = np.arange(2 * num_ranks)  # down the ranks and up again
    gap = 3 if num_ranks % 3 == 0 else 0
    # Three backwards of two cells fill the 6 of a repeat, so that every third hop has to leave three cells out.
    num_skips = (hop + (1 - num_ranks) % 3) // 3
    backward = 2 * num_ranks + gap + 2 * hop + 3 * num_skips
    starts = np.array([
        rank,
        2 * num_ranks - 1 - rank,
        backward[:num_ranks],
        backward[:num_ranks - 1:-1],
    ])  # fmt: skip
    grid = repeated(starts, num_microbatches, backward_cells=2)
    return table_of("1f1b-v", moved_ahead(grid, num_microbatches, backward_cells=2), backward=Op.B)


def _split_backward(name: str, starts: Ints, num_microbatches: int) -> Schedule:
    grid = with_weights(repeated(starts, num_microbatches))
    grid = squeezed(moved_ahead(grid, num_microbatches), num_microbatches)
    # The end once more, now with the weight gradients wherever they fit; they are placed last.
    grid = drained(without_weights(grid), num_microbatches)
    grid = squeezed(with_weights(grid), num_microbatches)
    return table_of(name, with_weights(without_weights(grid)), backward=Op.I)
