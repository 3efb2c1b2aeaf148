"""Shared parts of plotly pictures: themes, layout, axes and limit lines."""

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ppsim.plot import palette

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
