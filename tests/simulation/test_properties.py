"""What holds for every table and all costs."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ppsim import build, simulate
from ppsim.simulation.bounds.for_table import bounds_of
from ppsim.simulation.idle_causes import CAUSES, critical_path, idle_by_cause_s
from ppsim.simulation.report import report_of
from ppsim.simulation.stage_costs import StageCosts
from tests.strategies import tables_and_costs

TIGHT = 1e-9


def sum_along(timeline, path):
    """Durations on the path and the overheads between, from the first start."""
    duration = timeline.end[path] - timeline.start[path]
    gaps = timeline.start[path[1:]] - timeline.end[path[:-1]]
    return duration.sum() + gaps.sum()


@given(tables_and_costs())
def test_a_step_is_never_shorter_than_its_busiest_rank_its_critical_path_or_the_bound(table_and_costs):
    table, costs = table_and_costs
    timeline = simulate(table, costs)
    step = timeline.step_time_s
    assert step >= timeline.busy_s.max() - TIGHT
    assert step >= timeline.span_s - TIGHT
    assert step >= bounds_of(table, costs).step_s - TIGHT
    assert timeline.span_s >= bounds_of(table, costs).span_s - TIGHT
    path = critical_path(timeline)
    assert timeline.blocker[path[0]] == -1
    assert sum_along(timeline, path) == pytest.approx(timeline.end[path[-1]] - timeline.start[path[0]])
    assert timeline.start[path[0]] + sum_along(timeline, path) == pytest.approx(timeline.begin_s + step)


@given(tables_and_costs(), st.sampled_from([0.25, 3.0, 1e-6]))
def test_times_scale_with_the_costs(table_and_costs, factor):
    table, costs = table_and_costs
    scaled = {
        name: None if (value := getattr(costs, name)) is None else np.asarray(value) * factor
        for name in ("forward_s", "backward_s", "backward_input_s", "backward_weight_s", "fused_s", "transfer_s")
    }
    scaled |= {name: getattr(costs, name) * factor for name in ("action_overhead_s", "hop_overhead_s")}
    one, other = simulate(table, costs), simulate(table, costs.replace(**scaled))
    assert other.step_time_s == pytest.approx(one.step_time_s * factor, rel=1e-9)
    assert other.bubble_ratio == pytest.approx(one.bubble_ratio, abs=1e-9)


@given(
    tables_and_costs(backward_s=None),
    st.sampled_from(["forward_s", "backward_input_s", "backward_weight_s", "fused_s", "transfer_s"]),
    st.data(),
)
def test_a_step_is_monotone_in_each_cost(table_and_costs, name, data):
    table, costs = table_and_costs
    assume(getattr(costs, name) is not None)
    assume(costs.fused_s is None or not costs.differ_by_microbatch)  # what a pair saves grows with its parts' mean
    larger = np.array(getattr(costs, name))
    stage = data.draw(st.integers(0, len(larger) - 1))
    larger[stage] += data.draw(st.floats(0.01, 5.0))
    assert (
        simulate(table, costs.replace(**{name: larger})).step_time_s >= simulate(table, costs).step_time_s - TIGHT
    )


@given(tables_and_costs(), st.sampled_from(["action_overhead_s", "hop_overhead_s"]))
def test_overheads_never_shorten_a_step(table_and_costs, name):
    table, costs = table_and_costs
    more = costs.replace(**{name: getattr(costs, name) + 0.2})
    longer = simulate(table, more)
    assert longer.end[: len(table)].max() >= simulate(table, costs).end[: len(table)].max() - TIGHT


@given(tables_and_costs())
def test_memory_returns_to_its_start_and_never_goes_below(table_and_costs):
    table, costs = table_and_costs
    memory = simulate(table, costs).memory
    assert memory.after[table.rank_offsets[1:] - 1] == pytest.approx(0.0, abs=TIGHT)
    assert (memory.after >= -TIGHT).all()
    assert (memory.during >= memory.after - TIGHT).all()
    assert memory.peak_activation_bytes == pytest.approx(
        np.maximum.reduceat(memory.during, table.rank_offsets[:-1])
    )


@given(tables_and_costs(), st.sampled_from(["ideal", "edge", "pair", "direction", "rank"]))
def test_idle_causes_sum_to_the_idle_time_of_every_rank(table_and_costs, channel):
    table, costs = table_and_costs
    timeline = simulate(table, costs.replace(channel=channel))
    idle = idle_by_cause_s(timeline)
    assert set(idle) == set(CAUSES)
    assert sum(idle.values()) == pytest.approx(timeline.step_time_s - timeline.busy_s, abs=1e-7)
    assert all((seconds >= -TIGHT).all() for seconds in idle.values())


@given(tables_and_costs())
def test_shared_channels_never_make_a_step_faster(table_and_costs):
    table, costs = table_and_costs
    step = {
        channel: simulate(table, costs.replace(channel=channel)).step_time_s
        for channel in ("ideal", "edge", "pair", "rank")
    }
    assert step["ideal"] <= step["edge"] + TIGHT
    assert step["edge"] <= step["pair"] + TIGHT
    assert step["pair"] <= step["rank"] + TIGHT


@given(tables_and_costs())
def test_the_report_has_both_bubbles_and_a_bound_below_the_step(table_and_costs):
    table, costs = table_and_costs
    timeline = simulate(table, costs)
    report = report_of(timeline, costs)
    assert report["step_time_s"] >= report["span_s"] - TIGHT
    assert report["bubble_ratio"] >= report["span_bubble_ratio"] - TIGHT
    assert report["lower_bound_s"] <= report["step_time_s"] + TIGHT
    assert report["span_lower_bound_s"] <= report["span_s"] + TIGHT
    assert len(report["ranks"]) == table.num_ranks
    assert report["critical_path"][0].split("F")[0] in {
        str(stage) for stage in np.flatnonzero(table.model_stage == 0)
    }


def test_the_reports_iteration_is_the_step_and_what_is_between_two_steps():
    """1F1B on two ranks with four microbatches: (4 + 1) * 3 s, and 0.5 s between steps."""
    costs = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, step_overhead_s=0.5)
    report = report_of(simulate(build("1f1b", pp=2, microbatches=4), costs), costs)
    assert (report["step_time_s"], report["step_overhead_s"], report["iteration_time_s"]) == (15.0, 0.5, 15.5)


def test_the_report_has_a_ranks_peak_with_its_static_bytes_and_the_peak_of_its_activations_alone():
    """1F1B on two ranks: two microbatches are in flight on the first rank, one on the last."""
    costs = StageCosts(
        forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, activation_bytes=8, static_bytes=[100, 200]
    )
    table = build("1f1b", pp=2, microbatches=4)
    ranks = report_of(simulate(table, costs), costs)["ranks"]
    assert [one["peak_bytes"] for one in ranks] == [116, 208]
    assert [one["peak_activation_bytes"] for one in ranks] == [16, 8]
    assert [one["peak_at"] for one in ranks] == ["0F1", "1F0"]


@given(tables_and_costs(backward_s=None, transfer_s=0.0, action_overhead_s=0.0, hop_overhead_s=0.0))
def test_torch_first_stage_moves_all_of_its_backward_to_w(table_and_costs):
    table, costs = table_and_costs
    moved = costs.with_torch_first_stage(
        num_stages=table.num_stages, num_ranks=table.num_ranks, num_replicas=table.num_replicas
    )
    one, other = costs.resolved_for(table), moved.resolved_for(table)
    first = table.model_stage == 0  # of every replica
    assert (other.backward_input_s[first] == 0.0).all()
    whole = one.backward_input_s + one.backward_weight_s
    assert other.backward_weight_s[first] == pytest.approx(whole[first], rel=1e-12)
    assert np.array_equal(other.backward_input_s[~first], one.backward_input_s[~first])
    assert simulate(table, moved).busy_s == pytest.approx(simulate(table, costs).busy_s)


def test_costs_that_do_not_fit_are_refused_all_at_once():
    from ppsim import build
    from ppsim.base.errors import ConfigError

    with pytest.raises(ConfigError) as error:
        StageCosts(forward_s=-1, backward_input_s=float("nan"), backward_weight_s="x", channel="wire")
    for problem in (
        "forward_s holds -1",
        "backward_input_s holds nan",
        "backward_weight_s is 'x'",
        "channel is 'wire'",
    ):
        assert problem in str(error.value)
    wrong = StageCosts(forward_s=[1, 2, 3], backward_input_s=1, backward_weight_s=1, static_bytes=[1, 2, 3])
    with pytest.raises(ConfigError) as error:
        simulate(build("1f1b", pp=2, microbatches=2), wrong)
    assert "forward_s has 3 entries, but the schedule has 2 stages" in str(error.value)
    assert "static_bytes has 3 entries, but the schedule has 2 ranks" in str(error.value)
