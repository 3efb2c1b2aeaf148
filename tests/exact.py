"""Optimal schedules with proof: a constraint model for CP-SAT (OR-tools).

Microbatches are identical, so each kind of action on each stage can run in microbatch order without loss
(docs/notes/bounds.md). Costs that are not multiples of a tick are rounded down, so that a proved bound holds for
the actual costs.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor, gcd, lcm
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from ppsim.base.arrays import Floats
from ppsim.base.errors import ConfigError
from ppsim.catalog.auto import Progress
from ppsim.catalog.search.best_table import in_microbatch_order
from ppsim.schedule.graph import EventGraph, build_graph
from ppsim.schedule.table import Action, Op, Schedule
from ppsim.simulation.bounds.lower import in_flight_limits, lower_bounds
from ppsim.simulation.bounds.problem import Criterion, Problem
from ppsim.simulation.engine import evaluate, evaluate_many
from ppsim.simulation.memory_per_action import memory_per_action

_KINDS = (Op.F, Op.I, Op.W)
_MOST_TICKS = 10**9  # most ticks per step if all costs are whole ticks
_TICKS = 10**7  # ticks per step otherwise
_MOST_UNITS = 2**32  # memory units for all activations of a rank; sizes are rounded down
_DIGITS = 12  # significant digits of costs
_ROUNDING = 1 + 1e-12  # tolerance for sums of floats


@dataclass(frozen=True, eq=False)
class ExactResult:
    """The best table found, its time at the actual costs, and a lower bound for all tables.

    `is_optimal` means that no table is better at costs in whole ticks. If all costs are multiples of `tick_s` (to
    12 digits), value and bound are then equal; otherwise `gap` is the uncertainty that remains.
    """

    schedule: Schedule
    value_s: float
    bound_s: float
    is_optimal: bool
    tick_s: float

    @property
    def gap(self) -> float:
        return max(self.value_s / self.bound_s - 1, 0.0) if self.bound_s > 0 else 0.0


def optimal(
    problem: Problem,
    *,
    criterion: Criterion = "step",
    hint: Schedule | None = None,
    lower_bound_s: float = 0.0,
    time_limit_s: float = 60.0,
    seed: int = 0,
    num_workers: int = 0,
    progress: Progress | None = None,
) -> ExactResult:
    """Return the best table that splits every backward, and a proved bound on all such tables.

    If `hint` is within the cap, the result is never worse. The search ends with a proof, after `time_limit_s`, or
    at Ctrl-C, and always returns a table. `num_workers` 0 uses one thread per core. One worker and one seed give a
    reproducible result, unless the time limit ends the search.

    Raises `ConfigError` for a hint of another shape and for a bound above the time of a table.

    >>> unit = {"forward_s": 1, "backward_input_s": 1, "backward_weight_s": 1}
    >>> best = optimal(Problem.of(stage_to_rank=[0, 1, 1, 0], num_microbatches=3, cap=3, **unit))
    >>> best.value_s, best.is_optimal
    (21.0, True)
    """
    problem = problem.always_split()
    start = one_at_a_time(problem) if hint is None else in_microbatch_order(hint, problem)
    best = start if fits(start, problem) else one_at_a_time(problem)
    reached_s = criterion_value_s(best, problem, criterion)
    if lower_bound_s > reached_s * _ROUNDING:
        raise ConfigError(f"lower_bound_s is {lower_bound_s:g}, but {best.name} takes {reached_s:g}")
    known_s = max(lower_bounds(problem).of(criterion), lower_bound_s)
    clock = _Clock.of(problem)
    if reached_s <= known_s * _ROUNDING:
        return ExactResult(best, value_s=reached_s, bound_s=known_s, is_optimal=True, tick_s=clock.tick_s)
    model = _Model(clock, criterion, least=clock.least(known_s, criterion))
    model.start_from(best, start)

    def announce(value: float, bound: float) -> None:
        if progress is not None:
            progress(clock.seconds(value), max(known_s, clock.seconds(bound)))

    limits = {"max_time_in_seconds": time_limit_s, "random_seed": seed, "num_workers": num_workers}
    found, bound, is_optimal = model.solve(limits, announce)
    if found is not None and fits(found, problem):
        best = min((found, best), key=lambda table: criterion_value_s(table, problem, criterion))
    else:
        is_optimal = False
    return ExactResult(
        schedule=best,
        value_s=criterion_value_s(best, problem, criterion),
        bound_s=max(known_s, clock.seconds(bound)),
        is_optimal=is_optimal,
        tick_s=clock.tick_s,
    )


@dataclass(frozen=True, eq=False)
class _Clock:
    """A problem with costs in whole ticks; `is_exact` if no cost had to be rounded down."""

    problem: Problem
    tick_s: float
    is_exact: bool
    overhead_s: float

    @classmethod
    def of(cls, problem: Problem) -> "_Clock":
        costs = (problem.forward_s, problem.input_s, problem.weight_s, problem.hop_s)
        exact = [[_fraction(seconds) for seconds in array] for array in costs]
        longest = problem.num_microbatches * sum((sum(some, Fraction()) for some in exact), Fraction())
        tick = _common_unit([seconds for some in exact for seconds in some]) or Fraction(1)
        is_exact = longest / tick <= _MOST_TICKS
        if not is_exact:
            tick = longest / _TICKS
        whole = [np.array([floor(seconds / tick) for seconds in some], dtype=np.float64) for some in exact]
        ticks = replace(
            problem, forward_s=whole[0], input_s=whole[1], weight_s=whole[2], hop_s=whole[3], overhead_s=0.0
        )
        return cls(ticks, float(tick), is_exact, problem.overhead_s)

    def seconds(self, ticks: float) -> float:
        """The result excludes the host time before the first start."""
        return ticks * self.tick_s - self.overhead_s

    def least(self, known_s: float, criterion: Criterion) -> int:
        ticks = lower_bounds(self.problem).of(criterion)
        if self.is_exact:
            ticks = max(ticks, (known_s + self.overhead_s) / self.tick_s)
        return ceil(ticks * (1 - 1e-11) - 1e-6)


def _fraction(number: float) -> Fraction:
    return Fraction(f"{number:.{_DIGITS}g}")


def _common_unit(numbers: list[Fraction]) -> Fraction:
    denominator = lcm(*(number.denominator for number in numbers))
    return Fraction(gcd(*(int(number * denominator) for number in numbers)), denominator)


class _Model:
    """The constraint model: an integer start for every action."""

    def __init__(self, clock: _Clock, criterion: Criterion, *, least: int) -> None:
        self.problem, self.criterion = clock.problem, criterion
        self.model = cp_model.CpModel()
        self.count = self.problem.num_microbatches
        self.duration = {
            op: [int(ticks) for ticks in costs]
            for op, costs in zip(
                _KINDS, (self.problem.forward_s, self.problem.input_s, self.problem.weight_s), strict=True
            )
        }
        self.hop = [int(ticks) for ticks in self.problem.hop_s]
        self._horizon = horizon = self.count * sum(map(sum, self.duration.values())) + 2 * self.count * sum(
            self.hop
        )
        self.start = {
            (op, stage, number): self.model.new_int_var(0, horizon, f"{stage}{op.name}{number}")
            for op in _KINDS
            for stage in range(self.problem.num_stages)
            for number in range(self.count)
        }
        self.time = self.model.new_int_var(least, horizon, "time")
        self._add_order()
        self._add_first_starts()
        for rank in range(self.problem.num_ranks):
            self._add_rank(rank)
            self._add_memory(rank)
        self.model.minimize(self.time)

    def end(self, op: Op, stage: int, number: int) -> Any:
        return self.start[op, stage, number] + self.duration[op][stage]

    def _add_order(self) -> None:
        stages = range(self.problem.num_stages)
        for stage in stages:
            for number in range(self.count):
                self.model.add(self.start[Op.I, stage, number] >= self.end(Op.F, stage, number))
                self.model.add(self.start[Op.W, stage, number] >= self.end(Op.I, stage, number))
                if stage > 0:
                    hop = self.hop[stage - 1]
                    self.model.add(self.start[Op.F, stage, number] >= self.end(Op.F, stage - 1, number) + hop)
                    self.model.add(self.start[Op.I, stage - 1, number] >= self.end(Op.I, stage, number) + hop)
                if number > 0:
                    for op in _KINDS:
                        self.model.add(self.start[op, stage, number] >= self.end(op, stage, number - 1))

    def _add_first_starts(self) -> None:
        """The first start of a rank is known if all earlier stages are the first stages of their ranks."""
        firsts = {stages[0] for stages in self.problem.stages_of}
        for stage in range(self.problem.num_stages):
            if stage not in firsts:
                break
            self.model.add(self.start[Op.F, stage, 0] == int(self.problem.reach_s[stage]))

    def _add_rank(self, rank: int) -> None:
        stages = self.problem.stages_of[rank]
        self.model.add_no_overlap(
            self.model.new_fixed_size_interval_var(self.start[op, stage, number], self.duration[op][stage], "")
            for stage in stages for op in _KINDS for number in range(self.count)
        )  # fmt: skip
        begin = self.start[Op.F, stages[0], 0] if self.criterion == "span" else 0
        for stage in stages:
            self.model.add(self.time >= self.end(Op.W, stage, self.count - 1) - begin)

    def _add_memory(self, rank: int) -> None:
        """Add the memory cap and its consequences for pairs of stages.

        Example: with n activations in flight, the next forward waits until one is freed.
        """
        stages = self.problem.stages_of[rank]
        whole = [_fraction(self.problem.activation[stage]) for stage in stages]
        kept = [_fraction(self.problem.kept[stage]) for stage in stages]
        if self.problem.cap[rank] >= self.count * sum(whole) or not any(whole):
            return
        unit = max(_common_unit([*whole, *kept]), self.count * sum(whole) / _MOST_UNITS)
        cap = floor(Fraction(float(self.problem.cap[rank])) / unit)
        sizes, kept_sizes = [floor(size / unit) for size in whole], [floor(size / unit) for size in kept]
        for turn in in_flight_limits(np.array(sizes), np.array(kept_sizes), cap):
            forward, backward = stages[turn.forward], stages[turn.backward]
            if turn.in_flight < self.count:
                for number in range(int(turn.in_flight), self.count):
                    freed = self.end(turn.until, backward, number - int(turn.in_flight))
                    self.model.add(self.start[Op.F, forward, number] >= freed)
        if len(stages) == 1 and sizes == kept_sizes:
            return  # the constraints above are equivalent to the cap
        intervals, demands = [], []
        for stage, size, kept_size in zip(stages, sizes, kept_sizes, strict=True):
            for op, demand in ((Op.I, size - kept_size), (Op.W, kept_size)):
                for number in range(self.count) if demand else ():
                    begin, end = self.start[Op.F, stage, number], self.end(op, stage, number)
                    held = self.model.new_int_var(0, self._horizon, "")
                    intervals.append(self.model.new_interval_var(begin, held, end, ""))
                    demands.append(demand)
        self.model.add_cumulative(intervals, demands, cap)

    def start_from(self, best: Schedule, hint: Schedule) -> None:
        self.model.add(self.time <= round(criterion_value_s(best, self.problem, self.criterion)))
        starts = starts_of(hint, self.problem).tolist()
        for action, begin in zip(hint, starts, strict=True):
            self.model.add_hint(self.start[action.op, action.stage, action.microbatch], round(begin))

    def solve(self, limits: dict[str, Any], announce: Progress) -> tuple[Schedule | None, float, bool]:
        """Return the best table or None, the bound in ticks, and whether the table is proved optimal."""

        class Announcer(cp_model.CpSolverSolutionCallback):
            def on_solution_callback(self) -> None:
                announce(self.objective_value, self.best_objective_bound)

        solver = cp_model.CpSolver()
        for name, value in limits.items():
            setattr(solver.parameters, name, value)
        status = solver.solve(self.model, Announcer())
        assert status != cp_model.INFEASIBLE, "a bound is above the time of a table"
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None, solver.best_objective_bound, False
        actions = sorted(self.start, key=lambda action: self._place(action, solver.value(self.start[action])))
        rows: list[list[Action]] = [[] for _ in range(self.problem.num_ranks)]
        for op, stage, number in actions:
            rows[self.problem.stage_to_rank[stage]].append(Action(op, stage, number))
        table = Schedule.from_rows(
            rows, stage_to_rank=self.problem.stage_to_rank.tolist(), num_microbatches=self.count, name="cp-sat"
        )
        return table, solver.best_objective_bound, status == cp_model.OPTIMAL

    def _place(self, action: tuple[Op, int, int], begin: int) -> tuple[int, ...]:
        """Sort key: by time; zero-length actions by microbatch, then in dependency order."""
        op, stage, number = action
        way = stage if op is Op.F else 4 * self.problem.num_stages - 2 * stage + (op is Op.W)
        return begin, begin + self.duration[op][stage], number, way


def starts_of(schedule: Schedule, problem: Problem) -> Floats:
    """Return the earliest start of every action, host time included; raises `Deadlock`."""
    graph = build_graph(schedule)
    return evaluate(graph, _durations(graph, problem), np.zeros(graph.num_nodes)).start[: graph.num_actions]


def one_at_a_time(problem: Problem) -> Schedule:
    """Return the slowest table, which needs the least memory."""
    rows: list[list[Action]] = [[] for _ in range(problem.num_ranks)]
    ranks = problem.stage_to_rank.tolist()
    for microbatch in range(problem.num_microbatches):
        for stage, rank in enumerate(ranks):
            rows[rank].append(Action(Op.F, stage, microbatch))
        for stage, rank in reversed(list(enumerate(ranks))):
            rows[rank] += [Action(Op.I, stage, microbatch), Action(Op.W, stage, microbatch)]
    return Schedule.from_rows(
        rows, stage_to_rank=ranks, num_microbatches=problem.num_microbatches, name="one at a time"
    )


def criterion_value_s(schedule: Schedule, problem: Problem, criterion: Criterion) -> float:
    graph = build_graph(schedule)
    times = evaluate_many(graph, _durations(graph, problem), np.zeros(graph.num_nodes))
    return float((times.step_time_s if criterion == "step" else times.span_s)[0]) - problem.overhead_s


def _durations(graph: EventGraph, problem: Problem) -> Floats:
    by_op = np.stack([problem.forward_s, problem.backward_s, problem.input_s, problem.weight_s])
    assert (Op.F, Op.B, Op.I, Op.W) == (0, 1, 2, 3)  # order of the rows of by_op
    op, stage = graph.schedule.op, graph.schedule.stage
    hop = np.minimum(stage[graph.source], stage[graph.target])
    return np.concatenate([by_op[op, stage], problem.hop_s[hop]])


def fits(schedule: Schedule, problem: Problem) -> bool:
    during, _ = memory_per_action(schedule, problem.activation, problem.kept)
    return bool((np.maximum.reduceat(during, schedule.rank_offsets[:-1]) <= problem.cap).all())
