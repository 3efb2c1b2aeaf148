"""A stage of n layers takes a + n·b, through one layer alone and several in a row; never less than nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppsim.catalog.build import build
from ppsim.costs.affine_layer_cost import line_through, stage_lines
from ppsim.costs.assemble_profile import assemble
from ppsim.costs.utilization import split_ratio

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


def test_a_pass_has_a_line_where_it_was_measured_both_alone_and_in_a_row() -> None:
    passes = {"forward_s": {"median": 1.0625}, "backward_s": {"median": 2.0}}
    alone = {"forward_s": {"median": 1.25}, "backward_s": None, "num_in_row": 4}
    none = dict.fromkeys(("backward_input_s", "backward_weight_s"))
    assert stage_lines(none | passes | {"alone": none | alone}) == {"F": (0.25, 1.0)}


def test_the_halves_of_a_backward_are_related_to_the_whole_where_all_three_were_measured() -> None:
    halves = {"backward_input_s": {"median": 1.5}, "backward_weight_s": {"median": 1.0}}
    assert split_ratio(halves | {"backward_s": {"median": 2.0}}) == 1.25
    assert split_ratio(halves | {"backward_s": None}) is None
    assert split_ratio(halves | {"backward_s": {"median": 0.0}}) is None
