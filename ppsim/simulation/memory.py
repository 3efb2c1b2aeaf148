"""Bytes over time: F allocates, B frees all, I frees what only it needed, W the rest."""

from dataclasses import dataclass

import numpy as np

from ppsim.base.arrays import Floats, Ints32
from ppsim.schedule.table import Op, Schedule
from ppsim.simulation.stage_costs import CostArrays


@dataclass(frozen=True)
class Memory:
    """Bytes held on each rank; within a rank memory depends on the order of actions only, not on their times.

    `during` and `after` have one entry an action: activations of its rank from its start to its end, and from
    its end on. `peak_activation_bytes`, `peak_bytes` (with static ones) and `peak_at` (the first action at
    which the peak stands) have one entry a rank.
    """

    during: Floats
    after: Floats
    peak_activation_bytes: Floats
    peak_bytes: Floats
    peak_at: Ints32


def memory_of(schedule: Schedule, costs: CostArrays) -> Memory:
    """Return the bytes that each rank of a compute-only table holds, for costs resolved for that table.

    The split release rule is the zero-bubble paper's (arXiv 2401.10241, Table 1): I frees what W does not need.
    """
    op, stage = schedule.op, schedule.stage
    share = costs.token_shares[schedule.microbatch % schedule.num_slices]
    allocated = np.where(op == Op.F, costs.activation_bytes[stage] * share, 0.0)
    freed = np.select(
        [op == Op.B, op == Op.I, op == Op.W],
        [
            costs.activation_bytes[stage],
            (costs.activation_bytes - costs.kept_bytes)[stage],
            costs.kept_bytes[stage],
        ],
        0.0,
    )
    freed *= share
    during, after = np.zeros(len(op)), np.zeros(len(op))
    peak_at = np.zeros(schedule.num_ranks, dtype=np.int32)
    for rank in range(schedule.num_ranks):
        here = slice(int(schedule.rank_offsets[rank]), int(schedule.rank_offsets[rank + 1]))
        after[here] = np.cumsum(allocated[here] - freed[here])
        during[here] = after[here] + freed[here]
        peak_at[rank] = here.start + int(np.argmax(during[here]))
    return Memory(
        during=during,
        after=after,
        peak_activation_bytes=during[peak_at],
        peak_bytes=during[peak_at] + costs.static_bytes,
        peak_at=peak_at,
    )
