"""Eager 1F1B: the forwards run twice as far ahead as in 1F1B, so that transfers hide behind them.

Zhuang et al. 2023; drawn in Qi et al. 2024 (arXiv 2405.15362), Figure 1b.
"""

from ppsim.catalog.published.rows import full_row, table_of_rows, visits_of_stage
from ppsim.schedule.placement import loop
from ppsim.schedule.table import Schedule


def eager_one_f_one_b(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the eager 1F1B table: one stage a rank; rank r holds at most 2(p−r)−1 activations.

    Any number of microbatches is legal; fewer than 2p−1 cut the warm-up short.
    """
    rows = []
    for rank in range(num_ranks):
        visits = visits_of_stage(rank, range(num_microbatches))
        num_warm_up = 2 * (num_ranks - 1 - rank)  # a round trip to the last rank
        rows.append(full_row(visits, visits, num_warm_up=num_warm_up))
    return table_of_rows(rows, stage_to_rank=loop(num_ranks, num_ranks), name="eager-1f1b")
