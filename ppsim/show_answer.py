"""How the answer of `ppsim project` reads: the answer first, then fit, where the time goes, and what to change."""

from typing import TYPE_CHECKING

from ppsim.show import print_assumptions, print_report, print_timeline
from ppsim.show_page import Columns, Page, facts
from ppsim.units import count, percent, seconds, signed_percent, size

if TYPE_CHECKING:
    from ppsim.projection.answer import Answer, Fit
    from ppsim.projection.project import Projection

_MOST_SENSITIVE = 4
_LEAST_GAIN = 5e-5  # what rounds to 0.00 % is no gain


def print_answer(
    projection: "Projection", answer: "Answer", *, with_rows: bool = False, with_timeline: bool | None = None
) -> None:
    """Print a projection and its answer; `with_rows` and `with_timeline` as `ppsim.show` takes them."""
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
