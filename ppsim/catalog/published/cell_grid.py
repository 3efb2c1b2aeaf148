"""A schedule as a grid with one row per rank and one cell per time unit, which holds the kind of an action.

The functions are the steps of Qi et al. 2024 (arXiv 2405.15362), Appendix A, for two chunks per rank in a V.
"""

from typing import Any, TypeAlias

import numpy as np

from ppsim.base.arrays import Ints64
from ppsim.base.numba_jit import run_kernel
from ppsim.schedule.placement import v_shape
from ppsim.schedule.table import Op, Schedule

Grid: TypeAlias = Ints64

FREE = -1
# Kinds: 0 F down, 1 F up, 2 I on the way up, 3 I on the way down (the order in which a microbatch runs them), 4 W
# on the way up, 5 W on the way down.
NUM_KINDS = 6
_REPEAT = 6


def repeat_pattern(starts: Ints64, num_microbatches: int, *, backward_cells: int = 1) -> Grid:
    """Return the grid of a pattern that starts again for each microbatch, 6 cells later.

    `starts` has the cells of the first microbatch, [kinds F down, F up, I up, I down; ranks]. With two
    `backward_cells`, W directly follows its I.
    """
    num_ranks = starts.shape[1]
    width = int(starts.max()) + _REPEAT * (num_microbatches - 1) + backward_cells
    grid = np.full((num_ranks, width), FREE, dtype=np.int64)
    rank, later = np.arange(num_ranks)[:, None], _REPEAT * np.arange(num_microbatches)
    for kind in range(4):
        at = starts[kind][:, None] + later
        grid[rank, at] = kind
        if kind >= 2 and backward_cells == 2:
            grid[rank, at + 1] = kind + 2
    return grid


def without_weights(grid: Grid) -> Grid:
    return np.where(grid >= 4, FREE, grid)


def with_weights(grid: Grid) -> Grid:
    """Place each W in the first free cell after its I; W on the way up take precedence."""
    room = np.full((len(grid), int((grid >= 2).sum(axis=1).max())), FREE, dtype=np.int64)
    filled = np.concatenate([grid, room], axis=1)
    _run(_place_weights, filled, inputs=filled.shape)
    return _trimmed(filled)


def compact_grid(grid: Grid, num_microbatches: int) -> Grid:
    early = np.full_like(grid, FREE)
    finish = np.zeros(NUM_KINDS * len(grid) * num_microbatches, dtype=np.int64)
    counts = [np.zeros(NUM_KINDS * len(grid), dtype=np.int64), np.zeros(len(grid), dtype=np.int64)]
    _run(_squeeze, early, inputs=(grid.ravel(), *grid.shape, num_microbatches), others=[finish, *counts])
    return _trimmed(early)


def advance_actions(
    grid: Grid, num_microbatches: int, *, backward_cells: int = 1, are_weights_in_order: bool = True
) -> Grid:
    """Move actions to earlier free cells, in order, if the memory peak does not grow.

    If backwards take one cell, the steady state does not move: from the first I on the way down on rank 0 to the
    first F of the last microbatch. Each W stays after the previous W, or only after its own I if
    `are_weights_in_order` is False.
    """
    moved = grid.copy()
    num_ranks = len(grid)
    memory = np.cumsum(((grid == 0) | (grid == 1)).astype(np.int64) - (grid >= 4), axis=1)
    finish = np.zeros(4 * num_ranks * num_microbatches, dtype=np.int64)
    inputs_at = np.zeros(2 * num_ranks * num_microbatches, dtype=np.int64)
    count = np.zeros(NUM_KINDS * num_ranks, dtype=np.int64)
    _run(
        _move_ahead, moved,
        inputs=(*grid.shape, num_microbatches, backward_cells, int(memory.max()), int(are_weights_in_order)),
        others=[memory.ravel(), finish, inputs_at, count],
    )  # fmt: skip
    return _trimmed(moved)


def advance_cool_down(grid: Grid, num_microbatches: int) -> Grid:
    """In a grid without W, move actions after the last microbatch's start earlier if the peak does not grow."""
    moved = grid.copy()
    memory = np.zeros(grid.size, dtype=np.int64)
    waiting = np.zeros(grid.size, dtype=np.int64)
    finish = np.zeros(4 * len(grid) * num_microbatches, dtype=np.int64)
    count = np.zeros(4 * len(grid), dtype=np.int64)
    _run(_drain, moved, inputs=(*grid.shape, num_microbatches), others=[memory, waiting, finish, count])
    return _trimmed(moved)


def table_of(name: str, grid: Grid, *, backward: Op) -> Schedule:
    """With full backwards (`Op.B`), the cells of W are part of the backward."""
    num_ranks = len(grid)
    rank, cell = np.nonzero((grid >= 0) & ((grid < 4) | (backward is Op.I)))
    kind = grid[rank, cell]
    microbatch = np.empty(len(kind), dtype=np.int32)
    for one in range(NUM_KINDS):
        here = np.flatnonzero(kind == one)
        counts = np.bincount(rank[here], minlength=num_ranks)
        microbatch[here] = np.arange(len(here)) - np.repeat(np.cumsum(counts) - counts, counts)
    is_down = (kind == 0) | (kind == 3) | (kind == 5)
    return Schedule.from_columns(
        np.array([Op.F, Op.F, backward, backward, Op.W, Op.W])[kind],
        np.where(is_down, rank, 2 * num_ranks - 1 - rank), microbatch, None,
        np.cumsum([0, *np.bincount(rank, minlength=num_ranks)]),
        stage_to_rank=v_shape(num_ranks, 2 * num_ranks), name=name,
    )  # fmt: skip


def _trimmed(grid: Grid) -> Grid:
    width = int(np.flatnonzero((grid != FREE).any(axis=0))[-1]) + 1
    return np.ascontiguousarray(grid[:, :width])


def _run(kernel: Any, grid: Grid, *, inputs: Any, others: Any = ()) -> None:
    cells = grid.reshape(-1)  # a view: every grid is contiguous
    run_kernel(kernel, inputs=inputs, outputs=[cells, *others], size=grid.size)


def _arrival(kind: Any, rank: Any, microbatch: Any, num_ranks: Any, num_microbatches: Any, finish: Any) -> Any:
    source = rank - 1 if kind % 2 == 0 else rank + 1
    if 0 <= source < num_ranks:
        return finish[(kind * num_ranks + source) * num_microbatches + microbatch]
    return 0


def _earliest(kind: Any, rank: Any, microbatch: Any, num_ranks: Any, num_microbatches: Any, finish: Any) -> Any:
    """`finish` is the cell after each placed action."""
    slot = kind * num_ranks + rank
    earliest = _arrival(kind, rank, microbatch, num_ranks, num_microbatches, finish)
    if microbatch > 0:
        earliest = max(earliest, finish[slot * num_microbatches + microbatch - 1])
    if kind > 0:
        earliest = max(earliest, finish[(slot - num_ranks) * num_microbatches + microbatch])
    return earliest


def _held_after(kind: Any, active: Any, late: Any) -> Any:
    """Return activations and waiting W after a cell of this kind; a free cell runs a waiting W."""
    if kind == 0 or kind == 1:
        return active + 1, late
    if kind != -1:
        return active, late + 1
    if late > 0:
        return active - 1, late - 1
    return active, late


def _place_weights(num_ranks: int, width: int, cells: Any) -> None:
    for rank in range(num_ranks):
        up = down = 0  # waiting weight gradients
        for at in range(rank * width, (rank + 1) * width):
            if cells[at] == 2:
                up += 1
            elif cells[at] == 3:
                down += 1
            elif cells[at] == -1 and up > 0:
                cells[at] = 4
                up -= 1
            elif cells[at] == -1 and down > 0:
                cells[at] = 5
                down -= 1


def _squeeze(
    grid: Any, num_ranks: int, width: int, num_microbatches: int, cells: Any, finish: Any, count: Any, last: Any
) -> None:
    # `finish` and `last` hold the cell after the action; 0 means none.
    for cell in range(width):
        for rank in range(num_ranks):
            kind = grid[rank * width + cell]
            if kind == -1:
                continue
            slot = kind * num_ranks + rank
            microbatch = count[slot]
            count[slot] += 1
            earliest = last[rank]
            if kind < 4:
                earliest = max(earliest, _arrival(kind, rank, microbatch, num_ranks, num_microbatches, finish))
            finish[slot * num_microbatches + microbatch] = earliest + 1
            last[rank] = earliest + 1
            cells[rank * width + earliest] = kind


def _move_ahead(
    num_ranks: int, width: int, num_microbatches: int, backward_cells: int, peak: int, are_weights_in_order: int,
    cells: Any, memory: Any, finish: Any, inputs_at: Any, count: Any,
) -> None:  # fmt: skip
    # `finish` (per action) and `inputs_at` (backwards of a rank, ascending) hold the cell after the action.
    keeps_steady_state = backward_cells == 1
    phase = 0  # 0 warm-up, 1 steady state, 2 cool-down
    for cell in range(width):
        for rank in range(num_ranks):
            row = rank * width
            kind = cells[row + cell]
            if kind == -1 or (kind >= 4 and backward_cells == 2):
                continue  # the W of a full backward moves with its I
            length = backward_cells if kind == 2 or kind == 3 else 1
            slot = min(kind, 4) * num_ranks + rank
            microbatch = count[slot]
            count[slot] += 1

            if kind == 3 and rank == 0 and phase == 0:
                phase = 1
            stays = keeps_steady_state and phase == 1
            if phase == 1 and kind == 0 and microbatch == num_microbatches - 1:
                phase = 2

            if kind >= 4:  # the unused slot of `count` stores the cell after the previous W
                earliest = inputs_at[2 * rank * num_microbatches + microbatch]
                earliest = max(earliest, are_weights_in_order * count[5 * num_ranks + rank])
            else:
                earliest = _earliest(kind, rank, microbatch, num_ranks, num_microbatches, finish)
            position = cell
            if not stays:
                position = _first_place(row, cell, earliest, kind, length, peak, cells, memory)

            if position < cell:
                _move(cells, memory, row + cell, row + position, kind, length)
            if kind < 4:
                finish[slot * num_microbatches + microbatch] = position + length
            else:
                count[5 * num_ranks + rank] = position + 1
            if kind == 2 or kind == 3:
                first = 2 * rank * num_microbatches
                before = count[2 * num_ranks + rank] + count[3 * num_ranks + rank] - 1
                _insert(inputs_at, first, first + before, position + length)


def _first_place(
    row: Any, cell: Any, earliest: Any, kind: Any, length: Any, peak: Any, cells: Any, memory: Any
) -> Any:
    position = earliest
    if kind < 2:
        position = cell
        while position > earliest and memory[row + position - 1] < peak:
            position -= 1
    while position < cell and (cells[row + position] != -1 or cells[row + position + length - 1] != -1):
        position += 1
    return position


def _move(cells: Any, memory: Any, cell: Any, position: Any, kind: Any, length: Any) -> None:
    for offset in range(length):
        cells[position + offset] = cells[cell + offset]
        cells[cell + offset] = -1
    for at in range(position + length - 1, cell + length - 1):
        if kind < 2:
            memory[at] += 1
        elif kind >= 4 or length == 2:
            memory[at] -= 1


def _insert(ascending: Any, first: Any, at: Any, value: Any) -> None:
    while at > first and ascending[at - 1] > value:
        ascending[at] = ascending[at - 1]
        at -= 1
    ascending[at] = value


def _drain(
    num_ranks: int, width: int, num_microbatches: int,
    cells: Any, memory: Any, waiting: Any, finish: Any, count: Any,
) -> None:  # fmt: skip
    # `memory` and `waiting` hold the results of `_held_after` after each cell.
    peak = 0
    for rank in range(num_ranks):
        active = late = 0
        for at in range(rank * width, (rank + 1) * width):
            active, late = _held_after(cells[at], active, late)
            memory[at] = active
            waiting[at] = late
            peak = max(peak, active)

    phase = 0  # 0 warm-up, 1 steady state, 2 cool-down
    for cell in range(width):
        for rank in range(num_ranks):
            row = rank * width
            kind = cells[row + cell]
            if kind == -1:
                continue
            slot = kind * num_ranks + rank
            microbatch = count[slot]
            count[slot] += 1
            if kind == 3 and rank == 0 and phase == 0:
                phase = 1
            may_move = phase == 2
            if phase == 1 and kind == 0 and microbatch == num_microbatches - 1:
                phase = 2

            position = cell
            if may_move:
                position = _earliest(kind, rank, microbatch, num_ranks, num_microbatches, finish)
            while position < cell and not _stays_below(peak, row, width, cell, position, cells, memory, waiting):
                position += 1

            if position < cell:
                cells[row + position] = kind
                cells[row + cell] = -1
                active = memory[row + position - 1] if position > 0 else 0
                late = waiting[row + position - 1] if position > 0 else 0
                for at in range(row + position, row + width):
                    active, late = _held_after(cells[at], active, late)
                    memory[at] = active
                    waiting[at] = late
            finish[slot * num_microbatches + microbatch] = position + 1


def _stays_below(
    peak: Any, row: Any, width: Any, cell: Any, position: Any, cells: Any, memory: Any, waiting: Any
) -> Any:
    """The rank is simulated until its state is the same as before the move."""
    if cells[row + position] != -1:
        return False
    active = memory[row + position - 1] if position > 0 else 0
    late = waiting[row + position - 1] if position > 0 else 0
    highest = active
    for at in range(row + position, row + width):
        runs = cells[row + cell] if at == row + position else (-1 if at == row + cell else cells[at])
        active, late = _held_after(runs, active, late)
        highest = max(highest, active)
        if highest > peak or (at > row + cell and active == memory[at] and late == waiting[at]):
            break
    return highest <= peak
