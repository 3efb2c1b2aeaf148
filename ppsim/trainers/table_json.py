"""Schedule tables as plain JSON, for runtimes that build tables in Python."""

from pathlib import Path
from typing import Annotated, Any, Literal

from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.base.file_schema import Bounds, ConvertBefore, FileSchema, validated
from ppsim.base.files import read_json
from ppsim.schedule.grammar import MOST
from ppsim.schedule.table import IDLE, NONE, Action, Cell, Op, Schedule

FORMAT: Literal["ppsim-table/1"] = "ppsim-table/1"

_Index = Annotated[int, Bounds(ge=NONE, le=MOST)]
_Number = Annotated[int, Bounds(ge=1, le=MOST)]
_PlainAction = Annotated[
    tuple[str, _Index, _Index], ConvertBefore(lambda value: tuple(value) if isinstance(value, list) else value)
]  # JSON has lists only


class _Table(FileSchema):
    format: Literal["ppsim-table/1"]
    name: str = ""
    num_microbatches: _Number
    num_replicas: _Number = 1
    num_slices: _Number = 1
    stage_to_rank: list[_Index]
    ranks: Annotated[list[list[list[_PlainAction]]], Bounds(min_length=1)]


def table_to_json(schedule: Schedule) -> dict[str, Any]:
    """Return, for each rank, a list of cells, each a list of actions `[op, stage, microbatch]`.

    A cell with several actions is fused, an empty cell is idle. Microbatch −1 marks an action without a microbatch
    (UNSHARD, RESHARD, REDUCE_GRAD).
    """
    return {
        "format": FORMAT,
        "name": schedule.name,
        "num_microbatches": schedule.num_microbatches,
        "num_replicas": schedule.num_replicas,
        "num_slices": schedule.num_slices,
        "stage_to_rank": schedule.stage_to_rank.tolist(),
        "ranks": [[_plain_cell(cell) for cell in row] for row in schedule.rows()],
    }


def table_from_json(data: Any, source: str) -> Schedule:
    if isinstance(data, dict) and "forward_s" in data:
        raise ConfigError(f"{source} holds costs, and a table is needed here: --costs takes it")
    table = validated(_Table, data, source)
    rows = [[_cell(cell, f"{source}: rank {rank}") for cell in row] for rank, row in enumerate(table.ranks)]
    stages = [stage for row in table.ranks for cell in row for _, stage, _ in cell]
    if max(stages, default=0) >= len(table.stage_to_rank):
        raise ScheduleError(
            f"{source}: stage_to_rank has {len(table.stage_to_rank)} stages, ranks has stage {max(stages)}"
        )
    return Schedule.from_rows(
        rows, stage_to_rank=table.stage_to_rank, num_microbatches=table.num_microbatches, name=table.name,
        num_replicas=table.num_replicas, num_slices=table.num_slices,
    )  # fmt: skip


def read_table(path: str | Path) -> Schedule:
    return table_from_json(read_json(path), str(path))


def _plain_cell(cell: Cell) -> list[list[Any]]:
    actions = [cell] if isinstance(cell, Action) else list(cell)
    return [[action.op.name, action.stage, action.microbatch] for action in actions if action.op is not Op.IDLE]


def _cell(cell: list[_PlainAction], where: str) -> Cell:
    actions = []
    for name, stage, microbatch in cell:
        if name not in Op.__members__ or name == Op.IDLE.name:
            operations = ", ".join(op.name for op in Op if op is not Op.IDLE)
            raise ScheduleError(f"{where}: unknown operation '{name}' (there are {operations})")
        if stage < 0 or Op[name].has_microbatch != (microbatch >= 0):
            raise ScheduleError(f"{where}: {name} cannot have stage {stage} and microbatch {microbatch}")
        actions.append(Action(Op[name], stage, microbatch))
    if not actions:
        return IDLE
    return actions[0] if len(actions) == 1 else tuple(actions)
