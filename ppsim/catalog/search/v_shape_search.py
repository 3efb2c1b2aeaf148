"""Candidates from published patterns, and from repeated building blocks for two stages per rank in a V."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from ppsim.base.lru_cache import LRUCache
from ppsim.catalog.search import table_kernels as kernels
from ppsim.catalog.search.pipeline import Codes, empty_backlog, empty_table
from ppsim.catalog.search.target import Candidate, SearchTarget
from ppsim.schedule.table import Schedule

_GAPS = (0.0, 0.5, 1.0)
_PACES_DOWN = (1.0, 1.1, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
_PACES_UP = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0)
_TURNS = (0.0, 0.17, 0.33, 0.5, 0.67, 0.83)
_MOST_BLOCKS, _MOST_ACTIONS = 600, 1_000_000  # limits of one search: some 0.1 s
_PASSES: LRUCache[Codes] = LRUCache(
    2_000_000
)  # capacity in actions; searches for other memory caps start from the same orders


def published(target: SearchTarget, builders: Iterable[Callable[..., Schedule]]) -> Iterator[Candidate]:
    """Yield published patterns, and the same patterns with newly placed weight gradients."""
    shape = {"num_ranks": target.problem.num_ranks, "num_microbatches": target.problem.num_microbatches}
    for build in builders:
        candidate = target.timed(target.order_of(build(**shape)))
        assert candidate
        if candidate.fits:
            yield candidate
        yield from _filled(target, candidate.passes)


def _filled(target: SearchTarget, passes: Codes) -> Iterator[Candidate]:
    """Leave out tables that deadlock or exceed the memory limit."""
    for least_gap in _GAPS:
        table = empty_table(target.pipeline)
        fits = target.run(
            kernels.place_weight_gradients,
            inputs=(
                target.memory,
                passes.astype(np.int64),
                least_gap,
            ),  # as in other kernels: compiled once
            outputs=(table, empty_backlog(target.pipeline)),
        )
        if fits:
            yield Candidate(target, table.order, table.now_s)


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
        yield from _filled(target, passes)


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
