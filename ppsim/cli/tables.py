"""Commands about schedule tables: `schedules`, `check`, `simulate`, `export`."""

from typing import Any

import click

from ppsim.cli.common import (
    channel_option,
    check_outputs,
    json_option,
    output_option,
    overheads_option,
    print_json,
    read_table,
    receives_option,
    rows_option,
    say,
    table_options,
    timeline_option,
)  # fmt: skip
from ppsim.cli.progress import progress
from ppsim.cli.sections import SectionedCommand


@click.command(short_help="List the schedules, or print one in full.")
@click.argument("name", required=False)
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
    from ppsim.exporting.targets import refusals, runtime_facts
    from ppsim.printing import schedules as show

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


@click.command(short_help="Tell whether a table runs, and on which channels.")
@click.argument("table", metavar="T.csv")
@table_options
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

    from ppsim.printing import schedules as show
    from ppsim.schedule.check import check as check_table

    with progress("checking"):
        report = check_table(read_table(table, **read))
    if as_json:
        print_json(
            {
                "findings": [asdict(finding) for finding in report.findings],
                "verdicts": [asdict(verdict) for verdict in report.verdicts],
            }
        )
    else:
        show.print_check(report, table)
    if report.errors:
        raise click.exceptions.Exit(1 if report.errors[0].rule == "deadlock" else 2)


@click.command(
    cls=SectionedCommand,
    sections={
        "Input": ("costs", "replicas", "slices"),
        "Network and runtime": ("communication", "channel", "receives", "overheads", "relaxed_wraparound"),
    },
    short_help="Simulate any table at any costs.",
)
@click.argument("table", metavar="T.csv")
@click.option(
    "--costs", required=True, metavar="C.json", help="Seconds and bytes of each stage's passes: docs/formats.md."
)
@table_options
@click.option(
    "--communication",
    type=click.Choice(["overlap", "blocking"]),
    help="Whether compute goes on beside transfers, or waits. Default: what the costs file says, else overlap.",
)
@channel_option
@receives_option
@overheads_option
@click.option(
    "--relaxed-wraparound", is_flag=True,
    help="As the zero-bubble paper evaluated 1F1B-I: of each group of pp microbatches only the first waits for the "
         "hop between the last rank and the first. No runtime can do that.",
)  # fmt: skip
@timeline_option
@rows_option
@json_option
@output_option
def simulate(
    table: str,
    costs: str,
    replicas: int | None,
    slices: int | None,
    overheads: str | None,
    relaxed_wraparound: bool,
    with_timeline: bool | None,
    with_rows: bool,
    as_json: bool,
    outputs: tuple[str, ...],
    **network: str | None,
) -> None:
    """Simulate any table at any costs: step time, bubble, idle time by cause, memory, a timeline.

    \b
      ppsim simulate T.csv --costs C.json
      ppsim simulate T.csv --costs C.json --channel rank -o timeline.html
      ppsim simulate T.csv --costs C.json --json

    T.csv is a table as `ppsim build` writes it. Options for the network override what the costs file says.
    """
    from ppsim.api.suffixes import TIMELINE, write_timelines
    from ppsim.base.errors import ConfigError, CostsError, ScheduleError
    from ppsim.base.files import naming
    from ppsim.plot.view import View
    from ppsim.printing import steps as show
    from ppsim.runs.timeline_file import timeline_to_json
    from ppsim.simulation.cost_schema import read_costs, read_overheads
    from ppsim.simulation.report import report_of
    from ppsim.simulation.run import simulate as run

    check_outputs(outputs, TIMELINE)
    schedule = read_table(table, replicas=replicas, slices=slices)
    if schedule.has_communication and network["receives"]:
        raise ConfigError(f"{table} spells out its receives; --receives is for a table without communication")
    stage_costs = read_costs(costs).replace(
        **{key: value for key, value in network.items() if value},
        **(read_overheads(overheads).constants if overheads else {}),
    )
    with progress("simulating"), naming(table, ScheduleError), naming(costs, CostsError):
        timeline = run(schedule, stage_costs, relaxed_wraparound=relaxed_wraparound)
        report = report_of(timeline, stage_costs)
    title = timeline.schedule.name
    if relaxed_wraparound:
        title += ", relaxed wrap-around"
        say("relaxed wrap-around: most hops between the last rank and the first are not waited for; no runtime can")
    write_timelines(
        outputs,
        views=[View(timeline, title)],
        report=lambda: timeline_to_json(timeline, stage_costs),
        announce=say,
    )
    if as_json:
        print_json(report)
    else:
        show.print_report(report, with_rows=with_rows)
        show.print_timeline(timeline, is_wanted=with_timeline)


class _Target(click.Choice[str]):
    """A choice that takes transformer_engine for transformer-engine."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(value.replace("_", "-"), param, ctx)


@click.command(short_help="Write a checked table for a runtime.")
@click.argument("table", metavar="T.csv")
@click.option(
    "--to", "target", required=True,
    type=_Target(["torch", "torch-comms", "torchtitan", "json", "primus", "megatron", "transformer-engine"]),
    help="torch: the compute-only CSV, which every version takes. torch-comms: with sends and receives, for one "
         "version (--torch-version). torchtitan: torch's, and the settings to paste. json: neutral, for runtimes "
         "whose tables are made in Python. primus: its nodes, and how to start it with them. megatron: the "
         "arguments that run this order. transformer-engine: _order lists a rank. See docs/export.md.",
)  # fmt: skip
@receives_option
@table_options
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
@click.option("--micro-batch", type=int, metavar="N", help="Samples a microbatch, for --to torchtitan. Default: 1.")
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
    """Check a table and write it for a runtime: torch, TorchTitan, Megatron-LM, Primus, TransformerEngine.

    \b
      ppsim export T.csv --to torch -o ready.csv
      ppsim export T.csv --to torchtitan --trainer-version 0.3 -o ready.csv
      ppsim export T.csv --to primus -o primus.json

    What the trainer is to be told is printed: settings, arguments, or how to start it.
    """
    from ppsim.api.outputs import export as exported
    from ppsim.base.errors import ScheduleError
    from ppsim.base.files import naming, write_whole
    from ppsim.cli.trainers import check_options, for_trainer

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
