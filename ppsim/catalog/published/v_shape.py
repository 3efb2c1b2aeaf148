"""ZB-V: two chunks a rank in a V, so that the loss sits on rank 0 and the last forward is the first backward.

Qi et al. 2024 (arXiv 2401.10241), §6 and Figure 9. The paper writes B for what torch and ppsim call I.
"""

import numpy as np

from ppsim.catalog.published.cell_grid import FREE, NUM_KINDS, table_of
from ppsim.schedule.table import Op, Schedule

_F_DOWN, _F_UP, _I_UP, _I_DOWN, _W_UP, _W_DOWN = range(NUM_KINDS)  # of the stage on the way down the V, and up


def zbv_fixed(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the hand-made ZB-V table: no bubble for F = I = W, with 1F1B's activations on every rank.

    Any number of microbatches is legal: the pattern is laid out for at least 2p−1 and what exceeds m left out.
    """
    laid_out = max(num_microbatches, 2 * num_ranks - 1)
    rows = b"".join(bytes(_row(rank, num_ranks, laid_out)) for rank in range(num_ranks))
    grid = np.frombuffer(rows, dtype=np.uint8).reshape(num_ranks, -1).astype(np.int64)
    for kind in range(NUM_KINDS) if laid_out > num_microbatches else ():
        here = grid == kind
        grid[here & (np.cumsum(here, axis=1) > num_microbatches)] = FREE
    return table_of("zbv-fixed", grid, backward=Op.I)


def _row(rank: int, num_ranks: int, num_microbatches: int) -> list[int]:
    num_below = num_ranks - rank  # itself counted
    # Warm-up: 2p−1 forwards on every rank, of which r (0-based) are of the way up.
    row = [_F_DOWN] * (2 * num_below - 1) + [_F_UP, _F_DOWN] * rank
    # The p−r microbatches on their way up now turn into backwards; then the two chunks alternate.
    row += [_F_UP, _I_UP, _W_UP] * num_below
    num_with_forward = num_microbatches - num_ranks - num_below + 1
    row += [_F_DOWN, _I_DOWN, _W_DOWN, _F_UP, _I_UP, _W_UP] * num_with_forward
    row += [_I_DOWN, _W_DOWN, _F_UP, _I_UP, _W_UP] * (num_below - 1)
    # Cool-down: input gradients first, weight gradients where the rank would wait, the rest at the end.
    row += [_I_DOWN, _I_UP] * rank + [_I_DOWN, _W_DOWN] * num_below
    return row + [_W_UP] * rank + [_W_DOWN] * rank
