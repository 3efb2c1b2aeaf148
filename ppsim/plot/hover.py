"""Hover texts of cells: four lines each, so that one template serves a whole lane.

::

    3F0                                       idle
    90.6 to 120.3 ms (29.7 ms)                0.0 to 90.6 ms (90.6 ms)
    stage 3, chunk 0, microbatch 0            pipeline not reached yet: 3F0 waits for 2F0 on rank 2
    waited for 2F0 on rank 2; holds 17.1 GiB  90.1 ms warm-up, 0.5 ms exposed communication
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

from ppsim.base.units import seconds, size
from ppsim.plot.lanes import Lane, chunk_of_stage
from ppsim.plot.palette import CAUSE_TITLES
from ppsim.plot.scale import AxisScale
from ppsim.schedule.table import NONE
from ppsim.simulation.idle_causes import CAUSES, IdleGaps, compute_causes, gaps
from ppsim.simulation.timeline import Timeline

Lines = tuple[str, str, str, str]

_MENTIONED = 1e-3  # × gap: smaller causes are not mentioned


@dataclass(frozen=True, eq=False)
class Hover:
    """The hover texts of a timeline."""

    timeline: Timeline
    scale: AxisScale

    def lines_of(self, lane: Lane) -> list[Lines]:
        edges, lines = lane.edges.tolist(), []
        cells = zip(edges[:-1], edges[1:], lane.node.tolist(), lane.cause.tolist(), lane.next_node, strict=True)
        for begin, end, node, cause, ahead in cells:
            if node >= self.timeline.num_actions:
                lines.append(self._of_transfer(node, begin, end))
            elif node != NONE:
                lines.append(self._of_action(node, begin, end))
            elif lane.is_transfers:
                lines.append(("nothing under way", self._times(begin, end), "", ""))
            elif ahead != NONE:
                lines.append(self._before(ahead, begin, end, cause))
            else:
                lines.append(self._behind(lane.rank, begin, end, cause))
        return lines

    def blocker_of(self, node: int) -> str:
        """Return the name and rank of the event that a node waited for last.

        A transfer of the node's own input counts as the action that produced the input. Any other transfer held up
        the rank or the queue and is named itself.
        """
        blocker = self._blockers[node]
        if blocker == NONE:
            return "nothing"
        if blocker < self.timeline.num_actions:
            return self._placed(blocker)
        source, target = self.ends_of(blocker)
        if target == node:
            return self._placed(source)
        return f"the transfer of {self._names[source]} to rank {self._ranks[target]}"

    @cached_property
    def causes(self) -> list[str]:
        """The cause of waiting for compute before each action, a key of `CAUSES`."""
        names = list(CAUSES)
        return [names[cause] for cause in compute_causes(self.timeline.schedule).tolist()]

    def _of_action(self, node: int, begin: float, end: float) -> Lines:
        action = self.timeline.schedule[node]
        held = self._held[node]
        where = f"{self._stage(action.stage)}, chunk {self._chunks[action.stage]}, {self._unit(action.microbatch)}"
        waited = f"waited for {self.blocker_of(node)}" + (f"; holds {size(held)}" if held else "")
        return (self._names[node], self._times(begin, end), where, waited)

    def _stage(self, stage: int) -> str:
        schedule = self.timeline.schedule
        if schedule.num_replicas == 1:
            return f"stage {stage}"
        chain, model_stage = divmod(stage, schedule.num_model_stages)
        return f"stage {stage} (stage {model_stage} of chain {chain})"

    def _unit(self, unit: int) -> str:
        schedule = self.timeline.schedule
        microbatch, slice_index = divmod(unit, schedule.num_slices)
        in_slices = f", slice {slice_index}" if schedule.num_slices > 1 else ""
        in_rounds = f", round {schedule.round_of_unit[unit]}" if schedule.num_rounds > 1 else ""
        return f"microbatch {microbatch}{in_slices}{in_rounds}"

    def _of_transfer(self, node: int, begin: float, end: float) -> Lines:
        source, target = self.ends_of(node)
        return (
            f"{self._names[source]} to rank {self._ranks[target]}",
            self._times(begin, end),
            f"for {self._names[target]}",
            f"waited for {self.blocker_of(node)}",
        )

    def _before(self, node: int, begin: float, end: float, cause: int) -> Lines:
        waited_s = self.timeline.start[node] - self._gaps.begin_s[node]
        parts = [
            (self._gaps.compute_s[node], CAUSE_TITLES[self.causes[node]], ""),
            (self._gaps.communication_s[node], CAUSE_TITLES["exposed_communication"], self._queued(node)),
            (self._gaps.overhead_s[node], CAUSE_TITLES["overhead"], ""),
        ]
        parts = [part for part in parts if part[0] > _MENTIONED * waited_s]
        split = ", ".join(f"{_duration(duration)} {cause}{more}" for duration, cause, more in parts)
        if cause != NONE and len(parts) > 1:
            split = f"of {_duration(waited_s)} idle: {split}"
        if [cause for _, cause, _ in parts] == [CAUSE_TITLES["overhead"]]:
            waits = f"host time before {self._names[node]}"
        else:
            waits = f"{self._names[node]} waits for {self.blocker_of(node)}"
        if node in self._first_of_rank:
            waits = f"pipeline not reached yet: {waits}"
        return (_idle(cause), self._times(begin, end), waits, split)

    def _behind(self, rank: int, begin: float, end: float, cause: int) -> Lines:
        split = f"{_duration(end - begin)} {CAUSE_TITLES['cool_down']}"
        return (_idle(cause), self._times(begin, end), f"done: rank {rank} waits for the step to end", split)

    def _queued(self, node: int) -> str:
        """Return as text how long the transfer that an action waits for was ready but queued."""
        blocker, waits = self._blockers[node], self._gaps
        if blocker < self.timeline.num_actions:
            return ""
        ready_s = waits.begin_s[node] + waits.compute_s[node]
        queued = min(float(self.timeline.start[blocker] - ready_s), float(waits.communication_s[node]))
        return f" ({_duration(queued)} of it queued)" if queued > _MENTIONED * waits.communication_s[node] else ""

    def _times(self, begin: float, end: float) -> str:
        value = self.scale.value
        return f"{value(begin)} to {value(end)} {self.scale.unit} ({_duration(end - begin)})"

    def _placed(self, action: int) -> str:
        return f"{self._names[action]} on rank {self._ranks[action]}"

    def ends_of(self, transfer: int) -> tuple[int, int]:
        """Return the sending and the receiving action."""
        graph = self.timeline.graph
        return int(graph.source[transfer - graph.num_actions]), int(graph.target[transfer - graph.num_actions])

    @cached_property
    def _names(self) -> list[str]:
        return [str(action) for action in self.timeline.schedule]

    @cached_property
    def _ranks(self) -> list[int]:
        return list(self.timeline.schedule.rank.tolist())

    @cached_property
    def _chunks(self) -> list[int]:
        return list(chunk_of_stage(self.timeline.schedule).tolist())

    @cached_property
    def _blockers(self) -> list[int]:
        return list(self.timeline.blocker.tolist())

    @cached_property
    def _held(self) -> list[float]:
        held = self.timeline.memory.during + self.timeline.costs.static_bytes[self.timeline.schedule.rank]
        return list(held.tolist())

    @cached_property
    def _gaps(self) -> IdleGaps:
        return gaps(self.timeline)

    @cached_property
    def _first_of_rank(self) -> set[int]:
        return set(self.timeline.schedule.rank_offsets[:-1].tolist())


def _idle(cause: int) -> str:
    return "idle" if cause == NONE else f"idle: {CAUSE_TITLES[list(CAUSES)[cause]]}"


@lru_cache(maxsize=4096)  # a schedule has few different durations
def _duration(value: float) -> str:
    """Rounding turns 0.9999999999 ms into 1 ms."""
    return seconds(round(value, 12))
