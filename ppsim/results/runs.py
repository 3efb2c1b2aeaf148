"""Terminal output for measured runs: steps, comparisons with projections, explanations and calibrations."""

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from ppsim.base.units import percent, rate, seconds, signed_percent, size
from ppsim.results.steps import print_report, print_timeline
from ppsim.results.text_layout import SCREEN_LINES, WIDTH, Page, TableLines, bold, cut, facts, notable_items
from ppsim.runs import loss_report as words
from ppsim.runs.calibrate import FittedOverheads
from ppsim.runs.compare import Comparison
from ppsim.runs.peaks import PeakError
from ppsim.runs.traces import shortened


def print_measured(recording: Any, *, with_rows: bool = False, with_timeline: bool | None = None) -> None:
    """Print a `ppsim.MeasuredRun`."""
    run = recording.facts
    extra = [("run", _recorded(run)), ("order", run["schedule"]["sentence"])]
    if run.get("stages_by") == "rank":
        extra.append(("stages", _STAGES_BY_RANK))
    gaps = run.get("between_steps_s") or [0.0]
    if (between := sum(gaps) / len(gaps)) > _WORTH_SAYING * recording.timeline.step_time_s:
        period = seconds(recording.timeline.step_time_s + between)
        extra.append(("next step", f"starts {seconds(between)} after the last action (mean), so {period} per step"))
    if usual := _too_long(recording.timeline):
        extra.append(("units", f"the median action takes {seconds(usual)}: name columns in ms start_ms and end_ms"))
    if clocks := run.get("clocks"):
        aligned = f"{clocks['num_clocks']}, aligned by their messages to ± {seconds(clocks['uncertainty_s'])}"
        extra.append(("clocks", f"{aligned}; a P2P transfer takes at least {seconds(clocks['hop_s'])}"))
    if clocks and (drift := clocks.get("drift")):
        extra.append(("drift", f"{1e6 * drift:.3g} ppm between the fastest and the slowest clock, removed"))
    if reserved := run.get("reserved_bytes"):
        most, least = size(max(reserved)), size(min(reserved))
        extra.append(("memory", f"{most} reserved on the rank with most, {least} with least"))
    notes = ("not recorded", _not_recorded(run)), ("question", run.get("question"))
    extra += [(label, note) for label, note in notes if note]
    print_report(recording.report(), extra, with_rows=with_rows)
    if with_timeline:
        print_timeline(recording.timeline, is_wanted=True)


_STAGES_BY_RANK = "assumed: one per rank, in rank order; the names contain none (if several: --schedule T.csv)"
_LONG_S = 10.0
"""No real action takes longer."""


def _too_long(timeline: Any) -> float | None:
    """Return the median action time if its unit is probably not seconds."""
    passes = (timeline.end - timeline.start)[: timeline.num_actions]
    usual = float(sorted(passes)[len(passes) // 2])
    return usual if usual > _LONG_S else None


def _recorded(run: dict[str, Any]) -> str:
    times = sorted(run["step_times_s"])
    kind = run.get("kind") or "ppsim train"
    by = f" by {run['passes_by']}" if "passes_by" in run else ""
    spread = f"{seconds(times[0])} … {seconds(times[-1])}" if len(times) > 1 else seconds(times[0])
    steps = f"{len(times)} step{'s' * (len(times) > 1)}"
    return (
        f"{kind}{by}; {steps} after {run.get('num_warm_up', 0)} of warm-up took {spread}; the median one is shown"
    )


def _not_recorded(run: dict[str, Any]) -> str:
    """Return the quantities missing in a recording, with the consequence for the report."""
    missing = [f"rank {shortened(ranks)} of the job"] if (ranks := run.get("missing_ranks")) else []
    if not run.get("knows_transfers", True):
        missing.append("transfer times: the wait for a transfer counts as overhead of the action that needs it")
    if not run.get("reserved_bytes") and not run.get("memory"):
        missing.append("memory")
    if not run.get("between_steps_s"):
        missing.append("the time between steps")
    return "; ".join(missing)


_INDENT = 13


def print_explanation(explanation: Any, *, full: bool = False) -> None:
    """Print a `ppsim.Explanation`."""
    if full:
        _print_full_explanation(explanation)
        return
    lines = [*wrap(explanation.note, WIDTH), bold(words.title(explanation)), words.GAINS]
    if explanation.comparison:
        lines = [bold(words.whole_difference(explanation.comparison, explanation.step_s)), *lines]
        lines[1:1] = [cut(sentence, WIDTH) for sentence in words.lacks(explanation.comparison, explanation.step_s)]
    reasons = words.notable_losses(explanation)
    if not reasons:
        lines += words.reasons(explanation)
    for number, loss in enumerate(reasons, start=1):
        size_of_it = f"{seconds(loss.gain_s)} per step ({percent(loss.gain_s / explanation.period_s)})"
        said = [bold(f"{number}. {loss.cause}   {size_of_it}")]
        said += _labelled("evidence", loss.detail) + _labelled("remedy", words.remedy(loss, explanation))
        if len(lines) + len(said) < SCREEN_LINES:
            lines += said
    Page().add(*lines, "more: --full · -o explain.html", wraps=False)


def _labelled(label: str, text: str) -> list[str]:
    if not text:
        return []
    lines = wrap(text, WIDTH - _INDENT)
    shown = [*lines[:1], cut(" ".join(lines[1:]), WIDTH - _INDENT)] if len(lines) > 2 else lines
    return [f"   {'' if number else label:{_INDENT - 3}}{line}" for number, line in enumerate(shown)]


def _print_full_explanation(explanation: Any) -> None:
    out = Page()
    out.add(*wrap(explanation.note, WIDTH), bold(words.title(explanation)), words.GAINS)
    for number, sentence in enumerate(words.reasons(explanation), start=1):
        out.add(f"{number}. {sentence}")
    out.add("", TableLines.of(words.table_of(explanation), wraps=True))
    if late := words.faults(explanation):
        out.add("\nranks that others wait for", *late)
    if explanation.comparison:
        out.add("")
        _add_against(out, explanation.comparison, explanation.step_s)
    spread = "quartiles: of the time, over all steps. " if explanation.num_steps > 1 else ""
    out.add(
        "\ntime: time per step due to each cause. The simulator replays the steps and removes the causes in this "
        f"order; the times sum to the step. {spread}gain if removed: time saved if only this cause is removed. "
        "rest: error of the replay with all causes."
    )


def _add_against(out: Page, against: Any, measured_s: float) -> None:
    out.add(bold(words.whole_difference(against, measured_s)))
    if against.note:
        out.add(against.note)
    for number, sentence in enumerate(words.lacks(against, measured_s), start=1):
        out.add(f"{number}. {sentence}")
    rows = words.differences_of(against)
    out.add("", TableLines.of([{name: cell for name, cell in row.items() if name != "detail"} for row in rows]))


def print_totals(totals: Any) -> None:
    """Print a `ppsim.LogTotals`."""
    out = Page()
    times = sorted(totals.iterations_s)
    rows = [
        ("iteration", f"{seconds(totals.iteration_time_s)}, the median of {len(times)} logged after "
                      f"{totals.num_warm_up} of warm-up ({seconds(times[0])} … {seconds(times[-1])})"),
        *((name, size(value)) for name, value in totals.memory_bytes.items()),
        *([("restarts", f"{totals.num_restarts}: the iteration number goes back; only the last run is shown")]
          * bool(totals.num_restarts)),
        *([("garbled lines", f"{totals.num_garbled} skipped")] * bool(totals.num_garbled)),
        ("not recorded", "a timeline: a log has totals. To explain a step, record it with torch.profiler "
                         "(Megatron-LM: --use-pytorch-profiler --pytorch-profiler-collect-callstack) or nsys, or "
                         "write a CSV of passes (rank, kind, stage, microbatch, start, end)"),
    ]  # fmt: skip
    out.add(facts(rows))
    if totals.timers_s:
        timers = [
            {
                "timer": name,
                "least of the ranks": "not logged" if least is None else seconds(least),
                "most": seconds(most),
                "of the iteration": percent(most / totals.iteration_time_s),
            }
            for name, (least, most) in totals.timers_s.items()
        ]
        out.add("", TableLines.of(timers))


_BUSY = 0.1
"""Difference of the machine speed from which on the error at equal speed comes first."""
_WORTH_SAYING = 0.01
"""Share of a step; shorter waits are not mentioned."""


def print_comparison(comparison: Comparison, *, with_rows: bool = False) -> None:
    """Without `with_rows`, tables with more than `MOST_ROWS` rows are shortened."""
    out = Page()
    measured, projected = comparison.measured, comparison.projected
    steps = [
        ("step time", measured.step_time_s, projected.step_time_s, comparison.step_error),
        ("span", measured.span_s, projected.span_s, comparison.span_error),
        ("replay", measured.step_time_s, comparison.replay_s, comparison.replay_error),
    ]
    if comparison.pace is not None and comparison.error_at_pace is not None:
        at_pace = (comparison.pace * measured.step_time_s, projected.step_time_s, comparison.error_at_pace)
        steps.insert(0 if abs(comparison.pace - 1) > _BUSY else 1, ("at equal speed", *at_pace))
    if comparison.periods_s is not None:
        real, expected = comparison.periods_s
        steps.append(("step to next step", real, expected, expected / real - 1))
    for sentence in comparison.warnings:
        out.add(sentence, "")
    out.add(TableLines.of([{"": name} | _errors(*numbers) for name, *numbers in steps]))
    for sentence in comparison.told:
        out.add(sentence)
    num_stages, worst = measured.schedule.num_stages, comparison.worst_stage
    shown = set(range(num_stages) if with_rows else notable_items(num_stages, [worst]))
    rows = [
        {"action": op.op, "stage": str(op.stage)} | _errors(op.measured_s, op.projected_s, op.error)
        for op in comparison.ops
        if op.stage in shown
    ]
    out.add("", TableLines.of(rows))
    if len(shown) < num_stages:
        out.add(f"{len(shown)} of {num_stages} stages; stage {worst} has the largest error. --rows prints all")
    replayed = "times and host gaps of the actions"
    if (gap := comparison.replay_gap_s) is not None:
        replayed = f"action times, and {seconds(gap)} before each action (median gap; no transfer was recorded)"
    elif (hop := comparison.replay_hop_s or 0.0) >= _WORTH_SAYING * comparison.measured.step_time_s:
        replayed = f"times and host gaps of the actions, and {seconds(hop)} per P2P transfer (mean wait)"
    out.add(
        f"\nerror: projected / measured − 1; negative: the projection is too fast. replay: simulation with the "
        f"measured {replayed}; its error is not due to the costs."
    )
    if comparison.peaks:
        _add_peaks(out, comparison.peaks, with_all=with_rows)


def _errors(measured_s: float, projected_s: float, error: float) -> dict[str, str]:
    return {"measured": seconds(measured_s), "projected": seconds(projected_s), "error": signed_percent(error)}


_FITTED = {
    "action_overhead_s": "host time per action",
    "hop_overhead_s": "fixed overhead per P2P transfer",
    "overlap_slowdown": "compute slowdown during P2P",
    "step_overhead_s": "time between steps",
    "first_pass_s": "extra time, first action of a rank",
    "last_pass_s": "extra time, last action of stage 0",
}
_CALL = "time per blocking call"


def print_calibration(overheads: FittedOverheads) -> None:
    out = Page()
    rows = []
    for name, fit in overheads.fits.items():
        if fit is not None:
            written = signed_percent if name == "overlap_slowdown" else seconds
            low, high = map(written, fit.quartiles)
            spread = {"quartiles": f"{low} … {high}", "samples": str(fit.num_samples)}
            is_call = name == "hop_overhead_s" and overheads.communication != "overlap"
            off = {"±": written(fit.deviation).lstrip("+")}
            rows.append({"": _CALL if is_call else _FITTED[name], "fitted": written(fit.value), **off, **spread})
    out.add(TableLines.of(rows))
    for what, relative, deviation in (
        ("actions of a kind", overheads.spreads.action, overheads.spreads.action_deviation),
        ("ranks", overheads.spreads.rank, overheads.spreads.rank_deviation),
    ):
        known = "not measurable in this run" if relative is None else f"{percent(relative)} ± {percent(deviation)}"
        out.add(f"spread between {what}: {known}")
    for hop in overheads.hops:
        of = "of unknown size" if hop.message_bytes is None else f"of {size(hop.message_bytes)}"
        out.add(f"P2P transfer {of}: {seconds(hop.seconds.value)} ({hop.seconds.num_samples} samples)")
    if overheads.line:
        out.add(f"latency {seconds(overheads.line[0])}, bandwidth {rate(overheads.line[1])}")
    if overheads.not_fitted:
        out.add(
            facts(
                [("not measurable in this run", [f"{name}: {why}" for name, why in overheads.not_fitted.items()])]
            )
        )
    errors = [
        {
            "step time": residual.source,
            **_errors(residual.measured_step_s, residual.projected_step_s, residual.error),
        }
        | {"without overheads": signed_percent(residual.error_without)}
        for residual in overheads.residuals
    ]
    out.add("", TableLines.of(errors))
    for residual in overheads.residuals:
        out.add(
            *[f"{residual.source}: {residual.note}"] * bool(residual.note),
            *(f"slow link of {residual.source}, left out of the constants: {link}" for link in residual.slow_links),
        )
    out.add("errors: on the runs of the fit, so they do not test a projection")


def _add_peaks(out: Page, peaks: Sequence[PeakError], *, with_all: bool) -> None:
    worst = max(peaks, key=lambda peak: abs(peak.error)).rank
    shown = range(len(peaks)) if with_all else notable_items(len(peaks), [worst])
    header = ["rank", "measured peak", "at", "projected peak", "at", "error"]
    rows = [
        [
            str(peak.rank), size(peak.measured_bytes), peak.measured_at, size(peak.projected_bytes),
            peak.projected_at, signed_percent(peak.error),
        ]
        for peak in (peaks[rank] for rank in shown)
    ]  # fmt: skip
    out.add("", TableLines(header, rows))
    if len(shown) < len(peaks):
        out.add(f"{len(shown)} of {len(peaks)} ranks; rank {worst} has the largest error. --rows prints all")
