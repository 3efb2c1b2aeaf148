"""The command `fit`."""

from typing import Any

import click

from ppsim.api.output_formats import CALIBRATION
from ppsim.base.write_outputs import write
from ppsim.cli.common import check_outputs, json_option, print_message, print_result
from ppsim.results.progress import progress


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUNS...")
@click.option(
    "--cluster", metavar="NAME|FILE",
    help="Cluster of runs and logs. If the rows are from several clusters, the one to fit. [default: the cluster "
         "in the rows]",
)  # fmt: skip
@click.option(
    "--run-config", metavar="FILE",
    help="Trainer configuration of a recorded run. [default: the arguments in a Megatron-LM log]",
)  # fmt: skip
@click.option(
    "--rows", metavar="fit|one|one-a-model|N,N-N",
    help="Rows to fit: those marked fit (fit), the run with the fewest GPUs per dtype (one), also per model "
         "(one-a-model), or row numbers. [default: fit, or all rows if none is marked]",
)  # fmt: skip
@click.option(
    "-o", "--output", metavar="FILE.json",
    help="Calibration file, an input of --calibration. An existing one keeps its overheads.",
)  # fmt: skip
@json_option
def fit(runs: tuple[str, ...], output: str | None, as_json: bool, **options: Any) -> None:
    """Fit the calibration constants of your cluster to measured step times.

    \b
      ppsim fit runs.csv -o mine.json      for ppsim project --calibration
      ppsim fit runs.csv --rows 1 --json   one row only
      ppsim fit dgxc-gb200 --rows one      published rows

    RUNS are .csv files with options of `ppsim project`, a metric and a value (as for `ppsim validate`), names of
    validation sets, or inputs of `ppsim read`. A Megatron-LM log that contains its arguments needs nothing else.

    One measured step is enough. The constants of the GPU type are the priors, and constants that the rows do not
    determine keep them. The fixed time per step of a job is printed as an option to add (--extra-step-time).

    For the overheads of a pipeline runtime, from recorded timelines, use `ppsim calibrate`.
    """
    from ppsim.api.fit import fit as fit_runs

    if output:
        read = (*runs, options["cluster"], options["run_config"])
        check_outputs([output], CALIBRATION, inputs=[one for one in read if one])
    with progress("fitting constants: projecting every run, each constant changed in turn"):
        fitted = fit_runs(*runs, **options)
    if output:
        write([output], CALIBRATION, (fitted, output), announce=print_message)
    print_result(fitted, as_json)
