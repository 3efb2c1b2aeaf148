"""Page of a search: iteration time over memory, and the best configurations with their commands."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ppsim.base.units import count, percent, seconds, size
from ppsim.plot import palette
from ppsim.plot.page import pareto_page
from ppsim.plot.plotly_figures import DARK, LIGHT, Data, Theme, layout_with, limit_line
from ppsim.schedule.table import Op
from ppsim.trainers.write_schedule import RUNS_IN

Row = Mapping[str, Any]
"""A parallel configuration: sizes, schedule, split, recomputation, seconds, bytes, tokens/s, MFU and command."""

_GIB = 2**30
_SIZES = {name: name for name in ("tp", "cp", "ep", "dp", "pp", "vpp")} | {"micro-batch": "micro_batch"}
ZERO = "ZeRO"
WITH, _USUAL = "with", ("none", "auto", "")
TEXTS, _LEFT = ("schedule", RUNS_IN, WITH), ' class="left"'


@dataclass(frozen=True)
class SearchView:
    """Content of a search's page; the best and the Pareto set are sorted, `when_tight` explains "fits tightly"."""

    title: str
    num_configurations: int
    memory_limit_bytes: float
    simulated: Sequence[Row]
    best: Sequence[Row]
    pareto: Sequence[Row]
    when_tight: str = ""


def pareto_html(search: SearchView, *, command: str = "", date: str = "") -> str:
    """A click on a point or a table row copies its command. The page makes no request."""
    unique = {row["command"]: row for row in (*search.best, *search.pareto)}.values()
    listed = sorted(unique, key=_place)
    has_tight = any(row["verdict"] == "fits tightly" for row in listed)
    tight = f"; ~ fits tightly: {search.when_tight}" if has_tight else ""
    header = ["#", *in_columns(listed[0]), "Pareto"]
    return pareto_page(
        title=escape(", ".join(filter(None, [search.title, date]))),
        heading=escape(search.title),
        told=escape(
            f"{search.num_configurations} configurations, {len(search.simulated)} simulated that fit "
            f"{size(search.memory_limit_bytes)} a GPU; costs estimated from specifications{tight}"
        ),
        made=" ".join(
            filter(None, [date and f"made {date}", command and f"by <code>{_by_option(command)}</code>"])
        ),
        header="".join(f"<th{_LEFT if name in TEXTS else ''}>{name}</th>" for name in header),
        rows="\n".join(_listed(search, number, row) for number, row in enumerate(listed, start=1)),
        figure=json.dumps(_in_themes(search)).replace("<", "\\u003c"),  # "</script>" in a name
    )


def _place(row: Row) -> tuple[Any, ...]:
    return row["elsewhere"], row["verdict"] != "fits", row["iteration_time_s"], row["peak_bytes"]


def _in_themes(search: SearchView) -> Data:
    light, dark = (pareto_plotly(search, theme=theme) for theme in (LIGHT, DARK))
    return {"data": light["data"], "light": light["layout"], "dark": dark["layout"]}


def pareto_plotly(search: SearchView, *, theme: Theme = LIGHT) -> Data:
    limit = search.memory_limit_bytes / _GIB
    held = [limit, *(row["peak_bytes"] / _GIB for row in search.simulated)]
    margin = 0.05 * max(held)
    layout = layout_with(theme, "peak memory per GPU (GiB)", "iteration (s)")
    steps = {
        "mode": "lines+markers", "line": {"shape": "hv"}, "marker": {"symbol": "square", "size": 8},
        "name": "Pareto set",
    }  # fmt: skip
    others = {"mode": "markers", "marker": {"opacity": 0.5, "size": 7}, "name": "simulated"}
    line = limit_line(limit, theme) | {"name": f"limit {size(search.memory_limit_bytes)}", "showlegend": True}
    return {
        "data": [_trace(search.simulated) | others, _trace(search.pareto[::-1]) | steps],
        "layout": layout | {
            "autosize": True,
            "colorway": [theme.strong, palette.COLOURS[Op.W]],
            "margin": {"l": 70, "r": 30, "t": 40, "b": 55},
            "xaxis": layout["xaxis"] | {"range": [min(held) - margin, max(held) + margin]},
            "shapes": [line],
        },
    }  # fmt: skip


def _trace(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "x": [row["peak_bytes"] / _GIB for row in rows],
        "y": [row["iteration_time_s"] for row in rows],
        "text": [_hover(row) for row in rows],
        "customdata": [row["command"] for row in rows],
        "hoverinfo": "text",
    }


def _hover(row: Row) -> str:
    sizes = " · ".join(f"{short} {row[name]}" for short, name in _SIZES.items())
    return (
        f"<b>{row['schedule']}</b>  {seconds(row['iteration_time_s'])}<br>{sizes}<br>"
        f"recompute {row['recompute']} · split {row['split']} · ZeRO {row['zero']}<br>"
        f"{count(row['tokens_per_s'])} tokens/s · MFU {percent(row['model_flops_utilization'])} · "
        f"{size(row['peak_bytes'])}"
    )


def in_columns(row: Row) -> dict[str, str]:
    """Split, recomputation and further options appear only if not the default."""
    return {
        "schedule": row["schedule"],
        RUNS_IN: row["runs_in"],
        WITH: "plan of each stage"
        if row["recompute"] == "auto"
        else ", ".join(text for text in (row["recompute"], row["split"], row["switched"]) if text not in _USUAL),
        **{short: str(row[name]) for short, name in _SIZES.items()},
        ZERO: str(row["zero"]),
        "iteration": seconds(row["iteration_time_s"]),
        "tokens/s": count(row["tokens_per_s"]),
        "MFU": percent(row["model_flops_utilization"]),
        "memory": size(row["peak_bytes"]) + "~" * (row["verdict"] == "fits tightly"),
    }


def _listed(search: SearchView, number: int, row: Row) -> str:
    cells = [
        f"<td>{number}</td>",
        *(f"<td{_LEFT if name in TEXTS else ''}>{escape(text)}</td>" for name, text in in_columns(row).items()),
        f"<td>{'●' if row in search.pareto else ''}</td>",
    ]
    return f"<tr data-command='{escape(row['command'])}' tabindex=0>{''.join(cells)}</tr>"


def _by_option(command: str) -> str:
    return " ".join(f"<span>{escape(part)}</span>" for part in re.split(" (?=--)", command))
