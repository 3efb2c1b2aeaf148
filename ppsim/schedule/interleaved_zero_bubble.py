"""Interleaved ZB-H1: v stages a rank, looped, the backward pass split and weight gradients put off.

torch's `ScheduleInterleavedZeroBubble`: ZB-H1 (Qi et al. 2024, arXiv 2401.10241, §2.1) on the placement and in the
groups of interleaved 1F1B (Narayanan et al. 2021, arXiv 2104.04473, §2.2).
"""

from ppsim.schedule.interleaved import smallest_group_size
from ppsim.schedule.placement import loop
from ppsim.schedule.table import Action, Schedule, backward_input, backward_weight, forward


def interleaved_zero_bubble(*, num_ranks: int, vpp: int, num_microbatches: int) -> Schedule:
    """Return the interleaved zero-bubble table: `vpp` stages a rank, stage s on rank s mod p.

    Groups are those of interleaved 1F1B: p microbatches where p divides m. Any number of microbatches is legal;
    torch takes only those that split into m div p equal groups, and there the tables are equal.
    """
    group_size = smallest_group_size(num_ranks, num_microbatches)
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
        backwards = [((vpp - 1 - chunk) * num_ranks + rank, microbatch) for chunk, microbatch in order]
        # A group passes all chunks but the last, then each rank below once: as in ZB-H1, half of interleaved 1F1B.
        num_warm_up = min((vpp - 1) * group_size + num_ranks - 1 - rank, len(order))
        num_put_off = rank  # weight gradients wait, so that the input gradients reach the ranks above sooner
        row: list[Action] = forwards[:num_warm_up]
        for k, (stage, microbatch) in enumerate(backwards):
            row += forwards[num_warm_up + k : num_warm_up + k + 1]  # none is left in the cool-down
            row.append(backward_input(stage, microbatch))
            if k >= num_put_off:
                row.append(backward_weight(*backwards[k - num_put_off]))
        num_done = max(len(order) - num_put_off, 0)
        row += [backward_weight(*later) for later in backwards[num_done:]]
        rows.append(row)
    return Schedule.from_rows(rows, stage_to_rank=loop(num_ranks, num_ranks * vpp), name="interleaved-zb")
