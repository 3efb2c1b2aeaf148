"""1F1B: one forward, one backward, as few activations in flight as fill the pipeline.

PipeDream-Flush (Narayanan et al. 2021, arXiv 2006.09503, §3.2), DAPPLE (arXiv 2007.01045).
"""

from ppsim.catalog.published.rows import full_row, table_of_rows, visits_of_stage
from ppsim.schedule.placement import loop
from ppsim.schedule.table import Schedule


def one_f_one_b(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the 1F1B table: one stage a rank; rank r holds at most p−r activations.

    Any number of microbatches is legal; fewer than p cut the warm-up short.
    """
    rows = []
    for rank in range(num_ranks):
        visits = visits_of_stage(rank, range(num_microbatches))
        num_warm_up = num_ranks - 1 - rank  # the ranks after this one
        rows.append(full_row(visits, visits, num_warm_up=num_warm_up))
    return table_of_rows(rows, stage_to_rank=loop(num_ranks, num_ranks), name="1f1b")
