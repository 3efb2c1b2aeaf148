"""Timelines as a figure for print: the panels of the interactive page, without what takes a pointer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ppsim.errors import ConfigError
from ppsim.plot import palette
from ppsim.plot.figures.memory import draw_memory, draw_rank_legend, memory_range_of
from ppsim.plot.figures.style import (
    CELL_POINTS,
    LEGEND_ROW,
    POINTS,
    TEXT_POINTS,
    TITLE_POINTS,
    Width,
    inches,
    legend_rows,
    new_figure,
    place_rows,
    settings,
)
from ppsim.plot.fills import KINDS, Fills, fills_of
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
    memory_caption,
    placed_transfer_lanes,
)
from ppsim.plot.scale import Scale, heading, panel_prefixes, time_scale
from ppsim.schedule.table import Op
from ppsim.simulation.engine import Floats
from ppsim.simulation.timeline import Timeline
from ppsim.units import percent, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure

Panel = Literal["compute", "transfers", "memory"]
PANELS: tuple[Panel, ...] = ("compute", "transfers", "memory")

_LEFT, _RIGHT, _TOP, _BOTTOM = 0.42, 0.1, 0.03, 0.34  # inches, as all sizes here
_CAPTION, _GAP, _MEMORY = 0.19, 0.04, 1.1
_WIDE_POINTS = 4.0
_HATCH, _HATCH_COLOUR = 12 * "/", "#B05010"  # a line every 6 points
_MOST_VECTOR_CELLS = 20_000  # beyond, cells become an image inside a vector file, which a viewer opens in time


@dataclass(frozen=True)
class _Panel:
    kind: Panel
    timeline: Timeline
    title: str
    facts: str
    height: float

    has_rank_legend: bool = False

    @property
    def room_above(self) -> float:
        room = _CAPTION if self.title or self.facts else _GAP
        return room + LEGEND_ROW if self.has_rank_legend else room


def timeline_figure(
    timelines: Sequence[Timeline],
    *,
    titles: Sequence[str] | None = None,
    memory_limit_bytes: float | None = None,
    panels: Sequence[Panel] = PANELS,
    with_critical_path: bool = True,
    width: Width = "two-column",
) -> "Figure":
    """Return a figure with the timelines on one time axis, the first on top; transfers, then memory below.

    Every timeline starts at 0, its first start. `titles` has one entry a timeline, "" for its schedule's name, and
    brings the step time and the bubble ratio with it; None names several by their schedules and one not at all.
    Cells are labelled with their microbatch where the labels fit. Of `panels`, transfers and memory are drawn where
    there are any. Raises `ConfigError` for a panel or a width that there is not.
    """
    if unknown := [panel for panel in panels if panel not in PANELS]:
        raise ConfigError(f"panels are {', '.join(PANELS)}: got {unknown[0]!r}")
    longest_s = max(timeline.step_time_s for timeline in timelines)
    scale, fills, across = time_scale(longest_s), fills_of(timelines), inches(width)
    points_per_s = (across - _LEFT - _RIGHT) * POINTS / (longest_s or 1.0)
    drawn = _panels(timelines, titles, panels, width)
    memory_range = memory_range_of(timelines, memory_limit_bytes)
    with settings():
        figure = new_figure(width, 1.0)
        handles = _legend_handles(timelines, fills, panels, points_per_s, with_critical_path=with_critical_path)
        legend = legend_rows(figure, handles, width=across - _LEFT - _RIGHT)
        above = _TOP + len(legend) * LEGEND_ROW
        height = above + sum(panel.room_above + panel.height for panel in drawn) + _BOTTOM
        figure.set_size_inches(across, height)
        place_rows(figure, legend, left=_LEFT, top=_TOP)
        top = height - above
        for panel in drawn:
            top -= panel.room_above + panel.height
            axes = figure.add_axes(
                (_LEFT / across, top / height, (across - _LEFT - _RIGHT) / across, panel.height / height)
            )
            axes.set_xlim(0.0, longest_s / scale.size if longest_s > 0 else 1.0)
            if panel.kind == "compute":
                _draw_compute(axes, panel, scale, fills, points_per_s, with_critical_path=with_critical_path)
            elif panel.kind == "transfers":
                _draw_transfers(axes, panel, scale, fills)
            else:
                draw_memory(axes, panel.timeline, scale, memory_range)
                if panel.has_rank_legend:
                    draw_rank_legend(axes, panel.timeline, width)
            _caption(axes, panel)
            is_last = panel is drawn[-1]
            axes.tick_params(axis="x", bottom=is_last, labelbottom=is_last)
        axes.set_xlabel(f"time ({scale.unit})")
        figure.align_ylabels()
    return figure


def _panels(
    timelines: Sequence[Timeline], titles: Sequence[str] | None, panels: Sequence[Panel], width: Width
) -> list[_Panel]:
    """Compute of all timelines, then the transfers of those that have some, then memory where there is any."""
    names = [""] * len(timelines) if titles is None else titles
    headings = [_heading(timeline, title, width) for timeline, title in zip(timelines, names, strict=True)]
    if titles is None and len(timelines) == 1:
        headings = [("", "")]
    prefixes = panel_prefixes(timelines, names)
    made: list[_Panel] = []
    if "compute" in panels:
        made += [
            _Panel("compute", timeline, *texts, _rows_height(timeline, 2.4, 0.012, 0.17))
            for timeline, texts in zip(timelines, headings, strict=True)
        ]
    if "transfers" in panels:
        made += [
            _Panel(
                "transfers", timeline, "", f"{prefix}transfers, by sending rank",
                _rows_height(timeline, 0.8, 0.008, 0.11),
            )
            for timeline, prefix in zip(timelines, prefixes, strict=True)
            if has_transfers(timeline)
        ]  # fmt: skip
    if "memory" in panels:
        made += [
            _Panel("memory", timeline, "", prefix + memory_caption(timeline), _MEMORY)
            for timeline, prefix in zip(timelines, prefixes, strict=True)
            if has_memory(timeline)
        ]
        first = next((place for place, panel in enumerate(made) if panel.kind == "memory"), None)
        if first is not None:
            made[first] = replace(made[first], has_rank_legend=True)
    if not made:
        raise ConfigError(f"there is nothing to draw: the timelines have no {' and no '.join(panels)}")
    return made


def _heading(timeline: Timeline, title: str, width: Width) -> tuple[str, str]:
    """A title and what stands behind it, in one column only what the figure is looked at for."""
    name, facts = heading(timeline, title)
    if width == "one-column":
        facts = f"step {seconds(timeline.step_time_s)} · bubble {percent(timeline.bubble_ratio)}"
    return name, facts


def _legend_handles(
    timelines: Sequence[Timeline],
    fills: Fills,
    panels: Sequence[Panel],
    points_per_s: float,
    *,
    with_critical_path: bool,
) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    has = {"compute": "compute" in panels, "transfers": "transfers" in panels}
    handles: list[Any] = [
        Patch(facecolor=colour, label=name)
        for name, colour in fills.legend(timelines)
        if has["transfers" if name == palette.TITLES[Op.SEND_F] else "compute"]
    ]
    if fills.num_chunks > 1 and any(_is_wide(timeline, points_per_s) for timeline in timelines):
        for handle in handles:
            if handle.get_label() == palette.TITLES[Op.W]:
                handle.set(hatch=_HATCH, edgecolor=_HATCH_COLOUR, linewidth=0)
    if has["compute"] and with_critical_path:
        handles.append(Line2D([], [], color=palette.CRITICAL_PATH, linewidth=1.4, label="critical path"))
    return handles


def _rows_height(timeline: Timeline, aim: float, least: float, most: float) -> float:
    """The height of a panel with a row a rank: `aim` shared out, a row between `least` and `most`."""
    num_ranks = timeline.schedule.num_ranks
    return num_ranks * min(max(aim / num_ranks, least), most)


def _draw_compute(
    axes: "Axes", panel: _Panel, scale: Scale, fills: Fills, points_per_s: float, *, with_critical_path: bool
) -> None:
    timeline = panel.timeline
    lanes = compute_lanes(timeline)
    is_wide = _is_wide(timeline, points_per_s)
    cells = _cells([(lane, float(lane.rank), HALF_HEIGHT) for lane in lanes], scale, fills)
    if is_wide:
        cells.set(edgecolor="white", linewidth=0.4)
    else:  # edges would hide narrow cells; smoothing them would let white through between two
        cells.set(linewidth=0, antialiased=False)
    axes.add_collection(cells, autolim=False)
    if is_wide and fills.num_chunks > 1:
        axes.add_collection(_hatched(lanes, scale), autolim=False)
    row_points = panel.height / len(lanes) * POINTS
    if timeline.num_actions <= MOST_LABELS and row_points > 1.5 * CELL_POINTS:
        _draw_labels(axes, lanes, panel, scale, fills, points_per_s)
    if with_critical_path:
        rows = np.arange(len(lanes), dtype=np.float64) + PATH_OFFSET
        x, y = critical_line(timeline, y_of_rank=rows)
        width = min(1.1, row_points / 6)
        for colour, factor in ((palette.CASING, 2.0), (palette.CRITICAL_PATH, 1.0)):
            axes.plot(x / scale.size, y, color=colour, linewidth=factor * width, solid_joinstyle="miter")
    _rank_axis(axes, panel)


def _hatched(lanes: Sequence[Lane], scale: Scale) -> "PolyCollection":
    """Hatching over W: without colour, W looks like the later chunks of F."""
    from matplotlib.collections import PolyCollection

    corners = np.concatenate([_corners(lane, lane.kind == Op.W, lane.rank, HALF_HEIGHT, scale) for lane in lanes])
    return PolyCollection(list(corners), facecolors="none", edgecolors=_HATCH_COLOUR, linewidth=0, hatch=_HATCH)


def _is_wide(timeline: Timeline, points_per_s: float) -> bool:
    """Whether the typical cell has room for an edge and for hatching."""
    durations = (timeline.end - timeline.start)[: timeline.num_actions]
    return float(np.median(durations)) * points_per_s > _WIDE_POINTS


def _draw_labels(
    axes: "Axes", lanes: Sequence[Lane], panel: _Panel, scale: Scale, fills: Fills, points_per_s: float
) -> None:
    """Write the microbatch into cells that hold the longest of them, of the kinds whose typical cell does.

    Else a kind would be labelled on the ranks alone where it takes a little longer.
    """
    microbatches = panel.timeline.schedule.microbatch
    digits = len(str(panel.timeline.schedule.num_units - 1))
    least_s = (0.64 * CELL_POINTS * digits + 0.6) / points_per_s
    kinds, durations = (np.concatenate([getattr(lane, name) for lane in lanes]) for name in ("kind", "durations_s"))
    roomy = [op for op in KINDS if np.any(kinds == op) and np.median(durations[kinds == op]) >= least_s]
    colours = fills.colours
    for lane in lanes:
        labelled = np.flatnonzero(np.isin(lane.kind, roomy) & (lane.durations_s >= least_s))
        index = fills.index_of(lane)
        middles = (lane.edges[:-1] + lane.edges[1:]) / 2 / scale.size
        for cell in labelled.tolist():
            axes.text(
                middles[cell], lane.rank - 0.02, str(microbatches[lane.node[cell]]), fontsize=CELL_POINTS,
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
    _rank_axis(axes, panel)


def _cells(
    placed: Sequence[tuple[Lane, float, float]], scale: Scale, fills: Fills, *, with_idle: bool = True
) -> "PolyCollection":
    """Return the cells of lanes, each given with its middle and half its height, as one collection."""
    from matplotlib.collections import PolyCollection

    corners, colours = [], []
    for lane, middle, half_height in placed:
        keep = ~lane.is_idle | with_idle
        corners.append(_corners(lane, keep, middle, half_height, scale))
        colours.append(fills.index_of(lane)[keep])
    vertices = np.concatenate(corners)
    row_of_colours = fills.colours
    facecolors = [row_of_colours[index] for index in np.concatenate(colours).tolist()]
    collection = PolyCollection(list(vertices), facecolors=facecolors)
    collection.set_rasterized(len(vertices) > _MOST_VECTOR_CELLS)
    return collection


def _corners(lane: Lane, keep: NDArray[np.bool_], middle: float, half_height: float, scale: Scale) -> Floats:
    """Return the four corners of each cell to keep, x in the scale's unit."""
    left, right = lane.edges[:-1][keep] / scale.size, lane.edges[1:][keep] / scale.size
    low, high = np.full(len(left), middle - half_height), np.full(len(left), middle + half_height)
    return np.stack([left, low, left, high, right, high, right, low], axis=1).reshape(-1, 4, 2)


def _caption(axes: "Axes", panel: _Panel) -> None:
    """Write a panel's title in bold and what stands behind it; a dollar sign is no formula."""
    name, facts = panel.title, panel.facts
    above = 2.5 + (LEGEND_ROW * POINTS if panel.has_rank_legend else 0.0)
    title = axes.annotate(
        name, (0, 1), xycoords="axes fraction", xytext=(0, above), textcoords="offset points",
        fontweight="bold", fontsize=TITLE_POINTS, va="bottom", parse_math=False,
    )  # fmt: skip
    axes.annotate(
        facts, (1, 0) if name else (0, 0), xycoords=title, xytext=(6 if name else 0, 0),
        textcoords="offset points", color=palette.QUIET_TEXT, va="bottom", parse_math=False,
    )  # fmt: skip


def _rank_axis(axes: "Axes", panel: _Panel) -> None:
    num_ranks = panel.timeline.schedule.num_ranks
    row_points = panel.height / num_ranks * POINTS
    step = next(step for step in (1, 2, 4, 8, 16, 32, 64) if step * row_points >= 1.2 * TEXT_POINTS)
    axes.set_ylim(num_ranks - 0.5, -0.5)
    axes.set_yticks(range(0, num_ranks, step))
    axes.set_ylabel("rank")
    axes.tick_params(axis="y", length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
