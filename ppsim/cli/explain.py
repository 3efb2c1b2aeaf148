"""The command `explain`: explain the time of a measured step."""

import shlex
from typing import TYPE_CHECKING

import click

from ppsim.api.output_formats import EXPLANATION
from ppsim.base.errors import ConfigError
from ppsim.base.outputs import write
from ppsim.cli.click_options import options_in
from ppsim.cli.common import (
    by_command,
    check_outputs,
    full_option,
    has_layout,
    json_option,
    output_option_of,
    run_config_of,
    say,
    tell,
)  # fmt: skip
from ppsim.cli.progress import progress
from ppsim.projection.options import PlanOptions

if TYPE_CHECKING:
    from ppsim.projection.projection import Projection


@click.command()
@click.argument("measured", metavar="RUN")
@click.option(
    "--against", metavar="PROJECTION",
    help="What of the difference to a projection is each cause: a file of ppsim project or simulate (-o "
         "NAME.json), a costs file, for the run's own table, or in quotes the options of ppsim project.",
)  # fmt: skip
@json_option
@full_option
@output_option_of(".html timeline with the losses beside, .json, .md")
def explain(measured: str, against: str | None, as_json: bool, full: bool, outputs: tuple[str, ...]) -> None:
    """Say why a measured step takes as long as it does: losses by cause, which sum to the step.

    \b
      ppsim explain pp_dump/ -o explain.html
      ppsim explain measured.json --against projected.json
      ppsim explain traces/ --against "--model llama3-70b --gpus 64 --tp 8 --pp 4"

    RUN is what ppsim read reads. All steps are replayed through the simulator as they were, then without one cause
    after the other: slow links, waits for messages, pauses, gaps between passes, slow first passes, straggling
    steps, drift, uneven microbatches, passes that vary, slow ranks, uneven stages. What remains is the schedule's
    own bubble. The reasons on top have the largest gain first: how much shorter the step would be without this
    cause alone, and at which rank, pair of ranks, pass or step it is. Steps count from 1, warm-up included. Then:
    ranks holding up others.
    """
    from ppsim.api import measured as runs
    from ppsim.api.outputs import explanation_drawn
    from ppsim.api.read import inputs_of

    check_outputs(outputs, EXPLANATION, inputs=inputs_of(measured))
    projected = _projection_of(against) if against is not None and against.lstrip().startswith("-") else against
    with progress("reading the run, and replaying it without each cause"):
        found = runs.explain(measured, against=projected)
    if outputs:
        write(outputs, EXPLANATION, by_command(explanation_drawn(found)), announce=say)
    tell(found, as_json, full=full)


def _projection_of(words: str) -> "Projection":
    from ppsim.api.project import plan_from
    from ppsim.cli.project import project as command
    from ppsim.projection.project import project

    try:
        options = options_in(command, PlanOptions, shlex.split(words))
    except ValueError as error:
        raise ConfigError(f"--against '{words}' is no plan of ppsim project: {error}") from None
    options["run_config"] = run_config_of(options)
    if not has_layout(options):
        raise ConfigError(f"--against '{words}' lacks --pp: the pipeline ranks")
    return project(plan_from(options))
