"""The command `export`: a checked table for a runtime."""

from typing import Any

import click

from ppsim.base.errors import ScheduleError
from ppsim.base.files import naming, write_whole
from ppsim.base.words import words_of
from ppsim.cli.click_options import AliasedOption, Choice, option_of, options_of
from ppsim.cli.common import (
    ReadOptions,
    check_outputs,
    read_table,
    say,
)  # fmt: skip
from ppsim.projection.options import PlanOptions
from ppsim.trainers import export_targets


@click.command()
@click.argument("table", metavar="T.csv")
@click.option(
    "--to", "target", required=True,
    type=Choice(export_targets()), metavar="TARGET",
    help="torch: the compute-only CSV, which every version takes. torch-comms: with sends and receives, for one "
         "version (--torch-version). torchtitan: torch's, and the settings to paste. json: neutral, for runtimes "
         "whose tables are made in Python. primus: its nodes, and how to start it with them. megatron: the "
         "arguments that run this order. deepspeed: its engine's instructions. transformer-engine: _order lists "
         "a rank. See docs/export.md.",
)  # fmt: skip
@option_of(words_of(PlanOptions)["receives"])
@options_of(ReadOptions)
@click.option(
    "--torch-version", metavar="X.Y",
    help="For --to torch-comms: 2.10 to 2.14 write the same, 2.15 wants waits too. Default: 2.13, or what the "
         "table has.",
)  # fmt: skip
@click.option(
    "--split", metavar="N,N,…",
    help="Layers a stage, for --to megatron (a layout string) and --to torchtitan. Default: none.",
)  # fmt: skip
@click.option(
    "--layers-by", type=click.Choice(["layout", "counts"]),
    help="How --to megatron says the layers of --split: by the layout string, or by the numbers of layers that its "
         "older arguments take. Default: layout.",
)  # fmt: skip
@click.option(
    "--trainer-version", metavar="X.Y",
    help="For --to torchtitan: 0.2 (TOML) or 0.3 (flags). Default: 0.3.",
)  # fmt: skip
@click.option(
    "--micro-batch-size", "micro_batch", cls=AliasedOption, also=("--micro-batch",), type=int, metavar="N",
    help="Samples per microbatch, for --to torchtitan. Default: 1.",
)  # fmt: skip
@click.option(
    "--replace", metavar="NAME",
    help="The algorithm in whose place --to primus puts the table. Default: the first of the same placement.",
)  # fmt: skip
@click.option(
    "-o", "--output", required=True, metavar="OUT",
    help="File to write. For --to megatron also .yaml, or .txt for a line to paste.",
)  # fmt: skip
def export(
    table: str, target: Any, receives: Any, torch_version: str | None, output: str, replicas: int | None,
    slices: int | None, **trainer: Any,
) -> None:  # fmt: skip
    """Check a table and write it for a runtime: torch, TorchTitan, Megatron-LM, Primus, DeepSpeed,
    TransformerEngine.

    \b
      ppsim export T.csv --to torch -o ready.csv
      ppsim export T.csv --to torchtitan --trainer-version 0.3 -o ready.csv
      ppsim export T.csv --to primus -o primus.json

    What the trainer is to be told is printed: settings, arguments, or how to start it.
    """
    from ppsim.api.outputs import export as exported
    from ppsim.cli.export_settings import check_options, for_trainer

    check_outputs([output])
    check_options(target, trainer)
    schedule = read_table(table, replicas=replicas, slices=slices)
    with naming(table, ScheduleError):
        split = trainer["split"]
        content = exported(schedule, to=target, receives=receives, torch_version=torch_version, split=split)
        content, told = for_trainer(target, schedule, content, output, trainer)
    write_whole(output, content)
    say(f"wrote {output}")
    if told:
        click.echo(told, nl=False)
