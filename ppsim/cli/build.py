"""The commands `build`, `check` and `warm-up`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import click

from ppsim.api.output_formats import TABLE
from ppsim.base.display import show
from ppsim.base.errors import ConfigError, CostsError
from ppsim.base.files import prefix_errors, write_atomically
from ppsim.base.option_declarations import Option, declared_options, flag_of, given_options
from ppsim.base.units import percent, seconds
from ppsim.cli.click_options import command_with
from ppsim.cli.common import check_outputs, print_message, time_left_s
from ppsim.cli.completion import completing
from ppsim.projection.options import GROUP_SIZE, SLICES
from ppsim.results.progress import progress, searching

if TYPE_CHECKING:
    from ppsim.catalog.auto import OptimisedSchedule
    from ppsim.schedule.table import Schedule


from ppsim.cli.click_options import options_of
from ppsim.cli.common import (
    ReadOptions,
    json_option,
    print_json,
    read_table,
)  # fmt: skip

_TIME_LIMIT_S = 10.0


# fmt: off
class SearchOptions(TypedDict, total=False):
    """Options of the search for a table."""
    placement: Annotated[Literal["loop", "v"] | None, Option(
        "Stage placement: loop or V. [default: the better one]", section="search",
    )]
    criterion: Annotated[Literal["step", "span"] | None, Option(
        "Objective to minimise: step (first start to last end over all ranks), or span (longest time of a single "
        "rank). [default: step]",
        section="search",
    )]
    time_limit: Annotated[float | None, Option(
        "Maximum duration of the search. It ends earlier if it reaches the lower bound. [default: {default}]",
        metavar="SECONDS", section="search", default=_TIME_LIMIT_S,
    )]
    max_rounds: Annotated[int | None, Option(
        "Maximum number of search rounds per placement, within the time limit. If the rounds end first, the result "
        "is the same on every machine. [default: no limit]",
        metavar="N", section="search",
    )]
    seed: Annotated[int | None, Option(
        "Random seed of the search. [default: 0]", metavar="N", section="search",
    )]


class BuildOptions(SearchOptions, total=False):
    """The options of `build`."""
    pp: Annotated[int, Option("Pipeline ranks.", metavar="N", section="pipeline", required=True)]
    vpp: Annotated[int | None, Option(
        "Stages per rank. [default: the fewest that the schedule allows]", metavar="N", section="pipeline",
    )]
    microbatches: Annotated[int, Option(
        "Microbatches per step.", metavar="N", section="pipeline", required=True,
    )]
    group_size: Annotated[int | None, GROUP_SIZE]
    slices: Annotated[int | None, SLICES]
    costs: Annotated[str | None, Option(
        "Costs file with the seconds and bytes of each stage's passes (docs/formats.md). Required by auto, used by "
        "schedules that are optimised for costs. [default: equal times of F, I and W, no transfer time]",
        metavar="C.json", section="pipeline",
    )]
    memory_limit: Annotated[str | None, Option(
        "Memory limit per rank (80GiB), static bytes included. For auto, zb-auto and v-flex only, requires "
        "--costs.",
        metavar="SIZE", section="pipeline",
    )]
# fmt: on


@command_with(
    BuildOptions,
    {"pipeline": "Table", "search": "Search (for auto)"},
)
@click.argument("name", metavar="NAME|auto", shell_complete=completing("schedule"))
@click.option(
    "-o", "--output", metavar="T.csv",
    help="Output file: .csv, or .json for the neutral format, which contains the number of model replicas too. "
         "[default: standard output]",
)  # fmt: skip
def build(name: str, output: str | None, **options: Any) -> None:
    """Build a schedule table: the order of actions of each pipeline rank, as torch's compute-only CSV.

    \b
      ppsim build 1f1b --pp 4 --num-microbatches 8
      ppsim build zb-1p --pp 4 --num-microbatches 8 --costs C.json -o T.csv
      ppsim build auto --pp 4 --num-microbatches 8 --costs C.json --time-limit 2

    NAME is a schedule of `ppsim schedules`. auto starts from the best of them for these costs and this memory
    limit, searches for a better table, and prints the gap to a proven lower bound.
    """
    if output is not None:
        check_outputs([output], TABLE if Path(output).suffix else None)
    optimised = _searched(options) if name == "auto" else None
    table = optimised.schedule if optimised else _built(name, options)
    as_json = output is not None and output.endswith(".json")
    text = str(TABLE[".json" if as_json else ".csv"][1](table))
    if output is None:
        click.echo(text, nl=False)
    else:
        write_atomically(output, text)
        needs_option = table.num_replicas > 1 and not as_json
        to_read = f"; read it with --replicas {table.num_replicas}" if needs_option else ""
        print_message(f"wrote {output} ({table.num_ranks} ranks, {table.num_actions} actions{to_read})")
    if optimised:
        print_message(_verdict(optimised))


def _searched(options: dict[str, Any]) -> "OptimisedSchedule":
    from ppsim.api.option_values import parse_size
    from ppsim.catalog.auto import optimise
    from ppsim.simulation.cost_files import read_costs

    limit = parse_size(options["memory_limit"])
    if options["costs"] is None:
        raise ConfigError("auto needs --costs: it searches for the best table for these costs")
    if options["group_size"] is not None or options["slices"] is not None:
        raise ConfigError("--group-size and --slices are for schedules by name; auto has neither")
    given = _of_search(options)
    time_limit = given.pop("time_limit", _TIME_LIMIT_S)
    with prefix_errors(options["costs"], CostsError):
        costs = read_costs(options["costs"])
        with progress("searching for a table", limit_s=time_limit) as bar:
            return optimise(
                pp=options["pp"], vpp=1 if options["vpp"] is None else options["vpp"],
                microbatches=options["microbatches"], costs=costs, memory_limit_bytes=limit,
                time_limit_s=time_left_s(time_limit), progress=searching(bar), **given,
            )  # fmt: skip


def _of_search(options: dict[str, Any]) -> dict[str, Any]:
    return given_options({name: options[name] for name in declared_options(SearchOptions)})


def _built(name: str, options: dict[str, Any]) -> "Schedule":
    from ppsim.api.option_values import parse_size
    from ppsim.catalog.build import build as build_table
    from ppsim.catalog.build import find
    from ppsim.simulation.cost_files import read_costs

    limit, costs = parse_size(options["memory_limit"]), options["costs"]
    entry = find(name)
    stage_costs = read_costs(costs) if costs else None
    if stage_costs is not None and not entry.takes("costs"):
        print_message(f"{entry.name} does not depend on costs")
        stage_costs = None
    if given := _of_search(options):
        raise ConfigError(f"{flag_of(next(iter(given)))} is for auto; {name} is built, not searched for")
    if limit and not (costs and entry.takes("memory_limit_bytes")):
        raise ConfigError(
            "--memory-limit is for a schedule that fits into it (zb-auto, v-flex) and for auto, and needs --costs "
            "with bytes"
        )
    shape = {one: options[one] for one in ("pp", "vpp", "microbatches", "group_size")}
    with progress(f"building {name}"), prefix_errors(costs or "", CostsError):
        return build_table(
            entry, **shape, num_slices=options["slices"], costs=stage_costs,
            memory_limit_bytes=limit,
        )  # fmt: skip


def _verdict(optimised: "OptimisedSchedule") -> str:

    gain = 1 - optimised.value_s / optimised.start_s if optimised.start_s > 0 else 0.0
    better = f"{percent(gain)} below" if gain > 1e-9 else "equal to"
    return (
        f"{optimised.criterion} {seconds(optimised.value_s)}, {better} {optimised.started_from}; "
        f"placement {optimised.placement}; {optimised.proof} (bound {seconds(optimised.bound_s)})"
    )


@click.command()
@click.argument("tables", metavar="T.csv...", nargs=-1, required=True)
@options_of(ReadOptions)
@json_option
def check(tables: tuple[str, ...], as_json: bool, **read: int | None) -> None:
    """Check that schedule tables can run: complete, in order, and free of deadlock for each P2P serialization.

    \b
      ppsim check T.csv
      ppsim check schedules/zbv_pp4_v2_m8.csv
      ppsim check T.csv --json

    The exit code is 0 if the table runs on an ideal network, 1 for a deadlock, and 2 for a malformed, incomplete or
    misordered table; of several tables, the highest. The matrix at the end lists the P2P serializations (--channel
    of `ppsim simulate`) that would deadlock.
    """
    from dataclasses import asdict

    from ppsim.schedule.check import check as check_table

    reports = {}
    for table in tables:
        with progress(f"checking {table}, on every kind of channel"):
            reports[table] = check_table(read_table(table, **read))
    if as_json:
        checked = {table: asdict(report) for table, report in reports.items()}
        print_json(checked if len(tables) > 1 else checked[tables[0]])
    for number, (table, report) in enumerate([] if as_json else reports.items()):
        if number:
            click.echo()
        show(report, name=table)
    rules = [report.errors[0].rule for report in reports.values() if report.errors]
    if rules:
        raise click.exceptions.Exit(max(1 if rule == "deadlock" else 2 for rule in rules))


@click.command("warm-up")
@click.argument("names", nargs=-1, metavar="[NAME]...")
def warm_up(names: tuple[str, ...]) -> None:
    """Compile all numba kernels now, or those of the given schedules, so that later commands need not wait.

    \b
      ppsim warm-up
      ppsim warm-up 1f1b
      ppsim warm-up interleaved-1f1b zb-h1

    Run it while building a container image, and before a search on a cluster's workers. Compiled kernels are cached
    for this installation and this type of CPU, in NUMBA_CACHE_DIR if it is set. Installing ppsim from source
    compiles them too. Otherwise, the first command that needs a kernel for much work compiles it and says so.
    """
    from ppsim.api.warm_up import warm_up as compile_all

    compile_all(names, say=click.echo)
