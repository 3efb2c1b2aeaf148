"""Commands that run for real, or look at what did: `train`, `read`, `explain`, `compare`."""

import shlex
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import click

from ppsim.api.output_formats import CALIBRATION, EXPLANATION, TIMELINE, TOTALS
from ppsim.base.errors import ConfigError
from ppsim.base.outputs import suffix_of, write
from ppsim.base.shown import show
from ppsim.base.words import Option, words_of
from ppsim.cli.click_options import command_with, option_of, options_in
from ppsim.cli.common import (
    by_command,
    check_outputs,
    full_option,
    json_option,
    look_of,
    output_option,
    output_option_of,
    rows_option,
    run_config_of,
    say,
    step_options,
    tell,
)  # fmt: skip
from ppsim.cli.progress import progress
from ppsim.projection.options import PlanOptions
from ppsim.runtime.options import TrainOptions

if TYPE_CHECKING:
    from ppsim.projection.projection import Projection


class TableOptions(TypedDict, total=False):
    """What is run."""

    schedule: Annotated[str | None, Option(
        "The table to execute, with or without communication; or, with --pp, a name from `ppsim schedules`.",
        metavar="T.csv|NAME", section="processes",
    )]  # fmt: skip
    pp: Annotated[int | None, Option(
        "Pipeline ranks for which the schedule named is built (default: 1f1b, or interleaved-1f1b for --vpp).",
        metavar="N", section="processes", least=1,
    )]  # fmt: skip
    vpp: Annotated[int | None, Option(
        "Stages a rank holds, with --pp. Default: the fewest that the schedule takes.",
        metavar="N", section="processes", least=1,
    )]  # fmt: skip
    microbatches: Annotated[int | None, Option(
        "Microbatches a step, with --pp. Default: 4 a rank.", metavar="N", section="processes", least=1,
    )]  # fmt: skip


class RunOptions(TableOptions, TrainOptions, total=False):
    """The options of `train`."""


_SECTIONS = {"processes": "Processes and device", "model": "Model and data", "run": "Run"}


@command_with(RunOptions, _SECTIONS)
@step_options
def train(outputs: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Execute a table for real with torch: losses, gradients, measured timeline.

    \b
      ppsim train --schedule T.csv --verify -o measured.json -o measured.html
      ppsim train --schedule T.csv --partitions 4 --emulate-costs C.json -o m.json
      torchrun --nproc-per-node 4 -m ppsim train --schedule T.csv -o measured.json

    Starts one local process a rank (gloo on CPU, nccl on CUDA), or joins those that torchrun started: in a private
    network, for whoever reaches torchrun's store can run code. With --partitions, one process and device, and an
    executor of ppsim's own instead of torch's runtime. The last warm-up step counts the activation bytes of every
    rank.
    """
    from ppsim.api.run_result import recorded_drawn
    from ppsim.api.train import as_files, require_verified, table_from, train_from
    from ppsim.runtime.launch import require_extra

    require_extra("ppsim train")
    check_outputs(outputs, TIMELINE)
    look = look_of(options)
    table = table_from(**{name: options.pop(name) for name in words_of(TableOptions)})
    with as_files(table, None) as (schedule, _):
        trained = train_from(options | {"schedule": schedule})
    if trained is None:
        return
    try:
        write(outputs, TIMELINE, by_command(recorded_drawn(trained)), announce=say)
    finally:  # a run that cannot be written is not to be lost as well
        tell(trained, as_json, content=lambda: trained.report() | {"run": trained.facts}, **look)
    require_verified(trained)


@click.command()
@click.argument("recorded", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--schedule", metavar="T.csv",
    help="The table that was run: needed where ranks have several stages and the recording does not tell which a "
         "pass is of. Default: inferred.",
)  # fmt: skip
@click.option(
    "--pattern", multiple=True, metavar="REGEX",
    help="How ranges name passes, with groups kind (forward, backward, …), stage or chunk, microbatch, rank, as "
         "far as names tell them. May be repeated. Default: the names of torch, Megatron-LM, DeepSpeed and others.",
)  # fmt: skip
@click.option(
    "--warm-up", type=int, metavar="N", default=1, show_default=True,
    help="Steps dropped at the start of a recording (a timeline of ppsim has its own left out).",
)  # fmt: skip
@step_options
def read(recorded: tuple[str, ...], outputs: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Read a run of any trainer: its timeline, which schedule it ran, and what its recording tells.

    \b
      ppsim read pp_dump/ -o run.json
      ppsim read traces/ --pattern '(?P<kind>fwd|bwd)-(?P<microbatch>.+)'
      ppsim read train.log

    RUN is told by content: a folder of Primus' dump_pp_data; torch.profiler's traces or Nsight Systems'
    sqlite exports, files or a folder, one a rank or node; a CSV of passes (rank, kind, stage, microbatch, start,
    end); a timeline of ppsim; a log of Megatron-LM, which has totals only. Clocks are aligned by messages where
    they differ.
    """
    from ppsim.api import read as reading
    from ppsim.api.run_result import recorded_drawn
    from ppsim.runs.totals import Totals

    look = look_of(options)
    inputs = [file for one in recorded for file in reading.inputs_of(one)]
    check_outputs(outputs, TIMELINE, inputs=inputs)
    with progress("reading every pass of every rank"):
        found = reading.read(*recorded, **options)
    if isinstance(found, Totals):
        write(outputs, TOTALS, found, announce=say)
        tell(found, as_json)
        return
    write(outputs, TIMELINE, by_command(recorded_drawn(found)), announce=say)
    tell(found, as_json, content=lambda: found.report() | {"run": found.facts}, **look)


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
    """The projection of a plan, from the options of `ppsim project` in one text."""
    from ppsim.api.project import plan_from
    from ppsim.cli.project import project as command
    from ppsim.projection.project import project

    try:
        options = options_in(command, PlanOptions, shlex.split(words))
    except ValueError as error:
        raise ConfigError(f"--against '{words}' is no plan of ppsim project: {error}") from None
    options["run_config"] = run_config_of(options["run_config"], options)
    if options["pp"] is None and options["run_config"] is None:
        raise ConfigError(f"--against '{words}' lacks --pp: the pipeline ranks")
    return project(plan_from(options))


@click.command()
@click.argument("measured", metavar="MEASURED")
@click.argument("projected", metavar="[PROJECTED.json]", required=False)
@option_of(words_of(PlanOptions)["overheads"])
@click.option("--fit", metavar="FILE", help="Fit overheads to the run, as `ppsim calibrate`, and write them there.")
@rows_option
@json_option
@output_option
def compare(
    measured: str,
    projected: str | None,
    overheads: str | None,
    fit: str | None,
    with_rows: bool,
    as_json: bool,
    outputs: tuple[str, ...],
) -> None:
    """Set a measured step beside a projected one: signed errors by step, pass, stage and peak memory.

    \b
      ppsim compare measured.json projected.json -o compare.html
      ppsim compare measured.json --fit overheads.json
      ppsim compare measured.json --overheads overheads.json

    MEASURED is a run of ppsim train, or what ppsim read reads. Without a projection, its own costs are simulated.
    Errors are projected / measured − 1: negative is too optimistic.
    """
    from ppsim.api import measured as runs
    from ppsim.api.outputs import comparison_drawn
    from ppsim.api.read import inputs_of
    from ppsim.runs.compare import summary_of

    if fit:
        suffix_of(fit, CALIBRATION)
    check_outputs(outputs, TIMELINE, beside=fit, inputs=inputs_of(measured))
    with progress("reading both, and replaying the measured step"):
        comparison = runs.compare(measured, projected, overheads=overheads)
        fitted = runs.calibrate(measured) if fit else None
    if fit and fitted:
        write([fit], CALIBRATION, fitted, announce=say)
    write(outputs, TIMELINE, by_command(comparison_drawn(comparison, fitted)), announce=say)
    tell(comparison, as_json, content=lambda: summary_of(comparison, fitted), with_rows=with_rows)
    if fitted and not as_json:
        show(fitted)
