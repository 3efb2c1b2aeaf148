"""Commands that run for real, or look at what did: `train`, `compare`."""

from typing import Any

import click

from ppsim.cli.common import (
    check_outputs,
    json_option,
    output_option,
    overheads_option,
    print_json,
    rows_option,
    say,
    timeline_option,
)  # fmt: skip
from ppsim.cli.progress import progress
from ppsim.cli.sections import SectionedCommand


def _model_options(command: Any) -> Any:
    for option in reversed(
        (
            click.option(
                "--model", default="nano", show_default=True, metavar="nano|mini|gpt2",
                help="A GPT: a small one for tests, or gpt2.",
            ),
            click.option("--layers", type=int, metavar="N", help="Layers, instead of the model's."),
            click.option("--hidden", type=int, metavar="N", help="Hidden size, instead of the model's."),
            click.option("--heads", type=int, metavar="N", help="Attention heads, instead of the model's."),
            click.option(
                "--seq-len", type=int, metavar="TOKENS", help="Tokens a sequence, instead of the model's."
            ),
            click.option(
                "--micro-batch", type=int, metavar="N", default=2, show_default=True, help="Sequences a microbatch."
            ),
            click.option(
                "--dtype", type=click.Choice(["float32", "float64", "bfloat16", "float16"]), default="float32",
                show_default=True, help="Number format of weights and activations.",
            ),
            click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
                         help="Where to compute."),
            click.option(
                "--threads", type=int, metavar="N", default=1, show_default=True, help="CPU threads of a process."
            ),
        )
    ):  # fmt: skip
        command = option(command)
    return command


_SECTIONS = {
    "Processes and device": ("schedule", "nproc", "partitions", "device", "threads", "timeout"),
    "Model and data": ("model", "layers", "hidden", "heads", "seq_len", "micro_batch", "dtype", "split", "seed"),
    "Run": ("steps", "warm_up", "learning_rate", "receives", "emulate_costs", "verify", "trace"),
}


@click.command(
    cls=SectionedCommand, sections=_SECTIONS,
    short_help="Execute a table for real with torch, and measure it.",
)  # fmt: skip
@click.option(
    "--schedule", required=True, metavar="T.csv", help="The table to execute, with or without communication."
)
@click.option("--nproc", type=int, metavar="N", help="Processes to start, one a rank. Default: the table's ranks.")
@click.option(
    "--partitions",
    type=int,
    metavar="N",
    help="All N ranks in this process on one device instead: on CUDA each on its own part of the "
    "multiprocessors (with --emulate-costs: spin kernels, a stream a rank), on CPU a thread each.",
)
@_model_options
@click.option(
    "--split",
    default="even",
    metavar="even|N,N,…",
    show_default=True,
    help="Layers a stage: even, or numbers as 2,3,3,2.",
)
@click.option("--steps", type=int, metavar="N", default=3, show_default=True, help="Recorded training steps.")
@click.option(
    "--warm-up", type=int, metavar="N", default=1, show_default=True, help="Steps before them, not recorded."
)
@click.option(
    "--learning-rate", type=float, metavar="RATE", default=1e-3, show_default=True, help="Learning rate of AdamW."
)
@click.option(
    "--seed", type=int, metavar="N", default=0, show_default=True, help="Seed of the random weights and batches."
)
@click.option("--receives", type=click.Choice(["torch", "deferred"]), default="torch", show_default=True,
              help="Where torch posts the receives of a compute-only table.")  # fmt: skip
@click.option(
    "--emulate-costs",
    metavar="C.json",
    help="Wait as long as this costs file says instead of computing and transferring. Default: compute.",
)
@click.option("--verify", is_flag=True, help="Compare loss and gradients of the first step with one process.")
@click.option("--trace", metavar="FOLDER", help="Write torch.profiler's trace of every rank to this folder.")
@click.option(
    "--timeout", type=float, metavar="SECONDS", default=120.0, show_default=True,
    help="How long a rank waits for another.",
)  # fmt: skip
@timeline_option
@rows_option
@json_option
@output_option
def train(
    outputs: tuple[str, ...], as_json: bool, with_rows: bool, with_timeline: bool | None, **options: Any
) -> None:
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
    from ppsim.api.runs import require_verified, train_from, write_run
    from ppsim.api.suffixes import TIMELINE
    from ppsim.printing import steps as show
    from ppsim.runtime.launch import require_extra

    require_extra("ppsim train")
    check_outputs(outputs, TIMELINE)
    trained = train_from(options)
    if trained is None:
        return
    try:
        write_run(outputs, trained, announce=say)
    finally:  # a run that cannot be written is not to be lost as well
        if as_json:
            print_json(trained.report() | {"run": trained.facts})
        else:
            show.print_trained(trained, with_rows=with_rows, with_timeline=with_timeline)
    require_verified(trained)


@click.command(short_help="Set a measured step beside a projected one.")
@click.argument("measured", metavar="MEASURED.json")
@click.argument("projected", metavar="[PROJECTED.json]", required=False)
@overheads_option
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

    Without a projection, the measured run's own costs are simulated. Errors are projected / measured − 1:
    negative is too optimistic.
    """
    from ppsim.api import measured as runs
    from ppsim.api.outputs import write_comparison
    from ppsim.api.suffixes import TIMELINE
    from ppsim.base.files import to_json, write_whole
    from ppsim.base.outputs import suffix_of
    from ppsim.printing import runs as show
    from ppsim.runs.calibrate import calibration_to_json
    from ppsim.runs.compare import summary_of

    if fit:
        suffix_of(fit, [".json"])
    check_outputs(outputs, TIMELINE, beside=fit)
    with progress("comparing"):
        comparison = runs.compare(measured, projected, overheads=overheads)
        fitted = runs.calibrate(measured) if fit else None
    if fit and fitted:
        write_whole(fit, to_json(calibration_to_json(fitted)))
        say(f"wrote {fit}")
    write_comparison(outputs, comparison, fitted, announce=say)
    if as_json:
        print_json(summary_of(comparison, fitted))
    else:
        show.print_comparison(comparison, with_rows=with_rows)
        if fitted:
            show.print_calibration(fitted)
