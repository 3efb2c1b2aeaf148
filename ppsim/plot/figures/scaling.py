"""Figure of throughput or iteration time over the values of one option, and of where the time goes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.base.option_declarations import flag_of
from ppsim.base.units import count
from ppsim.plot import palette
from ppsim.plot.figures.style import Width, new_figure, settings
from ppsim.schedule.table import Op

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEIGHT = 2.6  # inches
_MOST_CAUSES = 7
_LONG = 40  # characters of all labels, above which they are turned
_SHADES = (
    *(palette.COLOURS[op] for op in (Op.F, Op.B, Op.I, Op.W)), "#AA4499", "#DDAADD", "#A8663C",
    palette.COLOURS[Op.IDLE],
)  # fmt: skip


def scaling_figure(
    option: str,
    rows: Sequence[Mapping[str, Any]],
    shares: Sequence[Mapping[str, float]],
    *,
    knee: int | None = None,
    width: Width = "two-column",
) -> "Figure":
    """Draw tokens per second over numbers of GPUs, or iteration times over the values of another option.

    `rows` are the possible ones of a `Scaling`, with 90 % intervals; `shares` are their parts of the iteration by
    cause, as fractions; `knee` is a number of GPUs.
    """
    with settings():
        figure = new_figure(width, _HEIGHT)
        figure.set_layout_engine("constrained", w_pad=0.03, h_pad=0.02)
        left, right = figure.subplots(1, 2, width_ratios=(1, 1))
        texts = [str(row[option]) for row in rows]
        positions = [row["num_gpus"] for row in rows] if option == "gpus" else range(len(rows))
        _draw_heights(left, positions, rows, is_throughput=option == "gpus", knee=knee)
        _draw_shares(right, shares)
        for axes, ticks in ((left, positions), (right, range(len(rows)))):
            axes.set_xticks(ticks, texts, rotation=30 if sum(map(len, texts)) > _LONG else 0)
            axes.set_xlabel("GPUs" if option == "gpus" else flag_of(option)[2:])
        left.minorticks_off()
        return figure


def _draw_heights(
    axes: "Axes",
    positions: Sequence[int],
    rows: Sequence[Mapping[str, Any]],
    *,
    is_throughput: bool,
    knee: int | None,
) -> None:
    heights = np.array([[row[f"iteration_time{end}_s"] for row in rows] for end in ("", "_low", "_high")])
    if is_throughput:
        heights = np.array([row["tokens_per_s"] * row["iteration_time_s"] for row in rows]) / heights
    middle, ends = heights[0], heights[1:]
    axes.errorbar(
        positions, middle, [middle - ends.min(axis=0), ends.max(axis=0) - middle],
        marker="o", linestyle="-" if is_throughput else "", color=palette.COLOURS[Op.F], capsize=2, elinewidth=0.8,
        label="projected, 90 % interval",
    )  # fmt: skip
    if is_throughput:
        ideal = middle[0] * np.array(positions) / positions[0]
        axes.plot(positions, ideal, "--", color=palette.QUIET_TEXT, linewidth=0.7, label="proportional to GPUs")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        ticks = _apart(middle.tolist())
        axes.set_yticks(ticks, [count(height) for height in ticks])
    else:
        axes.set_ylim(bottom=0)
    if knee is not None:
        axes.axvline(knee, color=palette.CRITICAL_PATH, linestyle=":", label=f"knee: {knee} GPUs")
    axes.set_ylabel("tokens per second" if is_throughput else "iteration time (s)")
    axes.grid()
    axes.legend(loc="upper left" if is_throughput else "best")


_LEAST_RATIO = 1.3
"""Ratio of neighbouring labels of a logarithmic axis, below which they would overlap."""


def _apart(heights: Sequence[float]) -> list[float]:
    ticks: list[float] = []
    for height in sorted(heights):
        if not ticks or height >= _LEAST_RATIO * ticks[-1]:
            ticks.append(height)
    return ticks


def _draw_shares(axes: "Axes", shares: Sequence[Mapping[str, float]]) -> None:
    causes = {name: max(row.get(name, 0.0) for row in shares) for row in shares for name in row}
    largest = sorted(causes, key=lambda name: -causes[name])[:_MOST_CAUSES]
    parts = {name: np.array([row.get(name, 0.0) for row in shares]) for name in causes if name in largest}
    parts["all else"] = 1.0 - np.sum(list(parts.values()), axis=0)
    bottoms = np.zeros(len(shares))
    for (name, fractions), shade in zip(parts.items(), _SHADES, strict=False):
        heights = 100 * np.maximum(fractions, 0.0)
        axes.bar(range(len(shares)), heights, bottom=bottoms, color=shade, width=0.7, label=name)
        bottoms = bottoms + heights
    axes.set_ylabel("share of the iteration (%)")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), reverse=True)
