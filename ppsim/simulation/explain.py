"""Why a step takes as long as it does: idle time by cause, and the critical path. All from the blockers."""

from dataclasses import dataclass

import numpy as np

from ppsim.schedule.table import NONE, Ints, Op
from ppsim.simulation.engine import Floats
from ppsim.simulation.timeline import Timeline

CAUSES = {
    "warm_up": "waiting for compute elsewhere, up to the rank's first backward",
    "cool_down": "waiting for compute elsewhere, or done, after the rank's last forward",
    "waiting_compute": "waiting for compute elsewhere, in between",
    "exposed_communication": "waiting for a transfer whose content was ready: under way or queued",
    "overhead": "host time before an action",
}


@dataclass(frozen=True)
class Gaps:
    """What a rank did between an action and the one before it; every array has one entry an action.

    From `begin_s` (the end of the action before, or the first start of the step) it waited `compute_s` for
    compute of another rank, then `communication_s` for its result to arrive, then `overhead_s` on the host.
    """

    begin_s: Floats
    compute_s: Floats
    communication_s: Floats
    overhead_s: Floats


def gaps(timeline: Timeline) -> Gaps:
    """Return the wait before every action, divided by the last thing that the action waited for."""
    num_actions, offsets = timeline.num_actions, timeline.schedule.rank_offsets
    start, end = timeline.start[:num_actions], timeline.end[:num_actions]
    begin = np.concatenate(([0.0], end[:-1]))
    begin[offsets[:-1]] = timeline.begin_s
    begin = np.minimum(begin, start)

    blocker = timeline.blocker[:num_actions]
    blocked = blocker != NONE
    ready = np.clip(np.where(blocked, timeline.end[blocker], begin), begin, start)
    made = ready.copy()
    by_transfer = blocked & (blocker >= num_actions)
    made[by_transfer] = timeline.last_end_of_source[blocker[by_transfer] - num_actions]
    made = np.clip(made, begin, ready)
    return Gaps(begin_s=begin, compute_s=made - begin, communication_s=ready - made, overhead_s=start - ready)


def idle_by_cause_s(timeline: Timeline) -> dict[str, Floats]:
    """Return seconds of idle time per cause of `CAUSES`, one entry a rank; a rank's causes sum to its idle time."""
    schedule = timeline.schedule
    waits = gaps(timeline)
    idle = {cause: np.zeros(schedule.num_ranks) for cause in CAUSES}
    is_forward = schedule.op == Op.F
    for rank in range(schedule.num_ranks):
        here = slice(int(schedule.rank_offsets[rank]), int(schedule.rank_offsets[rank + 1]))
        position = np.arange(here.stop - here.start)
        first_backward = int(np.argmin(is_forward[here]))
        last_forward = len(position) - 1 - int(np.argmax(is_forward[here][::-1]))
        warming = position <= first_backward
        cooling = (position > last_forward) & ~warming
        compute = waits.compute_s[here]
        idle["warm_up"][rank] = compute[warming].sum()
        idle["cool_down"][rank] = compute[cooling].sum() + (
            timeline.begin_s + timeline.step_time_s - timeline.rank_end_s[rank]
        )
        idle["waiting_compute"][rank] = compute[~warming & ~cooling].sum()
        idle["exposed_communication"][rank] = waits.communication_s[here].sum()
        idle["overhead"][rank] = waits.overhead_s[here].sum()
    return idle


def critical_path(timeline: Timeline) -> Ints:
    """Return the nodes, first to last, whose durations and overheads add up to the step time.

    Ends at the action that ends last (the lowest rank's, where several do) and follows the blockers.
    """
    node = int(np.argmax(timeline.end[: timeline.num_actions]))
    path = []
    while node != NONE:
        path.append(node)
        node = int(timeline.blocker[node])
    return np.array(path[::-1], dtype=np.int32)
