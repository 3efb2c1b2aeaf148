"""Print errors of published runs that are in no set of `ppsim validate`: python benchmarks/unseen_runs.py RUNS.csv

Columns of the file: `set`, `config`, `metric` (iteration_s, or tflops per GPU), `command` (`ppsim project … --json`)
and `measured`. Rows with another metric are skipped. Paths in commands are relative to the file. Errors are projected /
measured - 1 of the time. `--rows` prints every row, `-o PATH` writes the rows with their projections. `--by COLUMN` sums
up by another column than `set`.

The blind tests (blind_runs.csv, blind_runs_2.csv, …_3.csv, …_4.csv): commands and projections of published runs were
committed before the measured times, in the columns `projected_s`, `low_s` and `high_s`. `--recorded` reads these columns
instead of projecting again. Rows whose times were seen before are a group of `trainer_read`:

    python benchmarks/unseen_runs.py benchmarks/blind_runs.csv --by set --by trainer_read --recorded

Without `measured`, rows are only projected: `-o PATH`.
"""

import argparse
import csv
import json
import os
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from ppsim.base.files import csv_text, write_atomically
from ppsim.cli import main as command_line

METRICS = ("iteration_s", "tflops")
RECORDED = ("projected_s", "low_s", "high_s")


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
    parser.add_argument("--by", action="append")
    parser.add_argument("--recorded", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    path, output = options.runs.resolve(), options.output and options.output.resolve()
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] in METRICS]
    os.chdir(path.parent)
    runs = [recorded(row) if options.recorded else projected(row) for row in rows]
    has_times = all(run.measured_s for run in runs)
    if has_times:
        print_errors(runs, columns=options.by or ["set"], prints_rows=options.rows)
    if output:
        judged = [{"error": f"{run.error:.4f}", "inside": str(run.is_inside)} if has_times else {} for run in runs]
        write_atomically(output, csv_text([run.columns | more for run, more in zip(runs, judged, strict=True)]))


def print_errors(runs: Sequence[UnseenRun], *, columns: Sequence[str], prints_rows: bool) -> None:
    if prints_rows:
        for run in runs:
            sign = "" if run.is_inside else "outside"
            print(f"{100 * run.error:+7.1f} % ±{100 * run.half_width:3.0f} {sign:8}{run.columns['config']}")
    print(f"{columns[0]:52} rows  mean error     MAE  inside  half-width")
    for column in columns:
        groups: dict[str, list[UnseenRun]] = {}
        for run in runs:
            groups.setdefault(run.columns[column], []).append(run)
        for name, group in groups.items():
            print(f"{name[:52]:52} {summary(group)}")
    print(f"{'all rows':52} {summary(runs)}")


def recorded(row: dict[str, str]) -> UnseenRun:
    return UnseenRun(row, float(row["measured"]), *(float(row[column]) for column in RECORDED))


def projected(row: dict[str, str]) -> UnseenRun:
    answer = CliRunner().invoke(command_line, shlex.split(row["command"])[1:])
    if answer.exit_code:
        raise SystemExit(f"{row['config']}: {answer.output}")
    found = json.loads(answer.stdout)
    seconds, (low_s, high_s) = found["iteration_time_s"], found["iteration_time_interval_s"]
    measured_s = float(row.get("measured") or 0)
    if row["metric"] == "tflops" and measured_s:
        measured_s = seconds * found["model_flops_per_s_per_gpu"] / (1e12 * measured_s)
    columns = row | {
        column: f"{time_s:.5g}" for column, time_s in zip(RECORDED, (seconds, low_s, high_s), strict=True)
    }
    return UnseenRun(columns, measured_s, seconds, low_s, high_s)


def summary(runs: Sequence[UnseenRun]) -> str:
    count, errors = len(runs), [run.error for run in runs]
    inside, half_width = sum(run.is_inside for run in runs), statistics.median(run.half_width for run in runs)
    mean, absolute = 100 * sum(errors) / count, 100 * sum(map(abs, errors)) / count
    return f"{count:4} {mean:+9.1f} % {absolute:5.1f} % {inside:3}/{count:<3} {100 * half_width:8.1f} %"


if __name__ == "__main__":
    main()
