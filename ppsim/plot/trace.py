"""Timelines as Chrome trace-event JSON ("Trace Event Format", Chromium project), for ui.perfetto.dev.

Times are in microseconds, rounded to eighths, which are exact both in binary and in whole nanoseconds. Otherwise
neighbouring slices could overlap by a nanosecond, and viewers drop overlapping slices.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.plot.hover import Hover
from ppsim.plot.lanes import Lane, compute_lanes, has_transfers, memory_lines, transfer_lanes
from ppsim.plot.scale import heading, time_scale
from ppsim.schedule.table import Op
from ppsim.simulation.timeline import Timeline

Event = dict[str, Any]

_EIGHTHS_A_SECOND = 8e6


def chrome_trace(timelines: Sequence[Timeline], names: Sequence[str]) -> dict[str, Any]:
    """Return the trace of timelines, one process each, as an object for `json.dumps`.

    Flow events lead from the action that produces a transfer's content through the transfer to the receiving
    action. Memory is one counter in bytes per rank.
    """
    flow_ids = count(1)
    events: list[Event] = []
    for process, (timeline, name) in enumerate(zip(timelines, names, strict=True), start=1):
        of_process = [*_metadata(timeline, name), *_slices_and_flows(timeline, flow_ids), *_counters(timeline)]
        events += [{"pid": process, **event} for event in of_process]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _metadata(timeline: Timeline, name: str) -> Iterator[Event]:
    title, facts = heading(timeline, name)
    yield {"ph": "M", "name": "process_name", "args": {"name": title}}
    yield {"ph": "M", "name": "process_labels", "args": {"labels": facts}}
    for thread, (_, thread_name) in enumerate(_threads(timeline)):
        yield {"ph": "M", "name": "thread_name", "tid": thread, "args": {"name": thread_name}}
        yield {"ph": "M", "name": "thread_sort_index", "tid": thread, "args": {"sort_index": thread}}


def _threads(timeline: Timeline) -> list[tuple[Lane, str]]:
    compute = [(lane, f"rank {lane.rank} compute") for lane in compute_lanes(timeline)]
    sends = (
        [(lane, f"rank {lane.rank} send") for lane in transfer_lanes(timeline)] if has_transfers(timeline) else []
    )
    return sorted([*compute, *sends], key=lambda thread: thread[0].rank)


def _slices_and_flows(timeline: Timeline, flow_ids: Iterator[int]) -> Iterator[Event]:
    graph, schedule = timeline.graph, timeline.schedule
    hover = Hover(timeline, time_scale(timeline.step_time_s))
    middle_of: dict[int, tuple[int, float]] = {}
    names = [f"{Op(op).name} {microbatch}" for op, microbatch in _pairs(schedule.op, schedule.microbatch)]
    for thread, (lane, _) in enumerate(_threads(timeline)):
        edges = _microseconds(lane.edges)
        for node, begin, end in zip(lane.node.tolist(), edges[:-1], edges[1:], strict=True):
            if node < 0:
                continue
            middle_of[node] = (thread, (begin + end) / 2)
            arguments: dict[str, str | int]
            if node < timeline.num_actions:
                action = schedule[node]
                name, category = names[node], action.op.name
                arguments = {"action": str(action), "stage": action.stage, "microbatch": action.microbatch}
            else:
                source, target = hover.ends_of(node)
                name, category = f"send {names[source]}", "transfer"
                arguments = {"of": str(schedule[source]), "to rank": int(schedule.rank[target])}
            arguments["waited for"] = hover.blocker_of(node)
            event = {"ph": "X", "tid": thread, "ts": begin, "dur": end - begin}
            yield event | {"name": name, "cat": category, "args": arguments}
    # A viewer attaches a flow to the slice at its time; the middle of a slice is safe against rounding.
    for transfer, (source, target) in enumerate(_pairs(graph.source, graph.target), start=graph.num_actions):
        flow = {"id": next(flow_ids), "cat": "flow", "name": names[source]}
        for phase, node in (("s", source), ("t", transfer), ("f", target)):
            if node in middle_of:
                thread, at = middle_of[node]
                yield {"ph": phase, "tid": thread, "ts": at, **flow} | ({"bp": "e"} if phase == "f" else {})


def _counters(timeline: Timeline) -> Iterator[Event]:
    """Yield the bytes on each rank over time, starting with its static bytes at time 0."""
    if not timeline.memory.peak_bytes.max() > 0:
        return
    for line in memory_lines(timeline):
        static = float(timeline.costs.static_bytes[line.rank])
        times = [0.0, *_microseconds(line.at_s)]
        for at, held in zip(times, [static, *line.held_bytes.tolist()], strict=True):
            yield {"ph": "C", "name": f"rank {line.rank} memory", "ts": at, "args": {"bytes": held}}


def _microseconds(seconds: Floats) -> list[float]:
    return list((np.round(seconds * _EIGHTHS_A_SECOND) / 8).tolist())


def _pairs(first: Any, second: Any) -> Iterator[tuple[int, int]]:
    return zip(first.tolist(), second.tolist(), strict=True)
