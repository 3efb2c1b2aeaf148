"""Timelines as a print figure, with the panels of the interactive page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats
from ppsim.base.errors import ConfigError
from ppsim.base.units import percent, seconds
from ppsim.plot import palette
from ppsim.plot.action_colours import KINDS, ActionColours, fills_of
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
from ppsim.plot.scale import AxisScale, heading, panel_prefixes, time_scale
from ppsim.schedule.table import Op
from ppsim.simulation.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure


Panel = Literal["compute", "transfers", "memory"]
PANELS: tuple[Panel, ...] = ("compute", "transfers", "memory")

_LEFT, _RIGHT, _TOP, _BOTTOM = 0.42, 0.1, 0.03, 0.34  # inches, like all sizes here
_CAPTION, _GAP, _MEMORY = 0.19, 0.04, 1.1


@dataclass(frozen=True)
class _Panel:
    kind: Panel
    timeline: Timeline
    title: str
    facts: str
    height: float
    has_rank_legend: bool = False

    @property
    def row_points(self) -> float:
        return self.height / self.timeline.schedule.num_ranks * POINTS

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
    """Return a figure with the timelines on one time axis, and transfers and memory below.

    If `titles` is None, a single timeline has no title. Of `panels`, transfers and memory are drawn only if the
    timelines have them. Raises `ConfigError` for an unknown panel or width.
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
            if panel.kind == "memory":
                draw_memory(axes, panel.timeline, scale, memory_range)
                if panel.has_rank_legend:
                    draw_rank_legend(axes, panel.timeline, width)
            else:
                _draw_ranks(axes, panel, scale, fills, points_per_s, with_critical_path=with_critical_path)
            _caption(axes, panel)
            is_last = panel is drawn[-1]
            axes.tick_params(axis="x", bottom=is_last, labelbottom=is_last)
        axes.set_xlabel(f"time ({scale.unit})")
        figure.align_ylabels()
    return figure


def draw_timelines(axes: "Axes", timelines: Sequence[Timeline], titles: Sequence[str]) -> None:
    """The size of the axes decides which labels fit."""
    longest_s = max(timeline.step_time_s for timeline in timelines)
    scale, fills, number = time_scale(longest_s), fills_of(timelines), len(timelines)
    figure = axes.get_figure(root=True)
    assert figure is not None
    box = axes.get_position()
    across, height = figure.get_size_inches() * (box.width, box.height)
    share = 1.0 if number == 1 else 0.8
    places = [axes]
    if number > 1:
        axes.set_axis_off()
        places = [axes.inset_axes((0, (number - 1 - index) / number, 1, share / number)) for index in range(number)]
    with settings():
        for one, timeline, title in zip(places, timelines, titles, strict=True):
            room = height * share / number
            panel = _Panel("compute", timeline, *_heading(timeline, title, "two-column"), room)
            one.set_xlim(0.0, longest_s / scale.size if longest_s > 0 else 1.0)
            _draw_ranks(one, panel, scale, fills, across * POINTS / (longest_s or 1.0), with_critical_path=True)
            _caption(one, panel)
            one.spines[["top", "right"]].set_visible(False)
            one.tick_params(axis="x", labelbottom=one is places[-1])
        places[-1].set_xlabel(f"time ({scale.unit})")


def _panels(
    timelines: Sequence[Timeline], titles: Sequence[str] | None, panels: Sequence[Panel], width: Width
) -> list[_Panel]:
    names = [""] * len(timelines) if titles is None else titles
    headings = [_heading(timeline, title, width) for timeline, title in zip(timelines, names, strict=True)]
    if titles is None and len(timelines) == 1:
        headings = [("", "")]
    prefixes = panel_prefixes(timelines, names)
    made: list[_Panel] = []
    if "compute" in panels:
        for timeline, texts in zip(timelines, headings, strict=True):
            made.append(_Panel("compute", timeline, *texts, _height_of_rows(timeline, 2.4, 0.012, 0.17)))
    for timeline, prefix in zip(timelines, prefixes, strict=True):
        if "transfers" in panels and has_transfers(timeline):
            height = _height_of_rows(timeline, 0.8, 0.008, 0.11)
            made.append(_Panel("transfers", timeline, "", f"{prefix}transfers, by sending rank", height))
    with_memory = [pair for pair in zip(timelines, prefixes, strict=True) if has_memory(pair[0])]
    for index, (timeline, prefix) in enumerate(with_memory if "memory" in panels else []):
        made.append(_Panel("memory", timeline, "", prefix + memory_caption(timeline), _MEMORY, index == 0))
    if not made:
        raise ConfigError(f"there is nothing to draw: the timelines have no {' and no '.join(panels)}")
    return made


def _heading(timeline: Timeline, title: str, width: Width) -> tuple[str, str]:
    name, facts = heading(timeline, title)
    if width == "one-column":
        facts = f"step {seconds(timeline.step_time_s)} · bubble {percent(timeline.bubble_ratio)}"
    return name, facts


def _legend_handles(
    timelines: Sequence[Timeline],
    fills: ActionColours,
    panels: Sequence[Panel],
    points_per_s: float,
    *,
    with_critical_path: bool,
) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(facecolor=colour, label=name)
        for name, colour in fills.legend(timelines)
        if ("transfers" if name == palette.TITLES[Op.SEND_F] else "compute") in panels
    ]
    if fills.num_chunks > 1 and any(is_wide(timeline, points_per_s) for timeline in timelines):
        for handle in handles:
            if handle.get_label() == palette.TITLES[Op.W]:
                handle.set(hatch=HATCH, edgecolor=HATCH_COLOUR, linewidth=0)
    if "compute" in panels and with_critical_path:
        handles.append(Line2D([], [], color=palette.CRITICAL_PATH, linewidth=1.4, label="critical path"))
    return handles


def _height_of_rows(timeline: Timeline, aim: float, least: float, most: float) -> float:
    """Return the height of all rows in inches: `aim`, with each row between `least` and `most`."""
    num_ranks = timeline.schedule.num_ranks
    return num_ranks * min(max(aim / num_ranks, least), most)


def _caption(axes: "Axes", panel: _Panel) -> None:
    """Write a panel's title in bold and the facts after it; dollar signs are plain text."""
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


def _draw_ranks(
    axes: "Axes",
    panel: _Panel,
    scale: AxisScale,
    fills: ActionColours,
    points_per_s: float,
    *,
    with_critical_path: bool,
) -> None:
    if panel.kind == "transfers":
        draw_transfers(axes, panel.timeline, scale, fills)
    else:
        draw_compute(
            axes, panel.timeline, scale, fills, points_per_s=points_per_s, row_points=panel.row_points,
            with_critical_path=with_critical_path,
        )  # fmt: skip
    num_ranks = panel.timeline.schedule.num_ranks
    step = next(step for step in (1, 2, 4, 8, 16, 32, 64) if step * panel.row_points >= 1.2 * TEXT_POINTS)
    axes.set_ylim(num_ranks - 0.5, -0.5)
    axes.set_yticks(range(0, num_ranks, step))
    axes.set_ylabel("rank")
    axes.tick_params(axis="y", length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


HATCH, HATCH_COLOUR = 12 * "/", "#B05010"  # a line every 6 points

_WIDE_POINTS = 4.0
_MOST_VECTOR_CELLS = 20_000  # with more, cells become an image in the vector file, which opens faster


def draw_compute(
    axes: "Axes",
    timeline: Timeline,
    scale: AxisScale,
    fills: ActionColours,
    *,
    points_per_s: float,
    row_points: float,
    with_critical_path: bool,
) -> None:
    """Labels and hatching are drawn if there is room."""
    lanes = compute_lanes(timeline)
    has_room = is_wide(timeline, points_per_s)
    cells = _cells([(lane, float(lane.rank), HALF_HEIGHT) for lane in lanes], scale, fills)
    if has_room:
        cells.set(edgecolor="white", linewidth=0.4)
    else:  # edges would hide narrow cells, and antialiasing would show white between neighbours
        cells.set(linewidth=0, antialiased=False)
    axes.add_collection(cells, autolim=False)
    if has_room and fills.num_chunks > 1:
        axes.add_collection(_hatched(lanes, scale), autolim=False)
    if timeline.num_actions <= MOST_LABELS and row_points > 1.5 * CELL_POINTS:
        _draw_labels(axes, lanes, timeline, scale, fills, points_per_s)
    if with_critical_path:
        rows = np.arange(len(lanes), dtype=np.float64) + PATH_OFFSET
        x, y = critical_line(timeline, y_of_rank=rows)
        width = min(1.1, row_points / 6)
        for colour, factor in ((palette.CASING, 2.0), (palette.CRITICAL_PATH, 1.0)):
            axes.plot(x / scale.size, y, color=colour, linewidth=factor * width, solid_joinstyle="miter")


def _hatched(lanes: Sequence[Lane], scale: AxisScale) -> "PolyCollection":
    """Hatching over W: without colour, W looks like the lighter chunks of F."""
    from matplotlib.collections import PolyCollection

    corners = np.concatenate([_corners(lane, lane.kind == Op.W, lane.rank, HALF_HEIGHT, scale) for lane in lanes])
    return PolyCollection(list(corners), facecolors="none", edgecolors=HATCH_COLOUR, linewidth=0, hatch=HATCH)


def is_wide(timeline: Timeline, points_per_s: float) -> bool:
    """The median cell has room for an edge and for hatching."""
    durations = (timeline.end - timeline.start)[: timeline.num_actions]
    return float(np.median(durations)) * points_per_s > _WIDE_POINTS


def _draw_labels(
    axes: "Axes",
    lanes: Sequence[Lane],
    timeline: Timeline,
    scale: AxisScale,
    fills: ActionColours,
    points_per_s: float,
) -> None:
    """Write the microbatch number into each cell that is wide enough for the longest number.

    A kind of action has labels only if its median cell is wide enough. Otherwise only ranks on which the kind takes
    slightly longer would have labels.
    """
    microbatches = timeline.schedule.microbatch
    digits = len(str(timeline.schedule.num_units - 1))
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


def draw_transfers(axes: "Axes", timeline: Timeline, scale: AxisScale, fills: ActionColours) -> None:
    placed = placed_transfer_lanes(timeline)
    cells = _cells(placed, scale, fills, with_idle=False)
    if timeline.graph.num_transfers <= MOST_HAIRLINES:
        cells.set(edgecolor=palette.TRANSFER_START, linewidth=0.4)
        bottoms = [middle + half_height for _, middle, half_height in placed]
        end = timeline.step_time_s / scale.size
        axes.hlines(bottoms, 0, end, color=palette.TRANSFER_START, linewidth=0.4)
    else:
        # Thin edges add up to a shade that shows the density; snapped to pixels, most edges would vanish.
        cells.set(edgecolor=palette.TRANSFER_START, linewidth=0.1, snap=False)
    axes.add_collection(cells, autolim=False)


def _cells(
    placed: Sequence[tuple[Lane, float, float]], scale: AxisScale, fills: ActionColours, *, with_idle: bool = True
) -> "PolyCollection":
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


def _corners(lane: Lane, keep: NDArray[np.bool_], middle: float, half_height: float, scale: AxisScale) -> Floats:
    left, right = lane.edges[:-1][keep] / scale.size, lane.edges[1:][keep] / scale.size
    low, high = np.full(len(left), middle - half_height), np.full(len(left), middle + half_height)
    return np.stack([left, low, left, high, right, high, right, low], axis=1).reshape(-1, 4, 2)
