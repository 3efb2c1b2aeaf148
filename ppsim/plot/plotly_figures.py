"""Timelines as plotly figures, for notebooks and the app: one heatmap per rank."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ppsim.plot import palette
from ppsim.plot.action_colours import ActionColours, fills_of
from ppsim.plot.hover import Hover
from ppsim.plot.lanes import (
    HALF_HEIGHT,
    PATH_OFFSET,
    compute_lanes,
    critical_line,
    has_memory,
    memory_lines,
    shown_ranks,
)
from ppsim.plot.plotly_frame import LIGHT, Data, Theme, axis_in, binary, layout_in, limit_line
from ppsim.plot.scale import AxisScale, bytes_scale, heading, time_scale
from ppsim.schedule.table import NONE, Op
from ppsim.simulation.timeline import Timeline

_HOVER = "<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{customdata[2]}<br>%{customdata[3]}"
_CAPTION_PX, _ROWS_PX, _MEMORY_PX = 26, 520, 150


@dataclass(frozen=True)
class DrawingOptions:
    """Drawing options of timelines.

    - `colour`: "cause" colours idle cells by cause.
    - `with_texts`: full hover texts, which take most of the time; else only the cell's name.
    """

    colour: Literal["kind", "cause"] = "kind"
    with_texts: bool = True
    with_critical_path: bool = True
    with_memory: bool = False
    memory_limit_bytes: float | None = None
    theme: Theme = LIGHT


def timeline_plotly(
    timelines: Sequence[Timeline], *, titles: Sequence[str] | None = None, look: DrawingOptions | None = None
) -> Data:
    """Return timelines on one time axis, one above the other, as plotly's `data` and `layout`.

    >>> from ppsim import StageCosts, build, simulate
    >>> costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
    >>> timelines = [simulate(build(name, pp=4, microbatches=8), costs) for name in ("1f1b", "zb-h1")]
    >>> picture = timeline_plotly(timelines)
    >>> sum(trace["type"] == "heatmap" for trace in picture["data"]), picture["layout"]["xaxis"]["range"]
    (8, [0, 33.0])
    """
    look = look or DrawingOptions()
    longest_s = max((timeline.step_time_s for timeline in timelines), default=0.0)
    scale, fills = time_scale(longest_s), fills_of(timelines)
    pairs = list(zip(timelines, titles or [""] * len(timelines), strict=True))
    panels = [_rows_panel(timeline, title, scale, fills, look, len(pairs)) for timeline, title in pairs]
    if look.with_memory:
        panels += [_memory_panel(timeline, title, scale, look) for timeline, title in pairs if has_memory(timeline)]
    time_axis = axis_in(look.theme) | {
        "range": [0, longest_s / scale.size], "title": {"text": f"time ({scale.unit})"}, "ticks": "outside",
        "showgrid": False,
    }  # fmt: skip
    return _stacked(panels, layout_in(look.theme) | {"xaxis": time_axis, "coloraxis": _colours(look.theme)})


@dataclass(frozen=True)
class _Panel:
    caption: tuple[str, str]
    height_px: float
    axis: Data
    traces: list[Data]
    limits: Sequence[Data] = ()


def _rows_panel(
    timeline: Timeline, title: str, scale: AxisScale, fills: ActionColours, look: DrawingOptions, num_timelines: int
) -> _Panel:
    num_ranks = timeline.schedule.num_ranks
    height_px = num_ranks * float(np.clip(_ROWS_PX / (num_ranks * num_timelines), 5, 26))
    every = max(1, round(13 * num_ranks / height_px))
    named = list(range(0, num_ranks, every))
    axis = {
        "range": [num_ranks - 0.5, -0.5], "showgrid": False, "tickvals": named,
        "ticktext": [f"rank {rank}" for rank in named],
    }  # fmt: skip
    path = _path(timeline, scale) if look.with_critical_path else []
    return _Panel(heading(timeline, title), height_px, axis, [*_cells(timeline, scale, fills, look), *path])


def _cells(timeline: Timeline, scale: AxisScale, fills: ActionColours, look: DrawingOptions) -> list[Data]:
    hover = Hover(timeline, scale) if look.with_texts else None
    names = [*(str(action) for action in timeline.schedule), "idle"]
    cells = []
    for lane in compute_lanes(timeline, by_cause=True):
        fill = fills.index_of(lane)
        if look.colour == "cause":
            fill = np.where(lane.cause != NONE, fills.causes + lane.cause, fill).astype(np.int16)
        texts: Any = hover.lines_of(lane) if hover else [names[node] for node in lane.node.tolist()]
        cells.append({
            "type": "heatmap", "coloraxis": "coloraxis", "zsmooth": False,
            "x": binary(lane.edges / scale.size), "y": [lane.rank - HALF_HEIGHT, lane.rank + HALF_HEIGHT],
            "z": binary(fill) | {"shape": f"1, {len(fill)}"}, "customdata": [texts],
            "hovertemplate": (_HOVER if hover else "%{customdata}") + f"<extra>rank {lane.rank}</extra>",
        })  # fmt: skip
    return cells


def _path(timeline: Timeline, scale: AxisScale) -> list[Data]:
    rows = np.arange(timeline.schedule.num_ranks, dtype=np.float64) + PATH_OFFSET
    x, y = critical_line(timeline, y_of_rank=rows)
    line = {"type": "scatter", "mode": "lines", "x": binary(x / scale.size), "y": binary(y), "hoverinfo": "skip"}
    return [line | {"line": {"color": palette.CRITICAL_PATH, "width": 2}}]


def _memory_panel(timeline: Timeline, title: str, scale: AxisScale, look: DrawingOptions) -> _Panel:
    limit = look.memory_limit_bytes
    unit = bytes_scale(max(float(timeline.memory.peak_bytes.max()), limit or 0.0))
    lines = [
        {
            "type": "scatter", "x": binary(line.at_s / scale.size), "y": binary(line.held_bytes / unit.size),
            "mode": "lines", "line": {
                "shape": "hv", "width": 1.5, "color": palette.rank_colour(line.rank, timeline.schedule.num_ranks),
            },
            "hovertemplate": f"rank {line.rank}: %{{y:.2f}} {unit.unit}<extra></extra>",
        }
        for line in memory_lines(timeline, shown_ranks(timeline))
    ]  # fmt: skip
    caption = (heading(timeline, title)[0], f"memory ({unit.unit})")
    limits = [] if limit is None else [limit_line(limit / unit.size, look.theme, horizontal=True)]
    return _Panel(caption, _MEMORY_PX, {"rangemode": "tozero"}, lines, limits)


def _stacked(panels: Sequence[_Panel], layout: Data) -> Data:
    """Return the panels one above the other, each with its caption."""
    whole = sum(panel.height_px + _CAPTION_PX for panel in panels) or 1.0
    margin = {"l": 58, "r": 16, "t": 8, "b": 44}
    layout |= {
        "height": round(whole) + margin["t"] + margin["b"],
        "margin": margin,
        "annotations": [],
        "shapes": [],
    }
    data, above = [], 0.0
    name = "y"
    for place, panel in enumerate(panels):
        name, top = f"y{place + 1}" if place else "y", above + _CAPTION_PX
        above = top + panel.height_px
        title, facts = (html.escape(text, quote=False) for text in panel.caption)
        layout[name.replace("y", "yaxis")] = panel.axis | {
            "zeroline": False,
            "fixedrange": True,
            "domain": [max(1 - above / whole, 0.0), 1 - top / whole],
        }
        layout["annotations"].append({
            "text": f"<b>{title}</b>   {facts}", "xref": "paper", "yref": "paper", "x": 0, "y": 1 - top / whole,
            "xanchor": "left", "yanchor": "bottom", "showarrow": False,
        })  # fmt: skip
        layout["shapes"] += [line | {"yref": name} for line in panel.limits]
        data += [trace | {"showlegend": False, "yaxis": name} for trace in panel.traces]
    return {"data": data, "layout": layout | {"xaxis": layout["xaxis"] | {"anchor": name}}}


def _colours(theme: Theme) -> Data:
    """Values of this plotly colour scale are indices into the fills; the theme colours idle cells."""
    colours = [theme.idle if fill == palette.COLOURS[Op.IDLE] else fill for fill in ActionColours.colours]
    number = len(colours)
    scale = [[edge / number, colour] for place, colour in enumerate(colours) for edge in (place, place + 1)]
    return {"cmin": -0.5, "cmax": number - 0.5, "colorscale": scale, "showscale": False}
