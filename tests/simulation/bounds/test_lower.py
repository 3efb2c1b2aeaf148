"""Bounds of each rank alone: equal to the optimum of small problems, and their parts by hand."""

from typing import Any

import numpy as np
import pytest

from ppsim.schedule.table import Op
from ppsim.simulation.bounds import lower
from ppsim.simulation.bounds.lower import (
    LowerBounds,
    MemoryUse,
    _Rank,
    in_flight_limits,
    knapsack_bound,
    lower_bounds,
)
from ppsim.simulation.bounds.problem import Problem

NAMES = (
    "stage_to_rank", "num_microbatches", "forward_s", "backward_input_s", "backward_weight_s", "transfer_s", "activation",
    "activation_kept_for_weight", "cap",
)  # fmt: skip
OPTIMA: list[tuple[Any, ...]] = [
    ([0, 1], 3, [9, 2], [4, 1], [2, 6], [0], [3, 3], [0, 0], [3, 3], 50, 50),
    ([0, 0], 2, [1, 1], [4, 3], [8, 9], [4], [3, 4], [0, 4], [7], 52, 52),
    ([0, 1], 3, [5, 5], [7, 1], [3, 6], [4], [3, 3], [1, 0], [6, 6], 58, 58),
    ([0, 1, 2], 2, [1, 8, 6], [2, 3, 6], [7, 6, 2], [4, 1], [2, 3, 4], [2, 0, 0], [4, 6, 8], 55, 55),
    ([0, 1], 3, [7, 7], [9, 5], [1, 6], [1], [1, 4], [1, 0], [1, 4], 93, 93),
    ([0, 1, 1, 0], 1, [8, 3, 6, 5], [3, 3, 4, 6], [2, 9, 7, 3], [5, 5, 1], [2, 4, 4, 2], [2, 1, 0, 2], [4, 8], 58, 52),
    ([0, 0], 2, [5, 3], [6, 7], [9, 6], [4], [4, 1], [0, 1], [5], 72, 72),
    ([0, 1], 3, [3, 1], [1, 7], [3, 9], [5], [2, 4], [1, 4], [4, 8], 59, 51),
    ([0, 0], 2, [9, 7], [9, 3], [3, 2], [3], [3, 1], [2, 1], [6], 66, 66),
    ([0, 1], 2, [9, 5], [2, 1], [3, 3], [2], [3, 3], [0, 1], [6, 6], 33, 33),
]  # fmt: skip
"""Problems with the smallest step time and span of all orders with split backwards (`tests.schedule.brute_force`)."""


@pytest.mark.parametrize("row", OPTIMA)
def test_the_bounds_of_these_problems_are_their_optima(row: tuple[Any, ...]) -> None:
    problem = Problem.of(**dict(zip(NAMES, row, strict=False)))
    bounds = [_Rank(problem, stages).bounds_s() for stages in problem.stages_of]
    assert [max(step for step, _ in bounds), max(span for _, span in bounds)] == pytest.approx(row[-2:], rel=1e-9)
    assert lower_bounds(problem) == LowerBounds(*row[-2:])


def test_host_time_before_the_first_action_does_not_count() -> None:
    """One microbatch on one rank: three actions with 0.25 s each before them."""
    problem = Problem.of(
        stage_to_rank=[0], num_microbatches=1, forward_s=3, backward_input_s=4, backward_weight_s=5,
        action_overhead_s=0.25,
    )  # fmt: skip
    assert lower_bounds(problem) == LowerBounds(12 + 2 * 0.25, 12 + 2 * 0.25)
    bounds = LowerBounds(3.0, 4.0)
    assert (bounds.of("step"), bounds.of("span")) == (3.0, 4.0)


@pytest.mark.parametrize(
    ("states", "count", "capacity", "expected"),
    [
        ([], 5, 9.0, 0.0),
        ([(3.0, 2.0)], 0, 9.0, 0.0),
        ([(3.0, 2.0)], 4, 9.0, 12.0),
        ([(3.0, 2.0)], 5, 9.0, 12.0),
        ([(3.0, 2.0)], 4, 8.0, 12.0),
        ([(5.0, 3.0), (4.0, 3.0), (6.0, 3.0)], 2, 6.0, 12.0),
        ([(3.0, 2.0), (7.0, 5.0)], 4, 13.0, 2 * 7 + 3.0),  # two large, one small
        ([(3.0, 0.0), (7.0, 5.0)], 4, 13.0, 2 * 7 + 2 * 3.0),
        # By slopes: (4, 1), then 3 for 2 more, then 2 for 4 more, of capacity 18: 4 · 4 + 4 · 3 + 6 · 2 / 4
        ([(4.0, 1.0), (7.0, 3.0), (9.0, 7.0)], 4, 18.0, 16 + 12 + 3.0),
        ([(4.0, 1.0), (7.0, 3.0), (9.0, 7.0)], 4, 9.0, 16 + 5 * 3 / 2),
        ([(4.0, 1.0), (7.0, 3.0), (9.0, 7.0)], 4, 28.0, 36.0),
    ],
)  # fmt: skip
def test_the_knapsack_of_a_few_states_by_hand(
    states: list[tuple[float, float]], count: int, capacity: float, expected: float
) -> None:
    assert knapsack_bound([MemoryUse(*state) for state in states], count=count, capacity=capacity) == expected


def test_a_microbatch_holds_memory_until_its_i_and_a_part_until_its_w() -> None:
    limits = list(in_flight_limits(np.array([3.0, 4.0]), np.array([2.0, 0.0]), 17.0))
    assert limits == [
        (0, Op.I, 0, 1 + 14 // 3), (0, Op.W, 0, 1 + 14 // 2),
        (1, Op.I, 0, 1 + 10 // 3), (1, Op.W, 0, 1 + 10 // 2), (1, Op.I, 1, 1 + 10 // 7), (1, Op.W, 1, np.inf),
    ]  # fmt: skip
    assert lower._times(np.inf, 3.0) == lower._times(3.0, 0.0) == np.inf


def rank(*, cap: float = 100.0, num_microbatches: int = 5) -> _Rank:
    problem = Problem.of(
        stage_to_rank=[0, 1, 0, 1], num_microbatches=num_microbatches, forward_s=[2, 3, 5, 7],
        backward_input_s=[11, 13, 17, 19], backward_weight_s=[23, 29, 31, 37], transfer_s=[1, 4, 6],
        activation=[3, 2, 5, 2], activation_kept_for_weight=[1, 2, 4, 2], cap=[cap, 100.0],
    )  # fmt: skip
    return _Rank(problem, problem.stages_of[0])


def test_the_sums_of_a_rank_by_hand() -> None:
    of_rank = rank()
    assert of_rank.held.tolist() == [3, 8]
    assert (of_rank.forward_above_s.tolist(), of_rank.backward_above_s.tolist()) == ([5, 0], [48, 0])
    assert of_rank.work_s == 5 * (2 + 5 + 11 + 23 + 17 + 31)
    assert of_rank._left_s(0) == 5 + 34 + 48
    assert of_rank._left_s(1) == 34 + 48


def test_a_rank_idles_before_its_first_forward_and_backward_as_far_as_memory_ends_its_work() -> None:
    """Down to chunk 1: 2 + 1 + 3 + 4 s. Back up to it: 7 + 6 s down, 19 + 6 s up."""
    of_rank = rank(cap=8 * (1 + 1e-12))
    assert of_rank.idle_before_first_forward_s(1) == pytest.approx(10 - 2 * 2)  # two microbatches of size 3
    assert of_rank.idle_before_first_forward_s(0) == 0
    assert rank(cap=100).idle_before_first_forward_s(1) == 0
    # One microbatch with both forwards holds all memory.
    assert of_rank.idle_before_first_backward_s(1) == pytest.approx(28 + 25 - (2 + 5))


def test_trips_are_rounds_of_the_microbatches_that_memory_holds() -> None:
    assert rank(cap=40).trips(1) == (1, 0.0)  # all five
    assert rank(cap=24).trips(1).num == 2
    assert rank(cap=8).trips(1).num == 5
    # Chunk 1 holds everything: there and back 5 + 6 + 7 and 19 + 6, without its own 5 s and W or lower chunks.
    assert rank(cap=8).trips(1).idle_s == pytest.approx(18 + 25 - 5)


def test_whether_a_backward_must_precede_a_forward_is_by_the_smaller_holding() -> None:
    assert [rank(cap=cap).are_apart(0, 1) for cap in (8, 14, 15, 16)] == [True, True, False, False]
    assert [rank(cap=cap).are_apart(1, 1) for cap in (39, 40)] == [True, False]
    assert [rank(cap=cap).are_apart(1, 0) for cap in (14, 15)] == [True, False]


def test_many_chunks_have_each_w_as_if_of_another_microbatch() -> None:
    """Five chunks of 1 byte, of which 1 waits for W: each W of 2 s on its own, below each chunk the backwards."""
    problem = Problem.of(
        stage_to_rank=[0] * 5, num_microbatches=3, forward_s=1, backward_input_s=4, backward_weight_s=2, cap=7,
        activation=1,
    )  # fmt: skip
    found = _Rank(problem, problem.stages_of[0])
    # Two further microbatches share 2 bytes beside the 5 of the last forward; 12 s remain with 2 bytes held.
    assert found._most_left(found.backward_s, 4, whole_s=30.0) == pytest.approx(12.0)
    assert found._most_left(found.backward_s, 0, whole_s=30.0) == pytest.approx(60.0)


@pytest.mark.parametrize(
    ("capacity", "sizes", "reachable"),
    [
        (2.3, [0.5, 1.0, 0.0], 2.0), (2.3, [0.5], 2.0), (17.0, [4, 6], 16.0), (17.5, [4.0, 6.5], 17.5), (9.0, [3.0, 6.0], 9.0),
    ],
)  # fmt: skip
def test_a_capacity_is_a_multiple_of_the_sizes(capacity: float, sizes: list[float], reachable: float) -> None:
    assert lower._reachable(capacity, sizes) == reachable
