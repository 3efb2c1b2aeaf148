"""The command `read`."""

from typing import Any

import click

from ppsim.api.output_formats import TIMELINE, TOTALS
from ppsim.base.write_outputs import write
from ppsim.cli.common import (
    check_outputs,
    drawing_options,
    print_message,
    print_result,
    step_options,
    with_command_line,
)  # fmt: skip
from ppsim.results.progress import progress


@click.command()
@click.argument("recorded", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--schedule", metavar="T.csv",
    help="Table of the recorded run. Required if ranks have several stages and the recording does not contain the "
         "stage of each pass. [default: inferred]",
)  # fmt: skip
@click.option(
    "--pattern", multiple=True, metavar="REGEX",
    help="Pattern of the range names of passes, with the groups kind (forward, backward, …), stage or chunk, "
         "microbatch and rank that the names contain. May be repeated. [default: the names of torch, Megatron-LM, "
         "DeepSpeed and others]",
)  # fmt: skip
@click.option(
    "--warm-up", type=int, metavar="N", default=1, show_default=True,
    help="Number of steps to drop at the start of a recording. Timelines of ppsim contain no warm-up steps.",
)  # fmt: skip
@step_options
def read(recorded: tuple[str, ...], outputs: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Read a recorded run of any trainer, and print its timeline, schedule, and time and memory per rank.

    \b
      ppsim read pp_dump/ -o run.json
      ppsim read traces/ --pattern '(?P<kind>fwd|bwd)-(?P<microbatch>.+)'
      ppsim read train.log

    The format of RUN is detected from the content: a folder of Primus' dump_pp_data; torch.profiler traces, Nsight
    Systems sqlite exports or OpenTelemetry spans of Megatron-LM (files or a folder, one file per rank or node); a
    CSV of passes (rank, kind, stage, microbatch, start, end); a timeline of ppsim; a Megatron-LM log, which
    contains step totals only. Different clocks are aligned by the P2P messages.
    """
    from ppsim.api import read as reading
    from ppsim.api.run_result import run_content
    from ppsim.runs.log_totals import LogTotals

    look = drawing_options(options)
    inputs = [file for one in recorded for file in reading.inputs_of(one)]
    check_outputs(outputs, TIMELINE, inputs=inputs)
    with progress("reading every pass of every rank"):
        recording = reading.read(*recorded, **options)
    if isinstance(recording, LogTotals):
        write(outputs, TOTALS, recording, announce=print_message)
        print_result(recording, as_json)
        return
    write(outputs, TIMELINE, with_command_line(run_content(recording)), announce=print_message)
    print_result(recording, as_json, content=lambda: recording.report() | {"run": recording.facts}, **look)
