"""A sweep of schedules over microbatches is what simulating and projecting each of them says."""

import pytest

from ppsim import StageCosts, build, project, simulate
from ppsim.base.errors import ConfigError
from ppsim.catalog.build import CATALOG
from ppsim.projection.bubbles import bubbles_at, bubbles_of_plan
from ppsim.projection.plan import Plan

COSTS = StageCosts(
    forward_s=2.0, backward_input_s=2.0, backward_weight_s=1.0, activation_bytes=8.0, static_bytes=1.0
)


def test_bubbles_are_those_of_the_closed_forms():
    schedules, p = ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1"], 4
    sweep = bubbles_at(COSTS, pp=p, schedules=schedules, microbatches=[4, 8, 16])
    assert len(sweep) == 12
    for row in sweep.itertuples():
        form = CATALOG[row.schedule].bubble
        idle = form(p=p, v=row.vpp, m=row.microbatches, F=2.0, I=2.0, W=1.0, c=0.0)
        assert row.bubble_ratio == pytest.approx(idle / (5 * row.microbatches + idle))
        assert row.step_time_s == pytest.approx(5 * row.microbatches + idle)


def test_stages_of_a_rank_share_its_costs_so_that_schedules_are_of_one_model():
    sweep = bubbles_at(COSTS.replace(transfer_s=0.25), pp=4, schedules=["zbv-fixed", "dualpipe"], microbatches=[8])
    whole = COSTS.replace(transfer_s=0.25)
    half = whole.replace(forward_s=1.0, backward_input_s=1.0, backward_weight_s=0.5, activation_bytes=4.0)
    v_shape = simulate(build("zbv-fixed", pp=4, microbatches=8), half)
    two_chains = simulate(build("dualpipe", pp=4, microbatches=8), whole)  # a rank's two stages are of two replicas
    assert sweep["step_time_s"].tolist() == [v_shape.step_time_s, two_chains.step_time_s]
    assert sweep["peak_bytes"].tolist() == [line.memory.peak_bytes.max() for line in (v_shape, two_chains)]


def test_a_plan_is_projected_under_every_schedule_and_number():
    plan = Plan(pp=4)
    sweep = bubbles_of_plan(plan, schedules=["zbv-fixed", "1f1b"], microbatches=[4, 8])
    assert list(zip(sweep["schedule"], sweep["microbatches"], strict=True)) == [
        ("zbv-fixed", 4), ("1f1b", 4), ("zbv-fixed", 8), ("1f1b", 8),
    ]  # fmt: skip
    there = project(pp=4, schedule="zbv-fixed", microbatches=8).timeline
    row = sweep.iloc[2]
    assert (row["bubble_ratio"], row["span_bubble_ratio"]) == (there.bubble_ratio, there.span_bubble_ratio)


def test_what_a_schedule_forbids_is_a_row_with_the_reason():
    for sweep in (
        bubbles_at(COSTS, pp=4, schedules=["dualpipev"], microbatches=[4, 8]),
        bubbles_of_plan(Plan(pp=4), schedules=["dualpipev"], microbatches=[4, 8]),
    ):
        assert sweep["bubble_ratio"].isna().tolist() == [True, False]
        assert "needs at least 2 * p microbatches: got 4" in sweep["reason"][0]
        assert sweep["reason"][1] == ""


@pytest.mark.parametrize(
    ("schedules", "microbatches", "sentence"),
    [
        (["1f2b"], [4], "'1f2b'"),
        (["1f1b"], [4, 0], "microbatches"),
        ([], [4], "at least one schedule and one number"),
        (["1f1b"], [], "at least one schedule and one number"),
    ],
)  # fmt: skip
def test_an_impossible_sweep_is_refused(schedules, microbatches, sentence):
    for sweep in (
        lambda: bubbles_at(COSTS, pp=4, schedules=schedules, microbatches=microbatches),
        lambda: bubbles_of_plan(Plan(pp=4), schedules=schedules, microbatches=microbatches),
    ):
        with pytest.raises(ConfigError, match=sentence):
            sweep()


def test_costs_of_another_number_of_stages_are_refused():
    with pytest.raises(ConfigError, match="forward_s"):
        bubbles_at(COSTS.replace(forward_s=[1.0, 2.0]), pp=4, schedules=["1f1b"], microbatches=[4])
