"""Content of the page: figures as plain plotly data, cards and tables as HTML."""

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import Any

import numpy as np

from ppsim.app.projector import ProjectorResult
from ppsim.app.state import PageState
from ppsim.base.units import count, percent, seconds, signed_percent, size
from ppsim.plot.action_colours import fills_of
from ppsim.plot.html_sidebar import html_table, verdict_html
from ppsim.plot.palette import CAUSE_COLOURS, CAUSE_TITLES, CRITICAL_PATH, TITLES
from ppsim.plot.pareto_page import SearchView, in_columns
from ppsim.plot.plotly_figures import (
    DARK,
    LIGHT,
    DrawingOptions,
    Theme,
    TradeoffPoint,
    idle_plotly,
    timeline_plotly,
    tradeoff_plotly,
)
from ppsim.projection.projection import Projection
from ppsim.schedule.table import Op
from ppsim.simulation.report import gap_of

Data = dict[str, Any]

MOST_TEXTS = 12_000
"""Maximum number of actions with full hover texts, which take most of the time and bytes."""


def theme_of(*, dark: bool) -> Theme:
    return DARK if dark else LIGHT


def timelines(answer: ProjectorResult, *, quick: bool, theme: Theme) -> Data:
    """With `quick`, while a slider moves, cells have short texts, and there is no critical path."""
    state, shown = answer.state, list(answer.projections.values())
    few = sum(one.timeline.num_actions for one in shown) <= MOST_TEXTS
    limits = {one.plan.memory_bound_bytes for one in shown}
    look = DrawingOptions(
        colour="cause" if state.view("colour") == "cause" else "kind",
        with_texts=few and not quick,
        with_critical_path=state.view("path") == "1" and not quick,
        with_memory=state.view("panel") == "memory",
        memory_limit_bytes=limits.pop() if len(limits) == 1 else None,
        theme=theme,
    )
    return timeline_plotly([one.timeline for one in shown], titles=list(answer.projections), look=look)


def idle_figure(answer: ProjectorResult, *, theme: Theme) -> Data:
    return idle_plotly(
        [projection.timeline for projection in answer.projections.values()],
        titles=list(answer.projections),
        theme=theme,
    )


def tradeoff_picture(answer: ProjectorResult, spots: Sequence[TradeoffPoint], *, theme: Theme) -> Data:
    """Only compared schedules have names and lower bounds."""
    points = [
        replace(spot, kind="compared") if spot.name in answer.projections else replace(spot, bound_s=None)
        for spot in spots
    ]
    return tradeoff_plotly(points, memory_limit_bytes=answer.plan.memory_bound_bytes, theme=theme)


def times_of_stages(answer: ProjectorResult) -> dict[str, list[float]]:
    """Return the costs per stage of the baseline in ms and GiB, by the option that sets them."""
    base = answer.baseline
    if base is None:
        return {}
    schedule = base.timeline.schedule
    stages = schedule.num_model_stages
    costs = base.stage_cost_set.costs.resolved_for(schedule)
    hops = np.broadcast_to(np.asarray(base.stage_cost_set.costs.transfer_s, dtype=np.float64), (stages,))
    times = {
        "forward_ms": 1e3 * costs.values("forward_s")[:stages],
        "backward_input_ms": 1e3 * costs.values("backward_input_s")[:stages],
        "backward_weight_ms": 1e3 * costs.values("backward_weight_s")[:stages],
        "transfer_ms": 1e3 * hops,
        "activation_memory": costs.values("activation_bytes")[:stages] / 2**30,
    }
    return {name: [float(f"{value:.4g}") for value in _of_microbatches(values)] for name, values in times.items()}


def _of_microbatches(values: Any) -> Any:
    """Costs that differ by microbatch become their mean."""
    return np.mean(values, axis=1) if np.ndim(values) == 2 else values


def times_of_rank(answer: ProjectorResult) -> dict[str, str]:
    """Return the costs of the average rank of the baseline, by the option that sets them."""
    base, of_stages = answer.baseline, times_of_stages(answer)
    if base is None:
        return {}
    num_ranks = base.timeline.schedule.num_ranks
    times = {name: sum(values) / num_ranks for name, values in of_stages.items()}
    hops = of_stages["transfer_ms"][:-1]
    return {
        name: f"{value:.4g}" for name, value in (times | {"transfer_ms": sum(hops) / max(1, len(hops))}).items()
    }


def cards_html(answer: ProjectorResult) -> str:
    base, cards = answer.baseline, []
    for name in answer.state.schedules:
        if one := answer.projections.get(name):
            cards.append(_card(answer, name, one, base if base is not None else one))
            continue
        waits = name in answer.awaited
        note = "its table is being fitted to these costs …" if waits else answer.rejected.get(name, "")
        cards.append(
            f"<article class='card {'waits' if waits else 'refused'}' data-schedule='{escape(name)}'>"
            f"<h2>{escape(name)}</h2><p>{escape(note)}</p></article>"
        )
    return "".join(cards)


def _card(answer: ProjectorResult, name: str, projection: Projection, base: Projection) -> str:
    tokens = base.tokens_per_s
    numbers = [
        ("step", projection.iteration_time_s, base.iteration_time_s, seconds, -1),
        *([("tokens/s", projection.tokens_per_s, tokens, count, 1)] if projection.tokens_per_s and tokens else []),
        ("bubble", projection.timeline.bubble_ratio, base.timeline.bubble_ratio, percent, -1),
        *([("peak", _peak(projection), _peak(base), size, -1)] if projection.plan.knows_memory else []),
    ]  # fmt: skip
    is_base = projection is base
    rows = ""
    for title, value, other, shown, better in numbers:
        change = "<dd></dd>" if is_base else _change(value, other, better)
        rows += f"<div><dt>{title}</dt><dd>{escape(shown(value))}</dd>{change}</div>"
    pinned = "true" if is_base else "false"
    notes = [projection.runtime_error] if projection.runtime_error else []
    if name in answer.substitutes:
        notes.insert(0, "drawn with a table fitted to other costs; its own is being searched for …")
    paragraphs = "".join(f"<p class=note>{escape(note)}</p>" for note in notes)
    role = "baseline" if is_base else "pin"
    pin = (
        f"<button type=button class=pin data-pin='{escape(name)}' aria-pressed={pinned} "
        f"aria-label='{role}: {escape(name)}'>{role}</button>"
    )
    return (
        f"<article class='card{' base' if is_base else ''}' data-schedule='{escape(name)}'><h2>{escape(name)}"
        f" <small>v {projection.plan.vpp}</small></h2>{pin}{_verdict(projection)}"
        f"<dl>{rows}</dl>{paragraphs}</article>"
    )


def _verdict(projection: Projection) -> str:
    return verdict_html(projection.verdict) if projection.verdict else ""


def _change(value: float, other: float, better: int) -> str:
    if other <= 0:
        return "<dd></dd>"
    change = value / other - 1
    kind = "same" if abs(change) < 5e-5 else "better" if change * better > 0 else "worse"
    return f"<dd class=change-{kind}>{signed_percent(change).replace('-', '−')}</dd>"


def _peak(projection: Projection) -> float:
    return float(projection.timeline.memory.peak_bytes.max())


def table_html(spots: Sequence[TradeoffPoint], compared: Sequence[str]) -> str:
    best = min((spot.iteration_time_s for spot in spots if not spot.told), default=None)
    rows = []
    for spot in sorted(spots, key=lambda one: (not one.fits, one.is_tight, bool(one.told), one.iteration_time_s)):
        is_in = spot.name in compared
        button = (
            f"<button type=button class=toggle data-toggle='{escape(spot.name)}' aria-pressed={str(is_in).lower()}>"
            f"{'compared' if is_in else 'compare'}</button>"
        )
        above = percent(gap_of(spot.iteration_time_s, spot.bound_s)) if spot.bound_s else ""
        behind = "" if best is None else signed_percent(spot.iteration_time_s / best - 1)
        peak = size(spot.peak_bytes)
        notes = "; ".join(filter(None, ["fits tightly" if spot.is_tight else "", spot.told]))
        rows.append([escape(spot.name), seconds(spot.iteration_time_s), behind, above, peak, button, escape(notes)])
    return html_table(_COLUMNS, rows)


_COLUMNS = ("schedule", "step", "vs best", "above bound", "peak", "compared", "why not")


_EXPORTED = (
    "schedule", "vpp", "step_time_s", "iteration_time_s", "tokens_per_s", "bubble_ratio", "peak_bytes", "reason",
)  # fmt: skip


def table_csv(answer: ProjectorResult) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_EXPORTED)
    for name in answer.state.schedules:
        if one := answer.projections.get(name):
            step, why = one.timeline, one.memory_error or one.runtime_error or ""
            peak = _peak(one) if one.plan.knows_memory else None
            numbers = [step.step_time_s, one.iteration_time_s, one.tokens_per_s, step.bubble_ratio, peak]
            writer.writerow([name, one.plan.vpp, *numbers, why])
        else:
            writer.writerow([name, *[""] * 6, answer.rejected.get(name, "")])
    return text.getvalue()


def search_table_html(view: SearchView) -> str:
    if not view.best:
        return ""
    show = "<button type=button class=open data-command='{}'>show</button>"
    rows = [
        [show.format(escape(row["command"], quote=True)), *map(escape, in_columns(row).values())]
        for row in view.best
    ]
    return html_table(["timeline", *map(escape, in_columns(view.best[0]))], rows)


def configuration(state: PageState, answer: ProjectorResult, *, theme: Theme) -> tuple[Data, str]:
    one = answer.baseline
    if one is None:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in answer.rejected.items())
        return {"data": [], "layout": {}}, f"<p>{escape(reasons or 'its table is being fitted …')}</p>"
    look = DrawingOptions(with_texts=one.timeline.num_actions <= MOST_TEXTS, with_memory=True, theme=theme)
    facts = " · ".join(
        [
            f"step {seconds(one.iteration_time_s)}",
            *([] if one.tokens_per_s is None else [f"{count(one.tokens_per_s)} tokens/s"]),
            *([f"peak {size(_peak(one))}"] if one.plan.knows_memory else []),
        ]
    )
    details = f"{_verdict(one)}<p>{escape(facts)}</p><p><code>{escape(state.command)}</code></p>"
    link = f"<p><a href='?{escape(state.query, quote=True)}'>Go on from here: sliders and other schedules</a></p>"
    return timeline_plotly([one.timeline], titles=[one.plan.schedule_name], look=look), details + link


def page_texts(answer: ProjectorResult, *, theme: Theme) -> Data:
    return {
        "cards": cards_html(answer),
        "command": answer.state.command,
        "times": times_of_rank(answer),
        "stages": times_of_stages(answer),
        "awaited": sorted(answer.awaited | answer.substitutes),
        "legend": _legend(answer, theme),
    }


def _legend(answer: ProjectorResult, theme: Theme) -> list[tuple[str, str]]:
    timelines = [projection.timeline for projection in answer.projections.values()]
    if not timelines:
        return []
    entries = [entry for entry in fills_of(timelines).legend(timelines) if entry[0] != TITLES[Op.SEND_F]]
    if answer.state.view("colour") == "cause":
        entries = [*entries[:-1], *((title, CAUSE_COLOURS[cause]) for cause, title in CAUSE_TITLES.items())]
    entries = [(title, theme.idle if title == TITLES[Op.IDLE] else colour) for title, colour in entries]
    path = [("critical path", CRITICAL_PATH)] if answer.state.view("path") == "1" else []
    return [*entries, *path]
