"""Interleaved ZB-H1: v stages a rank, looped, the backward pass split and weight gradients put off.

torch's `ScheduleInterleavedZeroBubble`: ZB-H1 (Qi et al. 2024, arXiv 2401.10241, §2.1) on the placement and in the
groups of interleaved 1F1B (Narayanan et al. 2021, arXiv 2104.04473, §2.2).
"""

from ppsim.catalog.published.interleaved import smallest_group_size
from ppsim.catalog.published.rows import split_row, table_of_rows, visits_in_groups
from ppsim.schedule.placement import loop
from ppsim.schedule.table import Schedule


def interleaved_zero_bubble(*, num_ranks: int, vpp: int, num_microbatches: int) -> Schedule:
    """Return the interleaved zero-bubble table: `vpp` stages a rank, stage s on rank s mod p.

    Groups are those of interleaved 1F1B: p microbatches where p divides m. Any number of microbatches is legal;
    torch takes only those that split into m div p equal groups, and there the tables are equal.
    """
    group_size = smallest_group_size(num_ranks, num_microbatches)
    rows = []
    groups = visits_in_groups(num_ranks, vpp, num_microbatches, group_size)
    for rank, (forwards, backwards) in enumerate(groups):
        # A group passes all chunks but the last, then each rank below once: as in ZB-H1, half of interleaved 1F1B.
        num_warm_up = (vpp - 1) * group_size + num_ranks - 1 - rank
        num_put_off = rank  # weight gradients wait, so that the input gradients reach the ranks above sooner
        rows.append(split_row(forwards, backwards, num_warm_up=num_warm_up, num_put_off=num_put_off))
    return table_of_rows(rows, stage_to_rank=loop(num_ranks, num_ranks * vpp), name="interleaved-zb")
