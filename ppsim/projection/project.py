"""One plan → a projection: costs × placement × schedule × runtime."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.costs.assemble import Assembled
from ppsim.costs.layout import why_no_split
from ppsim.costs.slices import why_no_slices
from ppsim.costs.stages import StageCosts
from ppsim.errors import ConfigError, DoesNotFit, PpsimError, ScheduleError
from ppsim.projection.assumptions import assumptions_of
from ppsim.projection.changes import changed_plans
from ppsim.projection.optimise import Progress, optimise
from ppsim.projection.plan import AUTO, RUNTIMES, Plan
from ppsim.projection.tables import build, fit
from ppsim.schedule.catalog import Entry, every_schedule, find, require_shape
from ppsim.schedule.check import why_not_in_torch
from ppsim.schedule.graph import CHANNELS, EventGraph
from ppsim.schedule.placement import STYLES
from ppsim.schedule.problem import CAP_ROUNDING
from ppsim.schedule.room import BYTES_PROJECTED, require_room
from ppsim.schedule.table import Op, Schedule
from ppsim.simulation.report import report_of
from ppsim.simulation.run import simulate
from ppsim.simulation.step import Step, simulate_step
from ppsim.simulation.timeline import Timeline
from ppsim.units import size

if TYPE_CHECKING:
    import pandas

    from ppsim.projection.answer import Answer

SECONDS_A_DAY = 86400.0


@dataclass(frozen=True)
class Projection:
    """What one step takes: the timeline, its report, throughput, and everything that was assumed.

    `step` is the pipeline's `timeline` with what is around it; `assembled` the costs before the runtime's corners.
    `tokens_per_s` and `model_flops_utilization` are by iteration time, the step and what comes between two steps.
    `model_flops_utilization` is None where the profile names no peak for its dtype, nor has the rate of a product.
    `str` is what `ppsim project` prints.

    >>> import ppsim
    >>> made = ppsim.project(pp=4, microbatches=8)
    >>> print(made)  # doctest: +ELLIPSIS
    1f1b   pp 4   vpp 1   8 microbatches
    step time      1.74 s (bubble 27.67 %)
    ...
    >>> round(made.tokens_per_s), round(made.timeline.bubble_ratio, 4)
    (14102, 0.2767)
    """

    plan: Plan
    step: Step
    assembled: Assembled
    costs: StageCosts
    iteration_s: float
    tokens_per_s: float
    model_flops_utilization: float | None
    peak_flops_per_s: float | None
    assumptions: list[str]

    @property
    def timeline(self) -> Timeline:
        """The pipeline's timeline."""
        return self.step.timeline

    @cached_property
    def report(self) -> dict[str, Any]:
        """What `ppsim.simulation.report` says of the timeline, within the plan's memory limit."""
        return report_of(self.timeline, self.costs, memory_limit_bytes=self.plan.memory_limit_bytes)

    @cached_property
    def other_channels(self) -> dict[str, float | None]:
        """The step time under every channel policy, None where the table deadlocks there."""
        return _by_channel(self.timeline, self.costs)

    @cached_property
    def answer(self) -> "Answer":
        """What `ppsim project` says beside it: interval, fit, loss budget, sensitivities, bottleneck and advice.

        Projects the near alternatives of the plan when first asked.

        >>> import ppsim
        >>> answer = ppsim.project(pp=4, microbatches=8).answer
        >>> list(answer.budget_s)
        ['ideal', 'compute beyond the ideal', 'idle by the schedule', 'idle by the network']
        >>> answer.advice[0].change, round(answer.advice[0].gain, 2)
        ('schedule zbv-fixed, vpp 2', 0.28)
        """
        from ppsim.projection.answer import answer_of

        return answer_of(self)

    def days(self, tokens: float) -> float:
        """Return how many days it takes to train on `tokens` tokens.

        >>> import ppsim
        >>> round(ppsim.project(model="llama3-8b", gpus=64, tp=2, pp=4).days(15e12))
        329
        """
        return tokens / self.tokens_per_s / SECONDS_A_DAY

    def to_frame(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame with one row a rank: time by cause, and the most memory.

        Columns: rank, busy_s, idle_s, bubble_ratio, peak_activation_bytes, peak_bytes, peak_at, and idle time by
        cause: warm_up_s, cool_down_s, waiting_compute_s, exposed_communication_s, overhead_s.

        >>> import ppsim
        >>> ppsim.project(pp=4, microbatches=8).to_frame()["peak_at"].tolist()
        ['0F3', '1F2', '2F1', '3F0']
        """
        import pandas

        ranks = [
            {key: value for key, value in row.items() if key != "idle_by_cause_s"}
            | {f"{cause}_s": value for cause, value in row["idle_by_cause_s"].items()}
            for row in self.report["ranks"]
        ]
        return pandas.DataFrame(ranks)

    def __str__(self) -> str:
        from ppsim.printed import printed
        from ppsim.show_answer import print_answer

        return printed(print_answer, self, self.answer)

    @property
    def split(self) -> list[int]:
        """Layers per stage."""
        return self.assembled.split

    @property
    def num_gpus(self) -> int:
        """All devices."""
        return self.timeline.schedule.num_ranks * self.plan.source.gpus_per_rank

    @property
    def not_in_runtime(self) -> str | None:
        """Why the runtime of the plan cannot run the table as it stands, or None where it can."""
        return None if self.plan.runtime == "ideal" else why_not_in_torch(self.timeline.schedule)

    @property
    def not_in_memory(self) -> str | None:
        """Which rank exceeds the limit or, without one, the device of the job; None where none does."""
        return _excess(self.timeline, self.plan.memory_bound_bytes)

    @property
    def place(self) -> tuple[bool, float, str]:
        """By which a list is sorted: plans that run and fit before others, then by iteration time."""
        is_unusable = bool(self.not_in_runtime or self.not_in_memory)
        return is_unusable, self.iteration_s, self.plan.schedule_name

    def to_json(self) -> dict[str, Any]:
        """Return the report with throughput, layout, the other channels and the assumptions; keys carry units."""
        return self.report | self.beside_report()

    def beside_report(self) -> dict[str, Any]:
        """Return what `to_json` has beside the report."""
        return {
            **self.plan.source.to_json(),
            "iteration_time_s": self.iteration_s,
            "exposed_s": self.step.exposed_s,
            "num_gpus": self.num_gpus,
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_per_gpu": self.tokens_per_s / self.num_gpus,
            "model_flops_utilization": self.model_flops_utilization,
            "peak_flops_per_s": self.peak_flops_per_s,
            "layers_per_stage": self.split,
            "pipeline_layout": self.assembled.contents,
            "step_time_by_channel_s": self.other_channels,
            "not_in_runtime": self.not_in_runtime,
            "not_in_memory": self.not_in_memory,
            "assumptions": self.assumptions,
        }


def project(plan: Plan | None = None, *, progress: Progress | None = None, **fields: Any) -> Projection:
    """Return the projection of a plan, given as a `Plan`, as its fields, or as a plan and the fields to change.

    `progress` is called while a table is searched for (auto), with the best time and its bound, in seconds.

    Raises `ConfigError` for what the schedule or the profile forbids, `Deadlock` where the table cannot run on
    the runtime's channels, `DoesNotFit` with the rank, its peak and what would fit.

    >>> project(pp=8, vpp=2).timeline.schedule.name
    'interleaved-1f1b'
    """
    plan = replace(plan, **fields) if plan else Plan(**fields)
    _require_room(plan)
    return _project_auto(plan, progress) if plan.schedule == AUTO else _project(plan, find(plan.schedule_name))


def _require_room(plan: Plan) -> None:
    """Raise `ConfigError` for no rank or microbatch, and for more of them than this machine can project."""
    require_shape(pp=plan.pp, microbatches=plan.num_microbatches)
    num_units = plan.num_microbatches * (plan.num_slices or 1)
    require_room(2 * plan.pp * (plan.vpp or 1) * num_units, bytes_each=BYTES_PROJECTED)


def _project(plan: Plan, entry: Entry) -> Projection:
    table, note = table_of(plan, entry)
    return project_table(plan, table, note=note)


def table_of(plan: Plan, entry: Entry) -> tuple[Schedule, str | None]:
    """Return the table of a schedule for a plan, at its costs where it is fitted to them, and a note of where from.

    Raises as `project` does, but for a table that exceeds the memory limit.
    """
    shape: dict[str, Any] = {
        "pp": plan.pp, "vpp": plan.vpp, "microbatches": plan.num_microbatches, "group_size": plan.group_size,
        "num_slices": plan.num_slices,
        "memory_limit_bytes": plan.memory_limit_bytes if entry.takes("memory_limit_bytes") else None,
    }  # fmt: skip
    vpp = entry.stages_per_rank[0] if plan.vpp is None else plan.vpp
    is_possible = entry.why_not(pp=plan.pp, vpp=vpp, microbatches=plan.num_microbatches) is None
    if is_possible and (
        reason := why_no_split(plan.how_split, plan.source.num_layers, plan.pp * vpp // entry.num_replicas)
    ):
        raise ConfigError(reason)
    if entry.takes("costs") and is_possible:  # what is not, `build` says
        return fit(entry, **shape, costs=_costs_on(plan, entry.placement, vpp))
    return build(entry, **shape), None


def _project_auto(plan: Plan, progress: Progress | None = None) -> Projection:
    """Search for a table on every placement that vpp leaves, each at its own costs."""
    vpp = 1 if plan.vpp is None else plan.vpp
    if plan.group_size is not None or plan.num_slices is not None:
        raise ConfigError("group size and slices are for schedules by name; auto has neither")
    found = optimise(
        pp=plan.pp, vpp=vpp, microbatches=plan.num_microbatches,
        costs=lambda style: _costs_on(plan, style, vpp),
        memory_limit_bytes=plan.memory_limit_bytes, time_limit_s=plan.search_s, seed=plan.seed,
        progress=progress,
    )  # fmt: skip
    note = f"schedule: searched for, from {found.started_from} on; placement {found.placement}; {found.proof}"
    return project_table(replace(plan, vpp=vpp), found.schedule, note=note)


def _costs_on(plan: Plan, style: str, vpp: int) -> StageCosts:
    """The costs of the layout on a placement, before there is a table."""
    require_shape(pp=plan.pp, microbatches=plan.num_microbatches)
    outline = Schedule.outline(STYLES[style](plan.pp, plan.pp * vpp), num_microbatches=plan.num_microbatches)
    return _for_runtime(plan, outline, plan.source.assemble(outline, plan.how_split).costs)


def project_table(plan: Plan, schedule: Schedule, *, note: str | None = None) -> Projection:
    """Return the projection of a table of the user's own, at the costs and on the runtime of `plan`.

    `note` says where the table is from, and comes first among the assumptions.
    """
    source = plan.source
    assembled, costs, step = _step(plan, schedule)
    if excess := _excess(step.timeline, plan.memory_limit_bytes):
        raise DoesNotFit(excess + _what_would_fit(plan))
    iteration = step.time_s + costs.step_overhead_s
    if iteration == 0:
        raise ConfigError(f"a step takes 0 s at the costs of {source.name}: there is nothing to project")
    peak, of_peak = source.peak()
    # A backward is two forwards' worth of model FLOPs, recomputation not counted.
    model_flops = 3 * assembled.forward_flops * schedule.num_microbatches
    return Projection(
        plan=plan,
        step=step,
        assembled=assembled,
        costs=costs,
        iteration_s=iteration,
        tokens_per_s=schedule.num_microbatches * source.tokens_per_microbatch / iteration,
        model_flops_utilization=model_flops / (iteration * schedule.num_ranks * peak) if peak else None,
        peak_flops_per_s=peak,
        assumptions=[*([note] if note else []), *assumptions_of(plan, schedule, assembled, costs), *of_peak],
    )


def iteration_of(plan: Plan, schedule: Schedule, *, graph: EventGraph | None = None) -> tuple[float, float]:
    """Return the seconds of an iteration and the bytes of the fullest rank, as `project_table` has them.

    Nothing else is found out, and no memory limit asked: what a search needs of thousands of plans. `graph` is the
    table's event graph on the plan's channel, where there is one already.
    """
    _, costs, step = _step(plan, schedule, graph)
    return step.time_s + costs.step_overhead_s, float(step.timeline.memory.peak_bytes.max())


def _step(plan: Plan, schedule: Schedule, graph: EventGraph | None = None) -> tuple[Assembled, StageCosts, Step]:
    assembled = plan.source.assemble(schedule, plan.how_split)
    costs = _for_runtime(plan, schedule, assembled.costs)
    return assembled, costs, simulate_step(schedule, costs, assembled.around, graph=graph)


@dataclass(frozen=True)
class Comparison:
    """Every schedule that is possible, and for the others the sentence that says why they are not.

    Those that the runtime executes and that fit on the job's device come first, and each kind by iteration time.
    `str` is what `ppsim project --schedule all` prints.
    """

    projections: list[Projection]
    reasons: dict[str, str]

    def to_frame(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame with one row a schedule that is possible, in the order of `projections`.

        Columns: schedule, vpp, step_time_s, iteration_time_s, bubble_ratio, span_bubble_ratio, tokens_per_s,
        model_flops_utilization, peak_bytes (of the fullest rank), not_in_runtime and not_in_memory (a sentence, or
        None).

        >>> import ppsim
        >>> found = ppsim.project_all(pp=4, microbatches=8).to_frame()
        >>> found.loc[found["not_in_runtime"].isna(), "iteration_time_s"].is_monotonic_increasing
        True
        """
        import pandas

        rows = [
            {
                "schedule": one.plan.schedule_name,
                "vpp": one.plan.vpp,
                "step_time_s": one.timeline.step_time_s,
                "iteration_time_s": one.iteration_s,
                "bubble_ratio": one.timeline.bubble_ratio,
                "span_bubble_ratio": one.timeline.span_bubble_ratio,
                "tokens_per_s": one.tokens_per_s,
                "model_flops_utilization": one.model_flops_utilization,
                "peak_bytes": float(one.timeline.memory.peak_bytes.max()),
                "not_in_runtime": one.not_in_runtime,
                "not_in_memory": one.not_in_memory,
            }
            for one in self.projections
        ]
        return pandas.DataFrame(rows)

    def __str__(self) -> str:
        from ppsim.printed import printed
        from ppsim.show import print_plans

        return printed(print_plans, self)


def project_all(
    plan: Plan, names: Sequence[str] | None = None, *, announce: Callable[[str], None] = lambda name: None
) -> Comparison:
    """Return the projections of every schedule, or of those named, for one plan, best first.

    `announce` is called with the name of each before it is projected.

    A plan without vpp gives each schedule the fewest stages a rank that it takes. What a schedule forbids, more
    stages than there are layers, a deadlock and lack of memory are reasons here, not errors; a wrong profile or
    split still raises.
    """
    _require_room(plan)
    return _project_each(plan, every_schedule().values() if names is None else map(find, names), announce)


def _project_each(
    plan: Plan, entries: Iterable[Entry], announce: Callable[[str], None] = lambda name: None
) -> Comparison:
    source = plan.source
    projections, reasons = [], {}
    for entry in entries:
        name = entry.name
        announce(name)
        vpp = entry.stages_per_rank[0] if plan.vpp is None else plan.vpp
        num_slices = (plan.num_slices or entry.num_slices) if entry.takes("num_slices") else 1
        reason = (
            entry.why_not(pp=plan.pp, vpp=vpp, microbatches=plan.num_microbatches)
            or why_no_split(plan.how_split, source.num_layers, plan.pp * vpp // entry.num_replicas)
            or why_no_slices(source.sequence_length, num_slices, hidden_size=source.hidden_size)
        )
        if reason:
            reasons[name] = reason
            continue
        # Of the rest, the limit is asked below: a projection that exceeds it would look for others that do not.
        one = replace(
            plan, schedule=name, vpp=vpp, num_slices=num_slices,
            group_size=plan.group_size if entry.takes("group_size") else None,
            memory_limit_bytes=plan.memory_limit_bytes if entry.takes("memory_limit_bytes") else None,
        )  # fmt: skip
        try:
            projection = _project(one, entry)
        except (ScheduleError, DoesNotFit) as error:
            reasons[name] = str(error).splitlines()[0]
            continue
        limit = plan.memory_limit_bytes
        if excess := _excess(projection.timeline, limit):
            reasons[name] = excess
        else:
            projections.append(replace(projection, plan=replace(projection.plan, memory_limit_bytes=limit)))
    projections.sort(key=lambda projection: projection.place)
    return Comparison(projections, reasons)


def _for_runtime(plan: Plan, schedule: Schedule, costs: StageCosts) -> StageCosts:
    if plan.runtime == "torch":
        costs = costs.with_torch_first_stage(
            num_stages=schedule.num_stages, num_ranks=schedule.num_ranks, num_replicas=schedule.num_replicas
        )
    if plan.stragglers:
        costs = _slowed(costs, schedule, dict(plan.stragglers))
    return costs.replace(
        channel=plan.channel or RUNTIMES[plan.runtime][0],
        receives=plan.receives,
        action_overhead_s=plan.action_overhead_s,
        hop_overhead_s=plan.hop_overhead_s,
        overlap_slowdown=plan.overlap_slowdown,
        step_overhead_s=plan.step_overhead_s,
    )


def _slowed(costs: StageCosts, schedule: Schedule, factors: dict[int, float]) -> StageCosts:
    """The costs with the compute of some ranks taking so many times as long."""
    counts = {"num_stages": schedule.num_stages, "num_ranks": schedule.num_ranks}
    found = costs.replace(slice_time_shares=None, slice_token_shares=None).resolved(
        **counts, num_replicas=schedule.num_replicas
    )
    factor = np.array([factors.get(int(rank), 1.0) for rank in schedule.stage_to_rank])
    return costs.replace(
        forward_s=found.forward_s * factor,
        backward_s=found.backward_s * factor,
        backward_input_s=found.backward_input_s * factor,
        backward_weight_s=found.backward_weight_s * factor,
    )


def _by_channel(timeline: Timeline, costs: StageCosts) -> dict[str, float | None]:
    times: dict[str, float | None] = {}
    for channel in CHANNELS:
        try:
            there = costs.replace(channel=channel)
            times[channel] = simulate(timeline.schedule, there, ready_s=timeline.ready_s).step_time_s
        except ScheduleError:
            times[channel] = None
    return times


def _excess(timeline: Timeline, limit: float | None) -> str | None:
    """The sentence that says which rank exceeds the limit, or None where all stay below."""
    peak = timeline.memory.peak_bytes
    rank = int(peak.argmax())
    if limit is None or peak[rank] <= limit * CAP_ROUNDING:
        return None
    at = int(timeline.memory.peak_at[rank])
    ops = timeline.schedule.op[int(timeline.schedule.rank_offsets[rank]) : at + 1]
    in_flight = int((ops == Op.F).sum() - (ops == Op.B).sum() - (ops == Op.W).sum())
    return (
        f"rank {rank} peaks at {size(float(peak[rank]))} > {size(limit)} at {timeline.name_of(at)} "
        f"({in_flight} forwards in flight)"
    )


_MOST_NAMED = 3


def _what_would_fit(plan: Plan) -> str:
    entries = every_schedule()
    improved_on = {name for entry in entries.values() for name in entry.published}
    others = [entry for name, entry in entries.items() if name not in (plan.schedule_name, *improved_on)]
    projections = _project_each(plan, others).projections
    fitting = [projection.plan.schedule_name for projection in projections if not projection.not_in_runtime]
    if len(fitting) > _MOST_NAMED:
        fitting[_MOST_NAMED:] = [f"{len(fitting) - _MOST_NAMED} slower ones"]
    if fitting:
        return f"; {' or '.join(fitting)} would fit"
    none = "; no schedule for this pp and vpp would fit"
    changes = _fitting_changes(plan) if plan.job else []
    return none + (f", but {' or '.join(changes[:_MOST_NAMED])} would" if changes else "")


def _fitting_changes(plan: Plan) -> list[str]:
    """What to change of a job so that it fits, the fastest first."""
    limit, found = plan.memory_limit_bytes, []
    for change, other in changed_plans(replace(plan, memory_limit_bytes=None)):
        try:
            made = project(other)
        except PpsimError:
            continue
        if not _excess(made.timeline, limit) and not made.not_in_runtime:
            found.append((-made.tokens_per_s, change))
    return [change for _, change in sorted(found)]
