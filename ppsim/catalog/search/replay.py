"""A split table on an ideal network, for the search: when it runs, whether it fits, and its plainest form.

The simulator does the same for any table and network; what is here needs nothing above the schedules.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats
from ppsim.base.errors import ConfigError
from ppsim.schedule.check import validate
from ppsim.schedule.dependencies import dependencies
from ppsim.schedule.table import NONE, Action, Op, Schedule
from ppsim.simulation.bounds.problem import Criterion, Problem


def starts_of(schedule: Schedule, problem: Problem) -> Floats:
    """Return the earliest start of every action of a table that `validate` accepts, its host time included.

    One entry an action in table order, in the unit of the problem's costs. Raises `ConfigError` for a table whose
    actions wait for each other.
    """
    needs = dependencies(schedule)
    neighbour, own = needs.neighbour.tolist(), needs.own.tolist()
    stage = schedule.stage.tolist()
    duration = durations_of(schedule, problem).tolist()
    hop, end = problem.hop_s.tolist(), [-1.0] * len(schedule)
    start = [0.0] * len(schedule)
    position = schedule.rank_offsets[:-1].tolist()
    last = schedule.rank_offsets[1:].tolist()
    free = [0.0] * schedule.num_ranks
    moved = True
    while moved:
        moved = False
        for rank in range(schedule.num_ranks):
            while position[rank] < last[rank]:
                entry = position[rank]
                begin = free[rank]
                if (before := own[entry]) != NONE:
                    begin = max(begin, end[before])
                if (before := neighbour[entry]) != NONE:
                    if end[before] < 0:
                        break
                    begin = max(begin, end[before] + hop[min(stage[entry], stage[before])])
                start[entry], end[entry] = begin, begin + duration[entry]
                free[rank] = end[entry]
                position[rank] += 1
                moved = True
    if position != last:
        raise ConfigError("the table's actions wait for each other: ppsim check names them")
    return np.array(start)


def durations_of(schedule: Schedule, problem: Problem) -> Floats:
    """Return the duration of every action, its host time included."""
    by_op = np.stack([problem.forward_s, problem.backward_s, problem.input_s, problem.weight_s])
    assert (Op.F, Op.B, Op.I, Op.W) == (0, 1, 2, 3)  # the rows of by_op
    durations: Floats = by_op[schedule.op, schedule.stage]
    return durations


def value_s(schedule: Schedule, problem: Problem, criterion: Criterion) -> float:
    """Return the step time or the span of a table, as the simulator has it on an ideal network."""
    start = starts_of(schedule, problem)
    end = start + durations_of(schedule, problem)
    first, last = start[schedule.rank_offsets[:-1]], end[schedule.rank_offsets[1:] - 1]
    seconds = last.max() - first.min() if criterion == "step" else (last - first).max()
    return float(seconds) - problem.overhead_s


def fits(schedule: Schedule, problem: Problem) -> bool:
    """Return whether no rank ever holds more than the problem's cap."""
    stage = schedule.stage
    gains = np.where(schedule.op == Op.F, problem.activation[stage], 0.0)
    losses = np.select(
        [schedule.op == Op.B, schedule.op == Op.I, schedule.op == Op.W],
        [problem.activation[stage], (problem.activation - problem.kept)[stage], problem.kept[stage]],
        0.0,
    )
    rows = zip(schedule.rank_offsets[:-1].tolist(), schedule.rank_offsets[1:].tolist(), strict=True)
    return all(
        bool(((np.cumsum(gains[a:b] - losses[a:b]) + losses[a:b]) <= cap).all())
        for (a, b), cap in zip(rows, problem.cap.tolist(), strict=True)
    )


def in_microbatch_order(schedule: Schedule, problem: Problem) -> Schedule:
    """Return the table with every full backward as I and W, and each kind on each stage in microbatch order.

    It needs as much memory, and no longer but for the split. Raises `ConfigError` for a table of another placement
    or number of microbatches, `ScheduleError` for one that is not complete and in order.
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


def joined(schedule: Schedule, stages: NDArray[np.bool_]) -> Schedule:
    """Return a split table with a full backward for every I that its own W follows at once, on the stages chosen.

    `stages` has one entry a stage. The table has no fused cells. A gradient then leaves when the W is done.
    """
    begins = np.append(
        (schedule.op[:-1] == Op.I) & (schedule.op[1:] == Op.W)
        & (schedule.stage[:-1] == schedule.stage[1:]) & (schedule.microbatch[:-1] == schedule.microbatch[1:])
        & stages[schedule.stage[:-1]],
        False,
    )  # fmt: skip
    op = np.where(begins, np.int8(Op.B), schedule.op)
    return replace(schedule, op=op).select(~np.roll(begins, 1))


def one_at_a_time(problem: Problem) -> Schedule:
    """Return the slowest table, which needs the least memory: a microbatch after the other, down and up."""
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
