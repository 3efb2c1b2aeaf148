"""One interactive HTML file with timelines, which works offline."""

import base64
import json
import zlib
from collections.abc import Sequence
from html import escape
from typing import Any

from ppsim.base.units import signed_percent
from ppsim.plot import palette
from ppsim.plot.action_colours import fills_of
from ppsim.plot.html_sidebar import side_html, swatch, verdict_html
from ppsim.plot.page import timeline_page
from ppsim.plot.picture import ActionErrors, picture_of
from ppsim.plot.plot_model import Fact, TimelineView
from ppsim.plot.scale import heading
from ppsim.runs.compare import Comparison

_PANEL_TITLES = {
    "messages": "expert messages",
    "transfers": "transfers",
    "beside": "collectives",
    "memory": "memory",
}


def timeline_html(
    views: Sequence[TimelineView],
    *,
    memory_limit_bytes: float | None = None,
    comparison: Comparison | None = None,
    command: str = "",
    date: str = "",
) -> str:
    """If `comparison` is given, the two views are its measured and its projected timeline.

    Each rank's row then shows both, one above the other. The page makes no request.
    """
    errors = ActionErrors(comparison.measured, comparison.projected) if comparison else None
    picture = picture_of(views, memory_limit_bytes=memory_limit_bytes, errors=errors)
    names = [heading(view.timeline, view.title)[0] for view in views]
    subjects = dict.fromkeys(view.subject for view in views if view.subject)
    title = ": ".join(filter(None, [" / ".join(subjects), ", ".join(names)]))
    facts = [(name, text) for name, text in (("command", command), ("made", date)) if text]
    described = "; ".join(": ".join(heading(view.timeline, view.title)) for view in views)
    return timeline_page(
        title=escape(", ".join(filter(None, [title, date]))),
        verdicts=_verdicts(views),
        heading=escape(title),
        about=_about([*_abouts(views), *facts]),
        described=escape(f"timeline, {described}"),
        example=escape(str(views[0].timeline.schedule[-1])),
        colourings=_colourings(with_errors=errors is not None),
        panels=_panel_boxes({panel["kind"] for panel in picture.data["panels"]}),
        legends=_legends(views, picture.data, errors),
        side=side_html(views, comparison),
        error_key=" <kbd>E</kbd>" if errors else "",
        picture=_packed(picture.data),
        drawn=picture.drawn.packed(),
        told=picture.told.packed(),
    )


def _packed(data: Any) -> str:
    return base64.b64encode(zlib.compress(json.dumps(data, separators=(",", ":")).encode())).decode()


def _verdicts(views: Sequence[TimelineView]) -> str:
    return "".join(
        verdict_html(view.verdict, view.title if len(views) > 1 else "") for view in views if view.verdict
    )


def _abouts(views: Sequence[TimelineView]) -> list[Fact]:
    entries: dict[str, dict[str, None]] = {}
    for name, text in (fact for view in views for fact in view.about):
        entries.setdefault(name, {})[text] = None
    return [(name, " / ".join(texts)) for name, texts in entries.items()]


def _about(facts: Sequence[Fact]) -> str:
    entries = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in facts)
    return f"<dl id=about>{entries}</dl>" if entries else ""


def _colourings(*, with_errors: bool) -> str:
    keys = {"kind": "K", "microbatch": "M"} | ({"error": "E"} if with_errors else {})
    return "".join(
        _input("radio", "colour", name, name, f"Colour by {name} ({key})", is_checked=name == "kind")
        for name, key in keys.items()
    )


def _panel_boxes(kinds: set[str]) -> str:
    boxes = [
        _input("checkbox", "panel", kind, title, f"Show the panels of {title}")
        for kind, title in _PANEL_TITLES.items()
        if kind in kinds
    ]
    return f"<fieldset><legend>panels</legend>{''.join(boxes)}</fieldset>" if boxes else ""


def _input(kind: str, name: str, value: str, text: str, told: str, *, is_checked: bool = True) -> str:
    checked = " checked" if is_checked else ""
    return f"<label title='{told}'><input type='{kind}' name='{name}' value='{value}'{checked}>{text}</label>"


def _legends(views: Sequence[TimelineView], picture: dict[str, Any], errors: ActionErrors | None) -> str:
    timelines = [view.timeline for view in views]
    fills = fills_of(timelines)
    done = {piece.kind for view in views for piece in view.pieces if piece.end_s > piece.start_s}
    last = max(plan["numMicrobatches"] for plan in picture["plans"]) - 1
    beside = [
        _swatched([palette.BESIDE_COLOURS[one]], title)
        for one, title in palette.BESIDE_TITLES.items()
        if one in done
    ]
    causes = [_swatched([palette.CAUSE_COLOURS[one]], title) for one, title in palette.CAUSE_TITLES.items()]
    legends = [
        _legend("kind", [_swatched(colours, name) for name, colours in fills.swatches(timelines)]),
        _legend("microbatch", [f"microbatch 0 {_ramp(palette.MICROBATCHES)} {last}"]),
        _legend("cause", causes),
        _legend("always", [*beside, swatch("var(--path)", "line") + "critical path"]),
    ]
    if errors:
        low, high = signed_percent(-errors.limit), signed_percent(errors.limit)
        legend = f"projected too fast, {low} {_ramp(palette.ERRORS)} {high}, too slow; labels in %"
        legends.append(_legend("error", [legend]))
    return "".join(legends)


def _swatched(colours: Sequence[str], name: str) -> str:
    return "".join(swatch(colour, kind) for colour, kind in zip(colours, ("", "hatched"), strict=False)) + escape(
        name
    )


def _legend(kind: str, entries: Sequence[str]) -> str:
    return f"<ul class='legend {kind}'>" + "".join(f"<li>{entry}</li>" for entry in entries) + "</ul>"


def _ramp(colours: Sequence[str]) -> str:
    return f"<span class=ramp style='background:linear-gradient(90deg,{','.join(colours)})'></span>"
