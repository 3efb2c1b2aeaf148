"""Time frequent commands relative to a bare Python, and append a line to benchmarks/history.csv.

    python benchmarks/history.py NAME [--runs N]

NAME describes the line, for example an issue. Each command is a new process. The number is the median of its CPU
seconds (user and system) over the median of `python -c pass`, so that machines can be compared. Run it on a quiet
machine.
"""

import argparse
import csv
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import ppsim

HISTORY = Path(__file__).with_name("history.csv")
JOB = ["project", "--model", "llama3-405b", "--gpus", "1024", "--tp", "8", "--pp", "8", "--vpp", "2",
       "--global-batch-size", "1024"]  # fmt: skip
COMMANDS = {
    "help": ["--help"],
    "project_cold": ["project", "--pp", "8", "--vpp", "2"],
    "project_job_cold": JOB,
    "tune": ["tune", "--model", "llama2-7b", "--gpus", "16", "--global-batch-size", "64", "--seq-len", "4096"],
    "validate": ["validate"],
}


def cpu_s(command: list[str]) -> float:
    """Return the CPU seconds of a successful command, including child processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def warm_s(runs: int) -> float:
    """Return the median seconds of a projection in this process, after one unmeasured call."""
    ppsim.project(pp=8, vpp=2, microbatches=64)
    seconds = []
    for _ in range(10 * runs):
        begin = time.perf_counter()
        ppsim.project(pp=8, vpp=2, microbatches=64)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="what the line is about")
    parser.add_argument("--runs", type=int, default=5, help="runs of each command (default: 5)")
    given = parser.parse_args()
    bare_s = statistics.median(cpu_s([sys.executable, "-c", "pass"]) for _ in range(2 * given.runs))
    row = {"name": given.name, "date": time.strftime("%Y-%m-%d"), "version": ppsim.__version__,
           "load": f"{os.getloadavg()[0]:.2f}", "bare_python_ms": f"{1e3 * bare_s:.1f}"}  # fmt: skip
    for name, words in COMMANDS.items():
        runs = 2 if name in ("tune", "validate") else given.runs
        seconds = statistics.median(cpu_s([sys.executable, "-m", "ppsim", *words]) for _ in range(runs))
        row[name] = f"{seconds / bare_s:.1f}"
    row["project_warm"] = f"{warm_s(given.runs) / bare_s:.3f}"
    is_new = not HISTORY.exists()
    with HISTORY.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(row), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)
    print("\n".join(f"{name:16} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
