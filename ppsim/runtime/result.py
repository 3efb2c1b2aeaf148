"""What a run recorded → a timeline of the same type as a simulated one. Imports no torch."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ppsim.costs.stages import StageCosts
from ppsim.errors import RunFailed
from ppsim.schedule.graph import EventGraph, build_graph
from ppsim.schedule.table import Op, Schedule
from ppsim.simulation.engine import Floats, blockers_of
from ppsim.simulation.timeline import Timeline

_NO_WAIT_S = 1e-4
"""A wait shorter than this found its message already there."""

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
"""Largest relative difference of loss and gradients that rounding explains; shorter formats have no such limit."""


@dataclass(frozen=True)
class Measured:
    """A run's steps: the timeline of the median one, the step time of every recorded one, and its costs."""

    timeline: Timeline
    costs: StageCosts
    step_times_s: list[float]
    chosen_step: int


def measured_of(result: dict[str, Any], table: Schedule, given: StageCosts | None) -> Measured:
    """Return the timeline of the step whose time is the (lower) median of those after the warm-up.

    `given` are the costs a run emulated; without them the costs are the medians of what each stage took.
    """
    channel = given.channel if given is not None and given.channel != "ideal" else "edge"
    graph = build_graph(table, channel=channel, receives=given.receives if given is not None else "torch")
    steps = [_times_of(step, graph) for step in result["steps"]]
    recorded = list(range(result["num_warm_up"], len(steps)))
    length = [_step_time(steps[index], graph) for index in recorded]
    chosen = recorded[sorted(range(len(recorded)), key=length.__getitem__)[(len(recorded) - 1) // 2]]
    start, end = steps[chosen]
    first = start[: graph.num_actions].min()
    start, end = start - first, end - first
    if given is not None:
        costs = given.replace(channel=channel)
    else:
        costs = _medians([steps[index] for index in recorded], graph).replace(channel=channel)
    schedule = graph.schedule
    timeline = Timeline(
        graph=graph,
        start=start,
        end=end,
        blocker=blockers_of(graph, end),
        costs=costs.resolved(num_stages=schedule.num_stages, num_ranks=schedule.num_ranks),
        origin="measured",
    )
    return Measured(timeline, costs, length, chosen)


def require_agreement(differences: dict[str, float] | None, dtype: str) -> None:
    """Raise `RunFailed` where `--verify` found more than rounding in `dtype` explains."""
    if differences is None or dtype not in TOLERANCE:
        return
    if not max(differences["loss"], differences["gradient"]) <= TOLERANCE[dtype]:
        raise RunFailed(
            f"the pipelined step differs from one process by {differences['loss']:.1e} in the loss and "
            f"{differences['gradient']:.1e} in a gradient; rounding in {dtype} explains {TOLERANCE[dtype]:.0e}"
        )


def _step_time(times: tuple[Floats, Floats], graph: EventGraph) -> float:
    start, end = times
    return float(end[: graph.num_actions].max() - start[: graph.num_actions].min())


def _times_of(ranks: list[dict[str, Any]], graph: EventGraph) -> tuple[Floats, Floats]:
    """Start and end of every node, in seconds of the shared clock."""
    schedule = graph.schedule
    start, end = np.full(graph.num_nodes, np.nan), np.full(graph.num_nodes, np.nan)
    entry_of = {str(schedule[entry]): entry for entry in range(graph.num_actions)}
    posted: dict[str, tuple[float, float]] = {}
    arrived: dict[int, float] = {}
    under_way: dict[str, tuple[float, float]] = {}
    for rank in ranks:
        under_way |= {name: (begin, finish) for name, (begin, finish) in rank["transfers"].items()}
        for record in rank["records"]:
            members = record["name"].removeprefix("(").split(")")[0].split(";")
            if members[0] not in entry_of:
                posted[members[0]] = (record["begin"], record["end"])
                continue
            for position, name in enumerate(members):
                entry = entry_of[name]
                start[entry] = record["calls"][position]
                last = position == len(members) - 1
                following = record["end"] if last else record["calls"][position + 1]
                waits = [wait for wait in record["waits"] if wait[1] <= start[entry]]
                later = [wait for wait in record["waits"] if start[entry] < wait[0] < following]
                end[entry] = later[0][0] if later else following
                if waits and waits[-1][1] - waits[-1][0] > _NO_WAIT_S:
                    arrived[entry] = waits[-1][1]
    for transfer in range(graph.num_transfers):
        source, target = int(graph.source[transfer]), int(graph.target[transfer])
        node = graph.num_actions + transfer
        op, stage, microbatch = schedule[source]
        name = f"{stage}{'SEND_F' if op is Op.F else 'SEND_B'}{microbatch}"
        begin, finish = posted[name]
        if name in under_way:
            start[node], end[node] = under_way[name]
        else:
            # Without a wait nobody knows when it arrived; it did so before it was needed.
            start[node], end[node] = begin, max(arrived.get(target, finish), begin)
    return start, end


def _medians(steps: list[tuple[Floats, Floats]], graph: EventGraph) -> StageCosts:
    """What each pass of each stage took, over all microbatches and steps; 0 for a pass that the table lacks."""
    schedule = graph.schedule
    duration = np.stack([(end - start)[: graph.num_actions] for start, end in steps])

    def median(op: Op) -> list[float]:
        values = []
        for stage in range(schedule.num_stages):
            chosen = (schedule.op == op) & (schedule.stage == stage)
            values.append(float(np.median(duration[:, chosen])) if chosen.any() else 0.0)
        return values

    full = median(Op.B)
    return StageCosts(
        forward_s=median(Op.F),
        backward_s=full if any(full) else None,
        backward_input_s=median(Op.I),
        backward_weight_s=median(Op.W),
    )
