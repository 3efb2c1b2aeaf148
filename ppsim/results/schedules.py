"""Terminal output for the catalogue of schedules and for schedule checks."""

from collections.abc import Sequence
from typing import Any

from ppsim.catalog.build import ScheduleEntry
from ppsim.results.text_layout import Page, TableLines, bold, facts, styled
from ppsim.schedule.check import CheckReport

_MOST_LINKS = 6
"""Longer circular waits are shortened."""


def print_catalog(entries: Sequence[ScheduleEntry]) -> None:
    out = Page()
    rows = [
        {
            "schedule": entry.name,
            "vpp": f"{'' if least == most else '≥ '}{least}",
            "placement": entry.placement,
            "backward": "I, W" if entry.splits_backward else "B",
            "what it is": entry.title,
        }
        for entry in entries
        for least, most in [entry.stages_per_rank]
    ]
    out.add(TableLines.of(rows, left=4, wraps=True))
    out.add("\nppsim schedules NAME prints constraints, closed forms and source of one.")


def print_entry(entry: ScheduleEntry, runtimes: Sequence[tuple[str, str]]) -> None:
    out = Page()
    out.add(f"{bold(entry.name)}   {entry.title}")
    out.add(facts([*entry.facts, *runtimes]))
    out.add(
        "\np ranks, v stages per rank, m microbatches, k slices. F, I, W: seconds per rank and microbatch (all "
        "stages of the rank, of one model replica). FB: seconds of a fused forward and backward. c: seconds per "
        "transfer."
    )
    if entry.bubble:
        out.add(
            "bubble: idle time of the rank that idles longest. If FB = F + I + W, a step takes "
            "m·(F + I + W) + bubble."
        )
    if entry.span_bubble:
        out.add(
            "bubble by span: idle time between a rank's own first start and last end, for the longest such span."
        )


def print_check(report: CheckReport, name: str = "the table") -> None:
    out = Page()
    for finding in report.findings:
        colour = 31 if finding.severity == "error" else 33
        first, *rest = finding.message.removeprefix(f"{finding.rule}: ").split("\n")
        out.add(f"{name}: {styled(finding.severity, colour)} ({finding.rule}): {_few_links(first)}")
        if rest:
            out.add(*rest, wraps=False)
    if report.errors:
        return
    out.add(f"{name}: complete, ordered, free of circular waits")
    outcomes: dict[str, dict[str, str]] = {}
    for verdict in report.verdicts:
        outcomes.setdefault(verdict.receives, {"receives": verdict.receives})[_way(verdict)] = verdict.outcome
    out.add(TableLines.of(list(outcomes.values())))
    shown: set[str] = set()
    for verdict in report.verdicts:
        first = verdict.reason.split("\n")[0]
        if first and first not in shown and len(shown) < 3:
            shown.add(first)
            out.add(f"{_way(verdict)}, receives {verdict.receives}: {_few_links(first)}")


def _few_links(sentence: str) -> str:
    links = sentence.split("; ")
    if len(links) <= _MOST_LINKS:
        return sentence
    return "; ".join([*links[:3], f"… {len(links) - 4} more, which --json has …", links[-1]])


def _way(verdict: Any) -> str:
    return "blocking" if verdict.communication == "blocking" else verdict.channel
