"""Replay measured steps from the durations and waits of their actions."""

from dataclasses import dataclass

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.runs.links import LinkTimes, input_times, links_of, median_of_some
from ppsim.schedule.graph import EventGraph
from ppsim.simulation.engine import NodeTimes, evaluate, evaluate_many


@dataclass(frozen=True)
class MeasuredSteps:
    """Durations `taken` and waits of measured steps, all of shape [steps, actions] and in seconds.

    `hop` is the transit time of an action's input, `after_own` the rank's own wait after its previous action has
    ended and the input has arrived.
    """

    taken: Floats
    hop: Floats
    after_own: Floats

    def __getitem__(self, step: int) -> "MeasuredSteps":
        chosen = slice(step, step + 1)
        return MeasuredSteps(self.taken[chosen], self.hop[chosen], self.after_own[chosen])


def steps_of(graph: EventGraph, start: Floats, end: Floats, links: LinkTimes | None = None) -> MeasuredSteps:
    """Return the durations and waits of steps; arrays have shape [steps, actions].

    A message that no action waited for takes the usual time of its pair of ranks, but at most the time between its
    sending and the action. `links` has these usual times (None: from these steps).
    """
    before, produced_s, _ = input_times(graph, end)
    links = links or links_of(graph, start, before, produced_s)
    own, since, is_waited = links.parts_of(start, before, produced_s)
    hop = np.where(is_waited, since, np.minimum(since, links.queue_s + links.transit_s))
    return MeasuredSteps(end - start, hop, own)


def waits_for_messages(graph: EventGraph, start: Floats, end: Floats) -> Floats:
    """Return how long each action waited for a message while its rank was free."""
    before, produced_s, crosses = input_times(graph, end[None])
    own = steps_of(graph, start[None], end[None]).after_own
    waits: Floats = np.where(crosses, np.maximum(start - np.maximum(before, produced_s) - own, 0.0), 0.0)[0]
    return waits


def median_gap_s(steps: MeasuredSteps) -> float:
    """Return the median of the ranks' own waits above 0."""
    return median_of_some(steps.after_own[steps.after_own > 0])


def replayed_step_s(graph: EventGraph, steps: MeasuredSteps, *, hop_s: float | None = None) -> Floats:
    """Return the replayed step times.

    With `hop_s` the measured waits are left out, and each message takes `hop_s` in the graph's blocking calls.
    Without it the graph must have independent transfers.
    """
    durations, waits = _node_times(graph, steps, hop_s)
    return evaluate_many(graph, durations, waits).step_time_s


def replay(graph: EventGraph, steps: MeasuredSteps) -> NodeTimes:
    """Replay the first step."""
    durations, waits = _node_times(graph, steps, None)
    return evaluate(graph, durations[0], waits[0])


def rank_waits_s(graph: EventGraph, end: Floats) -> Floats:
    schedule = graph.schedule
    before, produced_s, crosses = input_times(graph, end[None])
    waits = np.where(crosses, np.maximum(produced_s - before, 0.0), 0.0)[0]
    return np.bincount(schedule.rank, weights=waits, minlength=schedule.num_ranks).astype(np.float64)


def _node_times(graph: EventGraph, steps: MeasuredSteps, hop_s: float | None) -> tuple[Floats, Floats]:
    none = np.zeros((len(steps.taken), graph.num_transfers))
    transfers = steps.hop[:, graph.target] if hop_s is None else none + hop_s
    waits = steps.after_own if hop_s is None else np.zeros_like(steps.after_own)
    return np.concatenate([steps.taken, transfers], axis=1), np.concatenate([waits, none], axis=1)
