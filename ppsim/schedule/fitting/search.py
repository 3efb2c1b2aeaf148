"""The best split-backward table found for a problem within a second or so, and the published heuristics alone."""

from collections.abc import Iterator
from itertools import chain, islice

import numpy as np

from ppsim.compiling import Engine
from ppsim.errors import ConfigError
from ppsim.schedule.fitting import one_chunk, v_shape
from ppsim.schedule.fitting.lists import improved, listed
from ppsim.schedule.fitting.local_search import searched
from ppsim.schedule.fitting.target import Candidate, Target, best_of
from ppsim.schedule.placement import loop
from ppsim.schedule.placement import v_shape as v_placement
from ppsim.schedule.problem import Criterion, Problem
from ppsim.schedule.table import Schedule

_PARTS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)  # idle time allowed from the start, in parts of the best table's
_NUM_ROUNDS = 6  # of rescheduling by urgency
_SEARCH_ROUNDS, _MOST_MOVES, _LEAST_MOVES, _MOST_PASSES = 3, 10_000, 500, 15_000_000  # a round of local search


def fitted(problem: Problem, *, criterion: Criterion = "step", engine: Engine = "auto") -> Schedule:
    """Return the best table found for these costs in which no rank ever holds more than its cap.

    Every backward is split. `criterion` is what is minimised. Candidates are list schedules, and, for one stage a
    rank, the zero-bubble heuristic, ZB-H1 and ZB-H2; for two in a V, ZB-V, V-Half and V-Min as published and with
    the weight gradients placed anew, the ZB-V heuristic, and V patterns of many paces. The best is rescheduled by
    its own urgencies and, up to some 30,000 actions, searched around. By the criterion the result is never worse
    than any of these where they keep the cap. Deterministic. Seconds and memory as in `Problem`.

    >>> problem = Problem.of(stage_to_rank=[0, 1], num_microbatches=3, cap=2, forward_s=[3, 5],
    ...                      backward_input_s=[4, 6], backward_weight_s=2)
    >>> print(*fitted(problem).rows()[0])
    0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2
    """
    return best_candidate(Target(problem, criterion, engine)).schedule("fitted")


def best_candidate(target: Target) -> Candidate:
    """Return the best of all generators, then of what the best known lets be tried."""
    best = best_of(_improved_briefly(best_of(family)) for family in _families(target) if family)
    if _is_one_chunk(target.problem):
        head = target.head_s
        for part in _PARTS:  # of the idle time that the worst rank has in the best table
            slack = float(head.max() + part * max(best.score_s - target.least_s, 0.0))
            best = best_of(chain([best], one_chunk.heuristic_runs(target, head, slack=slack)))
        best = improved(best, num_rounds=_NUM_ROUNDS)
    return _searched_briefly(best, num_rounds=_SEARCH_ROUNDS)


def _families(target: Target) -> Iterator[list[Candidate]]:
    """What the generators yield, each family apart: a search that starts from each ends in other places."""
    if _is_one_chunk(target.problem):
        published = one_chunk.heuristic_runs(target, target.minimising("span").head_s)
        yield [*published, *one_chunk.patterns(target), *listed(target)]
        return
    if _is_v(target.problem):
        yield list(v_shape.published(target))
        yield list(v_shape.heuristic_runs(target))
        yield list(v_shape.blocks_of_cells(target))
        yield list(v_shape.repeated_patterns(target))
    yield list(listed(target))


def _improved_briefly(best: Candidate) -> Candidate:
    return _searched_briefly(improved(best, num_rounds=_NUM_ROUNDS), num_rounds=1)


def _searched_briefly(best: Candidate, *, num_rounds: int) -> Candidate:
    """A few rounds of local search where they take no more than some tenths of a second."""
    moves = min(_MOST_MOVES, _MOST_PASSES // best.target.num_actions)
    if moves < _LEAST_MOVES:
        return best
    rounds = searched(best, moves_a_round=moves, bound_s=best.target.least_s)
    return next(islice(rounds, num_rounds, None))


def zb_heuristic(problem: Problem, *, engine: Engine = "auto") -> Schedule:
    """Return the table of the published heuristic alone, one stage a rank: the best span of its eight runs.

    With equal stages it takes every decision as the authors' own code does (arXiv 2401.10241, §3.1). Raises
    `ConfigError` for another placement.
    """
    if not _is_one_chunk(problem):
        raise ConfigError("the zero-bubble heuristic is for one stage a rank, in order")
    target = Target(problem, "span", engine)
    runs = one_chunk.heuristic_runs(target, target.head_s)
    return best_of(runs, break_ties=False).schedule("zb-heuristic")


def zbv_heuristic(problem: Problem, *, engine: Engine = "auto") -> Schedule | None:
    """Return the table of the published ZB-V heuristic alone, the best span of its runs; None where none fits.

    With equal stages it takes every decision as the authors' own code does (arXiv 2401.10241, §6). Raises
    `ConfigError` for another placement.
    """
    if not _is_v(problem):
        raise ConfigError("the ZB-V heuristic is for two stages a rank, in a V")
    runs = list(v_shape.heuristic_runs(Target(problem, "span", engine)))
    return best_of(runs, break_ties=False).schedule("zbv-heuristic") if runs else None


def _is_one_chunk(problem: Problem) -> bool:
    return np.array_equal(problem.stage_to_rank, loop(problem.num_ranks, problem.num_ranks))


def _is_v(problem: Problem) -> bool:
    return np.array_equal(problem.stage_to_rank, v_placement(problem.num_ranks, 2 * problem.num_ranks))
