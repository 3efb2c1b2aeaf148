"""Measured steps as what a replay takes: what each pass took, and what it waited for beyond its input."""

from dataclasses import dataclass

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.runs.links import Links, links_of, median_of_some, needed_of
from ppsim.schedule.graph import EventGraph
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


def steps_of(graph: EventGraph, start: Floats, end: Floats, links: Links | None = None) -> Steps:
    """Return the durations and waits of steps, whose arrays have shape [steps, actions].

    The results of a fused cell leave when all of it is done. A wait before a pass is the rank's own as far as it
    usually waits there, and all of it if the message had arrived. A message that nobody waited for took as long as
    the median one of its pair of ranks, or less if its input was made only just before. `links` are the usual
    times of the pairs (None: those of these steps).
    """
    before, made, _ = needed_of(graph, end)
    links = links or links_of(graph, start, before, made)
    own, since, is_waited = links.parts_of(start, before, made)
    hop = np.where(is_waited, since, np.minimum(since, links.transit_s))
    return Steps(end - start, hop, own)


def waits_for_messages(graph: EventGraph, start: Floats, end: Floats) -> Floats:
    """Return how long each pass of a step waited for a message that had been made, its rank being free."""
    before, made, crosses = needed_of(graph, end[None])
    own = steps_of(graph, start[None], end[None]).after_own
    waits: Floats = np.where(crosses, np.maximum(start - np.maximum(before, made) - own, 0.0), 0.0)[0]
    return waits


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
