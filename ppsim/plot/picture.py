"""Content of the interactive page as plain data: panels with rows on one time axis.

The page's script derives a cell's action from its position, and colours and texts from the schedule's columns, for
the visible part only.
"""

import base64
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats
from ppsim.base.units import percent, seconds, signed_percent, size
from ppsim.plot import palette
from ppsim.plot.action_colours import ActionColours, fills_of
from ppsim.plot.lanes import (
    HALF_HEIGHT,
    PATH_OFFSET,
    Lane,
    chunk_of_stage,
    compute_lanes,
    critical_line,
    has_memory,
    has_transfers,
    memory_caption,
    memory_lines,
    placed_transfer_lanes,
    shown_ranks,
)
from ppsim.plot.plot_model import TimelineView
from ppsim.plot.scale import AxisScale, bytes_scale, heading, panel_prefixes, time_scale
from ppsim.schedule.dependencies import dependencies
from ppsim.schedule.table import NONE
from ppsim.simulation.idle_causes import CAUSES
from ppsim.simulation.step import StepActivity
from ppsim.simulation.timeline import Timeline

_LIMITS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True, eq=False)
class ActionErrors:
    """Two timelines of one schedule, compared by action."""

    measured: Timeline
    projected: Timeline

    @cached_property
    def of_action(self) -> Floats:
        """Projected / measured duration − 1; 0 if the measured duration is 0."""
        measured = self.measured_s
        error: Floats = np.divide(self.projected_s, measured, out=np.ones(len(measured)), where=measured > 0) - 1
        return error

    @property
    def limit(self) -> float:
        """The smallest limit that contains 75 % of the actions' errors."""
        most = float(np.quantile(np.abs(self.of_action), 0.75))
        return next((limit for limit in _LIMITS if most <= limit), _LIMITS[-1])

    @property
    def measured_s(self) -> Floats:
        return _durations_s(self.measured)

    @property
    def projected_s(self) -> Floats:
        return _durations_s(self.projected)

    @property
    def behind_s(self) -> Floats:
        return _ends_s(self.projected) - _ends_s(self.measured)


def _durations_s(timeline: Timeline) -> Floats:
    return (timeline.end - timeline.start)[: timeline.num_actions]


def _ends_s(timeline: Timeline) -> Floats:
    return timeline.end[: timeline.num_actions] - timeline.begin_s


_TICKS = 12  # decimal digits of the longest time; later digits are floating-point rounding
_LEVEL = 4  # zlib level; higher levels are slower and save little


def tick_of(longest_s: float) -> float:
    """Return the seconds of a tick: a power of ten, such that the longest time has 12 or 13 digits.

    >>> tick_of(3.25)
    1e-12
    """
    return 10.0 ** (math.floor(math.log10(longest_s)) - _TICKS) if longest_s > 0 else 1.0


class PackedNumbers:
    """Rows of numbers in one compressed stream; each `add` method returns the row's address and encoding.

    `at` is the offset of the first byte. `how` is the decoding: "" for plain values, "sum" for differences to the
    previous value, "back" for the distance from the value's own index back to an earlier index (0: none).
    """

    def __init__(self, tick_s: float) -> None:
        self._tick_s = tick_s
        self._deflate = zlib.compressobj(_LEVEL)
        self._pieces: list[bytes] = []
        self._at = 0

    def add(self, values: NDArray[Any], how: str = "") -> dict[str, Any]:
        """Integers use the narrowest type that holds them all."""
        if values.dtype.kind in "iu":
            values = values.astype(_narrowest(values))
        kept = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False)
        planes = kept.view(np.uint8).reshape(len(kept), kept.itemsize).T
        self._pieces.append(self._deflate.compress(planes.tobytes()))
        entry = {"type": kept.dtype.str[1:], "at": self._at, "length": len(kept), "how": how}
        self._at += kept.nbytes
        return entry

    def add_times(self, at_s: Floats) -> dict[str, Any]:
        ticks = at_s / self._tick_s
        np.rint(ticks, out=ticks)
        ticks[1:] -= ticks[:-1]
        return self.add(ticks, "sum")

    def add_rising(self, values: NDArray[Any]) -> dict[str, Any]:
        """Differences are efficient if each integer is slightly larger than the previous one."""
        return self.add(np.diff(values.astype(np.int64), prepend=0), "sum")

    def add_back(self, values: NDArray[Any]) -> dict[str, Any]:
        """Add indices of earlier entries of the same row, or `NONE`."""
        places = np.arange(len(values), dtype=np.int32)
        return self.add(np.where(values == NONE, 0, places - values), "back")

    def packed(self) -> str:
        """Afterwards nothing can be added."""
        return base64.b64encode(b"".join([*self._pieces, self._deflate.flush()])).decode()


def _narrowest(values: NDArray[Any]) -> str:
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    return next(kind for kind in ("i1", "i2", "i4") if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)


PanelKind = Literal["compute", "messages", "transfers", "beside", "memory"]
Data = dict[str, Any]

BUSY = -2
"""The cause of a busy cell; `NONE` is the cause of an idle cell if causes were not requested."""

_MEMORY_PX = 170
_OVERLAID = ((-0.215, 0.2), (0.215, 0.2))  # (offset from the row's middle, half height): measured above projected


@dataclass(frozen=True)
class Picture:
    """Content of the page: `data` for JSON, and the arrays that it refers to.

    `drawn` has the arrays for drawing, `told` the arrays for hover texts.
    """

    data: Data
    drawn: PackedNumbers
    told: PackedNumbers


def picture_of(
    views: Sequence[TimelineView], *, memory_limit_bytes: float | None = None, errors: ActionErrors | None = None
) -> Picture:
    """If `errors` is given, the two views share a panel, in which each rank has two rows of cells."""
    timelines, titles = [view.timeline for view in views], [view.title for view in views]
    begin_s, end_s = min(view.begin_s for view in views), max(view.end_s for view in views)
    scale, tick_s = time_scale(end_s - begin_s), tick_of(end_s - begin_s)
    drawn, numbers = PackedNumbers(tick_s), PackedNumbers(tick_s)
    fills = fills_of(timelines)
    prefixes = panel_prefixes(timelines, titles)
    largest = max(float(timeline.memory.peak_bytes.max()) for timeline in timelines)
    draw = _Drawing(views, scale, fills, drawn)
    plans = range(len(views))
    panels = [draw.overlaid()] if errors else [draw.compute(plan) for plan in plans]
    panels += [panel for plan in plans if (panel := draw.messages(plan, prefixes[plan]))]
    panels += [draw.transfers(plan, prefixes[plan]) for plan in plans if has_transfers(timelines[plan])]
    panels += [panel for plan in plans if (panel := draw.beside(plan, prefixes[plan]))]
    panels += [
        draw.memory(plan, prefixes[plan], largest, memory_limit_bytes)
        for plan in plans
        if has_memory(timelines[plan])
    ]
    colours = fills.colours
    data = {
        "unit": scale.unit,
        "unitSeconds": scale.size,
        "decimals": scale.decimals,
        "tick": tick_s / scale.size,
        "range": [begin_s / scale.size, end_s / scale.size],
        "titles": [heading(timeline, title)[0] for timeline, title in zip(timelines, titles, strict=True)],
        "panels": panels,
        "plans": [_plan(timeline, drawn, numbers) for timeline in timelines],
        "errors": _errors(errors, numbers) if errors else None,
        "causes": [palette.CAUSE_TITLES[cause] for cause in CAUSES],
        "fills": {
            "colours": colours,
            "inks": [palette.text_on(colour) for colour in colours],
            "transfer": fills.transfer,
            "causes": fills.causes,
            "microbatches": [fills.microbatches, fills.errors - 1],
            "errors": [fills.errors, len(colours) - 1],
        },
    }
    return Picture(data, drawn, numbers)


def _plan(timeline: Timeline, drawn: PackedNumbers, numbers: PackedNumbers) -> Data:
    schedule, graph, memory = timeline.schedule, timeline.graph, timeline.memory
    needs = dependencies(schedule)
    columns = [column for column in (needs.own, needs.neighbour, needs.slice) if (column != NONE).any()]
    held = memory.during + timeline.costs.static_bytes[schedule.rank]
    return {
        "numActions": timeline.num_actions,
        "numMicrobatches": schedule.num_units,
        "numSlices": schedule.num_slices,
        "numRounds": schedule.num_rounds,
        "numStages": schedule.num_stages,
        "numModelStages": schedule.num_model_stages,
        "rankOffsets": schedule.rank_offsets.tolist(),
        "chunks": chunk_of_stage(schedule).tolist(),
        "op": drawn.add(schedule.op),
        "stage": drawn.add_rising(schedule.stage),
        "microbatch": drawn.add_rising(schedule.microbatch),
        "source": drawn.add_rising(graph.source),
        "target": drawn.add_rising(graph.target),
        "needs": [numbers.add_back(column) for column in columns],
        "blocker": numbers.add_back(timeline.blocker),
        "held": numbers.add(held.astype(np.float32)) if has_memory(timeline) else None,
    }


def _errors(errors: ActionErrors, numbers: PackedNumbers) -> Data:
    return {
        "limit": errors.limit,
        "ofAction": numbers.add(errors.of_action),
        "measured": numbers.add(errors.measured_s),
        "projected": numbers.add(errors.projected_s),
        "behind": numbers.add(errors.behind_s),
    }


@dataclass(frozen=True)
class _Drawing:
    """Draws the panels of each plan; a plan is an index into `views`."""

    views: Sequence[TimelineView]
    scale: AxisScale
    fills: ActionColours
    numbers: PackedNumbers

    def compute(self, plan: int) -> Data:
        timeline = self.views[plan].timeline
        lanes = compute_lanes(timeline, by_cause=True)
        return _panel_of_ranks(
            "compute", heading(timeline, self.views[plan].title), _row_px(timeline.schedule.num_ranks), timeline,
            rows=[self._row(plan, lane, lane.rank, HALF_HEIGHT) for lane in lanes],
            paths=[self._path(plan, PATH_OFFSET)],
            **self._cells(lanes),
        )  # fmt: skip

    def overlaid(self) -> Data:
        measured, projected = (view.timeline for view in self.views)
        above, below = (view.title for view in self.views)
        steps = (
            f"step {seconds(measured.step_time_s)} {above}, {seconds(projected.step_time_s)} {below} "
            f"({signed_percent(projected.step_time_s / measured.step_time_s - 1)})"
        )
        caption = measured.schedule.name or "table", f"in each row {above} above, {below} below · {steps}"
        rows, lanes = [], []
        for plan, (middle, half_height) in enumerate(_OVERLAID):
            of_plan = compute_lanes(self.views[plan].timeline, by_cause=True)
            rows += [self._row(plan, lane, lane.rank + middle, half_height) for lane in of_plan]
            lanes += of_plan
        # Each path runs along the bottom of its own half.
        paths = [self._path(plan, middle + 0.6 * half) for plan, (middle, half) in enumerate(_OVERLAID)]
        row_px = 1.6 * _row_px(measured.schedule.num_ranks)
        return _panel_of_ranks("compute", caption, row_px, measured, rows=rows, paths=paths, **self._cells(lanes))

    def transfers(self, plan: int, prefix: str) -> Data:
        timeline = self.views[plan].timeline
        placed = placed_transfer_lanes(timeline)
        thinnest = min(half_height for _, _, half_height in placed)
        row_px = min(max(100 / timeline.schedule.num_ranks, 6 * HALF_HEIGHT / thinnest, 5), 48)
        lanes = [lane for lane, _, _ in placed]
        under_way_s = float((timeline.end - timeline.start)[timeline.num_actions :].sum())
        share = percent(under_way_s / timeline.schedule.num_ranks / timeline.step_time_s)
        nodes = np.concatenate([lane.node[~lane.is_idle] for lane in lanes])
        caption = "", f"{prefix}transfers, by sending rank; a rank's are under way {share} of the step"
        return _panel_of_ranks(
            "transfers", caption, row_px, timeline,
            rows=[self._row(plan, lane, middle, half) for lane, middle, half in placed],
            nodes=self.numbers.add_rising(nodes),
            **self._cells(lanes),
        )  # fmt: skip

    def messages(self, plan: int, prefix: str) -> Data | None:
        pieces = [piece for piece in self.views[plan].pieces if piece.kind in palette.MESSAGES]
        exposed_s = sum(piece.end_s - piece.start_s for piece in pieces if piece.kind == "exposed")
        all_s = sum(piece.end_s - piece.start_s for piece in pieces)
        share = percent(exposed_s / all_s) if all_s else ""
        return self._pieces("messages", plan, f"{prefix}messages of experts, {share} exposed", pieces)

    def beside(self, plan: int, prefix: str) -> Data | None:
        """Collectives of data parallelism and the optimizer."""
        pieces = [piece for piece in self.views[plan].pieces if piece.kind not in palette.MESSAGES]
        caption = f"{prefix}beside the pipeline: collectives of data parallelism, optimizer"
        return self._pieces("beside", plan, caption, pieces)

    def _pieces(self, kind: PanelKind, plan: int, caption: str, pieces: Sequence[StepActivity]) -> Data | None:
        if not pieces:
            return None
        view = self.views[plan]
        num_ranks, kinds = view.timeline.schedule.num_ranks, list(palette.BESIDE_COLOURS)
        titles = {str(self.fills.beside + index): palette.BESIDE_TITLES[kind] for index, kind in enumerate(kinds)}
        origin = view.timeline.begin_s
        rows: list[Data] = []
        texts: dict[str, int] = {"": 0}
        all_edges, fill, told = [], [], []
        for rank in range(num_ranks):
            edges = [view.begin_s]
            of_rank = sorted((piece for piece in pieces if piece.rank == rank), key=lambda one: one.start_s)
            for piece in of_rank:
                begin, end = max(piece.start_s - origin, edges[-1]), max(piece.end_s - origin, edges[-1])
                if end == begin:
                    continue
                if begin > edges[-1]:
                    edges.append(begin)
                    fill.append(self.fills.transfer + 1)
                    told.append(0)
                edges.append(end)
                fill.append(self.fills.beside + kinds.index(piece.kind))
                text = piece.told or ("all stages of the rank" if piece.stage == NONE else f"stage {piece.stage}")
                told.append(texts.setdefault(text, len(texts)))
            rows.append(_row_of(plan, rank, rank, HALF_HEIGHT, len(edges) - 1))
            all_edges += edges
        return _panel_of_ranks(
            kind, ("", caption), min(max(100 / num_ranks, 5), 24), view.timeline,
            rows=rows,
            edges=self.numbers.add_times(np.array(all_edges)),
            fill=fill,
            told=told,
            texts=list(texts),
            titles=titles,
        )  # fmt: skip

    def memory(self, plan: int, prefix: str, largest: float, limit_bytes: float | None) -> Data:
        timeline = self.views[plan].timeline
        top = max(largest, limit_bytes or 0.0)
        unit, shown = bytes_scale(top), shown_ranks(timeline)
        lines = [
            {
                "rank": line.rank,
                "colour": palette.rank_colour(line.rank, timeline.schedule.num_ranks),
                "x": self.numbers.add_times(line.at_s),
                "y": self.numbers.add((line.held_bytes / unit.size).astype(np.float32)),
            }
            for line in memory_lines(timeline, shown)
        ]
        limit = None if limit_bytes is None else [limit_bytes / unit.size, f"limit {size(limit_bytes)}"]
        return {
            "kind": "memory", "plan": plan, "caption": ("", prefix + memory_caption(timeline)),
            "heightPx": _MEMORY_PX, "numRanks": 0, "top": 1.06 * top / unit.size, "unit": unit.unit,
            "rows": [], "lines": lines, "limit": limit,
        }  # fmt: skip

    def _row(self, plan: int, lane: Lane, middle: float, half_height: float) -> Data:
        busy = ~lane.is_idle
        typical = float(np.median(lane.durations_s[busy])) / self.scale.size if busy.any() else 0.0
        return _row_of(plan, lane.rank, middle, half_height, len(lane.node)) | {"typical": typical}

    def _cells(self, lanes: Sequence[Lane]) -> Data:
        causes = np.concatenate([np.where(lane.is_idle, lane.cause, np.int8(BUSY)) for lane in lanes])
        edges: Floats = np.concatenate([lane.edges for lane in lanes])
        return {"edges": self.numbers.add_times(edges), "causes": self.numbers.add(causes)}

    def _path(self, plan: int, offset: float) -> Data:
        timeline = self.views[plan].timeline
        rows = np.arange(timeline.schedule.num_ranks, dtype=np.float64)
        x, y = critical_line(timeline, y_of_rank=rows)
        rank = self.numbers.add_rising(y.astype(np.int32))
        return {"plan": plan, "offset": offset, "x": self.numbers.add_times(x), "rank": rank}


def _row_of(plan: int, rank: int, middle: float, half_height: float, num_cells: int) -> Data:
    return {"plan": plan, "rank": rank, "middle": middle, "half": half_height, "cells": num_cells}


def _panel_of_ranks(
    kind: PanelKind, caption: tuple[str, str], row_px: float, timeline: Timeline, **parts: Any
) -> Data:
    """The caption is (name, text after it)."""
    num_ranks = timeline.schedule.num_ranks
    return {"kind": kind, "caption": caption, "heightPx": row_px * num_ranks, "numRanks": num_ranks, **parts}


def _row_px(num_ranks: int) -> float:
    """Up to 128 ranks, labels are readable."""
    return min(max(300 / num_ranks, 11 if num_ranks <= 128 else 6), 34)
