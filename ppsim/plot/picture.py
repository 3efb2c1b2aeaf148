"""What the interactive page draws, as plain data: panels above each other on one time axis, and their cells.

The page's script makes plotly's traces of it. Cells carry what they can be coloured by; everything else is a plotly
trace already. Numbers are packed as `ppsim.plot.traces.binary` does it.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats
from ppsim.base.units import seconds, signed_percent, size
from ppsim.plot import palette, traces
from ppsim.plot.errors import Errors
from ppsim.plot.fills import Fills, fills_of
from ppsim.plot.hover import Hover
from ppsim.plot.lanes import (
    HALF_HEIGHT,
    MOST_HAIRLINES,
    MOST_LABELS,
    Lane,
    compute_lanes,
    has_memory,
    has_transfers,
    memory_caption,
    placed_transfer_lanes,
)
from ppsim.plot.scale import Scale, bytes_scale, heading, panel_prefixes, time_scale
from ppsim.plot.view import View
from ppsim.schedule.dependencies import dependencies
from ppsim.schedule.table import NONE
from ppsim.simulation.timeline import Timeline

PanelKind = Literal["compute", "transfers", "beside", "memory"]
Data = dict[str, Any]

_MEMORY_PX = 170
_CAPTION_PX, _TITLE_PX = 28, 30
_OVERLAID = ((-0.215, 0.2), (0.215, 0.2))  # middle, from the row's, and half height: measured above projected


def picture_of(
    views: Sequence[View], *, memory_limit_bytes: float | None = None, errors: Errors | None = None
) -> Data:
    """Return the data of the page: `panels`, `plans` (who waits for whom), `fills`, and the time axis.

    With `errors` the two views are of one table, measured and projected: they share a panel, a row of each rank's
    cells above the other, and can be coloured by error.
    """
    timelines, titles = [view.timeline for view in views], [view.title for view in views]
    begin_s, end_s = min(view.begin_s for view in views), max(view.end_s for view in views)
    scale = time_scale(end_s - begin_s)
    fills = fills_of(timelines)
    hovers = [Hover(timeline, scale) for timeline in timelines]
    prefixes = panel_prefixes(timelines, titles)
    largest = max(float(timeline.memory.peak_bytes.max()) for timeline in timelines)
    draw = _Drawing(views, hovers, scale, fills, errors)
    plans = range(len(views))
    panels = [draw.overlaid()] if errors else [draw.compute(plan) for plan in plans]
    panels += [draw.transfers(plan, prefixes[plan]) for plan in plans if has_transfers(timelines[plan])]
    panels += [draw.beside(plan, prefixes[plan]) for plan in plans if views[plan].pieces]
    panels += [
        draw.memory(plan, prefixes[plan], largest, memory_limit_bytes)
        for plan in plans
        if has_memory(timelines[plan])
    ]
    colours = fills.colours
    return {
        "unit": scale.unit,
        "range": [begin_s / scale.size, end_s / scale.size],
        "panels": panels,
        "plans": [_plan(timeline) for timeline in timelines],
        "fills": {
            "colours": colours,
            "inks": [palette.text_on(colour) for colour in colours],
            "causes": fills.causes,
            "microbatches": [fills.microbatches, fills.errors - 1],
            "errors": [fills.errors, len(colours) - 1],
        },
        "errorLimit": errors.limit if errors else 0.0,
        "colours": {"text": palette.TEXT, "casing": palette.CASING, "blocker": palette.CRITICAL_PATH},
    }


def _plan(timeline: Timeline) -> Data:
    """Who waits for whom: up to three actions whose results one needs, the ends of transfers, blockers."""
    needs = dependencies(timeline.schedule)
    columns = [column for column in (needs.own, needs.neighbour, needs.slice) if (column != NONE).any()]
    return {
        "numActions": timeline.num_actions,
        "numMicrobatches": timeline.schedule.num_units,
        "needs": [traces.binary(column) for column in columns],
        "source": traces.binary(timeline.graph.source),
        "target": traces.binary(timeline.graph.target),
        "blocker": traces.binary(timeline.blocker.astype(np.int32)),
    }


@dataclass(frozen=True)
class _Drawing:
    """Draws the panels of each plan, given by its place in `views`."""

    views: Sequence[View]
    hovers: Sequence[Hover]
    scale: Scale
    fills: Fills
    errors: Errors | None

    def compute(self, plan: int) -> Data:
        timeline = self.views[plan].timeline
        row_px = _row_px(timeline.schedule.num_ranks)
        name, facts = heading(timeline, self.views[plan].title)
        lanes = compute_lanes(timeline, by_cause=True)
        return _panel_of_ranks(
            "compute", _caption(name, facts), _TITLE_PX, row_px, timeline,
            cells=[self._cells(plan, lane, lane.rank, HALF_HEIGHT) for lane in lanes],
            lines=traces.critical(timeline, scale=self.scale, row_px=row_px),
            labelPx=int(min(12, row_px * HALF_HEIGHT)) if timeline.num_actions <= MOST_LABELS else 0,
        )  # fmt: skip

    def overlaid(self) -> Data:
        """Measured above projected in each rank's row."""
        measured, projected = (view.timeline for view in self.views)
        row_px = 1.6 * _row_px(measured.schedule.num_ranks)
        above, below = (view.title for view in self.views)
        steps = (
            f"step {seconds(measured.step_time_s)} {above}, {seconds(projected.step_time_s)} {below} "
            f"({signed_percent(projected.step_time_s / measured.step_time_s - 1)})"
        )
        facts = f"in each row {above} above, {below} below · {steps}"
        panel = _panel_of_ranks(
            "compute", _caption(measured.schedule.name or "table", facts), _TITLE_PX, row_px, measured,
            labelPx=int(min(11, row_px * _OVERLAID[0][1])) if 2 * measured.num_actions <= MOST_LABELS else 0,
        )  # fmt: skip
        for plan, (middle, half_height) in enumerate(_OVERLAID):
            timeline = self.views[plan].timeline
            lanes = compute_lanes(timeline, by_cause=True)
            panel["cells"] += [self._cells(plan, lane, lane.rank + middle, half_height) for lane in lanes]
            # The path runs at the foot of its own half.
            offset = middle + 0.6 * half_height
            panel["lines"] += traces.critical(timeline, scale=self.scale, row_px=row_px / 2, offset=offset)
        return panel

    def transfers(self, plan: int, prefix: str) -> Data:
        timeline = self.views[plan].timeline
        placed = placed_transfer_lanes(timeline)
        thinnest = min(half_height for _, _, half_height in placed)
        row_px = min(max(100 / timeline.schedule.num_ranks, 6 * HALF_HEIGHT / thinnest, 5), 48)
        with_starts = timeline.graph.num_transfers <= MOST_HAIRLINES
        caption = f"{prefix}transfers, by sending rank{'' if with_starts else '; zoom in to see each'}"
        return _panel_of_ranks(
            "transfers", _quiet(caption), _CAPTION_PX, row_px, timeline,
            cells=[self._cells(plan, *one) for one in placed],
            lines=[traces.transfer_starts(placed, scale=self.scale)] if with_starts else [],
        )  # fmt: skip

    def beside(self, plan: int, prefix: str) -> Data:
        """Collectives and the optimizer, a row a rank: the stream that a rank has beside its pipeline."""
        view = self.views[plan]
        num_ranks, kinds = view.timeline.schedule.num_ranks, list(palette.BESIDE_COLOURS)
        value, origin = self.scale.value, view.timeline.begin_s
        rows = []
        for rank in range(num_ranks):
            edges, fill, texts = [view.begin_s], [], []
            pieces = sorted((piece for piece in view.pieces if piece.rank == rank), key=lambda one: one.start_s)
            for piece in pieces:
                begin, end = max(piece.start_s - origin, edges[-1]), max(piece.end_s - origin, edges[-1])
                if end == begin:
                    continue
                if begin > edges[-1]:
                    edges.append(begin)
                    fill.append(self.fills.transfer + 1)
                    texts.append(("", "", "", ""))
                edges.append(end)
                fill.append(self.fills.beside + kinds.index(piece.kind))
                times = f"{value(begin)} to {value(end)} {self.scale.unit} ({seconds(round(end - begin, 12))})"
                where = f"stage {piece.stage}" if piece.stage != NONE else "all stages of the rank"
                texts.append((palette.BESIDE_TITLES[piece.kind], times, where, ""))
            row = self._placed_cells(plan, rank, rank, HALF_HEIGHT, np.array(edges), np.array(fill, dtype=np.int16))
            rows.append(row | {"texts": texts})
        caption = _quiet(f"{prefix}beside the pipeline: collectives of data parallelism, optimizer")
        row_px = min(max(100 / num_ranks, 5), 24)
        return _panel_of_ranks("beside", caption, _CAPTION_PX, row_px, view.timeline, cells=rows)

    def memory(self, plan: int, prefix: str, largest: float, limit_bytes: float | None) -> Data:
        timeline = self.views[plan].timeline
        top = max(largest, limit_bytes or 0.0)
        unit = bytes_scale(top)
        return _panel(
            "memory", _quiet(prefix + memory_caption(timeline)), _CAPTION_PX, _MEMORY_PX,
            {"range": [0, 1.06 * top / unit.size], "title": {"text": unit.unit}, "nticks": 6},
            lines=traces.memory(timeline, scale=self.scale, bytes_scale=unit),
            shapes=[] if limit_bytes is None else [_limit_line(limit_bytes, unit)],
        )  # fmt: skip

    def _cells(self, plan: int, lane: Lane, middle: float, half_height: float) -> Data:
        """The cells of a lane: where, what they can be coloured by, and what they say."""
        schedule, busy = self.views[plan].timeline.schedule, ~lane.is_idle
        texts: list[tuple[str, ...]] = list(self.hovers[plan].lines_of(lane))
        cells = self._placed_cells(plan, lane.rank, middle, half_height, lane.edges, self.fills.index_of(lane)) | {
            "node": traces.binary(lane.node),
            "microbatch": traces.binary(np.where(busy, schedule.microbatch[lane.action], NONE).astype(np.int32)),
            "digits": len(str(schedule.num_units - 1)),
            # in the middle of all cells that are something: how wide one of them is
            "typical": float(np.median(lane.durations_s[busy])) / self.scale.size if busy.any() else 0.0,
        }
        if (lane.cause != NONE).any():
            cells["cause"] = traces.binary(lane.cause)
        if self.errors and not lane.is_transfers:
            errors = np.where(busy, self.errors.of_action[lane.action], np.nan)
            cells["error"] = traces.binary(errors.astype(np.float32))
            said = [*self.errors.lines, ""]  # the last is what −1 leads to
            texts = [(*lines, said[node]) for lines, node in zip(texts, lane.node.tolist(), strict=True)]
        return cells | {"texts": texts}

    def _placed_cells(
        self, plan: int, rank: int, middle: float, half_height: float, edges: Floats, fill: NDArray[np.int16]
    ) -> Data:
        return {
            "plan": plan, "rank": rank, "middle": middle, "half": half_height,
            "x": traces.binary(edges / self.scale.size), "fill": traces.binary(fill),
        }  # fmt: skip


def _panel(kind: PanelKind, caption: str, caption_px: int, height_px: float, axis: Data, **parts: Any) -> Data:
    """A part of the picture with a vertical axis of its own; heights in pixels, the caption's above the panel's.

    `numRanks` are its rows, where it has them; `labelPx` is 0 where cells have no labels.
    """
    return {
        "kind": kind, "caption": caption, "captionPx": caption_px, "heightPx": height_px, "axis": axis,
        "cells": [], "lines": [], "shapes": [], "labelPx": 0, "numRanks": 0, **parts,
    }  # fmt: skip


def _panel_of_ranks(
    kind: PanelKind, caption: str, caption_px: int, row_px: float, timeline: Timeline, **parts: Any
) -> Data:
    num_ranks = timeline.schedule.num_ranks
    axis = {"range": [num_ranks - 0.5, -0.5], "showgrid": False}
    return _panel(kind, caption, caption_px, row_px * num_ranks, axis, numRanks=num_ranks, **parts)


def _limit_line(limit_bytes: float, unit: Scale) -> Data:
    y = limit_bytes / unit.size
    label = {"text": f"limit {size(limit_bytes)}", "textposition": "end", "yanchor": "top", "font": {"size": 11}}
    return {
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "label": label,
        "line": {"color": palette.CRITICAL_PATH, "width": 1.5, "dash": "dash"},
    }  # fmt: skip


def _caption(name: str, facts: str) -> str:
    return f"<b>{html.escape(name, quote=False)}</b>   {_quiet(facts)}"


def _quiet(text: str) -> str:
    """Text in grey; plotly.js would show the entity of a quotation mark as it stands."""
    return f"<span style='color:{palette.QUIET_TEXT}'>{html.escape(text, quote=False)}</span>"


def _row_px(num_ranks: int) -> float:
    """The height of a rank's row: 34 px at most, and still 6 where there are 128 of them."""
    return min(max(300 / num_ranks, 10 if num_ranks <= 64 else 6), 34)
