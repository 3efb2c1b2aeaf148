"""Figure of projected against measured values, and of signed errors by set of published runs."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.base.errors import ConfigError
from ppsim.plot import palette
from ppsim.plot.figures.style import GRID, TITLE_POINTS, Series, Width, new_figure, series_style, settings

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAND = 0.05
_SCATTER, _SET_ROW, _AXIS = 1.75, 0.15, 0.55  # inches: heights of a scatter plot, a set's row, and the labels
_GOLDEN = 0.618  # multiples modulo 1 spread evenly, so that neighbouring points of a row do not overlap
_POINT: dict[str, Any] = {"markersize": 3.0, "markeredgewidth": 0.5}
_QUANTITIES = {"time": "step time (s)", "memory": "memory (GiB)"}
_UNITS = {"time": 1.0, "memory": 2.0**30}


def accuracy_figure(rows: "pandas.DataFrame", *, title: str = "", width: Width = "two-column") -> "Figure":
    """Return scatter plots of projected over measured time and memory, and signed errors by set.

    `rows` come from `ppsim.validation.validation_result`. Percentages are the mean absolute error, over the rows
    not used for fitting if there are any. Raises `ConfigError` if all sets only compare the order of schedules.
    """
    rows = rows[~rows["order_only"]]
    if rows.empty:
        raise ConfigError("there is nothing to draw: of these sets only the order of the schedules counts")
    sets = list(dict.fromkeys(rows["set"]))
    looks = dict(zip(sets, series_style(len(sets)), strict=True))
    quantities = [name for name in _QUANTITIES if (rows["quantity"] == name).any()]
    with settings():
        figure, scatters, strip = _axes(width, len(quantities), len(sets))
        for axes, quantity in zip(scatters, quantities, strict=True):
            _draw_scatter(axes, rows[rows["quantity"] == quantity], looks, quantity)
        _draw_legend(scatters[0])
        _draw_errors(strip, rows, looks)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=TITLE_POINTS, parse_math=False)
    return figure


def _axes(width: Width, num_scatters: int, num_sets: int) -> tuple["Figure", list["Axes"], "Axes"]:
    strip_height = _SET_ROW * num_sets + _AXIS
    if width == "two-column":
        figure = new_figure(width, max(_SCATTER + _AXIS, strip_height))
        halves: Any = figure.subfigures(1, 2, width_ratios=[1.0, 1.0 / num_scatters + 0.3])
    else:
        figure = new_figure(width, _SCATTER + _AXIS + strip_height)
        halves = figure.subfigures(2, 1, height_ratios=[_SCATTER + _AXIS, strip_height])
    figure.set_layout_engine("constrained", w_pad=0.03, h_pad=0.03)
    left, right = halves
    scatters = left.subplots(1, num_scatters, squeeze=False)[0]
    return figure, list(scatters), right.subplots()


def _draw_scatter(axes: "Axes", rows: "pandas.DataFrame", looks: dict[str, Series], quantity: str) -> None:
    unit = _UNITS[quantity]
    least = float(rows[["measured", "projected"]].min().min()) / unit / 1.3
    most = float(rows[["measured", "projected"]].max().max()) / unit * 1.3
    ends = np.array([least, most])
    axes.fill_between(ends, (1 - _BAND) * ends, (1 + _BAND) * ends, color=GRID, linewidth=0)
    axes.plot(ends, ends, color=palette.QUIET_TEXT, linewidth=0.5)
    for name, look in looks.items():
        mine = rows[rows["set"] == name]
        _points(axes, mine["measured"] / unit, mine["projected"] / unit, mine["use"] == "fit", look)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(least, most)
    axes.set_ylim(least, most)
    for axis in (axes.xaxis, axes.yaxis):
        _plain_ticks(axis, math.log10(most / least))
    axes.set_xlabel(f"measured {_QUANTITIES[quantity]}")
    axes.set_ylabel(f"projected {_QUANTITIES[quantity]}")


def _draw_errors(axes: "Axes", rows: "pandas.DataFrame", looks: dict[str, Series]) -> None:
    axes.axvspan(-100 * _BAND, 100 * _BAND, color=GRID, linewidth=0)
    axes.axvline(0, color=palette.QUIET_TEXT, linewidth=0.5)
    for place, (name, look) in enumerate(looks.items()):
        mine = rows[rows["set"] == name]
        at = place + 0.5 * (np.arange(len(mine)) * _GOLDEN % 1 - 0.5)
        _points(axes, 100 * mine["error"], at, mine["use"] == "fit", look)
        tested = mine[mine["use"] == "test"] if (mine["use"] == "test").any() else mine
        axes.annotate(
            f"{100 * tested['error'].abs().mean():.1f} %", (1, place), xycoords=("axes fraction", "data"),
            xytext=(3, 0), textcoords="offset points", va="center", annotation_clip=False,
        )  # fmt: skip
    axes.annotate(
        "mean |error|", (1, 1), xycoords="axes fraction", xytext=(26, 2), textcoords="offset points", va="bottom",
        ha="right", color=palette.QUIET_TEXT, annotation_clip=False,
    )  # fmt: skip
    axes.set_yticks(range(len(looks)), list(looks))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(looks) - 0.5, -0.5)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("projected / measured − 1 (%)")


def _draw_legend(axes: "Axes") -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    grey: dict[str, Any] = {"color": palette.QUIET_TEXT, "linestyle": "none", **_POINT}
    axes.legend(
        handles=[
            Line2D([], [], marker="o", label="test", **grey),
            Line2D([], [], marker="o", markerfacecolor="none", label="fitted", **grey),
            Patch(facecolor=GRID, label="±5 %"),
        ],
        loc="upper left", handlelength=1.0, handletextpad=0.5, borderaxespad=0.0, frameon=False,
    )  # fmt: skip


def _points(axes: "Axes", x: Any, y: Any, is_fitted: Any, look: Series) -> None:
    for chosen, fill in ((is_fitted, "none"), (~is_fitted, look.colour)):
        if not np.any(chosen):
            continue
        axes.plot(
            np.asarray(x)[chosen], np.asarray(y)[chosen], look.marker, color=look.colour, markerfacecolor=fill,
            alpha=0.85, clip_on=False, **_POINT,
        )  # fmt: skip


def _plain_ticks(axis: Any, decades: float) -> None:
    """Label a logarithmic axis with plain numbers (0.1, 20)."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0,) if decades > 1.7 else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
