"""A configuration in full: its table, what its ranks hold at their peaks, and how long an iteration takes.

What a rank holds depends on the order of its passes alone, so that a table says without being simulated whether it
fits. Tables and their event graphs are the same at any costs: a process keeps them (`ppsim.schedule.kept`), and
configurations of one shape come together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.errors import ScheduleError
from ppsim.catalog.build import build, find
from ppsim.projection.plan import Plan
from ppsim.projection.project import iteration_of, table_of
from ppsim.schedule.table import Schedule
from ppsim.simulation.bounds.problem import is_within
from ppsim.simulation.memory import held
from ppsim.tuning.outlook import Outlook, Outlooks

Status = Literal["fits", "does not fit", "dominated", "not possible"]


@dataclass(frozen=True)
class Outcome:
    """What became of a configuration.

    "fits": `iteration_time_s` and `peak_bytes` of its fullest rank. "dominated": it fits, and is no faster than one
    that holds no more, so that it was not simulated. "does not fit": `peak_bytes` says by how much.
    "not possible": its channels deadlock.
    """

    status: Status
    peak_bytes: float
    iteration_time_s: float = float("inf")


@dataclass(frozen=True)
class Task:
    """A configuration to evaluate: its plan, the least its iteration takes, and its bytes as `Outlook` has them."""

    key: str
    plan: Plan
    bound_s: float
    static_bytes: Floats
    activation_bytes: Floats


def task_of(outlooks: Outlooks, look: Outlook) -> Task:
    """Return what is to evaluate of an outlook."""
    plan = outlooks.plan(look)
    return Task(look.candidate.key, plan, look.bound_s, look.static_bytes, look.activation_bytes)


Front: TypeAlias = Sequence[tuple[float, float]]
"""Seconds of an iteration and bytes of the fullest rank of what was found so far."""


def evaluate(tasks: Sequence[Task], *, front: Front, slowest_s: float) -> list[tuple[str, Outcome]]:
    """Return the verdict on each task.

    A task is dominated if its bound is above `slowest_s`, and one of the `front` is as fast as its bound and holds
    no more.
    """
    return [(task.key, _evaluate(task, front, slowest_s)) for task in tasks]


def _evaluate(task: Task, front: Front, slowest_s: float) -> Outcome:
    plan, limit = task.plan, task.plan.memory_limit_bytes
    table = table_at(plan)
    peak = _peak_bytes(task, table)
    if not is_within(peak, limit):
        return Outcome("does not fit", peak)
    if task.bound_s > slowest_s and is_dominated(task.bound_s, peak, front):
        return Outcome("dominated", peak)
    try:
        iteration_time_s, peak = iteration_of(plan, table)
    except ScheduleError:
        return Outcome("not possible", peak)
    return Outcome("fits", peak, iteration_time_s)


def is_dominated(bound_s: float, num_bytes: float, front: Front) -> bool:
    """Return whether one of the front is as fast as the bound and holds no more."""
    return any(iteration_time_s <= bound_s and held <= num_bytes for iteration_time_s, held in front)


def exact_peak_bytes(task: Task) -> float:
    """Return the highest peak memory of the ranks of a configuration."""
    return _peak_bytes(task, table_at(task.plan))


def _peak_bytes(task: Task, table: Schedule) -> float:
    during, _ = held(table, *task.activation_bytes)
    return float((np.maximum.reduceat(during, table.rank_offsets[:-1]) + task.static_bytes).max())


def _is_fitted(plan: Plan) -> bool:
    entry = find(plan.schedule_name)
    return entry.takes("costs") or entry.takes("memory_limit_bytes")


def table_at(plan: Plan) -> Schedule:
    """Return the table of a plan, at its costs if its schedule is fitted to them."""
    if _is_fitted(plan):
        return table_of(plan, find(plan.schedule_name))[0]
    assert plan.vpp is not None
    return build(plan.schedule_name, pp=plan.pp, vpp=plan.vpp, microbatches=plan.num_microbatches)
