"""The steps of a measured run, and the costs derived from them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats
from ppsim.schedule.graph import EventGraph
from ppsim.schedule.option_types import Communication
from ppsim.schedule.table import Op, Schedule
from ppsim.simulation.overlap import overlapped_fraction
from ppsim.simulation.stage_costs import StageCosts


@dataclass(frozen=True)
class Run:
    """The steps of one measured run, without warm-up.

    `start`, `end`
        Shape [steps, nodes of the graph], in seconds of one clock for all ranks.
    `costs`
        Given costs of the actions, or their measured medians if `has_own_costs` is False.
    `gaps_s`
        Seconds from the last end of a step to the first start of the next step.
    `message_bytes`
        Bytes of the message between two stages for a whole microbatch (all slices).
    `knows_transfers`
        True if all transfers on the wire are known, not only those that an action waited for.
    `reference_s`
        Machine speed (`ppsim.runtime.worker`): per step and rank, the time of F and B of the rank's stages.
        `reference_layers` has the number of layers per stage.
    `to_collective_s`
        Per gap and rank, seconds from the rank's last action to its first collective.
    `work_s`
        Seconds of the rank's other work between its previous action and each action, [steps, actions], by name.
    `launch_wait_s`
        Seconds within each action in which the device waited for a launch, [steps, actions]; None if unknown.
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
    communication: Communication = "overlap"
    reference_s: Sequence[Sequence[float]] = ()
    reference_work: str = ""
    reference_layers: Sequence[int] = ()
    to_collective_s: Sequence[Sequence[float]] = ()
    work_s: Mapping[str, Floats] = field(default_factory=dict)
    launch_wait_s: Floats | None = None

    @property
    def step_times_s(self) -> Floats:
        """Time of each step from the first start to the last end."""
        actions = self.graph.num_actions
        times: Floats = self.end[:, :actions].max(axis=1) - self.start[:, :actions].min(axis=1)
        return times

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the compute actions of the last step and their times in whole nanoseconds.

        Times count from each rank's first start, so that warm-up and clock alignment do not change it.
        """
        table, actions = self.graph.schedule, self.graph.num_actions
        start, end = self.start[-1, :actions], self.end[-1, :actions]
        begin = start.min()  # for the same rounding as in files, which store times since this start
        start, end = start - begin, end - begin
        first = np.full(table.num_ranks, np.inf)
        np.minimum.at(first, table.rank, start)
        times = np.rint(1e9 * (np.stack([start, end]) - first[table.rank])).astype("<f8")
        actions_of_ranks = np.stack([table.rank, table.op, table.stage, table.microbatch]).astype("<i8")
        return sha256(actions_of_ranks.tobytes() + times.tobytes()).hexdigest()

    def alone(self, slowdown: float) -> Floats:
        """Return durations, [steps, actions], without the slow-down by overlapped transfers."""
        taken: Floats = (self.end - self.start)[:, : self.graph.num_actions]
        if slowdown:
            times = zip(self.start, self.end, strict=True)
            taken = taken / (1 + slowdown * np.stack([overlapped_fraction(self.graph, *step) for step in times]))
        return taken

    def at_pace(self, reference_s: Sequence[float] | Floats) -> "Run":
        """Scale the steps to the machine speed at which the reference takes `reference_s` per rank.

        Returns the run itself if its machine speed is unknown.
        """
        if not self.reference_s:
            return self
        factor = np.sum(reference_s) / np.sum(self.reference_s, axis=1, keepdims=True)
        actions = self.graph.num_actions
        first = self.start[:, :actions].min(axis=1, keepdims=True)
        start, end = (first + factor * (times - first) for times in (self.start, self.end))
        costs = (
            self.costs if self.has_own_costs else median_costs(self.graph, (end - start)[:, :actions], self.costs)
        )
        return replace(self, start=start, end=end, costs=costs, reference_s=[list(reference_s)] * len(start))

    def steps_from(self, first: int) -> "Run":
        """Return every second step."""
        return replace(
            self, start=self.start[first::2], end=self.end[first::2], gaps_s=(), work_s={}, launch_wait_s=None
        )

    @property
    def bytes_of_transfers(self) -> Floats | None:
        if self.message_bytes is None:
            return None
        schedule = self.graph.schedule
        slice_number = schedule.microbatch[self.graph.source] % schedule.num_slices
        sizes: Floats = self.message_bytes * self.costs.resolved_for(schedule).token_shares[slice_number]
        return sizes


@dataclass(frozen=True)
class ReferenceSpeed:
    """Machine speed of a projection: the time of F and B of a layer, and the extra time of first and last stage."""

    work: str
    layer_s: float
    ends_s: tuple[float, float]

    def ranks_s(self, schedule: Schedule, layers: Sequence[int]) -> list[float]:
        of_stages = self.layer_s * np.array(layers, dtype=np.float64)
        of_stages[[0, -1]] += self.ends_s
        ranks = range(schedule.num_ranks)
        return [float(of_stages[list(schedule.stages_of(rank))].sum()) for rank in ranks]


def gaps_between(graph: EventGraph, start: Floats, end: Floats) -> list[float]:
    first, last = start[:, : graph.num_actions].min(axis=1), end[:, : graph.num_actions].max(axis=1)
    gaps: list[float] = (first[1:] - last[:-1]).tolist()
    return gaps


def table_in_words(schedule: Schedule) -> str:
    return (
        f"{schedule.name or 'a table'}, {schedule.num_ranks} ranks, {schedule.num_stages} stages, "
        f"{schedule.num_microbatches} microbatches"
    )


def unslowed_costs(run: Run, slowdown: float) -> StageCosts:
    """Return median costs without the slow-down by transfers."""
    return median_costs(run.graph, run.alone(slowdown), run.costs)


def median_costs(graph: EventGraph, durations: Floats, costs: StageCosts | None = None) -> StageCosts:
    """Return costs with the median time of each kind of action and stage; 0 for actions that the table lacks.

    `durations` has shape [steps, actions]. The other fields come from `costs`.
    """
    medians, stages = pass_medians(graph.schedule, durations), range(graph.schedule.num_stages)
    forward, full, inputs, weights = (
        [medians.get((op, stage), 0.0) for stage in stages] for op in (Op.F, Op.B, Op.I, Op.W)
    )
    parts = [one + two for one, two in zip(inputs, weights, strict=True)]
    # Lower bounds, and simulations of other tables, need both forms of the backward: derive the missing form.
    whole = [one or two for one, two in zip(full, parts, strict=True)]
    inputs = [one if both else other for one, both, other in zip(inputs, parts, full, strict=True)]
    is_split = any(parts) or not any(full)
    passes: dict[str, Any] = {
        "forward_s": forward,
        "backward_s": whole if any(full) else None,
        "backward_input_s": inputs if is_split else None,
        "backward_weight_s": weights if is_split else None,
        "microbatch_factors": None,
    }
    return costs.replace(**passes) if costs else StageCosts(**passes)


def pass_medians(schedule: Schedule, durations: Floats) -> dict[tuple[Op, int], float]:
    """Return the median time of each kind of action and stage; the last axis of `durations` is the action."""
    return {key: float(np.median(durations[..., chosen])) for key, chosen in passes_of(schedule)}


def passes_of(schedule: Schedule) -> Iterator[tuple[tuple[Op, int], NDArray[np.bool_]]]:
    """Yield each kind of action and stage, with a mask of its actions."""
    for op, stage in product((Op.F, Op.B, Op.I, Op.W), range(schedule.num_stages)):
        chosen = (schedule.op == op) & (schedule.stage == stage)
        if chosen.any():
            yield (op, stage), chosen
