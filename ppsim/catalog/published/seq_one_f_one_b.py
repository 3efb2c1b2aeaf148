"""Seq1F1B: 1F1B over slices of each microbatch's sequence, for a k-th of the bubble and less memory.

Sun et al. 2024 (arXiv 2406.03488). Causal attention lets a slice go forward when those before it have, and backward
when those behind it have: backwards run through a microbatch's slices last to first.
"""

from ppsim.catalog.published.rows import full_row, table_of_rows, visits_of_stage
from ppsim.schedule.placement import loop
from ppsim.schedule.table import Schedule


def seq_one_f_one_b(*, num_ranks: int, num_microbatches: int, num_slices: int) -> Schedule:
    """Return the Seq1F1B table of k slices a microbatch; k = 1 is 1F1B. Any number of microbatches is legal."""
    slices = range(num_microbatches * num_slices)
    backwards = [
        microbatch * num_slices + place
        for microbatch in range(num_microbatches)
        for place in reversed(range(num_slices))
    ]
    rows = []
    for rank in range(num_ranks):
        # The ranks after this one, and the slices before the one that goes back first.
        num_warm_up = num_ranks - 1 - rank + num_slices - 1
        visits = visits_of_stage(rank, slices), visits_of_stage(rank, backwards)
        rows.append(full_row(*visits, num_warm_up=num_warm_up))
    return table_of_rows(
        rows, stage_to_rank=loop(num_ranks, num_ranks), num_microbatches=num_microbatches, name="seq1f1b",
        num_slices=num_slices,
    )  # fmt: skip
