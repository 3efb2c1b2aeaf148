"""Output of `ppsim project`: memory verdict, iteration time, time budget, and advice."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ppsim.base.units import count, percent, seconds, signed_percent, size
from ppsim.catalog.build import find
from ppsim.costs.profile import DEFAULT, load_profile
from ppsim.model.recompute import is_by_stage
from ppsim.projection.projection import Projection, Projections, ProjectionSummary
from ppsim.results.first_screen import first_screen, times_by_stack
from ppsim.results.steps import print_report, print_timeline
from ppsim.results.text_layout import Page, TableLines, bold, facts, verdict_line
from ppsim.simulation.report import gap_of

if TYPE_CHECKING:
    from ppsim.costs.job import Job

_MOST_SENSITIVE = 4
_LEAST_PART = 1e-3  # × iteration: smaller parts are not in the table
_LEAST_GAIN = 5e-5  # smaller gains would print as 0.00 %


def print_answer(
    projection: Projection,
    answer: ProjectionSummary | None = None,
    *,
    full: bool = False,
    with_rows: bool = False,
    with_timeline: bool | None = None,
) -> None:
    """Print the first screen of a projection or, with `full` or `with_rows`, all tables."""
    answer = answer or projection.summary
    if full or with_rows:
        _print_full(projection, answer, with_rows=with_rows, with_timeline=with_timeline)
        return
    first_screen(projection, answer)
    if with_timeline:
        print_timeline(projection.timeline, is_wanted=True)


def _print_full(
    projection: Projection, answer: ProjectionSummary, *, with_rows: bool, with_timeline: bool | None
) -> None:
    Page().add(*verdict_line(projection.verdict), projection_heading(projection))
    print_report(projection.report, _delivered(projection, answer), with_rows=with_rows)
    if stages := _stages(projection):
        Page().add("", stages)
    print_timeline(projection.timeline, is_wanted=with_timeline)
    out = Page()
    whole = projection.iteration_time_s
    budget = [
        {"where an iteration goes": name, "time": seconds(value), "part": percent(value / whole)}
        for name, value in answer.time_breakdown_s.items()
        if value >= _LEAST_PART * whole
    ]
    out.add("", TableLines.of(budget), "")
    sensitive = [
        f"{name} {percent(value)}"
        for name, value in list(answer.gain_per_percent.items())[:_MOST_SENSITIVE]
        if value >= _LEAST_GAIN
    ]
    longest = max((len(one.change) for one in answer.advice), default=0)
    advice = [f"{one.change:{longest}}   {one.effect}" for one in answer.advice]
    others = [
        f"{channel} {'deadlock' if step is None else seconds(step)}"
        for channel, step in projection.step_time_by_channel_s.items()
    ]
    if projection.costs.communication != "overlap":
        others.append(f"this run's blocking calls {seconds(projection.timeline.step_time_s)}")
    rows = [
        ("bottleneck", answer.bottleneck),
        ("gain if 1 % faster", ", ".join(sensitive)),
        ("try next", advice or [projection.summary_without_advice]),
        ("P2P serialization", ", ".join(others)),
    ]
    out.add(facts(rows), "", facts([("assumed", projection.assumptions)]))


def _stages(projection: Projection) -> TableLines | None:
    job = projection.plan.job
    if job is None or not (job.stage_plans or is_by_stage(job.execution.recompute)):
        return None
    rows = [
        {
            "stage": f"{row['stage']}",
            "recompute": row["recompute"],
            "offload": row["offload_modules"] or "none",
            "rank": f"{row['rank']}",
            "layers": f"{row['layers']}",
            "F": seconds(row["forward_s"]),
            "B": seconds(row["backward_s"]),
            "activations": size(row["activation_bytes"]),
            "limited by": row["limited_by"],
        }
        for row in projection.stages
    ]
    if not any(row["offload_modules"] for row in projection.stages):
        rows = [{name: value for name, value in row.items() if name != "offload"} for row in rows]
    return TableLines.of(rows, left=len(rows[0]) - 6)


def projection_heading(projection: Projection) -> str:
    plan, devices = projection.plan, projection.num_gpus
    if plan.job is not None:
        job, parameters = plan.job, count(plan.job.model.parameters).replace("G", "B")
        return (
            f"{job.model_name} ({parameters}) on {devices} × {job.cluster.device.name} "
            f"({job.cluster.name}), {job.global_batch} sequences of {job.length} tokens per step"
        )
    if not plan.has_model:
        return f"{plan.source.name}, {plan.pp} rank{'s' * (plan.pp > 1)}; --model for throughput, MFU and memory"
    profile = plan.profile or load_profile(DEFAULT)
    layers = projection.stage_cost_set.split
    some = "" if sum(layers) == profile.model.num_layers else f"{sum(layers)} layers of "
    on = f"{some}{profile.model.name} on {devices} × {profile.provenance.device.name}"
    if profile.name != DEFAULT:
        return f"{on}: profile {profile.name}"
    return f"{on}: packaged profile; --model/--cluster or --profile for yours"


def _delivered(projection: Projection, answer: ProjectionSummary) -> list[tuple[str, str]]:
    low, high = map(seconds, answer.iteration_time_interval_s)
    tokens, num_gpus, plan = projection.tokens_per_s, projection.num_gpus, projection.plan
    verdict = projection.verdict
    on = f" on {num_gpus} GPUs" if num_gpus > 1 else ""
    rows = [
        *_stack(plan.job, answer),
        (
            "iteration",
            f"{seconds(projection.iteration_time_s)}; 90 % interval {low} to {high} ({answer.interval_basis})",
        ),
    ]
    if tokens is not None:
        rows.append(("throughput", f"{count(tokens)} tokens/s, {count(tokens / num_gpus)} tokens/s per GPU{on}"))
    if projection.model_flops_utilization is not None and projection.peak_flops_per_s is not None:
        peak = f"{count(projection.peak_flops_per_s)}FLOP/s"
        rows.append(("MFU", f"{percent(projection.model_flops_utilization)} of {peak}"))
    if answer.training_days is not None:
        rows.append(("training", f"{answer.training_days:.1f} days"))
    rows += [("note", note) for note in (verdict.notes if verdict else ())]
    return [*rows, *(("memory", text) for text in _components(projection.peak_components_bytes or {}))]


def _stack(job: "Job | None", answer: ProjectionSummary) -> list[tuple[str, str]]:
    if job is None:
        return []
    basis = f" ({job.stack_basis})" if job.stack_basis else ""
    rows = [("assumed", f"stack {job.stack_description}{basis}")]
    return [*rows, ("by stack", times_by_stack(answer))] if answer.by_stack_s else rows


def _components(sizes: Mapping[str, int]) -> list[str]:
    whole = sum(sizes.values())
    parts = sorted(
        ((name, number) for name, number in sizes.items() if number >= whole / 100), key=lambda part: -part[1]
    )
    left = whole - sum(number for _, number in parts)
    texts = [f"{name} {size(number)}" for name, number in [*parts, *([("all else", left)] if left else [])]]
    return [f"at the peak: {', '.join(texts)}"] if texts else []


def print_plans(comparison: Projections, *, full: bool = False, with_timeline: bool | None = None) -> None:
    """Print the possible schedules, best first; `with_timeline` draws the best one."""
    out, shown = Page(), comparison.projections
    if shown:
        out.add(*_none_fits(shown), projection_heading(shown[0]), "")
        bound_s = min(one.report["lower_bound_s"] for one in shown)
        rows = _without_constants([_row_of(one, shown[0].iteration_time_s, bound_s) for one in shown])
        rows = rows if full else rows[:MOST_LISTED]
        out.add(TableLines.of(rows, spare=["rank", "span bubble", "above bound", "step time", "vpp", "bubble"]))
        listed = shown[: len(rows)]
        out.add(*_of_names(listed), *_of_marks(listed))
        if more := len(shown) - len(rows):
            out.add(f"{more} more: --full")
    if comparison.rejected and (full or not shown):
        out.add("", facts([("not possible", _by_reason(comparison.rejected))]))
    elif comparison.rejected:
        out.add(f"{len(comparison.rejected)} not possible: --full gives the reasons")
    if shown:
        name = shown[0].plan.schedule_name
        if full:
            out.add("", facts([(f"assumed for {name}", shown[0].assumptions)]))
        if with_timeline:
            out.add(f"\n{bold(name)}")
            print_timeline(shown[0].timeline, is_wanted=True)


MOST_LISTED = 10
"""Maximum number of rows without `--full`."""

_ALWAYS = ("schedule", "iteration", "vs best", "tokens/s", "bubble", "peak")


def _row_of(one: Projection, fastest_s: float, bound_s: float) -> dict[str, str]:
    return {
        "schedule": one.plan.schedule_name + _marks(one),
        "vpp": str(one.plan.vpp),
        "iteration": seconds(one.iteration_time_s),
        "vs best": signed_percent(one.iteration_time_s / fastest_s - 1),
        **({} if one.tokens_per_s is None else {"tokens/s": count(one.tokens_per_s)}),
        "step time": seconds(one.timeline.step_time_s),
        "above bound": percent(gap_of(one.timeline.step_time_s, bound_s)),
        "bubble": percent(one.timeline.bubble_ratio),
        "span bubble": percent(one.timeline.span_bubble_ratio),
        **(_peak_of(one) if one.plan.knows_memory else {}),
    }


def _without_constants(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Drop columns with a single value, and columns that repeat another one."""

    def values(name: str) -> list[str]:
        return [row[name] for row in rows]

    left_out = {name for name in rows[0] if name not in _ALWAYS and len(set(values(name))) == 1 and len(rows) > 1}
    left_out |= {twin for twin, name in (("step time", "iteration"), ("span bubble", "bubble"))
                 if twin in rows[0] and values(twin) == values(name)}  # fmt: skip
    return [{name: text for name, text in row.items() if name not in left_out} for row in rows]


def _none_fits(projections: Sequence[Projection]) -> list[str]:
    """If no plan fits, the first line is the verdict on the plan with the lowest peak."""
    if not projections[0].is_too_large:
        return []
    least = min(projections, key=lambda one: float(one.timeline.memory.peak_bytes.max()))
    others = "" if len(projections) == 1 else f" ({least.plan.schedule_name}; the others need more)"
    return verdict_line(least.verdict, others)


def _peak_of(one: Projection) -> dict[str, str]:
    peak = one.timeline.memory.peak_bytes
    return {"peak": size(float(peak.max())), "rank": str(int(peak.argmax()))}


def _of_names(projections: Sequence[Projection]) -> list[str]:
    entries = [find(one.plan.schedule_name) for one in projections]
    to_memory = sorted(entry.name for entry in entries if entry.takes("memory_limit_bytes"))
    fitted = sorted(entry.name for entry in entries if entry.takes("costs") and entry.name not in to_memory)
    fixed = any(entry.name.endswith("-fixed") for entry in entries)
    said = [f"{', '.join(fitted)}: tables fitted to the costs of each stage" if fitted else ""]
    said.append(f"{', '.join(to_memory)}: also to the free memory" if to_memory else "")
    said.append("names with -fixed: the published table, independent of costs" if fixed else "")
    return ["; ".join(filter(None, said)) + "."] if any(said) else []


def _marks(projection: Projection) -> str:
    is_tight = projection.verdict is not None and projection.verdict.is_tight
    return "*" * bool(projection.runtime_error) + "~" * is_tight + "!" * bool(projection.memory_error)


def _of_marks(projections: Sequence[Projection]) -> list[str]:
    plan, lines = projections[0].plan, []
    if any(one.runtime_error for one in projections):
        says_why = "ppsim schedules NAME prints the reason."
        lines.append(f"* {plan.runtime} cannot run this table; P2P is simulated as if it could. {says_why}")
    if any(one.memory_error for one in projections):
        lines.append(f"! does not fit: a rank needs more than the {size(plan.memory_bound_bytes or 0.0)} usable.")
    if tight := [one.verdict for one in projections if one.verdict and one.verdict.is_tight]:
        lines.append(f"~ fits tightly: {'; '.join(tight[0].tight_notes)}.")
    return lines


def _by_reason(reasons: dict[str, str]) -> list[str]:
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason.removeprefix(f"{name} "), []).append(name)
    return [f"{', '.join(of)}: {reason}" for reason, of in names.items()]
