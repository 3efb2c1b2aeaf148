"""First screen of `ppsim project`: question, verdict, main numbers, time budget, advice."""

from collections.abc import Iterable, Iterator

from ppsim.base.units import percent, seconds, size
from ppsim.costs.profile import DEFAULT
from ppsim.projection.projection import ConfigurationChange, Projection, ProjectionSummary
from ppsim.results.quantity_texts import texts_of
from ppsim.results.text_layout import SCREEN_LINES, WIDTH, Page, bold, cut, verdict_line, wrapped
from ppsim.schedule.rounds import microbatches_in_words
from ppsim.simulation.verdict import MemoryVerdict

_MOST_PARTS, _FEWEST_PARTS = 5, 2
_LEAST_PART = 0.01  # × iteration
_MOST_ADVICE = 2
_BAR = 24  # columns of the longest bar
_LABEL = 15  # columns before the values
_NUMBERS = 42  # columns of a part before its bar

_Row = tuple[str, str]  # label and value


def first_screen(projection: Projection, answer: ProjectionSummary) -> None:
    """Print at most `SCREEN_LINES` lines of 100 columns, and two more for a stack that was not named.

    A narrower terminal has more lines.
    """
    page = Page()
    width = min(page.width, WIDTH)
    verdict, stack = projection.verdict, _stack(projection, answer)
    comes_first = verdict is not None and (verdict.is_too_large or verdict.is_tight)
    memory = [] if verdict is None or comes_first else [("fits" if verdict.fits else "memory", _memory(verdict))]
    notes = [("note", note) for note in (verdict.notes if verdict else ())]
    lines = [
        *(line for text in verdict_line(verdict if comes_first else None) for line in wrapped(text, width)),
        *map(bold, wrapped(_question(projection), width)),
        *wrapped(_configuration(projection), width),
        *(line for text in stack for line in wrapped(text, width)),
        "",
        *_rows([*memory, *notes, *_delivered(projection, answer)], width),
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


def _stack(projection: Projection, answer: ProjectionSummary) -> list[str]:
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


def _delivered(projection: Projection, answer: ProjectionSummary) -> Iterator[_Row]:
    low, high = map(seconds, answer.iteration_time_interval_s)
    yield ("iteration", f"{seconds(projection.iteration_time_s)}  (90 % interval {low} to {high})")
    if rates := texts_of(projection, "throughput"):
        days = [] if answer.training_days is None else [f"{answer.training_days:.1f} days of training"]
        yield ("throughput", ", ".join([*rates.values(), *days]))
    mfu = projection.model_flops_utilization
    timeline = projection.timeline
    least = 1 - (1 - timeline.bubble_ratio) * timeline.step_time_s / projection.report["lower_bound_s"]
    bubble = f"{percent(timeline.bubble_ratio)}  (lower bound for any schedule: {percent(max(least, 0.0))})"
    yield ("bubble", bubble) if mfu is None else ("MFU", f"{percent(mfu)}   bubble {bubble}")


def _parts(projection: Projection, answer: ProjectionSummary, most: int, width: int) -> Iterator[_Row]:
    whole = projection.iteration_time_s
    parts = sorted(answer.time_breakdown_s.items(), key=lambda part: -part[1])
    shown = [part for part in parts if part[1] >= _LEAST_PART * whole][
        : min(_MOST_PARTS, max(most - 1, _FEWEST_PARTS))
    ]
    rest = whole - sum(value for _, value in shown)
    if rest >= _LEAST_PART * whole:
        shown.append(("all else", rest))
    longest = max(value for _, value in shown)
    for number, (name, value) in enumerate(shown):
        bar = "█" * round(min(_BAR, width - _LABEL - _NUMBERS) * value / longest)
        label = "" if number else "where it goes"
        yield (label, f"{name:22}{seconds(value):>8}  {percent(value / whole):>8}  {bar}")


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
    if job is None:
        if not plan.has_model:
            return [("assumed", "no model: --model for throughput, MFU and memory")]
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
        said += [f"DP {job.dp_overlap_text}", f"ZeRO {job.optimizer.zero_stage}"]
    recompute = "by stage" if job.stage_plans else execution.recompute
    said += [f"recompute {recompute}", f"micro-batch {job.micro_batch}"]
    costs = [one for one in projection.assumptions if job.profile is not None and one.startswith("costs: ")]
    stack = "" if job.stack_basis else f"stack {job.stack_name}: "  # with a basis, the stack has a line above
    lines = [*job.model.notes[:1], f"{stack}{', '.join(said)}", *costs]
    return [("" if number else "assumed", line) for number, line in enumerate(lines)]


def _more(projection: Projection) -> str:
    ways = ["--full", "-o timeline.html", "--schedule all"]
    return " · ".join([*ways, "ppsim tune … to search all layouts"] if projection.plan.job else ways)
