"""Output of `ppsim project`: memory verdict, iteration time, time budget, and advice."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ppsim.base.units import count, percent, seconds, signed_percent, size
from ppsim.catalog.build import find
from ppsim.costs.job_description import dp_overlap_text, stack_description
from ppsim.costs.profile import DEFAULT, load_profile
from ppsim.model.recompute import is_by_stage
from ppsim.projection.projection import FROM_RUN, ConfigurationChange, Projection, Projections, ProjectionSummary
from ppsim.projection.quantities import texts_of
from ppsim.results.steps import print_report, print_timeline
from ppsim.results.text_layout import SCREEN_LINES, WIDTH, Page, TableLines, bold, cut, facts, verdict_line, wrapped
from ppsim.schedule.rounds import microbatches_in_words
from ppsim.simulation.report import gap_of
from ppsim.simulation.verdict import MemoryVerdict
from ppsim.trainers import title_of
from ppsim.trainers.write_schedule import RUNS_IN, runs_in, trainers_text

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
    iteration_s = projection.iteration_time_s
    budget = [
        {"where an iteration goes": name, "time": seconds(value), "part": percent(value / iteration_s)}
        for name, value in answer.time_breakdown_s.items()
        if value >= _LEAST_PART * iteration_s
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
    rows += _cost(answer)
    rows += [("note", note) for note in (verdict.notes if verdict else ())]
    return [*rows, *(("memory", text) for text in _components(projection.peak_components_bytes or {}))]


def _cost(answer: ProjectionSummary) -> list[tuple[str, str]]:
    is_asked = answer.cost.price_per_gpu_hour is not None or answer.training_days is not None
    return [("cost", answer.cost.text)] if is_asked else []


def _stack(job: "Job | None", answer: ProjectionSummary) -> list[tuple[str, str]]:
    if job is None:
        return []
    basis = f" ({job.stack_basis})" if job.stack_basis else ""
    rows = [("assumed", f"stack {stack_description(job)}{basis}")]
    return [*rows, ("by stack", times_by_stack(answer))] if answer.by_stack_s else rows


def _components(sizes: Mapping[str, int]) -> list[str]:
    total = sum(sizes.values())
    parts = sorted(
        ((name, number) for name, number in sizes.items() if number >= total / 100), key=lambda part: -part[1]
    )
    left = total - sum(number for _, number in parts)
    texts = [f"{name} {size(number)}" for name, number in [*parts, *([("all else", left)] if left else [])]]
    return [f"at the peak: {', '.join(texts)}"] if texts else []


def print_plans(comparison: Projections, *, full: bool = False, with_timeline: bool | None = None) -> None:
    """Print the possible schedules, best first; `with_timeline` draws the best one."""
    out, shown = Page(), comparison.projections
    if shown:
        own = [plan for plan in shown if not comparison.is_elsewhere(plan)]
        others = shown[len(own) :]
        out.add(*_none_fits(comparison.trainer, own, others), projection_heading(shown[0]), "")
        bound_s = min(one.report["lower_bound_s"] for one in shown)
        is_alone = bool(own) and shown[0].plan.names_trainer and not full
        ranked = own if is_alone else shown
        rows = _without_constants([_row_of(one, shown[0].iteration_time_s, bound_s) for one in ranked])
        rows = rows if full else rows[:MOST_LISTED]
        spare = ["rank", "span bubble", "above bound", "step time", "vpp", "bubble"]
        out.add(TableLines.of(rows, left=1 + (RUNS_IN in rows[0]), spare=spare))
        if is_alone and (other := _nearest(others)):
            out.add(with_others(other.plan.schedule_name, other.iteration_time_s / own[0].iteration_time_s - 1))
        listed = ranked[: len(rows)]
        out.add(*_of_names(listed), *_of_marks(listed))
        if more := len(ranked) - len(rows):
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
        RUNS_IN: trainers_text(one.plan.schedule_name, one.plan.recompute),
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


def _none_fits(trainer: str, own: Sequence[Projection], others: Sequence[Projection]) -> list[str]:
    """If no plan of the trainer fits, the first line is the verdict on its plan with the lowest peak."""
    if own and not own[0].is_too_large:
        return []
    if not own:
        return [bold(f"{title_of(trainer)} runs none of the possible schedules")]
    least = min(own, key=lambda one: float(one.timeline.memory.peak_bytes.max()))
    texts = [f"the others{f' of {title_of(trainer)}' if trainer else ''} need more"] if len(own) > 1 else []
    if nearest := _nearest(others):
        name = nearest.plan.schedule_name
        texts.append(f"{name} fits, with {' or '.join(runs_in(name))}")
    text = "; ".join([least.plan.schedule_name, *texts])
    return verdict_line(least.verdict, f" ({text})" if texts else "")


def with_others(name: str, change: float) -> str:
    return f"with {' or '.join(runs_in(name))}: {name} {signed_percent(change)} (--schedule any ranks all)"


def _nearest(others: Sequence[Projection]) -> Projection | None:
    """The best schedule that fits and that a trainer runs."""
    return next((one for one in others if not one.is_too_large and not one.runtime_error), None)


def _peak_of(one: Projection) -> dict[str, str]:
    peak = one.timeline.memory.peak_bytes
    return {"peak": size(float(peak.max())), "rank": str(int(peak.argmax()))}


def _of_names(projections: Sequence[Projection]) -> list[str]:
    entries = [find(projection.plan.schedule_name) for projection in projections]
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
    if any(projection.runtime_error for projection in projections):
        says_why = "ppsim schedules NAME prints the reason."
        lines.append(f"* {plan.runtime} cannot run this table; P2P is simulated as if it could. {says_why}")
    if any(projection.memory_error for projection in projections):
        lines.append(f"! does not fit: a rank needs more than the {size(plan.memory_bound_bytes or 0.0)} usable.")
    if tight := [
        projection.verdict for projection in projections if projection.verdict and projection.verdict.is_tight
    ]:
        lines.append(f"~ fits tightly: {'; '.join(tight[0].tight_notes)}.")
    return lines


def _by_reason(reasons: dict[str, str]) -> list[str]:
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason.removeprefix(f"{name} "), []).append(name)
    return [f"{', '.join(of)}: {reason}" for reason, of in names.items()]


_MOST_PARTS, _FEWEST_PARTS = 5, 2
_LEAST_BAR = 0.01  # × iteration: smaller parts have no bar on the first screen
_MOST_ADVICE = 2
_BAR = 24  # columns of the longest bar
_LABEL = 15  # columns before the values
_NUMBERS = 42  # columns of a part before its bar

_Row = tuple[str, str]  # label and value


def first_screen(projection: Projection, answer: ProjectionSummary) -> None:
    """Print at most `SCREEN_LINES` lines of 100 columns, and two more for the basis of the stack.

    A narrower terminal has more lines.
    """
    page = Page()
    width = min(page.width, WIDTH)
    verdict, stack = projection.verdict, _stack_line(projection, answer)
    comes_first = verdict is not None and (verdict.is_too_large or verdict.is_tight)
    memory = [] if verdict is None or comes_first else [("fits" if verdict.fits else "memory", _memory(verdict))]
    notes = [("note", note) for note in (verdict.notes if verdict else ())]
    lines = [
        *(line for text in verdict_line(verdict if comes_first else None) for line in wrapped(text, width)),
        *map(bold, wrapped(_question(projection), width)),
        *wrapped(_configuration(projection), width),
        *(line for text in stack for line in wrapped(text, width)),
        "",
        *_rows([*memory, *notes, *_delivered_line(projection, answer)], width),
        "",
    ]
    last = _rows([*_advice(projection, answer), *_assumed(projection), ("more", _more(projection))], width)
    parts = _parts(projection, answer, SCREEN_LINES + len(stack) - len(lines) - len(last), width)
    page.add(*lines, *(cut(f"{label:{_LABEL}}{value}", width) for label, value in parts), *last, wraps=False)


def _rows(rows: Iterable[_Row], width: int) -> list[str]:
    """Values wrap in a column of their own."""
    return [
        f"{'' if number else label:{_LABEL}}{line}"
        for label, value in rows
        for number, line in enumerate(wrapped(value, max(width - _LABEL, _LABEL)))
    ]


def _question(projection: Projection) -> str:
    plan, job = projection.plan, projection.plan.job
    if job is not None:
        name, _, _ = job.cluster.device.name.partition(" (")
        device = f"{projection.num_gpus} × {name} ({job.cluster.name})"
        return f"{job.model_name} on {device}, {job.global_batch} × {job.length} tokens"
    table = projection.timeline.schedule
    batch = microbatches_in_words(table.num_microbatches, table.num_rounds)
    if not plan.has_model:
        return f"{plan.source.name} on {plan.pp} ranks, {batch}"
    profile = plan.source.to_json()["profile"]
    return f"{profile['model']} on {projection.num_gpus} × {profile['device']}, {batch}"


def _configuration(projection: Projection) -> str:
    table, name = projection.timeline.schedule, projection.plan.schedule_name
    shown = [f"{dimension} {ranks}" for dimension, ranks in projection.parallel_sizes.items()]
    shown += [*([f"vpp {table.vpp}"] if table.vpp > 1 else []), name]
    if (job := projection.plan.job) is not None:
        shown.append(microbatches_in_words(table.num_microbatches, table.num_rounds))
        shown += [f"{name} {value}" for name, value in (("lora", job.lora), ("freeze", job.freeze)) if value]
    return " · ".join(shown)


def _stack_line(projection: Projection, answer: ProjectionSummary) -> list[str]:
    job = projection.plan.job
    if job is None or not job.stack_basis:
        return []
    by_stack = [f"by stack: {times_by_stack(answer)}"] if answer.by_stack_s else []
    return [f"stack {job.stack_name} ({job.stack_basis})", *by_stack]


def times_by_stack(answer: ProjectionSummary) -> str:
    return ", ".join(f"{name} {seconds(value)}" for name, value in answer.by_stack_s.items())


def _memory(verdict: MemoryVerdict) -> str:
    if verdict.limit is None:
        return f"{size(verdict.peak_bytes)} on rank {verdict.rank} (not checked: set --memory-limit)"
    activations = " for activations alone" if verdict.activations_only else ""
    return f"{verdict.needs}{activations} (rank {verdict.rank})"


def _delivered_line(projection: Projection, answer: ProjectionSummary) -> Iterator[_Row]:
    low, high = map(seconds, answer.iteration_time_interval_s)
    scope = f", {answer.interval_scope}" if answer.interval_scope else ""
    yield ("iteration", f"{seconds(projection.iteration_time_s)}  (90 % interval {low} to {high}{scope})")
    if rates := texts_of(projection, "throughput"):
        yield ("throughput", ", ".join(rates.values()))
    yield from _cost(answer)
    mfu = projection.model_flops_utilization
    timeline = projection.timeline
    least = 1 - (1 - timeline.bubble_ratio) * timeline.step_time_s / projection.report["lower_bound_s"]
    bubble = f"{percent(timeline.bubble_ratio)}  (lower bound for any schedule: {percent(max(least, 0.0))})"
    yield ("bubble", bubble) if mfu is None else ("MFU", f"{percent(mfu)}   bubble {bubble}")


def _parts(projection: Projection, answer: ProjectionSummary, most: int, width: int) -> Iterator[_Row]:
    iteration_s = projection.iteration_time_s
    parts = sorted(answer.time_breakdown_s.items(), key=lambda part: -part[1])
    shown = [part for part in parts if part[1] >= _LEAST_BAR * iteration_s][
        : min(_MOST_PARTS, max(most - 1, _FEWEST_PARTS))
    ]
    rest = iteration_s - sum(value for _, value in shown)
    if rest >= _LEAST_BAR * iteration_s:
        shown.append(("all else", rest))
    longest = max(value for _, value in shown)
    for number, (name, value) in enumerate(shown):
        bar = "█" * round(min(_BAR, width - _LABEL - _NUMBERS) * value / longest)
        label = "" if number else "where it goes"
        yield (label, f"{name:22}{seconds(value):>8}  {percent(value / iteration_s):>8}  {bar}")


def _advice(projection: Projection, answer: ProjectionSummary) -> list[_Row]:
    shown = answer.advice[:_MOST_ADVICE]
    if not shown:
        return [("try next", projection.summary_without_advice)]
    longest = max(len(one.change) for one in shown)
    return [
        ("" if number else "try next", f"{one.change:{longest}}   {_effect(one)}")
        for number, one in enumerate(shown)
    ]


def _effect(one: ConfigurationChange) -> str:
    verdict, gain = one.projection.verdict, f"{100 * one.throughput_gain:+.1f} %"
    if one.makes_it_fit and verdict is not None and verdict.headroom_bytes is not None:
        return f"fits, {size(verdict.headroom_bytes)} free, {gain} throughput"
    return f"{gain} throughput"


def _assumed(projection: Projection) -> list[_Row]:
    plan, job = projection.plan, projection.plan.job
    faults = [line for line in projection.assumptions if line.startswith(FROM_RUN)]
    if job is None:
        if not plan.has_model:
            no_model = ("assumed", "no model: --model for throughput, MFU and memory")
            return [no_model, *(("", line) for line in faults)]
        profile = plan.source.to_json()["profile"]["name"]
        given = " (packaged example; --model and --cluster for yours)" if profile == DEFAULT else ""
        return [
            ("assumed", f"costs of profile {profile}{given}"),
            ("", "no data parallelism and no optimizer in the step"),
        ]
    execution, said = job.execution, [f"{projection.num_gpus} GPUs"] if job.gpus_assumed else []
    if job.layout.tp > 1:
        said.append(execution.tp_overlap_text)
    if job.layout.ep > 1:
        hidden = f"EP {100 * execution.hidden_ep:g} % hidden" if execution.hidden_ep else "EP exposed"
        said.append(f"EP overlapped ({execution.ep_order})" if execution.ep_order else hidden)
    if job.layout.dp > 1:
        said += [f"DP {dp_overlap_text(job)}", f"ZeRO {job.optimizer.zero_stage}"]
    recompute = "by stage" if job.stage_plans else execution.recompute
    said += [f"recompute {recompute}", f"micro-batch {job.micro_batch}"]
    costs = [
        assumption
        for assumption in projection.assumptions
        if job.profile is not None and assumption.startswith("costs: ")
    ]
    stack = "" if job.stack_basis else f"stack {job.stack_name}: "  # with a basis, the stack has a line above
    lines = [*job.model.notes[:1], f"{stack}{', '.join(said)}", *costs, *faults]
    return [("" if number else "assumed", line) for number, line in enumerate(lines)]


def _more(projection: Projection) -> str:
    ways = ["--full", "-o timeline.html", "--schedule all"]
    return " · ".join([*ways, "ppsim tune … to search all layouts"] if projection.plan.job else ways)
