"""ZB-V: two chunks per rank in a V; rank 0 has the loss.

Qi et al. 2024 (arXiv 2401.10241), §6 and Figure 9. The paper writes B for I.
"""

import numpy as np

from ppsim.catalog.published.cell_grid import FREE, NUM_KINDS, table_of
from ppsim.schedule.table import Op, Schedule

_F_DOWN, _F_UP, _I_UP, _I_DOWN, _W_UP, _W_DOWN = range(NUM_KINDS)  # down and up: stages on the two legs of the V


def zbv_fixed(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Build the pattern for at least 2p−1 microbatches, and remove those beyond m."""
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
