"""ZB-H1 and ZB-H2: the backward pass split, weight gradients put off to fill the bubble.

Qi et al. 2024 (arXiv 2401.10241), §2.1 and §2.2. The paper writes B for what torch and ppsim call I.
"""

from ppsim.catalog.published.rows import split_row, table_of_rows, visits_of_stage
from ppsim.schedule.placement import loop
from ppsim.schedule.table import Schedule


def zb_h1(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the ZB-H1 table: the bubble of 1F1B cut to a third at 1F1B's peak memory.

    Any number of microbatches is legal; fewer than p cut the warm-up short.
    """
    # Rank r puts its weight gradients off by r microbatches: the later the rank, the longer its cool-down.
    return _table("zb-h1", num_ranks, num_microbatches, ahead=1)


def zb_h2(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the ZB-H2 table: no bubble within a rank's own span, at twice the activations of 1F1B.

    Any number of microbatches is legal; the closed form needs m ≥ 2p−1.
    """
    return _table("zb-h2", num_ranks, num_microbatches, ahead=2)


def _table(name: str, num_ranks: int, num_microbatches: int, *, ahead: int) -> Schedule:
    rows = []
    for rank in range(num_ranks):
        visits = visits_of_stage(rank, range(num_microbatches))
        num_warm_up, num_put_off = ahead * (num_ranks - 1 - rank), ahead * rank
        rows.append(split_row(visits, visits, num_warm_up=num_warm_up, num_put_off=num_put_off))
    return table_of_rows(rows, stage_to_rank=loop(num_ranks, num_ranks), name=name)
