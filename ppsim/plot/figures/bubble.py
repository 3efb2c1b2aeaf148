"""Figure of the bubble ratio against the number of microbatches, one line per schedule."""

from typing import TYPE_CHECKING, Any

from ppsim.base.errors import ConfigError
from ppsim.plot.figures.style import Width, new_axes, series_style
from ppsim.simulation.bounds.problem import Criterion

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

_HEIGHT = 2.4  # inches
_COLUMNS = {
    "step": ("bubble_ratio", "bubble ratio (%)"),
    "span": ("span_bubble_ratio", "bubble ratio by span (%)"),
}


def bubble_figure(
    sweep: "pandas.DataFrame", *, by: Criterion = "step", title: str = "", width: Width = "two-column"
) -> "Figure":
    """Return the bubble ratios of a sweep of `ppsim.projection.bubbles`.

    "step" divides by the step time, "span" by the longest span of a single rank. Raises `ConfigError` if no
    schedule can be built.
    """
    column, name = _COLUMNS[by]
    possible = sweep.dropna(subset=[column])
    if possible.empty:
        raise ConfigError("there is nothing to draw: no schedule of the sweep can be built")
    names = list(dict.fromkeys(possible["schedule"]))
    with new_axes(width, _HEIGHT) as (figure, axes):
        for schedule, look in zip(names, series_style(len(names)), strict=True):
            rows = possible[possible["schedule"] == schedule].sort_values("microbatches")
            axes.plot(
                rows["microbatches"], 100 * rows[column], color=look.colour, marker=look.marker,
                linestyle=look.line, label=_label(rows), clip_on=False,
            )  # fmt: skip
        _microbatch_axis(axes, possible)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(name)
        axes.grid(axis="y")
        axes.set_title(title, loc="left", parse_math=False)
        axes.legend(loc="upper right")
    return figure


def _label(rows: "pandas.DataFrame") -> str:
    schedule, vpp = rows["schedule"].iloc[0], rows["vpp"].iloc[0]
    return str(schedule) if vpp == 1 else f"{schedule}, vpp {vpp}"


def _microbatch_axis(axes: Any, rows: "pandas.DataFrame") -> None:
    from matplotlib.ticker import NullFormatter, NullLocator

    numbers = sorted(set(rows["microbatches"]))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(numbers, [str(number) for number in numbers])
    axes.set_xlabel("microbatches")
