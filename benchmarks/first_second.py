"""CPU time of commands from a cold start, of projections in a process and of tables on disk, each beside bare Python.

    python benchmarks/first_second.py
    python benchmarks/first_second.py --microbatches 128      a smaller table: 8 × 64 × 2 actions a microbatch

User and system time of a process and its threads, the least of several: on a busy machine seconds say little, the
ratio to `python -c pass` beside it more. Byte code must be cached (no PYTHONDONTWRITEBYTECODE), as it is where
ppsim is installed.
"""

import argparse
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ppsim
from ppsim.projection import project as planning
from ppsim.projection.plan import Plan

COMMANDS = (
    "--help",
    "project --pp 8 --vpp 2",
    "project --model llama3-70b --cluster dgx-h100 --gpus 256 --tp 8 --pp 4",
)
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


def main() -> None:
    """Print a line a piece of work."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--microbatches", type=int, default=1024)
    num_microbatches = parser.parse_args().microbatches
    bare_s = cpu_of("-c", "pass")

    def show(what: str, seconds: float) -> None:
        print(f"{what:78} {seconds:9.4f} s {seconds / bare_s:8.2f} × bare Python", flush=True)

    show("python -c pass", bare_s)
    for command in COMMANDS:
        show(f"ppsim {command}", cpu_of("-m", "ppsim", *shlex.split(command)))
    plan = Plan(pp=8, vpp=2, microbatches=64)
    slower = iter(range(1_000_000))
    table, costs = ppsim.build("interleaved-1f1b", pp=8, vpp=2, microbatches=64), planning.project(plan).costs
    for engine in ("plain", "compiled"):
        if engine == "compiled":
            import numba  # noqa: F401 - from here on every kernel is compiled
        show(f"warm projection, p8 v2 m64, {engine}", cpu_in_process(lambda: planning.project(plan)))
        changed = cpu_in_process(
            lambda: planning.project(replace(plan, stragglers=((3, 1 + next(slower) / 1000),)))
        )
        show(f"the same at other costs, {engine}", changed)
        show(f"its timeline at other costs, {engine}", cpu_in_process(lambda: ppsim.simulate(table, costs)))
    with tempfile.TemporaryDirectory() as folder:
        path, given = str(Path(folder, "T.csv")), str(Path(folder, "C.json"))
        Path(given).write_text('{"forward_s": 1.0, "backward_input_s": 1.0, "backward_weight_s": 1.0}')
        shape = f"interleaved-1f1b --pp {BIG['pp']} --vpp {BIG['vpp']} --microbatches {num_microbatches}"
        for command in (f"build {shape} -o {path}", f"simulate {path} --costs {given}", f"check {path}"):
            what = command.replace(path, "T.csv").replace(given, "C.json")
            show(f"ppsim {what}", cpu_of("-m", "ppsim", *shlex.split(command), repeats=2))


if __name__ == "__main__":
    main()
