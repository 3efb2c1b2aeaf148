"""The command `calibrate`: fit the overheads of projections to measured runs."""

from typing import Any

import click

from ppsim.api.output_formats import CALIBRATION
from ppsim.base.outputs import write
from ppsim.cli.common import check_outputs, json_option, say, tell
from ppsim.cli.progress import progress


@click.command()
@click.argument("measured", nargs=-1, required=True, metavar="MEASURED...")
@click.option("--schedule", metavar="T.csv", help="The table that was traced. Default: inferred from the traces.")
@click.option(
    "--costs", metavar="C.json",
    help="What the actions should take, in seconds, or a projection (`project -o NAME.json`) that says it; "
         "overheads are what they take beyond. Default: what was emulated, else the medians of the run's passes.",
)  # fmt: skip
@click.option(
    "--warm-up", type=int, metavar="N", default=1, show_default=True,
    help="Steps dropped at the start of traces (a timeline of `ppsim train` has its own left out).",
)  # fmt: skip
@click.option("-o", "--output", metavar="FILE.json", help="Write the overheads there, for --overheads.")
@json_option
def calibrate(measured: tuple[str, ...], output: str | None, as_json: bool, **options: Any) -> None:
    """Fit host time per action, hops, slow-down beside transfers and time between steps to measured runs.

    \b
      ppsim calibrate measured.json -o overheads.json
      ppsim calibrate small.json large.json -o overheads.json
      ppsim calibrate traces/ --schedule T.csv -o overheads.json

    MEASURED is a timeline of `ppsim train -o NAME.json`, or what `ppsim read` reads: torch.profiler's traces
    (.json, .json.gz, or a folder of them; one file a rank, two steps or more), exports of Nsight Systems, dumps
    of Primus: all loose traces together are one run, each folder is one. Runs of two message sizes tell latency
    from bandwidth.
    """
    from ppsim.api import measured as runs
    from ppsim.api.read import inputs_of
    from ppsim.runs.calibrate import calibration_to_json

    if output:
        check_outputs([output], CALIBRATION, inputs=[file for one in measured for file in inputs_of(one)])
    with progress("fitting overheads: reading every step of every run, and taking medians"):
        found = runs.calibrate(*measured, **options)
    if output:
        write([output], CALIBRATION, found, announce=say)
    tell(found, as_json, content=lambda: calibration_to_json(found))
