"""Content of pictures of a projection and of a search."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from ppsim.base.errors import ConfigError
from ppsim.base.units import percent, seconds
from ppsim.costs.pair_overlap import LayerTimes, PairMessage, pair_messages
from ppsim.plot.pareto_page import SearchView
from ppsim.plot.plot_model import Fact, TimelineView
from ppsim.projection.difference import PlanDifference
from ppsim.projection.loss_breakdown import loss_budget
from ppsim.projection.options import GPT
from ppsim.projection.projection import Projection, ProjectionSummary
from ppsim.projection.quantities import texts_of
from ppsim.schedule.rounds import microbatches_in_words
from ppsim.schedule.table import NONE, Op, fused_pairs
from ppsim.simulation.report import gap_of
from ppsim.simulation.step import StepActivity
from ppsim.tuning.command_line import command_of
from ppsim.tuning.search import FoundConfiguration, TuneResult

MOST_SHOWN = 30_000
"""Number of messages above which a figure shows none: they would be too short to see."""


def difference_views(difference: PlanDifference) -> list[TimelineView]:
    """Raises `ConfigError` if a report has no timeline."""
    names, timelines = difference.names, difference.timelines
    if timelines is None:
        raise ConfigError(
            f"{names[0]} or {names[1]} is of --json, which has no timeline: write both with -o NAME.json"
        )
    parts = [{cause: pair[index] for cause, pair in difference.time_breakdown_s.items()} for index in (0, 1)]
    return [
        TimelineView(timeline, name, time_breakdown_s=causes)
        for timeline, name, causes in zip(timelines, names, parts, strict=True)
    ]


def expert_messages(projection: Projection) -> list[StepActivity]:
    """Return the expert-parallel messages if actions run in pairs (`--overlap-ep ORDER`), else none.

    Positions follow the costs, stretched if the action takes longer.
    """
    assembled, timeline = projection.stage_cost_set, projection.timeline
    table, layers = timeline.schedule, assembled.layer_times
    if not layers:
        return []
    assert projection.plan.job is not None
    order, slowdown = projection.plan.job.execution.ep_order, projection.plan.job.place.dispatch_slowdown
    assert order is not None
    costs = projection.costs.with_equal_microbatches().resolved_for(table)

    @cache
    def messages(forward: int, backward: int, op: Op) -> tuple[list[PairMessage], float]:
        one, other = (layers[table.model_stage[stage]] if stage != NONE else [] for stage in (forward, backward))
        begin_s = 0.0
        if forward != NONE and table.model_stage[forward] == 0:
            begin_s += float(costs.forward_s[forward]) - sum(layer.forward_s for layer in one)
        if op == Op.I:
            other = [_without_weights(layer) for layer in other]
        if backward != NONE and table.model_stage[backward] == table.num_model_stages - 1:
            whole_s = costs.backward_input_s if op == Op.I else costs.backward_s
            begin_s += float(whole_s[backward]) - sum(layer.backward_s for layer in other)
        return pair_messages(one, other, order, slowdown=slowdown), max(begin_s, 0.0)

    def passes() -> Iterator[tuple[list[int], int, int, Op, float]]:
        forward, backward = fused_pairs(table)
        for one, other in zip(forward.tolist(), backward.tolist(), strict=True):
            stages = int(table.stage[one]), int(table.stage[other])
            assert costs.fused_s is not None
            yield [one, other], *stages, Op.B, float(costs.fused_s[stages])
        paired = np.zeros(len(table), dtype=bool)
        paired[forward] = paired[backward] = True
        seconds_of = {Op.F: costs.forward_s, Op.B: costs.backward_s, Op.I: costs.backward_input_s}
        for entry in np.flatnonzero(~paired & (table.op != Op.W)).tolist():
            stage, op = int(table.stage[entry]), Op(table.op[entry])
            stages = (stage, NONE) if op == Op.F else (NONE, stage)
            yield [entry], *stages, op, float(seconds_of[op][stage])

    pieces: list[StepActivity] = []
    for entries, forward, backward, op, cost_s in passes():
        messages_of_pair, begin_s = messages(forward, backward, op)
        if len(pieces) + len(messages_of_pair) > MOST_SHOWN:
            return []
        rank, start = int(table.rank[entries[0]]), float(timeline.start[entries].min())
        stretched = (float(timeline.end[entries].max()) - start) / cost_s if cost_s else 0.0
        for one in messages_of_pair:
            stage = forward if one.operation.endswith("F") else backward
            begin, end = (start + stretched * (begin_s + one_s) for one_s in (one.start_s, one.end_s))
            pieces.append(
                StepActivity(rank, "hidden" if one.next_to else "exposed", stage, begin, end, _told(one, stage))
            )
    return pieces


def _without_weights(layer: LayerTimes) -> LayerTimes:
    before, experts = (*layer.before[:2], 0.0), (*layer.experts[:2], 0.0)
    return LayerTimes(before, experts, layer.exchange_s, layer.launches, layer.waits)


def _told(message: PairMessage, stage: int) -> str:
    where = f"{message.operation}, layer {message.layer} of stage {stage}"
    return f"{where}, next to {', '.join(message.next_to)}" if message.next_to else where


def view_of(projection: Projection, title: str, answer: ProjectionSummary | None = None) -> TimelineView:
    interval = f"; 90 % interval {' to '.join(map(seconds, answer.iteration_time_interval_s))}" if answer else ""
    about = _about(projection)
    texts = texts_of(projection, "page")
    texts["iteration"] += interval
    facts = [*texts.items(), bound_of(projection.report)]
    notes = {"To change": _advice(answer, projection) if answer else [], "Assumed": projection.assumptions}
    return TimelineView(
        projection.timeline,
        title,
        [*projection.step.pieces, *expert_messages(projection)],
        loss_budget(projection),
        facts,
        subject=("{model} on {cluster}, {layout}" if projection.plan.has_model else "{model}").format(
            **dict(about)
        ),
        about=about,
        verdict=projection.verdict,
        notes=notes,
    )


def bound_of(report: Mapping[str, Any]) -> Fact:
    bound_s = report["lower_bound_s"]
    gap = percent(gap_of(report["step_time_s"], bound_s))
    return "lower bound", f"{seconds(bound_s)} for any schedule on this placement; the step is {gap} above it"


def _advice(answer: ProjectionSummary, projection: Projection) -> list[str]:
    lines = [f"{one.change}: {one.effect}" for one in answer.advice] or [projection.summary_without_advice]
    job = projection.plan.job
    if job is not None and job.model_name != GPT:  # the command would also need the sizes of a GPT
        sizes = f"--gpus {projection.num_gpus} --global-batch-size {job.global_batch} --seq-len {job.length}"
        tune = f"ppsim tune --model {job.model_name} --cluster {job.cluster.name} {sizes}"
        lines.append(f"further away than one step: {tune} tries every layout, micro-batch and schedule")
    return lines


def _about(projection: Projection) -> list[Fact]:
    plan, schedule = projection.plan, projection.timeline.schedule
    job = plan.job
    if not plan.has_model:
        shape = f"{plan.schedule_name}, vpp {schedule.vpp}, {schedule.num_microbatches} microbatches"
        return [("model", plan.source.name), ("layout", f"pp {plan.pp}"), ("schedule", shape)]
    if job is None:
        profile = plan.source.to_json()["profile"]
        model, device, where = profile["model"], profile["device"], f"profile {profile['name']}"
        shape = profile["shape"]
        batch = f"micro-batch {shape['micro_batch']} of {shape['sequence_length']} tokens"
    else:
        model, device, where = job.model_name, job.cluster.device.name, job.cluster.name
        batch = f"{job.global_batch} sequences of {job.length} tokens, micro-batch {job.micro_batch}"
    steps = microbatches_in_words(schedule.num_microbatches, schedule.num_rounds)
    chunks = f", vpp {schedule.vpp}" if schedule.vpp > 1 else ""
    return [
        ("model", model),
        ("cluster", f"{projection.num_gpus} × {device} ({where})"),
        ("layout", " · ".join(f"{name} {ranks}" for name, ranks in projection.parallel_sizes.items())),
        ("schedule", f"{plan.schedule_name}{chunks}, {steps}; {batch}"),
    ]


def search_view(tuned: TuneResult) -> SearchView:
    job = tuned.question.job

    def rows(configurations: Sequence[FoundConfiguration]) -> list[dict[str, Any]]:
        return [tuned.row(one) | {"command": command_of(tuned.question, one.candidate)} for one in configurations]

    return SearchView(
        f"{job.model_name} on {tuned.question.num_gpus} × {job.cluster.device.name}, {job.global_batch} sequences "
        f"of {job.length} tokens per step",
        tuned.counts["configurations"],
        tuned.question.memory_bound_bytes,
        rows(tuned.simulated),
        rows(tuned.best),
        rows(tuned.pareto),
        "; ".join(tuned.question.memory_limit.tight_notes),
    )
