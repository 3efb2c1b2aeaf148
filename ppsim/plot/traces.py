"""The plotly traces of a timeline, as plain dictionaries: cells, labels, critical path, memory, legend."""

import base64
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppsim.plot import palette
from ppsim.plot.fills import Fills
from ppsim.plot.hover import Hover
from ppsim.plot.lanes import (
    HALF_HEIGHT,
    PATH_OFFSET,
    Lane,
    critical_line,
    listed_ranks,
    memory_lines,
    shown_ranks,
)
from ppsim.plot.scale import Scale
from ppsim.simulation.engine import Floats
from ppsim.simulation.timeline import Timeline

Trace = dict[str, Any]

_CELL_TEMPLATE = (
    "<b>%{{customdata[0]}}</b><br>%{{customdata[1]}}<br>%{{customdata[2]}}<br>%{{customdata[3]}}"
    "<extra>rank {rank}</extra>"
)


def coloraxis(fills: Fills) -> dict[str, Any]:
    """Return the plotly colour axis that maps an index to its fill, in steps."""
    colours = fills.colours
    steps = [[[k / len(colours), colour], [(k + 1) / len(colours), colour]] for k, colour in enumerate(colours)]
    return {
        "cmin": -0.5,
        "cmax": len(colours) - 0.5,
        "colorscale": [stop for step in steps for stop in step],
        "showscale": False,
    }


def binary(values: NDArray[Any]) -> dict[str, Any]:
    """Return numbers as plotly.js reads them fastest: base64 of their bytes, with their type and shape."""
    kind = values.dtype.str[1:]
    packed: dict[str, Any] = {"dtype": kind, "bdata": base64.b64encode(values.tobytes()).decode()}
    if values.ndim > 1:
        packed["shape"] = ", ".join(str(length) for length in values.shape)
    return packed


def cells(lane: Lane, *, hover: Hover, fills: Fills, middle: float, half_height: float) -> Trace:
    """Return the heatmap of one lane, one row high."""
    return {
        "type": "heatmap",
        "x": binary(lane.edges / hover.scale.size),
        "y": [middle - half_height, middle + half_height],
        "z": binary(fills.index_of(lane)[np.newaxis]),
        "customdata": [hover.lines_of(lane)],
        "hovertemplate": _CELL_TEMPLATE.format(rank=lane.rank),
        "coloraxis": "coloraxis",
        "showlegend": False,
    }


def labels(lanes: Iterable[Lane], *, timeline: Timeline, scale: Scale, fills: Fills, font_px: int) -> Trace:
    """Return the microbatch of every action as the text of an unseen bar: plotly hides those that do not fit.

    Labels are made equally wide, so that they come and go together.
    """
    colours, microbatches = fills.colours, timeline.schedule.microbatch
    digits = len(str(timeline.schedule.num_units - 1))
    base: list[float] = []
    length: list[float] = []
    row: list[int] = []
    text: list[str] = []
    ink: list[str] = []
    for lane in lanes:
        busy = ~lane.is_idle
        base.extend((lane.edges[:-1][busy] / scale.size).tolist())
        length.extend((lane.durations_s[busy] / scale.size).tolist())
        row.extend([lane.rank] * int(busy.sum()))
        text.extend(_centred(str(number), digits) for number in microbatches[lane.node[busy]].tolist())
        ink.extend(palette.text_on(colours[index]) for index in fills.index_of(lane)[busy].tolist())
    return {
        "type": "bar", "orientation": "h", "base": base, "x": length, "y": row, "width": 2 * HALF_HEIGHT,
        "text": text, "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
        "textfont": {"color": ink, "size": font_px},
        "marker": {"color": "rgba(0,0,0,0)", "line": {"width": 0}},
        "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip


def transfer_starts(lanes: Sequence[tuple[Lane, float, float]], *, scale: Scale) -> Trace:
    """Return a baseline for each lane, given with its middle and half height, and hairlines where transfers start.

    Transfers are often thinner than a pixel, and plotly leaves out such cells. The line runs to a hairline's top
    and back instead of being interrupted: plotly draws every piece as an element of its own.
    """
    x: list[Floats] = []
    y: list[Floats] = []
    for lane, middle, half_height in lanes:
        start = lane.edges[:-1][~lane.is_idle]
        bottom, top = middle + half_height, middle - half_height
        x += [lane.edges[:1], np.repeat(start, 3), lane.edges[-1:], np.array([np.nan])]
        y += [np.array([bottom]), np.tile([bottom, top, bottom], len(start)), np.array([bottom, np.nan])]
    return {
        "type": "scatter", "mode": "lines",
        "x": binary(np.concatenate(x) / scale.size), "y": binary(np.concatenate(y).astype(np.float32)),
        "line": {"color": palette.TRANSFER_START, "width": 1}, "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip


def critical(timeline: Timeline, *, scale: Scale, row_px: float, in_legend: bool) -> list[Trace]:
    """Return the line along the critical path with its casing below; a legend entry shows and hides both."""
    width = min(2.5, row_px / 7)
    rows = np.arange(timeline.schedule.num_ranks, dtype=np.float64) + PATH_OFFSET
    x, y = critical_line(timeline, y_of_rank=rows)
    line = {
        "type": "scatter", "mode": "lines", "x": binary(x / scale.size), "y": binary(y.astype(np.float32)),
        "name": "critical path", "legendgroup": "critical path", "legend": "legend2", "hoverinfo": "skip",
    }  # fmt: skip
    return [
        line | {"line": {"color": palette.CASING, "width": 2 * width}, "showlegend": False},
        line | {"line": {"color": palette.CRITICAL_PATH, "width": width}, "showlegend": in_legend},
    ]


def memory(timeline: Timeline, *, scale: Scale, bytes_scale: Scale, in_legend: bool) -> list[Trace]:
    """Return one step line a shown rank; about eight of them, spread evenly, stand in the legend.

    An entry shows and hides its rank in every panel.
    """
    num_ranks = timeline.schedule.num_ranks
    shown = shown_ranks(timeline)
    listed = listed_ranks(timeline)
    return [
        {
            "type": "scatter", "mode": "lines", "name": f"rank {line.rank}",
            "x": binary(line.at_s / scale.size),
            "y": binary((line.held_bytes / bytes_scale.size).astype(np.float32)),
            "line": {"shape": "hv", "width": 1.5, "color": palette.rank_colour(line.rank, num_ranks)},
            "hovertemplate": f"rank {line.rank} holds %{{y:.2f}} {bytes_scale.unit}<br>"
                             f"from %{{x:.3f}} {scale.unit}<extra></extra>",
            "legend": "legend3", "legendgroup": f"rank {line.rank}",
            "showlegend": in_legend and line.rank in listed,
        }
        for line in memory_lines(timeline)
        if line.rank in shown
    ]  # fmt: skip


def legend_entries(timelines: Sequence[Timeline], fills: Fills) -> list[Trace]:
    """Return the legend's entries for the fills: a heatmap has none of its own."""
    return [
        {
            "type": "scatter", "mode": "markers", "x": [None], "y": [None], "name": name, "hoverinfo": "skip",
            "marker": {"symbol": "square", "size": 13, "color": colour}, "legend": "legend",
        }
        for name, colour in fills.legend(timelines)
    ]  # fmt: skip


def _centred(label: str, digits: int) -> str:
    """Pad with spaces a quarter of the font size wide, two of which are about a digit."""
    space = "\u2005" * (digits - len(label))
    return f"{space}{label}{space}"
