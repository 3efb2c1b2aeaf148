"""Factors of action times are those that were put in, one at a time; the others stay 1."""

import numpy as np
import pytest

from ppsim import Op, build
from ppsim.runs.step_factors import StepFactors

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
