"""The command `export`."""

import json
from typing import Any

import click

from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.base.files import prefix_errors, to_json, write_atomically
from ppsim.base.option_declarations import declared_options, flag_of, require_least
from ppsim.cli.click_options import AliasedOption, Choice, option_of, options_of
from ppsim.cli.common import (
    ReadOptions,
    check_outputs,
    print_message,
    read_table,
)  # fmt: skip
from ppsim.projection.options import PlanOptions
from ppsim.trainers import export_targets

_FOR = {
    "layers_by": ("megatron",),
    "trainer_version": ("torchtitan",),
    "micro_batch": ("torchtitan",),
    "replace": ("primus",),
}


def _check_options(target: str, options: dict[str, Any]) -> None:
    for name, targets in _FOR.items():
        if options[name] is not None and target not in targets:
            raise ConfigError(f"{flag_of(name)} is for --to {' and '.join(targets)}: got --to {target}")
    if options["layers_by"] and options["split"] is None:
        raise ConfigError("--layers-by says the layers of --split: give it too")
    require_least("micro_batch", options["micro_batch"])


def _for_trainer(target: str, schedule: Any, content: str, output: str, options: dict[str, Any]) -> tuple[str, str]:
    makes = {"megatron": _megatron, "torchtitan": _torchtitan, "primus": _primus}
    return makes[target](schedule, content, output, options) if target in makes else (content, "")


def _megatron(schedule: Any, content: str, output: str, options: dict[str, Any]) -> tuple[str, str]:
    from ppsim.api.option_values import parse_split
    from ppsim.trainers.megatron.write_config import as_entries, as_flags
    from ppsim.trainers.megatron.write_schedule import megatron_arguments

    exported = json.loads(content)
    if options["layers_by"]:
        layers: Any = parse_split(options["split"])
        exported = megatron_arguments(schedule, layers_per_stage=layers, layers_by=options["layers_by"])
        content = to_json(exported)
    line = " ".join(as_flags(exported["arguments"])) + "\n"
    if output.endswith((".yaml", ".yml")):
        content = "\n".join(as_entries(exported["arguments"])) + "\n"
    return (line if output.endswith(".txt") else content), line


def _torchtitan(schedule: Any, content: str, output: str, options: dict[str, Any]) -> tuple[str, str]:
    from ppsim.api.option_values import parse_split
    from ppsim.trainers.torchtitan.write_schedule import settings_text, torchtitan_settings, warnings_of

    version = options["trainer_version"] or "0.3"
    layers: Any = None if options["split"] is None else parse_split(options["split"])
    if layers is not None and not all(isinstance(count, int) for count in layers):
        raise ConfigError(f"--split is '{options['split']}': TorchTitan needs layers per stage, as 7,8,8,7")
    settings = torchtitan_settings(
        schedule, csv=output, version=version, micro_batch=options["micro_batch"] or 1, layers_per_stage=layers
    )
    for warning in warnings_of(schedule, version):
        print_message(f"warning: {warning}")
    return content, settings_text(settings, version)


def _primus(schedule: Any, content: str, output: str, options: dict[str, Any]) -> tuple[str, str]:
    from ppsim.integrations.primus import algorithm_for

    name = algorithm_for(json.loads(content), "the table", options["replace"])
    return content, (
        f"# start.py, for: primus-cli direct --script start.py -- train pretrain --config YOURS.yaml\n"
        f"# with patch_primus_pipeline: true and pp_algorithm: {name} in the configuration\n"
        f"from ppsim.integrations.primus import install\n\n"
        f'install("{output}", replace="{name}")\n\n'
        f"from primus.cli.main import main\n\n"
        f"main()\n"
    )


@click.command()
@click.argument("table", metavar="T.csv")
@click.option(
    "--to", "target", required=True,
    type=Choice(export_targets()), metavar="TARGET",
    help="Format to write (docs/export.md). torch: compute-only CSV for all versions. torch-comms: CSV with sends "
         "and receives for one version (--torch-version). torchtitan: torch's CSV, and settings to paste. json: "
         "neutral format, for runtimes with tables built in Python. primus: its node lists, and a start script. "
         "megatron: arguments for this order. deepspeed: instructions of its engine. transformer-engine: _order "
         "list of each rank.",
)  # fmt: skip
@option_of(
    declared_options(PlanOptions)["receives"],
    help="When --to torch-comms posts receives: as early as torch does (torch), just before use (deferred), or in "
         "the order of the sender (ordered). [default: torch, or as in a table with communication]",
)  # fmt: skip
@options_of(ReadOptions)
@click.option(
    "--torch-version", metavar="X.Y",
    help="Version of torch for --to torch-comms: 2.10 to 2.14 have one format, 2.15 also requires waits. [default: "
         "2.13, or the table's]",
)  # fmt: skip
@click.option(
    "--split", metavar="N,N,…",
    help="Layers per stage, for --to megatron (as layout string) and --to torchtitan. [default: none]",
)  # fmt: skip
@click.option(
    "--layers-by", type=click.Choice(["layout", "counts"]),
    help="Arguments of --to megatron for --split: the layout string (layout), or the older arguments with numbers "
         "of layers (counts). [default: layout]",
)  # fmt: skip
@click.option(
    "--trainer-version", metavar="X.Y",
    help="Version of TorchTitan for --to torchtitan: 0.2 (TOML) or 0.3 (flags). [default: 0.3]",
)  # fmt: skip
@click.option(
    "--micro-batch-size", "micro_batch", cls=AliasedOption, also=("--micro-batch",), type=int, metavar="N",
    help="Sequences per microbatch, for --to torchtitan. [default: 1]",
)  # fmt: skip
@click.option(
    "--replace", metavar="NAME",
    help="Primus pipeline algorithm that the table replaces (--to primus). [default: the first with the same "
         "placement]",
)  # fmt: skip
@click.option(
    "-o", "--output", required=True, metavar="OUT",
    help="Output file. For --to megatron also .yaml, or .txt for a line to paste.",
)  # fmt: skip
def export(
    table: str, target: Any, receives: Any, torch_version: str | None, output: str, replicas: int | None,
    slices: int | None, **trainer: Any,
) -> None:  # fmt: skip
    """Check a schedule table, and write it for torch, TorchTitan, Megatron-LM, Primus, DeepSpeed or
    TransformerEngine.

    \b
      ppsim export T.csv --to torch -o ready.csv
      ppsim export T.csv --to torchtitan --trainer-version 0.3 -o ready.csv
      ppsim export T.csv --to primus -o primus.json

    T.csv is a table of `ppsim build`. The command also prints the settings or arguments for the trainer, or how to
    start it.
    """
    from ppsim.api.outputs import export as exported

    check_outputs([output])
    _check_options(target, trainer)
    schedule = read_table(table, replicas=replicas, slices=slices)
    with prefix_errors(table, ScheduleError):
        split = trainer["split"]
        content = exported(schedule, to=target, receives=receives, torch_version=torch_version, split=split)
        content, sentence = _for_trainer(target, schedule, content, output, trainer)
    write_atomically(output, content)
    print_message(f"wrote {output}")
    if sentence:
        click.echo(sentence, nl=False)
