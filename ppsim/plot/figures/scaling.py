"""Figure of throughput or iteration time over the values of one option, and of where the time goes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppsim.base.units import count
from ppsim.plot import palette
from ppsim.plot.figures.style import Width, new_figure, settings
from ppsim.schedule.table import Op

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEIGHT = 2.6  # inches
_MOST_CAUSES = 7
_SHADES = (
    *(palette.COLOURS[op] for op in (Op.F, Op.B, Op.I, Op.W)), "#AA4499", "#DDAADD", "#A8663C",
    palette.COLOURS[Op.IDLE],
)  # fmt: skip


@dataclass(frozen=True)
class ScalingPoints:
    """A point for each value of an option: `heights` with the ends of their 90 % intervals, and shares by cause.

    `counts` are the numbers of GPUs if the option is that number; the axis is then logarithmic, and `knee` is one
    of them.
    """

    label: str
    values: Sequence[str]
    height_label: str
    heights: Sequence[float]
    lows: Sequence[float]
    highs: Sequence[float]
    shares: Mapping[str, Sequence[float]]
    counts: Sequence[int] = ()
    knee: int | None = None


def scaling_figure(points: ScalingPoints, *, width: Width = "two-column") -> "Figure":
    with settings():
        figure = new_figure(width, _HEIGHT)
        figure.set_layout_engine("constrained", w_pad=0.03, h_pad=0.02)
        left, right = figure.subplots(1, 2, width_ratios=(1, 1))
        _draw_heights(left, points)
        _draw_shares(right, points)
        return figure


def _draw_heights(axes: "Axes", points: ScalingPoints) -> None:
    positions = list(points.counts) or list(range(len(points.values)))
    errors = [
        [height - low for height, low in zip(points.heights, points.lows, strict=True)],
        [high - height for height, high in zip(points.heights, points.highs, strict=True)],
    ]
    axes.errorbar(
        positions, points.heights, errors, marker="o", linestyle="-" if points.counts else "",
        color=palette.COLOURS[Op.F], capsize=2, elinewidth=0.8, label="projected, 90 % interval",
    )  # fmt: skip
    if points.counts:
        ideal = [points.heights[0] * number / points.counts[0] for number in points.counts]
        axes.plot(positions, ideal, "--", color=palette.QUIET_TEXT, linewidth=0.7, label="proportional to GPUs")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        ticks = _apart(points.heights)
        axes.set_yticks(ticks, [count(height) for height in ticks])
    else:
        axes.set_ylim(bottom=0)
    if points.knee is not None:
        axes.axvline(points.knee, color=palette.CRITICAL_PATH, linestyle=":", label=f"knee: {points.knee} GPUs")
    axes.set_xticks(positions, points.values, rotation=_rotation(points.values))
    axes.minorticks_off()
    axes.set_xlabel(points.label)
    axes.set_ylabel(points.height_label)
    axes.grid()
    axes.legend(loc="upper left" if points.counts else "best")


_LEAST_RATIO = 1.3
"""Ratio of neighbouring labels of a logarithmic axis, below which they would overlap."""


def _apart(heights: Sequence[float]) -> list[float]:
    ticks: list[float] = []
    for height in sorted(heights):
        if not ticks or height >= _LEAST_RATIO * ticks[-1]:
            ticks.append(height)
    return ticks


def _draw_shares(axes: "Axes", points: ScalingPoints) -> None:
    largest = sorted(points.shares, key=lambda name: -max(points.shares[name]))[:_MOST_CAUSES]
    positions, bottoms = range(len(points.values)), [0.0] * len(points.values)
    rest = [1.0 - sum(points.shares[name][index] for name in largest) for index in positions]
    shares = {name: points.shares[name] for name in points.shares if name in largest} | {"all else": rest}
    for (name, parts), shade in zip(shares.items(), _SHADES, strict=False):
        heights = [100 * max(part, 0.0) for part in parts]
        axes.bar(positions, heights, bottom=bottoms, color=shade, width=0.7, label=name)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    axes.set_xticks(list(positions), points.values, rotation=_rotation(points.values))
    axes.set_xlabel(points.label)
    axes.set_ylabel("share of the iteration (%)")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), reverse=True)


def _rotation(values: Sequence[str]) -> int:
    return 30 if sum(map(len, values)) > 40 else 0
