"""The command `tune`: the best configurations of a model on so many devices."""

import sys
from typing import Any

import click

from ppsim.api.output_formats import SEARCH, Searched
from ppsim.base.outputs import write
from ppsim.base.units import seconds
from ppsim.base.words import words_of
from ppsim.cli.click_options import command_with
from ppsim.cli.common import (
    by_command,
    check_outputs,
    full_option,
    json_option,
    output_option_of,
    run_config_of,
    say,
    tell,
    to_config_option,
    trainer_lines,
)
from ppsim.cli.progress import progress
from ppsim.trainers import ConfigTarget
from ppsim.tuning.options import RangeOptions, TuneOptions

_SECTIONS = {
    "model": "Model and batch",
    "cluster": "Cluster",
    "tried": "What is tried",
    "optimizer": "Optimizer and parallelism, the same for all",
    "search": "Search",
}


_COMMON = (
    "model", "cluster", "gpus", "global_batch", "seq_len", "dtype", "tp", "pp", "vpp", "cp", "ep", "dp",
    "micro_batch", "schedule", "recompute", "zero", "stack", "run_config", "to_config", "memory_limit",
    "top", "resume", "outputs", "as_json", "full",
)  # fmt: skip


@command_with(TuneOptions, _SECTIONS, common=_COMMON)
@to_config_option
@json_option
@full_option
@output_option_of(".json answer, .csv table, .html/.svg/.pdf/.png iteration time over memory")
def tune(
    outputs: tuple[str, ...], as_json: bool, full: bool, to_config: ConfigTarget | None, **options: Any
) -> None:
    """Find the best layout, schedule and batch for a model on so many GPUs.

    \b
      ppsim tune --model llama2-7b --gpus 8 --global-batch-size 64
      ppsim tune --model llama2-7b --gpus 8 --global-batch-size 64 -o tune.svg
      ppsim tune --model llama2-7b --gpus 8 --global-batch-size 64 --pp 2

    Prints the fastest, and those that trade time for memory. Global batch, sequence length and dtype stay. Every
    configuration has a lower bound of its time and memory; those that could be among the fastest or in the Pareto
    set are simulated, so that the answer is that of trying all. Then other recomputation, stages per rank and
    fitted schedules are tried on the best layouts, each unless its range is given.

    Megatron-LM's names of these options are accepted too, for example --tensor-model-parallel-size for --tp.
    """
    from ppsim.api.tune import search_of

    check_outputs(outputs, SEARCH, beside=options["resume"])
    config = options["run_config"] = run_config_of(options["run_config"], options)
    if config and (
        tried := [
            word for word in words_of(RangeOptions) if word != "zero" and word in config.words and not options[word]
        ]
    ):
        say(f"  tried, not taken from it: {', '.join(tried).replace('_', '-')}")
    search = search_of(options)
    if not sys.stderr.isatty():
        say("finding a lower bound of each configuration, then simulating those that may be best")
    with progress("finding a lower bound of each", total=1, unit="configurations") as bar:

        def show(decided: int, total: int, best_s: float | None) -> None:
            best = "" if best_s is None else f", best {seconds(best_s)}"
            bar.update(
                f"simulating those that may be best, the quickest bounds first{best}", done=decided, total=total
            )

        found = search(progress=show)
    write(outputs, SEARCH, by_command(Searched(found)), announce=say)
    lines = trainer_lines(found, to_config, options)
    tell(found, as_json, content=lambda: found.to_json() | lines, full=full)
    if lines and not as_json:
        click.echo(f"\n# {to_config}\n{lines['to_config']}")
