"""Ratios of a timeline."""

from dataclasses import replace

import numpy as np
import pytest

import ppsim
from ppsim.schedule.grammar import parse_table
from ppsim.schedule.rounds import repeat_rounds
from ppsim.simulation.timeline import ratio_idle


def test_the_bubble_of_the_span_is_relative_to_the_span_not_to_the_step() -> None:
    costs = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    timeline = ppsim.simulate(ppsim.build("zb-h2", pp=4, microbatches=8), costs)
    assert timeline.span_s < timeline.step_time_s
    assert timeline.span_bubble_ratio == pytest.approx(1 - 24.0 / timeline.span_s, abs=1e-12)
    assert timeline.bubble_ratio == pytest.approx(1 - 24.0 / timeline.step_time_s)


def test_a_timeline_is_summarised_in_a_line() -> None:
    costs = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    table = repeat_rounds(ppsim.build("1f1b", pp=2, microbatches=2), 2)
    timeline = ppsim.simulate(table, costs.replace(between_rounds_s=0.5))
    assert timeline.one_line == (
        "1f1b, pp 2, vpp 1, 2 rounds of 2 microbatches, simulated: step 18.5 s, bubble 35.14 %"
    )
    own = replace(ppsim.simulate(table.named(""), costs), origin="measured")
    assert own.one_line.startswith("own table, pp 2, vpp 1, 2 rounds of 2 microbatches, measured: step ")


def test_stages_are_ready_when_their_forwards_may_begin() -> None:
    costs = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    table = parse_table("0F0,2F0,2B0,0B0\n1F0,1B0\n")
    timeline = ppsim.simulate(table, costs)
    assert timeline.ready_s is None
    earliest = np.array([0.5, 0.75, 7.0, 8.0, 0.25, 9.0, *[10.0] * timeline.graph.num_transfers])
    ready_s = replace(timeline, earliest=earliest).ready_s
    assert ready_s is not None
    assert ready_s.tolist() == [0.5, 0.25, 0.75]


def test_a_message_is_made_by_the_last_action_of_its_cell() -> None:
    costs = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    table = parse_table("0F0,0F1,0B0,0B1\n1F0,(1B0;1F1)OVERLAP_F_B,1B1\n")
    timeline = ppsim.simulate(table, costs)
    made = {
        timeline.name_of(timeline.num_actions + index): str(table[maker])
        for index, maker in enumerate(timeline.makers)
    }
    assert made == {"0SEND_F0": "0F0", "0SEND_F1": "0F1", "1SEND_B0": "1F1", "1SEND_B1": "1B1"}


def test_nothing_is_idle_in_a_step_without_time() -> None:
    assert ratio_idle(0.0, 0.0) == 0.0
    assert ratio_idle(3.0, 4.0) == 0.25
