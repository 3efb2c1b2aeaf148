"""A cell that fuses a forward with a full backward, at a cost of its own."""

import numpy as np
import pytest
from hypothesis import given

from ppsim import StageCosts, build, simulate
from ppsim.errors import ConfigError
from ppsim.schedule.grammar import parse_table
from ppsim.schedule.graph import build_graph
from ppsim.schedule.table import NONE
from tests.strategies import tables_and_costs

HELD = "0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1"


def times_of(timeline):
    return {timeline.name_of(n): (timeline.start[n], timeline.end[n]) for n in range(timeline.num_actions)}


def test_a_given_pair_takes_its_own_time_of_which_the_parts_have_shares():
    costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, fused_s=[9, 2.4])
    times = times_of(simulate(parse_table(HELD), costs))
    assert times["1F1"] == pytest.approx((2.0, 2.8))
    assert times["1B0"] == pytest.approx((2.8, 4.4))
    assert times["0B0"][0] == pytest.approx(4.4)


def test_a_pair_is_one_whichever_part_is_named_first():
    costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, fused_s=[9, 2.4])
    times = times_of(simulate(parse_table(HELD.replace("(1F1;1B0)", "(1B0;1F1)")), costs))
    assert times["1B0"] == pytest.approx((2.0, 3.6))
    assert times["1F1"] == pytest.approx((3.6, 4.4))


def test_a_given_pair_waits_for_all_inputs_and_parts_each_for_its_own():
    # Rank 1 has the gradient of microbatch 0 late; its next forward can go ahead only where the parts are apart.
    table = parse_table("0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n2F0,2B0,2F1,2B1")
    costs = StageCosts(forward_s=1, backward_input_s=2, backward_weight_s=2)
    assert times_of(simulate(table, costs))["1F1"][0] == 2
    as_one = times_of(simulate(table, costs.replace(fused_s=5.0)))
    assert as_one["1F1"] == (7, 8)
    assert as_one["1B0"] == (8, 12)


@pytest.mark.parametrize("name", ["dualpipe", "dualpipev"])
def test_busy_time_counts_the_pair_and_not_its_parts(name):
    table = build(name, pp=4, microbatches=12)
    num_pairs = np.bincount(table.rank[table.fused >= 0]) / 2
    costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
    saved = simulate(table, costs).busy_s - simulate(table, costs.replace(fused_s=2.5)).busy_s
    assert saved == pytest.approx(0.5 * num_pairs)


@pytest.mark.parametrize("channel", ["edge", "pair", "rank"])
def test_a_pair_waits_for_all_inputs_on_every_channel(channel):
    table = build("dualpipe", pp=4, microbatches=12)
    costs = StageCosts(
        forward_s=1, backward_input_s=1, backward_weight_s=1, fused_s=2.5, transfer_s=0.1, channel=channel
    )
    timeline = simulate(table, costs)
    graph = timeline.graph
    cell_start = {}
    for entry in range(len(graph.schedule)):
        cell_start.setdefault(
            (graph.schedule.fused[entry], 0 if graph.schedule.fused[entry] >= 0 else entry), entry
        )
    for transfer, target in enumerate(graph.target.tolist(), start=graph.num_actions):
        first = cell_start[graph.schedule.fused[target], 0 if graph.schedule.fused[target] >= 0 else target]
        assert timeline.start[first] >= timeline.end[transfer] - 1e-12


def test_other_fused_cells_are_the_sum_of_their_parts():
    table = parse_table("(0F0;0F1)OVERLAP_F_B,0F2,0I0,(0F3;0I1)OVERLAP_F_B,0W0,0W1,0B2,0B3")
    costs = StageCosts(forward_s=1, backward_input_s=2, backward_weight_s=3, fused_s=100)
    assert simulate(table, costs).step_time_s == 4 * (1 + 2 + 3)


def test_slices_save_on_the_smaller_of_a_pair():
    table = parse_table("0F0,0F1,(0F2;0B1)OVERLAP_F_B,0B0,0F3,0B3,0B2", num_slices=2)
    costs = StageCosts(
        forward_s=10, backward_input_s=10, backward_weight_s=10, fused_s=20, slice_time_shares=[0.3, 0.7]
    )
    times = times_of(simulate(table, costs))
    assert times["0B1"][1] - times["0F2"][0] == pytest.approx(0.3 * 10 + 0.7 * 20 - 0.3 * (10 + 20 - 20))


@given(tables_and_costs(fused_s=None, backward_s=None, alike=True))
def test_a_pair_at_the_cost_of_its_parts_is_never_faster_than_apart(table_and_costs):
    table, costs = table_and_costs
    resolved = costs.resolved_for(table)
    if len(set(resolved.forward_s)) * len(set(resolved.backward_s)) > 1:
        costs = costs.replace(forward_s=1.0, backward_input_s=1.5, backward_weight_s=0.5)
        resolved = costs.resolved_for(table)
    together = costs.replace(fused_s=float(resolved.forward_s[0] + resolved.backward_s[0]))
    one, other = simulate(table, costs), simulate(table, together)
    assert other.step_time_s >= one.step_time_s - 1e-9
    assert other.busy_s == pytest.approx(one.busy_s)


def test_without_fused_cells_the_graph_is_the_same_either_way():
    table = build("zbv", pp=4, microbatches=8)
    one, other = build_graph(table), build_graph(table, pairs="whole")
    assert np.array_equal(one.waits_for, other.waits_for)


def test_a_pair_takes_the_time_and_the_bytes_of_its_two_stages():
    table = build("combined-1f1b", pp=1, vpp=2, microbatches=2)  # 0F0 0F1 1F0 (1F1;1B0) (…)
    pairs, sizes = [[2.0, 3.0], [4.0, 5.0]], [[1.0, 2.0], [3.0, 4.0]]
    costs = StageCosts(
        forward_s=1, backward_input_s=2, backward_weight_s=1, fused_s=pairs, activation_bytes=10,
        fused_activation_bytes=sizes,
    )  # fmt: skip
    timeline = simulate(table, costs)
    first = int(np.flatnonzero(table.fused != NONE)[0])
    one, other = int(table.stage[first]), int(table.stage[first + 1])
    assert timeline.end[first + 1] - timeline.start[first] == pytest.approx(pairs[one][other])
    held = 10 * first  # the forwards before it
    assert timeline.memory.during[first : first + 2].tolist() == [held + sizes[one][other]] * 2
    with pytest.raises(ConfigError, match="a matrix has a row per forward's stage"):
        costs.replace(fused_activation_bytes=[[1.0, 2.0]])
