"""Text of simulated steps."""

import ppsim
from ppsim.results.steps import _bounds
from ppsim.simulation.report import report_of


def test_span_and_step_are_each_compared_with_their_own_bound() -> None:
    costs = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    report = report_of(ppsim.simulate(ppsim.build("1f1b-v", pp=4, microbatches=8), costs), costs)
    told = _bounds(
        report | {"step_time_s": 30.0, "lower_bound_s": 25.0, "span_s": 22.0, "span_lower_bound_s": 20.0}
    )
    assert "(20.00 % above it)" in told.split(";")[0]
    assert "(10.00 % above it)" in told.split(";")[1]
