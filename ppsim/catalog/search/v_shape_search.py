"""Candidates for two stages per rank in a V."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.lru_cache import LRUCache
from ppsim.catalog.published.controllable_memory import building_blocks, from_block
from ppsim.catalog.search import table_kernels as kernels
from ppsim.catalog.search.pipeline import Codes, IdleTime, empty_backlog, empty_table
from ppsim.catalog.search.target import Candidate, SearchTarget
from ppsim.catalog.search.v_kernels import VChoices, v_heuristic
from ppsim.schedule.table import Schedule

_GAPS = (0.0, 0.5, 1.0)
_PACES_DOWN = (1.0, 1.1, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
_PACES_UP = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0)
_TURNS = (0.0, 0.17, 0.33, 0.5, 0.67, 0.83)
_MOST_BLOCKS, _MOST_CELL_BLOCKS, _MOST_ACTIONS = 600, 150, 1_000_000  # limits of one search: some 0.1 s
_PASSES: LRUCache[Codes] = LRUCache(
    2_000_000
)  # capacity in actions; searches for other memory caps start from the same orders


def heuristic_runs(target: SearchTarget) -> Iterator[Candidate]:
    """Run the ZB-V heuristic (arXiv 2401.10241, §6; the authors' scheduler).

    For each combination of choices, the heuristic runs again as long as the largest idle time decreases. In the
    next run, a rank may idle for the largest idle time of the last run minus its own (`VHeuristicState.spare_s`).
    """
    for before_first_gradient, before_forward in product((True, False), repeat=2):
        choices = VChoices(before_forward=before_forward, before_first_gradient=before_first_gradient)
        spare_s, least_idle_s = np.zeros(target.problem.num_ranks), np.inf
        while True:
            candidate, idle_s = _run(target, spare_s, choices)
            if candidate is None:
                break
            yield candidate
            worst_s = float(idle_s.max())
            if worst_s >= least_idle_s - target.tolerance_s:
                break
            spare_s, least_idle_s = worst_s - idle_s, worst_s


def _run(target: SearchTarget, spare_s: Floats, choices: VChoices) -> tuple[Candidate | None, Floats]:
    """Return the table (None if it exceeds the cap) and the idle time of each rank."""
    table, head_s = empty_table(target.pipeline), target.minimising("span").head_s
    idleness = IdleTime(idle_s=head_s, worst_s=np.array([head_s.max()]))
    takes_down = np.zeros(target.problem.num_ranks, dtype=np.int64)
    fits = target.run(
        v_heuristic,
        inputs=(target.memory, spare_s, choices),
        outputs=(table, empty_backlog(target.pipeline), idleness, takes_down),
    )
    return (Candidate(target, table.order, table.now_s) if fits else None), idleness.idle_s


def published(target: SearchTarget, builders: Iterable[Callable[..., Schedule]]) -> Iterator[Candidate]:
    """Yield published patterns, and the same patterns with newly placed weight gradients."""
    shape = {"num_ranks": target.problem.num_ranks, "num_microbatches": target.problem.num_microbatches}
    for build in builders:
        yield from _as_it_is_and_filled(target, build(**shape))


def blocks_of_cells(target: SearchTarget) -> Iterator[Candidate]:
    """Start with the building blocks with the longest microbatch lifetime."""
    problem = target.problem
    num_left = min(_MOST_CELL_BLOCKS, _MOST_ACTIONS // 2 // target.num_actions)
    for starts in reversed(building_blocks(problem.num_ranks) if num_left else []):
        steady = 1 + (starts[3] - starts[0] + starts[2] - starts[1]) / 12  # microbatches in memory per rank
        if num_left == 0:
            return
        if (steady * target.least_cap > problem.cap + target.least_cap).any():
            continue
        num_left -= 1
        table = from_block("block", starts, problem.num_microbatches, are_weights_in_order=False)
        yield from _as_it_is_and_filled(target, table)


def _as_it_is_and_filled(target: SearchTarget, schedule: Schedule) -> Iterator[Candidate]:
    candidate = target.timed(target.order_of(schedule))
    assert candidate
    if candidate.fits:
        yield candidate
    for least_gap in _GAPS:
        if again := fill_weight_gradients(target, candidate.passes, least_gap):
            yield again


def fill_weight_gradients(target: SearchTarget, passes: Codes, least_gap: float) -> Candidate | None:
    """Return None if the result deadlocks or exceeds the memory limit."""
    table = empty_table(target.pipeline)
    fits = target.run(
        kernels.place_weight_gradients,
        inputs=(target.memory, passes.astype(np.int64), least_gap),  # same type as in other kernels: compiled once
        outputs=(table, empty_backlog(target.pipeline)),
    )
    return Candidate(target, table.order, table.now_s) if fits else None


def repeated_patterns(target: SearchTarget) -> Iterator[Candidate]:
    """Yield candidates from repeated building blocks with varied intervals between stages, for about a second."""
    num_blocks = min(_MOST_BLOCKS, _MOST_ACTIONS // target.num_actions)
    dice = np.random.default_rng(0)
    grid = [_Block(down, up, (0.0, turn, 0.0)) for up, turn, down in product(_PACES_UP, _TURNS, _PACES_DOWN)]
    for number in range(num_blocks):
        block = grid[number] if number < len(grid) else _Block.drawn(dice, target.problem.num_ranks)
        passes = _PASSES.get(
            (target.shape_and_times, block), size=target.num_actions, make=partial(_repeated, target, block)
        )
        for least_gap in _GAPS:
            if candidate := fill_weight_gradients(target, passes, least_gap):
                yield candidate


@dataclass(frozen=True)
class _Block:
    """Durations in a building block: down the V, up the V, and the three turns of a microbatch.

    A pace is relative to the shortest possible time. Ranks from `until` on have pace 1. Turns are in periods: at
    the last rank after F, at rank 0 before I, at the last rank between the two I.
    """

    pace_down: float
    pace_up: float
    turns: tuple[float, float, float]
    until: int | None = None

    @classmethod
    def drawn(cls, dice: np.random.Generator, num_ranks: int) -> "_Block":
        first, middle, last = dice.choice(_TURNS, 3)
        return cls(
            dice.choice(_PACES_DOWN), dice.choice(_PACES_UP), (first, middle, last),
            until=int(dice.integers(1, num_ranks + 1)),
        )  # fmt: skip


def _repeated(target: SearchTarget, block: _Block) -> Codes:
    """Return F and I of the pattern in which microbatch i follows i periods after the first.

    This is a building block of Qi et al. 2024 (arXiv 2405.15362, §3 and App. A) in seconds instead of cells. The
    period is the largest work of a rank per microbatch.
    """
    problem = target.problem
    num_stages, stages, last = problem.num_stages, target.stages, problem.num_ranks - 1
    period = float(target.work_s.max()) / problem.num_microbatches
    is_slow = np.ones(num_stages, bool) if block.until is None else problem.stage_to_rank < block.until
    pace_down, pace_up = np.where(is_slow, block.pace_down, 1.0), np.where(is_slow, block.pace_up, 1.0)
    on_way_down = np.arange(num_stages) <= last
    hop_s = np.append(problem.hop_s, 0.0)
    forward_steps = np.where(on_way_down, pace_down, pace_up) * (problem.forward_s + hop_s)
    input_steps = np.where(on_way_down, pace_up, pace_down) * (problem.input_s + np.roll(hop_s, 1))
    forward_steps[last] += block.turns[0] * period
    input_steps[last + 1] += block.turns[2] * period
    forward_at = np.concatenate(([0.0], np.cumsum(forward_steps[:-1])))
    first_input = forward_at[-1] + problem.forward_s[-1] + block.turns[1] * period
    input_at = (first_input + np.concatenate(([0.0], np.cumsum(input_steps[:0:-1]))))[::-1]
    start = np.stack([input_at[stages], forward_at[stages]], axis=1)  # ties: I before F
    codes = np.stack([num_stages + stages, stages], axis=1).astype(np.int32)
    every = period * np.arange(problem.num_microbatches)
    when = start.reshape(problem.num_ranks, -1, 1) + every  # [ranks, actions per microbatch, microbatches]
    order = np.argsort(when.reshape(problem.num_ranks, -1), axis=1, kind="stable") // problem.num_microbatches
    passes: Codes = np.take_along_axis(codes.reshape(problem.num_ranks, -1), order, axis=1).ravel()
    return passes
