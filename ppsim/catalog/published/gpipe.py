"""GPipe: all forwards, then all backwards (Huang et al. 2019, §2.3)."""

from ppsim.schedule.placement import loop
from ppsim.schedule.table import Schedule, backward, forward


def gpipe(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the GPipe table: one stage a rank, backwards in microbatch order as torch runs them.

    Any number of microbatches is legal; every rank holds all m activations at its peak.
    """
    rows = []
    for rank in range(num_ranks):
        forwards = [forward(rank, microbatch) for microbatch in range(num_microbatches)]
        backwards = [backward(rank, microbatch) for microbatch in range(num_microbatches)]
        rows.append(forwards + backwards)
    return Schedule.from_rows(rows, stage_to_rank=loop(num_ranks, num_ranks), name="gpipe")
