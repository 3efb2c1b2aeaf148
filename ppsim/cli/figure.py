"""The command `figure`."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from ppsim.api.output_formats import FIGURE
from ppsim.base.errors import ConfigError
from ppsim.base.files import prefix_errors, read_json
from ppsim.base.write_outputs import write
from ppsim.cli import Commands
from ppsim.cli.common import check_outputs, parse_names, print_message

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ppsim.simulation.timeline import Timeline

_title = click.option("--title", default="", help="Title inside the figure. [default: none]")


def _drawn(command: "Callable[..., Figure]") -> Any:
    """Add an option for the width, and output files."""

    @click.option(
        "--width", type=click.Choice(["one-column", "two-column"]), default="two-column", show_default=True,
        help="Figure width: one column (3.33 in) or two columns (7.0 in).",
    )  # fmt: skip
    @click.option(
        "-o", "--output", "outputs", multiple=True, required=True, metavar="PATH",
        help="Output file: .pdf, .svg or .png. May be repeated.",
    )  # fmt: skip
    @wraps(command)
    def draw(outputs: tuple[str, ...], **options: Any) -> None:
        check_outputs(outputs, FIGURE)
        write(outputs, FIGURE, command(**options), announce=print_message)

    return draw


_memory_limit = click.option(
    "--memory-limit", metavar="SIZE", help="Memory limit per rank to draw (80GiB). [default: the limit in the file]"
)


@click.group(cls=Commands)
def figure() -> None:
    """Draw figures for a paper from the output files of other commands, one or two columns wide.

    \b
      ppsim figure timeline projected.json --width one-column -o timeline.pdf
      ppsim figure memory projected.json -o memory.pdf
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


def _read(path: str) -> "tuple[Timeline, float | None]":
    from ppsim.runs.timeline_file import MADE_BY, timeline_from_json

    data = read_json(path, made_by=MADE_BY)
    found, _ = timeline_from_json(data, path)
    limit = data.get("memory_limit_bytes")
    if limit is not None and not isinstance(limit, int | float):
        raise ConfigError(f"{path} is wrong: memory_limit_bytes is {limit!r}; a limit is a number of bytes")
    return found, limit
