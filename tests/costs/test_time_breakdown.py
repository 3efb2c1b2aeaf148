"""Sums and multiples of seconds by cause, and of the passes of a component."""

from dataclasses import fields

import pytest

from ppsim.costs.time_breakdown import BASIS, CostEstimate, MeasuredSeconds, TimeBreakdown, work_of
from tests.defaults import field_defaults

CAUSES = [one.name for one in fields(TimeBreakdown)]
POWERS = TimeBreakdown(*(2.0**power for power in range(13)))
ONES = TimeBreakdown(*[1.0] * 13)


def test_nothing_takes_no_time() -> None:
    assert TimeBreakdown().numbers == (0.0,) * 13
    assert (MeasuredSeconds().profile_s, MeasuredSeconds().table_s) == (0.0, 0.0)
    empty = CostEstimate(ONES, ONES, ONES)
    assert (empty.basis, empty.whole_backward, empty.known, empty.sent_again_s, empty.times) == (
        BASIS, None, MeasuredSeconds(), 0.0, None,
    )  # fmt: skip


def test_causes_are_added_and_multiplied_one_by_one() -> None:
    assert POWERS.total_s == 2**13 - 1
    assert (POWERS + ONES).numbers == tuple(2.0**power + 1 for power in range(13))
    assert (POWERS * 3).numbers == tuple(3 * 2.0**power for power in range(13))
    communication = ("tp_s", "ep_s", "cp_s", "dp_s")
    assert POWERS.communication_s == sum(getattr(POWERS, name) for name in communication)


@pytest.mark.parametrize(("measured_s", "loss"), [(0.0, "matmul_loss_s"), (1.0, "measured_loss_s")])
def test_slower_kernels_keep_the_time_of_the_model_flops_at_peak(measured_s: float, loss: str) -> None:
    """Twice the total: each cause doubles, and the losses also have the 10 s by which the ideal part would grow."""
    before = TimeBreakdown(ideal_s=10.0, matmul_loss_s=3.0, measured_loss_s=measured_s, memory_s=4.0)
    after = before.slowed(2.0)
    assert after.total_s == 2 * before.total_s
    expected = {name: 2 * getattr(before, name) for name in CAUSES} | {"ideal_s": 10.0}
    expected[loss] += 10.0
    assert {name: getattr(after, name) for name in CAUSES} == expected


def estimate(whole_s: float | None = None) -> CostEstimate:
    whole = None if whole_s is None else TimeBreakdown(memory_s=whole_s)
    forward, inputs, weights = (TimeBreakdown(memory_s=seconds) for seconds in (1.0, 2.0, 4.0))
    return CostEstimate(
        forward, inputs, weights, "a profile", whole, MeasuredSeconds(0.5, 0.25), sent_again_s=0.125
    )


@pytest.mark.parametrize(
    ("first", "second", "backward_s"), [(None, None, 12.0), (5.0, None, 11.0), (5.0, 5.0, 10.0)]
)
def test_a_backward_is_the_sum_of_i_and_w_unless_it_was_measured_whole(
    first: float | None, second: float | None, backward_s: float
) -> None:
    both = estimate(first) + estimate(second)
    passes = (both.forward, both.backward_input, both.backward_weight, both.backward)
    assert [one.total_s for one in passes] == [2.0, 4.0, 8.0, backward_s]
    assert (both.whole_backward is None) is (first is None)
    assert both.known == MeasuredSeconds(1.0, 0.5)
    assert work_of(both) == 2.0 + backward_s


@pytest.mark.parametrize("whole_s", [None, 5.0])
def test_multiples_and_slower_passes_keep_their_source(whole_s: float | None) -> None:
    one = estimate(whole_s)
    for found in (one * 3, one.slowed(3.0)):
        passes = (found.forward, found.backward_input, found.backward_weight, found.backward)
        assert [each.total_s for each in passes] == [3.0, 6.0, 12.0, 3 * (whole_s or 6.0)]
        assert (found.whole_backward is None) is (whole_s is None)
        assert (found.basis, found.known) == ("a profile", MeasuredSeconds(1.5, 0.75))


def test_seconds_that_are_not_given_are_none() -> None:
    assert set(field_defaults(TimeBreakdown).values()) == {0.0}
    assert len(field_defaults(TimeBreakdown)) == 13
    assert field_defaults(MeasuredSeconds) == {"profile_s": 0.0, "table_s": 0.0}
    assert field_defaults(CostEstimate)["sent_again_s"] == 0.0
