"""Bounds from interactions of ranks: equal to the optimum of small problems, and their parts by hand."""

from typing import Any

import numpy as np
import pytest

from ppsim.simulation.bounds import coupled
from ppsim.simulation.bounds.coupled import _Coupled, coupled_bounds
from ppsim.simulation.bounds.problem import Problem

NAMES = (
    "stage_to_rank", "num_microbatches", "forward_s", "backward_input_s", "backward_weight_s", "transfer_s", "activation",
    "activation_kept_for_weight", "cap",
)  # fmt: skip
OPTIMA: list[tuple[Any, ...]] = [
    ([0, 1], 3, [5, 5], [7, 1], [3, 6], [4], [3, 3], [1, 0], [6, 6], 58, 58),
    ([0, 1, 2], 2, [2, 7, 4], [7, 4, 6], [8, 7, 7], [4, 4], [1, 4, 3], [1, 3, 3], [1, 4, 3], 108, 108),
    ([0, 1, 2], 2, [5, 1, 3], [4, 6, 7], [1, 4, 8], [4, 5], [2, 4, 4], [0, 1, 4], [4, 8, 8], 55, 55),
    ([0, 1, 0], 1, [1, 5, 7], [4, 9, 1], [1, 9, 6], [0, 3], [1, 1, 4], [0, 0, 2], [5, 1], 38, 37),
    ([0, 1], 3, [2, 4], [3, 7], [3, 1], [1], [4, 1], [1, 0], [6, 1.5], 57, 57),
    ([0, 1, 2], 2, [9, 4, 2], [6, 7, 7], [4, 2, 5], [3, 2], [4, 3, 1], [2, 2, 0], [8, 6, 2], 59, 59),
    ([0, 1, 0], 1, [9, 8, 1], [1, 9, 7], [3, 7, 4], [3, 1], [2, 4, 4], [0, 0, 3], [12, 8], 46, 46),
]  # fmt: skip
"""Problems with the smallest step time and span of all orders with split backwards (`tests.schedule.brute_force`)."""


@pytest.mark.parametrize("row", OPTIMA)
def test_the_bounds_of_these_problems_are_their_optima(row: tuple[Any, ...]) -> None:
    problem = Problem.of(**dict(zip(NAMES, row, strict=False)))
    assert coupled_bounds(problem) == pytest.approx(row[-2:], rel=1e-9)


def chain(num_stages: int, num_microbatches: int) -> Problem:
    return Problem.of(
        stage_to_rank=list(range(num_stages)), num_microbatches=num_microbatches, forward_s=3, backward_input_s=4,
        backward_weight_s=2, transfer_s=np.arange(1, num_stages) / 8,
    )  # fmt: skip


def test_problems_of_up_to_128_cells_are_bounded_and_up_to_64_the_span_of_each_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    tails = _Coupled.tails
    monkeypatch.setattr(_Coupled, "tails", lambda self, rank: asked.append(rank) or tails(self, rank))
    assert coupled_bounds(chain(2, 32))[1] > 0
    assert asked == [0, 1, None]
    asked.clear()
    assert coupled_bounds(chain(5, 13))[1] > 0
    assert asked == [0, None]
    assert coupled_bounds(chain(4, 32))[0] > 0
    assert coupled_bounds(chain(3, 43)) == (0.0, 0.0)


def test_the_span_of_a_rank_begins_with_its_own_first_forward() -> None:
    """Rank 1 takes three times its 16 s, from 3 s on; rank 0 waits for three F and I of rank 1: 43 s."""
    problem = Problem.of(
        stage_to_rank=[0, 1], num_microbatches=3, forward_s=[1, 5], backward_input_s=[1, 7],
        backward_weight_s=[1, 4], transfer_s=2,
    )  # fmt: skip
    assert coupled_bounds(problem) == (3 + 3 * 16, 3 * 16)


def test_jobs_run_one_after_another_from_their_heads() -> None:
    assert coupled._one_after_another_s([(7.0, 2.0), (1.0, 3.0), (2.0, 5.0)]) == 11.0  # 1–4, 4–9, 9–11
    assert coupled._one_after_another_s([(20.0, 2.0), (1.0, 3.0)]) == 22.0
    assert coupled._one_after_another_s([]) == -np.inf
    assert coupled._end_s([(1.0, 2.0), (3.0, 4.0)]) == 7.0
    assert coupled._end_s([]) == -np.inf


@pytest.mark.parametrize(
    ("amount", "size", "jobs"),
    [
        (6.0, 3.0, [(1.0, 2.0), (4.0, 2.0)]),
        (6.1, 3.0, [(1.0, 2.0), (4.0, 2.0), (6.0, 2.0)]),
        (6.0 + 1e-12, 3.0, [(1.0, 2.0), (4.0, 2.0)]),
        (0.5, 3.0, [(1.0, 2.0)]),
        (0.0, 3.0, []),
        (-1.0, 3.0, []),
        (6.0, 0.0, []),
    ],
)
def test_the_fewest_jobs_that_free_an_amount_are_the_earliest_and_shortest(
    amount: float, size: float, jobs: list[tuple[float, float]]
) -> None:
    assert coupled._fewest([(6.0, 2.0), (1.0, 9.0), (4.0, 5.0)], amount, size) == jobs
    assert coupled._fewest([], 6.0, 3.0) == []


@pytest.mark.parametrize(
    ("amount", "until_s"), [(2.0, 1.0), (2.5, 4.0), (5.0, 4.0), (5.0 + 1e-10, 4.0), (5.5, 6.0)]
)
def test_an_amount_is_freed_when_the_earliest_sizes_sum_to_it(amount: float, until_s: float) -> None:
    assert coupled._until_s([(6.0, 1.0), (1.0, 2.0), (4.0, 3.0)], amount) == until_s


def two_chunks() -> _Coupled:
    return _Coupled(Problem.of(
        stage_to_rank=[0, 1, 0], num_microbatches=4, forward_s=[3, 5, 7], backward_input_s=[11, 13, 17],
        backward_weight_s=[19, 23, 29], activation=[4, 1, 6], activation_kept_for_weight=[1, 1, 4], cap=[20, 2],
    ))  # fmt: skip


def test_memory_that_is_lacking_must_be_freed_by_i_or_w() -> None:
    problem = two_chunks()
    assert problem._lacking([0, 2], 3) == pytest.approx(30 - 20)
    assert problem._lacking([0], 3) == pytest.approx(12 - 20)
    jobs = [(1.0, 2.0), (3.0, 4.0), (5.0, 6.0)]
    # An I frees 6 at most. Three microbatches' I free 3 · (3 + 2) of 20; of the other 5, a W frees 4 at most.
    assert problem._freeing(jobs, [0, 2], 3, 10.0, of=coupled._I) == [(1.0, 2.0), (3.0, 2.0)]
    assert problem._freeing(jobs, [0, 2], 3, 20.0, of=coupled._W) == [(1.0, 2.0), (3.0, 2.0)]
    assert problem._freeing(jobs, [0, 2], 3, 15.0, of=coupled._W) == []
    table = problem._empty()
    assert [len(stages) for stages in table] == [3, 3, 3]
    table[coupled._I][0], table[coupled._W][0] = [(10.0, 11.0)], [(30.0, 19.0)]
    table[coupled._I][2] = [(2.0, 17.0)]
    # I of chunk 2 frees 2 at 19 s, I of chunk 0 frees 3 at 21 s, and W of chunk 0 frees 1 at 49 s.
    assert [problem._until_freed_s(table, [0, 2], lacking) for lacking in (2, 5, 5.5)] == [19, 21, 49]
