"""`calibrate`: measured runs → the overheads that a projection lacks."""

from typing import TYPE_CHECKING, Any

import click

from ppsim.cli.common import json_option, print_json, say

if TYPE_CHECKING:
    from ppsim.costs.stages import StageCosts
    from ppsim.schedule.table import Schedule
    from ppsim.simulation.measured import Run


@click.command(short_help="Fit overheads to measured runs, for projections to take.")
@click.argument("measured", nargs=-1, required=True, metavar="MEASURED...")
@click.option("--schedule", metavar="T.csv", help="The table that was traced. Default: inferred from the traces.")
@click.option(
    "--costs", metavar="C.json",
    help="What the actions should take, in seconds, or a projection (`project -o NAME.json`) that says it; "
         "overheads are what they take beyond. Default: what was emulated, else the medians of the run's passes.",
)  # fmt: skip
@click.option(
    "--warm-up", type=int, default=1, show_default=True,
    help="Steps dropped at the start of traces (a timeline of `ppsim train` has its own left out).",
)  # fmt: skip
@click.option("-o", "--output", metavar="FILE.json", help="Write the overheads there, for --overheads.")
@json_option
def calibrate(
    measured: tuple[str, ...],
    schedule: str | None,
    costs: str | None,
    warm_up: int,
    output: str | None,
    as_json: bool,
) -> None:
    """Fit host time per action, hops, slow-down beside transfers and time between steps to measured runs.

    \b
      ppsim calibrate measured.json -o overheads.json
      ppsim calibrate small.json large.json -o overheads.json
      ppsim calibrate traces/ --schedule T.csv -o overheads.json

    MEASURED is a timeline of `ppsim train -o NAME.json`, or torch.profiler's chrome traces (.json, .json.gz, or a
    folder of them; one file a rank, of one host, two steps or more) of a run of torch's pipeline runtime: all loose
    trace files together are one run, each folder is one. Runs of two message sizes tell latency from bandwidth.
    """
    from ppsim import show
    from ppsim.errors import ConfigError
    from ppsim.files import check_folder, to_json, write_whole
    from ppsim.schedule.grammar import read_schedule
    from ppsim.simulation import calibrate as fitting

    if warm_up < 0:
        raise ConfigError(f"--warm-up must not be negative: got {warm_up}")
    if output:
        check_folder(output)
    table = read_schedule(schedule) if schedule else None
    given = _costs_in(costs) if costs else None
    runs = _runs(measured, table, given, warm_up)
    found = fitting.calibrate(runs)
    file = fitting.calibration_to_json(found)
    if output:
        write_whole(output, to_json(file))
        say(f"wrote {output}")
    if as_json:
        print_json(file)
    else:
        show.print_calibration(found)


def _costs_in(path: str) -> "StageCosts":
    """The costs of a costs file or of a timeline, without overheads, which are to be found."""
    from ppsim.costs.files import costs_from
    from ppsim.costs.stages import OVERHEADS
    from ppsim.exporting.timeline_json import FORMAT, timeline_from_json
    from ppsim.files import read_json

    data = read_json(path)
    is_timeline = isinstance(data, dict) and data.get("format") == FORMAT
    costs = timeline_from_json(data, path)[1] if is_timeline else costs_from(data, path)
    return costs.replace(**dict.fromkeys(OVERHEADS, 0.0))


def _runs(
    paths: tuple[str, ...], table: "Schedule | None", given: "StageCosts | None", warm_up: int
) -> list["Run"]:
    from dataclasses import replace
    from pathlib import Path

    from ppsim.errors import ConfigError
    from ppsim.exporting.timeline_json import run_from_json
    from ppsim.runtime.kineto import is_trace, read_json_or_gz, trace_from_json

    runs, loose = [], []
    for path in paths:
        if Path(path).is_dir():
            files = sorted(str(file) for file in Path(path).iterdir() if file.name.endswith((".json", ".json.gz")))
            if not files:
                raise ConfigError(f"{path} holds no .json or .json.gz file")
            traces = [trace_from_json(read_json_or_gz(file), file) for file in files]
            runs.append(_traced_run(path, traces, table, given, warm_up))
            continue
        data = read_json_or_gz(path)
        if is_trace(data):
            loose.append(trace_from_json(data, path))
            continue
        run = run_from_json(data, path)
        if table is not None and table.compute_only() != run.graph.schedule:
            raise ConfigError(f"{path} was measured with another table than --schedule {table.name}.csv")
        runs.append(run if given is None else replace(run, costs=_network_of(run, given), has_own_costs=True))
    if loose:
        runs.append(_traced_run(loose[0].source, loose, table, given, warm_up))
    return runs


def _network_of(run: "Run", given: "StageCosts") -> "StageCosts":
    """The given costs on the network of the run, whose graph is built for it."""
    measured = run.costs
    return given.replace(channel=measured.channel, communication=measured.communication, receives=measured.receives)


def _traced_run(
    source: str, traces: list[Any], table: "Schedule | None", given: "StageCosts | None", warm_up: int
) -> "Run":
    from ppsim.errors import ConfigError
    from ppsim.runtime import kineto
    from ppsim.runtime.result import run_of
    from ppsim.schedule.check import validate
    from ppsim.schedule.table import Schedule

    traces = kineto.in_rank_order(traces)
    traced = Schedule.from_rows(kineto.rows_of(traces), name=source)
    validate(traced)
    if table is not None and table.compute_only() != traced.compute_only():
        raise ConfigError(f"{source} was traced with another table than --schedule {table.name}.csv")
    result = kineto.result_of(traces, num_warm_up=warm_up)
    return run_of(result, traced, given, source=source, message_bytes=kineto.message_bytes_of(traces))
