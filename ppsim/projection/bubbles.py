"""Tables of bubble ratios by schedule and number of microbatches."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.catalog.build import ScheduleEntry, build, find, optimise_entry
from ppsim.projection.plan import Plan
from ppsim.projection.project import project_all
from ppsim.simulation.simulate import simulate
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.timeline import Timeline

if TYPE_CHECKING:
    import pandas

_SHARED_BY_STAGES = (
    "forward_s", "backward_input_s", "backward_weight_s", "backward_s", "fused_s", "activation_bytes",
    "activation_bytes_kept_for_weight",
)  # fmt: skip


def bubbles_of_plan(plan: Plan, *, schedules: Sequence[str], microbatches: Sequence[int]) -> "pandas.DataFrame":
    """Return the bubbles of a plan under other schedules and numbers of microbatches, one row for each combination.

    The global batch of a job follows the number of microbatches. `reason` says why a row has no numbers.
    """
    entries = _entries(schedules, microbatches)
    rows = []
    for count in microbatches:
        found = project_all(_with_microbatches(plan, count), schedules)
        timelines = {one.plan.schedule_name: one.timeline for one in found.projections}
        for entry in entries:
            row = _not_measured(entry, plan.pp, plan.vpp, count)
            if entry.name in timelines:
                rows.append(row | _measured(timelines[entry.name]))
            else:
                rows.append(row | {"reason": found.rejected[entry.name]})
    return _frame(rows)


def bubbles_at(
    costs: StageCosts, *, pp: int, schedules: Sequence[str], microbatches: Sequence[int], vpp: int | None = None
) -> "pandas.DataFrame":
    """Return a table like `bubbles_of_plan` for `costs` of a rank's whole part of the model.

    With v stages per rank, each stage has 1/v of these costs.

    >>> costs = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    >>> rows = bubbles_at(costs, pp=4, schedules=["1f1b"], microbatches=[4, 8])
    >>> [round(ratio, 4) for ratio in rows["bubble_ratio"]]
    [0.4286, 0.2727]
    """
    rows = []
    for entry in _entries(schedules, microbatches):
        for count in microbatches:
            row = _not_measured(entry, pp, vpp, count)
            v = row["vpp"]
            reason = entry.why_not(pp=pp, vpp=v, microbatches=count)
            timeline = None
            if reason is None:
                shared = _shared(costs, v // entry.num_replicas)
                try:
                    shape: dict[str, Any] = {"pp": pp, "vpp": v, "microbatches": count}
                    table = (
                        optimise_entry(entry, **shape, costs=shared)[0]
                        if entry.takes("costs")
                        else build(entry, **shape)
                    )
                    timeline = simulate(table, shared)
                except ScheduleError as error:
                    reason = str(error).splitlines()[0]
            if timeline is None:
                rows.append(row | {"reason": reason})
            else:
                rows.append(row | _measured(timeline))
    return _frame(rows)


def _entries(schedules: Sequence[str], microbatches: Sequence[int]) -> list[ScheduleEntry]:
    if not schedules or not microbatches:
        raise ConfigError("a sweep needs at least one schedule and one number of microbatches")
    if wrong := [count for count in microbatches if count < 1]:
        raise ConfigError(f"microbatches must be at least 1: got {wrong[0]}")
    return [find(name) for name in schedules]


def _with_microbatches(plan: Plan, count: int) -> Plan:
    job = plan.job
    if job is None:
        return replace(plan, microbatches=count)
    return replace(plan, job=replace(job, global_batch=count * job.micro_batch * job.layout.dp))


def _not_measured(entry: ScheduleEntry, pp: int, vpp: int | None, count: int) -> dict[str, Any]:
    return {
        "schedule": entry.name,
        "pp": pp,
        "vpp": entry.stages_per_rank[0] if vpp is None else vpp,
        "microbatches": count,
        "step_time_s": math.nan,
        "bubble_ratio": math.nan,
        "span_bubble_ratio": math.nan,
        "peak_bytes": math.nan,
        "reason": "",
    }


def _measured(timeline: Timeline) -> dict[str, float]:
    return {
        "step_time_s": timeline.step_time_s,
        "bubble_ratio": timeline.bubble_ratio,
        "span_bubble_ratio": timeline.span_bubble_ratio,
        "peak_bytes": float(timeline.memory.peak_bytes.max()),
    }


def _shared(costs: StageCosts, num_stages: int) -> StageCosts:
    given = {name: getattr(costs, name) for name in _SHARED_BY_STAGES if getattr(costs, name) is not None}
    return costs.replace(**{name: np.asarray(value) / num_stages for name, value in given.items()})


def _frame(rows: list[dict[str, Any]]) -> "pandas.DataFrame":
    import pandas

    return pandas.DataFrame(rows)
