"""CPU time of cold commands, projections in a process, and tables on disk, relative to bare Python.

    python benchmarks/first_second.py
    python benchmarks/first_second.py --install --write       also README's first command; write into docs/results/speed.md
    python benchmarks/first_second.py --num-microbatches 128      smaller tables: 8 × 64 × 2 actions per microbatch
    PPSIM_PRIMUS=CHECKOUT python benchmarks/first_second.py    also Primus' simulator

A run takes three to five minutes.

Times are user and system time of a process and its threads, the minimum of several runs. On a busy machine the
ratio to `python -c pass` is more reliable than seconds. Byte code must be cached (no PYTHONDONTWRITEBYTECODE), as
in an installation.
"""

import argparse
import os
import platform
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path

import ppsim
from ppsim.base.numba_jit import running_on
from ppsim.catalog.build import TABLES
from ppsim.catalog.search_cache import FOLDER
from ppsim.projection import project as planning
from ppsim.projection.plan import Plan
from ppsim.schedule.analysis_cache import KEPT

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "speed.md"
COMMANDS = {
    "--help": "4 ×",
    "project --pp 8 --vpp 2": "25 ×",
    "project --model llama3-70b --cluster dgx-h100 --gpus 256 --tp 8 --pp 4": "0.7 s",
}
BIG = {"pp": 64, "vpp": 8}
REPEATS = 7
LEAST_S = 0.5  # minimum total of calls in a process
SHORT_S = 0.005  # below this, milliseconds are printed


def cpu_of(*arguments: str, repeats: int = REPEATS) -> float:
    """Return the minimum CPU seconds of a fresh Python with these arguments."""
    found = []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


def cpu_in_process(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the minimum CPU seconds of a call, after one unmeasured call, over at least half a second of calls.

    With only seven calls of half a millisecond, another process on the core could double the result.
    """
    work()
    found: list[float] = []
    while len(found) < repeats or (repeats == REPEATS and sum(found) < LEAST_S):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
    return min(found)


GENERATORS = ("zbv", "v-half", "v-min", "zb-auto")  # warm, p 64, m 1024, without a cached table


@dataclass
class Rows:
    """A table of measurements, printed row by row."""

    bare_s: float
    lines: list[str] = field(default_factory=list)

    def __call__(self, what: str, seconds: float, *, goal: str = "") -> None:
        shown = f"{seconds:.3f} s" if seconds > SHORT_S else f"{1e3 * seconds:.2f} ms"
        self.add(f"| {what} | {shown} | {seconds / self.bare_s:.{1 if seconds > SHORT_S else 2}f} | {goal} |")

    def add(self, line: str) -> None:
        self.lines.append(line)
        print(line, flush=True)

    def write(self, began: str) -> None:
        page = PAGE.read_text(encoding="utf-8")
        found = re.compile(r"^Measured on .*?\n\n(\|[^\n]*\n)+", re.MULTILINE | re.DOTALL)
        table = f"{began}\n\n" + "".join(f"{line}\n" for line in self.lines)
        PAGE.write_text(found.sub(lambda _: table, page, count=1), encoding="utf-8")


def here() -> str:
    information = Path("/proc/cpuinfo")
    known = information.read_text() if information.exists() else ""
    model = re.search(r"model name\s*: (.*)", known)
    return (
        f"Measured on {os.cpu_count()} cores of {model[1] if model else platform.processor()}, {date.today()}, CPython "
        f"{platform.python_version()}, load\naverage {os.getloadavg()[0]:.1f} before the run. Kernels and byte code are "
        'compiled before, except in rows marked "first":'
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-microbatches", dest="microbatches", type=int, default=1024)
    parser.add_argument(
        "--install", action="store_true", help="README's first command, too: needs git and a network"
    )
    parser.add_argument("--write", action="store_true", help="write the table into docs/results/speed.md")
    given = parser.parse_args()
    began = here()
    os.environ[FOLDER] = ""  # no stored answers
    row = Rows(cpu_of("-c", "pass", repeats=3 * REPEATS))
    row.add("| work | CPU | × bare Python | goal |")
    row.add("|---|--:|--:|--:|")
    row("python -c pass", row.bare_s)
    if given.install:
        row("README's first command, by the clock", first_command_s(), goal="60 s")
    for command, goal in COMMANDS.items():
        row(f"ppsim {command}", cpu_of("-m", "ppsim", *shlex.split(command)), goal=goal)
    in_a_process(row)
    beside_primus(row)
    for name in GENERATORS:
        made = cpu_in_process(partial(built_anew, name, given.microbatches), repeats=2)
        row(f"{name}, p64 m{given.microbatches}", made, goal="0.4 s")
    tables_on_disk(row, given.microbatches)
    question = [str(Path(__file__).with_name("tune.py")), "processes:1"]
    row("tune.py processes:1, 405B on 1,024 GPUs", cpu_of(*question, repeats=1), goal="24 s on two cores")
    every_schedule(row)
    if given.write:
        row.write(began)


def first_command_s() -> float:
    command = re.search(r"^python3 -m venv .*$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert command is not None
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
        environment = {name: value for name, value in os.environ.items() if name != FOLDER}
        begin = time.monotonic()
        subprocess.run(
            ["bash", "-c", command[0]], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL
        )
        return time.monotonic() - begin


def in_a_process(row: Rows) -> None:
    """Print the times of projections in a long-running process: the first ones, and later ones (compiled)."""
    plan = Plan(pp=8, vpp=2, microbatches=64)
    slower = iter(range(1_000_000))
    table, costs = ppsim.build("interleaved-1f1b", pp=8, vpp=2, microbatches=64), planning.project(plan).costs

    def at_other_costs() -> object:
        return planning.project(replace(plan, stragglers=((3, 1 + next(slower) / 1000),)))

    def rows(when: str, *goals: str) -> None:
        row(f"projection, p8 v2 m64, {when}", cpu_in_process(lambda: planning.project(plan)), goal=goals[0])
        row("the same at other costs", cpu_in_process(at_other_costs), goal=goals[1])
        row("its timeline at other costs", cpu_in_process(lambda: ppsim.simulate(table, costs)))

    with running_on("plain"):
        rows("in plain Python, as a process begins", "", "")
    number = 0
    while "numba" not in sys.modules:
        at_other_costs()
        number += 1
    rows(f"warm: from the {number + 1}th on, by itself", "2 ms", "0.5 ms")


def every_schedule(row: Rows) -> None:
    """Print the time of all schedules for the first run after an installation, and for a repeated one."""
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


def beside_primus(row: Rows) -> None:
    """Print the times of Primus' simulator and of ppsim to build and simulate an interleaved table."""

    def ours() -> None:
        TABLES.clear()
        KEPT.clear()
        ppsim.simulate(ppsim.build("interleaved-1f1b", pp=8, vpp=2, microbatches=64), costs)

    costs = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    row("table, graph and timeline anew, p8 v2 m64", cpu_in_process(ours))
    for name in ("primus", "primus.core.projection.performance_projection"):  # their __init__ files need CUDA
        package = sys.modules[name] = types.ModuleType(name)
        package.__path__ = [str(Path(os.environ.get("PPSIM_PRIMUS", "."), *name.split(".")))]
    try:
        from primus.core.pipeline_parallel.scheduler.schedule_table_factory import produce_schedule_instance
        from primus.core.projection.performance_projection.simulator import SchedulerSimulationRunner
    except ImportError as error:
        row.add(f"| Primus' simulator: not here ({error}) | | | |")
        return
    runner = SchedulerSimulationRunner({"fwd_time": 2.0, "bwd_time": 2.0, "wgrad_time": 2.0})
    shape = {"pp_size": 8, "vpp_size": 2, "micro_batches": 64}

    def theirs() -> None:
        table = produce_schedule_instance("1f1b-interleaved", *shape.values()).generate_schedule_table()
        runner.simulate_scheduler_table(table, shape)

    row("the same by Primus' simulator", cpu_in_process(theirs))


def built_anew(name: str, num_microbatches: int) -> None:
    TABLES.clear()
    ppsim.build(name, pp=BIG["pp"], microbatches=num_microbatches)


def tables_on_disk(row: Rows, num_microbatches: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, given = str(Path(folder, "T.csv")), str(Path(folder, "C.json"))
        Path(given).write_text('{"forward_s": 1.0, "backward_input_s": 1.0, "backward_weight_s": 1.0}')
        shape = f"interleaved-1f1b --pp {BIG['pp']} --vpp {BIG['vpp']} --num-microbatches {num_microbatches}"
        commands = {
            f"build {shape} -o {path}": "2 s", f"simulate {path} --costs {given}": "2 s", f"check {path}": "3 s",
        }  # fmt: skip
        for command, goal in commands.items():
            what = command.replace(path, "T.csv").replace(given, "C.json")
            row(f"ppsim {what}", cpu_of("-m", "ppsim", *shlex.split(command), repeats=2), goal=goal)


if __name__ == "__main__":
    main()
