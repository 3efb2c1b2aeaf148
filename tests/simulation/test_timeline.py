"""Ratios of a timeline."""

import pytest

import ppsim


def test_the_bubble_of_the_span_is_relative_to_the_span_not_to_the_step() -> None:
    costs = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    timeline = ppsim.simulate(ppsim.build("zb-h2", pp=4, microbatches=8), costs)
    assert timeline.span_s < timeline.step_time_s
    assert timeline.span_bubble_ratio == pytest.approx(1 - 24.0 / timeline.span_s, abs=1e-12)
    assert timeline.bubble_ratio == pytest.approx(1 - 24.0 / timeline.step_time_s)
