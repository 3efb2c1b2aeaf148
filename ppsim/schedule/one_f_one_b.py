"""1F1B: one forward, one backward, as few activations in flight as fill the pipeline.

PipeDream-Flush (Narayanan et al. 2021, arXiv 2006.09503, §3.2), DAPPLE (arXiv 2007.01045).
"""

from ppsim.schedule.placement import loop
from ppsim.schedule.table import Action, Schedule, backward, forward


def one_f_one_b(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the 1F1B table: one stage a rank; rank r holds at most p−r activations.

    Any number of microbatches is legal; fewer than p cut the warm-up short.
    """
    rows = []
    for rank in range(num_ranks):
        num_warm_up = min(num_ranks - 1 - rank, num_microbatches)  # the ranks after this one
        num_steady = num_microbatches - num_warm_up
        row: list[Action] = []
        for microbatch in range(num_warm_up):
            row.append(forward(rank, microbatch))
        for microbatch in range(num_steady):
            row.append(forward(rank, num_warm_up + microbatch))
            row.append(backward(rank, microbatch))
        for microbatch in range(num_steady, num_microbatches):
            row.append(backward(rank, microbatch))
        rows.append(row)
    return Schedule.from_rows(rows, stage_to_rank=loop(num_ranks, num_ranks), name="1f1b")
