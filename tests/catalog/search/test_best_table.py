"""How the search for the best table divides its work into rounds, starts, repeated tables and evaluated tables."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppsim import StageCosts, build
from ppsim.base.errors import ConfigError
from ppsim.base.numba_jit import TimeIsUp
from ppsim.catalog.search import best_table as module
from ppsim.catalog.search.best_table import SearchTimeout, TableEvaluator, in_microbatch_order, join_backwards
from ppsim.catalog.search.target import SearchTarget
from ppsim.schedule.grammar import parse_table
from tests.fitting import one_chunk

TARGET = SearchTarget(
    one_chunk(num_ranks=2, num_microbatches=3, forward_s=1, backward_input_s=2, backward_weight_s=3, cap=2)
)


def target_of(*, num_actions: int = 18, p: int = 2, m: int = 3, bound_s: float = 1.0) -> Any:
    problem = SimpleNamespace(num_ranks=p, num_microbatches=m)
    return SimpleNamespace(num_actions=num_actions, problem=problem, bound_s=bound_s, tolerance_s=0.0)


def candidate_of(score_s: float, *order: int, target: Any = None, is_optimal: bool = False) -> Any:
    """A candidate whose order is its score, unless another is given."""
    return SimpleNamespace(
        score_s=score_s, other_score_s=0.0, order=np.array(order or [int(score_s)]), target=target or target_of(),
        is_optimal=is_optimal, fits=True, schedule=lambda name: (name, score_s),
    )  # fmt: skip


def scores(candidates: Iterable[Any]) -> list[float | None]:
    return [one and one.score_s for one in candidates]


def test_rounds_of_local_search_heat_and_reach_in_turn_and_begin_at_the_best_order() -> None:
    """Heats are relative to the mean duration of an action, 2 s here; a seed sets the dice."""
    rules: list[Any] = []
    begun: list[list[int]] = []
    results = iter([9.0, 7.0, 7.0 - 0.4, 5.0, 5.0, 5.0, 5.0])

    def run(kernel: Any, *, inputs: Any, outputs: Any, times: int) -> float:
        dice, order, best, _, _ = outputs
        rules.append(
            (inputs[1].heat_s / 2, inputs[1].reach, inputs[1].num_moves, inputs[1].bound_s, times, int(dice[0]))
        )
        begun.append(order.tolist())
        best[0] += 1
        return next(results)

    target = SimpleNamespace(
        work_s=np.array([16.0, 8.0]), num_actions=12, handicap_s=np.zeros(2), bound_s=4.0, tolerance_s=0.5, memory=None,
        pipeline=TARGET.pipeline, run=run, timed=lambda order: candidate_of(float(10 - order[0]), *order, target=target),
    )  # fmt: skip
    start = candidate_of(9.0, 1, 2, target=target)
    rounds = list(islice(module.local_search(start, moves_a_round=30, seed=2147483646 + 4), 8))
    assert [rule[:2] for rule in rules] == [(0.1, 2), (1, 8), (2, 2), (0.3, 8), (4, 2), (0.1, 8), (1, 2)]
    assert {rule[2:] for rule in rules} == {(30, 4.0, 31, 5)}
    assert scores(rounds) == [9.0, 9.0, 8.0, 7.0, 6.0, 5.0, 5.0, 5.0]
    assert begun == [[1, 2], [1, 2], [2, 2], [3, 2], [4, 2], [5, 2], [5, 2]]


@pytest.mark.parametrize(
    ("num_actions", "moves"), [(1, 20_000), (750, 20_000), (1_000, 15_000), (150_000, 100), (10**6, 100)]
)
def test_a_round_makes_fewer_moves_in_a_larger_table(num_actions: int, moves: int) -> None:
    assert module._moves(target_of(num_actions=num_actions)) == moves


@pytest.mark.parametrize(("num_actions", "num_rounds"), [(1, 6), (50_000, 6), (100_000, 3), (10**7, 1)])
def test_fewer_rounds_reschedule_a_larger_table(
    num_actions: int, num_rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "improve_by_rescheduling", lambda best, *, num_rounds: num_rounds)
    assert module._rescheduled(candidate_of(1.0, target=target_of(num_actions=num_actions))) == num_rounds


def search_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int, int]]:
    """Let each round of local search lower the score by 1; return its starts, moves and seeds."""
    searches: list[tuple[float, int, int]] = []

    def search(start: Any, *, moves_a_round: int, seed: int = 0) -> Iterator[Any]:
        searches.append((start.score_s, moves_a_round, seed))
        for number in count():
            score_s = start.score_s - number
            yield candidate_of(score_s, target=start.target, is_optimal=score_s <= start.target.bound_s)

    monkeypatch.setattr(module, "local_search", search)
    return searches


def test_a_brief_search_has_half_the_moves_and_is_left_out_for_optimal_and_very_large_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches = search_of(monkeypatch)
    target = target_of(num_actions=30_000)
    assert module._searched_briefly(candidate_of(9.0, target=target), num_rounds=3).score_s == 6.0
    assert searches == [(9.0, 250, 0)]  # 15 000 000 // 30 000 // 2
    best = candidate_of(9.0, target=target, is_optimal=True)
    assert module._searched_briefly(best, num_rounds=3) is best
    best = candidate_of(9.0, target=target_of(num_actions=30_001))
    assert module._searched_briefly(best, num_rounds=3) is best
    assert len(searches) == 1


@pytest.mark.parametrize(("num_actions", "moves"), [(30_000, 2_000), (10**6, 100)])
def test_a_slow_search_notes_its_rounds_and_ends_at_the_bound(
    num_actions: int, moves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches, seen = search_of(monkeypatch), []
    target = target_of(num_actions=num_actions, bound_s=6.0)
    assert module._searched_slowly(candidate_of(9.0, target=target), seen, num_rounds=2).score_s == 7.0
    assert scores(seen) == [9.0, 8.0, 7.0]
    assert module._searched_slowly(candidate_of(9.0, target=target), [], num_rounds=9).score_s == 6.0
    assert searches == [(9.0, moves, 0)] * 2


@pytest.mark.parametrize(("m", "is_long"), [(6, False), (7, True)])
def test_a_table_is_long_above_three_microbatches_per_rank(m: int, is_long: bool) -> None:
    assert module._is_long(target_of(p=2, m=m)) is is_long


def thorough(monkeypatch: pytest.MonkeyPatch, best: Any) -> tuple[Any, list[Any]]:
    """The result of a thorough search, and which searches it made: their kinds and arguments."""
    calls: list[Any] = []

    def without_end(start: Any, *, seed: int) -> Iterator[Any]:
        calls.append(("without end", start.score_s, seed))
        return (candidate_of(start.score_s - number, is_optimal=start.score_s - number <= 1) for number in count())

    def slowly(start: Any, seen: Any, *, num_rounds: int) -> Any:
        calls.append(("slowly", start.score_s, num_rounds))
        return candidate_of(start.score_s - 0.25, target=start.target)

    def briefly(start: Any, *, num_rounds: int) -> Any:
        calls.append(("briefly", start.score_s, num_rounds))
        return candidate_of(start.score_s - 0.5, target=start.target)

    def with_microbatches(target: Any, number: int) -> Any:
        per_microbatch = target.num_actions // target.problem.num_microbatches
        return target_of(num_actions=per_microbatch * number, p=target.problem.num_ranks, m=number)

    def windows(tables: Sequence[Any], target: Any) -> list[Any]:
        calls.append(("windows", scores(tables)))
        return [candidate_of(7.0, target=target)]

    for name, fake in {
        "_searched_without_end": without_end, "_searched_slowly": slowly, "_searched_briefly": briefly,
        "_with_microbatches": with_microbatches, "searched_windows": windows,
        "best_candidate": lambda short: candidate_of(float(100 + short.problem.num_microbatches), target=short),
        "repeat_window": lambda table, target: candidate_of(table.score_s - 92, target=target) if table.score_s != 104 else None,
    }.items():  # fmt: skip
        monkeypatch.setattr(module, name, fake)
    seen: list[Any] = []
    return module._searched_on(best, seen), calls


def test_a_table_within_a_hundredth_of_the_bound_is_not_searched_further(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = (
        candidate_of(101.0, target=target_of(bound_s=100.0)),
        candidate_of(101.1, target=target_of(bound_s=100.0)),
    )
    assert thorough(monkeypatch, near) == (near, [])
    assert thorough(monkeypatch, far)[1] == [("without end", 101.1, 0)]


def test_a_small_table_is_searched_for_sixteen_rounds_or_up_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    small = target_of(num_actions=768)
    assert thorough(monkeypatch, candidate_of(40.0, target=small))[0].score_s == 24.0
    assert thorough(monkeypatch, candidate_of(9.0, target=small))[0].score_s == 1.0
    larger = target_of(num_actions=769)
    assert thorough(monkeypatch, candidate_of(9.0, target=larger))[1] == [("slowly", 9.0, 8)]
    largest = target_of(num_actions=30_001)
    assert thorough(monkeypatch, best := candidate_of(9.0, target=largest)) == (best, [])


def test_a_long_table_repeats_short_ones_of_up_to_two_microbatches_per_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On 5 ranks these have 7 and 9 microbatches; their repetitions take 15 and 17 s, and the searched window 7 s."""
    best, calls = thorough(monkeypatch, candidate_of(20.0, target=target_of(num_actions=1600, p=5, m=16)))
    assert calls == [("briefly", 15.0, 3), ("windows", [14.5, 107.0]), ("briefly", 7.0, 6)]
    assert best.score_s == 6.5
    best, calls = thorough(monkeypatch, candidate_of(20.0, target=target_of(num_actions=1200, p=5, m=16)))
    assert calls == [("briefly", 15.0, 3), ("windows", [14.5, 107.0, 109.0]), ("briefly", 7.0, 6)]


@pytest.mark.parametrize(("num_actions", "is_repeated"), [(30_000, True), (30_001, False)])
def test_if_all_short_tables_are_large_the_shortest_is_searched_slowly_and_repeated(
    num_actions: int, is_repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    best, calls = thorough(monkeypatch, candidate_of(20.0, target=target_of(num_actions=num_actions, p=5, m=16)))
    assert calls[:2] == [("windows", [20.0]), ("briefly", 7.0, 6)]
    assert calls[2:] == ([("slowly", 107.0, 4), ("briefly", 14.75, 3)] if is_repeated else [])
    assert best.score_s == 6.5


def test_a_search_without_end_goes_on_from_a_better_table_of_another_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rounds from 20 s: 20, 19, 18. Then another search has 5 s; from there on, 5 and 4 s."""
    searches = search_of(monkeypatch)
    others = [candidate_of(20.0), None, candidate_of(5.0), candidate_of(4.75), candidate_of(9.0)]
    for name, m in (("_searched_anew", 3), ("_searched_short", 7)):
        asked: list[Any] = []
        monkeypatch.setattr(module, name, lambda target, *, seed, asked=asked: asked.append(seed) or iter(others))
        target = target_of(m=m)
        rounds = module._searched_without_end(candidate_of(20.0, target=target), seed=11)
        assert scores(islice(rounds, 5)) == [20.0, 19.0, 18.0, 5.0, 4.75]
        assert asked == [11]
    assert searches == 2 * [(20.0, 20_000, 11), (5.0, 20_000, 11), (4.75, 20_000, 11)]


def test_another_search_begins_at_a_drawn_table_for_ten_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = search_of(monkeypatch)
    monkeypatch.setattr(
        module, "_families", lambda target: [[candidate_of(100.0)], [candidate_of(200.0), candidate_of(300.0)]]
    )
    rounds = list(islice(module._searched_anew(target_of(), seed=5), 30))
    drawn = [100.0 * (1 + number) for number in np.random.default_rng(5).integers(3, size=3)]
    assert searches == [(start, 20_000, 5 + 7919 * number) for number, start in enumerate(drawn)]
    assert scores(rounds) == [start - step for start in drawn for step in range(1, 11)]


def test_short_tables_have_two_to_three_microbatches_per_rank_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is searched for eight rounds, and repeated when it became faster."""
    searches = search_of(monkeypatch)
    lengths: list[int] = []
    monkeypatch.setattr(
        module,
        "_with_microbatches",
        lambda target, number: lengths.append(number) or target_of(num_actions=1000 * number),
    )
    monkeypatch.setattr(module, "best_candidate", lambda short: candidate_of(50.0, target=short))
    monkeypatch.setattr(module, "repeat_window", lambda table, target: candidate_of(2 * table.score_s))
    repeated = list(islice(module._searched_short(target_of(p=2, m=9), seed=3), 8 * 4))
    assert lengths == [4, 5, 6, 4]
    assert searches == [
        (50.0, moves, 3 + 7919 * number) for number, moves in enumerate((3_750, 3_000, 2_500, 3_750))
    ]
    assert scores(repeated) == [100.0 - 2 * step for step in range(8)] * 4

    def same(start: Any, *, moves_a_round: int, seed: int) -> Iterator[Any]:
        return (candidate_of(score) for score in (50.0, 50.0, 49.0, 49.0, 49.0, 48.0, 48.0, 48.0, 47.0))

    monkeypatch.setattr(module, "local_search", same)
    repeated = list(islice(module._searched_short(target_of(p=2, m=9), seed=3), 8))
    assert scores(repeated) == [100.0, None, 98.0, None, None, 96.0, None, None]


def test_the_best_different_candidates_are_sorted_by_score() -> None:
    candidates = [
        candidate_of(score, *order) for score, *order in ((3, 1, 2), (1, 7, 7), (2, 2, 1), (3, 1, 2), (4, 5, 5))
    ]
    assert scores(module._best_different(candidates, 3)) == [1, 2, 3]
    assert scores(module._best_different(candidates, 9)) == [1, 2, 3, 4]


def found_by(
    monkeypatch: pytest.MonkeyPatch, target: Any, families: list[list[Any]], number: int = 1
) -> tuple[list[Any], list[Any], list[Any]]:
    """The best candidates, those that were seen, and the scores at which searches began."""
    calls: list[Any] = []

    def rescheduled(best: Any) -> Any:
        calls.append(("rescheduled", best.score_s))
        return best

    def briefly(start: Any, *, num_rounds: int) -> Any:
        calls.append(("briefly", start.score_s, num_rounds))
        return candidate_of(start.score_s - 0.25, *start.order, target=target, is_optimal=start.is_optimal)

    monkeypatch.setattr(module, "_families", lambda target: families)
    monkeypatch.setattr(module, "_rescheduled", rescheduled)
    monkeypatch.setattr(module, "_searched_briefly", briefly)
    monkeypatch.setattr(
        module,
        "_searched_short",
        lambda target, *, seed: iter(
            [None, candidate_of(4.0, target=target), candidate_of(5.0), candidate_of(1.0)]
        ),
    )
    seen: list[Any] = []
    return module.best_candidates(target, number, seen), seen, calls


def test_the_best_of_each_family_is_rescheduled_and_searched_and_then_the_best_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    families = [[candidate_of(9.0), candidate_of(8.0)], [], [candidate_of(7.0), candidate_of(11.0)]]
    best, seen, calls = found_by(monkeypatch, target_of(num_actions=30_000), families)
    rescheduled = [("rescheduled", 8.0), ("briefly", 8.0, 1), ("rescheduled", 7.0), ("briefly", 7.0, 1)]
    assert calls == [*rescheduled, ("briefly", 6.75, 3)]
    assert scores(best) == [6.5]
    assert scores(seen) == [9.0, 8.0, 7.75, 7.0, 11.0, 6.75, 6.75, 6.5]


def test_of_a_very_large_table_the_best_of_all_is_rescheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    families = [[candidate_of(9.0), candidate_of(8.0)], [candidate_of(7.0)]]
    _, seen, calls = found_by(monkeypatch, target_of(num_actions=30_001, m=99), families)
    assert calls == [("rescheduled", 7.0), ("briefly", 7.0, 3)]
    assert scores(seen) == [9.0, 8.0, 8.0, 7.0, 7.0, 7.0, 6.75]


def test_of_a_long_table_three_rounds_search_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third is slower; the fourth would be the fastest."""
    best, _, calls = found_by(monkeypatch, target_of(p=2, m=7), [[candidate_of(9.0)]])
    assert calls[-1] == ("briefly", 4.0, 3)
    assert scores(best) == [3.75]


def test_a_search_ends_at_an_optimum_unless_others_are_wanted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    families = [[candidate_of(2.0, is_optimal=True), candidate_of(9.0)], [candidate_of(8.0), candidate_of(7.0)]]
    best, _, calls = found_by(monkeypatch, target_of(), families)
    assert (scores(best), len(calls)) == ([1.75], 2)
    best, _, calls = found_by(monkeypatch, target_of(), families, number=3)
    assert (scores(best), len(calls)) == ([1.5, 7.0, 8.0], 5)


@pytest.mark.parametrize(
    ("criterion", "ideal", "differs", "best_at", "simulated"),
    [
        ("step", "step", False, 2, [1, 2]),  # the third would be slower even without channels
        ("span", "step", False, 3, [1, 2, 3]),
        ("step", "span", False, 3, [1, 2, 3]),
        ("step", "step", True, 3, [1, 2, 3]),
    ],
)
def test_a_table_is_not_evaluated_if_its_ideal_step_is_longer_than_a_real_one(
    criterion: Any, ideal: str, differs: bool, best_at: int, simulated: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores include 0.5 s of host time: 6.5, 7 and 7.5 s. The tables take 8, 7 and 6 s by either criterion."""
    done: list[int] = []

    def simulate(table: int, costs: Any) -> Any:
        done.append(table)
        seconds = 9.0 - table
        at = {"step_time_s": 0.0, "span_s": 0.0, "step_time_s" if criterion == "step" else "span_s": seconds}
        return SimpleNamespace(**at)

    monkeypatch.setattr(module, "simulate", simulate)
    target = SimpleNamespace(problem=SimpleNamespace(overhead_s=0.5), criterion=ideal)
    candidates: list[Any] = [
        SimpleNamespace(score_s=6.0 + number / 2 + 0.001 * (number == 3), target=target, schedule=lambda name, number=number: number)
        for number in (1, 2, 3)
    ]  # fmt: skip
    candidates[1].score_s, candidates[2].score_s = 7.5, 7.501
    evaluator = TableEvaluator(SimpleNamespace(differ_by_microbatch=differs), criterion)  # type: ignore[arg-type]
    assert (evaluator.best(candidates), done) == (best_at, simulated)


def test_a_table_above_the_limit_or_in_a_deadlock_takes_infinitely_long() -> None:
    costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, activation_bytes=2)
    table = build("zb-h2", pp=3, microbatches=5)
    step, span = (TableEvaluator(costs, criterion) for criterion in ("step", "span"))
    assert step(table) > span(table)
    peak = step_peak(table, costs)
    assert (step(table, peak), step(table, peak - 1)) == (step(table), np.inf)
    stuck = costs.replace(channel="pair", receives="deferred")
    assert TableEvaluator(stuck, "step")(build("1f1b", pp=2, microbatches=4)) == np.inf


def step_peak(table: Any, costs: StageCosts) -> float:
    from ppsim import simulate

    return float(simulate(table, costs).memory.peak_bytes.max())


@pytest.mark.parametrize(("num_actions", "number"), [(1, 64), (3_125, 64), (4_000, 50), (50_001, 3), (10**6, 3)])
def test_an_evaluator_chooses_among_fewer_large_tables(
    num_actions: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(module, "SearchTarget", lambda *given: target_of(num_actions=num_actions))
    monkeypatch.setattr(
        module,
        "best_candidates",
        lambda target, number, seen: asked.append(number) or [candidate_of(2.0), candidate_of(3.0)],
    )
    monkeypatch.setattr(module, "_searched_on", lambda best, seen: candidate_of(best.score_s - 1))
    problem: Any = None
    evaluator: Any = SimpleNamespace(best=scores)
    assert module.best_table(problem, evaluator=evaluator) == [2.0, 3.0]
    assert module.best_table(problem, evaluator=evaluator, is_thorough=True) == [1.0, 2.0, 3.0]
    assert module.best_table(problem) == ("fitted", 2.0)
    assert module.best_table(problem, is_thorough=True) == ("fitted", 1.0)
    assert asked == [number, number, 1, 1]


def test_a_search_that_is_cut_off_has_its_three_best_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(target: Any, number: int, seen: list[Any]) -> Any:
        seen += [candidate_of(score) for score in (5.0, 2.0, 4.0, 3.0)]
        raise TimeIsUp

    monkeypatch.setattr(module, "SearchTarget", lambda *given: target_of())
    monkeypatch.setattr(module, "best_candidates", searched)
    problem: Any = None
    with pytest.raises(SearchTimeout) as end:
        module.best_table(problem)
    assert end.value.tables == [("fitted", 2.0), ("fitted", 3.0), ("fitted", 4.0)]


@pytest.mark.parametrize(("score_s", "fits", "begins"), [(8.0, True, 8.0), (8.0, False, 9.0), (10.0, True, 9.0)])
def test_tables_without_end_begin_at_a_given_table_that_fits_and_is_faster(
    score_s: float, fits: bool, begins: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "best_candidate", lambda target: candidate_of(9.0))
    monkeypatch.setattr(module, "in_microbatch_order", lambda start, problem: start)
    monkeypatch.setattr(module, "_searched_without_end", lambda best, *, seed: iter([best.score_s, seed]))
    target = target_of()
    target.order_of = lambda start: start
    target.timed = lambda order: SimpleNamespace(**vars(candidate_of(score_s)) | {"fits": fits})
    given: Any = object()
    assert list(module.tables_without_end(target, start=given, seed=4)) == [begins, 4]
    assert list(module.tables_without_end(target)) == [9.0, 0]


def test_a_hint_has_split_backwards_in_microbatch_order() -> None:
    hint = parse_table("0F1,0F0,0F2,0B1,0B0,(0I2;0W2)OVERLAP_F_B\n1F0,1F1,1F2,1B1,1B0,1I2,1W2\n", name="hint")
    ordered = in_microbatch_order(hint, TARGET.problem)
    rows = [" ".join(str(action) for action in row) for row in ordered.rows()]
    assert rows == [
        "0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2", "1F0 1F1 1F2 1I0 1W0 1I1 1W1 1I2 1W2",
    ]  # fmt: skip
    assert (ordered.name, ordered.num_microbatches) == ("hint", 3)
    sentence = r"the hint has 4 microbatches and stages on ranks \[0, 1\]; the problem has 3 and \[0, 1\]"
    with pytest.raises(ConfigError, match=sentence):
        in_microbatch_order(build("1f1b", pp=2, microbatches=4), TARGET.problem)


def test_an_input_gradient_and_its_weight_gradient_next_to_it_are_joined_on_chosen_stages() -> None:
    text = "0F0,0F1,2F0,2I0,2W0,0I0,0I1,0W1,0W0\n1F0,1I0,1W0,1F1,1I1,1W1\n"
    table = parse_table(text)

    def joined(*stages: bool) -> list[str]:
        rows = join_backwards(table, np.array(stages)).rows()
        return [" ".join(str(action) for action in row) for row in rows]

    assert joined(True, True, False) == ["0F0 0F1 2F0 2I0 2W0 0I0 0B1 0W0", "1F0 1B0 1F1 1B1"]
    assert joined(False, False, True) == ["0F0 0F1 2F0 2B0 0I0 0I1 0W1 0W0", "1F0 1I0 1W0 1F1 1I1 1W1"]
