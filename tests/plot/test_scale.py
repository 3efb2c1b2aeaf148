"""Units, titles and colours of pictures."""

import numpy as np
import pytest

from ppsim import StageCosts, build, simulate
from ppsim.plot import palette
from ppsim.plot import scale as scale_module
from ppsim.plot.action_colours import KINDS, fills_of
from ppsim.plot.lanes import compute_lanes, transfer_lanes
from ppsim.plot.scale import bytes_scale, heading, panel_prefixes, time_scale
from ppsim.schedule.table import Op
from tests.defaults import number_defaults

UNIT = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)


def test_a_heading_names_the_plan_its_step_time_and_both_bubbles():
    timeline = simulate(build("1f1b", pp=4, microbatches=8), UNIT)
    assert heading(timeline, "") == (
        "1f1b", "pp 4 · vpp 1 · 8 microbatches · step 33.0 s · bubble 27.27 %",
    )  # fmt: skip
    title, facts = heading(timeline, "measured")
    assert title == "measured"
    assert facts.startswith("1f1b · pp 4")


def test_only_pictures_of_several_timelines_say_whose_panel_it_is():
    timeline = simulate(build("1f1b", pp=2, microbatches=2), UNIT)
    assert panel_prefixes([timeline], ["a"]) == [""]
    assert panel_prefixes([timeline, timeline], ["a", ""]) == ["a: ", "1f1b: "]


@pytest.mark.parametrize(("longest_s", "unit", "shown"), [(33.0, "s", "33.00000"), (0.033, "ms", "33.00000")])
def test_times_have_seven_digits(longest_s, unit, shown):
    scale = time_scale(longest_s)
    assert (scale.unit, scale.value(longest_s)) == (unit, shown)


def test_nothing_at_all_still_has_a_scale():
    assert time_scale(0.0).value(0.0) == "0.000000"
    assert bytes_scale(0.0).unit == "B"


def test_kinds_stay_apart_in_grey():
    levels = [palette.luminance(palette.COLOURS[op]) for op in (Op.F, Op.B, Op.W, Op.I)]
    assert levels == sorted(levels)
    assert min(np.diff(levels)) > 0.04


def test_labels_are_legible_on_every_fill():
    for op in KINDS:
        for chunk in range(2):
            fill = palette.fill_of(op, chunk=chunk)
            assert palette.contrast(fill, palette.text_on(fill)) > 4.5


def test_chunks_take_turns_at_two_fills_and_the_first_has_the_kinds_hue():
    fills = [palette.fill_of(Op.F, chunk=chunk) for chunk in range(8)]
    assert fills[0] == palette.COLOURS[Op.F] != fills[1]
    assert fills == 4 * fills[:2]


def test_every_cell_gets_the_fill_of_its_kind_and_chunk():
    timeline = simulate(build("zbv-fixed", pp=2, microbatches=4), UNIT.replace(transfer_s=0.5))
    fills = fills_of([timeline])
    colours = fills.colours
    for lane in compute_lanes(timeline):
        for index, kind, chunk in zip(fills.index_of(lane), lane.kind, lane.chunk, strict=True):
            is_idle = kind == Op.IDLE
            expected = palette.COLOURS[Op.IDLE] if is_idle else palette.fill_of(Op(kind), chunk=chunk)
            assert colours[index] == expected
    for lane in transfer_lanes(timeline):
        drawn = {colours[index] for index in fills.index_of(lane)}
        assert drawn == {palette.COLOURS[Op.SEND_F], palette.BLANK}


def test_the_legend_names_what_occurs_and_nothing_else():
    timeline = simulate(build("1f1b", pp=2, microbatches=4), UNIT)
    names = [name for name, _ in fills_of([timeline]).legend([timeline])]
    assert names == ["F  forward", "B  backward", "idle"]
    split = simulate(build("zbv-fixed", pp=2, microbatches=4), UNIT.replace(transfer_s=0.5))
    names = [name for name, _ in fills_of([timeline, split]).legend([timeline, split])]
    assert names[:4] == ["F  forward", "B  backward", "I  backward, inputs", "W  backward, weights"]
    assert names[4:] == ["lighter: every other chunk", "transfer", "idle"]
    colours = dict(fills_of([split]).legend([split]))
    assert colours["F  forward"] == palette.fill_of(Op.F, chunk=0) == palette.COLOURS[Op.F]
    assert colours["lighter: every other chunk"] == palette.fill_of(Op.F, chunk=1) != palette.COLOURS[Op.F]
    assert (colours["transfer"], colours["idle"]) == (palette.COLOURS[Op.SEND_F], palette.COLOURS[Op.IDLE])


def test_what_is_left_out_in_plot_scale_has_these_values() -> None:
    assert number_defaults(scale_module) == {
        "AxisScale": {"decimals": 0},
    }  # fmt: skip
