"""Simple equivalent tables."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ppsim.base.errors import ConfigError
from ppsim.schedule.check import validate
from ppsim.schedule.table import Action, Op, Schedule
from ppsim.simulation.bounds.problem import Problem


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
