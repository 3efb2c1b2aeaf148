"""Hanayo: v stages a rank in v/2 waves, down and up the ranks; each wave shortens the bubble, no weights doubled.

Liu et al. 2023 (SC'23, "Hanayo: Harnessing Wave-like Pipeline Parallelism", arXiv 2308.15762).
"""

from ppsim.catalog.published.greedy import greedy
from ppsim.schedule.placement import v_shape
from ppsim.schedule.table import Schedule


def hanayo(*, num_ranks: int, vpp: int, num_microbatches: int) -> Schedule:
    """Return the table of v/2 waves; v is even.

    Stages zigzag over the ranks and full backwards are run as soon as they can be: greedy list scheduling at equal
    F and B, which is how the abstract describes it. The bubble formula of the catalogue is that of this table; the
    paper's own table of bubbles has not been checked. Where B is longer than F the table is the same and idles
    longer than a greedy one for those costs might.
    """
    return greedy(
        stage_to_rank=v_shape(num_ranks, vpp * num_ranks), num_microbatches=num_microbatches, name="hanayo"
    )
