"""A window of a short table, repeated: complete, within the cap, and as good as the steady state of the short one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim import StageCosts, build, check, simulate
from ppsim.catalog.search import repetition
from ppsim.catalog.search import target as target_module
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
