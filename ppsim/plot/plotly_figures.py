"""Pictures as plotly Figures, for notebooks and the app: timelines, time over memory, idle time by cause.

Each picture exists twice: as plain data (`timeline_plotly`), which is quick to make and what a page takes, and as
the `plotly.graph_objects.Figure` of it (`timeline_figure`), which takes plotly. Cells are heatmaps, one a rank: of
all that plotly draws they take a browser least, whatever the number of actions, and a pointer finds them exactly.
"""

import html
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats
from ppsim.base.units import seconds, size
from ppsim.plot import palette, traces
from ppsim.plot.fills import Fills, fills_of
from ppsim.plot.hover import Hover
from ppsim.plot.lanes import HALF_HEIGHT, MOST_LABELS, Lane, compute_lanes, has_memory, memory_caption
from ppsim.plot.scale import Scale, bytes_scale, heading, time_scale
from ppsim.schedule.kept import kept
from ppsim.schedule.table import NONE, Op, Schedule
from ppsim.simulation.explain import CAUSES, idle_by_cause_s
from ppsim.simulation.timeline import Timeline

if TYPE_CHECKING:
    import plotly.graph_objects as go

Data = dict[str, Any]
Colouring = Literal["kind", "cause"]


@dataclass(frozen=True)
class Theme:
    """The colours of what is around the data: paper, text, lines of a grid; of what is chosen, and of limits."""

    paper: str = "#FFFFFF"
    text: str = palette.TEXT
    quiet: str = palette.QUIET_TEXT
    grid: str = "#E4E4E4"
    idle: str = palette.COLOURS[Op.IDLE]
    strong: str = palette.COLOURS[Op.F]
    accent: str = palette.CRITICAL_PATH


LIGHT = Theme()
DARK = Theme(
    paper="#15181D",
    text="#E8EAED",
    quiet="#A8AFB8",
    grid="#343A42",
    idle="#4A515B",
    strong="#6FB1FF",
    accent="#FF7A9C",
)


@dataclass(frozen=True)
class Look:
    """How timelines are drawn.

    Idle cells are coloured by cause with `colour` "cause". What a pointer is told of a cell is all of it
    (`ppsim.plot.hover`) or, without `with_texts`, which take most of the time, its name. Microbatches label the
    cells `with_labels` where these are few enough and wide enough; lines tell them apart `with_gaps`. `row_px` is
    the height of a rank's row, None for what suits their number. A sketch (`is_sketch`) looks the same and says
    nothing: the cells of a timeline are one image, which a browser redraws several times as fast.
    """

    colour: Colouring = "kind"
    with_texts: bool = True
    with_labels: bool = True
    with_gaps: bool = True
    with_critical_path: bool = True
    with_memory: bool = False
    memory_limit_bytes: float | None = None
    row_px: float | None = None
    is_sketch: bool = False
    theme: Theme = LIGHT


_MARGIN = {"l": 58, "r": 16, "t": 8, "b": 44}
_CAPTION_PX, _MEMORY_PX, _FIGURE_PX = 26, 150, 380
_WIDE_PX = 900  # what a picture's time axis is taken to be across, where it decides what there is room for
_ROW_PIXELS = 25  # of a rank in a sketch, of which cells take 84 %, as `HALF_HEIGHT` says
_NOTHING = {"type": "scatter", "x": [None], "y": [None], "hoverinfo": "skip"}  # so that a panel has an axis
_SEPARATED_PX = 4  # of a row's typical cell, from which on lines tell its cells apart


def timeline_figure(
    timelines: Sequence[Timeline] | Timeline, *, titles: Sequence[str] | None = None, look: Look | None = None
) -> "go.Figure":
    """Return the plotly Figure of `timeline_plotly`."""
    return _figure(timeline_plotly(_listed(timelines), titles=titles, look=look))


def tradeoff_figure(
    points: "Sequence[Point]", *, memory_limit_bytes: float | None = None, theme: Theme = LIGHT
) -> "go.Figure":
    """Return the plotly Figure of `tradeoff_plotly`."""
    return _figure(tradeoff_plotly(points, memory_limit_bytes=memory_limit_bytes, theme=theme))


def idle_figure(
    timelines: Sequence[Timeline] | Timeline, *, titles: Sequence[str] | None = None, theme: Theme = LIGHT
) -> "go.Figure":
    """Return the plotly Figure of `idle_plotly`."""
    return _figure(idle_plotly(_listed(timelines), titles=titles, theme=theme))


def _listed(timelines: Sequence[Timeline] | Timeline) -> Sequence[Timeline]:
    return [timelines] if isinstance(timelines, Timeline) else timelines


def _figure(picture: Data) -> "go.Figure":
    import plotly.graph_objects as go

    return go.Figure(picture)


def timeline_plotly(
    timelines: Sequence[Timeline], *, titles: Sequence[str] | None = None, look: Look | None = None
) -> Data:
    """Return timelines above each other on one time axis, a row a rank, as plotly's `data` and `layout`.

    Each starts at 0, its first start; `titles` has one entry a timeline, "" for its schedule's name, and brings
    step and bubble with it.

    >>> from ppsim import StageCosts, build, simulate
    >>> costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
    >>> timelines = [simulate(build(name, pp=4, microbatches=8), costs) for name in ("1f1b", "zb-h1")]
    >>> picture = timeline_plotly(timelines)
    >>> sum(trace["type"] == "heatmap" for trace in picture["data"]), picture["layout"]["xaxis"]["range"]
    (8, [0, 33.0])
    """
    look = look or Look()
    longest_s = max((timeline.step_time_s for timeline in timelines), default=0.0)
    scale, names = time_scale(longest_s), ["" for _ in timelines] if titles is None else list(titles)
    fills, stack = fills_of(timelines), _Stack(look.theme)
    draw = _Rows(scale, fills, longest_s / scale.size, look)
    for timeline, title in zip(timelines, names, strict=True):
        row_px = look.row_px or _row_px(timeline.schedule.num_ranks, len(timelines))
        name, facts = heading(timeline, title)
        caption = _caption(name, facts, look.theme)
        lanes = compute_lanes(timeline, by_cause=True)
        images = [draw.sketch(lanes)] if look.is_sketch else []
        stack.add(draw.rows(timeline, lanes, row_px), _ranks_axis(timeline, row_px), caption, images=images)
    if look.with_memory:
        _add_memory(stack, timelines, names, scale, look)
    return stack.picture(longest_s / scale.size, scale.unit, colours_in(look.theme))


def colours_in(theme: Theme) -> list[str]:
    """Return the colours of `Fills` with the theme's own for idle cells."""
    return [theme.idle if colour == palette.COLOURS[Op.IDLE] else colour for colour in Fills.colours]


def _row_px(num_ranks: int, num_timelines: int) -> float:
    """The height of a rank's row, less where there are many."""
    return float(np.clip(520 / (num_ranks * num_timelines), 5, 26))


def _ranks_axis(timeline: Timeline, row_px: float) -> Data:
    num_ranks = timeline.schedule.num_ranks
    step = next((every for every in (1, 2, 4, 8, 16, 32, 64, 128) if every * row_px >= 13), num_ranks)
    named = list(range(0, num_ranks, step))
    return {
        "range": [num_ranks - 0.5, -0.5], "showgrid": False, "height_px": row_px * num_ranks,
        "tickvals": named, "ticktext": [f"rank {rank}" for rank in named],
    }  # fmt: skip


class _Stack:
    """Panels above each other on one time axis; each has an axis of its own and a caption above it."""

    def __init__(self, theme: Theme) -> None:
        self._theme = theme
        self._panels: list[tuple[list[Data], Data, str, Data]] = []

    def add(self, found: list[Data], axis: Data, caption: str, **also: Sequence[Data]) -> None:
        """Add a panel below the others, as high as its axis says by `height_px`; `also` are shapes and images."""
        self._panels.append((found, axis, caption, also))

    def picture(self, longest: float, unit: str, colours: Sequence[str]) -> Data:
        """Return all of it as plotly's `data` and `layout`."""
        whole = sum(axis["height_px"] + _CAPTION_PX for _, axis, _, _ in self._panels) or 1.0
        layout = _layout(self._theme) | {
            "height": round(whole + _MARGIN["t"] + _MARGIN["b"]),
            "margin": _MARGIN,
            "barmode": "overlay",
            "uniformtext": {"mode": "hide", "minsize": 7},
            "dragmode": "zoom",
            "coloraxis": _colours(colours),
            "annotations": [],
            "shapes": [],
            "images": [],
        }
        data: list[Data] = []
        above, name = 0.0, "y"
        for place, (found, axis, caption, also) in enumerate(self._panels):
            name = f"y{place + 1}" if place else "y"
            top = above + _CAPTION_PX
            above = top + axis["height_px"]
            domain = [max(1 - above / whole, 0.0), 1 - top / whole]
            told = {key: value for key, value in axis.items() if key != "height_px"}
            layout[f"yaxis{name[1:]}"] = _axis(self._theme) | {
                "anchor": "x", "fixedrange": True, "domain": domain, **told,
            }  # fmt: skip
            layout["annotations"].append(_above_panel(caption, domain[1]))
            for kind, those in also.items():
                layout[kind] += [one | {"yref": name} for one in those]
            data += [{"showlegend": False, "yaxis": name, **trace} for trace in found]
        layout["xaxis"] = _axis(self._theme) | {
            "range": [0, longest], "minallowed": 0, "maxallowed": longest, "anchor": name, "showgrid": False,
            "title": {"text": f"time ({unit})", "standoff": 6}, "ticks": "outside",
        }  # fmt: skip
        return {"data": data, "layout": layout}


def _above_panel(caption: str, y: float) -> Data:
    return {
        "text": caption, "xref": "paper", "yref": "paper", "x": 0, "y": y, "xanchor": "left", "yanchor": "bottom",
        "yshift": 2, "showarrow": False, "font": {"size": 13},
    }  # fmt: skip


@dataclass(frozen=True)
class _Rows:
    """What is in the rows of timelines that share a time axis `longest` units long."""

    scale: Scale
    fills: Fills
    longest: float
    look: Look

    def rows(self, timeline: Timeline, lanes: Sequence[Lane], row_px: float) -> list[Data]:
        """All of a timeline, in the order in which it is drawn."""
        look = self.look
        found = [_NOTHING] if look.is_sketch else self.cells(timeline, lanes)
        if look.with_gaps and not look.is_sketch:
            found += self.gaps(lanes)
        if look.with_labels and timeline.num_actions <= MOST_LABELS and row_px >= _LABELLED_PX:
            found.append(self.labels(timeline, lanes, row_px))
        if look.with_critical_path:
            found += traces.critical(timeline, scale=self.scale, row_px=0.6 * row_px)
        return found

    def cells(self, timeline: Timeline, lanes: Sequence[Lane]) -> list[Data]:
        """A heatmap a lane, which tile the step."""
        hover = Hover(timeline, self.scale) if self.look.with_texts else None
        names = names_of(timeline.schedule)
        template = "<b>%{customdata[0]}</b><br>" + "<br>".join(f"%{{customdata[{line}]}}" for line in (1, 2, 3))
        found = []
        for lane in lanes:
            fill = self._fill_of(lane)
            told: Any = hover.lines_of(lane) if hover else [names[node] for node in lane.node.tolist()]
            cells = {
                "type": "heatmap", "coloraxis": "coloraxis", "zsmooth": False,
                "x": traces.binary(lane.edges / self.scale.size),
                "y": [lane.rank - HALF_HEIGHT, lane.rank + HALF_HEIGHT],
                "z": traces.binary(fill) | {"shape": f"1, {len(fill)}"}, "customdata": [told],
                "hovertemplate": (template if hover else "%{customdata}") + f"<extra>rank {lane.rank}</extra>",
            }  # fmt: skip
            found.append(cells)
        return found

    def sketch(self, lanes: Sequence[Lane]) -> Data:
        """All lanes as an image, a row a rank, which takes a browser no time to draw."""
        middles = (np.arange(_WIDE_PX) + 0.5) * self.longest * self.scale.size / _WIDE_PX
        blank = len(self.fills.colours)
        pixels = np.full((len(lanes) * _ROW_PIXELS, _WIDE_PX), blank, dtype=np.uint8)
        margin = round((0.5 - HALF_HEIGHT) * _ROW_PIXELS)
        for lane in lanes:
            cell = np.searchsorted(lane.edges, middles, side="right") - 1
            row = self._fill_of(lane)[np.minimum(cell, len(lane.node) - 1)].astype(np.uint8)
            row[middles > lane.edges[-1]] = blank
            if self.look.with_gaps and self._typical_px(lane) >= _SEPARATED_PX:
                row[1:][cell[1:] != cell[:-1]] = blank
            top = lane.rank * _ROW_PIXELS
            pixels[top + margin : top + _ROW_PIXELS - margin] = row
        theme = self.look.theme
        return {
            "source": _png(pixels, [*colours_in(theme), theme.paper]), "xref": "x", "layer": "below",
            "x": 0, "y": -0.5, "sizex": self.longest, "sizey": len(lanes), "sizing": "stretch",
        }  # fmt: skip

    def _fill_of(self, lane: Lane) -> NDArray[np.int16]:
        """The places of its cells' colours, by cause where that is asked for."""
        fill = self.fills.index_of(lane)
        if self.look.colour == "cause":
            fill = np.where(lane.cause != NONE, self.fills.causes + lane.cause, fill).astype(np.int16)
        return fill

    def gaps(self, lanes: Sequence[Lane]) -> list[Data]:
        """Lines between the cells of rows whose cells are wide enough for that.

        All are one line, which plotly draws as one element: along the foot of a row, up and down at every edge, and
        back along the next.
        """
        x: list[Floats] = []
        y: list[Floats] = []
        for lane in lanes:
            if self._typical_px(lane) >= _SEPARATED_PX:
                foot, top = lane.rank + HALF_HEIGHT, lane.rank - HALF_HEIGHT
                x.append(np.repeat(lane.edges if len(x) % 2 else lane.edges[::-1], 3))
                y.append(np.tile([foot, top, foot], len(lane.edges)))
        if not x:
            return []
        line = {"color": self.look.theme.paper, "width": 1}
        return [
            {
                "type": "scatter", "mode": "lines", "hoverinfo": "skip", "line": line,
                "x": traces.binary(np.concatenate(x) / self.scale.size),
                "y": traces.binary(np.concatenate(y).astype(np.float32)),
            }
        ]  # fmt: skip

    def labels(self, timeline: Timeline, lanes: Sequence[Lane], row_px: float) -> Data:
        """The microbatches, as texts of unseen bars: plotly hides those that do not fit.

        Equally wide, so that they come and go together: a space a quarter of the font size wide, twice,
        is about a digit.
        """
        base, wide, rows, texts, inks = [], [], [], [], []
        digits = len(str(timeline.schedule.num_units - 1))
        for lane in lanes:
            busy = ~lane.is_idle
            base.append(lane.edges[:-1][busy])
            wide.append(lane.durations_s[busy])
            rows.append(np.full(int(busy.sum()), lane.rank, dtype=np.float64))
            texts += [
                _padded(number, digits) for number in timeline.schedule.microbatch[lane.action[busy]].tolist()
            ]
            inks += [_INKS[fill] for fill in self.fills.index_of(lane)[busy].tolist()]
        return {
            "type": "bar", "orientation": "h", "hoverinfo": "skip", "width": 2 * HALF_HEIGHT,
            "base": traces.binary(np.concatenate(base) / self.scale.size),
            "x": traces.binary(np.concatenate(wide) / self.scale.size), "y": traces.binary(np.concatenate(rows)),
            "text": texts, "textfont": {"color": inks, "size": min(12, 0.7 * row_px)},
            "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
            "marker": {"color": "rgba(0,0,0,0)", "line": {"width": 0}},
        }  # fmt: skip

    def _typical_px(self, lane: Lane) -> float:
        """How wide the cell in the middle of all that are something is drawn."""
        busy = lane.durations_s[~lane.is_idle]
        if not len(busy) or not self.longest:
            return 0.0
        return float(np.median(busy)) / self.scale.size / self.longest * _WIDE_PX


def _png(pixels: NDArray[np.uint8], colours: Sequence[str]) -> str:
    """An image of places in a row of colours, as an address that holds it whole."""
    from PIL import Image

    image = Image.fromarray(pixels, mode="P")
    image.putpalette(b"".join(bytes.fromhex(colour[1:]) for colour in colours))
    written = BytesIO()
    image.save(written, "PNG", compress_level=1)
    return f"data:image/png;base64,{b64encode(written.getvalue()).decode()}"


def _padded(number: int, digits: int) -> str:
    space = "\u2005" * (digits - len(str(number)))
    return f"{space}{number}{space}"


_LABELLED_PX = 10  # of a row, from which on a label can be read in it
_INKS = [palette.text_on(colour) for colour in Fills.colours]


def names_of(schedule: Schedule) -> list[str]:
    """Return the name of every action, and behind them that of an idle cell, to which −1 leads; kept by table."""
    return kept(schedule, "names", lambda: [*(str(action) for action in schedule), "idle"])


def _add_memory(
    stack: _Stack, timelines: Sequence[Timeline], titles: Sequence[str], scale: Scale, look: Look
) -> None:
    """What ranks hold, a panel a timeline, all to one scale."""
    shown = [(timeline, title) for timeline, title in zip(timelines, titles, strict=True) if has_memory(timeline)]
    limit = look.memory_limit_bytes
    top = max([float(timeline.memory.peak_bytes.max()) for timeline, _ in shown] + [limit or 0.0])
    unit = bytes_scale(top)
    axis = {
        "range": [0, 1.06 * top / unit.size], "title": {"text": unit.unit}, "nticks": 5, "height_px": _MEMORY_PX,
    }  # fmt: skip
    shapes = [] if limit is None else [_limit_line(limit / unit.size, look.theme, horizontal=True)]
    for timeline, title in shown:
        caption = _caption(heading(timeline, title)[0], memory_caption(timeline), look.theme)
        stack.add(traces.memory(timeline, scale=scale, bytes_scale=unit), axis, caption, shapes=shapes)


def _limit_line(at: float, theme: Theme, *, horizontal: bool = False) -> Data:
    ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": at, "y1": at}
    if not horizontal:
        ends = {"yref": "paper", "y0": 0, "y1": 1, "x0": at, "x1": at}
    return {"type": "line", "line": {"color": theme.accent, "width": 1.5, "dash": "dash"}} | ends


@dataclass(frozen=True)
class Point:
    """A schedule in the plane of memory and time; `told` is a line more for a pointer, `key` what a click returns.

    `bound_s` is what no table with its placement can undercut; `kind` groups points: "compared" ones are large and
    named, "possible" ones are dots, "refused" ones (which do not fit or do not run) crosses.
    """

    name: str
    peak_bytes: float
    iteration_s: float
    bound_s: float | None = None
    told: str = ""
    kind: Literal["compared", "possible", "refused"] = "possible"
    key: str = ""


_SYMBOLS = {"compared": "circle", "possible": "circle", "refused": "x-thin"}
_GROUPS = {"compared": "compared", "possible": "others", "refused": "do not run or fit as they are"}


def tradeoff_plotly(
    points: Sequence[Point], *, memory_limit_bytes: float | None = None, theme: Theme = LIGHT
) -> Data:
    """Return points in the plane of peak memory and time, the least time of each amount, bounds, and the limit.

    The step line is what none of those that run and fit improves on. A dash below a point is its lower bound.
    """
    top = max([point.peak_bytes for point in points] + [memory_limit_bytes or 0.0])
    memory, time = bytes_scale(top), time_scale(max((point.iteration_s for point in points), default=0.0))
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
                "y": [point.iteration_s / time.size for point in some],
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
    layout = _layout(theme) | {
        "height": _FIGURE_PX,
        "margin": {"l": 62, "r": 16, "t": 34, "b": 52},
        "xaxis": _axis(theme)
        | {"title": {"text": f"memory of the fullest rank ({memory.unit})"}, "ticks": "outside"},
        "yaxis": _axis(theme) | {"title": {"text": f"iteration ({time.unit})"}, "ticks": "outside"},
        "legend": {"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom"},
        "shapes": [] if memory_limit_bytes is None else [_limit_line(memory_limit_bytes / memory.size, theme)],
        "dragmode": "zoom",
    }
    return {"data": data, "layout": layout}


def _told(point: Point) -> str:
    bound = "" if point.bound_s is None else f", at least {seconds(point.bound_s)}"
    return f"{seconds(point.iteration_s)}{bound}<br>{size(point.peak_bytes)} on the fullest rank" + (
        f"<br>{html.escape(point.told)}" if point.told else ""
    )


def _bounds(points: Sequence[Point], memory: Scale, time: Scale, theme: Theme) -> list[Data]:
    known = [(point, point.bound_s) for point in points if point.bound_s is not None]
    if not known:
        return []
    return [
        {
            "type": "scatter", "mode": "markers", "name": "lower bound",
            "x": [point.peak_bytes / memory.size for point, _ in known],
            "y": [bound / time.size for _, bound in known],
            "marker": {"symbol": "line-ew", "size": 9, "line": {"width": 1.5, "color": theme.accent}},
            "text": [html.escape(point.name) for point, _ in known],
            "hovertemplate": f"no table placed as %{{text}} is quicker than %{{y:.4g}} {time.unit}<extra></extra>",
        }
    ]  # fmt: skip


def _front(points: Sequence[Point], memory: Scale, time: Scale) -> list[Data]:
    """The steps along the points on which none improves in both."""
    front: list[Point] = []
    usable = (point for point in points if point.kind != "refused")
    for point in sorted(usable, key=lambda one: (one.peak_bytes, one.iteration_s)):
        if not front or point.iteration_s < front[-1].iteration_s:
            front.append(point)
    return [
        {
            "type": "scatter", "mode": "lines", "name": "least of both", "hoverinfo": "skip",
            "x": [point.peak_bytes / memory.size for point in front],
            "y": [point.iteration_s / time.size for point in front],
            "line": {"shape": "hv", "color": palette.COLOURS[Op.W], "width": 1.5},
        }
    ] if front else []  # fmt: skip


def idle_plotly(
    timelines: Sequence[Timeline], *, titles: Sequence[str] | None = None, theme: Theme = LIGHT
) -> Data:
    """Return the ranks' idle time by cause, in % of each timeline's step: stacked bars, timelines side by side."""
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
                "y": traces.binary(np.concatenate(shares) if shares else np.zeros(0)),
                "marker": {"color": palette.CAUSE_COLOURS[cause], "line": {"width": 0.5, "color": theme.paper}},
                "hovertemplate": "rank %{x}: %{y:.2f} % of the step<extra>%{fullData.name}</extra>",
            }
        )  # fmt: skip
    layout = _layout(theme) | {
        "barmode": "stack",
        "bargap": 0.15,
        "height": _FIGURE_PX,
        "margin": {"l": 52, "r": 16, "t": 34, "b": 52},
        "xaxis": _axis(theme) | {"showdividers": True, "dividercolor": theme.grid, "showgrid": False},
        "yaxis": _axis(theme)
        | {"title": {"text": "idle (% of the step)"}, "ticks": "outside", "rangemode": "tozero"},
        "legend": {"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom", "traceorder": "normal"},
    }
    return {"data": data, "layout": layout}


def _layout(theme: Theme) -> Data:
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


FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def _axis(theme: Theme) -> Data:
    return {"zeroline": False, "gridcolor": theme.grid, "linecolor": theme.quiet, "tickcolor": theme.quiet}


def _colours(colours: Sequence[str]) -> Data:
    """A scale of colours whose values are places in `colours`."""
    number = len(colours)
    scale = [[edge / number, colour] for place, colour in enumerate(colours) for edge in (place, place + 1)]
    return {"cmin": -0.5, "cmax": number - 0.5, "colorscale": scale, "showscale": False}


def _caption(name: str, facts: str, theme: Theme) -> str:
    told = html.escape(facts, quote=False)
    return f"<b>{html.escape(name, quote=False)}</b>   <span style='color:{theme.quiet}'>{told}</span>"
