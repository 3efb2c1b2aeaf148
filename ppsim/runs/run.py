"""The steps of a measured run, as many as there are, and the costs that they show."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.schedule.graph import EventGraph
from ppsim.schedule.table import Op, Schedule
from ppsim.simulation.overlap import overlapped_fraction
from ppsim.simulation.stage_costs import StageCosts


@dataclass(frozen=True)
class Run:
    """The steps of one measured run, warm-up left out.

    `start` and `end` have shape [steps, nodes of the graph], in seconds of one clock for all ranks. `costs` are
    what the actions should take: given, or (`has_own_costs` False) the medians of what they took. `gaps_s` are the
    seconds from the last end of a step to the first start of the next, as far as known. `message_bytes` is what a
    whole microbatch sends from a stage to the next, None where unknown. `knows_transfers`: the times of all
    transfers are those on the wire, not only of those that somebody waited for.
    """

    source: str
    graph: EventGraph
    costs: StageCosts
    start: Floats
    end: Floats
    gaps_s: Sequence[float] = ()
    message_bytes: float | None = None
    has_own_costs: bool = True
    knows_transfers: bool = False

    @property
    def step_times_s(self) -> Floats:
        """First start to last end, one entry a step."""
        actions = self.graph.num_actions
        times: Floats = self.end[:, :actions].max(axis=1) - self.start[:, :actions].min(axis=1)
        return times

    def fraction_beside_transfers(self, step: int) -> Floats:
        """Return `overlapped_fraction` of one step."""
        return overlapped_fraction(self.graph, self.start[step], self.end[step])

    @property
    def bytes_of_transfers(self) -> Floats | None:
        """What each transfer carries, None where unknown."""
        if self.message_bytes is None:
            return None
        schedule = self.graph.schedule
        slice_number = schedule.microbatch[self.graph.source] % schedule.num_slices
        sizes: Floats = self.message_bytes * self.costs.resolved_for(schedule).token_shares[slice_number]
        return sizes


def costs_alone(run: Run, slowdown: float) -> StageCosts:
    """Return the costs of a run with the medians of what its passes took, less what transfers beside them added."""
    fractions = np.stack([run.fraction_beside_transfers(step) for step in range(len(run.start))])
    actions = run.graph.num_actions
    taken = (run.end - run.start)[:, :actions] / (1 + slowdown * fractions)
    return median_costs(run.graph, taken, run.costs)


def median_costs(graph: EventGraph, taken: Floats, costs: StageCosts | None = None) -> StageCosts:
    """Return the median time of each pass of each stage over all microbatches and steps; 0 for one the table lacks.

    `taken` has shape [steps, actions]. The rest is as in `costs`.
    """
    medians, stages = pass_medians(graph.schedule, taken), range(graph.schedule.num_stages)
    forward, full, inputs, weights = (
        [medians.get((op, stage), 0.0) for stage in stages] for op in (Op.F, Op.B, Op.I, Op.W)
    )
    passes: dict[str, Any] = {
        "forward_s": forward,
        "backward_s": full if any(full) else None,
        "backward_input_s": inputs,
        "backward_weight_s": weights,
        "microbatch_factors": None,
    }
    return costs.replace(**passes) if costs else StageCosts(**passes)


def pass_medians(schedule: Schedule, taken: Floats) -> dict[tuple[Op, int], float]:
    """Return the median time of each pass of each stage that there is; `taken` ends in an axis of actions."""
    medians = {}
    for op, stage in product((Op.F, Op.B, Op.I, Op.W), range(schedule.num_stages)):
        chosen = (schedule.op == op) & (schedule.stage == stage)
        if chosen.any():
            medians[op, stage] = float(np.median(taken[..., chosen]))
    return medians
