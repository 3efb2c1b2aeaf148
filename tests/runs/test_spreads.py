"""Spreads of actions and ranks, of times that are known."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppsim import Op, build
from ppsim.runs import spreads as spreads_module
from ppsim.runs.spreads import TimeSpreads, ends_of, spreads_of
from ppsim.schedule.graph import build_graph
from tests.defaults import number_defaults

STAGES = [1.0, 1.0, 1.1, 0.8, 1.0]


def run_of(stages: list[float], microbatches: int = 4) -> Any:
    """Return three equal steps: a microbatch takes 0.85, 0.95, 1.05 or 1.15 times the usual time of its stage."""
    table = build("1f1b", pp=len(stages), microbatches=microbatches)
    factors = [1 + 0.1 * (action.microbatch - (microbatches - 1) / 2) for action in table]
    each = [
        (2 if action.op is Op.B else 1) * factor * stages[action.stage]
        for action, factor in zip(table, factors, strict=True)
    ]
    return SimpleNamespace(graph=build_graph(table), knows_transfers=True, alone=lambda _: np.array([each] * 3))


def test_the_spread_of_actions_is_that_of_their_quartiles() -> None:
    """120 times, a quarter each at −15, −5, +5 and +15 %: quartiles at ∓7.5 %, which are 1.349 deviations apart."""
    found = spreads_of([run_of(STAGES)])
    assert found.action == pytest.approx(0.15 / 1.349)
    assert found.action_deviation == pytest.approx(1.17 * 0.15 / 1.349 / 120**0.5)


def test_the_spread_of_ranks_excludes_the_first_and_the_last() -> None:
    """Ranks 1 to 3 are 0, +10 and −20 % apart for F and for B: the median of six distances is 10 %."""
    found = spreads_of([run_of(STAGES)])
    assert found.rank == pytest.approx(1.48 * 0.1)
    assert found.rank_deviation == pytest.approx(1.17 * 1.48 * 0.1 / 6**0.5)
    assert spreads_of([run_of(STAGES[:4])]).rank is None, "two ranks have no spread"
    assert spreads_of([run_of([1.0, 1.0, 1.1, 0.8, 9.0])]).rank == pytest.approx(found.rank)


def test_factors_are_twenty_quantiles_without_the_first_actions_and_the_last() -> None:
    """Each rank starts with microbatch 0, and rank 0 ends with microbatch 3: 5 of 10 and 9 of 10 are left."""
    factors = spreads_of([run_of(STAGES)]).factors
    assert factors is not None
    counts = {0.85: 5, 0.95: 10, 1.05: 10, 1.15: 9}
    expected = np.quantile(np.repeat(list(counts), list(counts.values())), (np.arange(20) + 0.5) / 20)
    assert factors == pytest.approx(expected)
    assert spreads_of([run_of(STAGES), run_of(STAGES)]).factors == factors


def test_one_microbatch_or_no_run_has_no_spread_of_actions() -> None:
    assert spreads_of([]) == TimeSpreads()
    alone = spreads_of([run_of(STAGES, microbatches=1)])
    assert (alone.action, alone.factors) == (None, None)
    assert alone.rank == pytest.approx(1.48 * 0.1)


def test_two_microbatches_are_enough_for_a_spread_of_actions() -> None:
    """They take 0.95 and 1.05 times the usual time."""
    spreads = spreads_of([run_of(STAGES, microbatches=2)])
    assert spreads.action == pytest.approx(0.1 / 1.349)
    assert spreads.factors is not None
    assert (spreads.factors[0], spreads.factors[-1]) == pytest.approx((0.95, 1.05))


def test_the_ends_are_the_first_entry_of_each_rank_and_the_last_of_the_first_stages_rank() -> None:
    firsts, last = ends_of(build("1f1b", pp=3, microbatches=4))
    assert (firsts.tolist(), last) == ([0, 8, 16], 7)


def test_numbers_that_callers_may_leave_out() -> None:
    assert number_defaults(spreads_module) == {
        "TimeSpreads": {"action_deviation": 0.0, "rank_deviation": 0.0},
        "spreads_of": {"slowdown": 0.0},
    }
