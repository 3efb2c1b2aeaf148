"""The command `train`."""

from typing import Annotated, Any, TypedDict

from ppsim.api.output_formats import TIMELINE
from ppsim.base.option_declarations import Option, declared_options
from ppsim.base.write_outputs import write
from ppsim.cli.click_options import command_with
from ppsim.cli.common import (
    check_outputs,
    drawing_options,
    print_message,
    print_result,
    with_command_line,
    step_options,
)  # fmt: skip
from ppsim.runtime.options import TrainOptions


class TableOptions(TypedDict, total=False):
    """The schedule to execute."""

    schedule: Annotated[str | None, Option(
        "Table to execute, compute-only or with communication. With --pp, a schedule by name (`ppsim schedules`), "
        "by default 1f1b, or interleaved-1f1b with --vpp.",
        metavar="T.csv|NAME", section="processes",
    )]  # fmt: skip
    pp: Annotated[int | None, Option(
        "Pipeline ranks of a schedule that is built by name, instead of read from a table.",
        metavar="N", section="processes", least=1,
    )]  # fmt: skip
    vpp: Annotated[int | None, Option(
        "Stages per rank, with --pp. [default: the fewest that the schedule allows]",
        metavar="N", section="processes", least=1,
    )]  # fmt: skip
    microbatches: Annotated[int | None, Option(
        "Microbatches per step, with --pp. [default: 4 · pp]", metavar="N", section="processes", least=1,
    )]  # fmt: skip


class RunOptions(TableOptions, TrainOptions, total=False):
    """The options of `train`."""


_SECTIONS = {"processes": "Processes and device", "model": "Model and data", "run": "Run"}


@command_with(RunOptions, _SECTIONS)
@step_options
def train(outputs: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Execute a schedule table with torch, and record it: losses, step times, measured timeline.

    \b
      ppsim train --schedule T.csv --verify -o measured.json -o measured.html
      ppsim train --schedule T.csv --partitions 4 --emulate-costs C.json -o m.json
      torchrun --nproc-per-node 4 -m ppsim train --schedule T.csv -o measured.json

    The command starts one local process per rank (gloo on CPU, nccl on CUDA), or joins the processes of torchrun.
    Use torchrun in a private network only, because anyone who can reach its store can run code. With --partitions,
    ppsim's own executor runs all ranks in one process on one device, instead of torch's runtime. The activation
    memory of each rank is measured in the last warm-up step.
    """
    from ppsim.api.run_result import run_content
    from ppsim.api.train import as_files, require_verified, table_from, train_from
    from ppsim.runtime.launch import require_extra

    require_extra("ppsim train")
    check_outputs(outputs, TIMELINE)
    look = drawing_options(options)
    table = table_from(**{name: options.pop(name) for name in declared_options(TableOptions)})
    with as_files(table, None) as (schedule, _):
        trained = train_from(options | {"schedule": schedule})
    if trained is None:
        return
    try:
        write(outputs, TIMELINE, with_command_line(run_content(trained)), announce=print_message)
    finally:  # if a file cannot be written, the result is at least printed
        print_result(trained, as_json, content=lambda: trained.report() | {"run": trained.facts}, **look)
    require_verified(trained)
