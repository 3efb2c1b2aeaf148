"""The command that makes tables: `build`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ppsim.cli.common import GROUP_SIZE_HELP, SLICES_HELP, check_outputs, say
from ppsim.cli.progress import progress, searching
from ppsim.cli.sections import SectionedCommand

if TYPE_CHECKING:
    from ppsim.catalog.auto import Optimised
    from ppsim.schedule.table import Schedule

_TIME_LIMIT_S = 10.0


@click.command(
    cls=SectionedCommand,
    sections={
        "Table": ("pp", "vpp", "microbatches", "group_size", "slices", "costs", "memory_limit"),
        "Search (for auto)": ("placement", "criterion", "time_limit", "max_rounds", "seed", "prove"),
    },
    short_help="Build a schedule table: torch's compute-only CSV.",
)
@click.argument("name", metavar="NAME|auto")
@click.option("--pp", type=int, metavar="N", required=True, help="Pipeline ranks.")
@click.option(
    "--vpp", type=int, metavar="N", help="Stages a rank holds. Default: the fewest that the schedule takes."
)
@click.option("--microbatches", type=int, metavar="N", required=True, help="Microbatches a step.")
@click.option("--group-size", type=int, metavar="N", help=GROUP_SIZE_HELP)
@click.option("--slices", type=int, metavar="N", help=SLICES_HELP)
@click.option(
    "--costs", metavar="C.json",
    help="Seconds and bytes of each stage's passes (docs/formats.md), for auto and for schedules that are fitted "
         "to them. Default: F, I and W alike, no transfer time.",
)  # fmt: skip
@click.option(
    "--memory-limit", metavar="SIZE",
    help="Memory a rank, as 80GiB, static bytes included: for auto, zb-auto and v-flex, with --costs.",
)  # fmt: skip
@click.option(
    "--placement", type=click.Choice(["loop", "v"]),
    help="Where the stages are. Default: the better of both.",
)  # fmt: skip
@click.option(
    "--criterion", type=click.Choice(["step", "span"]),
    help="What is to be short: the step, first start to last end of all ranks, or the span, the longest rank's "
         "own. Default: step.",
)  # fmt: skip
@click.option(
    "--time-limit", type=float, metavar="SECONDS",
    help=f"How long to search. Default: {_TIME_LIMIT_S:g} s; less where the bound is met.",
)  # fmt: skip
@click.option(
    "--max-rounds", type=int, metavar="N",
    help="How many rounds to search a placement, in the time there is; then the same table everywhere.",
)  # fmt: skip
@click.option("--seed", type=int, metavar="N", help="Seed of the search's random choices. Default: 0.")
@click.option(
    "--prove", is_flag=True, default=None,
    help="Hand what is left to an exact solver for as long again (up to 800 actions; needs `pip install "
         "'ppsim[optimise]'`).",
)  # fmt: skip
@click.option(
    "-o", "--output", metavar="T.csv",
    help="Where to write the table; .json writes the neutral one, which says what a CSV cannot: replicas and "
         "slices. Default: standard output.",
)  # fmt: skip
def build(
    name: str,
    pp: int,
    vpp: int | None,
    microbatches: int,
    group_size: int | None,
    slices: int | None,
    costs: str | None,
    memory_limit: str | None,
    placement: str | None,
    criterion: str | None,
    time_limit: float | None,
    max_rounds: int | None,
    seed: int | None,
    prove: bool | None,
    output: str | None,
) -> None:
    """Build a schedule table: torch's compute-only CSV, one row a rank.

    \b
      ppsim build 1f1b --pp 4 --microbatches 8
      ppsim build zb-1p --pp 4 --microbatches 8 --costs C.json -o T.csv
      ppsim build auto --pp 4 --microbatches 8 --costs C.json --time-limit 2

    NAME is one of `ppsim schedules`. auto begins with the best of them for these costs and this memory, searches
    on, and says how far its table is from a proven bound.
    """
    from ppsim.api.texts import parse_size
    from ppsim.base.errors import ConfigError, CostsError
    from ppsim.base.files import naming, to_json, write_whole
    from ppsim.catalog.build import build as build_table
    from ppsim.catalog.build import find
    from ppsim.exporting.table_json import table_to_json
    from ppsim.schedule.grammar import format_table
    from ppsim.simulation.cost_schema import read_costs

    if output is not None:
        check_outputs([output], [".csv", ".json"] if Path(output).suffix else None)
    limit = parse_size(memory_limit)
    search = {
        "placement": placement, "criterion": criterion, "time_limit": time_limit, "max_rounds": max_rounds,
        "seed": seed, "prove": prove,
    }  # fmt: skip
    given: dict[str, Any] = {option: value for option, value in search.items() if value is not None}
    found = None
    if name == "auto":
        if costs is None:
            raise ConfigError("auto needs --costs: the table that it searches for is the best for them")
        if group_size is not None or slices is not None:
            raise ConfigError("--group-size and --slices are for schedules by name; auto has neither")
        with naming(costs, CostsError):
            found = _searched(
                pp=pp, vpp=1 if vpp is None else vpp, microbatches=microbatches, costs=read_costs(costs),
                memory_limit_bytes=limit, **given,
            )  # fmt: skip
        table = found.schedule
    else:
        entry = find(name)
        if given:
            option = next(iter(given)).replace("_", "-")
            raise ConfigError(f"--{option} is for auto; {name} is built, not searched for")
        if memory_limit and not (costs and entry.takes("memory_limit_bytes")):
            raise ConfigError(
                "--memory-limit is for a schedule that fits into it (zb-auto, v-flex) and for auto, and needs "
                "--costs with bytes"
            )
        with progress(f"building {name}"), naming(costs or "", CostsError):
            table = build_table(
                entry,
                pp=pp,
                vpp=vpp,
                microbatches=microbatches,
                group_size=group_size,
                num_slices=slices,
                costs=read_costs(costs) if costs else None,
                memory_limit_bytes=limit,
            )
    as_json = output is not None and output.endswith(".json")
    text = to_json(table_to_json(table)) if as_json else format_table(table)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_whole(output, text)
        options = "" if as_json else _options_to_read(table)
        say(f"wrote {output} ({table.num_ranks} ranks, {table.num_actions} actions{options})")
    if found:
        say(_verdict(found))


def _searched(*, time_limit: float = _TIME_LIMIT_S, prove: bool = False, **options: Any) -> "Optimised":
    """Search with a progress bar on a terminal; a proof takes as long again."""
    from ppsim.catalog.auto import optimise

    with progress("searching", limit_s=2 * time_limit if prove else time_limit) as bar:
        return optimise(time_limit_s=time_limit, prove=prove, progress=searching(bar), **options)


def _verdict(found: "Optimised") -> str:
    from ppsim.base.units import percent, seconds

    gain = 1 - found.value_s / found.start_s if found.start_s > 0 else 0.0
    better = f"{percent(gain)} below" if gain > 1e-9 else "no better than"
    return (
        f"{found.criterion} {seconds(found.value_s)}, {better} {found.started_from}; placement {found.placement}; "
        f"{found.proof} (bound {seconds(found.bound_s)})"
    )


def _options_to_read(table: "Schedule") -> str:
    """What the commands must be told of a CSV with replicas or slices."""
    replicas = f" --replicas {table.num_replicas}" if table.num_replicas > 1 else ""
    slices = f" --slices {table.num_slices}" if table.num_slices > 1 else ""
    return f"; read it with{replicas}{slices}" if replicas or slices else ""
