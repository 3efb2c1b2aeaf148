"""Terminal output for simulated, measured and training steps."""

from collections.abc import Sequence
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.units import percent, seconds, size
from ppsim.results.text_layout import Page, TableLines, bold, facts, notable_items
from ppsim.results.text_timeline import TextTimeline, drawing_of, lines_of, readable_drawing
from ppsim.schedule.rounds import microbatches_in_words
from ppsim.simulation.bounds.problem import is_within
from ppsim.simulation.report import gap_of, report_of
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.timeline import Timeline

_NOTABLE = {"computes longest": "busy_s", "idles longest": "idle_s", "has the highest peak": "peak_bytes"}


_MOST_LINES = 48
"""Maximum number of rank lines of a requested drawing; with more, the drawing becomes coarse."""


def print_simulated(
    timeline: Timeline,
    *,
    costs: StageCosts | None = None,
    report: dict[str, Any] | None = None,
    with_rows: bool = False,
    with_timeline: bool | None = None,
) -> None:
    """If `report` is None, it is computed at the given `costs`."""
    if report is None:
        if costs is None:
            raise ConfigError("the report of a timeline has bounds at its costs: give them as costs=")
        report = report_of(timeline, costs)
    print_report(report, with_rows=with_rows)
    print_timeline(timeline, is_wanted=with_timeline)


def print_report(report: dict[str, Any], extra: Sequence[tuple[str, str]] = (), *, with_rows: bool = False) -> None:
    """Print a simulated or measured step; `extra` has additional lines as (label, text).

    Without `with_rows`, tables with more than `MOST_ROWS` rows are shortened.
    """
    out = Page()
    head = f"{report['schedule'] or 'table'}   pp {report['pp']}   vpp {report['vpp']}   "
    batch = microbatches_in_words(report["microbatches"], report.get("gradient_accumulation_steps", 1))
    out.add(bold(f"{head}{batch}"))
    rows = [
        ("step time", f"{seconds(report['step_time_s'])} (bubble {percent(report['bubble_ratio'])})"),
        *_iteration(report),
        *_span(report),
        *extra,
        ("lower bound", _bounds(report)),
        ("critical path", _shortened(report["critical_path"])),
    ]
    out.add(facts(rows), "")
    _add_ranks(out, report["ranks"], with_all=with_rows)


def _add_ranks(out: Page, ranks: Sequence[dict[str, Any]], *, with_all: bool) -> None:
    """Of many ranks, print the first, the last, the extremes and some in between."""
    causes = [
        cause for cause in ranks[0]["idle_by_cause_s"]
        if cause != "overhead" or any(rank["idle_by_cause_s"][cause] for rank in ranks)
    ]  # fmt: skip
    names = {cause: cause.replace("_", "-") for cause in causes}
    names |= {"exposed_communication": "comm", "waiting_compute": "waiting"}
    notable = {word: max(range(len(ranks)), key=lambda rank: ranks[rank][key]) for word, key in _NOTABLE.items()}
    shown = range(len(ranks)) if with_all else notable_items(len(ranks), notable.values())
    rows = [
        {
            "rank": str(rank["rank"]),
            "busy": seconds(rank["busy_s"]),
            "idle": seconds(rank["idle_s"]),
            **{names[cause]: seconds(rank["idle_by_cause_s"][cause]) for cause in causes},
            "peak": size(rank["peak_bytes"]) if rank["peak_bytes"] else "–",
            "at": rank["peak_at"],
        }
        for rank in (ranks[index] for index in shown)
    ]
    out.add(TableLines.of(rows))
    if len(shown) < len(ranks):
        said = ", ".join(f"rank {rank} {word}" for word, rank in notable.items())
        out.add(f"{len(shown)} of {len(ranks)} ranks: {said}. --rows prints all")


def print_timeline(timeline: Timeline, *, is_wanted: bool | None) -> None:
    """If `is_wanted` is None, draw the step only if a few lines suffice to read it."""
    if is_wanted is False:
        return
    out = Page()
    if is_wanted:
        drawing: TextTimeline | None = drawing_of(timeline, width=out.width, most_lines=_MOST_LINES)
    else:
        drawing = readable_drawing(timeline, width=out.width)
    if drawing is not None:
        out.add("", *lines_of(drawing, out.width))


def _iteration(report: dict[str, Any]) -> list[tuple[str, str]]:
    if not report["step_overhead_s"]:
        return []
    between = seconds(report["step_overhead_s"])
    return [("iteration", f"{seconds(report['iteration_time_s'])}, with {between} between steps")]


def _span(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The result is empty if the span equals the step time."""
    if _is_step(report):
        return []
    span = f"{seconds(report['span_s'])} (bubble {percent(report['span_bubble_ratio'])})"
    return [("per-rank span", f"{span}: step time if the optimizer does not synchronise ranks")]


def _is_step(report: dict[str, Any]) -> bool:
    return bool(report["span_s"] >= (1 - _VISIBLE) * report["step_time_s"])


_ROUNDING, _VISIBLE = 1e-9, 1e-3


def _bounds(report: dict[str, Any]) -> str:
    step, span = report["lower_bound_s"], report["span_lower_bound_s"]
    limit = report["memory_limit_bytes"]
    is_kept = limit is not None and is_within(max(rank["peak_bytes"] for rank in report["ranks"]), limit)
    within = f" within {size(limit)}" if is_kept else ""
    above = f"{percent(gap_of(report['step_time_s'], step))} above it"
    if (
        step > (1 + _ROUNDING) * report["step_time_s"]
    ):  # measured steps only, because their bound uses the medians over all steps
        above = "by the median passes of all steps: those of this one are faster"
    bound = f"{seconds(step)} for any schedule on this placement{within} ({above})"
    if _is_step(report):
        return bound
    return f"{bound}; per-rank span {seconds(span)} ({percent(gap_of(report['span_s'], span))} above it)"


def _shortened(path: Sequence[str]) -> str:
    shown = list(path) if len(path) <= 9 else [*path[:4], "…", *path[-4:]]
    return " → ".join(shown) + (f" ({len(path)} actions)" if len(path) > 9 else "")


def print_trained(trained: Any, *, with_rows: bool = False, with_timeline: bool | None = None) -> None:
    """Print a `ppsim.TrainResult`."""
    print_run(trained.report(), trained.facts, with_rows=with_rows)
    print_timeline(trained.timeline, is_wanted=with_timeline)


def print_run(report: dict[str, Any], run: dict[str, Any], *, with_rows: bool = False) -> None:
    steps = ", ".join(seconds(step) for step in run["step_times_s"])
    kind = "emulated" if run["emulated"] else "trained"
    told = f"{kind} on {run['device']} with torch {run['torch']}; steps took {steps}; the median one is shown"
    extra = [("run", told)]
    if not run["emulated"]:
        extra.append(("loss", " → ".join(f"{loss:.3f}" for loss in run["losses"])))
    if found := run["differences"]:
        gradients = f"gradients of {found['num_parameters']} parameters at most {found['gradient']:.1e} apart"
        extra.append(("against one process", f"loss {found['loss']:.1e}, {gradients} (relative)"))
    if run["memory"]:
        extra.append(("peak activations", _measured_peaks(run["memory"])))
    print_report(report, extra, with_rows=with_rows)


def _measured_peaks(memory: dict[str, Any]) -> str:
    peaks = ", ".join(
        f"rank {peak['rank']} {size(peak['peak_activation_bytes'])} at {peak['peak_at']}"
        + (f" ({size(allocated)} allocated)" if (allocated := peak["peak_allocated_bytes"]) is not None else "")
        for peak in memory["ranks"]
    )
    return f"measured: {peaks}"
