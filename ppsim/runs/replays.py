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

    `taken` is what a pass takes. It starts `after_own`, a wait that its rank makes itself, after the pass before it
    has ended and its input is there: `hop` after that was made, 0 for one of its own rank.
    """

    taken: Floats
    hop: Floats
    after_own: Floats

    def __getitem__(self, step: int) -> "Steps":
        """One step, as steps."""
        chosen = slice(step, step + 1)
        return Steps(self.taken[chosen], self.hop[chosen], self.after_own[chosen])


def steps_of(graph: EventGraph, start: Floats, end: Floats) -> Steps:
    """Return the durations and waits of steps, whose arrays have shape [steps, actions].

    The results of a fused cell leave when all of it is done. A message that nobody waited for took as long as the
    median one of its step that was waited for, or less, where its input was made only just before.
    """
    before, made, crosses = needed_of(graph, end)
    wait = np.maximum(start - np.maximum(before, made), 0.0)
    late = made - before
    own = np.stack([_waits_after_own(*one, crosses) for one in zip(late, wait, strict=True)])
    longest = np.where(crosses, np.maximum(start - own - made, 0.0), 0.0)
    usual = [median_of_some(hop[waited > 0]) for hop, waited in zip(longest, wait - own, strict=True)]
    hop = np.where(wait > own, longest, np.minimum(longest, np.array(usual)[:, None]))
    return Steps(end - start, hop, own)


def waits_for_messages(graph: EventGraph, start: Floats, end: Floats) -> Floats:
    """Return how long each pass of a step waited for a message that had been made, its rank being free."""
    before, made, crosses = needed_of(graph, end[None])
    own = steps_of(graph, start[None], end[None]).after_own
    waits: Floats = np.where(crosses, np.maximum(start - np.maximum(before, made) - own, 0.0), 0.0)[0]
    return waits


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
    gap, hop = median_of_some(gaps), median_of_some(hops)
    own: Floats = np.where(crosses & (late > -hop), np.minimum(wait, gap), wait)
    return own


def median_of_some(values: Floats) -> float:
    """Return the median, 0 of nothing."""
    return float(np.median(values)) if len(values) else 0.0


def median_gap_s(steps: Steps) -> float:
    """Return the median of what ranks do before a pass, where they do anything."""
    return median_of_some(steps.after_own[steps.after_own > 0])


def replayed_s(graph: EventGraph, steps: Steps, *, hop_s: float | None = None) -> Floats:
    """Return seconds from the first start to the last end, one entry a step.

    With `hop_s` the waits are left out, and each message takes that long in the calls of the graph. Without, the
    graph is one whose transfers are on their own.
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
    """Durations and waits of all nodes; with `hop_s` that is what each transfer takes, and nothing waits."""
    none = np.zeros((len(steps.taken), graph.num_transfers))
    transfers = steps.hop[:, graph.target] if hop_s is None else none + hop_s
    waits = steps.after_own if hop_s is None else np.zeros_like(steps.after_own)
    return np.concatenate([steps.taken, transfers], axis=1), np.concatenate([waits, none], axis=1)
