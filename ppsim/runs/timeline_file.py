"""Timeline files: the report with the table, the costs and all times, simulated or measured."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from ppsim.base.arrays import Ints32
from ppsim.base.errors import ConfigError
from ppsim.base.file_schema import AboveZero, Bounds, Count, FileSchema, Moment, NonNegative, Positive, validated
from ppsim.base.files import prefix_errors, read_json
from ppsim.runs.run import ReferenceSpeed, Run
from ppsim.schedule.check import validate
from ppsim.schedule.grammar import format_rows, parse_table
from ppsim.schedule.option_types import Communication
from ppsim.schedule.table import NONE
from ppsim.simulation.cost_files import costs_from, costs_to_json
from ppsim.simulation.report import report_of
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.timeline import Timeline

FORMAT: Literal["ppsim-timeline/1"] = "ppsim-timeline/1"


class _NodeTimes(FileSchema):
    start_s: list[Moment]
    end_s: list[Moment]
    blocker: list[int]


class _Steps(FileSchema):
    between_steps_s: list[Moment]
    message_bytes: NonNegative | None
    knows_transfers: bool
    communication: Communication = "overlap"
    reference_s: list[list[AboveZero]] | list[AboveZero] = field(default_factory=list)
    reference_work: str = ""
    reference_layers: list[Count] = field(default_factory=list)
    to_collective_s: list[list[NonNegative]] = field(default_factory=list)
    work_s: dict[str, list[list[NonNegative]]] = field(default_factory=dict)
    launch_wait_s: list[list[NonNegative]] = field(default_factory=list)
    start_s: list[list[Moment]]
    end_s: list[list[Moment]]


class _File(FileSchema, extra="ignore"):
    """The fields needed to load a timeline; `replicas` and `slices` are not in `table`, whose rows are CSV."""

    origin: Literal["measured", "simulated"]
    schedule: str = ""
    replicas: Positive = 1
    slices: Positive = 1
    gradient_accumulation_steps: Positive = 1
    table: list[str]
    costs: dict[str, Any]
    timeline: _NodeTimes
    steps: _Steps | None = None
    run: dict[str, Any] = field(default_factory=dict)
    iteration_time_s: NonNegative | None = None
    iteration_time_interval_s: Annotated[list[NonNegative], Bounds(min_length=2, max_length=2)] | None = None
    reference_s: AboveZero | None = None
    reference_ends_s: Annotated[list[Moment], Bounds(min_length=2, max_length=2)] | None = None
    reference_work: str = ""
    overheads_fitted_runs: list[str] = field(default_factory=list)


def timeline_to_json(
    timeline: Timeline, costs: StageCosts, *, memory_limit_bytes: float | None = None, **more: Any
) -> dict[str, Any]:
    """Return the report of a timeline with everything to load it again; `more` is added unchanged.

    The entries of `timeline` are the actions in table order, then transfers in the order of the receiving actions.
    """
    return {
        "format": FORMAT,
        "origin": timeline.origin,
        **report_of(timeline, costs, memory_limit_bytes=memory_limit_bytes),
        **more,
        "costs": costs_to_json(costs),
        "table": format_rows(timeline.schedule),
        "timeline": {
            "start_s": timeline.start.tolist(),
            "end_s": timeline.end.tolist(),
            "blocker": timeline.blocker.tolist(),
        },
    }


def timeline_from_json(data: Any, source: str) -> tuple[Timeline, StageCosts]:
    return _loaded(data, source)[1:]


@dataclass(frozen=True)
class Expectation:
    """A projection's 90 % interval of the step time, and its machine speed (`pace`); None if unknown.

    `fitted_runs` are the fingerprints of the runs on which its overheads were fitted.
    """

    iteration_time_interval_s: tuple[float, float] | None = None
    pace: ReferenceSpeed | None = None
    fitted_runs: tuple[str, ...] = ()

    def within(self, timeline: Timeline, iteration_time_s: float, interval_s: Sequence[float]) -> "Expectation":
        """Return a copy with the step's interval: the iteration's interval minus the time between steps."""
        low, high = interval_s
        around = iteration_time_s - timeline.step_time_s
        return replace(self, iteration_time_interval_s=(low - around, high - around))


MADE_BY = "ppsim project, train and simulate write a timeline with -o NAME.json"


def read_timeline(path: str | Path) -> tuple[Timeline, StageCosts]:
    return read_expected(path)[:2]


def read_expected(path: str | Path) -> tuple[Timeline, StageCosts, Expectation]:
    file, timeline, costs = _loaded(read_json(path, made_by=MADE_BY), str(path))
    pace = pace_from(file.reference_s, file.reference_ends_s, file.reference_work)
    said = Expectation(pace=pace, fitted_runs=tuple(file.overheads_fitted_runs))
    if file.iteration_time_interval_s is not None and file.iteration_time_s is not None:
        said = said.within(timeline, file.iteration_time_s, file.iteration_time_interval_s)
    return timeline, costs, said


def pace_from(layer_s: float | None, ends_s: Sequence[float] | None, work: str) -> ReferenceSpeed | None:
    """Return the machine speed of a file; files of older versions, without `ends_s`, have other reference work."""
    if layer_s is None:
        return None
    return (
        ReferenceSpeed(work, layer_s, (ends_s[0], ends_s[1])) if ends_s else ReferenceSpeed("", layer_s, (0.0, 0.0))
    )


def run_from_json(data: Any, source: str) -> Run:
    """Return all steps of a file (one in older versions' files); raises `ConfigError` for a simulated timeline."""
    file, timeline, costs = _loaded(data, source)
    if timeline.origin != "measured":
        raise ConfigError(f"{source} is not measured but simulated; ppsim train -o run.json measures one")
    run = Run(
        source, timeline.graph, costs, timeline.start[None], timeline.end[None],
        has_own_costs=bool(file.run.get("emulated", True)),
    )  # fmt: skip
    if file.steps is None:
        return run
    steps = file.steps
    lengths = {len(step) for step in (*steps.start_s, *steps.end_s)}
    if lengths != {timeline.graph.num_nodes} or len(steps.start_s) != len(steps.end_s):
        raise ConfigError(
            f"{source} is wrong: every step of steps.start_s and steps.end_s needs {timeline.graph.num_nodes} "
            f"entries, as many as the timeline has"
        )
    start, end = np.array(steps.start_s), np.array(steps.end_s)
    table = timeline.schedule
    # An older version stored one number per step, of other reference work.
    references = [one if isinstance(one, list) else [one] * table.num_ranks for one in steps.reference_s]
    for name, count, allowed, what in (
        ("reference_s", len(references), (0, len(start)), "steps"),
        *(("reference_s", len(reference), (table.num_ranks,), "ranks") for reference in references),
        ("reference_layers", len(steps.reference_layers), (0, table.num_stages), "stages"),
        ("to_collective_s", len(steps.to_collective_s), (0, len(steps.between_steps_s)), "gaps"),
        *(("to_collective_s", len(one), (table.num_ranks,), "ranks") for one in steps.to_collective_s),
        *(("work_s", len(named), (len(start),), "steps") for named in steps.work_s.values()),
        *(("work_s", len(one), (len(table),), "actions") for named in steps.work_s.values() for one in named),
        ("launch_wait_s", len(steps.launch_wait_s), (0, len(start)), "steps"),
        *(("launch_wait_s", len(waits), (len(table),), "actions") for waits in steps.launch_wait_s),
    ):
        if count not in allowed:
            raise ConfigError(f"{source} is wrong: steps.{name} has {count} entries for {allowed[-1]} {what}")
    early = np.argwhere((end < start)[:, : timeline.graph.num_actions])
    if len(early):
        step, entry = early[0].tolist()
        raise ConfigError(f"{source} is wrong: steps.end_s[{step}][{entry}] is before the start of the action")
    return replace(
        run, start=start, end=end, gaps_s=steps.between_steps_s, message_bytes=steps.message_bytes,
        knows_transfers=steps.knows_transfers, communication=steps.communication, reference_s=references,
        reference_work=steps.reference_work if steps.reference_layers else "",
        reference_layers=steps.reference_layers, to_collective_s=steps.to_collective_s,
        work_s={name: np.array(spent) for name, spent in steps.work_s.items()},
        launch_wait_s=np.array(steps.launch_wait_s) if steps.launch_wait_s else None,
    )  # fmt: skip


def _loaded(data: Any, source: str) -> tuple[_File, Timeline, StageCosts]:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        if isinstance(data, dict) and "model_type" in data:
            raise ConfigError(
                f"{source} is a model's config.json, not a recorded run: give it to `ppsim project --model`, which "
                f"traces an unknown model_type, or store its trace: `ppsim models --trace {source} -o NAME.json`"
            )
        raise ConfigError(f"{source} is no timeline: {MADE_BY}")
    file = validated(_File, data, source)
    costs = costs_from(file.costs, f"{source}: costs")
    table = parse_table(
        "\n".join(file.table) + "\n", name=file.schedule, source=source, num_replicas=file.replicas,
        num_slices=file.slices,
    )  # fmt: skip
    with prefix_errors(source):
        table = replace(table, num_rounds=file.gradient_accumulation_steps)
        validate(table)
        graph = costs.graph(table)
        resolved = costs.resolved_for(table)
    for name, entries in vars(file.timeline).items():
        if len(entries) != graph.num_nodes:
            raise ConfigError(
                f"{source} is wrong: timeline.{name} has {len(entries)} entries, the table has "
                f"{graph.num_actions} actions and {graph.num_transfers} transfers"
            )
    start, end = np.array(file.timeline.start_s), np.array(file.timeline.end_s)
    if len(early := np.flatnonzero((end < start)[: graph.num_actions])):
        raise ConfigError(f"{source} is wrong: timeline.end_s[{early[0]}] is before the start of the action")
    blocker = _blockers(file.timeline.blocker, source)
    timeline = Timeline(graph=graph, start=start, end=end, blocker=blocker, costs=resolved, origin=file.origin)
    return file, timeline, costs


def _blockers(blocker: list[int], source: str) -> Ints32:
    """Check that blockers are nodes or NONE, without a cycle."""
    if odd := [node for node in blocker if not NONE <= node < len(blocker)]:
        raise ConfigError(f"{source} is wrong: timeline.blocker holds {odd[0]}; there are {len(blocker)} nodes")
    before = np.array([*blocker, NONE])  # index −1 (NONE) selects this last entry
    for _ in range(len(blocker).bit_length()):
        before = before[before]
    if (before != NONE).any():
        node = int(np.argmax(before != NONE))
        raise ConfigError(f"{source} is wrong: timeline.blocker goes round in a circle at entry {node}")
    return np.array(blocker, dtype=np.int32)
