"""ZB-H1 and ZB-H2: the backward pass split, weight gradients put off to fill the bubble.

Qi et al. 2024 (arXiv 2401.10241), §2.1 and §2.2. The paper writes B for what torch and ppsim call I.
"""

from ppsim.schedule.placement import loop
from ppsim.schedule.table import Action, Schedule, backward_input, backward_weight, forward


def zb_h1(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the ZB-H1 table: the bubble of 1F1B cut to a third at 1F1B's peak memory.

    Any number of microbatches is legal; fewer than p cut the warm-up short.
    """
    rows = [
        # Rank r puts its weight gradients off by r microbatches: the later the rank, the longer its cool-down.
        _row(rank, num_microbatches, num_warm_up=num_ranks - 1 - rank, num_put_off=rank)
        for rank in range(num_ranks)
    ]
    return Schedule.from_rows(rows, stage_to_rank=loop(num_ranks, num_ranks), name="zb-h1")


def zb_h2(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the ZB-H2 table: no bubble within a rank's own span, at twice the activations of 1F1B.

    Any number of microbatches is legal; the closed form needs m ≥ 2p−1.
    """
    rows = [
        _row(rank, num_microbatches, num_warm_up=2 * (num_ranks - 1 - rank), num_put_off=2 * rank)
        for rank in range(num_ranks)
    ]
    return Schedule.from_rows(rows, stage_to_rank=loop(num_ranks, num_ranks), name="zb-h2")


def _row(rank: int, num_microbatches: int, *, num_warm_up: int, num_put_off: int) -> list[Action]:
    num_warm_up = min(num_warm_up, num_microbatches)
    forwards = [forward(rank, microbatch) for microbatch in range(num_microbatches)]
    weights = [backward_weight(rank, microbatch) for microbatch in range(num_microbatches)]
    row = forwards[:num_warm_up]
    for microbatch in range(num_microbatches):
        row += forwards[num_warm_up + microbatch : num_warm_up + microbatch + 1]  # none is left in the cool-down
        row.append(backward_input(rank, microbatch))
        if microbatch >= num_put_off:
            row.append(weights[microbatch - num_put_off])
    num_done = max(num_microbatches - num_put_off, 0)
    return row + weights[num_done:]
