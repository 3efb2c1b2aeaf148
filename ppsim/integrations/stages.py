"""Comparison of a table with the stages that a trainer built on this rank."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ppsim.schedule.check import why_not_in_torch
from ppsim.schedule.grammar import read_schedule
from ppsim.schedule.table import Schedule

Table: TypeAlias = Schedule | str | Path


def read(table: Table) -> Schedule:
    return table if isinstance(table, Schedule) else read_schedule(table)


def problems_of_stages(table: Schedule, stages: Sequence[Any], num_microbatches: int | None) -> list[str]:
    """Return a sentence for each difference between this rank's `PipelineStage`s and the table."""
    if reason := why_not_in_torch(table):
        return [f"torch cannot run {table.name or 'this table'}: {reason}"]
    if not stages:
        return ["this rank has no stages"]
    first, problems = stages[0], []
    rank, num_ranks = int(first.group_rank), int(first.group_size)
    if num_ranks != table.num_ranks:
        return [f"the table has {table.num_ranks} ranks, the stages are on {num_ranks}"]
    if first.num_stages != table.num_stages:
        problems.append(f"the table has {table.num_stages} stages, the model {first.num_stages}")
    built, wanted = sorted(int(stage.stage_index) for stage in stages), list(table.stages_of(rank))
    if built != wanted:
        problems.append(
            f"rank {rank} has stages {', '.join(map(str, built))}, the table gives it "
            f"{', '.join(map(str, wanted)) or 'none'}: its placement is another"
        )
    if num_microbatches is not None and num_microbatches != table.num_microbatches:
        problems.append(f"the table has {table.num_microbatches} microbatches, the run {num_microbatches}")
    return problems
