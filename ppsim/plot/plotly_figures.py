"""Timelines as plotly figures, for notebooks and the app.

Cells are one heatmap per rank, the cheapest of plotly's traces for a browser at any number of actions.
"""

import html
import textwrap
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats
from ppsim.plot import palette
from ppsim.plot.action_colours import ActionColours, fills_of
from ppsim.plot.hover import Hover
from ppsim.plot.lanes import (
    HALF_HEIGHT,
    MOST_LABELS,
    PATH_OFFSET,
    Lane,
    compute_lanes,
    critical_line,
    has_memory,
    memory_caption,
    memory_lines,
    shown_ranks,
)
from ppsim.plot.plotly_frame import LIGHT, Data, Theme, as_list, axis_in, binary, figure_of, layout_in, limit_line
from ppsim.plot.scale import AxisScale, bytes_scale, heading, time_scale
from ppsim.schedule.analysis_cache import cached
from ppsim.schedule.table import NONE, Op, Schedule
from ppsim.simulation.timeline import Timeline

if TYPE_CHECKING:
    import plotly.graph_objects as go

Colouring = Literal["kind", "cause"]


@dataclass(frozen=True)
class DrawingOptions:
    """Drawing options of timelines.

    - `colour`: "cause" colours idle cells by cause.
    - `with_texts`: full hover texts, which take most of the time; else only the cell's name.
    - `with_labels`: microbatch numbers in the cells, if there is room.
    - `wide_px`: approximate width of the time axis.
    - `is_sketch`: draw the cells of a timeline as one image without hover texts. A browser redraws an image several
      times as fast as cells.
    """

    colour: Colouring = "kind"
    with_texts: bool = True
    with_labels: bool = True
    with_critical_path: bool = True
    with_memory: bool = False
    memory_limit_bytes: float | None = None
    wide_px: int = 900
    is_sketch: bool = False
    theme: Theme = LIGHT


_MARGIN = {"l": 58, "r": 16, "t": 8, "b": 44}
_CAPTION_PX, _MEMORY_PX = 26, 150
_LINE_PX, _LETTER_PX = 17, 6.8  # per line and per letter of a caption
_ROW_PIXELS = 25  # per rank in a sketch; cells use 84 % (2 × `HALF_HEIGHT`)
_NOTHING = {"type": "scatter", "x": [None], "y": [None], "hoverinfo": "skip"}  # gives an empty panel an axis
_SEPARATED_PX = 4  # minimum width of a row's median cell for lines between cells


def timeline_figure(
    timelines: Sequence[Timeline] | Timeline,
    *,
    titles: Sequence[str] | None = None,
    look: DrawingOptions | None = None,
) -> "go.Figure":
    return figure_of(timeline_plotly(as_list(timelines), titles=titles, look=look))


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
    scale, names = time_scale(longest_s), ["" for _ in timelines] if titles is None else list(titles)
    fills, stack = fills_of(timelines), _Stack(look.theme)
    draw = _Rows(scale, fills, longest_s / scale.size, look)
    for timeline, title in zip(timelines, names, strict=True):
        row_px = _row_px(timeline.schedule.num_ranks, len(timelines))
        name, facts = heading(timeline, title)
        caption = _caption(name, facts, look)
        lanes = compute_lanes(timeline, by_cause=True)
        images = [draw.sketch(lanes)] if look.is_sketch else []
        stack.add(draw.rows(timeline, lanes, row_px), _ranks_axis(timeline, row_px), caption, images=images)
    if look.with_memory:
        _add_memory(stack, timelines, names, scale, look)
    return stack.picture(longest_s / scale.size, scale.unit, colours_in(look.theme))


def colours_in(theme: Theme) -> list[str]:
    """The theme has its own colour for idle cells."""
    return [theme.idle if colour == palette.COLOURS[Op.IDLE] else colour for colour in ActionColours.colours]


def _row_px(num_ranks: int, num_timelines: int) -> float:
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
    """Panels on one time axis, one above the other."""

    def __init__(self, theme: Theme) -> None:
        self._theme = theme
        self._panels: list[tuple[list[Data], Data, list[str], Data]] = []

    def add(self, found: list[Data], axis: Data, caption: list[str], **also: Sequence[Data]) -> None:
        """The panel is `axis["height_px"]` high; `also` are shapes and images."""
        self._panels.append((found, axis, caption, also))

    def picture(self, longest: float, unit: str, colours: Sequence[str]) -> Data:
        whole = sum(axis["height_px"] + _caption_px(caption) for _, axis, caption, _ in self._panels) or 1.0
        layout = layout_in(self._theme) | {
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
            top = above + _caption_px(caption)
            above = top + axis["height_px"]
            domain = [max(1 - above / whole, 0.0), 1 - top / whole]
            told = {key: value for key, value in axis.items() if key != "height_px"}
            layout[f"yaxis{name[1:]}"] = axis_in(self._theme) | {
                "anchor": "x", "fixedrange": True, "domain": domain, **told,
            }  # fmt: skip
            layout["annotations"].append(_above_panel(caption, domain[1]))
            for kind, those in also.items():
                layout[kind] += [one | {"yref": name} for one in those]
            data += [{"showlegend": False, "yaxis": name, **trace} for trace in found]
        layout["xaxis"] = axis_in(self._theme) | {
            "range": [0, longest], "minallowed": 0, "maxallowed": longest, "anchor": name, "showgrid": False,
            "title": {"text": f"time ({unit})", "standoff": 6}, "ticks": "outside",
        }  # fmt: skip
        return {"data": data, "layout": layout}


def _caption_px(caption: Sequence[str]) -> int:
    return _CAPTION_PX + (len(caption) - 1) * _LINE_PX


def _above_panel(caption: Sequence[str], y: float) -> Data:
    return {
        "text": "<br>".join(caption), "align": "left", "xref": "paper", "yref": "paper", "x": 0, "y": y,
        "xanchor": "left", "yanchor": "bottom", "yshift": 2, "showarrow": False, "font": {"size": 13},
    }  # fmt: skip


@dataclass(frozen=True)
class _Rows:
    """Draws the rows of timelines that share a time axis of length `longest` (in units of `scale`)."""

    scale: AxisScale
    fills: ActionColours
    longest: float
    look: DrawingOptions

    def rows(self, timeline: Timeline, lanes: Sequence[Lane], row_px: float) -> list[Data]:
        look = self.look
        found = [_NOTHING] if look.is_sketch else [*self.cells(timeline, lanes), *self.gaps(lanes)]
        if look.with_labels and timeline.num_actions <= MOST_LABELS and row_px >= _LABELLED_PX:
            found.append(self.labels(timeline, lanes, row_px))
        if look.with_critical_path:
            found += self.path(timeline, row_px)
        return found

    def cells(self, timeline: Timeline, lanes: Sequence[Lane]) -> list[Data]:
        hover = Hover(timeline, self.scale) if self.look.with_texts else None
        names = names_of(timeline.schedule)
        template = "<b>%{customdata[0]}</b><br>" + "<br>".join(f"%{{customdata[{line}]}}" for line in (1, 2, 3))
        found = []
        for lane in lanes:
            fill = self._fill_of(lane)
            told: Any = hover.lines_of(lane) if hover else [names[node] for node in lane.node.tolist()]
            cells = {
                "type": "heatmap", "coloraxis": "coloraxis", "zsmooth": False,
                "x": binary(lane.edges / self.scale.size),
                "y": [lane.rank - HALF_HEIGHT, lane.rank + HALF_HEIGHT],
                "z": binary(fill) | {"shape": f"1, {len(fill)}"}, "customdata": [told],
                "hovertemplate": (template if hover else "%{customdata}") + f"<extra>rank {lane.rank}</extra>",
            }  # fmt: skip
            found.append(cells)
        return found

    def sketch(self, lanes: Sequence[Lane]) -> Data:
        """Draw all lanes as one PNG image, which a browser shows much faster than heatmaps."""
        middles = (np.arange(self.look.wide_px) + 0.5) * self.longest * self.scale.size / self.look.wide_px
        blank = len(self.fills.colours)
        pixels = np.full((len(lanes) * _ROW_PIXELS, self.look.wide_px), blank, dtype=np.uint8)
        margin = round((0.5 - HALF_HEIGHT) * _ROW_PIXELS)
        for lane in lanes:
            cell = np.searchsorted(lane.edges, middles, side="right") - 1
            row = self._fill_of(lane)[np.minimum(cell, len(lane.node) - 1)].astype(np.uint8)
            row[middles > lane.edges[-1]] = blank
            if self._typical_px(lane) >= _SEPARATED_PX:
                row[1:][cell[1:] != cell[:-1]] = blank
            top = lane.rank * _ROW_PIXELS
            pixels[top + margin : top + _ROW_PIXELS - margin] = row
        theme = self.look.theme
        return {
            "source": _png(pixels, [*colours_in(theme), theme.paper]), "xref": "x", "layer": "below",
            "x": 0, "y": -0.5, "sizex": self.longest, "sizey": len(lanes), "sizing": "stretch",
        }  # fmt: skip

    def _fill_of(self, lane: Lane) -> NDArray[np.int16]:
        fill = self.fills.index_of(lane)
        if self.look.colour == "cause":
            fill = np.where(lane.cause != NONE, self.fills.causes + lane.cause, fill).astype(np.int16)
        return fill

    def gaps(self, lanes: Sequence[Lane]) -> list[Data]:
        """One polyline, which plotly draws as a single element.

        It goes along the bottom of a row, up and down at every edge, and back along the next row.
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
        line = _line(np.concatenate(x) / self.scale.size, np.concatenate(y))
        return [line | {"hoverinfo": "skip", "line": {"color": self.look.theme.paper, "width": 1}}]

    def path(self, timeline: Timeline, row_px: float) -> list[Data]:
        width = min(2.5, 0.6 * row_px / 7)
        rows = np.arange(timeline.schedule.num_ranks, dtype=np.float64) + PATH_OFFSET
        x, y = critical_line(timeline, y_of_rank=rows)
        line = _line(x / self.scale.size, y) | {"meta": "critical path", "hoverinfo": "skip"}
        return [
            line | {"line": {"color": colour, "width": factor * width}}
            for colour, factor in ((palette.CASING, 2), (palette.CRITICAL_PATH, 1))
        ]

    def labels(self, timeline: Timeline, lanes: Sequence[Lane], row_px: float) -> Data:
        """Microbatch numbers as texts of transparent bars: plotly hides texts that do not fit.

        All texts have the same width, so that zooming hides or shows them together: two four-per-em spaces (U+2005)
        are about as wide as a digit.
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
            "base": binary(np.concatenate(base) / self.scale.size),
            "x": binary(np.concatenate(wide) / self.scale.size), "y": binary(np.concatenate(rows)),
            "text": texts, "textfont": {"color": inks, "size": min(12, 0.7 * row_px)},
            "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
            "marker": {"color": "rgba(0,0,0,0)", "line": {"width": 0}},
        }  # fmt: skip

    def _typical_px(self, lane: Lane) -> float:
        busy = lane.durations_s[~lane.is_idle]
        if not len(busy) or not self.longest:
            return 0.0
        return float(np.median(busy)) / self.scale.size / self.longest * self.look.wide_px


def _line(x: Floats, y: Floats) -> Data:
    return {"type": "scatter", "mode": "lines", "x": binary(x), "y": binary(y.astype(np.float32))}


def _png(pixels: NDArray[np.uint8], colours: Sequence[str]) -> str:
    from PIL import Image

    image = Image.fromarray(pixels, mode="P")
    image.putpalette(b"".join(bytes.fromhex(colour[1:]) for colour in colours))
    written = BytesIO()
    image.save(written, "PNG", compress_level=1)
    return f"data:image/png;base64,{b64encode(written.getvalue()).decode()}"


def _padded(number: int, digits: int) -> str:
    space = "\u2005" * (digits - len(str(number)))
    return f"{space}{number}{space}"


_LABELLED_PX = 10  # minimum row height for readable labels
_INKS = [palette.text_on(colour) for colour in ActionColours.colours]


def names_of(schedule: Schedule) -> list[str]:
    """Index −1 is the name of an idle cell."""
    return cached(schedule, "names", lambda: [*(str(action) for action in schedule), "idle"])


def _add_memory(
    stack: _Stack, timelines: Sequence[Timeline], titles: Sequence[str], scale: AxisScale, look: DrawingOptions
) -> None:
    shown = [(timeline, title) for timeline, title in zip(timelines, titles, strict=True) if has_memory(timeline)]
    limit = look.memory_limit_bytes
    top = max([float(timeline.memory.peak_bytes.max()) for timeline, _ in shown] + [limit or 0.0])
    unit = bytes_scale(top)
    axis = {
        "range": [0, 1.06 * top / unit.size], "title": {"text": unit.unit}, "nticks": 5, "height_px": _MEMORY_PX,
    }  # fmt: skip
    shapes = [] if limit is None else [limit_line(limit / unit.size, look.theme, horizontal=True)]
    for timeline, title in shown:
        caption = _caption(heading(timeline, title)[0], memory_caption(timeline), look)
        lines = [
            _line(line.at_s / scale.size, line.held_bytes / unit.size)
            | {
                "line": {
                    "shape": "hv", "width": 1.5,
                    "color": palette.rank_colour(line.rank, timeline.schedule.num_ranks),
                },
                "hovertemplate": f"rank {line.rank} holds %{{y:.2f}} {unit.unit}<br>"
                                 f"from %{{x:.3f}} {scale.unit}<extra></extra>",
            }
            for line in memory_lines(timeline, shown_ranks(timeline))
        ]  # fmt: skip
        stack.add(lines, axis, caption, shapes=shapes)


def _colours(colours: Sequence[str]) -> Data:
    """The values of this plotly colour scale are indices into `colours`."""
    number = len(colours)
    scale = [[edge / number, colour] for place, colour in enumerate(colours) for edge in (place, place + 1)]
    return {"cmin": -0.5, "cmax": number - 0.5, "colorscale": scale, "showscale": False}


def _caption(name: str, facts: str, look: DrawingOptions) -> list[str]:
    first, letters = f"{name}   ", max(24, int(look.wide_px / _LETTER_PX))
    facts = facts.replace(" ", "\xa0").replace("\xa0·\xa0", "\xa0· ")  # lines break only after a " · "
    lines = textwrap.wrap(facts, letters, initial_indent=first, break_long_words=False, break_on_hyphens=False)
    lines[0] = lines[0][len(first) :]
    told = [f"<span style='color:{look.theme.quiet}'>{html.escape(line, quote=False)}</span>" for line in lines]
    return [f"<b>{html.escape(name, quote=False)}</b>   {told[0]}", *told[1:]]
