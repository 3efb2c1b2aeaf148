"""Idle time by cause and critical path of a timeline, from the blockers."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats, Ints32
from ppsim.schedule.rounds import round_starts
from ppsim.schedule.table import NONE, Op, Schedule
from ppsim.simulation.timeline import Timeline

CAUSES = {
    "warm_up": "waiting for compute elsewhere, up to the rank's first backward",
    "cool_down": "waiting for compute elsewhere, or done, after the rank's last forward",
    "waiting_compute": "waiting for compute elsewhere, in between",
    "exposed_communication": "waiting for a transfer whose content was ready, under way or queued, for weights, or "
    "between rounds for gradients",
    "overhead": "host time before an action",
}


@dataclass(frozen=True)
class IdleGaps:
    """Idle time from `begin_s` to the start of each action, by cause.

    The causes follow each other in the order of the fields. `communication_s` includes the wait for the parameters
    of the stage.
    """

    begin_s: Floats
    compute_s: Floats
    communication_s: Floats
    overhead_s: Floats


def gaps(timeline: Timeline, ranks: range | None = None) -> IdleGaps:
    """Divide the wait before every action according to the last event that the action waited for."""
    num_actions, offsets = timeline.num_actions, timeline.schedule.rank_offsets
    if ranks is not None:
        offsets = offsets[ranks.start : ranks.stop + 1]
    here = slice(int(offsets[0]), int(offsets[-1]))
    start, end = timeline.start[here], timeline.end[here]
    begin = np.concatenate(([0.0], end[:-1]))
    begin[offsets[:-1] - offsets[0]] = timeline.begin_s
    np.minimum(begin, start, out=begin)

    blocker = timeline.blocker[here]
    blocked = blocker != NONE
    ready = np.where(blocked, timeline.end[blocker], begin)
    np.clip(ready, begin, start, out=ready)
    made = ready.copy()
    by_transfer = blocked & (blocker >= num_actions)
    made[by_transfer] = timeline.end[timeline.makers[blocker[by_transfer] - num_actions]]
    np.clip(made, begin, ready, out=made)
    if timeline.earliest is not None:
        held_back = ~blocked & (timeline.earliest[here] > begin)
        ready = np.where(held_back, start, ready)
    if timeline.costs.between_rounds_s:
        starts = round_starts(timeline.schedule)
        starts = starts[(starts >= here.start) & (starts < here.stop)] - here.start
        ready[starts] = np.minimum(ready[starts] + timeline.costs.between_rounds_s, start[starts])
    return IdleGaps(begin_s=begin, compute_s=made - begin, communication_s=ready - made, overhead_s=start - ready)


_AT_ONCE = 1 << 15
"""Number of actions processed at once, to fit in the processor's cache."""

_WARM_UP, _COOL_DOWN, _WAITING = 0, 1, 2
assert list(CAUSES) == ["warm_up", "cool_down", "waiting_compute", "exposed_communication", "overhead"]


def compute_causes(schedule: Schedule) -> NDArray[np.int8]:
    """Return the cause of waiting for another rank's compute, per action, as an index into `list(CAUSES)`."""
    causes = np.full(len(schedule), _WAITING, dtype=np.int8)
    is_forward, bounds = schedule.op == Op.F, schedule.rank_offsets
    if schedule.num_rounds > 1:
        round_of = schedule.round_of_unit[schedule.microbatch]
        bounds = np.union1d(bounds, 1 + np.flatnonzero(np.diff(round_of)))
    for begin, end in pairwise(bounds.tolist()):
        first_backward = begin + int(np.argmin(is_forward[begin:end]))
        last_forward = end - 1 - int(np.argmax(is_forward[begin:end][::-1]))
        causes[last_forward + 1 : end] = _COOL_DOWN
        causes[begin : first_backward + 1] = _WARM_UP
    return causes


def idle_by_cause_s(timeline: Timeline) -> dict[str, Floats]:
    """The causes of a rank sum to its idle time."""
    schedule = timeline.schedule
    causes, offsets = compute_causes(schedule), schedule.rank_offsets
    idle = {cause: np.zeros(schedule.num_ranks) for cause in CAUSES}
    at_once = max(1, _AT_ONCE * schedule.num_ranks // len(schedule))
    for first in range(0, schedule.num_ranks, at_once):
        ranks = range(first, min(first + at_once, schedule.num_ranks))
        here = slice(int(offsets[ranks.start]), int(offsets[ranks.stop]))
        waits, of_rank = gaps(timeline, ranks), schedule.rank[here] - np.int32(first)
        seconds = [waits.compute_s * (causes[here] == place) for place in range(_WAITING + 1)]
        for cause, wait_s in zip(CAUSES, [*seconds, waits.communication_s, waits.overhead_s], strict=True):
            idle[cause][ranks.start : ranks.stop] = np.bincount(of_rank, weights=wait_s, minlength=len(ranks))
    idle["cool_down"] += timeline.begin_s + timeline.step_time_s - timeline.rank_end_s
    return idle


def critical_path(timeline: Timeline) -> Ints32:
    """Return the nodes, first to last, whose durations and overheads add up to the step time."""
    node = int(np.argmax(timeline.end[: timeline.num_actions]))
    path = []
    while node != NONE:
        path.append(node)
        node = int(timeline.blocker[node])
    return np.array(path[::-1], dtype=np.int32)
