"""Cells of a timeline on matplotlib axes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats
from ppsim.plot import palette
from ppsim.plot.action_colours import KINDS, ActionColours
from ppsim.plot.figures.style import CELL_POINTS
from ppsim.plot.lanes import (
    HALF_HEIGHT,
    MOST_HAIRLINES,
    MOST_LABELS,
    PATH_OFFSET,
    Lane,
    compute_lanes,
    critical_line,
    placed_transfer_lanes,
)
from ppsim.plot.scale import AxisScale
from ppsim.schedule.table import Op
from ppsim.simulation.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection

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
