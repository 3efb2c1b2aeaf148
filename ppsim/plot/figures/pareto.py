"""Figure of iteration time over memory."""

from typing import TYPE_CHECKING

from ppsim.base.units import size
from ppsim.plot import palette
from ppsim.plot.figures.style import Width, new_axes
from ppsim.plot.scale import AxisScale, bytes_scale
from ppsim.schedule.table import Op

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_USUAL = ("tp1", "cp1", "ep1", "dp1", "pp1", "vpp1", "mb1", "none", "auto")
_HEIGHT = 2.5  # inches


def pareto_figure(
    configurations: "pandas.DataFrame",
    *,
    memory_limit_bytes: float | None = None,
    title: str = "",
    width: Width = "two-column",
) -> "Figure":
    """Return iteration time over the highest peak memory of a rank, with the Pareto set as a line.

    `configurations` come from `ppsim.tuning.configurations`.
    """
    with new_axes(width, _HEIGHT) as (figure, axes):
        draw_pareto(axes, configurations, memory_limit_bytes=memory_limit_bytes)
        axes.set_title(title, loc="left", parse_math=False)
        figure.legend(loc="outside upper right", ncols=3)
    return figure


def draw_pareto(
    axes: "Axes", configurations: "pandas.DataFrame", *, memory_limit_bytes: float | None = None
) -> None:
    front = configurations[configurations["pareto"]].sort_values("peak_bytes")
    top = max(float(configurations["peak_bytes"].max()), memory_limit_bytes or 0.0)
    slowest_s = float(configurations["iteration_time_s"].max())
    memory, time = bytes_scale(top), AxisScale("s", 1.0) if slowest_s >= 1 else AxisScale("ms", 1e-3)
    axes.plot(
        configurations["peak_bytes"] / memory.size, configurations["iteration_time_s"] / time.size,
        "o", color=palette.COLOURS[Op.F], alpha=0.4, markersize=2.5, markeredgewidth=0, label="simulated",
    )  # fmt: skip
    axes.step(
        front["peak_bytes"] / memory.size, front["iteration_time_s"] / time.size, where="post",
        color=palette.COLOURS[Op.W], marker="s", markersize=2.5, linewidth=0.8, label="Pareto set",
    )  # fmt: skip
    for one, ha, offset in ((front.iloc[0], "left", (14, 0)), (front.iloc[-1], "right", (6, 34))):
        axes.annotate(
            in_short(one["configuration"]),
            (one["peak_bytes"] / memory.size, one["iteration_time_s"] / time.size), xytext=offset,
            textcoords="offset points", ha=ha, va="center", parse_math=False,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
            arrowprops={"arrowstyle": "-", "linewidth": 0.5, "color": palette.QUIET_TEXT, "shrinkB": 2},
        )  # fmt: skip
    if memory_limit_bytes is not None:
        axes.axvline(
            memory_limit_bytes / memory.size, color=palette.CRITICAL_PATH, linestyle="--",
            label=f"limit {size(memory_limit_bytes)}",
        )  # fmt: skip
    axes.set_xlabel(f"peak memory per GPU ({memory.unit})")
    axes.set_ylabel(f"iteration time ({time.unit})")
    axes.grid()


def in_short(configuration: str) -> str:
    """A configuration without sizes of 1 and without defaults.

    >>> in_short("tp1 cp1 ep1 dp4 pp2 vpp2 mb1 none zbv-fixed auto")
    'dp4 pp2 vpp2 zbv-fixed'
    """
    return " ".join(word for word in configuration.split() if word not in _USUAL)
