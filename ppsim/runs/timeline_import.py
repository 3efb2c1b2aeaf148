"""Convert the recorded steps of a run to a timeline like a simulated one. Does not import torch."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.errors import RunFailed
from ppsim.runs.run import Run, gaps_between, median_costs
from ppsim.schedule.graph import EventGraph, build_graph
from ppsim.schedule.option_types import Channel
from ppsim.schedule.table import Op, Schedule, last_of_cell
from ppsim.simulation.engine import blockers_of
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.timeline import Timeline

_NO_WAIT_S = 1e-4
"""If an action waited less than this, the message is assumed to have arrived before the wait."""

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
"""Largest relative difference of loss and gradients that rounding explains. Shorter formats have no limit."""


@dataclass(frozen=True)
class ImportedRun:
    """A recorded run, and the timeline of its median step."""

    timeline: Timeline
    run: Run
    step_times_s: list[float]
    chosen_step: int

    @property
    def costs(self) -> StageCosts:
        return self.run.costs

    def to_json(self) -> dict[str, Any]:
        """Return the steps for a timeline file; times count from each step's first start."""
        run, first = self.run, self.run.start[:, : self.run.graph.num_actions].min(axis=1, keepdims=True)
        names = ("message_bytes", "knows_transfers", "communication", "reference_work")
        return {
            "between_steps_s": list(run.gaps_s),
            "to_collective_s": [list(ranks) for ranks in run.to_collective_s],
            "work_s": {name: spent.tolist() for name, spent in run.work_s.items()},
            "launch_wait_s": [] if run.launch_wait_s is None else run.launch_wait_s.tolist(),
            **{name: getattr(run, name) for name in names},
            "reference_s": [list(ranks) for ranks in run.reference_s],
            "reference_layers": list(run.reference_layers),
            "start_s": (run.start - first).tolist(),
            "end_s": (run.end - first).tolist(),
        }


def import_result(
    result: dict[str, Any], table: Schedule, given: StageCosts | None, *, message_bytes: float | None = None
) -> ImportedRun:
    return import_run(run_of(result, table, given, message_bytes=message_bytes), result["num_warm_up"])


def import_run(run: Run, num_warm_up: int) -> ImportedRun:
    """Return the run with the timeline of its step of (lower) median time."""
    length = run.step_times_s.tolist()
    chosen = sorted(range(len(length)), key=length.__getitem__)[(len(length) - 1) // 2]
    start, end = run.start[chosen], run.end[chosen]
    first = start[: run.graph.num_actions].min()
    timeline = Timeline(
        graph=run.graph, start=start - first, end=end - first, blocker=blockers_of(run.graph, end),
        costs=run.costs.resolved_for(run.graph.schedule), origin="measured",
    )  # fmt: skip
    return ImportedRun(timeline, run, length, num_warm_up + chosen)


def run_of(
    result: dict[str, Any], table: Schedule, given: StageCosts | None, *, source: str = "",
    message_bytes: float | None = None,
) -> Run:  # fmt: skip
    """Return the steps after the warm-up; `result` has the records of each rank and step.

    Without `given`, the costs are medians, and unrecorded transfers take no time and do not queue.
    """
    tells_transfers = any(
        not line["calls"] for step in result["steps"] for rank in step for line in rank["records"]
    )
    channel: Channel = given.channel if given is not None and given.channel != "ideal" else "edge"
    if given is None and not tells_transfers:
        channel = "ideal"
    graph = build_graph(table, channel=channel, receives=given.receives if given is not None else "torch")
    times = [_times_of(step, graph) for step in result["steps"][result["num_warm_up"] :]]
    start, end = np.stack([begin for begin, _ in times]), np.stack([finish for _, finish in times])
    work: dict[str, Floats] = defaultdict(lambda: np.zeros((len(start), graph.num_actions)))
    launch_wait_s = np.zeros((len(start), graph.num_actions))
    entry_of = {str(table[entry]): entry for entry in range(graph.num_actions)}
    for number, step in enumerate(result["steps"][result["num_warm_up"] :]):
        for record in (record for rank in step for record in rank["records"]):
            for name, spent_s in record.get("work", {}).items():
                work[name][number, entry_of[record["name"]]] = spent_s
            if wait_s := record.get("launch_wait_s"):
                launch_wait_s[number, entry_of[record["name"]]] = wait_s
    knows_transfers = graph.num_transfers > 0 and all(
        sum(len(rank["transfers"]) for rank in step) == graph.num_transfers for step in result["steps"]
    )
    to_collectives = result.get("to_collective_s", [])[result["num_warm_up"] :]
    is_known = all(one is not None for ranks in to_collectives for one in ranks)
    taken = end - start
    costs = median_costs(graph, taken[:, : graph.num_actions]) if given is None else given
    if given is None and knows_transfers:
        costs = costs.replace(transfer_s=float(np.median(taken[:, graph.num_actions :])))
    references = np.array(result.get("reference_s", []))[result["num_warm_up"] :]  # [steps + 1, ranks]
    gaps = gaps_between(graph, start, end)
    if references.size:  # The reference work runs between the steps.
        gaps = (np.array(gaps) - references[1:-1].max(axis=1)).tolist()
    numbers = result.get("numbers", [])[result["num_warm_up"] :]
    if len(numbers) == len(start) and np.any(np.diff(numbers) != 1):  # without the gaps of left-out steps
        gaps, to_collectives = [gap for gap, by in zip(gaps, np.diff(numbers), strict=True) if by == 1], []
    if result["differences"] and result["num_warm_up"] == 0:
        gaps = gaps[1:]  # The first step was compared with a single process before the second step began.
    return Run(
        source, graph, costs.replace(channel=channel), start, end, gaps, message_bytes=message_bytes,
        has_own_costs=given is not None, knows_transfers=knows_transfers,
        reference_s=((references[:-1] + references[1:]) / 2).tolist() if references.size else (),
        reference_work=result.get("reference_work", ""), reference_layers=result.get("reference_layers", ()),
        to_collective_s=to_collectives if is_known else (), work_s=dict(work),
        launch_wait_s=launch_wait_s if launch_wait_s.any() else None,
    )  # fmt: skip


def require_agreement(differences: dict[str, float] | None, dtype: str) -> None:
    """Raise `RunFailed` if `--verify` found a larger difference than rounding in `dtype` explains."""
    if differences is None or dtype not in TOLERANCE:
        return
    if not max(differences["loss"], differences["gradient"]) <= TOLERANCE[dtype]:
        raise RunFailed(
            f"the pipelined step differs from one process by {differences['loss']:.1e} in the loss and "
            f"{differences['gradient']:.1e} in a gradient; rounding in {dtype} explains {TOLERANCE[dtype]:.0e}"
        )


def _times_of(ranks: list[dict[str, Any]], graph: EventGraph) -> tuple[Floats, Floats]:
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
    made_by = last_of_cell(schedule)[graph.source]
    for transfer in range(graph.num_transfers):
        source, target = int(graph.source[transfer]), int(graph.target[transfer])
        node = graph.num_actions + transfer
        op, stage, microbatch = schedule[source]
        name = f"{stage}{'SEND_F' if op is Op.F else 'SEND_B'}{microbatch}"
        if name in under_way:
            start[node], end[node] = under_way[name]
        elif name not in posted:
            start[node] = end[node] = end[made_by[transfer]]
        else:
            begin, finish = posted[name]
            # Without a wait, the arrival is known only to be before the first use.
            start[node], end[node] = begin, max(arrived.get(target, finish), begin)
    return start, end
