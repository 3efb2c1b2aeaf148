"""Detection of a run's schedule: action-by-action comparison with the catalogue."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from ppsim.base.errors import PpsimError
from ppsim.catalog.build import build, every_schedule
from ppsim.schedule.table import Schedule


@dataclass(frozen=True)
class ScheduleDetection:
    """Names of the catalogue's schedules that equal a table, or else the nearest schedule and its first difference.

    If `names` is empty and `nearest` is None, no schedule of the catalogue has the table's placement.
    """

    names: list[str]
    nearest: str | None = None
    difference: str = ""

    @property
    def sentence(self) -> str:
        if self.names:
            return f"{' = '.join(self.names)}, action by action"
        if self.nearest is None:
            return "an own order; no schedule of the catalogue places stages so"
        return f"an own order, nearest to {self.nearest}: {self.difference}"


def detect_schedule(table: Schedule) -> ScheduleDetection:
    """Schedules that are fitted to costs are not compared."""
    table = table.compute_only()
    names, nearest, most = [], None, -1
    for candidate in _candidates(table):
        if table == candidate:
            names.append(candidate.name)
        elif (common := _common(table, candidate)) > most:
            nearest, most = candidate, common
    if names or nearest is None:
        return ScheduleDetection(names)
    return ScheduleDetection([], nearest.name, _difference(table, nearest))


def _candidates(table: Schedule) -> Iterator[Schedule]:
    for entry in every_schedule().values():
        least, most = entry.stages_per_rank
        if (
            entry.takes("costs")
            or entry.num_slices != table.num_slices
            or not least <= table.vpp <= (most or table.vpp)
        ):
            continue
        try:
            schedule = build(entry, pp=table.num_ranks, vpp=table.vpp, microbatches=table.num_microbatches)
        except PpsimError:  # not possible with these numbers of ranks and microbatches
            continue
        if np.array_equal(schedule.stage_to_rank, table.stage_to_rank):
            yield schedule.compute_only()


def _rows(table: Schedule) -> list[list[str]]:
    names = [str(action) for action in table]
    return [names[begin:end] for begin, end in zip(table.rank_offsets, table.rank_offsets[1:], strict=False)]


def _common(table: Schedule, other: Schedule) -> int:
    """Count equal actions before the first difference, summed over ranks."""
    number = 0
    for row, expected in zip(_rows(table), _rows(other), strict=True):
        parts = [one != two for one, two in zip_longest(row, expected)]
        number += parts.index(True) if True in parts else len(parts)
    return number


def _difference(table: Schedule, other: Schedule) -> str:
    ranks = [
        (rank, row, expected)
        for rank, (row, expected) in enumerate(zip(_rows(table), _rows(other), strict=True))
        if row != expected
    ]
    rank, row, expected = ranks[0]
    pairs = list(zip_longest(row, expected, fillvalue="nothing"))
    first = next(first for first, (one, two) in enumerate(pairs) if one != two)
    here, there = pairs[first]
    number = f"{len(ranks)} of {table.num_ranks} ranks differ" if table.num_ranks > 1 else "it differs"
    return f"{number}, rank {rank} first at action {first}, where it runs {here} and {other.name} has {there}"
