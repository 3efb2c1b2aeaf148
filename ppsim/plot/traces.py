"""Lines of a timeline as plotly traces, plain dictionaries: critical path, memory."""

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats
from ppsim.plot import palette
from ppsim.plot.lanes import PATH_OFFSET, critical_line, memory_lines, shown_ranks
from ppsim.plot.scale import Scale
from ppsim.simulation.timeline import Timeline

Trace = dict[str, Any]


def binary(values: NDArray[Any]) -> dict[str, Any]:
    """Return a row of numbers as plotly.js reads them fastest: base64 of their bytes, with their type."""
    return {"dtype": values.dtype.str[1:], "bdata": base64.b64encode(values.tobytes()).decode()}


def critical(timeline: Timeline, *, scale: Scale, row_px: float, offset: float = PATH_OFFSET) -> list[Trace]:
    """Return the line along the critical path with its casing below, `offset` from the middle of every row."""
    width = min(2.5, row_px / 7)
    rows = np.arange(timeline.schedule.num_ranks, dtype=np.float64) + offset
    x, y = critical_line(timeline, y_of_rank=rows)
    line = _line(x / scale.size, y) | {"meta": "critical path", "hoverinfo": "skip"}
    return [
        line | {"line": {"color": palette.CASING, "width": 2 * width}},
        line | {"line": {"color": palette.CRITICAL_PATH, "width": width}},
    ]


def _line(x: Floats, y: Floats) -> Trace:
    return {"type": "scatter", "mode": "lines", "x": binary(x), "y": binary(y.astype(np.float32))}


def memory(timeline: Timeline, *, scale: Scale, bytes_scale: Scale) -> list[Trace]:
    """Return one step line a shown rank."""
    num_ranks = timeline.schedule.num_ranks
    shown = shown_ranks(timeline)
    return [
        _line(line.at_s / scale.size, line.held_bytes / bytes_scale.size)
        | {
            "line": {"shape": "hv", "width": 1.5, "color": palette.rank_colour(line.rank, num_ranks)},
            "hovertemplate": f"rank {line.rank} holds %{{y:.2f}} {bytes_scale.unit}<br>"
                             f"from %{{x:.3f}} {scale.unit}<extra></extra>",
        }
        for line in memory_lines(timeline)
        if line.rank in shown
    ]  # fmt: skip
