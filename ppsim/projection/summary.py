"""The answer to a projection: interval, loss budget, sensitivities, bottleneck and advice."""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import hypot
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ppsim.base.errors import ConfigError, PpsimError
from ppsim.base.units import percent
from ppsim.costs.time_breakdown import MEASURED
from ppsim.machine.defaults import Dispatcher
from ppsim.machine.job_similarity import MEASURED_SPREAD, SHARES, correction_of
from ppsim.model.recompute import BY_OPERATORS
from ppsim.parallel.layer_partition import without_search
from ppsim.projection.cost import TrainingCost
from ppsim.projection.loss_breakdown import interval, loss_budget, sensitivities
from ppsim.projection.plan import AUTO, Plan
from ppsim.projection.projection import ConfigurationChange, Projection, ProjectionSummary
from ppsim.schedule.table import Schedule
from ppsim.simulation.variation import Variation, relative_spread
from ppsim.trainers.write_schedule import is_run_by

if TYPE_CHECKING:
    from ppsim.costs.job import Job
    from ppsim.machine.cluster import Constant

SecondsOf = Callable[[Plan], float]
"""Function that returns the iteration time of a plan."""


def fitted_spread(plan: Plan, seconds: float, seconds_of: SecondsOf, class_spread: float) -> float | None:
    """Return the standard deviation of the logarithm of the iteration time, or None if no run was fitted.

    It combines the variation between runs of the same job, the differences from the fitted runs, and the
    uncertainty of the constants.
    """
    job = plan.job
    if job is None or job.execution.compute_share is not None or not job.cluster.constants.runs:
        return None
    constants, said = job.cluster.constants, correction_of(job.cluster.constants.runs, job.job_features)
    unsure = {name: one for name, one in constants.named.items() if one.sigma and one.value}
    machine = SHARES.machine * class_spread
    if f"compute_share.{job.execution.dtype}" in unsure or any(
        name.startswith("operator_time.") for name in unsure
    ):
        effects = np.array([_effect(plan, seconds, seconds_of, name, one) for name, one in unsure.items()])
        correlation = np.eye(len(unsure))
        places = {name: index for index, name in enumerate(unsure)}
        for pair, number in constants.correlation.items():
            here, there = (places.get(name) for name in pair.split())
            if here is not None and there is not None:
                correlation[here, there] = correlation[there, here] = number
        machine = math.sqrt(max(0.0, float(effects @ correlation @ effects)))
    return math.hypot(MEASURED_SPREAD, said.unknown * class_spread, (1 - said.weight) * machine)


def _effect(plan: Plan, seconds: float, seconds_of: SecondsOf, name: str, one: "Constant") -> float:
    assert plan.job is not None
    assert one.sigma is not None
    cluster = plan.job.cluster
    less = replace(one, value=one.value * math.exp(-one.sigma / one.value))
    moved = cluster.with_constants(cluster.constants.having({name: less}))
    return math.log(seconds_of(replace(plan, job=replace(plan.job, cluster=moved))) / seconds)


_LEAST_GAIN = 0.005
"""Smallest gain of a recommended change."""


def advise(
    projection: Projection, project: Callable[[Plan], Projection], *, limit: int = 3
) -> list[ConfigurationChange]:
    """Return the changes that gain most throughput, best first; all fit in memory and gain at least 0.5 %.

    If the plan does not fit, the result is the fastest changes that make it fit, together with full recomputation
    if no single change does.
    """
    plan, is_too_large = projection.plan, projection.is_too_large

    def balanced(other: Plan) -> Projection:
        return project(replace(other, split=without_search(other.layer_split_rule)))

    found = _useful(projection, projected_changes(plan, balanced, is_too_large=is_too_large))
    if is_too_large and not found:
        found = _useful(projection, projected_with_checkpoints(plan, balanced))
    return found[:limit]


def _useful(projection: Projection, changes: Iterable[tuple[str, Projection]]) -> list[ConfigurationChange]:
    found, is_too_large = [], projection.is_too_large
    for change, made in changes:
        if made.is_too_large or (made.runtime_error and not projection.runtime_error):
            continue
        if made.tokens_per_s is None or projection.tokens_per_s is None:  # no model: same microbatches
            gain = projection.iteration_time_s / made.iteration_time_s - 1
        else:
            gain = made.tokens_per_s / projection.tokens_per_s - 1
        if gain >= _LEAST_GAIN or is_too_large:
            found.append(ConfigurationChange(change, made, gain, makes_it_fit=is_too_large))
    return sorted(found, key=lambda advice: (-advice.throughput_gain, advice.change))


IterationOf = Callable[[Plan, Schedule], tuple[float, float]]
"""Function from a plan and a table to the seconds of an iteration and the peak bytes."""

ESTIMATE_SPREAD = 0.14
"""Standard deviation of costs estimated from specifications, for GPU types without calibration runs.

±1.645 times this value contained 9 of 10 calibration rows of dense models before calibration constants per GPU type
were fitted to them (`benchmarks/fit_shares.py`).
"""

EXPERTS_SPREAD = 0.21
"""`ESTIMATE_SPREAD` for models with experts."""

JITTER = 0.03
"""Relative standard deviation of single actions, if no quartiles were measured."""


def projection_summary(
    projection: Projection,
    *,
    project: Callable[[Plan], Projection],
    iteration_of: IterationOf,
    tokens: float | None,
    with_advice: bool,
) -> ProjectionSummary:
    """`project` projects the plans that the advice tries, `iteration_of` the same table with other constants."""
    if tokens is not None and not 0 < tokens < float("inf"):
        raise ConfigError(f"--tokens must be more than 0: got {tokens:g}")
    plan = projection.plan
    spread, jitter = _spreads(projection)
    schedule = projection.timeline.schedule

    def seconds_of(other: Plan) -> float:
        # Changed constants must not change the split.
        split = projection.split if other.layer_split_rule == "auto" else other.split
        return iteration_of(replace(other, split=split), schedule)[0]

    spread = fitted_spread(plan, projection.iteration_time_s, seconds_of, spread) or spread
    of_actions = percent(relative_spread(jitter))
    of_pace = ""
    if plan.rehearsal and plan.rehearsal.reference_s:
        of_pace = f" (drift of this machine's speed: {percent(plan.rehearsal.pace_drift)})"
    of_ranks = f"{percent(plan.rank_spread)} per rank, " if plan.rank_spread else ""
    return ProjectionSummary(
        iteration_time_interval_s=interval(
            projection, spread=spread, jitter=jitter, rank_spread=plan.rank_spread or 0.0
        ),
        interval_basis=f"cost error: {percent(spread)} common{of_pace}, {of_ranks}{of_actions} per action, 1 σ",
        time_breakdown_s=loss_budget(projection),
        advice=advise(projection, project) if with_advice else [],
        cost=TrainingCost(
            projection.num_gpus,
            projection.iteration_time_s,
            plan.job.cluster.price_per_gpu_hour if plan.job else None,
            None if tokens is None else projection.training_days(tokens),
        ),
        by_stack_s=_by_stack(projection, project) if with_advice else {},
        sensitivities_function=partial(sensitivities, projection),
    )


def _by_stack(projection: Projection, project: Callable[[Plan], Projection]) -> dict[str, float]:
    """Each stack has its own layers per stage, as with `--stack`. Searches for tables or plans are not repeated."""
    job = projection.plan.job
    others = {
        name: other
        for name, other in projection.plan.by_stack.items()
        if other.schedule != AUTO and not other.searches_stages
    }
    if job is None or not others:
        return {}
    found = {job.stack_name: projection.iteration_time_s}
    for name, other in others.items():
        with suppress(PpsimError):
            found[name] = project(other).iteration_time_s
    return dict(sorted(found.items(), key=lambda one: one[1]))


def _spreads(projection: Projection) -> tuple[float, Variation]:
    plan = projection.plan
    told = plan.action_spread if plan.pass_factors is None else plan.pass_factors
    return spread_of(plan), (plan.source.jitter() or JITTER) if told is None else told


def spread_of(plan: Plan) -> float:
    """Return the standard deviation of the logarithm of a projected step time.

    Without calibration runs on the GPU type, it is the common spread of all GPU types, or the spread of the type's
    in-situ factors if that is larger.
    """
    job = plan.job
    if plan.rehearsal:
        return hypot(MEASURED_SPREAD, plan.rehearsal.pace_drift)
    if job is None or plan.measured is not None or all(basis == MEASURED for _, basis in job.costs.bases):
        return MEASURED_SPREAD
    efficiency, has_experts = job.cluster.device.efficiency, any(layer.is_moe for layer in job.model.kinds)
    said = efficiency.experts_spread if has_experts else efficiency.spread
    prior = EXPERTS_SPREAD if has_experts else ESTIMATE_SPREAD
    in_situ = efficiency.in_situ if job.costs.shares["table"] else None
    return said or max(prior, in_situ.sigma if in_situ else 0.0)


Made = TypeVar("Made")

_SCHEDULES = {
    1: ("1f1b", "zb-h1", "zb-h2"),
    2: ("interleaved-1f1b", "zbv-fixed", "interleaved-zb"),
    4: ("interleaved-1f1b",),
}
"""Schedules by stages per rank: available in runtimes, and built without a search."""


_TO_MEMORY = {1: ("zb-auto",), 2: ("v-flex",)}
"""Schedules whose search respects the memory limit."""

_MOST_SEARCHED = 4_000
"""Number of actions up to which a search of `_TO_MEMORY` takes about 1 s."""

_CHECKPOINTED = "--recompute full"


def projected_changes(
    plan: Plan, project: Callable[[Plan], Made], *, is_too_large: bool = False
) -> Iterator[tuple[str, Made]]:
    """Changes that cannot be projected are skipped."""
    for change, other in changed_plans(plan, is_too_large=is_too_large):
        with suppress(PpsimError):
            yield change, project(other)


def projected_with_checkpoints(plan: Plan, project: Callable[[Plan], Made]) -> Iterator[tuple[str, Made]]:
    """Full recomputation is added to each change, because it saves the most memory."""
    whole = dict(changed_jobs(plan.job)).get(_CHECKPOINTED) if plan.job and plan.measured is None else None
    if whole is not None:
        for change, made in projected_changes(replace(plan, job=whole), project):
            if "--recompute" not in change:
                yield f"{_CHECKPOINTED} {change}", made


def changed_plans(plan: Plan, *, is_too_large: bool = False) -> Iterator[tuple[str, Plan]]:
    split, trainer = plan.split if isinstance(plan.split, str) else None, plan.trainer
    is_limited = trainer != "" and is_run_by(trainer, plan.schedule_name)
    for vpp, names in _SCHEDULES.items():
        is_searched = is_too_large and 3 * plan.pp * vpp * plan.num_microbatches <= _MOST_SEARCHED
        for name in (*names, *(_TO_MEMORY.get(vpp, ()) if is_searched else ())):
            is_other = (name, vpp) != (plan.schedule_name, plan.vpp or 1) and plan.pp > 1
            if is_other and (not is_limited or is_run_by(trainer, name)):
                change = f"--schedule {name}" + (f" --vpp {vpp}" if vpp != (plan.vpp or 1) else "")
                yield change, replace(plan, schedule=name, vpp=vpp, group_size=None, num_slices=None, split=split)
    if plan.gradient_accumulation_steps > 1 and plan.pp > 1:
        yield "--gradient-accumulation-steps 1", replace(plan, gradient_accumulation_steps=1)
    if plan.job is not None and plan.measured is None:
        if plan.job.execution.ep_order:
            apart = "interleaved-1f1b" if (plan.vpp or 1) > 1 else "1f1b"
            execution = replace(plan.job.execution, overlap_ep=0.0)
            job = replace(plan.job, execution=execution)
            yield f"--overlap-ep 0 --schedule {apart}", replace(plan, job=job, schedule=apart)
        for change, job in changed_jobs(plan.job):
            pp = job.layout.pp
            if pp == plan.pp:
                yield change, replace(plan, job=job)
            elif not plan.stragglers:
                yield change, replace(plan, job=job, pp=pp, split=split)


def changed_jobs(job: "Job") -> "Iterator[tuple[str, Job]]":
    layout, execution = job.layout, job.execution
    for size in (2 * job.micro_batch, job.micro_batch // 2):
        yield from _changed(f"--micro-batch-size {size}", job, micro_batch=size)
    for name in ("tp", "pp"):
        for size in (2 * getattr(layout, name), getattr(layout, name) // 2):
            dp = layout.dp * getattr(layout, name) // size if size else 0
            if dp and dp * size == layout.dp * getattr(layout, name):
                try:
                    other = replace(layout, **{name: size, "dp": dp})
                except PpsimError:
                    continue
                divides = other.tp > 1 and (execution.sequence_parallel or layout.tp == 1)
                run = replace(execution, sequence_parallel=divides)
                yield from _changed(f"--{name} {size} --dp {dp}", job, layout=other, execution=run)
    has_experts = any(layer.is_moe for layer in job.model.layers)
    modules = BY_OPERATORS if job.fully_shard else "layernorm+moe_act" if has_experts else "mlp"
    for recompute in ("none", "core_attn" if execution.attention == "unfused" else modules, "full"):
        if recompute != execution.recompute:
            yield from _changed(
                f"--recompute {recompute}", job, execution=replace(execution, recompute=recompute), stage_plans=()
            )
    for zero_stage in (1, 3):
        if zero_stage != job.optimizer.zero_stage and layout.dp * layout.cp > 1:
            try:
                optimizer = replace(job.optimizer, zero_stage=zero_stage)
            except PpsimError:
                continue
            yield from _changed(f"--zero {zero_stage}", job, optimizer=optimizer)
    if has_experts:
        yield from _other_dispatchers(job)
    if not execution.sequence_parallel and layout.tp > 1:
        yield from _changed("--sequence-parallel", job, execution=replace(execution, sequence_parallel=True))
    if not job.overlap_grad_reduce:
        yield from _changed("--overlap-dp", job, overlap_grad_reduce=True, overlap_param_gather=True)
    elif not job.overlap_param_gather and job.optimizer.zero_stage:
        yield from _changed("--overlap-param-gather", job, overlap_param_gather=True)


def _other_dispatchers(job: "Job") -> "Iterator[tuple[str, Job]]":
    """DeepEP does not run on GB200 and GB300 (trainers/bridge/rules.py)."""
    execution, has_grace = job.execution, re.search(r"\bGB\d", job.cluster.device.name)
    others: tuple[Dispatcher, ...] = ("alltoall",) if has_grace else ("alltoall", "deepep")
    for dispatcher in others:
        if dispatcher != execution.moe_dispatcher and job.layout.ep > 1 and not execution.fused_experts:
            run = replace(execution, moe_dispatcher=dispatcher, dispatcher_sms=None)
            yield from _changed(f"--moe-dispatcher {dispatcher}", job, execution=run)


def _changed(change: str, job: "Job", **fields: object) -> "Iterator[tuple[str, Job]]":
    try:
        yield change, replace(job, **fields)  # type: ignore[arg-type]
    except PpsimError:
        return
