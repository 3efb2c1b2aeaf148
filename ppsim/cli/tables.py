"""Commands about schedule tables: `schedules`, `check`, `simulate`, `export`."""

from dataclasses import replace
from typing import Annotated, Any, TypedDict

import click

from ppsim.api.output_formats import TIMELINE, Drawn
from ppsim.base.errors import ConfigError, CostsError, ScheduleError
from ppsim.base.files import naming, write_whole
from ppsim.base.outputs import write
from ppsim.base.words import Option, words_of
from ppsim.cli.click_options import AliasedOption, Choice, command_with, option_of, options_of
from ppsim.cli.common import (
    by_command,
    check_outputs,
    json_option,
    look_of,
    print_json,
    read_table,
    say,
    step_options,
    tell,
)  # fmt: skip
from ppsim.cli.completion import completing
from ppsim.cli.progress import progress
from ppsim.projection.options import CHANNEL, OVERHEADS, RECEIVES, PlanOptions
from ppsim.schedule.choices import Channel, Communication, Receives
from ppsim.trainers import export_targets


# fmt: off
class ReadOptions(TypedDict, total=False):
    """What a CSV table cannot say of itself."""
    replicas: Annotated[int | None, Option(
        "Copies of the model in a CSV table (dualpipe and chimera have 2). Default: 1.",
        metavar="N", section="input",
    )]
    slices: Annotated[int | None, Option(
        "Slices per microbatch (seq1f1b), for a CSV table whose first line does not give them. Default: 1.",
        metavar="N", section="input",
    )]


_COSTS = '{"forward_s": 0.01, "backward_input_s": 0.01, "backward_weight_s": 0.01}'


class CostsOptions(TypedDict, total=False):
    """What a table is simulated at."""
    costs: Annotated[str, Option(
        "Seconds and bytes of each stage's passes, as " + _COSTS + "; all of it: docs/formats.md. Must be given.",
        metavar="C.json", section="input",
    )]


class SimulateOptions(CostsOptions, ReadOptions, total=False):
    """The options of `simulate`."""
    communication: Annotated[Communication | None, Option(
        "Whether compute goes on beside transfers, or waits. Default: what the costs file says, else overlap.",
        section="network",
    )]
    channel: Annotated[Channel | None, replace(CHANNEL, section="network")]
    receives: Annotated[Receives | None, replace(RECEIVES, section="network")]
    overheads: Annotated[str | None, replace(OVERHEADS, section="network")]
    relaxed_wraparound: Annotated[bool | None, Option(
        "As the zero-bubble paper evaluated 1F1B-I: of each group of pp microbatches only the first waits for the "
        "hop between the last rank and the first. No runtime can do that.",
        section="network",
    )]
# fmt: on


@click.command()
@click.argument("name", required=False, shell_complete=completing("schedule"))
@json_option
def schedules(name: str | None, as_json: bool) -> None:
    """List the schedules, or print one's constraints, closed forms, source and the runtimes that can run it.

    \b
      ppsim schedules
      ppsim schedules zbv
      ppsim schedules --json
    """
    from dataclasses import asdict

    from ppsim.catalog.build import every_schedule, find
    from ppsim.results import schedules as show
    from ppsim.trainers.write_schedule import refusals, runtime_facts

    entries = [find(name)] if name else list(every_schedule().values())
    if as_json:
        objects = [
            {key: value for key, value in asdict(entry).items() if key != "build"}
            | {"options": entry.options, "refused_by": {k: v for k, v in refusals(entry).items() if v is not None}}
            for entry in entries
        ]
        print_json(objects[0] if name else {"schedules": objects})
    elif name:
        show.print_entry(entries[0], runtime_facts(entries[0]))
    else:
        show.print_catalog(entries)


@click.command()
@click.argument("table", metavar="T.csv")
@options_of(ReadOptions)
@json_option
def check(table: str, as_json: bool, **read: int | None) -> None:
    """Tell whether a table runs: complete, ordered, free of deadlock, under each channel policy.

    \b
      ppsim check T.csv
      ppsim check schedules/zbv_pp4_v2_m8.csv
      ppsim check T.csv --json

    Exit 0 if it runs on an ideal network, 1 for a deadlock, 2 for a malformed, incomplete or misordered table.
    The matrix at the end tells where channels that share transfers would hang it.
    """
    from dataclasses import asdict

    from ppsim.schedule.check import check as check_table

    with progress(f"checking {table}, on every kind of channel"):
        report = check_table(read_table(table, **read))
    tell(report, as_json, content=lambda: asdict(report), name=table)
    if report.errors:
        raise click.exceptions.Exit(1 if report.errors[0].rule == "deadlock" else 2)


@command_with(
    SimulateOptions,
    {"input": "Input", "network": "Network and runtime"},
)
@click.argument("table", metavar="T.csv")
@step_options
def simulate(table: str, as_json: bool, outputs: tuple[str, ...], **options: Any) -> None:
    """Simulate any table at any costs: step time, bubble, idle time by cause, memory, a timeline.

    \b
      ppsim simulate T.csv --costs C.json
      ppsim simulate T.csv --costs C.json --channel rank -o timeline.html
      ppsim simulate T.csv --costs C.json --json

    T.csv is a table as `ppsim build` writes it. Options for the network override what the costs file says.
    """
    from ppsim.plot.view import View
    from ppsim.runs.timeline_file import timeline_to_json
    from ppsim.simulation.cost_files import Overheads, read_costs, read_overheads
    from ppsim.simulation.report import report_of
    from ppsim.simulation.run import simulate as run

    check_outputs(outputs, TIMELINE)
    if options["costs"] is None:
        raise ConfigError(f"--costs must be given, a file of what a pass takes: {_COSTS}")
    schedule = read_table(table, replicas=options["replicas"], slices=options["slices"])
    if schedule.has_communication and options["receives"]:
        raise ConfigError(f"{table} spells out its receives; --receives is for a table without communication")
    network = {name: options[name] for name in ("communication", "channel", "receives") if options[name]}
    overheads = read_overheads(options["overheads"]) if options["overheads"] else Overheads({})
    stage_costs = read_costs(options["costs"]).replace(**network, **overheads.constants)
    relaxed_wraparound = bool(options["relaxed_wraparound"])
    with progress(f"simulating {table}"), naming(table, ScheduleError), naming(options["costs"], CostsError):
        timeline = run(schedule, stage_costs, relaxed_wraparound=relaxed_wraparound)
        report = report_of(timeline, stage_costs)
    title = timeline.schedule.name
    if relaxed_wraparound:
        title += ", relaxed wrap-around"
        say("relaxed wrap-around: most hops between the last rank and the first are not waited for; no runtime can")
    runs: dict[str, Any] = {"overheads_fitted_runs": list(overheads.fitted_runs)} if overheads.fitted_runs else {}
    drawn = Drawn([View(timeline, title)], lambda: timeline_to_json(timeline, stage_costs, **runs))
    write(outputs, TIMELINE, by_command(drawn), announce=say)
    tell(timeline, as_json, content=lambda: report, report=report, **look_of(options))


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
