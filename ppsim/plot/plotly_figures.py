"""Plotly figures for notebooks and the app: timelines, iteration time over memory, idle time by cause."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import pareto_front
from ppsim.base.units import seconds, size
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
from ppsim.plot.scale import AxisScale, bytes_scale, heading, time_scale
from ppsim.schedule.table import NONE, Op
from ppsim.simulation.idle_causes import CAUSES, idle_by_cause_s
from ppsim.simulation.timeline import Timeline

if TYPE_CHECKING:
    import plotly.graph_objects as go


Data = dict[str, Any]


@dataclass(frozen=True)
class Theme:
    """Colours outside the data; `strong` is the colour of the selection, `accent` of limits."""

    paper: str
    text: str
    quiet: str
    grid: str
    idle: str
    strong: str
    accent: str


LIGHT, DARK = (
    Theme(*(palette.THEMES[name][one] for one in ("paper", "text", "quiet", "line", "idle", "accent", "limit")))
    for name in ("light", "dark")
)

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def figure_of(picture: Data) -> "go.Figure":
    import plotly.graph_objects as go

    return go.Figure(picture)


def binary(values: NDArray[Any]) -> Data:
    """Base64 is the form that plotly.js reads fastest."""
    return {"dtype": values.dtype.str[1:], "bdata": base64.b64encode(values.tobytes()).decode()}


def limit_line(at: float, theme: Theme, *, horizontal: bool = False) -> Data:
    ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": at, "y1": at}
    if not horizontal:
        ends = {"yref": "paper", "y0": 0, "y1": 1, "x0": at, "x1": at}
    return {"type": "line", "line": {"color": theme.accent, "width": 1.5, "dash": "dash"}} | ends


def layout_in(theme: Theme) -> Data:
    return {
        "font": {"family": FONT, "size": 12, "color": theme.text},
        "paper_bgcolor": theme.paper,
        "plot_bgcolor": theme.paper,
        "hovermode": "closest",
        "hoverlabel": {
            "align": "left", "bgcolor": theme.paper, "bordercolor": theme.quiet, "font": {"color": theme.text},
            "namelength": -1,
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": theme.quiet, "activecolor": theme.text},
        "uirevision": "kept",
    }  # fmt: skip


def layout_with(theme: Theme, x_title: str, y_title: str) -> Data:
    axis = axis_in(theme) | {"ticks": "outside"}
    return layout_in(theme) | {
        "xaxis": axis | {"title": {"text": x_title}},
        "yaxis": axis | {"title": {"text": y_title}},
        "legend": {"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom", "traceorder": "normal"},
    }


def axis_in(theme: Theme) -> Data:
    return {"zeroline": False, "gridcolor": theme.grid, "linecolor": theme.quiet, "tickcolor": theme.quiet}


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
    longest_s = max(timeline.step_time_s for timeline in timelines)
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
    height_px = sum(panel.height_px + _CAPTION_PX for panel in panels)
    margin = {"l": 58, "r": 16, "t": 8, "b": 44}
    layout |= {
        "height": round(height_px) + margin["t"] + margin["b"],
        "margin": margin,
        "annotations": [],
        "shapes": [],
    }
    data, above = [], 0.0
    name = "y"
    for index, panel in enumerate(panels):
        name, top = f"y{index + 1}" if index else "y", above + _CAPTION_PX
        above = top + panel.height_px
        title, facts = (html.escape(text, quote=False) for text in panel.caption)
        layout[name.replace("y", "yaxis")] = panel.axis | {
            "zeroline": False,
            "fixedrange": True,
            "domain": [max(1 - above / height_px, 0.0), 1 - top / height_px],
        }
        layout["annotations"].append({
            "text": f"<b>{title}</b>   {facts}", "xref": "paper", "yref": "paper", "x": 0, "y": 1 - top / height_px,
            "xanchor": "left", "yanchor": "bottom", "showarrow": False,
        })  # fmt: skip
        layout["shapes"] += [line | {"yref": name} for line in panel.limits]
        data += [trace | {"showlegend": False, "yaxis": name} for trace in panel.traces]
    return {"data": data, "layout": layout | {"xaxis": layout["xaxis"] | {"anchor": name}}}


def _colours(theme: Theme) -> Data:
    """Values of this plotly colour scale are indices into the fills; the theme colours idle cells."""
    colours = [theme.idle if fill == palette.COLOURS[Op.IDLE] else fill for fill in ActionColours.colours]
    number = len(colours)
    scale = [[edge / number, colour] for index, colour in enumerate(colours) for edge in (index, index + 1)]
    return {"cmin": -0.5, "cmax": number - 0.5, "colorscale": scale, "showscale": False}


_SIZE = {"height": 420, "margin": {"l": 62, "r": 16, "t": 120, "b": 52}}  # 120: room for a legend of five rows


def tradeoff_figure(
    points: "Sequence[TradeoffPoint]", *, memory_limit_bytes: float | None = None, theme: Theme = LIGHT
) -> "go.Figure":
    return figure_of(tradeoff_plotly(points, memory_limit_bytes=memory_limit_bytes, theme=theme))


@dataclass(frozen=True)
class TradeoffPoint:
    """A schedule in the plane of memory and time.

    - `bound_s`: lower bound of the time of all schedules with the same placement.
    - `told`: an additional line of the hover text; `key`: the value that a click returns.
    - `kind`: "refused" schedules do not fit or run.
    """

    name: str
    peak_bytes: float
    iteration_time_s: float
    bound_s: float | None = None
    told: str = ""
    kind: Literal["compared", "possible", "refused"] = "possible"
    key: str = ""
    fits: bool = True
    is_tight: bool = False


_SYMBOLS = {"compared": "circle", "possible": "circle", "refused": "x-thin"}
_GROUPS = {"compared": "compared", "possible": "others", "refused": "do not run or fit as they are"}


def tradeoff_plotly(
    points: Sequence[TradeoffPoint], *, memory_limit_bytes: float | None = None, theme: Theme = LIGHT
) -> Data:
    """The Pareto front goes through the schedules that run and fit. A dash is a point's lower bound."""
    top = max([point.peak_bytes for point in points] + [memory_limit_bytes or 0.0])
    memory, time = bytes_scale(top), time_scale(max((point.iteration_time_s for point in points), default=0.0))
    data = [*_bounds(points, memory, time, theme), *_front(points, memory, time)]
    colours = {"compared": theme.strong, "possible": theme.quiet, "refused": theme.quiet}
    for kind, name in _GROUPS.items():
        some = sorted((point for point in points if point.kind == kind), key=lambda point: point.peak_bytes)
        if not some:
            continue
        data.append(
            {
                "type": "scatter", "name": name, "mode": "markers+text" if kind == "compared" else "markers",
                "x": [point.peak_bytes / memory.size for point in some],
                "y": [point.iteration_time_s / time.size for point in some],
                "text": [html.escape(point.name) for point in some],
                "textposition": ["bottom center" if index % 2 else "top center" for index in range(len(some))],
                "customdata": [[point.key or point.name, _told(point)] for point in some],
                "hovertemplate": "<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
                "marker": {
                    "symbol": _SYMBOLS[kind], "size": 10 if kind == "compared" else 7, "color": colours[kind],
                    "line": {"width": 1.5 if kind == "refused" else 0, "color": colours[kind]},
                },
            }
        )  # fmt: skip
    layout = (
        layout_with(theme, f"peak memory per GPU ({memory.unit})", f"iteration ({time.unit})")
        | _SIZE
        | {
            "shapes": [] if memory_limit_bytes is None else [limit_line(memory_limit_bytes / memory.size, theme)],
            "dragmode": "zoom",
        }
    )
    return {"data": data, "layout": layout}


def _told(point: TradeoffPoint) -> str:
    bound = "" if point.bound_s is None else f", at least {seconds(point.bound_s)}"
    return f"{seconds(point.iteration_time_s)}{bound}<br>{size(point.peak_bytes)} peak memory" + (
        f"<br>{html.escape(point.told)}" if point.told else ""
    )


def _bounds(points: Sequence[TradeoffPoint], memory: AxisScale, time: AxisScale, theme: Theme) -> list[Data]:
    bounded = [(point, point.bound_s) for point in points if point.bound_s is not None]
    if not bounded:
        return []
    return [
        {
            "type": "scatter", "mode": "markers", "name": "lower bound",
            "x": [point.peak_bytes / memory.size for point, _ in bounded],
            "y": [bound / time.size for _, bound in bounded],
            # Wider than the dot, so that the dash is visible if both coincide; otherwise a line connects them.
            "marker": {"symbol": "line-ew", "size": 13, "line": {"width": 2, "color": theme.accent}},
            "error_y": {
                "type": "data", "symmetric": False, "width": 0, "thickness": 1, "color": theme.accent,
                "array": [(point.iteration_time_s - bound) / time.size for point, bound in bounded],
                "arrayminus": [0.0] * len(bounded),
            },
            "text": [html.escape(point.name) for point, _ in bounded],
            "hovertemplate": f"no table placed as %{{text}} is quicker than %{{y:.4g}} {time.unit}<extra></extra>",
        }
    ]  # fmt: skip


def _front(points: Sequence[TradeoffPoint], memory: AxisScale, time: AxisScale) -> list[Data]:
    usable = [point for point in points if point.kind != "refused"]
    front = pareto_front(usable, lambda one: (one.peak_bytes, one.iteration_time_s))
    return [
        {
            "type": "scatter", "mode": "lines", "name": "least of both", "hoverinfo": "skip",
            "x": [point.peak_bytes / memory.size for point in front],
            "y": [point.iteration_time_s / time.size for point in front],
            "line": {"shape": "hv", "color": palette.COLOURS[Op.W], "width": 1.5},
        }
    ] if front else []  # fmt: skip


def idle_plotly(
    timelines: Sequence[Timeline], *, titles: Sequence[str] | None = None, theme: Theme = LIGHT
) -> Data:
    """Stacked bars, in % of each timeline's step."""
    names = ["" for _ in timelines] if titles is None else list(titles)
    labels = [heading(timeline, title)[0] for timeline, title in zip(timelines, names, strict=True)]
    idle = [idle_by_cause_s(timeline) for timeline in timelines]
    groups = [
        label for label, timeline in zip(labels, timelines, strict=True) for _ in range(timeline.schedule.num_ranks)
    ]
    ranks = [str(rank) for timeline in timelines for rank in range(timeline.schedule.num_ranks)]
    data = []
    for cause in CAUSES:
        shares = [
            100 * found[cause] / timeline.step_time_s if timeline.step_time_s else found[cause]
            for timeline, found in zip(timelines, idle, strict=True)
        ]
        data.append(
            {
                "type": "bar", "name": palette.CAUSE_TITLES[cause], "x": [groups, ranks],
                "y": binary(np.concatenate(shares) if shares else np.zeros(0)),
                "marker": {"color": palette.CAUSE_COLOURS[cause], "line": {"width": 0.5, "color": theme.paper}},
                "hovertemplate": "rank %{x}: %{y:.2f} % of the step<extra>%{fullData.name}</extra>",
            }
        )  # fmt: skip
    layout = (
        layout_with(theme, "", "idle (% of the step)")
        | _SIZE
        | {
            "barmode": "stack",
            "bargap": 0.15,
            "xaxis": axis_in(theme) | {"showdividers": True, "dividercolor": theme.grid, "showgrid": False},
        }
    )
    return {"data": data, "layout": layout}
