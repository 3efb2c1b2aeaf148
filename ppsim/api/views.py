"""Content of pictures of a projection and of a search."""

from collections.abc import Mapping, Sequence
from typing import Any

from ppsim.base.units import percent, seconds
from ppsim.plot.pareto_page import SearchView
from ppsim.plot.plot_model import Fact, TimelineView
from ppsim.projection.expert_messages import expert_messages
from ppsim.projection.loss_breakdown import loss_budget
from ppsim.projection.options import GPT
from ppsim.projection.projection import Projection, ProjectionSummary
from ppsim.results.quantity_texts import texts_of
from ppsim.schedule.rounds import microbatches_in_words
from ppsim.simulation.report import gap_of
from ppsim.tuning.command_line import command_of
from ppsim.tuning.search import FoundConfiguration, TuneResult


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

    def rows(found: Sequence[FoundConfiguration]) -> list[dict[str, Any]]:
        return [tuned.row(one) | {"command": command_of(tuned, one)} for one in found]

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
