"""A stage of n layers takes a + n·b, through one layer alone and several in a row; never less than nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppsim.catalog.build import build
from ppsim.costs.lines import line_through
from ppsim.costs.of_profile import assemble

from .profiles import EXAMPLE, example, profile

SECONDS = st.floats(min_value=0.0, max_value=1e3)


@given(alone=SECONDS, mean=SECONDS, count=st.integers(2, 64))
def test_neither_part_is_negative_and_several_in_a_row_are_met(alone: float, mean: float, count: int) -> None:
    intercept, slope = line_through(alone, mean, count)
    assert intercept >= 0
    assert slope >= 0
    assert intercept + count * slope == pytest.approx(count * mean, abs=1e-9)
    if intercept:
        assert intercept + slope == pytest.approx(alone)


def test_a_stage_pays_once_what_a_layer_alone_pays_beyond_its_share() -> None:
    def with_alone(part):
        if part["component"] != "layer":
            return part
        names = ("forward_s", "backward_s", "backward_input_s", "backward_weight_s")
        times = {name: part[name] and {key: 1.5 * value for key, value in part[name].items()} for name in names}
        return part | {"alone": {"num_in_row": 3, **times}}

    schedule = build("1f1b", pp=2, microbatches=2)
    plain = assemble(profile(example()), schedule, num_layers=4, split=[1, 3])
    lines = assemble(
        profile(example(measurements=[with_alone(part) for part in EXAMPLE["measurements"]])),
        schedule,
        num_layers=4,
        split=[1, 3],
    )
    layer = profile(example()).measurements[1].forward_s.median
    difference = lines.costs.forward_s - plain.costs.forward_s
    assert difference[0] == pytest.approx(0.5 * layer)
    assert difference[1] == pytest.approx(0.0)
    assert any(line.startswith("a stage takes ") for line in lines.assumptions)
    assert not any(line.startswith("a stage takes ") for line in plain.assumptions)
    assert lines.costs.activation_bytes.tolist() == plain.costs.activation_bytes.tolist()
