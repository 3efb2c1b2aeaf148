"""Measured steps as what a replay takes: what each pass took, and what it waited for beyond its input."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.schedule.dependencies import dependencies
from ppsim.schedule.graph import EventGraph, previous_on_rank
from ppsim.schedule.table import NONE, last_of_cell
from ppsim.simulation.engine import Times, evaluate, evaluate_many


@dataclass(frozen=True)
class Steps:
    """What replays take, all of shape [steps, actions] and in seconds.

    `taken` is what a pass takes; it starts `for_message + after_own` after the last thing that it needs has ended:
    a wait for a message that was made, and one that its rank makes itself.
    """

    taken: Floats
    for_message: Floats
    after_own: Floats

    def __getitem__(self, step: int) -> "Steps":
        """One step, as steps."""
        chosen = slice(step, step + 1)
        return Steps(self.taken[chosen], self.for_message[chosen], self.after_own[chosen])


def steps_of(graph: EventGraph, start: Floats, end: Floats) -> Steps:
    """Return the durations and waits of steps, whose arrays have shape [steps, actions].

    The results of a fused cell leave when all of it is done.
    """
    before, made, crosses = needed_of(graph, end)
    wait = np.maximum(start - np.maximum(before, made), 0.0)
    late = made - before
    own = np.stack([_waits_after_own(*one, crosses) for one in zip(late, wait, strict=True)])
    return Steps(end - start, wait - own, own)


def needed_of(graph: EventGraph, end: Floats) -> tuple[Floats, Floats, Any]:
    """Return when the pass before each ended on its rank, when its input was made, and if elsewhere."""
    schedule = graph.schedule
    previous = previous_on_rank(schedule)
    first = np.zeros((len(end), 1))
    before = np.where(previous == NONE, first, end[:, previous])
    needs = dependencies(schedule).neighbour
    made = np.where(needs == NONE, first, end[:, last_of_cell(schedule)[needs]])
    return before, made, (needs != NONE) & (schedule.rank[needs] != schedule.rank)


def _waits_after_own(late: Floats, wait: Floats, crosses: Any) -> Floats:
    """What a rank itself does before each pass: all of a wait that no message explains, else as much as is usual.

    `late` is how much later the input was made than the pass before ended. A message explains waits where its input
    was not made so long before that it had arrived.
    """
    usual = float(np.median(wait))
    gaps, hops = wait[~crosses | (late < -usual)], wait[crosses & (late > usual)]
    gap = float(np.median(gaps)) if len(gaps) else 0.0
    hop = float(np.median(hops)) if len(hops) else 0.0
    own: Floats = np.where(crosses & (late > -hop), np.minimum(wait, gap), wait)
    return own


def median_gap_s(steps: Steps) -> float:
    """Return the median of what ranks do before a pass, where they do anything."""
    found = steps.after_own[steps.after_own > 0]
    return float(np.median(found)) if len(found) else 0.0


def replayed_s(graph: EventGraph, steps: Steps, *, hop_s: float | None = None) -> Floats:
    """Return seconds from the first start to the last end, one entry a step.

    With `hop_s` the waits are left out, and each message takes that long in the calls of the graph.
    """
    durations, waits = _node_times(graph, steps, hop_s)
    return evaluate_many(graph, durations, waits).step_time_s


def replay(graph: EventGraph, steps: Steps) -> Times:
    """Return the times of the first of the steps."""
    durations, waits = _node_times(graph, steps, None)
    return evaluate(graph, durations[0], waits[0])


def waited_s(graph: EventGraph, end: Floats) -> Floats:
    """Return how long each rank stands still for passes of others, from the ends of a step's actions."""
    schedule = graph.schedule
    before, made, crosses = needed_of(graph, end[None])
    waits = np.where(crosses, np.maximum(made - before, 0.0), 0.0)[0]
    return np.bincount(schedule.rank, weights=waits, minlength=schedule.num_ranks).astype(np.float64)


def _node_times(graph: EventGraph, steps: Steps, hop_s: float | None) -> tuple[Floats, Floats]:
    """Durations and waits of all nodes, of which transfers are in the waits or take `hop_s`."""
    transfers = np.zeros((len(steps.taken), graph.num_transfers))
    waits = steps.for_message + steps.after_own if hop_s is None else np.zeros_like(steps.taken)
    return (
        np.concatenate([steps.taken, transfers + (hop_s or 0.0)], axis=1),
        np.concatenate([waits, transfers], axis=1),
    )
