"""A window of a short table, repeated: complete, within the cap, and as good as the steady state of the short one."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim import StageCosts, build, check, simulate
from ppsim.catalog.search import repetition
from ppsim.catalog.search import target as target_module
from ppsim.catalog.search.anneal import RepeatedWindow
from ppsim.catalog.search.best_table import best_candidate
from ppsim.catalog.search.repetition import repeat_window
from ppsim.catalog.search.target import SearchTarget
from ppsim.simulation.bounds.for_table import bounds_of
from tests.defaults import number_defaults
from tests.fitting import in_a_v, one_chunk

seconds = st.integers(1, 9).map(float)


@given(st.data(), st.sampled_from([one_chunk, in_a_v]), st.integers(2, 3), st.integers(1, 9))
@settings(deadline=None, max_examples=25)
def test_it_runs_is_complete_and_keeps_the_cap(data, place, p, num_more):
    num_stages = p if place is one_chunk else 2 * p

    def per_stage():
        return data.draw(st.lists(seconds, min_size=num_stages, max_size=num_stages))

    arguments = {
        "num_ranks": p, "forward_s": per_stage(), "backward_input_s": per_stage(), "backward_weight_s": per_stage(),
        "transfer_s": 0.5, "activation": 1, "activation_kept_for_weight": data.draw(st.sampled_from([1.0, 0.5])),
        "cap": data.draw(st.integers(num_stages // p, 2 * num_stages)),
    }  # fmt: skip
    short = best_candidate(SearchTarget(place(num_microbatches=2 * p, **arguments)))
    target = SearchTarget(place(num_microbatches=2 * p + num_more, **arguments))
    longer = repeat_window(short, target)
    if longer is not None:
        assert check(longer.schedule("longer")).errors == []
        assert (np.bincount(longer.order) == 2 * p + num_more).all()
        assert longer.fits
        assert longer.score_s >= target.bound_s - 1e-6


@pytest.mark.parametrize("num_more", [1, 4, 100])
def test_zb_h1_repeated_is_zb_h1(num_more):
    unit = {"num_ranks": 4, "forward_s": 1, "backward_input_s": 1, "backward_weight_s": 1, "cap": 4}
    short = best_candidate(SearchTarget(one_chunk(num_microbatches=8, **unit)))
    target = SearchTarget(one_chunk(num_microbatches=8 + num_more, **unit))
    assert repeat_window(short, target).is_optimal


def test_a_searched_window_repeated_runs_is_complete_keeps_the_cap_and_is_better_than_before(monkeypatch):
    monkeypatch.setattr(repetition, "_MOST_MOVES", 300)
    costs = {"forward_s": 3, "backward_input_s": 4, "backward_weight_s": 2, "transfer_s": 0.25, "activation": 2}
    shape = {"num_ranks": 4, "cap": 8, "activation_kept_for_weight": 1.5}
    short = best_candidate(SearchTarget(in_a_v(num_microbatches=9, **shape, **costs)))
    target = SearchTarget(in_a_v(num_microbatches=12, **shape, **costs))
    tables = [repetition.unroll_window(target, window) for window in repetition._windows(short, 3)]
    before_s = min(table.score_s for table in tables if table and table.fits)
    plain, compiled = (
        next(repetition.searched_windows([short], replace(target, engine=engine)))
        for engine in ("plain", "compiled")
    )
    assert check(plain.schedule("plain")).errors == []
    assert (np.bincount(plain.order) == 12).all()
    assert plain.fits
    assert plain.score_s < before_s
    assert plain.order.tolist() == compiled.order.tolist()


@pytest.mark.search
def test_a_search_of_windows_closes_a_third_of_what_v_min_of_eight_ranks_lacks():
    """At a transfer of a ninth of a forward, where a table of 64 microbatches was 10.3 % above the bound."""
    costs = StageCosts(
        forward_s=14.407, backward_input_s=14.38, backward_weight_s=9.676, transfer_s=1.61, activation_bytes=0.5
    )
    table = build("v-min", pp=8, microbatches=64, costs=costs)
    assert simulate(table, costs).step_time_s <= 1.072 * bounds_of(table, costs, memory_limit_bytes=4).step_s


def test_what_is_left_out_in_catalog_target_has_these_values() -> None:
    assert number_defaults(target_module) == {
        "SearchTarget.run": {"times": 1},
    }  # fmt: skip


def windows_of(monkeypatch, times, *, scores, m=12, cap=4):
    """Search windows of two tables with fakes: the times of unrolled windows, and the scores of each round.

    Returns what was found, the rounds and the tables that windows were made of.
    """
    rounds, tables = [], []
    target = SearchTarget(
        one_chunk(num_ranks=2, num_microbatches=m, forward_s=1, backward_input_s=2, backward_weight_s=3, cap=cap)
    )

    def window(number):
        return RepeatedWindow(np.array([number], np.int32), np.zeros(6, np.int64))

    def run(few, kernel, *, inputs, outputs, times):
        rules = inputs[1]
        dice, moved, best, last, _ = outputs
        number = int(moved.codes[0])
        assert int(best.codes[0]) == int(last.codes[0]) == number
        rounds.append(
            (few.problem.num_microbatches, number, rules.heat_s, rules.reach, rules.num_moves, times, int(dice[0]))
        )
        best.codes[0] = 100 + len(rounds)
        return next(scores)

    def unroll_window(given, window):
        assert given is target
        seconds = times.get(int(window.codes[0]), 50.0)
        return (
            None
            if seconds is None
            else SimpleNamespace(score_s=abs(seconds), fits=seconds > 0, of=int(window.codes[0]))
        )

    monkeypatch.setattr(
        repetition,
        "_windows",
        lambda table, at_once: tables.append((table, at_once)) or [window(number) for number in table],
    )
    monkeypatch.setattr(repetition, "unroll_window", unroll_window)
    monkeypatch.setattr(SearchTarget, "run", run)
    return list(repetition.searched_windows([(1, 2, 3, 4), (5, 6)], target)), rounds, tables


def test_the_best_window_of_each_table_is_searched_in_four_rounds_with_falling_heat(monkeypatch):
    """Window 1 deadlocks, 2 exceeds the memory, and 4 is faster than 3; of the second table, none runs."""
    found, rounds, tables = windows_of(
        monkeypatch, {1: None, 2: -1.0, 3: 9.0, 4: 8.0, 5: None, 6: -2.0}, scores=iter([7.0, 7.5, 6.0, 6.0])
    )
    assert tables == [((1, 2, 3, 4), 3), ((5, 6), 3)]
    mean_s = 2.0  # of F, I and W
    assert rounds == [
        (6, 4, 8 * mean_s, 8, 4000, 4001, 1), (6, 101, 4 * mean_s, 2, 4000, 4001, 1), (6, 101, 2 * mean_s, 8, 4000, 4001, 1),
        (6, 103, mean_s, 2, 4000, 4001, 1),
    ]  # fmt: skip
    assert [one.of for one in found] == [103]


def test_a_window_whose_table_does_not_fit_after_the_search_is_left_out(monkeypatch):
    found, rounds, _ = windows_of(monkeypatch, {1: 9.0, 5: 9.0, 101: -1.0, 105: None}, scores=iter([7.0] * 8), m=5)
    assert found == []
    assert len(rounds) == 8
    assert {one[0] for one in rounds} == {5}, "three microbatches per rank, or all"


def test_repetitions_of_one_to_four_microbatches_are_tried_at_all_places(monkeypatch):
    """With 6 more microbatches, windows of 1, 2 and 3 can be repeated; the best table that fits is returned."""
    asked = []
    unit = {"num_ranks": 2, "forward_s": 1, "backward_input_s": 1, "backward_weight_s": 1, "cap": 2}
    short = best_candidate(SearchTarget(one_chunk(num_microbatches=4, **unit)))
    target = SearchTarget(one_chunk(num_microbatches=10, **unit))
    scores = iter([9.0, 7.0, 8.0] + [9.5] * 99)

    def timed(self, order):
        score_s = next(scores)
        return (
            None
            if len(asked) == 5
            else SimpleNamespace(score_s=score_s, other_score_s=0.0, target=target, fits=len(asked) != 2)
        )

    monkeypatch.setattr(repetition, "_balanced_windows", lambda row, at_once: np.arange(3 if at_once < 3 else 0))
    monkeypatch.setattr(
        repetition, "_stretched", lambda rows, begins, share, at_once, times: asked.append((share, at_once, times))
    )
    monkeypatch.setattr(SearchTarget, "timed", timed)
    assert repeat_window(short, target).score_s == 8.0
    shares = [pytest.approx(0.2 + 0.05 * step) for step in range(13)]
    assert asked == [(share, at_once, 6 // at_once) for at_once in (1, 2) for share in shares]


def test_a_row_is_stretched_at_the_nearest_window(monkeypatch):
    rows = [np.array([0, 0, 2, 4, 2, 4], np.int32), np.array([1, 3, 5, 1, 3, 5], np.int32)]
    begins = [repetition._balanced_windows(row, 1) for row in rows]
    assert [begin.tolist() for begin in begins] == [[1], [0, 1, 2, 3]]
    stretched = repetition._stretched(rows, begins, 0.4, 1, 2)
    assert stretched.tolist() == [0, *[0, 2, 4] * 2, 0, 2, 4, 2, 4, 1, 3, *[5, 1, 3] * 2, 5, 1, 3, 5]
    assert repetition._nearest(np.array([1, 4, 6]), 2.5) == 1
    assert repetition._nearest(np.array([1, 4, 6]), 2.6) == 4
