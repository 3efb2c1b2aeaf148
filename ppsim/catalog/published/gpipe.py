"""GPipe: all forwards, then all backwards (Huang et al. 2019, §2.3)."""

from ppsim.catalog.published.rows import full_row, table_of_rows, visits_of_stage
from ppsim.schedule.placement import loop
from ppsim.schedule.table import Schedule


def gpipe(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the GPipe table: one stage a rank, backwards in microbatch order as torch runs them.

    Any number of microbatches is legal; every rank holds all m activations at its peak.
    """
    rows = []
    for rank in range(num_ranks):
        visits = visits_of_stage(rank, range(num_microbatches))
        rows.append(full_row(visits, visits, num_warm_up=num_microbatches))
    return table_of_rows(rows, stage_to_rank=loop(num_ranks, num_ranks), name="gpipe")
