"""Timelines as a figure for print: the panels of the interactive page, without what takes a pointer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ppsim.errors import ConfigError
from ppsim.plot import palette
from ppsim.plot.fills import Fills, fills_of
from ppsim.plot.lanes import (
    HALF_HEIGHT,
    MOST_HAIRLINES,
    MOST_LABELS,
    PATH_OFFSET,
    Lane,
    compute_lanes,
    critical_line,
    has_memory,
    has_transfers,
    listed_ranks,
    memory_caption,
    memory_lines,
    placed_transfer_lanes,
    shown_ranks,
)
from ppsim.plot.scale import Scale, bytes_scale, heading, panel_prefixes, time_scale
from ppsim.schedule.table import Op
from ppsim.simulation.timeline import Timeline
from ppsim.units import size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 10.0, 0.7, 1.7, 0.1, 0.5  # inches, as all sizes here
_CAPTION, _MEMORY, _LEGEND_ENTRY = 0.26, 1.3, 0.17
_POINTS = 72.0  # an inch
_FONT_POINTS, _LABEL_POINTS = 8.0, 6.5
_MOST_VECTOR_CELLS = 20_000  # beyond, cells become an image inside a vector file, which a viewer opens in time
_METADATA: dict[str, dict[str, None]] = {  # what would tell one run from another
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
    ".png": {"Software": None},
}


@dataclass(frozen=True)
class _Panel:
    kind: Literal["compute", "transfers", "memory"]
    timeline: Timeline
    title: str
    height: float


def timeline_figure(
    timelines: Sequence[Timeline], *, titles: Sequence[str], memory_limit_bytes: float | None = None
) -> "Figure":
    """Return a matplotlib figure with the timelines on one time axis, the first on top; transfers, memory below.

    Every timeline starts at 0, its first start. `titles` has one entry a timeline. The figure is 10 inches wide
    and belongs to no pyplot window; what a matplotlibrc says does not change it.
    """
    from matplotlib.figure import Figure

    longest_s = max(timeline.step_time_s for timeline in timelines)
    scale = time_scale(longest_s)
    fills = fills_of(timelines)
    panels = _panels(timelines, titles)
    top_bytes = max([memory_limit_bytes or 0.0, *(float(t.memory.peak_bytes.max()) for t in timelines)])
    height = _TOP + sum(_CAPTION + panel.height for panel in panels) + _BOTTOM
    with _settings():
        figure = Figure(figsize=(_WIDTH, height))
        top = height - _TOP
        listed: set[str] = set()
        for panel in panels:
            top -= _CAPTION + panel.height
            axes = figure.add_axes(
                (_LEFT / _WIDTH, top / height, (_WIDTH - _LEFT - _RIGHT) / _WIDTH, panel.height / height)
            )
            axes.set_xlim(0.0, longest_s / scale.size if longest_s > 0 else 1.0)
            if panel.kind == "compute":
                _draw_compute(axes, panel, scale, fills)
            elif panel.kind == "transfers":
                _draw_transfers(axes, panel, scale, fills)
            else:
                _draw_memory(axes, panel, scale, bytes_scale(top_bytes), top_bytes, memory_limit_bytes)
            if panel.kind not in listed:
                _draw_legend(axes, panel, timelines, fills)
            listed.add(panel.kind)
            is_last = panel is panels[-1]
            axes.tick_params(axis="x", bottom=is_last, labelbottom=is_last)
        axes.set_xlabel(f"time ({scale.unit})")
    return figure


def save_figure(figure: "Figure", path: str | Path) -> None:
    """Write a figure as .svg, .pdf or .png: the same bytes for the same figure, whenever it is written.

    Raises `ConfigError` for another suffix.
    """
    import matplotlib

    suffix = Path(path).suffix
    if suffix not in _METADATA:
        raise ConfigError(f"cannot write a figure to {path}: give it one of {', '.join(_METADATA)}")
    # Without a salt of its own, an SVG gets random ids.
    with _settings(), matplotlib.rc_context({"svg.hashsalt": "ppsim", "pdf.fonttype": 42}):
        figure.savefig(path, dpi=200, metadata=_METADATA[suffix])


@contextmanager
def _settings() -> Iterator[None]:
    import matplotlib.style

    own = {
        "font.size": _FONT_POINTS,
        "text.color": palette.TEXT,
        "axes.labelcolor": palette.TEXT,
        "xtick.color": palette.TEXT,
        "ytick.color": palette.TEXT,
    }
    with matplotlib.style.context(["default", own]):
        yield


def _panels(timelines: Sequence[Timeline], titles: Sequence[str]) -> list[_Panel]:
    """Compute of all timelines, then the transfers of those that have some, then memory where there is any."""
    prefixes = panel_prefixes(timelines, titles)
    panels = [
        _Panel("compute", timeline, title, _rows_height(timeline, 2.4, 0.06, 0.26))
        for timeline, title in zip(timelines, titles, strict=True)
    ]
    legend_height = _LEGEND_ENTRY * (len(fills_of(timelines).legend(timelines)) + 1)
    panels[0] = replace(panels[0], height=max(panels[0].height, legend_height))
    panels += [
        _Panel(
            "transfers", timeline, f"{prefix}transfers, by sending rank", _rows_height(timeline, 0.9, 0.04, 0.14)
        )
        for timeline, prefix in zip(timelines, prefixes, strict=True)
        if has_transfers(timeline)
    ]
    panels += [
        _Panel("memory", timeline, prefix + memory_caption(timeline), _MEMORY)
        for timeline, prefix in zip(timelines, prefixes, strict=True)
        if has_memory(timeline)
    ]
    return panels


def _rows_height(timeline: Timeline, aim: float, least: float, most: float) -> float:
    """The height of a panel with a row a rank: `aim` shared out, a row between `least` and `most`."""
    num_ranks = timeline.schedule.num_ranks
    return num_ranks * min(max(aim / num_ranks, least), most)


def _draw_compute(axes: "Axes", panel: _Panel, scale: Scale, fills: Fills) -> None:
    timeline = panel.timeline
    lanes = compute_lanes(timeline)
    points_per_s = (_WIDTH - _LEFT - _RIGHT) * _POINTS / (axes.get_xlim()[1] * scale.size)
    durations = (timeline.end - timeline.start)[: timeline.num_actions]
    is_wide = float(np.median(durations)) * points_per_s > 4
    cells = _cells([(lane, float(lane.rank), HALF_HEIGHT) for lane in lanes], scale, fills)
    if is_wide:
        cells.set(edgecolor="white", linewidth=0.4)
    else:  # edges would hide narrow cells; smoothing them would let white through between two
        cells.set(linewidth=0, antialiased=False)
    axes.add_collection(cells, autolim=False)
    row_points = panel.height / len(lanes) * _POINTS
    if timeline.num_actions <= MOST_LABELS and row_points > 1.5 * _LABEL_POINTS:
        _draw_labels(axes, lanes, panel, scale, fills, points_per_s)
    rows = np.arange(len(lanes), dtype=np.float64) + PATH_OFFSET
    x, y = critical_line(timeline, y_of_rank=rows)
    width = min(1.4, row_points / 6)
    for colour, factor in ((palette.CASING, 2.0), (palette.CRITICAL_PATH, 1.0)):
        axes.plot(x / scale.size, y, color=colour, linewidth=factor * width, solid_joinstyle="miter")
    name, facts = heading(timeline, panel.title)
    _caption(axes, name, facts)
    _rank_axis(axes, panel)


def _draw_labels(
    axes: "Axes", lanes: Sequence[Lane], panel: _Panel, scale: Scale, fills: Fills, points_per_s: float
) -> None:
    """Write the microbatch into every cell that holds the longest of them, so that equal cells look equal."""
    microbatches = panel.timeline.schedule.microbatch
    digits = len(str(panel.timeline.schedule.num_units - 1))
    least_s = (0.64 * _LABEL_POINTS * digits + 1) / points_per_s
    colours = fills.colours
    for lane in lanes:
        labelled = np.flatnonzero(~lane.is_idle & (lane.durations_s >= least_s))
        index = fills.index_of(lane)
        middles = (lane.edges[:-1] + lane.edges[1:]) / 2 / scale.size
        for cell in labelled.tolist():
            axes.text(
                middles[cell], lane.rank - 0.02, str(microbatches[lane.node[cell]]), fontsize=_LABEL_POINTS,
                color=palette.text_on(colours[index[cell]]), ha="center", va="center_baseline", clip_on=True,
            )  # fmt: skip


def _draw_transfers(axes: "Axes", panel: _Panel, scale: Scale, fills: Fills) -> None:
    placed = placed_transfer_lanes(panel.timeline)
    cells = _cells(placed, scale, fills, with_idle=False)
    if panel.timeline.graph.num_transfers <= MOST_HAIRLINES:
        cells.set(edgecolor=palette.TRANSFER_START, linewidth=0.4)
        bottoms = [middle + half_height for _, middle, half_height in placed]
        end = panel.timeline.step_time_s / scale.size
        axes.hlines(bottoms, 0, end, color=palette.TRANSFER_START, linewidth=0.4)
    else:
        # Thin edges make a shade of how many there are; snapped to pixels, most would vanish.
        cells.set(edgecolor=palette.TRANSFER_START, linewidth=0.1, snap=False)
    axes.add_collection(cells, autolim=False)
    _caption(axes, "", panel.title)
    _rank_axis(axes, panel)


def _draw_memory(
    axes: "Axes", panel: _Panel, scale: Scale, unit: Scale, top_bytes: float, limit_bytes: float | None
) -> None:
    num_ranks, shown = panel.timeline.schedule.num_ranks, shown_ranks(panel.timeline)
    for line in memory_lines(panel.timeline):
        if line.rank in shown:
            axes.plot(
                line.at_s / scale.size, line.held_bytes / unit.size, drawstyle="steps-post", linewidth=1,
                color=palette.rank_colour(line.rank, num_ranks),
            )  # fmt: skip
    axes.set_ylim(0, 1.06 * top_bytes / unit.size)
    axes.set_ylabel(unit.unit)
    axes.locator_params(axis="y", nbins=5)
    axes.grid(axis="y", color=palette.COLOURS[Op.IDLE], linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if limit_bytes is not None:
        y = limit_bytes / unit.size
        axes.axhline(y, color=palette.CRITICAL_PATH, linewidth=1, linestyle="--")
        axes.annotate(
            f"limit {size(limit_bytes)}", (1, y), xycoords=("axes fraction", "data"), xytext=(0, -2),
            textcoords="offset points", ha="right", va="top",
        )  # fmt: skip
    _caption(axes, "", panel.title)


def _draw_legend(axes: "Axes", panel: _Panel, timelines: Sequence[Timeline], fills: Fills) -> None:
    """Beside the first panel of a kind: fills and critical path, or ranks."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if panel.kind == "transfers":
        return
    handles: list[Any]
    if panel.kind == "compute":
        handles = [Patch(facecolor=colour, label=name) for name, colour in fills.legend(timelines)]
        handles.append(Line2D([], [], color=palette.CRITICAL_PATH, linewidth=1.4, label="critical path"))
    else:
        num_ranks = panel.timeline.schedule.num_ranks
        handles = [
            Line2D([], [], color=palette.rank_colour(rank, num_ranks), linewidth=1, label=f"rank {rank}")
            for rank in listed_ranks(panel.timeline)
        ]
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.012, 1.0), borderaxespad=0, frameon=False,
        handlelength=1.2, handleheight=0.9, labelspacing=0.35, borderpad=0.2,
    )  # fmt: skip


def _cells(
    placed: Sequence[tuple[Lane, float, float]], scale: Scale, fills: Fills, *, with_idle: bool = True
) -> "PolyCollection":
    """Return the cells of lanes, each given with its middle and half its height, as one collection."""
    from matplotlib.collections import PolyCollection

    corners, colours = [], []
    for lane, middle, half_height in placed:
        keep = ~lane.is_idle | with_idle
        left, right = lane.edges[:-1][keep] / scale.size, lane.edges[1:][keep] / scale.size
        low, high = np.full(len(left), middle - half_height), np.full(len(left), middle + half_height)
        corners.append(np.stack([left, low, left, high, right, high, right, low], axis=1).reshape(-1, 4, 2))
        colours.append(fills.index_of(lane)[keep])
    vertices = np.concatenate(corners)
    row_of_colours = fills.colours
    facecolors = [row_of_colours[index] for index in np.concatenate(colours).tolist()]
    collection = PolyCollection(list(vertices), facecolors=facecolors)
    collection.set_rasterized(len(vertices) > _MOST_VECTOR_CELLS)
    return collection


def _caption(axes: "Axes", name: str, facts: str) -> None:
    """Write a panel's title in bold and what stands behind it; a dollar sign is no formula."""
    title = axes.annotate(
        name, (0, 1), xycoords="axes fraction", xytext=(0, 2), textcoords="offset points",
        fontweight="bold", fontsize=_FONT_POINTS + 1, va="bottom", parse_math=False,
    )  # fmt: skip
    axes.annotate(
        facts, (1, 0) if name else (0, 0), xycoords=title, xytext=(8 if name else 0, 0),
        textcoords="offset points", color=palette.QUIET_TEXT, va="bottom", parse_math=False,
    )  # fmt: skip


def _rank_axis(axes: "Axes", panel: _Panel) -> None:
    num_ranks = panel.timeline.schedule.num_ranks
    row_points = panel.height / num_ranks * _POINTS
    step = next(step for step in (1, 2, 4, 8, 16, 32, 64) if step * row_points >= 1.2 * _FONT_POINTS)
    ranks = range(0, num_ranks, step)
    axes.set_ylim(num_ranks - 0.5, -0.5)
    axes.set_yticks(ranks, [f"rank {rank}" for rank in ranks])
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
