"""Timelines as one interactive HTML file that needs no network: compute, transfers and memory on one time axis."""

import base64
import html
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ppsim.plot import palette, traces
from ppsim.plot.fills import Fills, fills_of
from ppsim.plot.hover import Hover
from ppsim.plot.lanes import (
    HALF_HEIGHT,
    MOST_HAIRLINES,
    MOST_LABELS,
    compute_lanes,
    has_memory,
    has_transfers,
    memory_caption,
    placed_transfer_lanes,
)
from ppsim.plot.scale import Scale, bytes_scale, heading, panel_prefixes, time_scale
from ppsim.plot.traces import Trace
from ppsim.simulation.timeline import Timeline
from ppsim.units import size

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_MARGIN_PX = {"l": 76, "r": 190, "t": 44, "b": 56}
_MEMORY_PX = 170
_LEGEND_ROW_PX = 19.5
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title><style>body {{ margin: 0; background: #fff; }}</style></head>
<body>{body}</body>
</html>
"""

# Filled in place: plotly.js looks a text up when it is hovered over, so that nothing has to be drawn again.
_UNPACK = """
const bytes = Uint8Array.from(atob("PACKED"), (letter) => letter.charCodeAt(0));
const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
return new Response(stream).json().then((texts) => {
  document.getElementById("{plot_id}").data.forEach((trace, index) => {
    for (const text of texts[index]) trace.customdata[0].push(text);
  });
});
"""
# A pixel between cells tells them apart, but would pale those of a few pixels and hide the smallest: a lane has it
# while its typical cell, its `meta`, is wide enough.
_SEPARATE = """
const plot = document.getElementById("{plot_id}");
const cells = plot.data.flatMap((trace, index) => trace.meta ? [index] : []);
let gaps = cells.map(() => 0);
const separate = () => {
  const [from, to] = plot.layout.xaxis.range;
  const wanted = cells.map((index) => plot.data[index].meta / (to - from) * plot.clientWidth > 8 ? 1 : 0);
  if (wanted.some((gap, index) => gap !== gaps[index])) Plotly.restyle(plot, {xgap: gaps = wanted}, cells);
};
plot.on("plotly_relayout", separate);
separate();
"""


@dataclass(frozen=True)
class _Panel:
    """A part of the picture with a vertical axis of its own; heights in pixels, the caption's above the panel's."""

    kind: Literal["compute", "transfers", "memory"]
    caption: str
    caption_px: int
    height_px: float
    traces: list[Trace]
    axis: dict[str, Any]
    shapes: tuple[dict[str, Any], ...] = ()


def timeline_html(
    timelines: Sequence[Timeline], *, titles: Sequence[str], memory_limit_bytes: float | None = None
) -> str:
    """Return a self-contained HTML page with the timelines on one time axis, the first on top.

    Every timeline starts at 0, its first start. `titles` has one entry a timeline. The page makes no request:
    plotly.js is part of it.
    """
    import plotly.io

    figure = plotly_figure(timelines, titles=titles, memory_limit_bytes=memory_limit_bytes)
    body = plotly.io.to_html(
        figure,
        full_html=False,
        include_plotlyjs=True,
        validate=False,
        post_script=[_unpacking_script(figure["data"]), _SEPARATE],
        div_id="timeline",  # plotly's own is random, and the same timeline is to give the same file
        config={
            "displaylogo": False,
            "showSendToCloud": False,  # plotly.js 4 shows a button that uploads the figure
            "responsive": True,
            "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
        },
    )
    names = [heading(timeline, title)[0] for timeline, title in zip(timelines, titles, strict=True)]
    return _PAGE.format(title=html.escape(", ".join(names)), body=body)


def _unpacking_script(data: list[Trace]) -> str:
    """Take the hover texts out of the traces, and return the script that puts them back in the browser.

    They are by far the largest part of a figure, and shrink to a tenth.
    """
    texts = [trace["customdata"][0] if "customdata" in trace else [] for trace in data]
    for trace in data:
        if "customdata" in trace:
            trace["customdata"] = [[]]
    packed = zlib.compress(json.dumps(texts, separators=(",", ":")).encode())
    return _UNPACK.replace("PACKED", base64.b64encode(packed).decode())


def plotly_figure(
    timelines: Sequence[Timeline], *, titles: Sequence[str], memory_limit_bytes: float | None = None
) -> dict[str, Any]:
    """Return the figure of `timeline_html` as plain data: `data`, a list of traces, and `layout`."""
    longest_s = max(timeline.step_time_s for timeline in timelines)
    scale = time_scale(longest_s)
    fills = fills_of(timelines)
    hovers = [Hover(timeline, scale) for timeline in timelines]
    compute = [
        _compute_panel(hover, title, fills=fills, is_first=index == 0)
        for index, (hover, title) in enumerate(zip(hovers, titles, strict=True))
    ]
    prefixes = panel_prefixes(timelines, titles)
    transfers = [
        _transfers_panel(hover, f"{prefix}transfers, by sending rank", fills=fills)
        for hover, prefix in zip(hovers, prefixes, strict=True)
        if has_transfers(hover.timeline)
    ]
    largest = max(float(timeline.memory.peak_bytes.max()) for timeline in timelines)
    with_memory = [pair for pair in zip(hovers, prefixes, strict=True) if has_memory(pair[0].timeline)]
    memory = [
        _memory_panel(
            hover,
            prefix + memory_caption(hover.timeline),
            top_bytes=largest,
            limit_bytes=memory_limit_bytes,
            is_first=index == 0,
        )
        for index, (hover, prefix) in enumerate(with_memory)
    ]
    entries = traces.legend_entries(timelines, fills)
    panels = [*compute, *transfers, *memory]
    return _assembled(panels, entries, scale=scale, end=longest_s / scale.size, fills=fills)


# --- panels ---


def _compute_panel(hover: Hover, title: str, *, fills: Fills, is_first: bool) -> _Panel:
    timeline = hover.timeline
    lanes = compute_lanes(timeline)
    row_px = min(max(300 / len(lanes), 10), 34)
    data = [
        traces.cells(lane, hover=hover, fills=fills, middle=lane.rank, half_height=HALF_HEIGHT)
        | {"meta": float(np.median(lane.durations_s[~lane.is_idle])) / hover.scale.size}
        for lane in lanes
    ]
    if timeline.num_actions <= MOST_LABELS:
        font_px = int(min(12, row_px * HALF_HEIGHT))
        data.append(traces.labels(lanes, timeline=timeline, scale=hover.scale, fills=fills, font_px=font_px))
    data += traces.critical(timeline, scale=hover.scale, row_px=row_px, in_legend=is_first)
    name, facts = (html.escape(text) for text in heading(timeline, title))
    caption = f"<b>{name}</b>   <span style='color:{palette.QUIET_TEXT}'>{facts}</span>"
    return _Panel("compute", caption, 30, row_px * len(lanes), data, _rank_axis(len(lanes), row_px))


def _transfers_panel(hover: Hover, caption: str, *, fills: Fills) -> _Panel:
    num_ranks = hover.timeline.schedule.num_ranks
    placed = placed_transfer_lanes(hover.timeline)
    thinnest = min(half_height for _, _, half_height in placed)
    row_px = min(max(100 / num_ranks, 6 * HALF_HEIGHT / thinnest, 8), 48)
    data = [
        traces.cells(lane, hover=hover, fills=fills, middle=middle, half_height=half_height)
        for lane, middle, half_height in placed
    ]
    if hover.timeline.graph.num_transfers <= MOST_HAIRLINES:
        data.append(traces.transfer_starts(placed, scale=hover.scale))
    else:
        caption += "; zoom in to see each"
    return _Panel("transfers", _small(caption), 28, row_px * num_ranks, data, _rank_axis(num_ranks, row_px))


def _memory_panel(
    hover: Hover, caption: str, *, top_bytes: float, limit_bytes: float | None, is_first: bool
) -> _Panel:
    top = max(top_bytes, limit_bytes or 0.0)
    unit = bytes_scale(top)
    data = traces.memory(hover.timeline, scale=hover.scale, bytes_scale=unit, in_legend=is_first)
    axis = {"range": [0, 1.06 * top / unit.size], "title": {"text": unit.unit}, "nticks": 6}
    shapes = () if limit_bytes is None else (_limit_line(limit_bytes, unit),)
    return _Panel("memory", _small(caption), 28, _MEMORY_PX, data, axis, shapes)


def _limit_line(limit_bytes: float, unit: Scale) -> dict[str, Any]:
    y = limit_bytes / unit.size
    label = {"text": f"limit {size(limit_bytes)}", "textposition": "end", "yanchor": "top", "font": {"size": 11}}
    return {
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "label": label,
        "line": {"color": palette.CRITICAL_PATH, "width": 1.5, "dash": "dash"},
    }  # fmt: skip


def _small(caption: str) -> str:
    return f"<span style='color:{palette.QUIET_TEXT}'>{html.escape(caption)}</span>"


def _rank_axis(num_ranks: int, row_px: float) -> dict[str, Any]:
    step = next(step for step in (1, 2, 4, 8, 16, 32, 64, 128) if step * row_px >= 14)
    ranks = list(range(0, num_ranks, step))
    return {
        "range": [num_ranks - 0.5, -0.5],
        "tickvals": ranks,
        "ticktext": [f"rank {rank}" for rank in ranks],
        "showgrid": False,
    }


# --- the figure ---


def _assembled(
    panels: Sequence[_Panel], entries: list[Trace], *, scale: Scale, end: float, fills: Fills
) -> dict[str, Any]:
    """Stack the panels above one time axis; places are in pixels here and in shares of the height in plotly."""
    height_px = sum(panel.caption_px + panel.height_px for panel in panels)
    layout: dict[str, Any] = {
        "height": round(height_px + _MARGIN_PX["t"] + _MARGIN_PX["b"]),
        "margin": _MARGIN_PX,
        "font": {"family": _FONT, "size": 12, "color": palette.TEXT},
        "paper_bgcolor": "#FFFFFF",
        "plot_bgcolor": "#FFFFFF",
        "hovermode": "closest",
        "hoverlabel": {"align": "left", "bgcolor": "#FFFFFF", "font": {"color": palette.TEXT}, "namelength": -1},
        "dragmode": "zoom",
        "barmode": "overlay",
        "uniformtext": {"mode": "hide", "minsize": 7},
        "coloraxis": traces.coloraxis(fills),
        "annotations": [],
        "shapes": [],
        "xaxis": {
            "range": [0, end], "minallowed": 0, "maxallowed": end,
            "title": {"text": f"time ({scale.unit})", "standoff": 8},
            "anchor": _axis(len(panels) - 1), "zeroline": False, "showgrid": False, "ticks": "outside",
            "showspikes": False,
        },
    }  # fmt: skip
    data: list[Trace] = []
    top_px = 0.0
    for index, panel in enumerate(panels):
        top_px += panel.caption_px
        top, bottom = 1 - top_px / height_px, 1 - (top_px + panel.height_px) / height_px
        top_px += panel.height_px
        layout[f"yaxis{index + 1}" if index else "yaxis"] = {
            "domain": [max(bottom, 0.0), top], "anchor": "x", "fixedrange": True, "zeroline": False, **panel.axis,
        }  # fmt: skip
        data += [trace | {"yaxis": _axis(index)} for trace in panel.traces]
        layout["annotations"].append(_caption(panel.caption, top))
        layout["shapes"] += [shape | {"yref": _axis(index)} for shape in panel.shapes]
    layout |= _legends(panels, entries, height_px)
    return {"data": [*data, *entries], "layout": layout}


def _axis(index: int) -> str:
    return f"y{index + 1}" if index else "y"


def _caption(text: str, top: float) -> dict[str, Any]:
    return {
        "text": text, "xref": "paper", "x": 0, "xanchor": "left", "yref": "paper", "y": top, "yanchor": "bottom",
        "yshift": 2, "showarrow": False, "font": {"size": 13},
    }  # fmt: skip


def _legends(panels: Sequence[_Panel], entries: list[Trace], height_px: float) -> dict[str, Any]:
    """Right of the panels: the kinds, which cannot be switched off; below them the critical path, which can; beside
    the memory its ranks.
    """
    place = {"x": 1.01, "xanchor": "left", "yanchor": "top", "bgcolor": "rgba(0,0,0,0)", "tracegroupgap": 0}
    first_px = panels[0].caption_px
    path_px = first_px + _LEGEND_ROW_PX * len(entries) + 4
    memory_px = path_px + _LEGEND_ROW_PX + 16
    above = 0.0
    for panel in panels:
        if panel.kind == "memory":
            memory_px = max(memory_px, above + panel.caption_px)
            break
        above += panel.caption_px + panel.height_px
    return {
        "legend": place | {"y": 1 - first_px / height_px, "itemclick": False, "itemdoubleclick": False},
        "legend2": place | {"y": max(1 - path_px / height_px, 0)},
        "legend3": place | {"y": max(1 - memory_px / height_px, 0)},
    }
