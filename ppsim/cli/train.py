"""The command `train`: execute a table with torch."""

from typing import Annotated, Any, TypedDict

from ppsim.api.output_formats import TIMELINE
from ppsim.base.option_declarations import Option, words_of
from ppsim.base.outputs import write
from ppsim.cli.click_options import command_with
from ppsim.cli.common import (
    by_command,
    check_outputs,
    look_of,
    say,
    step_options,
    tell,
)  # fmt: skip
from ppsim.runtime.options import TrainOptions


class TableOptions(TypedDict, total=False):
    """The table to execute."""

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
    finally:  # if a file cannot be written, the result is at least printed
        tell(trained, as_json, content=lambda: trained.report() | {"run": trained.facts}, **look)
    require_verified(trained)
