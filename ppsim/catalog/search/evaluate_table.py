"""Evaluation of a table on an ideal network, and simple equivalent tables."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats
from ppsim.base.errors import ConfigError
from ppsim.schedule.check import validate
from ppsim.schedule.graph import EventGraph, build_graph
from ppsim.schedule.table import Action, Op, Schedule
from ppsim.simulation.bounds.problem import Criterion, Problem
from ppsim.simulation.engine import evaluate, evaluate_many
from ppsim.simulation.memory_per_action import memory_per_action


def starts_of(schedule: Schedule, problem: Problem) -> Floats:
    """Return the earliest start of every action, host time included; raises `Deadlock`."""
    graph = build_graph(schedule)
    return evaluate(graph, _durations(graph, problem), np.zeros(graph.num_nodes)).start[: graph.num_actions]


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


def in_microbatch_order(schedule: Schedule, problem: Problem) -> Schedule:
    """Split full backwards into I and W, and sort each kind on each stage by microbatch.

    The table needs the same memory, and is not slower except through the split. Raises `ConfigError` for another
    placement or number of microbatches, `ScheduleError` for an incomplete or misordered table.
    """
    validate(schedule)
    compute = schedule.compute_only()
    shape = (compute.stage_to_rank.tolist(), compute.num_microbatches)
    wanted = (problem.stage_to_rank.tolist(), problem.num_microbatches)
    if shape != wanted:
        raise ConfigError(
            f"the hint has {shape[1]} microbatches and stages on ranks {shape[0]}; the problem has {wanted[1]} and "
            f"{wanted[0]}"
        )
    rows = []
    for row in compute.rows():
        counts: dict[tuple[Op, int], int] = {}
        actions = []
        for cell in row:
            for action in (cell,) if isinstance(cell, Action) else cell:
                for op in (Op.I, Op.W) if action.op is Op.B else (action.op,):
                    number = counts.get((op, action.stage), 0)
                    counts[op, action.stage] = number + 1
                    actions.append(Action(op, action.stage, number))
        rows.append(actions)
    return Schedule.from_rows(rows, stage_to_rank=shape[0], num_microbatches=shape[1], name=schedule.name)


def join_backwards(schedule: Schedule, stages: NDArray[np.bool_]) -> Schedule:
    """Make a full backward of each I that is directly followed by its W; the gradient leaves only after W."""
    begins = np.append(
        (schedule.op[:-1] == Op.I) & (schedule.op[1:] == Op.W)
        & (schedule.stage[:-1] == schedule.stage[1:]) & (schedule.microbatch[:-1] == schedule.microbatch[1:])
        & stages[schedule.stage[:-1]],
        False,
    )  # fmt: skip
    op = np.where(begins, np.int8(Op.B), schedule.op)
    return replace(schedule, op=op).select(~np.roll(begins, 1))


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
