"""How the answer of `ppsim project` reads: the answer first, then fit, where the time goes, and what to change."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ppsim.base.units import count, percent, seconds, signed_percent, size
from ppsim.printing.page import Columns, Page, add_list, facts
from ppsim.printing.steps import gap_of, print_assumptions, print_report, print_timeline

if TYPE_CHECKING:
    from ppsim.projection.projection import Answer, Fit, Projection, Projections

_MOST_SENSITIVE = 4
_LEAST_GAIN = 5e-5  # what rounds to 0.00 % is no gain


def print_answer(
    projection: "Projection", answer: "Answer", *, with_rows: bool = False, with_timeline: bool | None = None
) -> None:
    """Print a projection and its answer; `with_rows` and `with_timeline` as `ppsim.printing.steps` takes them."""
    low, high = answer.interval_s
    tokens = projection.tokens_per_s
    rows = [
        (
            "iteration",
            f"{seconds(projection.iteration_s)}; 90 % between {seconds(low)} and {seconds(high)}, {answer.sampled}",
        ),
        ("throughput", f"{count(tokens)} tokens/s, {count(tokens / projection.num_gpus)} tokens/s/GPU"
         + (f" on {projection.num_gpus} GPUs" if projection.num_gpus > 1 else "")),
    ]  # fmt: skip
    if projection.model_flops_utilization is not None and projection.peak_flops_per_s is not None:
        peak = f"{count(projection.peak_flops_per_s)}FLOP/s"
        rows.append(("MFU", f"{percent(projection.model_flops_utilization)} of {peak}"))
    if answer.days is not None:
        rows.append(("training", f"{answer.days:.1f} days"))
    of_device = projection.plan.job is not None and projection.plan.memory_limit_bytes is None
    rows.append(("fit", _fit(answer.fit, " (95 % of the device's)" if of_device else "")))
    print_report(projection.report, rows, with_rows=with_rows)
    print_timeline(projection.timeline, is_wanted=with_timeline)
    out = Page()
    out.add()
    whole = projection.iteration_s
    out.add(
        Columns(
            ["where an iteration goes", "time", "part"],
            [[name, seconds(value), percent(value / whole)] for name, value in answer.budget_s.items()],
        )
    )
    out.add()
    sensitive = [
        f"{name} {percent(value)}"
        for name, value in list(answer.sensitivities.items())[:_MOST_SENSITIVE]
        if value >= _LEAST_GAIN
    ]
    advice = [
        f"{one.change}: {signed_percent(one.gain)} throughput, iteration {seconds(one.projection.iteration_s)}"
        for one in answer.advice
    ]
    others = ", ".join(
        f"{channel} {'deadlock' if step is None else seconds(step)}"
        for channel, step in projection.other_channels.items()
    )
    first, *more = advice or [_no_advice(answer.fit)]
    out.add(
        facts(
            [
                ("bottleneck", answer.bottleneck),
                ("1 % faster gains", ", ".join(sensitive)),
                ("to change", first),
                *(("", one) for one in more),
                ("by channel", others),
            ]
        )
    )
    out.add()
    print_assumptions(out, projection.assumptions)


def _no_advice(fit: "Fit") -> str:
    if fit.margin_bytes is not None and fit.margin_bytes < 0:
        return "nothing near that was tried fits"
    return "nothing near that was tried gains half a percent"


def _fit(fit: "Fit", whose: str) -> str:
    fullest = f"rank {fit.rank} is the fullest with {size(fit.peak_bytes)}"
    if fit.limit_bytes is None or fit.margin_bytes is None:
        return f"{fullest} (--memory-limit says how much there is)"
    if fit.margin_bytes >= 0:
        return f"yes, {size(fit.margin_bytes)} of {size(fit.limit_bytes)} left{whose}: {fullest}"
    return f"no, {size(-fit.margin_bytes)} more than the {size(fit.limit_bytes)} there are{whose}: {fullest}"


def print_plans(comparison: "Projections", *, with_timeline: bool | None = None) -> None:
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
