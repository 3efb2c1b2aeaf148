"""The command `calibrate`."""

from typing import Any

import click

from ppsim.api.output_formats import CALIBRATION
from ppsim.base.write_outputs import write
from ppsim.cli.common import check_outputs, json_option, print_message, print_result
from ppsim.results.progress import progress


@click.command()
@click.argument("measured", nargs=-1, required=True, metavar="MEASURED...")
@click.option("--schedule", metavar="T.csv", help="Table of the recorded run. [default: inferred from the traces]")
@click.option(
    "--costs", metavar="C.json",
    help="Expected action times: a costs file, or a projection (`project -o NAME.json`). Overheads are the "
         "measured time beyond them. [default: the emulated costs, else the run's median time per pass]",
)  # fmt: skip
@click.option(
    "--warm-up", type=int, metavar="N", default=1, show_default=True,
    help="Number of steps to drop at the start of traces. Timelines of `ppsim train` contain no warm-up steps.",
)  # fmt: skip
@click.option(
    "-o", "--output", metavar="FILE.json",
    help="Calibration file, an input of --calibration. An existing one keeps its constants of a cluster.",
)  # fmt: skip
@json_option
def calibrate(measured: tuple[str, ...], output: str | None, as_json: bool, **options: Any) -> None:
    """Fit the overheads of a runtime (host, P2P transfers, overlap) to recorded timelines, for --calibration.

    \b
      ppsim calibrate measured.json -o overheads.json
      ppsim calibrate small.json large.json -o overheads.json
      ppsim calibrate traces/ --schedule T.csv -o overheads.json

    The command fits the host time per action, the latency of P2P transfers, the slowdown of compute by overlapping
    transfers, and the time between steps. With runs of two message sizes, latency and bandwidth are fitted
    separately.

    MEASURED is a timeline of `ppsim train -o NAME.json`, or any input of `ppsim read`: torch.profiler traces (.json
    or .json.gz, one file per rank, at least two steps), Nsight Systems exports, Primus dumps. A folder is one run,
    and all single trace files together are one run.

    For the GEMM and network efficiency of your cluster, from step times only, use `ppsim fit`.
    """
    from ppsim.api import measured as runs
    from ppsim.api.read import inputs_of

    if output:
        check_outputs([output], CALIBRATION, inputs=[file for one in measured for file in inputs_of(one)])
    with progress("fitting overheads: reading every step of every run, and taking medians"):
        overheads = runs.calibrate(*measured, **options)
    if output:
        write([output], CALIBRATION, (overheads, output), announce=print_message)
    print_result(overheads, as_json, content=overheads.to_json)
