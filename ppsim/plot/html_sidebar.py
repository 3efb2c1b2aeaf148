"""Tables next to the timeline, as HTML: time budget, idle causes, and one row per rank."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from ppsim.base.units import LEAST_SHOWN, percent, seconds, signed_percent, size
from ppsim.plot import palette
from ppsim.plot.lanes import has_memory
from ppsim.plot.plot_model import TimelineView
from ppsim.plot.scale import bubbles, heading
from ppsim.runs.compare import Comparison
from ppsim.simulation.idle_causes import CAUSES, idle_by_cause_s
from ppsim.simulation.timeline import Timeline
from ppsim.simulation.verdict import MemoryVerdict

_SHORT_CAUSES = {
    "warm_up": "warm",
    "cool_down": "cool",
    "waiting_compute": "wait",
    "exposed_communication": "comm",
    "overhead": "host",
}
assert list(_SHORT_CAUSES) == list(CAUSES)


def side_html(views: Sequence[TimelineView], comparison: Comparison | None = None) -> str:
    sections = [_errors(comparison)] if comparison else []
    return "".join(f"<section>{section}</section>" for section in [*sections, *map(_plan, views)])


def _plan(view: TimelineView) -> str:
    timeline = view.timeline
    facts = [
        ("step", seconds(timeline.step_time_s)),
        ("bubble", bubbles(timeline)),
        *view.facts,
    ]
    title = f"<h2>{escape(heading(timeline, view.title)[0])}</h2>"
    table = html_table([], [[escape(name), escape(text)] for name, text in facts], wide=1)
    budget = _budget(view.budget_title, view.time_breakdown_s) if view.time_breakdown_s else ""
    notes = "".join(_note(name, lines) for name, lines in view.notes.items() if lines)
    return title + table + budget + _idle(timeline) + notes + _ranks(timeline)


def _note(name: str, lines: Sequence[str]) -> str:
    items = []
    for line in lines:
        label, colon, text = line.partition(": ")
        items.append(f"<li><b>{escape(label)}</b>: {escape(text)}</li>" if colon else f"<li>{escape(line)}</li>")
    return f"<h3>{escape(name)}</h3><ul class=notes>{''.join(items)}</ul>"


def _budget(title: str, budget_s: Mapping[str, float]) -> str:
    total_s, most = sum(budget_s.values()), max(map(abs, budget_s.values()))
    rows = [
        [
            escape(name),
            _signed(seconds, value),
            _signed(percent, value / total_s) if total_s else "",
            _bar(abs(value) / most if most else 0.0, " class=gain" if value < 0 else ""),
        ]
        for name, value in budget_s.items()
    ]
    return f"<h3>{escape(title)}</h3>" + html_table([], rows, bar=3)


def _signed(shown: Callable[[float], str], value: float) -> str:
    """Use a typographic minus, which is as wide as a plus."""
    return shown(value) if value >= 0 else f"−{shown(-value)}"


def _idle(timeline: Timeline) -> str:
    """Idle time by cause, averaged over ranks."""
    idle, step = idle_by_cause_s(timeline), timeline.step_time_s
    shares = {cause: float(idle[cause].mean()) / step if step else 0.0 for cause in CAUSES}
    total = sum(shares.values())
    stack, rows = "", []
    for cause, share in shares.items():
        name, colour = palette.CAUSE_TITLES[cause], palette.CAUSE_COLOURS[cause]
        if share >= LEAST_SHOWN:
            rows.append([f"{swatch(colour)} {name}", seconds(share * step), percent(share)])
            stack += _bar(share / total, f" title='{name} {percent(share)}'", colour)
    if not rows:
        return ""
    title = f"Idle by cause, of the mean rank: {percent(timeline.bubble_ratio)} of the step"
    return f"<h3>{title}</h3><div class=stack>{stack}</div>" + html_table([], rows)


def _ranks(timeline: Timeline) -> str:
    idle, memory, step = idle_by_cause_s(timeline), timeline.memory, timeline.step_time_s
    num_ranks = timeline.schedule.num_ranks

    def part(value: float) -> str:
        return f"{100 * value / step:.1f}" if step else "0"

    rows = [
        {
            "rank": f"{swatch(_line_colour(rank, num_ranks))} {rank}",
            "busy": part(float(timeline.busy_s[rank])),
            **{short: part(float(idle[cause][rank])) for cause, short in _SHORT_CAUSES.items()},
        }
        for rank in range(num_ranks)
    ]
    if has_memory(timeline):
        for row, peak, at in zip(rows, memory.peak_bytes.tolist(), memory.peak_at.tolist(), strict=True):
            row |= {"peak": size(peak), "at": timeline.name_of(at)}
    note = "<p class=note>busy and idle causes in % of the step; the colour is that of the rank's memory</p>"
    return "<h3>Ranks</h3>" + html_table(list(rows[0]), [list(row.values()) for row in rows], kind="ranks") + note


def _line_colour(rank: int, num_ranks: int) -> str:
    return f"color-mix(in srgb, {palette.rank_colour(rank, num_ranks)} var(--strength), white)"


def _errors(comparison: Comparison) -> str:
    measured, projected = comparison.measured.step_time_s, comparison.projected.step_time_s
    at_pace = comparison.error_at_pace
    errors = [
        ("step", measured, projected, comparison.step_error),
        *([("at equal speed", projected / (1 + at_pace), projected, at_pace)] if at_pace is not None else ()),
        ("replay", measured, comparison.replay_s, comparison.replay_error),
        *((f"{op.op} of stage {op.stage}", op.measured_s, op.projected_s, op.error) for op in comparison.ops),
    ]
    rows = [
        [name, seconds(real), seconds(expected), signed_percent(error)] for name, real, expected, error in errors
    ]
    note = (
        "<p class=note>error: projected / measured − 1; negative: the projection is too fast. Times of actions are "
        "medians. replay: simulation with the measured times of the actions</p>"
    )
    paragraphs = "".join(f"<p>{escape(sentence)}</p>" for sentence in (*comparison.warnings, *comparison.told))
    table = html_table(["", "measured", "projected", "error"], rows)
    return f"<h2>Projected against measured</h2>{paragraphs}{table}{note}"


def verdict_html(verdict: MemoryVerdict, name: str = "") -> str:
    kind = "misfit" if verdict.fits is False else "tight" if verdict.is_tight or verdict.is_too_large else ""
    role = " role=alert" if kind == "misfit" else ""
    text = "; ".join([f"{name}: {verdict}" if name else str(verdict), *verdict.tight_notes])
    return f"<p class='verdict {kind}'{role}>{escape(text)}</p>"


def swatch(colour: str, kind: str = "") -> str:
    return f"<span class='swatch {kind}' style='background:{colour}'></span>"


def _bar(share: float, attributes: str = "", colour: str | None = None) -> str:
    fill = f";background:{colour}" if colour else ""
    return f"<i{attributes} style='width:{100 * share:.2f}%{fill}'></i>"


def html_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "", wide: int = -1, bar: int = -1
) -> str:
    """Cells are already HTML; column `wide` may wrap, column `bar` holds bars."""
    classes = {wide: " class=wide", bar: " class=bar"}
    head = "".join(f"<th scope=col>{name}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td{classes.get(index, '')}>{cell}</td>" for index, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f"<table class='{kind}'>{head}<tbody>{body}</tbody></table>"
