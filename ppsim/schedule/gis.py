"""GIS and GIS-H: interleaved with a split backward and fewer microbatches in flight.

PipeOffload (arXiv 2503.01328), Table 1. Each W follows its I at once, so that the memory
is free before the next forward.
"""

from ppsim.schedule.interleaved import smallest_group_size
from ppsim.schedule.placement import loop
from ppsim.schedule.table import Action, Schedule, backward_input, backward_weight, forward


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
    # The order in which every rank meets (chunk, microbatch); backwards meet the chunks in reverse.
    order = [
        (chunk, microbatch)
        for first in range(0, num_microbatches, group_size)
        for chunk in range(vpp)
        for microbatch in range(first, min(first + group_size, num_microbatches))
    ]
    rows = []
    for rank in range(num_ranks):
        forwards = [forward(chunk * num_ranks + rank, microbatch) for chunk, microbatch in order]
        # A group passes all chunks but the last, then each rank below once.
        num_warm_up = min((vpp - 1) * group_size + num_ranks - 1 - rank, len(order))
        row: list[Action] = forwards[:num_warm_up]
        for k, (chunk, microbatch) in enumerate(order):
            stage = (vpp - 1 - chunk) * num_ranks + rank
            row += forwards[num_warm_up + k : num_warm_up + k + 1]  # none is left in the cool-down
            row += [backward_input(stage, microbatch), backward_weight(stage, microbatch)]
        rows.append(row)
    return Schedule.from_rows(rows, stage_to_rank=loop(num_ranks, num_ranks * vpp), name=name)
