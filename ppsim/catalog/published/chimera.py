"""Chimera: two chains of stages in opposite directions, so that one fills the other's bubbles.

Li and Hoefler 2021 (arXiv 2107.06925). Every rank holds two stages, one of each direction, and each direction runs
half of the microbatches as 1F1B does.
"""

from ppsim.catalog.published.greedy import greedy
from ppsim.schedule.placement import v_shape
from ppsim.schedule.table import Schedule


def chimera(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return Chimera's table: chain 0 down the ranks, chain 1 back up; needs an even p and an even m.

    The merge of the two directions is greedy list scheduling at equal F and B. For m = p that has the bubble and
    the memory that the paper states. For m > p the paper concatenates units of p microbatches; the merge goes on
    instead, which for multiples of p has the bubble of concatenated units at F = B and holds no more. That it is
    the paper's very order has not been checked against its figures. Forward doubling and backward halving, the
    paper's remedies where B = 2F, are not here.
    """
    return greedy(
        stage_to_rank=v_shape(num_ranks, 2 * num_ranks), num_microbatches=num_microbatches, num_replicas=2,
        name="chimera",
    )  # fmt: skip
