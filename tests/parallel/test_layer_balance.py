"""Moves of a layer change functions of the stages as if the functions were computed anew."""

from collections.abc import Sequence

import numpy as np
import pytest

from ppsim.parallel.layer_balance import LinearFunctions, balance_ranks, move_layer, possible_moves

COSTS = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
WEIGHTS = np.array([[1.0, 3.0, 5.0, 0.5], [0.0, 1.0, 0.0, 1.0]])


def test_inner_stages_keep_a_layer_and_the_ends_need_none() -> None:
    giving, taking = possible_moves([1, 1, 2, 0])
    expected = {(0, other) for other in (1, 2, 3)} | {(2, other) for other in (0, 1, 3)}
    assert set(zip(giving.tolist(), taking.tolist(), strict=True)) == expected
    assert len(giving) == len(expected)


def stage_costs(counts: Sequence[int], fixed: float) -> list[float]:
    ends = np.cumsum(counts)
    return [
        sum(COSTS[end - count : end]) + (fixed if count else 0.0) for count, end in zip(counts, ends, strict=True)
    ]


@pytest.mark.parametrize("fixed", [0.0, 100.0])
@pytest.mark.parametrize("counts", [(1, 2, 3, 0), (0, 1, 2, 3), (2, 1, 1, 2)])
def test_a_move_shifts_every_boundary_between_its_stages(counts: tuple[int, ...], fixed: float) -> None:
    functions = LinearFunctions(COSTS, 4, fixed)
    constants = np.array([7.0, 11.0])
    functions.add(WEIGHTS, counts, constants + WEIGHTS @ stage_costs(counts, fixed))
    assert len(functions) == 2
    assert functions.stage_costs(counts).tolist() == stage_costs(counts, fixed)
    giving, taking = possible_moves(counts)
    changes = functions.changes(counts, giving, taking)
    assert functions.changes(counts, giving, taking, [1]) == pytest.approx(changes[1:])
    for index, (source, target) in enumerate(zip(giving.tolist(), taking.tolist(), strict=True)):
        moved = move_layer(counts, source, target)
        anew = constants + WEIGHTS @ stage_costs(moved, fixed)
        assert functions.values(moved) == pytest.approx(anew)
        assert functions.values(counts) + changes[:, index] == pytest.approx(anew)


V_SHAPE = [[0, 3], [1, 2]]


def loads(counts: Sequence[int], layer_costs: Sequence[float], ends: tuple[float, float]) -> list[float]:
    sums = np.concatenate([[0.0], np.cumsum(layer_costs)])
    edges = np.cumsum([0, *counts])
    stages = np.diff(sums[edges])
    stages[[0, -1]] += ends
    return [float(sum(stages[stage] for stage in rank)) for rank in V_SHAPE]


@pytest.mark.parametrize(
    ("layer_costs", "ends", "expected"),
    [
        ([1.0] * 8, (0.0, 4.0), [6.0, 6.0]),
        ([1.0] * 8, (3.0, 0.0), [6.0, 5.0]),  # as even as 11 can be
        ([1.0] * 8, (0.5, 0.4), [4.9, 4.0]),  # nothing to gain
        ([2.0] * 8, (0.0, 6.0), [12.0, 10.0]),
    ],
)
def test_layers_leave_the_busiest_rank_as_long_as_that_helps(
    layer_costs: list[float], ends: tuple[float, float], expected: list[float]
) -> None:
    made = balance_ranks([2, 2, 2, 2], layer_costs, ends, V_SHAPE)
    assert sum(made) == 8
    assert sorted(loads(made, layer_costs, ends), reverse=True) == pytest.approx(expected)


def test_ranks_with_one_stage_are_left_as_they_are() -> None:
    assert balance_ranks([4, 1], [1.0] * 5, (0.0, 9.0), [[0], [1]]) == [4, 1]
