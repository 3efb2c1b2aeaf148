"""Alternatives of a plan with one change each, named by the options to type."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from ppsim.base.errors import PpsimError
from ppsim.model.recompute import BY_OPERATORS
from ppsim.projection.plan import Plan

if TYPE_CHECKING:
    from ppsim.costs.job import Job

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
    split = plan.split if isinstance(plan.split, str) else None
    for vpp, names in _SCHEDULES.items():
        is_searched = is_too_large and 3 * plan.pp * vpp * plan.num_microbatches <= _MOST_SEARCHED
        for name in (*names, *(_TO_MEMORY.get(vpp, ()) if is_searched else ())):
            if (name, vpp) != (plan.schedule_name, plan.vpp or 1) and plan.pp > 1:
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
    if not execution.sequence_parallel and layout.tp > 1:
        yield from _changed("--sequence-parallel", job, execution=replace(execution, sequence_parallel=True))
    if not job.overlap_grad_reduce:
        yield from _changed("--overlap-dp", job, overlap_grad_reduce=True, overlap_param_gather=True)
    elif not job.overlap_param_gather and job.optimizer.zero_stage:
        yield from _changed("--overlap-param-gather", job, overlap_param_gather=True)


def _changed(change: str, job: "Job", **fields: object) -> "Iterator[tuple[str, Job]]":
    try:
        yield change, replace(job, **fields)  # type: ignore[arg-type]
    except PpsimError:
        return
