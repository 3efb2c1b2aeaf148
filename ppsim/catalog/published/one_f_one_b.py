"""1F1B, eager 1F1B, ZB-H1 and ZB-H2: one stage a rank, and after a warm-up forwards and backwards by turns.

1F1B: PipeDream-Flush (Narayanan et al. 2021, arXiv 2006.09503, §3.2), DAPPLE (arXiv 2007.01045). Eager: Zhuang et
al. 2023; drawn in Qi et al. 2024 (arXiv 2405.15362), Figure 1b. ZB-H1 and ZB-H2: Qi et al. 2024 (arXiv 2401.10241),
§2.1 and §2.2, which writes B for what torch and ppsim call I.
"""

from ppsim.catalog.published.rows import full_row, split_row, table_of_rows, visits_of_stage
from ppsim.schedule.placement import loop
from ppsim.schedule.table import Schedule


def one_f_one_b(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the 1F1B table: as few activations in flight as fill the pipeline, at most p−r on rank r.

    Any number of microbatches is legal; fewer than p cut the warm-up short.
    """
    return _with_full_backwards("1f1b", num_ranks, num_microbatches, ahead=1)  # by the ranks after each


def eager_one_f_one_b(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the eager 1F1B table: forwards run twice as far ahead, so that transfers hide behind them.

    Rank r holds at most 2(p−r)−1 activations. Any number of microbatches is legal; fewer than 2p−1 cut the warm-up
    short.
    """
    return _with_full_backwards("eager-1f1b", num_ranks, num_microbatches, ahead=2)  # a round trip to the last


def zb_h1(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the ZB-H1 table: the bubble of 1F1B cut to a third at 1F1B's peak memory.

    Any number of microbatches is legal; fewer than p cut the warm-up short.
    """
    # Rank r puts its weight gradients off by r microbatches: the later the rank, the longer its cool-down.
    return _with_split_backwards("zb-h1", num_ranks, num_microbatches, ahead=1)


def zb_h2(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the ZB-H2 table: no bubble within a rank's own span, at twice the activations of 1F1B.

    Any number of microbatches is legal; the closed form needs m ≥ 2p−1.
    """
    return _with_split_backwards("zb-h2", num_ranks, num_microbatches, ahead=2)


def _with_full_backwards(name: str, num_ranks: int, num_microbatches: int, *, ahead: int) -> Schedule:
    rows = []
    for rank in range(num_ranks):
        visits = visits_of_stage(rank, range(num_microbatches))
        rows.append(full_row(visits, visits, num_warm_up=ahead * (num_ranks - 1 - rank)))
    return table_of_rows(rows, stage_to_rank=loop(num_ranks, num_ranks), name=name)


def _with_split_backwards(name: str, num_ranks: int, num_microbatches: int, *, ahead: int) -> Schedule:
    rows = []
    for rank in range(num_ranks):
        visits = visits_of_stage(rank, range(num_microbatches))
        num_warm_up, num_put_off = ahead * (num_ranks - 1 - rank), ahead * rank
        rows.append(split_row(visits, visits, num_warm_up=num_warm_up, num_put_off=num_put_off))
    return table_of_rows(rows, stage_to_rank=loop(num_ranks, num_ranks), name=name)
