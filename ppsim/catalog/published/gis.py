"""GIS and GIS-H: interleaved with a split backward and fewer microbatches in flight.

PipeOffload (arXiv 2503.01328), Table 1. Each W follows its I at once, so that the memory
is free before the next forward.
"""

from ppsim.catalog.published.interleaved import smallest_group_size
from ppsim.catalog.published.rows import split_row, table_of_rows, visits_in_groups
from ppsim.schedule.placement import loop
from ppsim.schedule.table import Schedule


def gis(*, num_ranks: int, vpp: int, num_microbatches: int) -> Schedule:
    """Return the GIS table: interleaved, with the activations of 1F1B.

    Any number of microbatches is legal; groups are those of interleaved 1F1B.
    """
    group_size = smallest_group_size(num_ranks, num_microbatches)
    return _table("gis", num_ranks, vpp, num_microbatches, group_size)


def gis_h(*, num_ranks: int, vpp: int, num_microbatches: int) -> Schedule:
    """Return the GIS-H table: groups of half as many microbatches, and little more than half the activations.

    Any number of microbatches is legal; the groups are as small as ⌈p/2⌉ allows.
    """
    group_size = smallest_group_size((num_ranks + 1) // 2, num_microbatches)
    return _table("gis-h", num_ranks, vpp, num_microbatches, group_size)


def _table(name: str, num_ranks: int, vpp: int, num_microbatches: int, group_size: int) -> Schedule:
    rows = []
    groups = visits_in_groups(num_ranks, vpp, num_microbatches, group_size)
    for rank, (forwards, backwards) in enumerate(groups):
        # A group passes all chunks but the last, then each rank below once.
        num_warm_up = (vpp - 1) * group_size + num_ranks - 1 - rank
        rows.append(split_row(forwards, backwards, num_warm_up=num_warm_up))
    return table_of_rows(rows, stage_to_rank=loop(num_ranks, num_ranks * vpp), name=name)
