"""What pictures are drawn from: cells tile the step, and nothing is lost or stretched."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppsim import StageCosts, build, simulate
from ppsim.plot import lanes as lanes_module
from ppsim.plot.lanes import (
    MOST_MEMORY_LINES,
    compute_lanes,
    critical_line,
    has_transfers,
    memory_caption,
    memory_lines,
    pack_intervals,
    placed_transfer_lanes,
    shown_ranks,
    transfer_lanes,
)
from ppsim.schedule.table import Op
from tests.defaults import number_defaults
from tests.strategies import tables_and_costs

UNIT = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)


@given(tables_and_costs())
def test_compute_cells_tile_the_step_and_each_action_has_its_own(table_and_costs):
    timeline = simulate(*table_and_costs)
    lanes = compute_lanes(timeline)
    assert [lane.rank for lane in lanes] == list(range(timeline.schedule.num_ranks))
    tolerance = 1e-8 * timeline.step_time_s
    for lane in lanes:
        assert lane.edges[0] == 0
        assert lane.edges[-1] == pytest.approx(timeline.step_time_s, abs=tolerance)
        assert np.all(np.diff(lane.edges) >= 0)
        assert not np.any(lane.is_idle[1:] & lane.is_idle[:-1])
        busy = lane.node[~lane.is_idle]
        expected = (timeline.end - timeline.start)[busy]
        assert lane.durations_s[~lane.is_idle] == pytest.approx(expected, abs=tolerance)
        assert lane.edges[:-1][~lane.is_idle] == pytest.approx(
            timeline.start[busy] - timeline.begin_s, abs=tolerance
        )
    drawn = np.concatenate([lane.node[~lane.is_idle] for lane in lanes])
    assert drawn.tolist() == list(range(timeline.num_actions))


@given(tables_and_costs())
def test_idle_cells_add_up_to_the_idle_time_of_the_rank(table_and_costs):
    timeline = simulate(*table_and_costs)
    for lane in compute_lanes(timeline):
        idle = timeline.step_time_s - timeline.busy_s[lane.rank]
        assert lane.durations_s[lane.is_idle].sum() == pytest.approx(idle, abs=1e-7 * timeline.step_time_s)


@given(tables_and_costs())
def test_each_transfer_is_drawn_once_in_a_lane_of_its_sender(table_and_costs):
    timeline = simulate(*table_and_costs)
    nodes = []
    for lane in transfer_lanes(timeline):
        mine = lane.node[~lane.is_idle]
        sender = timeline.schedule.rank[timeline.graph.source[mine - timeline.num_actions]]
        assert set(sender.tolist()) == {lane.rank}
        assert lane.is_transfers
        assert set(lane.kind.tolist()) <= {Op.IDLE, Op.SEND_F, Op.SEND_B}
        assert lane.durations_s[~lane.is_idle] == pytest.approx((timeline.end - timeline.start)[mine], abs=1e-7)
        nodes += mine.tolist()
    assert sorted(nodes) == list(range(timeline.num_actions, timeline.graph.num_nodes))


def lanes_of(start, end):
    return pack_intervals(np.array(start, dtype=float), np.array(end, dtype=float)).tolist()


def test_overlapping_intervals_take_as_few_lanes_as_run_at_once():
    assert lanes_of([0, 1, 2, 3], [4, 2, 3, 5]) == [0, 1, 1, 1]
    assert lanes_of([0, 1, 2], [3, 4, 5]) == [0, 1, 2]
    assert lanes_of([0, 0], [0, 1]) == [0, 0]
    assert lanes_of([0, 1, 4, 6, 7, 9], [2, 3, 5, 8, 9, 10]) == [0, 1, 0, 0, 1, 0]
    assert lanes_of([], []) == []


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=24))
def test_lanes_are_those_that_the_first_free_one_gives(intervals):
    intervals = sorted((begin, begin + length) for begin, length in intervals)
    free_at, expected = [], []
    for begin, end in intervals:
        lane = next((lane for lane, until in enumerate(free_at) if until <= begin), len(free_at))
        free_at[lane : lane + 1] = [end]
        expected.append(lane)
    assert lanes_of([begin for begin, _ in intervals], [end for _, end in intervals]) == expected


def test_lanes_of_a_rank_lie_inside_its_row():
    costs = UNIT.replace(transfer_s=2.5)  # two and a half times an action, so that transfers overlap
    placed = placed_transfer_lanes(simulate(build("1f1b", pp=4, microbatches=8), costs))
    assert len(placed) > 4
    for lane, middle, half_height in placed:
        assert lane.rank - 0.5 < middle - half_height < middle + half_height < lane.rank + 0.5


def test_a_timeline_without_transfer_time_has_no_transfers_to_draw():
    table = build("1f1b", pp=4, microbatches=8)
    assert not has_transfers(simulate(table, UNIT))
    assert has_transfers(simulate(table, UNIT.replace(transfer_s=0.1)))


def test_the_cells_of_1f1b_on_two_ranks():
    timeline = simulate(build("1f1b", pp=2, microbatches=2), UNIT)
    first, last = compute_lanes(timeline)
    assert [timeline.name_of(node) if node >= 0 else "" for node in first.node.tolist()] == [
        "0F0", "0F1", "", "0B0", "", "0B1",
    ]  # fmt: skip
    assert first.edges.tolist() == [0, 1, 2, 4, 6, 7, 9]
    assert last.edges.tolist() == [0, 1, 2, 4, 5, 7, 9]
    assert last.kind.tolist() == [Op.IDLE, Op.F, Op.B, Op.F, Op.B, Op.IDLE]


@given(tables_and_costs())
def test_memory_lines_start_and_end_with_the_step_and_reach_the_peak(table_and_costs):
    timeline = simulate(*table_and_costs)
    for line in memory_lines(timeline):
        assert line.at_s[0] == 0
        assert line.at_s[-1] == pytest.approx(timeline.step_time_s)
        peak = timeline.memory.peak_bytes[line.rank]
        assert line.held_bytes[-1] == pytest.approx(timeline.costs.static_bytes[line.rank], abs=1e-12 * peak)
        assert line.held_bytes.max() <= timeline.memory.peak_bytes[line.rank] * (1 + 1e-12)


def test_a_memory_line_reaches_the_peak():
    costs = UNIT.replace(activation_bytes=10.0, static_bytes=3.0)
    timeline = simulate(build("1f1b", pp=4, microbatches=8), costs)
    assert [line.held_bytes.max() for line in memory_lines(timeline)] == [43, 33, 23, 13]


def test_many_ranks_show_some_memory_lines_and_always_the_fullest():
    fullest = 23
    activation = [1.0] * 48
    activation[fullest] = 100.0
    timeline = simulate(build("1f1b", pp=48, microbatches=8), UNIT.replace(activation_bytes=activation))
    shown = shown_ranks(timeline)
    assert {0, fullest, 47} <= set(shown)
    assert len(shown) <= MOST_MEMORY_LINES + 1
    assert memory_caption(timeline) == f"memory by rank, {len(shown)} of 48 ranks"


def test_the_critical_line_runs_from_the_first_start_to_the_last_end():
    timeline = simulate(build("zbv-fixed", pp=4, microbatches=8), UNIT.replace(transfer_s=0.25))
    x, y = critical_line(timeline, y_of_rank=np.arange(4.0))
    assert (x[0], x[-1]) == (0, timeline.step_time_s)
    assert np.all(np.diff(x) >= 0)
    assert set(y.tolist()) <= {0.0, 1.0, 2.0, 3.0}


def test_what_is_left_out_in_plot_lanes_has_these_values() -> None:
    assert number_defaults(lanes_module) == {
        "compute_lanes": {"by_cause": False},
    }  # fmt: skip
