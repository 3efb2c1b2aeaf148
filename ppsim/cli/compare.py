"""The command `compare`."""

import click

from ppsim.api.output_formats import CALIBRATION, DIFFERENCE, TIMELINE
from ppsim.base.display import show
from ppsim.base.errors import ConfigError
from ppsim.base.option_declarations import declared_options
from ppsim.base.write_outputs import suffix_of, write
from ppsim.cli.click_options import option_of
from ppsim.cli.common import (
    check_outputs,
    json_option,
    output_option,
    print_message,
    print_result,
    rows_option,
    with_command_line,
)  # fmt: skip
from ppsim.projection.options import PlanOptions
from ppsim.results.progress import progress


@click.command()
@click.argument("measured", metavar="MEASURED")
@click.argument("projected", metavar="[PROJECTED.json]", required=False)
@option_of(declared_options(PlanOptions)["calibration"])
@click.option(
    "--fit", metavar="FILE",
    help="Also fit overheads to the run, as `ppsim calibrate` does, and write them to this file.",
)  # fmt: skip
@rows_option
@json_option
@output_option
def compare(
    measured: str,
    projected: str | None,
    calibration: str | None,
    fit: str | None,
    with_rows: bool,
    as_json: bool,
    outputs: tuple[str, ...],
) -> None:
    """Compare a recorded step with a projected one: signed errors of step, passes, stages and peak memory.

    Or compare two projections: the options that differ, and the difference in seconds and bytes by cause.

    \b
      ppsim compare measured.json projected.json -o compare.html
      ppsim compare measured.json --fit overheads.json
      ppsim compare first.json second.json -o both.html

    MEASURED is a timeline of `ppsim train`, or any input of `ppsim read`. PROJECTED.json is a file of `ppsim
    project -o`. Without it, the run's own costs are simulated.

    If both are files of `ppsim project` (-o NAME.json, or --json without a page), they are two plans.

    Errors are projected / measured − 1, so negative errors are too optimistic. For the causes of a slow step, use
    `ppsim explain`.
    """
    from ppsim.api import measured as runs
    from ppsim.api.outputs import comparison_content
    from ppsim.api.read import inputs_of
    from ppsim.runs.compare import summary_of

    if projected is not None and (difference := runs.compare_plans(measured, projected)) is not None:
        check_outputs(outputs, DIFFERENCE, inputs=[measured, projected])
        if given := [flag for flag, option in (("--fit", fit), ("--calibration", calibration)) if option]:
            raise ConfigError(f"{given[0]} is for a recorded step, and both files are projections: leave it out")
        write(outputs, DIFFERENCE, difference, announce=print_message)
        print_result(difference, as_json)
        return
    if fit:
        suffix_of(fit, CALIBRATION)
    check_outputs(outputs, TIMELINE, beside=fit, inputs=inputs_of(measured))
    with progress("reading both, and replaying the measured step"):
        comparison = runs.compare(measured, projected, calibration=calibration)
        fitted = runs.calibrate(measured) if fit else None
    if fit and fitted:
        write([fit], CALIBRATION, (fitted, fit), announce=print_message)
    write(outputs, TIMELINE, with_command_line(comparison_content(comparison, fitted)), announce=print_message)
    print_result(comparison, as_json, content=lambda: summary_of(comparison, fitted), with_rows=with_rows)
    if projected is None and not as_json:
        print_message("projected: the run's own costs, simulated")
    if fitted and not as_json:
        show(fitted)
