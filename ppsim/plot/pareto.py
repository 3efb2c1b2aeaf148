"""A search as a page: iteration time over memory, and the best configurations, each with its command."""

import json
import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ppsim.base.units import count, percent, seconds, size
from ppsim.plot import palette
from ppsim.plot.page import filled
from ppsim.schedule.table import Op
from ppsim.tuning.command import command_of

if TYPE_CHECKING:
    from ppsim.tuning.search import Found, Tuned

_GIB = 2**30
_DOTS, _LINE = palette.COLOURS[Op.F], palette.COLOURS[Op.W]
_SIZES = ("tp", "cp", "ep", "dp", "pp", "vpp", "micro_batch")
_TEXTS, _LEFT = ("schedule", "with"), ' class="left"'


def pareto_html(tuned: "Tuned") -> str:
    """Return a self-contained page that makes no request; a point shows its configuration, clicked its command.

    Below the picture are the best configurations and the Pareto set, fastest first, each with its command.
    """
    counts = tuned.counts
    listed = sorted({*tuned.best, *tuned.pareto}, key=lambda one: (one.iteration_s, one.peak_bytes))
    sizes = [_short(name) for name in _SIZES]
    header = ["", "schedule", "with", *sizes, "iteration", "tokens/s", "MFU", "memory", "Pareto"]
    return filled(
        "pareto",
        title=escape(_title(tuned)),
        told=escape(
            f"{counts['configurations']} configurations, {counts['simulated']} simulated that fit "
            f"{size(tuned.question.memory_limit_bytes)} a GPU; costs estimated from specifications"
        ),
        header="".join(f"<th{_LEFT if name in _TEXTS else ''}>{name}</th>" for name in header),
        rows="\n".join(_row(tuned, place, one) for place, one in enumerate(listed, start=1)),
        figure=json.dumps(pareto_plotly(tuned)).replace("<", "\\u003c"),  # a model's name must not end the script
    )


def pareto_plotly(tuned: "Tuned") -> dict[str, Any]:
    """Return the figure of `pareto_html` as plain data."""
    limit = tuned.question.memory_limit_bytes / _GIB
    held = [limit, *(one.peak_bytes / _GIB for one in tuned.simulated)]
    margin = 0.05 * max(held)
    axis = {"gridcolor": palette.COLOURS[Op.IDLE], "zeroline": False, "ticks": "outside", "linecolor": palette.TEXT}
    steps = {
        "mode": "lines+markers", "line": {"shape": "hv", "color": _LINE}, "marker": {"symbol": "square", "size": 8},
        "name": "Pareto set",
    }  # fmt: skip
    others = {"mode": "markers", "marker": {"color": _DOTS, "opacity": 0.5, "size": 7}, "name": "simulated"}
    line = {
        "type": "line", "x0": limit, "x1": limit, "yref": "paper", "y0": 0, "y1": 1, "showlegend": True,
        "line": {"color": palette.CRITICAL_PATH, "dash": "dash"},
        "name": f"limit {size(tuned.question.memory_limit_bytes)}",
    }  # fmt: skip
    return {
        "data": [_trace(tuned, tuned.simulated) | others, _trace(tuned, tuned.pareto[::-1]) | steps],
        "layout": {
            "autosize": True,
            "margin": {"l": 70, "r": 30, "t": 40, "b": 55},
            "xaxis": {
                "title": {"text": "memory of the fullest rank (GiB)"},
                "range": [min(held) - margin, max(held) + margin],
                **axis,
            },
            "yaxis": {"title": {"text": "iteration (s)"}, **axis},
            "shapes": [line],
            "legend": {"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom"},
            "hovermode": "closest",
            "plot_bgcolor": "#FFFFFF",
            "paper_bgcolor": "#FFFFFF",
            "font": {"color": palette.TEXT, "size": 13},
            "hoverlabel": {"bgcolor": "#FFFFFF", "font": {"color": palette.TEXT}, "align": "left"},
        },
    }


def _title(tuned: "Tuned") -> str:
    question = tuned.question
    job = question.job
    return (
        f"{job.model_name} on {question.num_gpus} × {job.cluster.device.name}, {job.global_batch} sequences of "
        f"{job.length} tokens a step"
    )


def _trace(tuned: "Tuned", found: "Sequence[Found]") -> dict[str, Any]:
    return {
        "type": "scatter",
        "x": [one.peak_bytes / _GIB for one in found],
        "y": [one.iteration_s for one in found],
        "text": [_hover(tuned, one) for one in found],
        "customdata": [command_of(tuned, one) for one in found],
        "hoverinfo": "text",
    }


def _hover(tuned: "Tuned", one: "Found") -> str:
    candidate = one.candidate
    sizes = " · ".join(f"{_short(name)} {getattr(candidate, name)}" for name in _SIZES)
    return (
        f"<b>{candidate.schedule}</b>  {seconds(one.iteration_s)}<br>{sizes}<br>"
        f"recompute {candidate.recompute} · split {candidate.split}<br>"
        f"{count(tuned.tokens_per_s(one))} tokens/s · MFU {percent(tuned.utilization(one))} · "
        f"{size(one.peak_bytes)}"
    )


def _row(tuned: "Tuned", place: int, one: "Found") -> str:
    candidate = one.candidate
    also = [word for word in (candidate.recompute, candidate.split) if word not in ("none", "auto")]
    options = re.split(" (?=--)", command_of(tuned, one))
    left = [candidate.schedule, ", ".join(also)]
    right = [
        *(str(getattr(candidate, name)) for name in _SIZES), seconds(one.iteration_s),
        count(tuned.tokens_per_s(one)), percent(tuned.utilization(one)), size(one.peak_bytes),
    ]  # fmt: skip
    cells = [
        f"<td>{place}</td>",
        *(f"<td{_LEFT}>{escape(text)}</td>" for text in left),
        *(f"<td>{escape(text)}</td>" for text in right),
        f"<td>{'●' if one in tuned.pareto else ''}</td>",
    ]
    command = " ".join(f"<span>{escape(part)}</span>" for part in options)
    below = f"<td></td><td{_LEFT} colspan={len(cells) - 1}><code>{command}</code></td>"
    return f"<tbody><tr>{''.join(cells)}</tr><tr>{below}</tr></tbody>"


def _short(name: str) -> str:
    return "mb" if name == "micro_batch" else name
