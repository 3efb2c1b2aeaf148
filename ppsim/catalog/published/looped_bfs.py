"""Looped BFS: v stages a rank, looped, breadth first: every microbatch through one chunk before the next chunk.

Lamy-Poirier, MLSys 2023. The backwards run in the reverse of the forwards' order, as in torch.
"""

import numpy as np

from ppsim.catalog.published.rows import full_row, table_of_rows, visits_of_stage
from ppsim.schedule.placement import loop
from ppsim.schedule.table import Schedule


def looped_bfs(*, num_ranks: int, vpp: int, num_microbatches: int) -> Schedule:
    """Return the looped BFS table: `vpp` stages a rank, stage s on rank s mod p.

    Any number of microbatches is legal; every rank holds all of them at its peak. A chunk's gradients are
    complete after one run of m backwards, so that their reduction overlaps with the chunks still to come.
    """
    rows = []
    for rank in range(num_ranks):
        stages = range(rank, num_ranks * vpp, num_ranks)
        forwards = np.hstack([visits_of_stage(stage, range(num_microbatches)) for stage in stages])
        rows.append(full_row(forwards, forwards[:, ::-1], num_warm_up=vpp * num_microbatches))
    return table_of_rows(rows, stage_to_rank=loop(num_ranks, num_ranks * vpp), name="looped-bfs")
