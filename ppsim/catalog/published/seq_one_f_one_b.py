"""Seq1F1B: 1F1B over slices of each microbatch's sequence, for a k-th of the bubble and less memory.

Sun et al. 2024 (arXiv 2406.03488). Causal attention lets a slice go forward when those before it have, and backward
when those behind it have: backwards run through a microbatch's slices last to first.
"""

from ppsim.schedule.placement import loop
from ppsim.schedule.table import Action, Schedule, backward, forward


def seq_one_f_one_b(*, num_ranks: int, num_microbatches: int, num_slices: int) -> Schedule:
    """Return the Seq1F1B table of k slices a microbatch; k = 1 is 1F1B. Any number of microbatches is legal."""
    num_units = num_microbatches * num_slices
    forwards = range(num_units)
    backwards = [
        microbatch * num_slices + place
        for microbatch in range(num_microbatches)
        for place in reversed(range(num_slices))
    ]
    rows = []
    for rank in range(num_ranks):
        # The ranks after this one, and the slices before the one that goes back first.
        num_warm_up = min(num_ranks - 1 - rank + num_slices - 1, num_units)
        num_steady = num_units - num_warm_up
        row: list[Action] = []
        for unit in forwards[:num_warm_up]:
            row.append(forward(rank, unit))
        for step in range(num_steady):
            row.append(forward(rank, forwards[num_warm_up + step]))
            row.append(backward(rank, backwards[step]))
        for unit in backwards[num_steady:]:
            row.append(backward(rank, unit))
        rows.append(row)
    return Schedule.from_rows(
        rows, stage_to_rank=loop(num_ranks, num_ranks), num_microbatches=num_microbatches, name="seq1f1b",
        num_slices=num_slices,
    )  # fmt: skip
