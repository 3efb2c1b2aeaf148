"""Memory over time: F allocates; B frees everything; I frees the part that only it needs, W the rest."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats, Ints32, Ints64
from ppsim.schedule.table import Schedule, fused_pairs
from ppsim.simulation.cost_arrays import CostArrays


@dataclass(frozen=True)
class RankMemoryUse:
    """Bytes on each rank; they depend on the order of actions only, not on their times.

    `during` and `after` have one entry per action. `peak_bytes` includes static bytes, and the update, in which
    there are no activations.
    """

    during: Floats
    after: Floats
    peak_activation_bytes: Floats
    peak_bytes: Floats
    peak_at: Ints32


_WHOLE = np.array([1, -1, -1, 0])  # F, B, I, W
_KEPT = np.array([0, 0, 1, -1])


def memory_changes(op: NDArray[np.int8], activation: Floats, kept_for_weight: Floats) -> Floats:
    """Return the memory that each action adds (zero-bubble paper, arXiv 2401.10241, Table 1)."""
    added: Floats = _WHOLE[op] * activation + _KEPT[op] * kept_for_weight
    return added


def summed_by_rank(added: Floats, rank_offsets: Ints64) -> Floats:
    after = np.empty(len(added))
    for begin, end in pairwise(rank_offsets.tolist()):
        np.cumsum(added[begin:end], out=after[begin:end])
    return after


def memory_per_action(
    schedule: Schedule, activation: Floats, kept_for_weight: Floats, share: Floats | float = 1.0
) -> tuple[Floats, Floats]:
    """Return the memory during and after each action.

    `activation` and `kept_for_weight` have one entry per stage; `share` is each action's fraction of a microbatch.
    """
    return _held_by(schedule, _added_bytes(schedule, activation, kept_for_weight, share))


def _added_bytes(schedule: Schedule, activation: Floats, kept_for_weight: Floats, share: Floats | float) -> Floats:
    by_op = memory_changes(np.arange(len(_WHOLE), dtype=np.int8)[:, None], activation, kept_for_weight)
    added: Floats = by_op[schedule.op, schedule.stage]
    added *= share
    return added


def _held_by(schedule: Schedule, added: Floats) -> tuple[Floats, Floats]:
    """Return the memory during and after each action; overwrites `added`."""
    after = summed_by_rank(added, schedule.rank_offsets)
    np.minimum(added, 0.0, out=added)
    return np.subtract(after, added, out=added), after


def slice_shares(schedule: Schedule, costs: CostArrays) -> tuple[Ints32, Floats | float, Floats | float]:
    """Return each action's microbatch number, and its slice's fraction of the time and of the tokens."""
    if schedule.num_slices == 1:
        return schedule.microbatch, 1.0, 1.0
    microbatch, slice_index = np.divmod(schedule.microbatch, schedule.num_slices)
    return microbatch, costs.time_shares[slice_index], costs.token_shares[slice_index]


def added_bytes(schedule: Schedule, costs: CostArrays) -> Floats:
    """Return the bytes that each action adds to its rank, negative if it frees."""
    microbatch, _, share = slice_shares(schedule, costs)
    names = ("activation_bytes", "kept_bytes")
    if costs.by_microbatch.keys().isdisjoint(names):
        return _added_bytes(schedule, costs.activation_bytes, costs.kept_bytes, share)
    activation, kept = (costs.of(name, schedule.stage, microbatch) * share for name in names)
    return memory_changes(schedule.op, activation, kept)


def bytes_at_peak(schedule: Schedule, costs: CostArrays, memory: RankMemoryUse, rank: int) -> tuple[Floats, float]:
    """Return the saved bytes of each stage at a rank's peak, and those of a pair of a forward and a backward.

    If the peak is in a pair, the bytes of the stages are those before it.
    """
    first, peak = int(schedule.rank_offsets[rank]), int(memory.peak_at[rank])
    added, end, of_pair = added_bytes(schedule, costs), peak, 0.0
    if costs.fused_activation_bytes is not None:
        for forward, backward in zip(*fused_pairs(schedule), strict=True):
            if peak - min(forward, backward) in (0, 1):
                end = int(min(forward, backward))
                of_pair = float(costs.fused_activation_bytes[schedule.stage[forward], schedule.stage[backward]])
    actions = slice(first, end if of_pair or added[peak] < 0 else end + 1)
    held = np.zeros(schedule.num_stages)
    np.add.at(held, schedule.stage[actions], added[actions])
    return held, of_pair


def memory_of(schedule: Schedule, costs: CostArrays) -> RankMemoryUse:
    during, after = _held_by(schedule, added_bytes(schedule, costs))
    if costs.fused_activation_bytes is not None:
        forward, backward = fused_pairs(schedule)
        first = np.minimum(forward, backward)
        before = np.where(np.isin(first, schedule.rank_offsets), 0.0, after[first - 1])
        peak = before + costs.fused_activation_bytes[schedule.stage[forward], schedule.stage[backward]]
        during[first] = during[first + 1] = peak
    peak_at = np.array([a + np.argmax(during[a:b]) for a, b in pairwise(schedule.rank_offsets.tolist())], np.int32)
    return RankMemoryUse(
        during=during,
        after=after,
        peak_activation_bytes=during[peak_at],
        peak_bytes=np.maximum(during[peak_at], costs.update_bytes) + costs.static_bytes,
        peak_at=peak_at,
    )
