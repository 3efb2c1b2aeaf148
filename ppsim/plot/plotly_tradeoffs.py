"""Iteration time over memory, and idle time by cause, as plotly figures and as plain data."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ppsim.base.arrays import pareto_front
from ppsim.base.units import seconds, size
from ppsim.plot import palette
from ppsim.plot.plotly_frame import LIGHT, Data, Theme, axis_in, binary, figure_of, layout_with, limit_line
from ppsim.plot.scale import AxisScale, bytes_scale, heading, time_scale
from ppsim.schedule.table import Op
from ppsim.simulation.idle_causes import CAUSES, idle_by_cause_s
from ppsim.simulation.timeline import Timeline

if TYPE_CHECKING:
    import plotly.graph_objects as go

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
                "textposition": ["bottom center" if place % 2 else "top center" for place in range(len(some))],
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
    known = [(point, point.bound_s) for point in points if point.bound_s is not None]
    if not known:
        return []
    return [
        {
            "type": "scatter", "mode": "markers", "name": "lower bound",
            "x": [point.peak_bytes / memory.size for point, _ in known],
            "y": [bound / time.size for _, bound in known],
            # Wider than the dot, so that the dash is visible if both coincide; otherwise a line connects them.
            "marker": {"symbol": "line-ew", "size": 13, "line": {"width": 2, "color": theme.accent}},
            "error_y": {
                "type": "data", "symmetric": False, "width": 0, "thickness": 1, "color": theme.accent,
                "array": [(point.iteration_time_s - bound) / time.size for point, bound in known],
                "arrayminus": [0.0] * len(known),
            },
            "text": [html.escape(point.name) for point, _ in known],
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
