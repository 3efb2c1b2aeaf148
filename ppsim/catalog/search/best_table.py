"""Find the best split-backward table for a problem in about a second."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.base.numba_jit import Engine, TimeIsUp
from ppsim.catalog.published.controllable_memory import v_half_fixed, v_min_fixed, zbv_fixed
from ppsim.catalog.published.one_f_one_b import zb_h1, zb_h2
from ppsim.catalog.search import v_shape_search as v_shape
from ppsim.catalog.search.anneal import AnnealParameters, anneal, empty_timing
from ppsim.catalog.search.lists import improve_by_rescheduling, list_schedules
from ppsim.catalog.search.repetition import repeat_window, searched_windows
from ppsim.catalog.search.target import Candidate, SearchTarget, best_of, better
from ppsim.schedule.check import validate
from ppsim.schedule.placement import loop
from ppsim.schedule.placement import v_shape as v_placement
from ppsim.schedule.table import Action, Op, Schedule
from ppsim.simulation.bounds.problem import Criterion, Problem
from ppsim.simulation.simulate import simulate
from ppsim.simulation.stage_costs import StageCosts

_HEATS = (0.1, 1.0, 2.0, 0.3, 4.0)  # initial temperatures, relative to the mean duration of an action
_REACHES = (2, 8)  # reaches of rounds, alternating


def local_search(start: Candidate, *, moves_a_round: int, seed: int = 0) -> Iterator[Candidate]:
    """Yield the best candidate after each round, endlessly, starting with `start` itself.

    A move takes some 10 ns per action of the table.
    """
    target = start.target
    mean_s = float(target.work_s.sum()) / target.num_actions
    dice = np.array([1 + seed % 2147483646], dtype=np.int64)
    timing, path = empty_timing(target.pipeline), np.zeros(target.num_actions, dtype=np.int64)
    best = start
    for number in count():
        yield best
        rules = AnnealParameters(
            target.handicap_s,
            bound_s=target.bound_s,
            heat_s=mean_s * _HEATS[number % len(_HEATS)],
            num_moves=moves_a_round,
            reach=_REACHES[number % len(_REACHES)],
        )
        found = best.order.copy()
        outputs = (dice, best.order.copy(), found, timing, path)
        score_s = target.run(anneal, inputs=(target.memory, rules), outputs=outputs, times=1 + moves_a_round)
        if score_s < best.score_s - target.tolerance_s:
            again = target.timed(found)
            assert again
            best = again


_MOST_PASSES = 15_000_000  # actions to evaluate per round, some 0.1 s
_MOST_RESCHEDULINGS = 6  # rescheduling rounds
_SEARCH_ROUNDS, _MOST_MOVES, _LEAST_MOVES = 3, 20_000, 100  # rounds, moves per round
_MOST_ACTIONS = 30_000  # largest table for local search
_NEAR = 1.01  # relative to the lower bound
_SMALL, _MORE_ROUNDS = 768, 16  # actions of a small table, and its additional rounds
_SLOW_ROUNDS, _SLOW_ROUNDS_TO_REPEAT = 8, 4  # rounds for larger tables, and for short tables to repeat
_PASSES_A_SLOW_ROUND = 60_000_000  # actions to evaluate, some 0.3 s: large tables need slow cooling
_SHORT, _SHORT_ROUNDS = 2, 8  # microbatches per rank of a short table, and rounds of search on it
_LONG = 3  # microbatches per rank above which a short table is searched and repeated
_ROUNDS_ANEW = 10
_PRIME = 7919  # distance between seeds
_MOST_EVALUATED, _FEWEST_EVALUATED = 64, 3  # tables
_MOST_ACTIONS_EVALUATED = 200_000  # of all tables together
_ROUNDING = 1 + 1e-9  # tolerance for the order of additions


class SearchTimeout(TimeIsUp):
    """Raised when the time limit ends a search; `tables` are its best tables on an ideal network, best first."""

    def __init__(self, found: Iterable[Candidate]) -> None:
        self.tables = [candidate.schedule("fitted") for candidate in found]


@dataclass(frozen=True, eq=False)
class TableEvaluator:
    """Evaluates tables by simulation with the P2P serialization of `costs`."""

    costs: StageCosts
    criterion: Criterion

    def __call__(self, table: Schedule, limit_bytes: float | None = None) -> float:
        """Return infinity if the channels deadlock or a rank exceeds the limit."""
        try:
            timeline = simulate(table, self.costs)
        except ScheduleError:
            return np.inf
        if limit_bytes is not None and timeline.memory.peak_bytes.max() > limit_bytes:
            return np.inf
        return timeline.step_time_s if self.criterion == "step" else timeline.span_s

    def best(self, candidates: Iterable[Candidate]) -> Schedule:
        """Return the fastest table, the first one in a tie.

        Channels only add delays: a table whose step time on an ideal network exceeds the best real one is not
        simulated. This does not hold for spans, whose start can also be later, and for unequal microbatches, which
        the ideal network replaces by their mean.
        """
        is_above_ideal = self.criterion == "step" and not self.costs.differ_by_microbatch
        best: Schedule | None = None
        best_s = np.inf
        for candidate in candidates:
            ideal_s = candidate.score_s - candidate.target.problem.overhead_s
            if is_above_ideal and candidate.target.criterion == "step" and ideal_s > best_s * _ROUNDING:
                continue
            table = candidate.schedule("fitted")
            value_s = self(table)
            if best is None or value_s < best_s:
                best, best_s = table, value_s
        assert best is not None
        return best


def best_table(
    problem: Problem,
    *,
    criterion: Criterion = "step",
    evaluator: TableEvaluator | None = None,
    engine: Engine = "auto",
    is_thorough: bool = False,
) -> Schedule:
    """Return the best table found in which no rank exceeds its memory cap, on an ideal network.

    An `evaluator` then chooses among this table and the next best candidates, because the best table on an ideal
    network can queue longest on a real one. `is_thorough` continues for some three seconds if the best table is far
    above the lower bound. The search is deterministic. Raises `SearchTimeout` if a `time_limit` expires.

    >>> problem = Problem.of(stage_to_rank=[0, 1], num_microbatches=3, cap=2, forward_s=[3, 5],
    ...                      backward_input_s=[4, 6], backward_weight_s=2)
    >>> print(*best_table(problem).rows()[0])
    0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2
    """
    target = SearchTarget(problem, criterion, engine)
    number = 1
    if evaluator:
        number = max(_FEWEST_EVALUATED, min(_MOST_EVALUATED, _MOST_ACTIONS_EVALUATED // target.num_actions))
    seen: list[Candidate] = []
    try:
        candidates = best_candidates(target, number, seen)
        if is_thorough:
            candidates.insert(0, _searched_on(candidates[0], seen))
        return evaluator.best(candidates) if evaluator else candidates[0].schedule("fitted")
    except TimeIsUp as end:
        raise SearchTimeout(_best_different(seen, _FEWEST_EVALUATED)) from end


def best_candidate(target: SearchTarget) -> Candidate:
    return best_candidates(target, 1, [])[0]


def best_candidates(target: SearchTarget, number: int, seen: list[Candidate]) -> list[Candidate]:
    """The best candidate comes first, then the best others of the generators; all candidates are appended to
    `seen`.
    """
    best: Candidate | None = None
    others: list[Candidate] = []
    for family in _families(target):
        if candidates := list(_noted(family, seen)):
            if number > 1:
                others = _best_different([*others, *candidates], number)
            found = best_of(candidates)
            if target.num_actions <= _MOST_ACTIONS:
                found = _searched_briefly(_rescheduled(found), num_rounds=1)
            best = better(best, found) if best else found
            seen.append(best)
            if best.is_optimal and number == 1:
                return [best]
    assert best  # list schedules always fit
    if target.num_actions > _MOST_ACTIONS:
        best = _rescheduled(best)
    if target.num_actions <= _MOST_ACTIONS and _is_long(target):
        for longer in islice(_searched_short(target, seed=0), _SEARCH_ROUNDS):
            best = better(best, longer) if longer else best
    seen.append(best)
    best = _searched_briefly(best, num_rounds=_SEARCH_ROUNDS)
    seen.append(best)
    return [best, *(other for other in others if not np.array_equal(other.order, best.order))][:number]


def _noted(candidates: Iterable[Candidate], seen: list[Candidate]) -> Iterator[Candidate]:
    for candidate in candidates:
        seen.append(candidate)
        yield candidate


def _best_different(candidates: Iterable[Candidate], number: int) -> list[Candidate]:
    different = {candidate.order.tobytes(): candidate for candidate in candidates}
    return sorted(different.values(), key=lambda candidate: candidate.score_s)[:number]


def _families(target: SearchTarget) -> Iterator[Iterable[Candidate]]:
    """Keep the generators separate: searches from each lead to different tables."""
    p, placement = target.problem.num_ranks, target.problem.stage_to_rank.tolist()
    if placement == loop(p, p):
        yield v_shape.published(target, (zb_h1, zb_h2))
    if placement == v_placement(p, 2 * p):
        yield v_shape.published(target, (zbv_fixed, v_half_fixed, v_min_fixed))
        yield v_shape.heuristic_runs(target)
        yield v_shape.blocks_of_cells(target)
        yield v_shape.repeated_patterns(target)
    yield list_schedules(target)


def _rescheduled(best: Candidate) -> Candidate:
    return improve_by_rescheduling(
        best, num_rounds=max(1, min(_MOST_RESCHEDULINGS, _MOST_PASSES // best.target.num_actions // 50))
    )


def _searched_briefly(best: Candidate, *, num_rounds: int) -> Candidate:
    if best.target.num_actions > _MOST_ACTIONS or best.is_optimal:
        return best
    return next(islice(local_search(best, moves_a_round=_moves(best.target) // 2), num_rounds, None))


def tables_without_end(
    target: SearchTarget, *, start: Schedule | None = None, seed: int = 0
) -> Iterator[Candidate]:
    """Yield the best table known after every round of search, endlessly; a seed fixes the sequence.

    Rounds on the best table alternate with rounds on other tables. For many microbatches these are short tables
    whose steady state is repeated, otherwise all candidates of the generators.
    """
    best = best_candidate(target)
    if start is not None:
        given = target.timed(target.order_of(in_microbatch_order(start, target.problem)))
        best = better(best, given) if given and given.fits else best
    yield from _searched_without_end(best, seed=seed)


def _searched_on(best: Candidate, seen: list[Candidate]) -> Candidate:
    """Continue the search from `best` unless it is near the lower bound; the work is bounded for any table size."""
    target = best.target
    if best.score_s <= target.bound_s * _NEAR:
        return best
    if target.num_actions <= _SMALL:
        for candidate in _noted(islice(_searched_without_end(best, seed=0), _MORE_ROUNDS + 1), seen):
            best = candidate
            if candidate.is_optimal:
                break
        return best
    is_too_large = target.num_actions > _MOST_ACTIONS
    if not _is_long(target):
        return best if is_too_large else _searched_slowly(best, seen, num_rounds=_SLOW_ROUNDS)
    p = target.problem.num_ranks
    shorts = [_with_microbatches(target, number) for number in range(p + 2, _SHORT * p, 2)]
    tables = [best_candidate(short) for short in shorts if short.num_actions <= _SMALL]
    if others := [longer for table in tables if (longer := repeat_window(table, target))]:
        best = better(best, _searched_briefly(best_of(others), num_rounds=_SEARCH_ROUNDS))
    if others := list(searched_windows([best, *tables], target)):
        best = better(best, _searched_briefly(best_of(others), num_rounds=2 * _SEARCH_ROUNDS))
    if shorts and not tables and not is_too_large:
        short = _searched_slowly(best_candidate(shorts[0]), [], num_rounds=_SLOW_ROUNDS_TO_REPEAT)
        if longer := repeat_window(short, target):
            best = better(best, _searched_briefly(longer, num_rounds=_SEARCH_ROUNDS))
    return best


def _searched_slowly(best: Candidate, seen: list[Candidate], *, num_rounds: int) -> Candidate:
    moves = max(_LEAST_MOVES, _PASSES_A_SLOW_ROUND // best.target.num_actions)
    for candidate in _noted(islice(local_search(best, moves_a_round=moves), num_rounds + 1), seen):
        best = candidate
        if candidate.is_optimal:
            break
    return best


def _searched_without_end(best: Candidate, *, seed: int) -> Iterator[Candidate]:
    target = best.target
    others = _searched_short(target, seed=seed) if _is_long(target) else _searched_anew(target, seed=seed)
    while True:
        on_best = local_search(best, moves_a_round=_moves(target), seed=seed)
        from_others = False
        while not from_others:
            best = next(on_best)
            yield best
            candidate = next(others)
            from_others = candidate is not None and candidate.score_s < best.score_s - target.tolerance_s
        assert candidate
        best = candidate


def _is_long(target: SearchTarget) -> bool:
    return target.problem.num_microbatches > _LONG * target.problem.num_ranks


def _searched_anew(target: SearchTarget, *, seed: int) -> Iterator[Candidate]:
    starts = [candidate for family in _families(target) for candidate in family]
    dice = np.random.default_rng(seed)
    for number in count():
        start = starts[dice.integers(len(starts))]
        rounds = local_search(start, moves_a_round=_moves(target), seed=seed + _PRIME * number)
        yield from islice(rounds, 1, _ROUNDS_ANEW + 1)


def _searched_short(target: SearchTarget, *, seed: int) -> Iterator[Candidate | None]:
    """Yield the repetition of each better short table that a search finds, else None.

    The search restarts with another length and seed: a better short table is not always better when it is repeated.
    """
    p = target.problem.num_ranks
    for number in count():
        length = _SHORT * p + number % (p + 1)
        short = _with_microbatches(target, length)
        last: Candidate | None = None
        rounds = local_search(best_candidate(short), moves_a_round=_moves(short), seed=seed + _PRIME * number)
        for candidate in islice(rounds, _SHORT_ROUNDS):
            yield repeat_window(candidate, target) if last is None or candidate.score_s < last.score_s else None
            last = candidate


def _with_microbatches(target: SearchTarget, number: int) -> SearchTarget:
    return replace(target, problem=replace(target.problem, num_microbatches=number))


def _moves(target: SearchTarget) -> int:
    return max(_LEAST_MOVES, min(_MOST_MOVES, _MOST_PASSES // target.num_actions))


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
