"""Speed of building, checking, simulating and reporting tables; and comparison with networkx.

    python benchmarks/engine.py
    python benchmarks/engine.py --growth    from a thousand to ten million actions, one process each: 4 GB, minutes

Warm: numba is imported and has compiled (it caches on disk). networkx's longest path (`dag_longest_path_length`, on
a graph built beforehand) is timed in the same run.
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import networkx
import numba
import numpy as np

import ppsim
from ppsim.base.numba_jit import every_kernel_compiled
from ppsim.catalog.build import TABLES
from ppsim.schedule.analysis_cache import KEPT
from ppsim.schedule.check import validate
from ppsim.schedule.graph import CHANNELS, EventGraph, build_graph
from ppsim.simulation.engine import evaluate, evaluate_many
from ppsim.simulation.report import report_of
from ppsim.simulation.simulate import durations_s, overheads_s, simulate_graph

SIZES = ((8, 2, 64), (64, 8, 1024))
COSTS = ppsim.StageCosts(
    forward_s=1.0, backward_input_s=1.1, backward_weight_s=0.9, transfer_s=0.05, activation_bytes=2**20
)


def timed(work: Callable[[], Any], *, repeats: int) -> tuple[Any, float]:
    """Return the result of a function and its median seconds, after one unmeasured call."""
    result, taken = work(), []
    for _ in range(repeats):
        KEPT.clear()
        TABLES.clear()
        begin = time.perf_counter()
        result = work()
        taken.append(time.perf_counter() - begin)
    return result, statistics.median(taken)


def row(what: str, seconds: float, amount: int) -> None:
    print(f"| {what} | {1e3 * seconds:,.2f} ms | {amount / seconds / 1e6:,.1f} M/s |")


def networkx_of(graph: EventGraph, duration: Any) -> networkx.DiGraph:
    net = networkx.DiGraph()
    for node in range(graph.num_nodes):
        net.add_edge("begin", node, weight=duration[node])
        for cause in graph.waits_for[graph.offsets[node] : graph.offsets[node + 1]].tolist():
            net.add_edge(cause, node, weight=duration[node])
    return net


def measure(p: int, v: int, m: int) -> None:
    repeats = 50 if p == 8 else 3

    def build() -> ppsim.Schedule:
        return ppsim.build("interleaved-1f1b", pp=p, vpp=v, microbatches=m)

    table, build_s = timed(build, repeats=repeats)
    graph = build_graph(table)
    print(f"\n### p={p} v={v} m={m}: {graph.num_actions:,} actions, {graph.num_transfers:,} transfers\n")
    print("| stage | median | nodes (build, check: actions) |")
    print("|---|--:|--:|")
    row("build", build_s, graph.num_actions)
    row("check", timed(lambda: validate(table), repeats=repeats)[1], graph.num_actions)
    for channel in CHANNELS:
        costs = COSTS.replace(channel=channel)
        _, graph_s = timed(lambda costs=costs: build_graph(table, channel=costs.channel), repeats=repeats)
        graph = build_graph(table, channel=channel)
        timeline, simulate_s = timed(lambda graph=graph, costs=costs: simulate_graph(graph, costs), repeats=repeats)
        row(f"graph, {channel}", graph_s, graph.num_nodes)
        row(f"simulate, {channel}", simulate_s, graph.num_nodes)
        row(f"**graph + simulate, {channel}**", graph_s + simulate_s, graph.num_nodes)
    row("report", timed(lambda: report_of(timeline, costs), repeats=repeats)[1], graph.num_nodes)

    graph = build_graph(table)
    resolved = COSTS.resolved(num_stages=table.num_stages, num_ranks=p)
    duration, overhead = durations_s(graph, resolved), overheads_s(graph, COSTS)
    num_sets = 100 if p == 8 else 4
    many = duration * np.random.default_rng(0).uniform(0.9, 1.1, (num_sets, graph.num_nodes))
    row(f"evaluate {num_sets} sets", timed(lambda: evaluate_many(graph, many, overhead), repeats=2)[1],
        num_sets * graph.num_nodes)  # fmt: skip

    times, engine_s = timed(lambda: evaluate(graph, duration, overhead), repeats=repeats)
    net = networkx_of(graph, duration)
    begin = time.perf_counter()
    length = networkx.dag_longest_path_length(net)
    net_s = time.perf_counter() - begin
    assert abs(length / times.end.max() - 1) < 1e-12
    row("networkx longest path, same graph", net_s, graph.num_nodes)
    print(f"\nthe engine takes 1/{net_s / engine_s:,.0f} of networkx's time and finds the same {length:,.2f} s")


GROWTH = ((8, 2, 32), (16, 2, 160), (32, 4, 416), (64, 8, 1024), (64, 8, 10240))
STAGES = ("build", "check", "simulate", "report", "HTML")
LARGEST_SLOPE, MOST_BYTES = 1.05, 250


def grown(p: int, v: int, m: int) -> dict[str, Any]:
    """Return, for every stage of one table, the CPU seconds and the peak bytes per action until its end.

    Imports, compilation and loading are excluded: a table of nine thousand actions runs through all stages before.
    """
    found: dict[str, Any] = {}

    def through(p: int, v: int, m: int) -> None:
        table: Any = None
        timeline: Any = None

        def build() -> None:
            nonlocal table
            table = ppsim.build("interleaved-1f1b", pp=p, vpp=v, microbatches=m)

        def simulate() -> None:
            nonlocal timeline
            timeline = ppsim.simulate(table, COSTS)

        work = (build, lambda: ppsim.check(table), simulate, lambda: report_of(timeline, COSTS),
                lambda: timeline_html([TimelineView(timeline)]))  # fmt: skip
        for stage, one in zip(STAGES, work, strict=True):
            begin = resource.getrusage(resource.RUSAGE_SELF)
            one()
            end = resource.getrusage(resource.RUSAGE_SELF)
            seconds = end.ru_utime - begin.ru_utime, end.ru_stime - begin.ru_stime
            found[stage] = sum(seconds), (peak_bytes() - before) / len(table), seconds[1]
        found["actions"] = len(table)

    from ppsim.plot.html import timeline_html
    from ppsim.plot.plot_model import TimelineView

    with every_kernel_compiled():
        before = 0.0
        through(16, 2, 144)
        before = peak_bytes()
        through(p, v, m)
    return found


def peak_bytes() -> float:
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def growth() -> None:
    """Print CPU seconds of each stage per table, their growth with the number of actions, and bytes per action."""
    print(f"| actions | {' | '.join(STAGES)} | bytes per action up to check, to report, to HTML |")
    print("|--:|" + "--:|" * (len(STAGES) + 1))
    rows = []
    for shape in GROWTH:
        command = [sys.executable, __file__, "--grown", *map(str, shape)]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        times = " | ".join(f"{rows[-1][stage][0]:.3f} s" for stage in STAGES)
        held = ", ".join(f"{rows[-1][stage][1]:,.0f}" for stage in ("check", "report", "HTML"))
        print(f"| {rows[-1]['actions']:,} | {times} | {held} |", flush=True)
    sizes = np.log([row["actions"] for row in rows])
    for name, first in (("slope from the first to the last", 0), ("of the last two", -2)):
        slopes = [
            np.polyfit(sizes[first:], np.log([row[stage][0] for row in rows[first:]]), 1)[0] for stage in STAGES
        ]
        print(f"| {name} | " + " | ".join(f"{slope:.2f}" for slope in slopes) + f" | goal {MOST_BYTES} |")
    largest = rows[-1]
    pages_s, whole_s = (sum(largest[stage][place] for stage in STAGES) for place in (2, 0))
    print(
        f"\ngoal: slopes of at most {LARGEST_SLOPE}; of the largest table's {whole_s:.1f} s the system took {pages_s:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--grown", nargs=3, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.grown:
        print(json.dumps(grown(*arguments.grown)))
        return
    if arguments.growth:
        growth()
        return
    print(
        f"Python {platform.python_version()}, numpy {np.__version__}, numba {numba.__version__}, {platform.machine()}"
    )
    for p, v, m in SIZES:
        measure(p, v, m)


if __name__ == "__main__":
    main()
