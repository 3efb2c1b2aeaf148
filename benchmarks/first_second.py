"""CPU time of commands from a cold start, of projections in a process and of tables on disk, each beside bare Python.

    python benchmarks/first_second.py
    python benchmarks/first_second.py --microbatches 128      smaller tables: 8 × 64 × 2 actions a microbatch
    PPSIM_ORACLES=FOLDER python benchmarks/first_second.py    Primus' simulator too, whose code is in FOLDER/primus

User and system time of a process and its threads, the least of several: on a busy machine seconds say little, the
ratio to `python -c pass` beside it more. Byte code must be cached (no PYTHONDONTWRITEBYTECODE), as it is where
ppsim is installed.
"""

import argparse
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import ppsim
from ppsim.base.compiling import every_kernel_compiled
from ppsim.catalog.answers import FOLDER
from ppsim.catalog.build import TABLES
from ppsim.projection import project as planning
from ppsim.projection.plan import Plan
from ppsim.schedule.kept import KEPT

COMMANDS = {
    "--help": "4 ×",
    "project --pp 8 --vpp 2": "25 ×",
    "project --model llama3-70b --cluster dgx-h100 --gpus 256 --tp 8 --pp 4": "0.7 s",
}
BIG = {"pp": 64, "vpp": 8}
REPEATS = 7


def cpu_of(*arguments: str, repeats: int = REPEATS) -> float:
    """Return the least CPU seconds of a fresh Python with these arguments."""
    found = []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


def cpu_in_process(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the least CPU seconds of a call, after one that is not counted."""
    work()
    found = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
    return min(found)


GENERATORS = ("zbv", "v-half", "v-min", "zb-auto")  # warm, p 64, m 1024: each anew


def show(what: str, seconds: float, *, bare_s: float, goal: str = "") -> None:
    """Print a row: what, CPU seconds, their ratio to bare Python, and what was aimed at."""
    print(f"| {what} | {seconds:.4f} s | {seconds / bare_s:.1f} | {goal} |", flush=True)


def main() -> None:
    """Print a row a piece of work."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--microbatches", type=int, default=1024)
    num_microbatches = parser.parse_args().microbatches
    os.environ[FOLDER] = ""  # every command searches anew
    bare_s = cpu_of("-c", "pass")
    print("| work | CPU | × bare Python | goal |\n|---|--:|--:|--:|")
    row = partial(show, bare_s=bare_s)
    row("python -c pass", bare_s)
    for command, goal in COMMANDS.items():
        row(f"ppsim {command}", cpu_of("-m", "ppsim", *shlex.split(command)), goal=goal)
    plan = Plan(pp=8, vpp=2, microbatches=64)
    slower = iter(range(1_000_000))
    table, costs = ppsim.build("interleaved-1f1b", pp=8, vpp=2, microbatches=64), planning.project(plan).costs
    for engine in ("plain", "compiled"):
        with every_kernel_compiled() if engine == "compiled" else nullcontext():
            row(
                f"warm projection, p8 v2 m64, {engine}", cpu_in_process(lambda: planning.project(plan)), goal="2 ms"
            )
            changed = cpu_in_process(
                lambda: planning.project(replace(plan, stragglers=((3, 1 + next(slower) / 1000),)))
            )
            row(f"the same at other costs, {engine}", changed, goal="0.5 ms")
            row(f"its timeline at other costs, {engine}", cpu_in_process(lambda: ppsim.simulate(table, costs)))
    beside_primus(row)
    for name in GENERATORS:
        made = cpu_in_process(partial(built_anew, name, num_microbatches), repeats=2)
        row(f"{name}, p64 m{num_microbatches}", made, goal="0.4 s")
    tables_on_disk(row, num_microbatches)
    question = [str(Path(__file__).with_name("tune.py")), "processes:1"]
    row("tune.py processes:1, 10,762 configurations", cpu_of(*question, repeats=1), goal="24 s on two cores")
    every_schedule(row)


def every_schedule(row: Callable[..., None]) -> None:
    """Print what every schedule takes for the first time of an installation, which compiled, and for the second."""
    command = ("-m", "ppsim", *shlex.split("project --pp 8 --schedule all"))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NUMBA_CACHE_DIR"] = str(Path(folder, "installed"))
        row("ppsim warm-up, as when ppsim is installed", cpu_of("-m", "ppsim", "warm-up", repeats=1))
        os.environ[FOLDER] = str(Path(folder, "answers"))
        row("ppsim project --pp 8 --schedule all, first", cpu_of(*command, repeats=1), goal="6 s")
        row("the same, asked again", cpu_of(*command, repeats=2), goal="2 s")
        os.environ |= {"NUMBA_CACHE_DIR": str(Path(folder, "elsewhere")), FOLDER: ""}
        row("the same, first, and nothing was compiled for this CPU", cpu_of(*command, repeats=1))
        del os.environ["NUMBA_CACHE_DIR"]


def beside_primus(row: Callable[..., None]) -> None:
    """Print what Primus' simulator takes to make and simulate an interleaved table, and what we take for ours."""

    def ours() -> None:
        TABLES.clear()
        KEPT.clear()
        ppsim.simulate(ppsim.build("interleaved-1f1b", pp=8, vpp=2, microbatches=64), costs)

    costs = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    row("table, graph and timeline anew, p8 v2 m64, compiled", cpu_in_process(ours))
    sys.path.insert(0, str(Path(os.environ.get("PPSIM_ORACLES", "."), "primus")))
    try:
        from primus.core.pipeline_parallel.scheduler.schedule_table_factory import produce_schedule_instance
        from primus.core.projection.performance_projection.simulator import SchedulerSimulationRunner
    except ImportError as error:
        print(f"| Primus' simulator: not here ({error}) | | | |")
        return
    runner = SchedulerSimulationRunner({"fwd_time": 2.0, "bwd_time": 2.0, "wgrad_time": 2.0})
    shape = {"pp_size": 8, "vpp_size": 2, "micro_batches": 64}

    def theirs() -> None:
        table = produce_schedule_instance("1f1b-interleaved", *shape.values()).generate_schedule_table()
        runner.simulate_scheduler_table(table, shape)

    row("the same by Primus' simulator", cpu_in_process(theirs))


def built_anew(name: str, num_microbatches: int) -> None:
    """Build a table that no cache holds."""
    TABLES.clear()
    ppsim.build(name, pp=BIG["pp"], microbatches=num_microbatches)


def tables_on_disk(row: Callable[..., None], num_microbatches: int) -> None:
    """Print what building, simulating and checking take from one file to the next."""
    with tempfile.TemporaryDirectory() as folder:
        path, given = str(Path(folder, "T.csv")), str(Path(folder, "C.json"))
        Path(given).write_text('{"forward_s": 1.0, "backward_input_s": 1.0, "backward_weight_s": 1.0}')
        shape = f"interleaved-1f1b --pp {BIG['pp']} --vpp {BIG['vpp']} --microbatches {num_microbatches}"
        commands = {
            f"build {shape} -o {path}": "2 s", f"simulate {path} --costs {given}": "2 s", f"check {path}": "3 s",
        }  # fmt: skip
        for command, goal in commands.items():
            what = command.replace(path, "T.csv").replace(given, "C.json")
            row(f"ppsim {what}", cpu_of("-m", "ppsim", *shlex.split(command), repeats=2), goal=goal)


if __name__ == "__main__":
    main()
