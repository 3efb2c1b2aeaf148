"""Project a plan: costs × placement × schedule × runtime → projection."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from ppsim.base.errors import ConfigError, DoesNotFit, ScheduleError
from ppsim.base.limits import BYTES_PROJECTED, require_memory
from ppsim.base.units import percent, seconds
from ppsim.catalog.build import ScheduleEntry, build, every_schedule, find, optimise_entry, require_shape
from ppsim.costs.cost_sources import RunCosts
from ppsim.costs.job_description import given_assumptions
from ppsim.costs.profile import DEFAULT
from ppsim.costs.similar_jobs import scale_of
from ppsim.costs.stage_cost_set import StageCostSet
from ppsim.parallel.layer_partition import AutoSplit, Split, why_no_split
from ppsim.parallel.sequence_slices import why_no_slices
from ppsim.projection.lengths import sample_lengths, with_lengths
from ppsim.projection.plan import AUTO, RUNTIMES, Plan
from ppsim.projection.projection import FROM_RUN, Projection, Projections
from ppsim.projection.split_bounds import SimulatedSplit
from ppsim.projection.split_search import SplitSearch
from ppsim.projection.summary import projection_summary
from ppsim.schedule.blocking_calls import has_megatron_loop
from ppsim.schedule.check import why_not_in_torch
from ppsim.schedule.option_types import Communication
from ppsim.schedule.placement import STYLES
from ppsim.schedule.rounds import repeat_rounds
from ppsim.schedule.table import NONE, Schedule
from ppsim.simulation.simulate import simulate_graph
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.step import TrainingStep, between_rounds_s, simulate_step
from ppsim.simulation.variation import relative_spread, with_variation

if TYPE_CHECKING:
    from ppsim.catalog.auto import Progress
    from ppsim.costs.job import Job
    from ppsim.model.pipeline_stages import StagePlan


def assumptions_of(plan: Plan, schedule: Schedule, assembled: StageCostSet, costs: StageCosts) -> list[str]:
    lines = list(assembled.assumptions)
    if plan.microbatches is None and plan.job is None:
        lines.append(f"microbatches: {schedule.num_microbatches} (4 per rank; --num-microbatches sets it)")
    lines.append(
        f"runtime: {plan.runtime} ({RUNTIMES[plan.runtime][1]}); channel {costs.channel}, receives {costs.receives}"
    )
    if plan.runtime != "ideal" and (reason := why_not_in_torch(schedule)):
        lines.append(
            f"{plan.runtime} cannot run this table as it stands ({reason}); P2P is simulated as if it could"
        )
    if costs.fused_s is None and (schedule.fused != NONE).any():
        lines.append("fused pairs: one part after the other, no gain; the profile has no cost of a pair")
    lines += [f"rank {rank} computes {factor:g} × as long" for rank, factor in plan.stragglers]
    if costs.variation_s and plan.variation is not None:
        spread = percent(relative_spread(plan.variation))
        lines.append(f"actions vary by {spread} (1 σ), as measured: their waits are in the step time")
    return lines + _assumed_overheads(costs, schedule.num_replicas, has_job=plan.job is not None)


def _assumed_overheads(costs: StageCosts, num_replicas: int, *, has_job: bool) -> list[str]:
    lines = []
    if costs.action_overhead_s == 0 and costs.hop_overhead_s == 0:
        lines.append("overheads: none (fit them with ppsim calibrate, give them with --calibration)")
    else:
        action, hop = seconds(costs.action_overhead_s), seconds(costs.hop_overhead_s)
        lines.append(f"overheads: {action} per action, {hop} per P2P transfer")
    ends = [("first", "of each rank", costs.first_pass_s), ("last", "of the first stage's rank", costs.last_pass_s)]
    lines += [f"the {name} action {of} takes {seconds(longer)} longer" for name, of, longer in ends if longer]
    if costs.overlap_slowdown:
        lines.append(f"compute next to a P2P transfer takes {percent(costs.overlap_slowdown)} longer")
    between = ", summing the replicas' gradients" if num_replicas > 1 else ""
    if costs.step_overhead_s:
        between_steps = seconds(costs.step_overhead_s)
        lines.append(f"between steps: {between_steps}, as calibrated; part of iteration time, throughput and MFU")
    if has_job:
        return lines
    if costs.step_overhead_s:
        lines.append(f"not in the step time: data-parallel communication{between}")
    else:
        lines.append(f"not in the step time: data-parallel communication{between}, optimizer, gradient norm")
    return lines


def project(plan: Plan | None = None, *, progress: "Progress | None" = None, **fields: Any) -> Projection:
    """Return the projection of a plan, given as a `Plan`, as its fields, or as a plan and fields to change.

    During a schedule search ("auto"), `progress` is called with the best time and its lower bound, in seconds.
    Raises `ConfigError` if the schedule or the profile does not allow the plan, `Deadlock` if the table cannot run
    on the runtime's channels. A plan that does not fit in memory is projected too.

    >>> project(pp=8, vpp=2).timeline.schedule.name
    'interleaved-1f1b'
    """
    if plan is None or fields:
        plan = replace(plan, **fields) if plan else Plan(**fields)
    _require_room(plan)
    return _project_auto(plan, progress) if plan.schedule == AUTO else _project(plan, find(plan.schedule_name))


def _require_room(plan: Plan) -> None:
    """Raise `ConfigError` for a plan that is too large for this machine's memory."""
    require_shape(pp=plan.pp, microbatches=plan.num_microbatches)
    _ = plan.round_microbatches  # raises if rounds cannot have equal shares
    num_units = plan.num_microbatches * (plan.num_slices or 1)
    require_memory(2 * plan.pp * (plan.vpp or 1) * num_units, bytes_each=BYTES_PROJECTED)


def _project(plan: Plan, entry: ScheduleEntry) -> Projection:
    table, note = table_of(plan, entry)
    return project_table(plan, table, note=note)


def table_of(plan: Plan, entry: ScheduleEntry) -> tuple[Schedule, str | None]:
    """The table has all rounds of the step; the text is a note on its origin."""
    shape: dict[str, Any] = {
        "pp": plan.pp, "vpp": plan.vpp, "microbatches": plan.round_microbatches, "group_size": plan.group_size,
        "num_slices": plan.num_slices,
    }  # fmt: skip
    vpp = entry.stages_per_rank[0] if plan.vpp is None else plan.vpp
    is_possible = entry.why_not(pp=plan.pp, vpp=vpp, microbatches=plan.round_microbatches) is None
    if is_possible and (reason := _why_no_stages(plan, plan.pp * vpp // entry.num_replicas)):
        raise ConfigError(reason + _without_model(plan))
    if entry.takes("costs") and is_possible:  # if impossible, `build` raises the error
        costs = _costs_on(plan, entry.placement, vpp)
        shape |= {"costs": costs, "criterion": plan.criterion}
        if entry.takes("memory_limit_bytes"):
            (table, note), unlimited = _within_memory(
                plan, lambda limit: optimise_entry(entry, **shape, memory_limit_bytes=limit)
            )
            note += unlimited
        else:
            table, note = optimise_entry(entry, **shape)
    else:
        table, note = build(entry, **shape), None
    return repeat_rounds(table, plan.gradient_accumulation_steps), note


Found = TypeVar("Found")


def _within_memory(plan: Plan, search: Callable[[float | None], Found]) -> tuple[Found, str]:
    """If no table fits, return the result without a limit, and a text for the note."""
    try:
        return search(plan.memory_bound_bytes), ""
    except DoesNotFit as error:
        return search(None), f"; without a memory limit, because {error}"


def _project_auto(plan: Plan, progress: "Progress | None" = None) -> Projection:
    from ppsim.catalog.auto import optimise  # heavy import: the search and its kernels

    vpp = 1 if plan.vpp is None else plan.vpp
    if plan.group_size is not None or plan.num_slices is not None:
        raise ConfigError("group size and slices are for schedules by name; auto has neither")
    fitting, unlimited = _within_memory(
        plan,
        lambda limit: optimise(
            pp=plan.pp, vpp=vpp, microbatches=plan.round_microbatches,
            costs=lambda style: _costs_on(plan, style, vpp),
            memory_limit_bytes=limit, criterion=plan.criterion, time_limit_s=plan.search_time_s, seed=plan.seed,
            progress=progress,
        ),
    )  # fmt: skip
    note = f"schedule: searched for, from {fitting.started_from} on; placement {fitting.placement}; {fitting.proof}"
    table = repeat_rounds(fitting.schedule, plan.gradient_accumulation_steps)
    return project_table(replace(plan, vpp=vpp), table, note=note + unlimited)


def _costs_on(plan: Plan, style: str, vpp: int) -> StageCosts:
    """Return the costs on a placement before a table exists, without measured variation."""
    require_shape(pp=plan.pp, microbatches=plan.num_microbatches)
    if reason := _why_no_stages(plan, plan.pp * vpp):
        raise ConfigError(reason + _without_model(plan))
    outline = Schedule.outline(STYLES[style](plan.pp, plan.pp * vpp), num_microbatches=plan.num_microbatches)
    costs = _for_runtime(plan, outline, _assembled(plan, outline).costs)
    if plan.gradient_accumulation_steps > 1:
        costs = costs.with_equal_microbatches()  # one table for all rounds
    return costs.replace(overlap_slowdown=plan.overlap_slowdown)


def project_table(plan: Plan, schedule: Schedule, *, note: str | None = None) -> Projection:
    """The table contains all rounds of the step; `note` names its origin."""
    if plan.searches_stages:
        plan, searched = _with_stages(plan, schedule)
        note = "; ".join([*([note] if note else []), searched])
    source = plan.source
    assembled, costs, step = _step(plan, schedule)
    iteration = step.time_s + costs.step_overhead_s
    if iteration == 0:
        raise ConfigError(f"a step takes 0 s at the costs of {source.name}: there is nothing to project")
    peak, of_peak = source.peak()
    drawn = sample_lengths(plan)
    of_tokens = 1.0 if drawn is None else float(drawn.linear_factor.mean())
    # Model FLOPs: a backward pass counts as two forward passes, recomputation is not counted.
    model_flops = 3 * assembled.forward_flops * schedule.num_microbatches
    return Projection(
        plan=plan,
        step=step,
        stage_cost_set=assembled,
        costs=costs,
        iteration_time_s=iteration,
        tokens_per_s=_tokens(plan, schedule) * of_tokens / iteration if plan.has_model else None,
        model_flops_utilization=model_flops / (iteration * schedule.num_ranks * peak) if peak else None,
        peak_flops_per_s=peak,
        assumptions=[
            *(given_assumptions(plan.job) if plan.job else []),
            *([note] if note else []),
            *assumptions_of(plan, schedule, assembled, costs),
            *_faults_of_run(plan, schedule),
            *of_peak,
            *_other_orders(plan, step, assembled),
        ],
        summarise_function=partial(projection_summary, project=project, iteration_of=iteration_of),
        peaks_function=peaks_of,
    )


def _faults_of_run(plan: Plan, schedule: Schedule) -> Iterator[str]:
    """Yield the slow ranks and links of the recorded run, each with the iteration time without it.

    They are left out on another number of ranks.
    """
    measured = plan.measured
    if isinstance(measured, RunCosts) and measured.note:
        yield f"{FROM_RUN}{measured.note}"
    if isinstance(measured, RunCosts) and schedule.num_ranks != measured.table.num_ranks and measured.faults:
        faults = ", ".join(f"{name} ({extent})" for name, extent in measured.faults.items())
        yield f"{FROM_RUN}left out, because it has {measured.table.num_ranks} ranks: {faults}"
    elif isinstance(measured, RunCosts):
        for number, (name, extent) in enumerate(measured.faults.items(), start=1):
            healthy_s, _ = iteration_of(replace(plan, measured=measured.without([name])), schedule)
            yield f"{FROM_RUN}{number}. {name} ({extent}); if healthy: {seconds(healthy_s)} (--without {number})"


def _tokens(plan: Plan, schedule: Schedule) -> int:
    return schedule.num_microbatches * plan.modelled_source.tokens_per_microbatch


def _other_orders(plan: Plan, step: TrainingStep, found: StageCostSet) -> list[str]:
    drawn, timeline = sample_lengths(plan), step.timeline
    if drawn is None or len(drawn.tokens) == 1:
        return []
    order = np.argsort(drawn.quadratic_factor, kind="stable")
    others = {
        "shortest microbatch first": replace(drawn, tokens=drawn.tokens[order]),
        "longest first": replace(drawn, tokens=drawn.tokens[order[::-1]]),
    }
    if drawn.tokens.shape[1] > 1:
        others["sequences packed evenly"] = drawn.packed_evenly()
    split = AutoSplit(found.split) if plan.layer_split_rule == "auto" else plan.layer_split_rule
    assembled = plan.source.assemble(timeline.schedule, split)
    steps = {
        name: with_lengths(plan, timeline.schedule, assembled, other).costs for name, other in others.items()
    } | {"equal microbatches": found.costs.with_equal_microbatches()}
    lines = []
    for name, other_costs in steps.items():
        costs = _for_runtime(plan, timeline.schedule, other_costs)
        change = (
            simulate_graph(timeline.graph, costs, ready_s=timeline.ready_s).step_time_s / timeline.step_time_s - 1
        )
        lines.append(f"{name} {100 * change:+.1f} %")
    return [f"order: as drawn; of the step's time, {', '.join(lines)}"]


def iteration_of(plan: Plan, schedule: Schedule) -> tuple[float, float]:
    """Return the iteration time in seconds and the highest peak bytes."""
    _, costs, step = _step(plan, schedule)
    return step.time_s + costs.step_overhead_s, float(step.timeline.memory.peak_bytes.max())


def outcome_of(plan: Plan) -> tuple[float, float]:
    """Return the iteration time in seconds and the highest peak bytes."""
    _require_room(plan)
    if plan.schedule == AUTO:
        outcome = _project_auto(plan)
        return outcome.iteration_time_s, float(outcome.timeline.memory.peak_bytes.max())
    table, _ = table_of(plan, find(plan.schedule_name))
    return iteration_of(plan, table)


def assembled_of(plan: Plan) -> tuple[Schedule, StageCostSet]:
    if plan.schedule == AUTO:
        raise ConfigError("the schedule of a recorded run is known: give --schedule")
    table, _ = table_of(plan, find(plan.schedule_name))
    return table, _step(plan, table)[0]


def peaks_of(plan: Plan) -> list[float]:
    if plan.schedule == AUTO:
        timeline = _project_auto(plan).timeline
    else:
        timeline = _step(plan, table_of(plan, find(plan.schedule_name))[0])[2].timeline
    return [float(peak) for peak in timeline.memory.peak_bytes]


def _assembled(plan: Plan, schedule: Schedule, split: Split | None = None) -> StageCostSet:
    """A split "auto" is balanced here, not searched for."""
    assembled = plan.source.assemble(schedule, plan.layer_split_rule if split is None else split)
    return with_lengths(plan, schedule, assembled, sample_lengths(plan))


def _step(plan: Plan, schedule: Schedule) -> tuple[StageCostSet, StageCosts, TrainingStep]:
    split = plan.layer_split_rule
    if split == "auto" and _is_searched(plan, schedule):
        trial = _found_split(plan, schedule)
        if not plan.stragglers and plan.variation is None:
            return trial.stage_cost_set, trial.costs, trial.step
        split = AutoSplit(trial.counts)
    assembled = _assembled(plan, schedule, split)
    costs = with_variation(schedule, _costs_of(plan, schedule, assembled), plan.variation)
    return assembled, costs, simulate_step(schedule, costs, assembled.step_costs)


def _costs_of(plan: Plan, schedule: Schedule, assembled: StageCostSet) -> StageCosts:
    costs = _for_runtime(plan, schedule, assembled.costs)
    return costs.replace(between_rounds_s=between_rounds_s(schedule, costs, assembled.step_costs))


def _is_searched(plan: Plan, schedule: Schedule) -> bool:
    """Measured times of ranks do not depend on the layers per stage."""
    return schedule.num_model_stages > 1 and plan.measured is None


def _found_split(plan: Plan, schedule: Schedule) -> SimulatedSplit:
    """Stragglers are accidents, so they do not move layers."""
    usual = replace(plan, stragglers=())

    def simulated(counts: tuple[int, ...] | None) -> SimulatedSplit:
        split = "auto" if counts is None else AutoSplit(counts)
        return _trial(usual, schedule, _assembled(usual, schedule, split))

    return SplitSearch(simulated, plan.modelled_source.layer_costs(), plan.memory_bound_bytes).best()


def _trial(plan: Plan, schedule: Schedule, assembled: StageCostSet) -> SimulatedSplit:
    costs = _costs_of(plan, schedule, assembled)
    step = simulate_step(schedule, costs, assembled.step_costs)
    return SimulatedSplit(tuple(assembled.split), assembled, costs, step, step.time_s + costs.step_overhead_s)


def _with_stages(plan: Plan, schedule: Schedule) -> tuple[Plan, str]:
    from ppsim.costs.assemble_job import assemble_job  # heavy import: costs of models
    from ppsim.costs.job_plans import with_plans
    from ppsim.costs.ledger import Ledger
    from ppsim.projection.stage_search import StageSearch

    job, usual = plan.job, replace(plan, stragglers=())
    assert job is not None
    ledger, scale = Ledger(job), scale_of(job)

    def simulated(split: Sequence[int] | str, plans: "Sequence[StagePlan]") -> SimulatedSplit:
        counts: Split = split if isinstance(split, str) else AutoSplit(split)
        assembled = assemble_job(job, schedule, split=counts, ledger=ledger, plans=plans)
        return _trial(usual, schedule, assembled.scaled(scale))

    limit = plan.memory_bound_bytes or np.inf
    searched = StageSearch(ledger, schedule, simulated, limit).best()
    planned = with_plans(job, searched.plans, searched.trial.counts)
    line = f"plan: layers and recomputation of each stage searched for, iteration {seconds(searched.trial.seconds)}"
    if searched.uniform_s is not None:
        line += f"; with the same recomputation on all stages {seconds(searched.uniform_s)} ({searched.uniform})"
    if searched.busiest_s is not None:
        line += f"; lower bound {seconds(searched.busiest_s)} (work of the busiest rank)"
    return replace(plan, job=planned, split=AutoSplit(searched.trial.counts), searches_stages=False), line


Tables: TypeAlias = Callable[[Plan, ScheduleEntry], tuple[Schedule, str | None]]
"""Builder of a schedule's table for a plan, like `table_of`; a `ScheduleError` becomes a reason."""


def project_all(
    plan: Plan,
    names: Sequence[str] | None = None,
    *,
    announce: Callable[[str], None] = lambda name: None,
    tables: Tables = table_of,
) -> Projections:
    """Return the projections of every schedule, or of those in `names`, for one plan, best first.

    `announce` is called with each name. Without a vpp, each schedule gets the fewest stages per rank that it
    allows. Without `names`, schedules of the plan's trainer come first. A schedule that does not support the plan,
    has more stages than layers, or deadlocks raises no error: the result has the reason instead.
    """
    _require_room(plan)
    projections, reasons = [], {}
    for entry in every_schedule().values() if names is None else map(find, names):
        name = entry.name
        announce(name)
        vpp = entry.stages_per_rank[0] if plan.vpp is None else plan.vpp
        num_slices = (plan.num_slices or entry.num_slices) if entry.takes("num_slices") else 1
        reason = entry.why_not(pp=plan.pp, vpp=vpp, microbatches=plan.round_microbatches) or _why_no_stages(
            plan, plan.pp * vpp // entry.num_replicas, num_slices=num_slices
        )
        if reason:
            reasons[name] = reason
            continue
        one = replace(
            plan, schedule=name, vpp=vpp, num_slices=num_slices,
            group_size=plan.group_size if entry.takes("group_size") else None,
        )  # fmt: skip
        try:
            table, note = tables(one, entry)
            projections.append(project_table(one, table, note=note))
        except ScheduleError as error:
            reasons[name] = str(error).splitlines()[0]
    several = Projections(projections, reasons, plan.trainer if names is None else "")
    projections.sort(key=lambda projection: (several.is_elsewhere(projection), *projection.sort_key))
    return several


def _why_no_stages(plan: Plan, num_stages: int, *, num_slices: int = 1) -> str | None:
    if not plan.has_model:
        return None
    source, plans = plan.modelled_source, plan.job.stage_plans if plan.job else ()
    if plans and len(plans) != num_stages:
        return f"the plan of --plan has {len(plans)} stages: got {num_stages}"
    return why_no_split(plan.layer_split_rule, source.num_layers, num_stages) or why_no_slices(
        source.sequence_length, num_slices, hidden_size=source.hidden_size
    )


def _without_model(plan: Plan) -> str:
    if plan.job is not None or not plan.has_model:
        return ""
    default = " (the default)" if plan.source.name == f"profile {DEFAULT}" else ""
    return f"; no --model was given, so {plan.source.name}{default} is projected"


def seconds_per_launch(job: "Job") -> float:
    """Host seconds per launch by the schedule: an action has one launch, a message between ranks two."""
    if job.execution.cuda_graphs == "full":
        return 0.0
    constant = job.cluster.constants.launch_s
    return job.launch_s if job.launch_s is not None else constant.value if constant else 0.0


def _slowdown(job: "Job | None") -> float:
    """Slowdown of compute during a message between ranks, as a fraction."""
    constant = job.cluster.constants.overlap_slowdown if job else None
    return constant.value if constant else 0.0


def _for_runtime(plan: Plan, schedule: Schedule, costs: StageCosts) -> StageCosts:
    slow = dict(plan.stragglers)
    costs = costs.on_stages(
        num_stages=schedule.num_stages, num_ranks=schedule.num_ranks, num_replicas=schedule.num_replicas,
        in_torch=plan.runtime == "torch",
        factor=np.array([slow.get(rank, 1.0) for rank in schedule.stage_to_rank.tolist()]) if slow else None,
    )  # fmt: skip
    launch_s = seconds_per_launch(plan.job) if plan.job else 0.0
    costs = costs.replace(hop_overhead_s=plan.hop_overhead_s).with_calls(communication_of(plan, schedule))
    return costs.replace(
        # A recorded run shows how messages of one directed pair of ranks queue.
        channel=plan.channel or ("edge" if costs.slow_links is not None else RUNTIMES[plan.runtime][0]),
        receives=plan.receives,
        action_overhead_s=plan.action_overhead_s + launch_s,
        hop_overhead_s=costs.hop_overhead_s + launch_s,
        message_overhead_s=plan.message_overhead_s + launch_s,
        overlap_slowdown=plan.overlap_slowdown or _slowdown(plan.job),
        step_overhead_s=plan.step_overhead_s,
        first_pass_s=plan.first_pass_s,
        last_pass_s=plan.last_pass_s,
    )


def communication_of(plan: Plan, schedule: Schedule) -> Communication:
    """Return the plan's communication, or "overlap" if Megatron-LM's training loop cannot run the table."""
    asked = plan.communication
    return asked if asked == "overlap" or has_megatron_loop(schedule.compute_only()) else "overlap"
