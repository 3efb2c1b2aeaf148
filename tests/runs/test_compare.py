"""Two timelines side by side: what cannot be compared is refused."""

import pytest

from ppsim import StageCosts, build, simulate
from ppsim.base.errors import ConfigError
from ppsim.runs.compare import compare

UNIT = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
TABLE = build("1f1b", pp=2, microbatches=4)


def test_a_step_of_half_the_time_is_fifty_percent_too_fast():
    half = StageCosts(forward_s=0.5, backward_input_s=0.5, backward_weight_s=0.5)
    found = compare(simulate(TABLE, UNIT), simulate(TABLE, half))
    assert (found.step_error, found.span_error, found.replay_error) == (-0.5, -0.5, 0.0)
    assert {op.error for op in found.ops} == {-0.5}


def test_two_tables_cannot_be_compared():
    other = build("1f1b", pp=2, microbatches=5)
    with pytest.raises(ConfigError, match=r"different tables: .* 4 microbatches and .* 5 microbatches"):
        compare(simulate(TABLE, UNIT), simulate(other, UNIT))


def test_a_measured_step_that_took_no_time_cannot_be_compared_with():
    nothing = StageCosts(forward_s=0.0, backward_input_s=0.0, backward_weight_s=0.0)
    with pytest.raises(ConfigError, match="the measured step took 0 s"):
        compare(simulate(TABLE, nothing), simulate(TABLE, UNIT))
