"""Real compute, two ranks: profile this CPU, project, train in torch's runtime, compare.

Profiles and schedules take turns, so that a slow minute of the machine hits all of them, and medians over the turns
count. Profiles are measured two at a time, because the two ranks will share caches and memory as well. Host time
and hop latency are fitted on the GPipe runs alone.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from summary import row, summed_up

import ppsim
from ppsim.base.units import seconds, signed_percent
from ppsim.layout.split import even_split
from ppsim.projection.plan import Plan
from ppsim.projection.project import project_table
from ppsim.runs.calibrate import calibrate
from ppsim.runs.compare import replay_s
from ppsim.runs.recorded import measured_of
from ppsim.runtime.config import MODELS, TrainConfig
from ppsim.runtime.launch import launch_all
from ppsim.schedule.grammar import format_table
from ppsim.simulation.run import simulate_graph

CALIBRATION = "gpipe"
SCHEDULES = ("1f1b", "interleaved-1f1b", "zb-h1", "zbv-fixed")
NUM_MICROBATCHES = 8
NUM_ROUNDS = 6
NUM_STEPS = 3
"""Recorded ones of each schedule in every round."""


def section() -> str:
    """Return the table of projected and measured steps, its errors, and the two rankings."""
    with tempfile.TemporaryDirectory() as folder:
        tables, configs = [], []
        for name in (CALIBRATION, *SCHEDULES):
            vpp = 2 if name in ("interleaved-1f1b", "zbv-fixed") else None
            table = ppsim.build(name, pp=2, vpp=vpp, microbatches=NUM_MICROBATCHES)
            path = Path(folder) / f"{name}.csv"
            path.write_text(format_table(table))
            tables.append(table)
            configs.append(
                TrainConfig(
                    schedule=str(path), num_ranks=2, model=MODELS["mini"],
                    layers_per_stage=even_split(MODELS["mini"].num_layers, table.num_stages),
                    micro_batch=2, num_steps=NUM_STEPS, num_warm_up=2,
                )
            )  # fmt: skip
        profiles, rounds = [], []
        for _ in range(NUM_ROUNDS):
            profiles += two_profiles(Path(folder))
            rounds += launch_all(configs)
        path = Path(folder) / "profile.json"
        path.write_text(json.dumps(middle(profiles)))
        profile = ppsim.load_profile(path)
    plan = Plan(pp=2, profile=profile, split="even", channel="edge")
    projections = [project_table(plan, table) for table in tables]
    results = [joined(rounds[index :: len(configs)]) for index in range(len(configs))]
    measured = [measured_of(result, table, None) for result, table in zip(results, tables, strict=True)]
    fitted = calibrate([measured[0].run])
    action_s, hop_s = (fit.value if fit else 0.0 for fit in (fitted.action, fitted.hop))

    lines = [
        f"Fitted on {CALIBRATION}: {seconds(action_s)} an action, {seconds(hop_s)} a hop.\n",
        row(["schedule", "measured (min–max)", "projected", "raw", f"with {CALIBRATION}'s overheads", "replay"]),
        "|---|--:|--:|--:|--:|--:|",
    ]
    steps, errors = {}, []
    for table, projection, one in zip(tables, projections, measured, strict=True):
        step = one.timeline.step_time_s
        costs = projection.costs.replace(action_overhead_s=action_s, hop_overhead_s=hop_s)
        with_overheads = simulate_graph(one.timeline.graph, costs).step_time_s
        found = [
            projection.timeline.step_time_s / step - 1,
            with_overheads / step - 1,
            replay_s(one.timeline) / step - 1,
        ]
        spread = f"{seconds(step)} ({seconds(min(one.step_times_s))}–{seconds(max(one.step_times_s))})"
        lines.append(
            row([table.name, spread, seconds(projection.timeline.step_time_s), *map(signed_percent, found)])
        )
        if table.name != CALIBRATION:
            errors.append(found)
            steps[table.name] = (step, projection.timeline.step_time_s, with_overheads)
    for title, column in zip(("Raw", "With overheads", "Replay"), zip(*errors, strict=True), strict=True):
        lines.append(f"\n{title}: {summed_up(list(column))}.")
    lines.append("")
    for index, title in enumerate(("measured", "projected", "projected with overheads")):
        ranking = sorted(steps, key=lambda name: steps[name][index])
        lines.append(f"- fastest first, {title}: {', '.join(ranking)}")
    return "\n".join(lines)


def two_profiles(folder: Path) -> list[Any]:
    """Return the content of two profiles that were measured at the same time."""
    command = [
        sys.executable,
        "-m",
        "ppsim",
        "profile",
        "--model",
        "mini",
        "--optimizer",
        "none",
        "--repeats",
        "15",
    ]
    paths = [folder / name for name in ("first.json", "second.json")]
    both = [
        subprocess.Popen(
            [*command, "--start-over", "-o", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for path in paths
    ]
    assert [process.wait() for process in both] == [0, 0]
    return [json.loads(path.read_text()) for path in paths]


def middle(contents: list[Any]) -> Any:
    """Return profiles of the same shape as one: the median of every time.

    >>> middle([{"a": [1.0, "x"]}, {"a": [2.0, "x"]}, {"a": [9.0, "x"]}])
    {'a': [2.0, 'x']}
    """
    first = contents[0]
    if isinstance(first, dict):
        return {key: middle([content[key] for content in contents]) for key in first}
    if isinstance(first, list):
        return [middle(list(entries)) for entries in zip(*contents, strict=True)]
    return statistics.median(contents) if isinstance(first, float) else first


def joined(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the recorded steps of several runs of one configuration as those of one run."""
    return rounds[0] | {
        "steps": [step for one in rounds for step in one["steps"][one["num_warm_up"] :]],
        "losses": [loss for one in rounds for loss in one["losses"][one["num_warm_up"] :]],
        "num_warm_up": 0,
    }
