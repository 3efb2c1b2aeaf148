"""Time and memory of every generator, and of the search.

    python benchmarks/generators.py

The first table is measured in fresh processes. Peak memory is the process's own maximum, interpreter and imports
included. `warm` is the median of three builds after a first one, in which numba is imported and compiles (it caches
on disk). Schedules that are fitted to costs get stages that differ by up to a third, and a transfer of 2 %. The
second table is measured in one process, warm.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from ppsim.catalog.build import CATALOG, TABLES
from ppsim.schedule.analysis_cache import KEPT

PP, MICROBATCHES = 64, 1024
MOST_S, MOST_GIB = 2.0, 2.0
SIZES = ((8, 32), (64, 256), (64, 1024))


def timed(work: Callable[[], Any], *, repeats: int = 3) -> float:
    """Return the median seconds of a function, after one unmeasured call."""
    work()
    taken = []
    for _ in range(repeats):
        KEPT.clear()
        TABLES.clear()
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def measure(name: str) -> dict[str, float]:
    import resource

    import ppsim

    entry = CATALOG[name]
    options = {"costs": ppsim.StageCosts(**uneven(entry.stages_per_rank[0], PP))} if entry.takes("costs") else {}
    seconds = timed(lambda: ppsim.build(name, pp=PP, microbatches=MICROBATCHES, **options))
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    table = ppsim.build(name, pp=PP, microbatches=MICROBATCHES, **options)
    return {"actions": table.num_actions, "seconds": seconds, "gib": kibibytes / 2**20}


def catalogue() -> None:
    print(f"Every schedule at p={PP}, m={MICROBATCHES}, the fewest stages per rank; a process each:\n")
    print("| schedule | actions | warm | peak memory |")
    print("|---|--:|--:|--:|")
    slow, large = [], []
    for name in CATALOG:
        # This process must import little: Linux counts the memory of the parent process as the child's.
        shown = subprocess.run(
            [sys.executable, __file__, "--measure", name], capture_output=True, check=True
        ).stdout
        found = json.loads(shown)
        slow += [name] * (found["seconds"] > MOST_S)
        large += [name] * (found["gib"] > MOST_GIB)
        print(f"| {name} | {found['actions']:,} | {found['seconds']:.2f} s | {found['gib']:.2f} GiB |", flush=True)
    print(
        f"\nabove {MOST_S:g} s: {', '.join(slow) or 'none'}; above {MOST_GIB:g} GiB: {', '.join(large) or 'none'}\n"
    )


def uneven(vpp: int, p: int) -> dict[str, Any]:
    """Return costs of stages that differ by up to a third, with a transfer of 2 %."""
    import numpy as np

    spread = np.random.default_rng(0).uniform(0.85, 1.15, (3, vpp * p)) / vpp
    return {
        "forward_s": 0.297 * spread[0], "backward_input_s": 0.294 * spread[1],
        "backward_weight_s": 0.199 * spread[2], "transfer_s": 0.005,
    }  # fmt: skip


def fitted() -> None:
    from ppsim.catalog.search.best_table import best_table
    from ppsim.schedule.placement import STYLES
    from ppsim.simulation.bounds.problem import Problem

    print("Stages that differ by up to a third:\n")
    print("| table | fitted, by span | fitted, by step |")
    print("|---|--:|--:|")
    for p, m in SIZES:
        for style, part in (("loop", 1.0), ("loop", 2.0), ("v", 0.5), ("v", 1.0)):
            vpp = 2 if style == "v" else 1
            problem = Problem.of(
                stage_to_rank=STYLES[style](p, vpp * p), num_microbatches=m, cap=part * p, activation=1 / vpp,
                **uneven(vpp, p),
            )  # fmt: skip
            seconds = [
                timed(
                    lambda problem=problem, criterion=criterion: best_table(
                        problem, criterion=criterion, engine="compiled"
                    )
                )
                for criterion in ("span", "step")
            ]
            name = "V" if style == "v" else "one stage per rank"
            cells = " | ".join(f"{1e3 * value:,.1f} ms" for value in seconds)
            print(f"| {name}, p={p} m={m}, {part:g} of 1F1B's memory | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", metavar="NAME", help="build one schedule here and print what it took")
    if name := parser.parse_args().measure:
        print(json.dumps(measure(name)))
        return
    libraries = ", ".join(f"{library} {version(library)}" for library in ("numpy", "numba"))
    print(f"Python {platform.python_version()}, {libraries}, {platform.machine()}\n")
    catalogue()
    fitted()


if __name__ == "__main__":
    main()
