"""Print errors of published runs that are in no set of `ppsim validate`: python benchmarks/unseen_runs.py RUNS.csv

Columns of the file: `set`, `config`, `metric` (iteration_s, or tflops per GPU), `command` (`ppsim project … --json`)
and `measured`. Rows with another metric are skipped. Paths in commands are relative to the file. Errors are projected /
measured - 1 of the time. `--rows` prints every row, `-o PATH` writes the rows with their projections.
"""

import argparse
import csv
import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from ppsim.base.files import csv_text, write_atomically
from ppsim.cli import main as command_line

METRICS = ("iteration_s", "tflops")


@dataclass(frozen=True)
class UnseenRun:
    """A row of the file with its projection and the bounds of its 90 % interval."""

    columns: dict[str, str]
    measured_s: float
    projected_s: float
    low_s: float
    high_s: float

    @property
    def error(self) -> float:
        return self.projected_s / self.measured_s - 1

    @property
    def is_inside(self) -> bool:
        return self.low_s <= self.measured_s <= self.high_s

    @property
    def half_width(self) -> float:
        """Half of the interval's width, relative to the projection."""
        return (self.high_s - self.low_s) / (2 * self.projected_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    path, output = options.runs.resolve(), options.output and options.output.resolve()
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] in METRICS]
    os.chdir(path.parent)
    runs = [projected(row) for row in rows]
    groups: dict[str, list[UnseenRun]] = {}
    for run in runs:
        groups.setdefault(run.columns["set"], []).append(run)
        if options.rows:
            sign = "" if run.is_inside else "outside"
            print(f"{100 * run.error:+7.1f} % ±{100 * run.half_width:3.0f} {sign:8}{run.columns['config']}")
    print(f"{'set':52} rows  mean error     MAE  inside  half-width")
    for name, group in [*groups.items(), ("all rows", runs)]:
        print(f"{name[:52]:52} {summary(group)}")
    if output:
        lines = [run.columns | {"error": f"{run.error:.4f}", "inside": str(run.is_inside)} for run in runs]
        write_atomically(output, csv_text(lines))


def projected(row: dict[str, str]) -> UnseenRun:
    answer = CliRunner().invoke(command_line, shlex.split(row["command"])[1:])
    if answer.exit_code:
        raise SystemExit(f"{row['config']}: {answer.output}")
    found = json.loads(answer.stdout)
    seconds, (low_s, high_s) = found["iteration_time_s"], found["iteration_time_interval_s"]
    measured_s = float(row["measured"])
    if row["metric"] == "tflops":
        measured_s = seconds * found["model_flops_per_s_per_gpu"] / (1e12 * measured_s)
    return UnseenRun(row, measured_s, seconds, low_s, high_s)


def summary(runs: Sequence[UnseenRun]) -> str:
    count, errors = len(runs), [run.error for run in runs]
    inside, widths = sum(run.is_inside for run in runs), sorted(run.half_width for run in runs)
    mean, absolute = 100 * sum(errors) / count, 100 * sum(map(abs, errors)) / count
    return f"{count:4} {mean:+9.1f} % {absolute:5.1f} % {inside:3}/{count:<3} {100 * widths[count // 2]:8.0f} %"


if __name__ == "__main__":
    main()
