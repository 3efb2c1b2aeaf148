"""Eager 1F1B: the forwards run twice as far ahead as in 1F1B, so that transfers hide behind them.

Zhuang et al. 2023; drawn in Qi et al. 2024 (arXiv 2405.15362), Figure 1b.
"""

from ppsim.schedule.placement import loop
from ppsim.schedule.table import Action, Schedule, backward, forward


def eager_one_f_one_b(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the eager 1F1B table: one stage a rank; rank r holds at most 2(p−r)−1 activations.

    Any number of microbatches is legal; fewer than 2p−1 cut the warm-up short.
    """
    rows = []
    for rank in range(num_ranks):
        num_warm_up = min(2 * (num_ranks - 1 - rank), num_microbatches)  # a round trip to the last rank
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
    return Schedule.from_rows(rows, stage_to_rank=loop(num_ranks, num_ranks), name="eager-1f1b")
