"""A timeline on disk: the report with the table, the costs and every time in it, simulated or measured alike."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ppsim.base.errors import ConfigError
from ppsim.base.files import read_json
from ppsim.runs.run import Run
from ppsim.schedule.check import validate
from ppsim.schedule.grammar import format_table, parse_table
from ppsim.schedule.graph import build_graph
from ppsim.simulation.cost_files import costs_to_json
from ppsim.simulation.report import report_of
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.timeline import Timeline

FORMAT: Literal["ppsim-timeline/1"] = "ppsim-timeline/1"


def timeline_to_json(
    timeline: Timeline, costs: StageCosts, *, memory_limit_bytes: float | None = None, **more: Any
) -> dict[str, Any]:
    """Return the report of a timeline with what it takes to load it again; `more` is added as it is.

    `table` has one CSV line a rank; `timeline` one entry an action in table order, then one a transfer in the
    order of the receiving actions, in seconds.
    """
    return {
        "format": FORMAT,
        "origin": timeline.origin,
        **report_of(timeline, costs, memory_limit_bytes=memory_limit_bytes),
        **more,
        "costs": costs_to_json(costs),
        "table": format_table(timeline.schedule).splitlines(),
        "timeline": {
            "start_s": timeline.start.tolist(),
            "end_s": timeline.end.tolist(),
            "blocker": timeline.blocker.tolist(),
        },
    }


def timeline_from_json(data: Any, source: str) -> tuple[Timeline, StageCosts]:
    """Return the timeline that a parsed file holds and its costs; raises `ConfigError` naming what is wrong."""
    # Here and not above: where a run is measured and written, pydantic may be missing.
    from ppsim.base.boundary import validated
    from ppsim.runs.timeline_boundary import Counts, Times
    from ppsim.simulation.cost_schema import costs_from

    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ConfigError(f"{source} is no timeline: ppsim train and ppsim simulate write one with -o NAME.json")
    missing = [key for key in ("table", "timeline", "costs", "origin") if key not in data]
    if missing:
        raise ConfigError(f"{source} is an incomplete timeline: {', '.join(missing)} missing")
    costs = costs_from(data["costs"], f"{source}: costs")
    counts = validated(Counts, {key: data[key] for key in ("replicas", "slices") if key in data}, source)
    table = parse_table(
        "\n".join(data["table"]) + "\n", name=str(data.get("schedule", "")), source=source,
        num_replicas=counts.replicas, num_slices=counts.slices,
    )  # fmt: skip
    validate(table)
    graph = build_graph(
        table, communication=costs.communication, channel=costs.channel, receives=costs.receives, pairs=costs.pairs
    )
    times = validated(Times, data["timeline"], f"{source}: timeline")
    for name in ("start_s", "end_s", "blocker"):
        if len(getattr(times, name)) != graph.num_nodes:
            raise ConfigError(
                f"{source} is wrong: timeline.{name} has {len(getattr(times, name))} entries, the table has "
                f"{graph.num_actions} actions and {graph.num_transfers} transfers"
            )
    timeline = Timeline(
        graph=graph,
        start=np.array(times.start_s),
        end=np.array(times.end_s),
        blocker=np.array(times.blocker, dtype=np.int32),
        costs=costs.resolved_for(table),
        origin="measured" if data["origin"] == "measured" else "simulated",
    )
    return timeline, costs


def read_timeline(path: str | Path) -> tuple[Timeline, StageCosts]:
    """Read the timeline that `ppsim train`, `simulate` or `project` wrote with `-o NAME.json`."""
    return timeline_from_json(read_json(path), str(path))


def run_from_json(data: Any, source: str) -> Run:
    """Return all the steps that a measured timeline's file holds; its one step where it is of an older version.

    Raises `ConfigError` like `timeline_from_json`, and for a timeline that was not measured.
    """
    timeline, costs = timeline_from_json(data, source)
    if timeline.origin != "measured":
        raise ConfigError(f"{source} is not measured but simulated; ppsim train -o {source} measures one")
    run = Run(
        source=source,
        graph=timeline.graph,
        costs=costs,
        start=timeline.start[None],
        end=timeline.end[None],
        has_own_costs=bool(data.get("run", {}).get("emulated", True)),
    )
    if "steps" not in data:
        return run
    from ppsim.base.boundary import validated
    from ppsim.runs.timeline_boundary import Steps

    steps = validated(Steps, data["steps"], f"{source}: steps")
    lengths = {len(step) for step in (*steps.start_s, *steps.end_s)}
    if lengths != {timeline.graph.num_nodes} or len(steps.start_s) != len(steps.end_s):
        raise ConfigError(
            f"{source} is wrong: every step of steps.start_s and steps.end_s needs {timeline.graph.num_nodes} "
            f"entries, as many as the timeline has"
        )
    return replace(
        run,
        start=np.array(steps.start_s),
        end=np.array(steps.end_s),
        gaps_s=steps.between_steps_s,
        message_bytes=steps.message_bytes,
        knows_transfers=steps.knows_transfers,
    )
