"""Bytes over time: F allocates, B frees all, I frees what only it needed, W the rest."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats, Ints32, Ints64
from ppsim.schedule.pairs import fused_pairs
from ppsim.schedule.table import Schedule
from ppsim.simulation.cost_arrays import CostArrays


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


_WHOLE = np.array([1, -1, -1, 0])  # F, B, I, W
_KEPT = np.array([0, 0, 1, -1])


def changes(op: NDArray[np.int8], activation: Floats, kept: Floats) -> Floats:
    """Return what actions add to their ranks' memory where F allocates `activation` and I keeps `kept` of it.

    The split release rule is the zero-bubble paper's (arXiv 2401.10241, Table 1): I frees what W does not need.
    """
    added: Floats = _WHOLE[op] * activation + _KEPT[op] * kept
    return added


def summed_by_rank(added: Floats, rank_offsets: Ints64) -> Floats:
    """Return what each rank holds after each action; rank r's are `rank_offsets[r]:rank_offsets[r + 1]`."""
    after = np.empty(len(added))
    for begin, end in pairwise(rank_offsets.tolist()):
        np.cumsum(added[begin:end], out=after[begin:end])
    return after


def held(
    schedule: Schedule, activation: Floats, kept: Floats, share: Floats | float = 1.0
) -> tuple[Floats, Floats]:
    """Return what each rank of a compute-only table holds during and after each action.

    What F allocates and I keeps has one entry a stage; `share` is the part of it that an action's slice has.
    """
    by_op = changes(np.arange(len(_WHOLE), dtype=np.int8)[:, None], activation, kept)  # which is then looked up
    added = by_op[schedule.op, schedule.stage]
    added *= share
    return _held_by(schedule, added)


def _held_by(schedule: Schedule, added: Floats) -> tuple[Floats, Floats]:
    """The same of what each action adds; in its place is returned what is held during each."""
    after = summed_by_rank(added, schedule.rank_offsets)
    np.minimum(added, 0.0, out=added)
    return np.subtract(after, added, out=added), after


def shares_of(schedule: Schedule, costs: CostArrays) -> tuple[Ints32, Floats | float, Floats | float]:
    """Return, of every action, the whole microbatch and what of its time and of its tokens the slice has."""
    if schedule.num_slices == 1:
        return schedule.microbatch, 1.0, 1.0
    microbatch, place = np.divmod(schedule.microbatch, schedule.num_slices)
    return microbatch, costs.time_shares[place], costs.token_shares[place]


def memory_of(schedule: Schedule, costs: CostArrays) -> Memory:
    """Return the bytes that each rank of a compute-only table holds, for costs resolved for that table."""
    microbatch, _, share = shares_of(schedule, costs)
    names = ("activation_bytes", "kept_bytes")
    if costs.by_microbatch.keys().isdisjoint(names):
        during, after = held(schedule, costs.activation_bytes, costs.kept_bytes, share)
    else:
        activation, kept = (costs.of(name, schedule.stage, microbatch) * share for name in names)
        during, after = _held_by(schedule, changes(schedule.op, activation, kept))
    if costs.fused_activation_bytes is not None:
        forward, backward = fused_pairs(schedule)
        first = np.minimum(forward, backward)
        before = np.where(np.isin(first, schedule.rank_offsets), 0.0, after[first - 1])
        peak = before + costs.fused_activation_bytes[schedule.stage[forward], schedule.stage[backward]]
        during[first] = during[first + 1] = peak
    peak_at = np.array([a + np.argmax(during[a:b]) for a, b in pairwise(schedule.rank_offsets.tolist())], np.int32)
    return Memory(
        during=during,
        after=after,
        peak_activation_bytes=during[peak_at],
        peak_bytes=during[peak_at] + costs.static_bytes,
        peak_at=peak_at,
    )
