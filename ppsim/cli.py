"""The command line: one thin function a command.

Only click and the standard library are imported here; each command imports what it needs.
"""

import difflib
from typing import TYPE_CHECKING, Any

import click

import ppsim
from ppsim.errors import PpsimError

if TYPE_CHECKING:
    from ppsim.projection.plan import Plan


class _Main(click.Group):
    """Turns errors into a sentence and an exit code, and unknown commands into close matches."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], self.commands, n=3, cutoff=0.4)
            hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(self.commands)}"
            ctx.fail(f"unknown command '{args[0]}': {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PpsimError as error:
            if ctx.params.get("debug"):
                raise
            click.echo(f"ppsim: {error}", err=True)
            ctx.exit(error.exit_code)


def _say(message: str) -> None:
    click.echo(message, err=True)


def _print_json(value: Any) -> None:
    from ppsim.files import to_json

    click.echo(to_json(value), nl=False)


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(ppsim.__version__, message="ppsim %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Project, explain and export pipeline-parallel schedules from measured costs.

    \b
      ppsim project --pp 8 --vpp 2 -o timeline.html       one plan: how long, why, how much memory
      ppsim project --pp 8 --vpp 2 --schedule all         which schedule?
      ppsim build zbv --pp 4 --microbatches 8 -o T.csv    the table that torch runs

    Exit codes: 0 fine; 1 valid but impossible (deadlock, does not fit, a run that failed); 2 wrong usage or file.
    """
    del debug  # read by _Main.invoke


# --- options that several commands share ---

_output = click.option(
    "-o", "--output", "outputs", multiple=True, metavar="PATH",
    help="Write a file; the suffix decides: .html timeline, .svg/.pdf/.png figure, .json report with timeline, "
         ".csv table, .json.gz Perfetto trace. May be repeated.",
)  # fmt: skip
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object (SI units) and nothing else.")
_overheads = click.option(
    "--overheads", metavar="FILE",
    help="Host time per action and latency per hop, as `ppsim compare --fit` wrote them.",
)  # fmt: skip
_channel = click.option(
    "--channel", type=click.Choice(["ideal", "edge", "pair", "direction", "rank"]),
    help="Which transfers share a first-in-first-out queue.",
)  # fmt: skip
_receives = click.option(
    "--receives", type=click.Choice(["torch", "deferred", "ordered"]),
    help="Where receives are posted: early as torch does, just before use, or by the sender's order.",
)  # fmt: skip


# --- from a profile ---


@main.command()
@click.option("--pp", type=int, required=True, help="Pipeline ranks.")
@click.option("--vpp", type=int, help="Stages a rank. Default: what the schedule needs.")
@click.option(
    "--schedule", metavar="NAME|all",
    help="A name from `ppsim schedules`, or all of them. Default: 1f1b, or interleaved-1f1b for vpp > 1.",
)  # fmt: skip
@click.option("--microbatches", type=int, help="Microbatches a step. Default: 4 a rank.")
@click.option("--group-size", type=int, help="Microbatches a group (interleaved-1f1b only). Default: pp.")
@click.option("--profile", metavar="NAME|FILE", help="Measured costs. Default: zb-a100-6.2b, a packaged one.")
@click.option("--micro-batch", type=int, help="Sequences a microbatch; the profile must have been measured so.")
@click.option("--seq-len", type=int, help="Tokens a sequence; the profile must have been measured so.")
@click.option("--layers", type=int, help="Layers of the model. Default: the profile's.")
@click.option("--split", default="auto", metavar="auto|even|N,N,…", show_default=True, help="Layers per stage.")
@click.option(
    "--runtime", type=click.Choice(["torch", "megatron", "ideal"]), default="torch", show_default=True,
    help="Whose network and corners are assumed; ideal is the literature's.",
)  # fmt: skip
@_channel
@_receives
@click.option("--transfer-ms", type=float, help="Milliseconds a stage-to-stage hop, instead of the profile's.")
@_overheads
@click.option("--memory-limit", metavar="SIZE", help="Memory a rank, as 80GiB; exit 1 if the plan does not fit.")
@_json
@_output
def project(outputs: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Project a step: time, throughput, bubble, memory per rank, and why.

    \b
      ppsim project --pp 8 --vpp 2 -o timeline.html
      ppsim project --pp 8 --schedule all --microbatches 32 --memory-limit 80GiB
      ppsim project --pp 2 --profile cpu.json --schedule 1f1b -o projected.json
    """
    from ppsim import show
    from ppsim.export.timeline_json import timeline_to_json
    from ppsim.outputs import check_paths, write_outputs
    from ppsim.projection import plan as planning

    check_paths(outputs)
    plan = _plan(options)
    if options["schedule"] == "all":
        comparison = planning.project_all(plan)
        if as_json:
            _print_json(
                {
                    "projections": [projection.to_json() for projection in comparison.projections],
                    "not_possible": comparison.reasons,
                }
            )
        else:
            show.print_comparison(comparison)
        shown = comparison.projections
    else:
        shown = [planning.project(plan)]
        if as_json:
            _print_json(shown[0].to_json())
        else:
            show.print_projection(shown[0])
    if not shown:
        raise click.exceptions.Exit(1)
    write_outputs(
        outputs,
        timelines=[projection.timeline for projection in shown[:2]],
        titles=[projection.plan.schedule_name for projection in shown[:2]],
        report=lambda: timeline_to_json(shown[0].timeline, shown[0].costs, **_beside_report(shown[0].to_json())),
        memory_limit_bytes=plan.memory_limit_bytes,
        announce=_say,
    )


def _beside_report(projected: dict[str, Any]) -> dict[str, Any]:
    return {
        key: projected[key]
        for key in (
            "tokens_per_s",
            "model_flops_utilization",
            "layers_per_stage",
            "step_time_by_channel_s",
            "assumptions",
        )
    }


def _plan(options: dict[str, Any]) -> "Plan":
    from ppsim.costs.files import read_overheads
    from ppsim.costs.profile import DEFAULT, load_profile
    from ppsim.errors import ConfigError
    from ppsim.projection.plan import Plan

    profile = load_profile(options["profile"] or DEFAULT)
    if options["transfer_ms"] is not None and options["transfer_ms"] < 0:
        raise ConfigError(f"--transfer-ms must not be negative: got {options['transfer_ms']:g}")
    if options["layers"] is not None and options["layers"] < 1:
        raise ConfigError(f"--layers must be at least 1: got {options['layers']}")
    return Plan(
        pp=options["pp"],
        vpp=options["vpp"],
        schedule=None if options["schedule"] == "all" else options["schedule"],
        microbatches=options["microbatches"],
        group_size=options["group_size"],
        profile=profile,
        shape=profile.shape_at(micro_batch=options["micro_batch"], sequence_length=options["seq_len"]),
        num_layers=options["layers"],
        split=_parse_split(options["split"]),
        runtime=options["runtime"],
        channel=options["channel"],
        receives=options["receives"] or "torch",
        transfer_s=None if options["transfer_ms"] is None else options["transfer_ms"] / 1e3,
        memory_limit_bytes=_parse_size(options["memory_limit"]),
        **(read_overheads(options["overheads"]) if options["overheads"] else {}),
    )


def _parse_split(text: str) -> Any:
    from ppsim.errors import ConfigError

    if text in ("auto", "even"):
        return text
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--split is '{text}': give auto, even or layers per stage as 2,3,3,2") from None


def _parse_size(text: str | None) -> float | None:
    import re

    from ppsim.errors import ConfigError

    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE)
    if match is None or float(match[1]) == 0:
        raise ConfigError(f"cannot read the size '{text}': write it as 80GiB or 80GB")
    base = 1024 if match[3] else 1000
    return float(float(match[1]) * base ** " KMGT".index(match[2].upper() or " "))


# --- tables ---


@main.command()
@click.argument("name", required=False)
@_json
def schedules(name: str | None, as_json: bool) -> None:
    """List the schedules, or print one's constraints, closed forms and source.

    \b
      ppsim schedules
      ppsim schedules zbv
      ppsim schedules --json
    """
    from dataclasses import asdict

    from ppsim import show
    from ppsim.schedule.catalog import CATALOG, find

    entries = [find(name)] if name else list(CATALOG.values())
    if as_json:
        _print_json([{key: value for key, value in asdict(entry).items() if key != "build"} for entry in entries])
    elif name:
        show.print_entry(entries[0])
    else:
        show.print_catalog(entries)


@main.command()
@click.argument("name")
@click.option("--pp", type=int, required=True, help="Pipeline ranks.")
@click.option("--vpp", type=int, help="Stages a rank. Default: the fewest that the schedule takes.")
@click.option("--microbatches", type=int, required=True, help="Microbatches a step.")
@click.option("--group-size", type=int, help="Microbatches a group (interleaved-1f1b only). Default: pp.")
@click.option("-o", "--output", metavar="T.csv", help="Where to write the table. Default: standard output.")
def build(
    name: str, pp: int, vpp: int | None, microbatches: int, group_size: int | None, output: str | None
) -> None:
    """Build a schedule table: torch's compute-only CSV, one row a rank.

    \b
      ppsim build 1f1b --pp 4 --microbatches 8
      ppsim build interleaved-1f1b --pp 8 --vpp 2 --microbatches 30 -o T.csv
      ppsim build zbv --pp 4 --microbatches 8 -o zbv.csv
    """
    from ppsim.files import write_whole
    from ppsim.schedule.catalog import build as build_table
    from ppsim.schedule.grammar import format_table

    table = build_table(name, pp=pp, vpp=vpp, microbatches=microbatches, group_size=group_size)
    if output is None:
        click.echo(format_table(table), nl=False)
    else:
        write_whole(output, format_table(table))
        _say(f"wrote {output} ({table.num_ranks} ranks, {table.num_actions} actions)")


@main.command()
@click.argument("table", metavar="T.csv")
@_json
def check(table: str, as_json: bool) -> None:
    """Tell whether a table runs: complete, ordered, free of deadlock, under each channel policy.

    \b
      ppsim check T.csv
      ppsim check schedules/zbv_pp4_v2_m8.csv
      ppsim check T.csv --json

    Exit 0 if it runs on an ideal network, 1 for a deadlock, 2 for a malformed, incomplete or misordered table.
    The matrix at the end tells where channels that share transfers would hang it.
    """
    from dataclasses import asdict

    from ppsim import show
    from ppsim.schedule.check import check as check_table
    from ppsim.schedule.grammar import read_schedule

    report = check_table(read_schedule(table))
    if as_json:
        _print_json(
            {
                "findings": [asdict(finding) for finding in report.findings],
                "verdicts": [asdict(verdict) for verdict in report.verdicts],
            }
        )
    else:
        show.print_check(report, table)
    if report.errors:
        raise click.exceptions.Exit(1 if report.errors[0].rule == "deadlock" else 2)


@main.command()
@click.argument("table", metavar="T.csv")
@click.option("--costs", required=True, metavar="C.json", help="Costs per stage: see docs/formats.md.")
@click.option(
    "--communication", type=click.Choice(["overlap", "blocking"]), help="Whether compute goes on beside transfers."
)
@_channel
@_receives
@_overheads
@_json
@_output
def simulate(
    table: str, costs: str, overheads: str | None, as_json: bool, outputs: tuple[str, ...], **network: str | None
) -> None:
    """Simulate any table at any costs.

    \b
      ppsim simulate T.csv --costs C.json
      ppsim simulate T.csv --costs C.json --channel rank -o timeline.html
      ppsim simulate T.csv --costs C.json --json

    Options for communication override what the costs file says.
    """
    from ppsim import show
    from ppsim.costs.files import read_costs, read_overheads
    from ppsim.export.timeline_json import timeline_to_json
    from ppsim.outputs import check_paths, write_outputs
    from ppsim.schedule.grammar import read_schedule
    from ppsim.simulation.report import report_of
    from ppsim.simulation.run import simulate as run

    check_paths(outputs)
    stage_costs = read_costs(costs).replace(
        **{key: value for key, value in network.items() if value},
        **(read_overheads(overheads) if overheads else {}),
    )
    timeline = run(read_schedule(table), stage_costs)
    report = report_of(timeline, stage_costs)
    if as_json:
        _print_json(report)
    else:
        show.print_report(report)
    write_outputs(
        outputs,
        timelines=[timeline],
        titles=[timeline.schedule.name],
        report=lambda: timeline_to_json(timeline, stage_costs),
        announce=_say,
    )


@main.command()
@click.argument("table", metavar="T.csv")
@click.option(
    "--to", "target", required=True, type=click.Choice(["torch", "torch-comms"]),
    help="torch: the compute-only CSV, which every version takes. torch-comms: with sends and receives, for "
         "torch 2.10 to 2.14.",
)  # fmt: skip
@_receives
@click.option("-o", "--output", required=True, metavar="OUT", help="Where to write it.")
def export(table: str, target: str, receives: Any, output: str) -> None:
    """Write a checked table for a runtime.

    \b
      ppsim export T.csv --to torch -o ready.csv
      ppsim export T.csv --to torch-comms -o comms.csv
      ppsim export T.csv --to torch-comms --receives deferred -o comms.csv
    """
    from ppsim.export.torch_csv import torch_csv
    from ppsim.files import write_whole
    from ppsim.schedule.grammar import read_schedule

    write_whole(
        output, torch_csv(read_schedule(table), with_communication=target == "torch-comms", receives=receives)
    )
    _say(f"wrote {output}")
