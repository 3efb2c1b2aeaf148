"""Full evaluation of a configuration: its schedule, its peak memory, and its iteration time.

Peak memory depends only on the order of a rank's actions, so it is known without a simulation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from ppsim.base.errors import ScheduleError
from ppsim.catalog.build import build, find
from ppsim.costs.stage_memory import StageMemory
from ppsim.projection.plan import Plan
from ppsim.projection.project import iteration_of, table_of
from ppsim.schedule.table import Schedule
from ppsim.simulation.memory_per_action import memory_of
from ppsim.simulation.stage_costs import StageCosts
from ppsim.tuning.lower_bounds import BoundsCalculator, ConfigurationBounds
from ppsim.tuning.space import Configuration, SearchProblem

Status = Literal["fits", "does not fit", "dominated", "not possible"]


@dataclass(frozen=True)
class EvaluationResult:
    """Result of evaluating a configuration; `peak_bytes` is of the rank with the highest peak.

    - "dominated": fits, but not simulated: another configuration is at least as fast with at most its memory.
    - "not possible": its P2P transfers deadlock.
    """

    status: Status
    peak_bytes: float
    iteration_time_s: float = float("inf")


@dataclass(frozen=True)
class EvaluationTask:
    """A configuration to evaluate; bounds and memory as in `ConfigurationBounds`, `rank` as `rank_of`."""

    key: str
    plan: Plan
    bound_s: float
    memory: StageMemory
    rank: Callable[[float, float], "Rank"]


def task_of(calculator: BoundsCalculator, bounds: ConfigurationBounds) -> EvaluationTask:
    plan = calculator.plan(bounds)
    return EvaluationTask(
        bounds.candidate.key,
        plan,
        bounds.bound_s,
        bounds.memory,
        partial(rank_of, calculator.question, bounds.candidate),
    )


Front: TypeAlias = Sequence[tuple[float, float]]
"""The Pareto set so far: (iteration time in seconds, highest peak memory of a rank in bytes)."""


Rank: TypeAlias = tuple[bool, bool, float]
"""Place in the ranking, lowest first: whether only other trainers run a configuration, whether it fits tightly, and
its seconds or their bound."""

LAST: Rank = (True, True, float("inf"))


def rank_of(question: SearchProblem, configuration: Configuration, peak_bytes: float, seconds: float) -> Rank:
    """For lower bounds of memory and time, return a lower bound of the place."""
    return question.is_elsewhere(configuration), question.verdict(configuration, peak_bytes) != "fits", seconds


def evaluate(
    tasks: Sequence[EvaluationTask], *, front: Front, slowest: Rank = LAST
) -> list[tuple[str, EvaluationResult]]:
    """Tasks that may rank before `slowest` are simulated even if they are dominated."""
    return [(task.key, _evaluate(task, front, slowest)) for task in tasks]


def _evaluate(task: EvaluationTask, front: Front, slowest: Rank) -> EvaluationResult:
    plan, limit = task.plan, task.plan.memory_limit
    assert limit is not None
    table = table_at(plan)
    if plan.split == "auto":  # the search changes the peak
        return simulate(plan, table)
    peak = _peak_bytes(task, table)
    if not limit.holds(peak):
        return EvaluationResult("does not fit", peak)
    if task.rank(peak, task.bound_s) > slowest and is_dominated(task.bound_s, peak, front):
        return EvaluationResult("dominated", peak)
    return simulate(plan, table)


def simulate(plan: Plan, table: Schedule) -> EvaluationResult:
    try:
        iteration_time_s, peak = iteration_of(plan, table)
    except ScheduleError:
        return EvaluationResult("not possible", float("inf"))
    fits = plan.memory_limit is None or plan.memory_limit.holds(peak)
    return EvaluationResult("fits" if fits else "does not fit", peak, iteration_time_s)


def is_dominated(bound_s: float, num_bytes: float, front: Front) -> bool:
    """Return whether a member of `front` is at least as fast as the bound with at most this memory."""
    return any(iteration_time_s <= bound_s and held <= num_bytes for iteration_time_s, held in front)


def exact_peak_bytes(task: EvaluationTask) -> float:
    return _peak_bytes(task, table_at(task.plan))


def _peak_bytes(task: EvaluationTask, table: Schedule) -> float:
    memory = task.memory
    costs = StageCosts(
        forward_s=0.0,
        backward_input_s=0.0,
        backward_weight_s=0.0,
        activation_bytes=memory.activation_bytes[0],
        activation_bytes_kept_for_weight=memory.activation_bytes[1],
        fused_activation_bytes=memory.pair_bytes,
        static_bytes=memory.static_bytes,
        update_bytes=memory.update_bytes,
    )
    return float(memory_of(table, costs.resolved_for(table)).peak_bytes.max())


def _is_fitted(plan: Plan) -> bool:
    entry = find(plan.schedule_name)
    return entry.takes("costs") or entry.takes("memory_limit_bytes")


def table_at(plan: Plan) -> Schedule:
    if _is_fitted(plan):
        return table_of(plan, find(plan.schedule_name))[0]
    assert plan.vpp is not None
    return build(plan.schedule_name, pp=plan.pp, vpp=plan.vpp, microbatches=plan.num_microbatches)
