"""The command `fit`: fit the constants of a machine to measured steps, and write a cluster file."""

from typing import Any

import click

from ppsim.api.output_formats import FITTED
from ppsim.base.outputs import write
from ppsim.cli.common import check_outputs, json_option, say, tell
from ppsim.cli.progress import progress


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUNS...")
@click.option(
    "--cluster", metavar="NAME|FILE",
    help="Where runs and logs ran; of rows of several clusters the one to fit. Default: what the rows say.",
)  # fmt: skip
@click.option(
    "--run-config", metavar="FILE",
    help="What a run ran, a trainer's configuration. Default: of a log of Megatron-LM the log itself.",
)  # fmt: skip
@click.option(
    "--rows", metavar="fit|one|one-a-model|N,N-N",
    help="Rows to fit on: marked fit, of each dtype the one on the fewest devices, of each model, or by number. "
         "Default: those marked fit, or all where none is.",
)  # fmt: skip
@click.option("-o", "--output", metavar="FILE.toml", help="Write the cluster there, for --cluster.")
@json_option
def fit(runs: tuple[str, ...], output: str | None, as_json: bool, **options: Any) -> None:
    """Fit the constants of one's own cluster to one measured step or more, around those of its class.

    \b
      ppsim fit runs.csv -o mine.toml      then: ppsim project --cluster mine.toml
      ppsim fit runs.csv --rows 1 --json   on one of its rows
      ppsim fit dgxc-gb200 --rows one      on published rows

    RUNS are .csv files as `ppsim validate` reads them (words of `ppsim project`, metric and value), its sets, or
    what `ppsim read` reads: of a log of Megatron-LM with its arguments the log is enough. What belongs to a job,
    seconds a step that nothing else covers, is printed as words to add. Constants that the rows do not tell stay at
    the class's.
    """
    from ppsim.api.fit import fit as fit_runs

    if output:
        read = (*runs, options["cluster"], options["run_config"])
        check_outputs([output], FITTED, inputs=[one for one in read if one])
    with progress("fitting constants: projecting every run, each constant changed in turn"):
        found = fit_runs(*runs, **options)
    if output:
        write([output], FITTED, (found, output), announce=say)
    tell(found, as_json)
