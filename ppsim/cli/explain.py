"""The command `explain`."""

import shlex
from typing import TYPE_CHECKING

import click

from ppsim.api.output_formats import EXPLANATION
from ppsim.base.errors import ConfigError
from ppsim.base.write_outputs import write
from ppsim.cli.click_options import options_in
from ppsim.cli.common import (
    check_outputs,
    full_option,
    has_layout,
    json_option,
    output_option_of,
    print_message,
    print_result,
    run_config_of,
    with_command_line,
)  # fmt: skip
from ppsim.projection.options import PlanOptions
from ppsim.results.progress import progress

if TYPE_CHECKING:
    from ppsim.projection.projection import Projection


@click.command()
@click.argument("measured", metavar="RUN")
@click.option(
    "--against", metavar="PROJECTION",
    help="Split the difference to a projection by cause. PROJECTION is a file of `ppsim project` or `ppsim "
         "simulate` (-o NAME.json), a costs file for the run's own table, or options of `ppsim project` in quotes.",
)  # fmt: skip
@click.option(
    "--ranks", type=int, metavar="N",
    help="Number of pipeline ranks of the run, also those without a recording. [default: the recorded ones; asks "
         "if one seems to be missing]",
)  # fmt: skip
@json_option
@full_option
@output_option_of(".html timeline with the losses, .json, .md")
def explain(
    measured: str, against: str | None, ranks: int | None, as_json: bool, full: bool, outputs: tuple[str, ...]
) -> None:
    """Explain why a recorded step is slow: lost time by cause, which sums to the step time.

    \b
      ppsim explain pp_dump/ -o explain.html
      ppsim explain measured.json --against projected.json
      ppsim explain traces/ --against "--model llama3-70b --gpus 64 --tp 8 --pp 4"

    RUN is any input of `ppsim read`. The simulator replays all steps as recorded, then removes one cause after the
    other: slow links, waits for messages, pauses, gaps between passes, slow first passes, straggling steps, drift,
    uneven microbatches, varying passes, slow ranks, uneven stages. The rest is the pipeline bubble of the schedule.

    The reasons at the top are sorted by gain: the time that the step would save without this cause alone. Each
    reason names its rank, pair of ranks, pass or step (counted from 1, warm-up included). Below are ranks holding
    up others.
    """
    from ppsim.api import measured as runs
    from ppsim.api.outputs import explanation_content
    from ppsim.api.read import inputs_of

    check_outputs(outputs, EXPLANATION, inputs=inputs_of(measured))
    projected = _projection_of(against) if against is not None and against.lstrip().startswith("-") else against
    with progress("reading the run, and replaying it without each cause"):
        explanation = runs.explain(measured, against=projected, ranks=ranks)
    if outputs:
        write(outputs, EXPLANATION, with_command_line(explanation_content(explanation)), announce=print_message)
    print_result(explanation, as_json, full=full)


def _projection_of(words: str) -> "Projection":
    from ppsim.api.project import plan_of_options
    from ppsim.cli.project import project as command
    from ppsim.projection.project import project

    try:
        options = options_in(command, PlanOptions, shlex.split(words))
    except ValueError as error:
        raise ConfigError(f"--against '{words}' is no plan of ppsim project: {error}") from None
    options["run_config"] = run_config_of(options)
    if not has_layout(options):
        raise ConfigError(f"--against '{words}' lacks --pp: the pipeline ranks")
    return project(plan_of_options(options))
