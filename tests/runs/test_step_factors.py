"""Factors of action times are those that were put in, one at a time; the others stay 1."""

import numpy as np
import pytest

from ppsim import Op, build
from ppsim.runs import step_factors
from ppsim.runs.step_factors import StepFactors, _outliers, _over, _slope, drift_over_steps

TABLE = build("1f1b", pp=4, microbatches=8)
USUAL_S = np.array([(2.0 if action.op is Op.B else 1.0) * (1 + 0.1 * action.stage) for action in TABLE])
STEP_S = 50.0


def factors_of(factors: np.ndarray | float, num_steps: int = 10) -> StepFactors:
    """Return the factors found in steps whose actions take `factors` times the usual time."""
    return StepFactors(TABLE, np.broadcast_to(USUAL_S * factors, (num_steps, len(TABLE))).copy(), STEP_S)


def is_usual(found: StepFactors, *names: str) -> bool:
    return all(np.allclose(getattr(found, name), 1.0, atol=1e-9) for name in names)


def test_equal_steps_have_no_factors_and_no_pauses() -> None:
    found = factors_of(1.0)
    assert is_usual(found, "drift", "slow_steps", "drift_in_step", "sizes")
    assert not found.pauses.any()
    assert found.usual == pytest.approx(USUAL_S)
    assert found.expected == pytest.approx(np.stack([USUAL_S] * 10))
    assert sorted(map(str, np.array([str(action) for action in TABLE])[found.firsts])) == [
        "0B0", "0F0", "1B0", "1F0", "2B0", "2F0", "3B0", "3F0"
    ]  # fmt: skip


def test_a_slow_step_of_a_rank_is_that_ranks() -> None:
    factors = np.ones((10, len(TABLE)))
    factors[3, TABLE.rank == 1] = 1.5
    found = factors_of(factors)
    expected = np.ones((10, 4))
    expected[3, 1] = 1.5
    assert found.slow_steps == pytest.approx(expected)
    assert is_usual(found, "drift", "drift_in_step", "sizes")
    assert not found.pauses.any()
    assert is_usual(factors_of(1 + (factors - 1) * 0.09), "slow_steps"), "4.5 % is no slow step"


def test_a_drift_of_all_ranks_and_of_one_are_distinguished() -> None:
    steps = np.arange(20.0)[:, None]
    of_all = factors_of(1 + 0.02 * steps, 20)
    assert of_all.drift_of_all == pytest.approx(1 + 0.02 * steps)
    assert is_usual(of_all, "drift_of_ranks", "slow_steps")
    of_one = factors_of(np.where(TABLE.rank == 2, 1 + 0.02 * steps, 1.0), 20)
    assert of_one.drift_of_ranks[:, 2] == pytest.approx(1 + 0.02 * np.arange(20))
    assert is_usual(of_one, "drift_of_all", "slow_steps")
    for found in (of_all, of_one):
        assert found.expected == pytest.approx(found.taken)
        assert found.usual == pytest.approx(USUAL_S)
        assert found.drift[:, 2] == pytest.approx(1 + 0.02 * np.arange(20))
    assert is_usual(factors_of(1 + 0.001 * steps, 20), "drift"), "1.9 % from the first step to the last is none"


def test_a_long_action_is_a_pause_of_its_excess() -> None:
    factors = np.ones((10, len(TABLE)))
    factors[4, 5] = 3.0
    found = factors_of(factors)
    assert np.argwhere(found.pauses).tolist() == [[4, 5]]
    assert found.pauses[4, 5] == pytest.approx(2 * USUAL_S[5])
    assert found.without_pauses == pytest.approx(np.stack([USUAL_S] * 10))


def test_a_large_microbatch_has_its_size_relative_to_the_mean() -> None:
    factors = np.where(TABLE.microbatch == 3, 2.0, 1.0)
    found = factors_of(factors)
    assert found.sizes[0] == pytest.approx(factors / ((7 + 2) / 8))
    assert is_usual(found, "drift", "slow_steps")
    assert is_usual(factors_of(np.where(TABLE.microbatch == 3, 1.04, 1.0)), "sizes"), "4 % count as equal"


def test_a_trend_of_the_microbatches_is_no_drift_and_a_drift_is_no_trend_of_the_microbatches() -> None:
    """Both get longer from the first action to the last: sizes follow the microbatch, drift the rank's clock."""
    place = np.concatenate([np.linspace(0, 1, 16)] * 4)
    taken = USUAL_S * np.random.default_rng(1).normal(1, 0.01, (10, len(TABLE)))
    by_size = StepFactors.fitted(TABLE, taken * (1 + 0.1 * TABLE.microbatch), STEP_S)
    assert by_size.sizes[0] == pytest.approx((1 + 0.1 * TABLE.microbatch) / 1.35, rel=0.02)
    assert is_usual(by_size, "drift", "drift_in_step")
    by_clock = StepFactors.fitted(TABLE, taken * (1 + place), STEP_S)
    assert by_clock.drift_in_step == pytest.approx(1 + place, rel=0.03)
    assert is_usual(by_clock, "drift", "sizes")


def test_of_two_ranks_the_one_that_drifts_is_named() -> None:
    table = build("1f1b", pp=2, microbatches=8)
    for rank in range(2):
        factors = np.where(table.rank == rank, 1 + 0.05 * np.arange(10.0)[:, None], 1.0)
        found = StepFactors(table, factors, STEP_S)
        assert is_usual(found, "drift_of_all", "slow_steps", "drift_in_step", "sizes")
        assert found.drift_of_ranks[:, rank] == pytest.approx(factors[:, table.rank == rank][:, 0])
        assert found.drift_of_ranks[:, 1 - rank] == pytest.approx(1.0)
    of_both = StepFactors(table, np.outer(1 + 0.05 * np.arange(10.0), np.ones(len(table))), STEP_S)
    assert is_usual(of_both, "drift_of_ranks"), "a trend of all ranks is common"


@pytest.mark.parametrize(
    ("paces", "drift"),
    [
        (1 + 0.05 * np.arange(7), 1 + 0.05 * np.arange(7)),
        (1 + 0.05 * np.arange(6), np.ones(6)),
        (2 - 0.1 * np.arange(7), (2 - 0.1 * np.arange(7)) / 1.4),
        (1 + 0.0034 * np.arange(7), 1 + 0.0034 * np.arange(7)),
        (1 + 0.0032 * np.arange(7), np.ones(7)),
        (3 + 0.3 * np.arange(12) + 5 * (np.arange(12) == 5), 1 + 0.1 * np.arange(12)),
    ],
)
def test_a_trend_needs_seven_steps_and_two_percent_and_is_1_at_its_faster_end(paces, drift) -> None:
    """Of six steps in order the signs add up to 15, and 3 deviations are 16; one long step does not tilt the line."""
    assert drift_over_steps(paces) == pytest.approx(drift)


@pytest.mark.parametrize(
    ("paces", "factors"),
    [
        ([1, 1, 1, 1, 1.06], [1, 1, 1, 1, 1.06]),
        ([1, 1, 1, 1, 1.04], [1, 1, 1, 1, 1]),
        ([2, 2, 2, 2, 1], [1, 1, 1, 1, 0.5]),
        ([1, 1.02, 0.98, 1.03, 0.97, 1.15], [1] * 6),
        ([1, 1.02, 0.98, 1.03, 0.97, 1.17], [1, 1, 1, 1, 1, 1.17 / 1.01]),
    ],
)
def test_a_step_is_unusual_beyond_four_deviations_and_five_percent(paces, factors) -> None:
    """The last two: half of the distances from the median 1.01 are up to 0.025, and 4 · 1.48 · 0.025 is 0.148."""
    assert _outliers(np.array(paces, dtype=float)) == pytest.approx(factors)


@pytest.mark.parametrize(
    ("slopes", "expected"),
    [([0.2] * 4, 0.2), ([0.2] * 3, 0.0), ([0.19, 0.21] * 2, 0.2), ([0.1, 0.3] * 2, 0.0), ([-0.2] * 5, -0.2)],
)
def test_a_slope_is_the_median_of_pairs_if_it_exceeds_five_deviations(slopes, expected) -> None:
    """The first action of a kind is left out, and each of the first half makes a pair with one of the second."""
    number = len(slopes)
    place = np.linspace(0, 1, 2 * number + 1)
    high = 1 + np.array(slopes) * (place[number + 1] - place[1])
    ratio = np.concatenate([[9.0], np.ones(number), high])
    kinds = np.zeros(len(place), dtype=np.int64)
    assert _slope(kinds, place, ratio) == pytest.approx(expected)
    assert _slope(kinds, place, np.where(np.arange(len(place)) == 1, 0.0, ratio)) == pytest.approx(
        expected if number > 4 else 0.0, rel=0.2
    ), "an action without a time makes no pair"


def test_a_time_over_none_is_usual() -> None:
    assert _over(np.array([[2.0, 3.0]]), np.array([4.0, 0.0])).tolist() == [[0.5, 1.0]]


@pytest.mark.parametrize(("microbatches", "is_found"), [(2, False), (3, True)])
def test_a_slow_step_needs_six_actions_of_its_rank(microbatches: int, is_found: bool) -> None:
    table = build("1f1b", pp=4, microbatches=microbatches)
    factors = np.ones((10, len(table)))
    factors[3, table.rank == 1] = 1.5
    assert is_usual(StepFactors(table, factors, STEP_S), "slow_steps") is not is_found


@pytest.mark.parametrize(("pp", "is_found"), [(1, False), (2, True)])
def test_sizes_need_two_actions_of_each_kind_and_microbatch(pp: int, is_found: bool) -> None:
    table = build("1f1b", pp=pp, microbatches=8)
    factors = np.broadcast_to(np.where(table.microbatch == 3, 2.0, 1.0), (10, len(table)))
    assert is_usual(StepFactors(table, factors.copy(), STEP_S), "sizes") is not is_found


def test_microbatches_of_other_sizes_in_each_step_are_found_relative_to_the_mean_of_all() -> None:
    sizes = np.random.default_rng(1).uniform(0.5, 1.5, (10, 8))
    found = StepFactors(TABLE, USUAL_S * sizes[:, TABLE.microbatch], STEP_S, sizes_first=True)
    assert found.sizes == pytest.approx(sizes[:, TABLE.microbatch] / sizes.mean())
    assert is_usual(found, "drift", "drift_in_step")
    assert found.unexplained == pytest.approx(0, abs=1e-9)


def test_what_is_long_in_most_steps_or_first_in_a_single_one_is_no_pause() -> None:
    factors = np.ones((10, len(TABLE)))
    factors[:6, 5] = 3.0
    assert not factors_of(factors).pauses.any()
    for entry, excess in ((0, 0.0), (5, 2 * USUAL_S[5])):
        alone = np.ones((1, len(TABLE)))
        alone[0, entry] = 3.0
        assert factors_of(alone, 1).pauses.sum() == pytest.approx(excess)


def test_limits_of_step_factors() -> None:
    names = ("_LEAST_SPREAD", "_DEVIATIONS", "_LEAST_OF_RANK", "_ALIKE", "_TINY", "_CLEARLY", "_LEAST_PASSES")
    assert [getattr(step_factors, name) for name in names] == [0.05, 4, 6, 0.2, 1e-9, 0.8, 2]
    names = ("_SLOPE_DEVIATIONS", "_STEP_DEVIATIONS", "_LEAST_DRIFT", "_LEAST_PAIRS", "_LEAST_SLOPE")
    assert [getattr(step_factors, name) for name in names] == [5, 3, 0.02, 4, 1e-6]
    assert step_factors._TO_DEVIATION == 1.25 / 1.15
