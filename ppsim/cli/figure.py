"""The command `figure`."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from ppsim.api.output_formats import FIGURE
from ppsim.base.errors import ConfigError
from ppsim.base.files import prefix_errors, read_json
from ppsim.base.option_declarations import require_least
from ppsim.base.write_outputs import write
from ppsim.cli import Commands
from ppsim.cli.click_options import AliasedOption
from ppsim.cli.common import check_outputs, parse_names, parse_numbers, print_message
from ppsim.cli.completion import completing
from ppsim.cli.progress import progress

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from ppsim.simulation.timeline import Timeline

_width = click.option(
    "--width", type=click.Choice(["one-column", "two-column"]), default="two-column", show_default=True,
    help="Figure width: one column (3.33 in) or two columns (7.0 in).",
)  # fmt: skip
_title = click.option("--title", default="", help="Title inside the figure. [default: none]")


def _output(suffixes: str) -> Callable[[Any], Any]:
    return click.option(
        "-o", "--output", "outputs", multiple=True, required=True, metavar="PATH",
        help=f"Output file: {suffixes}. May be repeated.",
    )  # fmt: skip


def _drawn(command: "Callable[..., Figure]") -> Any:
    """Add an option for the width, and output files."""

    @wraps(command)
    def draw(outputs: tuple[str, ...], **options: Any) -> None:
        check_outputs(outputs, FIGURE)
        write(outputs, FIGURE, command(**options), announce=print_message)

    return _width(_output(".pdf, .svg or .png")(draw))


_memory_limit = click.option(
    "--memory-limit", metavar="SIZE", help="Memory limit per rank to draw (80GiB). [default: the limit in the file]"
)


@click.group(cls=Commands)
def figure() -> None:
    """Draw figures for a paper from the output files of other commands, one or two columns wide.

    \b
      ppsim figure timeline projected.json --width one-column -o timeline.pdf
      ppsim figure bubble --pp 8 --schedule 1f1b,zb-h1 -o bubble.pdf
      ppsim figure pareto tune.json -o pareto.pdf

    Text is 7 pt at this width, and fonts are embedded. The same input gives the same bytes. See docs/pictures.md.
    """


@figure.command(short_help="Timelines on one time axis.")
@click.argument("files", nargs=-1, required=True, metavar="STEP.json...")
@click.option(
    "--title", "titles", multiple=True,
    help="Title of a timeline, one per file in order. [default: its schedule if there are several, else none]",
)  # fmt: skip
@click.option(
    "--panels", metavar="NAME,NAME,…",
    help="Panels to draw: compute, transfers, memory. [default: all that the files contain]",
)  # fmt: skip
@click.option(
    "--critical-path/--no-critical-path",
    default=True,
    help="Draw the critical path. [default: on]",
)
@_memory_limit
@_drawn
def timeline(
    files: tuple[str, ...],
    titles: tuple[str, ...],
    panels: str | None,
    critical_path: bool,
    memory_limit: str | None,
    **look: Any,
) -> "Figure":
    """Draw timelines below each other on one time axis.

    \b
      ppsim figure timeline projected.json -o timeline.pdf
      ppsim figure timeline projected.json --panels compute -o timeline.svg
      ppsim figure timeline measured.json projected.json -o both.pdf

    STEP.json is a file of `ppsim project`, `simulate` or `train` with -o NAME.json. The first is on top.
    """
    from ppsim.api.option_values import parse_size
    from ppsim.plot.figures.timeline import PANELS, timeline_figure

    if titles and len(titles) != len(files):
        raise ConfigError(f"give a --title for each timeline or none: got {len(titles)} for {len(files)}")
    chosen = parse_names("panels", panels, PANELS)
    read = [_read(path) for path in files]
    limits = [limit for _, limit in read if limit is not None]
    return timeline_figure(
        [found for found, _ in read],
        titles=titles or None,
        panels=[panel for panel in PANELS if chosen is None or panel in chosen],
        with_critical_path=critical_path,
        memory_limit_bytes=parse_size(memory_limit) or min(limits, default=None),
        **look,
    )


@figure.command(short_help="Memory of each rank over a step.")
@click.argument("file", metavar="STEP.json")
@_memory_limit
@_title
@_drawn
def memory(file: str, memory_limit: str | None, **look: Any) -> "Figure":
    """Draw the memory of each rank over a step, with its peak and the memory limit.

    \b
      ppsim figure memory projected.json -o memory.pdf
      ppsim figure memory projected.json --memory-limit 80GiB -o memory.pdf
      ppsim figure memory projected.json --width one-column -o memory.svg

    STEP.json is a file of `ppsim project` or `simulate` with -o NAME.json. Measured timelines contain no memory.
    """
    from ppsim.api.option_values import parse_size
    from ppsim.plot.figures.memory import memory_figure

    found, limit = _read(file)
    with prefix_errors(file):
        return memory_figure(found, memory_limit_bytes=parse_size(memory_limit) or limit, **look)


@figure.command(short_help="Bubble ratio against number of microbatches.")
@click.option("--pp", type=int, metavar="N", required=True, help="Pipeline ranks.")
@click.option(
    "--vpp", type=int, metavar="N", help="Stages per rank. [default: the fewest that each schedule allows]"
)
@click.option(
    "--schedule", default="1f1b,interleaved-1f1b,zb-h1,zbv", show_default=True, metavar="NAME,NAME,…",
    shell_complete=completing("schedule"),
    help="Schedules to compare, by name (`ppsim schedules`).",
)  # fmt: skip
@click.option(
    "--num-microbatches", "microbatches", cls=AliasedOption, also=("--microbatches",), metavar="N,N,…",
    help="Numbers of microbatches. [default: 1, 2, 4 and 8 per rank]",
)  # fmt: skip
@click.option("--profile", metavar="NAME|FILE", help="Measured costs. [default: zb-a100-6.2b]")
@click.option(
    "--costs", metavar="C.json",
    help="Costs file (docs/formats.md) instead of a profile, with the costs of all stages of a rank together. They "
         "are divided evenly among its stages.",
)  # fmt: skip
@click.option(
    "--runtime", type=click.Choice(["torch", "megatron", "ideal"]),
    help="Pipeline runtime to simulate with a profile. [default: torch]",
)  # fmt: skip
@click.option(
    "--by", type=click.Choice(["step", "span"]), default="step", show_default=True,
    help="Time that the bubble ratio refers to: first start to last end over all ranks (step), or the longest time "
         "of a single rank (span).",
)  # fmt: skip
@_title
@_width
@_output(".pdf, .svg or .png, or .csv for the numbers")
def bubble(title: str, width: Any, by: Any, outputs: tuple[str, ...], **options: Any) -> None:
    """Draw the bubble ratio of schedules against the number of microbatches.

    \b
      ppsim figure bubble --pp 8 -o bubble.pdf
      ppsim figure bubble --pp 4 --schedule 1f1b,zbv -o b.pdf
      ppsim figure bubble --pp 4 --costs C.json -o bubble.svg -o bubble.csv

    Numbers of microbatches that a schedule does not support are skipped and listed.
    """
    from ppsim.plot.figures.bubble import bubble_figure

    check_outputs(outputs, (*FIGURE, ".csv"))
    with progress("projecting each schedule at each number of microbatches"):
        sweep = _sweep(**options)
    for row in sweep[sweep["reason"] != ""].itertuples():
        print_message(f"left out: {row.schedule} with {row.microbatches} microbatches: {row.reason}")
    if drawn := [path for path in outputs if not path.endswith(".csv")]:
        write(drawn, FIGURE, bubble_figure(sweep, by=by, title=title, width=width), announce=print_message)
    numbers = {".csv": ("numbers", lambda rows: rows.to_csv(index=False, lineterminator="\n"))}
    write([path for path in outputs if path not in drawn], numbers, sweep, announce=print_message)


@figure.command(short_help="Iteration time against memory of a search.")
@click.argument("file", metavar="TUNE.json")
@_title
@_drawn
def pareto(file: str, **look: Any) -> "Figure":
    """Draw iteration time against memory for all configurations of a search, with the Pareto set.

    \b
      ppsim figure pareto tune.json -o pareto.pdf
      ppsim figure pareto tune.json --width one-column -o pareto.svg
      ppsim figure pareto tune.json --title "GPT-2 on 4 GPUs" -o pareto.png

    TUNE.json is a file of `ppsim tune`, written with -o NAME.json or --resume. It contains all configurations that
    were simulated.
    """
    from ppsim.plot.figures.pareto import pareto_figure
    from ppsim.tuning.configurations import read_answer

    configurations, limit = read_answer(file)
    return pareto_figure(configurations, memory_limit_bytes=limit, **look)


@figure.command(short_help="Projected against measured values.")
@click.argument("file", metavar="VALIDATION.json")
@_title
@_drawn
def accuracy(file: str, **look: Any) -> "Figure":
    """Draw projected against measured values, and the signed errors per set.

    \b
      ppsim figure accuracy validation.json -o accuracy.pdf
      ppsim figure accuracy validation.json --width one-column -o accuracy.svg
      ppsim figure accuracy validation.json --title Published -o accuracy.png

    VALIDATION.json is a file of `ppsim validate` with -o NAME.json, of all sets or of one.
    """
    from ppsim.plot.figures.accuracy import accuracy_figure
    from ppsim.validation.validation_result import read_rows

    with prefix_errors(file):
        return accuracy_figure(read_rows(file), **look)


def _read(path: str) -> "tuple[Timeline, float | None]":
    from ppsim.runs.timeline_file import MADE_BY, timeline_from_json

    data = read_json(path, made_by=MADE_BY)
    found, _ = timeline_from_json(data, path)
    limit = data.get("memory_limit_bytes")
    if limit is not None and not isinstance(limit, int | float):
        raise ConfigError(f"{path} is wrong: memory_limit_bytes is {limit!r}; a limit is a number of bytes")
    return found, limit


def _sweep(
    *, pp: int, vpp: int | None, schedule: str, microbatches: str | None, profile: str | None, costs: str | None,
    runtime: Any,
) -> "pandas.DataFrame":  # fmt: skip
    from ppsim.catalog.build import require_shape
    from ppsim.costs.profile import DEFAULT, load_profile
    from ppsim.projection.bubbles import bubbles_at, bubbles_of_plan
    from ppsim.projection.plan import Plan
    from ppsim.simulation.cost_files import read_costs

    names = parse_names("schedule", schedule) or []
    counts = parse_numbers("microbatches", microbatches) or [times * pp for times in (1, 2, 4, 8)]
    require_shape(pp=pp, microbatches=1)
    require_least("vpp", vpp)
    if costs is not None:
        if profile or runtime:
            given = "--profile" if profile else "--runtime"
            raise ConfigError(f"{given} is for measured costs; --costs says all of costs and network itself")
        return bubbles_at(read_costs(costs), pp=pp, vpp=vpp, schedules=names, microbatches=counts)
    plan = Plan(pp=pp, vpp=vpp, profile=load_profile(profile or DEFAULT), runtime=runtime or "torch")
    print_message(f"costs: {plan.source.name}, {plan.runtime} network")
    return bubbles_of_plan(plan, schedules=names, microbatches=counts)
