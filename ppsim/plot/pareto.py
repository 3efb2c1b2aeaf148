"""A search as a page: iteration time over memory, and the best configurations, each with its command."""

import html
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ppsim.plot import palette
from ppsim.projection.tuning.command import command_of
from ppsim.schedule.table import Op
from ppsim.units import count, percent, seconds, size

if TYPE_CHECKING:
    from ppsim.projection.tuning.search import Found, Tuned

_GIB = 2**30
_DOTS, _LINE = palette.COLOURS[Op.F], palette.COLOURS[Op.W]
_SIZES = ("tp", "cp", "ep", "dp", "pp", "vpp", "micro_batch")
_TEXTS, _LEFT = ("schedule", "with"), ' class="left"'
_STYLE = (
    """
body { margin: 0; color: TEXT; background: #fff; font: 14px/1.4 system-ui, -apple-system, "Segoe UI", sans-serif; }
.screen { height: 100vh; min-height: 26rem; display: flex; flex-direction: column; }
h1 { font-size: 1.2rem; margin: .8rem 1.2rem 0; }
p { margin: .2rem 1.2rem; color: QUIET; }
.plot { flex: 1; min-height: 0; order: 1; }
.plot > div { height: 100%; }
#command { margin: .2rem 1.2rem .8rem; min-height: 2.8em; order: 2; }
code { font: 11px/1.4 ui-monospace, "DejaVu Sans Mono", Menlo, monospace; user-select: all; }
code span { white-space: nowrap; }
table { border-collapse: collapse; margin: .4rem 1.2rem 1.6rem; }
th, td { padding: .1rem .6rem; text-align: right; white-space: nowrap; }
td[colspan] { white-space: normal; }
th { border-bottom: 1px solid TEXT; }
.left { text-align: left; }
tbody { border-bottom: 1px solid IDLE; break-inside: avoid; }
@media print {
  .screen { height: auto; }
  #command { display: none; }
  body { font-size: 10px; }
  code { font-size: 8px; }
  th, td { padding: .1rem .35rem; }
}
""".replace("TEXT", palette.TEXT)
    .replace("QUIET", palette.QUIET_TEXT)
    .replace("IDLE", palette.COLOURS[Op.IDLE])
)
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body>
<div class="screen">
<h1>{title}</h1>
<p>{told}</p>
<div id="command">Click a point for the command that projects it in full; the best are listed below.</div>
<div class="plot">{plot}</div>
</div>
<table>
<thead><tr>{header}</tr></thead>
{rows}
</table>
</body>
</html>
"""
_SCRIPT = """
const plot = document.getElementById("{plot_id}");
// A page is not laid out anew for the printer: what is drawn for a window would be cut off.
addEventListener("beforeprint", () => Plotly.relayout(plot, {autosize: false, width: 680, height: 440}));
addEventListener("afterprint", () => Plotly.relayout(plot, {autosize: true, width: null, height: null}));
plot.on("plotly_click", (event) => {
  const point = event.points.find((one) => one.customdata);
  if (!point) return;
  const command = document.createElement("code");
  point.customdata.split(/ (?=--)/).forEach((part, index) => {
    const option = document.createElement("span");  // a line ends between options only
    option.textContent = part;
    command.append(index ? " " : "", option);
  });
  document.getElementById("command").replaceChildren(command);
});
"""


def pareto_html(tuned: "Tuned") -> str:
    """Return a self-contained page that makes no request; a point shows its configuration, clicked its command.

    Below the picture are the best configurations and the Pareto set, fastest first, each with its command.
    """
    import plotly.io

    counts = tuned.counts
    listed = sorted({*tuned.best, *tuned.pareto}, key=lambda one: (one.iteration_s, one.peak_bytes))
    sizes = [_short(name) for name in _SIZES]
    header = ["", "schedule", "with", *sizes, "iteration", "tokens/s", "MFU", "memory", "Pareto"]
    plot = plotly.io.to_html(
        pareto_plotly(tuned), full_html=False, include_plotlyjs=True, validate=False, div_id="pareto",
        default_height="100%", post_script=_SCRIPT,
        config={"displaylogo": False, "showSendToCloud": False, "responsive": True},
    )  # fmt: skip
    return _PAGE.format(
        title=html.escape(_title(tuned)),
        style=_STYLE,
        told=html.escape(
            f"{counts['configurations']} configurations, {counts['simulated']} simulated that fit "
            f"{size(tuned.question.memory_limit_bytes)} a GPU; costs estimated from specifications"
        ),
        plot=plot,
        header="".join(f"<th{_LEFT if name in _TEXTS else ''}>{name}</th>" for name in header),
        rows="\n".join(_row(tuned, place, one) for place, one in enumerate(listed, start=1)),
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
        *(f"<td{_LEFT}>{html.escape(text)}</td>" for text in left),
        *(f"<td>{html.escape(text)}</td>" for text in right),
        f"<td>{'●' if one in tuned.pareto else ''}</td>",
    ]
    command = " ".join(f"<span>{html.escape(part)}</span>" for part in options)
    below = f"<td></td><td{_LEFT} colspan={len(cells) - 1}><code>{command}</code></td>"
    return f"<tbody><tr>{''.join(cells)}</tr><tr>{below}</tr></tbody>"


def _short(name: str) -> str:
    return "mb" if name == "micro_batch" else name
