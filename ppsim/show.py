"""What a terminal shows: tables that fit 100 columns, coloured on a terminal and plain in a pipe."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ppsim.show_page import Columns, Page, facts, some_of
from ppsim.units import count, percent, seconds, signed_percent, size

if TYPE_CHECKING:
    from ppsim.projection.project import Comparison as PlanComparison
    from ppsim.projection.project import Projection
    from ppsim.schedule.catalog import Entry
    from ppsim.schedule.check import CheckReport
    from ppsim.show_timeline import Drawing
    from ppsim.simulation.timeline import Timeline

_NOTABLE = {"computes longest": "busy_s", "idles longest": "idle_s", "is the fullest": "peak_bytes"}

_MOST_LINKS = 6
"""Waits of a circle that are told in full."""

_MOST_LINES = 48
"""Lines with ranks of a timeline in characters that is asked for, before it is drawn coarser instead."""


def print_report(report: dict[str, Any], extra: Sequence[tuple[str, str]] = (), *, with_rows: bool = False) -> None:
    """Print a simulated or measured step: the answer, then where each rank's time and memory go.

    `with_rows` prints every rank; without, of more than `MOST_ROWS` only some.
    """
    out = Page()
    head = f"{report['schedule'] or 'table'}   pp {report['pp']}   vpp {report['vpp']}   "
    out.add(f"[bold]{head}{report['microbatches']} microbatches[/bold]")
    out.add(
        facts(
            [
                ("step time", f"{seconds(report['step_time_s'])} (bubble {percent(report['bubble_ratio'])})"),
                *_iteration(report),
                (
                    "span",
                    f"{seconds(report['span_s'])} (bubble {percent(report['span_bubble_ratio'])}), "
                    "if no rank's optimizer waits for another",
                ),
                *extra,
                ("lower bound", _bounds(report)),
                ("critical path", _shortened(report["critical_path"])),
            ]
        )
    )
    out.add()
    _add_ranks(out, report["ranks"], with_all=with_rows)


def _add_ranks(out: Page, ranks: Sequence[dict[str, Any]], *, with_all: bool) -> None:
    """Print a row a rank; of many, the ends, the extremes and some between, unless all are asked for."""
    titles = {"exposed_communication": "comm", "waiting_compute": "waiting"}
    causes = [
        cause for cause in ranks[0]["idle_by_cause_s"]
        if cause != "overhead" or any(rank["idle_by_cause_s"][cause] for rank in ranks)
    ]  # fmt: skip
    notable = {word: max(range(len(ranks)), key=lambda rank: ranks[rank][key]) for word, key in _NOTABLE.items()}
    shown = range(len(ranks)) if with_all else some_of(len(ranks), notable.values())
    rows = [
        [
            str(ranks[index]["rank"]),
            seconds(ranks[index]["busy_s"]),
            seconds(ranks[index]["idle_s"]),
            *(seconds(ranks[index]["idle_by_cause_s"][cause]) for cause in causes),
            size(ranks[index]["peak_bytes"]) if ranks[index]["peak_bytes"] else "–",
            ranks[index]["peak_at"],
        ]
        for index in shown
    ]
    names = [titles.get(cause, cause.replace("_", "-")) for cause in causes]
    out.add(Columns(["rank", "busy", "idle", *names, "peak", "at"], rows))
    if len(shown) < len(ranks):
        said = ", ".join(f"rank {rank} {word}" for word, rank in notable.items())
        out.add(f"{len(shown)} of {len(ranks)} ranks: {said}. --rows prints all")


def print_timeline(timeline: "Timeline", *, is_wanted: bool | None) -> None:
    """Print a step in characters; where nobody said whether it is wanted, if a few lines suffice to read it."""
    from ppsim.show_timeline import drawing_of, lines_of, readable_drawing

    if is_wanted is False:
        return
    out = Page()
    if is_wanted:
        drawing: Drawing | None = drawing_of(timeline, width=out.width, most_lines=_MOST_LINES)
    else:
        drawing = readable_drawing(timeline, width=out.width)
    if drawing is not None:
        out.add()
        for line in lines_of(drawing, out.width):
            out.add(line)


def _iteration(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The time from one step to the next, where something is known of what lies between."""
    if not report["step_overhead_s"]:
        return []
    between = seconds(report["step_overhead_s"])
    return [("iteration", f"{seconds(report['iteration_time_s'])}, with {between} between two steps")]


def gap_of(value: float, bound: float) -> float:
    """Return how far a time is above its bound, as a part of it; sums of floats may meet it from below."""
    return max(value / bound - 1, 0.0) if bound > 0 else 0.0


def _bounds(report: dict[str, Any]) -> str:
    step, span = report["lower_bound_s"], report["span_lower_bound_s"]
    limit = report["memory_limit_bytes"]
    within = "" if limit is None else f" within {size(limit)}"
    return (
        f"{seconds(step)} for any schedule on this placement{within} "
        f"(gap {percent(gap_of(report['step_time_s'], step))}); "
        f"by span {seconds(span)} (gap {percent(gap_of(report['span_s'], span))})"
    )


def _shortened(path: Sequence[str]) -> str:
    shown = list(path) if len(path) <= 9 else [*path[:4], "…", *path[-4:]]
    return " → ".join(shown) + (f" ({len(path)} actions)" if len(path) > 9 else "")


def print_assumptions(out: Page, lines: Sequence[str]) -> None:
    """Print what a projection assumed."""
    add_list(out, "assumed", lines)


def print_run(report: dict[str, Any], run: dict[str, Any], *, with_rows: bool = False) -> None:
    """Print what a training run did: its steps and losses, then the median step as any other."""
    steps = ", ".join(seconds(step) for step in run["step_times_s"])
    kind = "emulated" if run["emulated"] else "trained"
    extra = [
        (
            "run",
            f"{kind} on {run['device']} with torch {run['torch']}; steps took {steps}; the median one is shown",
        ),
    ]
    if not run["emulated"]:
        extra.append(("loss", " → ".join(f"{loss:.3f}" for loss in run["losses"])))
    if run["differences"]:
        found = run["differences"]
        extra.append(
            (
                "against one process",
                f"loss {found['loss']:.1e}, gradients of {found['num_parameters']} parameters at most "
                f"{found['gradient']:.1e} apart (relative)",
            )
        )
    if run["memory"]:
        extra.append(("peak activations", _measured_peaks(run["memory"])))
    print_report(report, extra, with_rows=with_rows)


def _measured_peaks(memory: dict[str, Any]) -> str:
    peaks = ", ".join(
        f"rank {peak['rank']} {size(peak['peak_activation_bytes'])} at {peak['peak_at']}"
        + (f" ({size(allocated)} allocated)" if (allocated := peak["peak_allocated_bytes"]) is not None else "")
        for peak in memory["ranks"]
    )
    whole = memory["device_peak_bytes"]
    return f"measured: {peaks}" + (f"; {size(whole)} allocated on the whole device" if whole is not None else "")


def print_measurements(profile: dict[str, Any]) -> None:
    """Print a measured profile, a table a shape; of a backward that cannot be split, I and W are dashes.

    With a peak, the table has the MFU of each pass, and a line below it says of what.
    """
    from ppsim.costs.shapes import in_words
    from ppsim.costs.utilization import peak_of, utilization

    out = Page()
    by_shape: dict[str, list[dict[str, Any]]] = {}
    peaks: dict[str, tuple[float, str]] = {}
    for part in profile["measurements"]:
        by_shape.setdefault(in_words(part["shape"]), []).append(part)
    for index, (shape, parts) in enumerate(by_shape.items()):
        if len(by_shape) > 1:
            out.add(f"\n{shape}" if index else shape)
        names = ["component", "F", "B", "I", "W", "(I+W)/B", "activation", "kept for W"]
        rows = [_measured_row(part) for part in parts]
        if peak := peak_of(profile, parts[0]["shape"]["dtype"]):
            peaks[parts[0]["shape"]["dtype"]] = peak
            names.append("MFU F B I W, %")
            rows = [[*row, _in_percent(utilization(profile, part))] for row, part in zip(rows, parts, strict=True)]
        out.add(Columns(names, rows, spare=["kept for W", "(I+W)/B"]))
    for shape in profile["does_not_fit"]:
        out.add(f"\n{in_words(shape)}: does not fit")
    for failure in profile["failed"]:
        out.add(f"\n{in_words(failure['shape'])}: {failure['error']}")
    for dtype, (best, what) in peaks.items():
        out.add(f"\nMFU, {dtype}: of {count(best)}FLOP/s, {what}; of attention the causal half is counted")


def _in_percent(mfu: dict[str, float | None]) -> str:
    return " ".join("–" if part is None else f"{100 * part:.0f}" for part in mfu.values())


def _measured_row(part: dict[str, Any]) -> list[str]:
    names = ("forward", "backward", "backward_input", "backward_weight")
    forward, whole, *halves = (part[f"{name}_s"] for name in names)
    is_split = None not in (whole, *halves) and whole["median"]
    ratio = f"{sum(half['median'] for half in halves) / whole['median']:.2f}" if is_split else "–"
    times = ["–" if time is None else seconds(time["median"]) for time in (forward, whole, *halves)]
    kept = size(part["activation_bytes_kept_for_weight"])
    return [part["component"], *times, ratio, size(part["activation_bytes"]), kept]


def print_plans(comparison: "PlanComparison", *, with_timeline: bool | None = None) -> None:
    """Print every schedule that is possible, best first, why the others are not, and the best one's timeline."""
    out = Page()
    if comparison.projections:
        fastest = comparison.projections[0].iteration_s
        has_steps = any(one.iteration_s != one.timeline.step_time_s for one in comparison.projections)
        rows = [
            [
                projection.plan.schedule_name + _marks(projection),
                str(projection.plan.vpp),
                seconds(projection.iteration_s),
                signed_percent(projection.iteration_s / fastest - 1),
                count(projection.tokens_per_s),
                *([seconds(projection.timeline.step_time_s)] if has_steps else []),
                percent(gap_of(projection.timeline.step_time_s, projection.report["lower_bound_s"])),
                percent(projection.timeline.bubble_ratio),
                percent(projection.timeline.span_bubble_ratio),
                size(float(projection.timeline.memory.peak_bytes.max())),
                str(int(projection.timeline.memory.peak_bytes.argmax())),
            ]
            for projection in comparison.projections
        ]
        names = [
            "schedule", "vpp", "iteration", "vs best", "tokens/s", *(["step time"] if has_steps else []),
            "gap", "bubble", "span bubble", "peak", "rank",
        ]  # fmt: skip
        out.add(Columns(names, rows, spare=["rank", "span bubble", "gap", "step time", "vpp", "bubble"]))
        for line in _of_marks(comparison.projections):
            out.add(line)
    if comparison.reasons:
        out.add()
        add_list(out, "not possible", _by_reason(comparison.reasons))
    if comparison.projections:
        name = comparison.projections[0].plan.schedule_name
        out.add()
        add_list(out, f"assumed for {name}", comparison.projections[0].assumptions)
        if with_timeline:
            out.add(f"\n[bold]{name}[/bold]")
            print_timeline(comparison.projections[0].timeline, is_wanted=True)


def _marks(projection: "Projection") -> str:
    return ("*" if projection.not_in_runtime else "") + ("!" if projection.not_in_memory else "")


def _of_marks(projections: Sequence["Projection"]) -> list[str]:
    """What the marks behind names say; a schedule with one comes behind all without."""
    plan, lines = projections[0].plan, []
    if any(one.not_in_runtime for one in projections):
        says_why = "ppsim schedules NAME says why."
        lines.append(f"* {plan.runtime} cannot run this table; its network is assumed. {says_why}")
    if any(one.not_in_memory for one in projections):
        whose = "" if plan.memory_limit_bytes else " (95 % of its device)"
        lines.append(f"! more than the {size(plan.memory_bound_bytes or 0.0)} that a rank may take{whose}.")
    return lines


def _by_reason(reasons: dict[str, str]) -> list[str]:
    """One line a reason, with the schedules that share it."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason.removeprefix(f"{name} "), []).append(name)
    return [f"{', '.join(of)}: {reason}" for reason, of in names.items()]


def add_list(out: Page, title: str, lines: Sequence[str]) -> None:
    """Print lines beside a title."""
    out.add(facts([(title if index == 0 else "", line) for index, line in enumerate(lines)]))


def print_catalog(entries: Sequence["Entry"]) -> None:
    """Print one line a schedule."""
    out = Page()
    rows = []
    for entry in entries:
        least, most = entry.stages_per_rank
        stages = str(least) if least == most else f"≥ {least}"
        rows.append([entry.name, stages, entry.placement, "I, W" if entry.splits_backward else "B", entry.title])
    out.add(Columns(["schedule", "vpp", "placement", "backward", "what it is"], rows, left=4, wraps=True))
    out.add("\nppsim schedules NAME prints constraints, closed forms and source of one.")


def print_entry(entry: "Entry", runtimes: Sequence[tuple[str, str]]) -> None:
    """Print one schedule in full, with what is known of the runtimes that take it."""
    out = Page()
    out.add(f"[bold]{entry.name}[/bold]   {entry.title}")
    out.add(facts([*entry.facts, *runtimes]))
    out.add(
        "\np ranks, v stages a rank, m microbatches, k slices; F, I, W seconds a rank and microbatch (all its "
        "stages of a replica), FB of a fused pair, c seconds a transfer.\nbubble: idle seconds of the rank that "
        "idles longest, in a step of m·(F + I + W) + bubble where FB = F + I + W; by span: of the longest rank "
        "from its own first start to its own last end.",
    )


def print_check(report: "CheckReport", name: str) -> None:
    """Print what a check found, and the channels and receives under which the table runs."""
    from rich.text import Text

    out = Page()
    for finding in report.findings:
        style = "red" if finding.severity == "error" else "yellow"
        first, *rest = finding.message.removeprefix(f"{finding.rule}: ").split("\n")
        out.add(Text.assemble(f"{name}: ", (finding.severity, style), f" ({finding.rule}): {_few_links(first)}"))
        for line in rest:
            out.add(Text(line, no_wrap=True))
    if report.errors:
        return
    out.add(f"{name}: complete, ordered, free of circular waits")
    receives = list(dict.fromkeys(verdict.receives for verdict in report.verdicts))
    columns = list(dict.fromkeys(_way(verdict) for verdict in report.verdicts))
    outcome = {(verdict.receives, _way(verdict)): verdict.outcome for verdict in report.verdicts}
    out.add(
        Columns(
            ["receives", *columns],
            [[place, *(outcome[place, column] for column in columns)] for place in receives],
        )
    )
    shown: set[str] = set()
    for verdict in report.verdicts:
        first = verdict.reason.split("\n")[0]
        if first and first not in shown and len(shown) < 3:
            shown.add(first)
            out.add(f"{_way(verdict)}, receives {verdict.receives}: {_few_links(first)}", markup=False)


def _few_links(sentence: str) -> str:
    """A circle of waits, without most of its links where it goes through many ranks."""
    links = sentence.split("; ")
    if len(links) <= _MOST_LINKS:
        return sentence
    return "; ".join([*links[:3], f"… {len(links) - 4} more, which --json has …", links[-1]])


def _way(verdict: Any) -> str:
    return "blocking" if verdict.communication == "blocking" else verdict.channel
