"""Durations and overheads of single actions and transfers, by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ppsim import StageCosts, build, simulate
from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.schedule.grammar import parse_table
from ppsim.schedule.graph import EventGraph
from ppsim.schedule.rounds import repeat_rounds
from ppsim.simulation.memory_per_action import memory_of, slice_shares
from ppsim.simulation.simulate import durations_s, overheads_s

FORWARD = [[1.0, 2], [3, 4]]
INPUT, WEIGHT = [[10.0, 20], [30, 40]], [[100.0, 200], [300, 400]]


def graph_of(costs: StageCosts, name: str = "1f1b", **shape: Any) -> EventGraph:
    return costs.graph(build(name, pp=2, microbatches=2, **shape))


def by_node(graph: EventGraph, seconds: np.ndarray) -> dict[str, float]:
    """The action's or the sending action's number by name."""
    names = [f"{graph.schedule.rank[k]}:{action}" for k, action in enumerate(graph.schedule)]
    names += [f"{names[source]} sends" for source in graph.source.tolist()]
    return dict(zip(names, seconds.tolist(), strict=True))


def test_every_microbatch_has_its_own_seconds_and_the_first_and_last_pass_more() -> None:
    costs = StageCosts(
        forward_s=FORWARD, backward_input_s=INPUT, backward_weight_s=WEIGHT, transfer_s=[[0.25, 0.5], [8, 9]],
        first_pass_s=1e3, last_pass_s=1e4,
    )  # fmt: skip
    graph = graph_of(costs)
    assert by_node(graph, durations_s(graph, costs.resolved_for(graph.schedule))) == {
        "0:0F0": 1001, "0:0F1": 2, "0:0B0": 110, "0:0B1": 10220, "1:1F0": 1003, "1:1B0": 330, "1:1F1": 4, "1:1B1": 440,
        "0:0F0 sends": 0.25, "0:0F1 sends": 0.5, "1:1B0 sends": 0.25, "1:1B1 sends": 0.5,
    }  # fmt: skip


def test_split_backwards_have_the_seconds_of_their_half() -> None:
    costs = StageCosts(forward_s=FORWARD, backward_input_s=INPUT, backward_weight_s=WEIGHT)
    graph = costs.graph(parse_table("0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1W0,1I1,1W1"))
    found = durations_s(graph, costs.resolved_for(graph.schedule))[:12]
    assert found.tolist() == [1, 2, 10, 100, 20, 200, 3, 30, 4, 300, 40, 400]


def test_a_slice_has_its_shares_of_time_and_of_what_is_sent() -> None:
    costs = StageCosts(
        forward_s=[[1.0, 2], [1, 2]], backward_input_s=2, backward_weight_s=0, transfer_s=4, activation_bytes=8,
        slice_time_shares=[0.25, 0.75], slice_token_shares=[0.125, 0.875],
    )  # fmt: skip
    graph = graph_of(costs, "seq1f1b", num_slices=2)
    arrays = costs.resolved_for(graph.schedule)
    found = by_node(graph, durations_s(graph, arrays))
    assert [found[f"0:0F{unit}"] for unit in range(4)] == [0.25, 0.75, 0.5, 1.5]
    assert [found[f"0:0F{unit} sends"] for unit in range(4)] == [0.5, 3.5, 0.5, 3.5]
    assert [found[f"1:1B{unit} sends"] for unit in range(4)] == [0.5, 3.5, 0.5, 3.5]
    assert slice_shares(graph.schedule, arrays)[0].max() == 1
    used = memory_of(graph.schedule, arrays)
    assert used.after[:3].tolist() == [1, 8, 9]


def test_a_slow_link_takes_longer_one_way_arrives_later_and_blocks_its_sender() -> None:
    costs = StageCosts(
        forward_s=1, backward_input_s=1, backward_weight_s=1, transfer_s=0.5, hop_overhead_s=0.25,
        action_overhead_s=0.125, variation_s=0.0625, slow_links=np.array([[0, 1, 10, 20, 40]]),
    )  # fmt: skip
    graph = graph_of(costs)
    lasting = by_node(graph, durations_s(graph, costs.resolved_for(graph.schedule)))
    before = by_node(graph, overheads_s(graph, costs))
    assert [lasting[name] for name in ("0:0F0", "0:0F1", "0:0B0", "1:1F0", "1:1B1")] == [41, 41, 2, 1, 2]
    assert (lasting["0:0F0 sends"], lasting["1:1B0 sends"]) == (10.5, 0.5)
    assert (before["0:0F0 sends"], before["1:1B0 sends"]) == (20.25, 0.25)
    assert {before[name] for name in before if not name.endswith("sends")} == {0.1875}
    backwards = replace(costs, slow_links=np.array([[1, 0, 10, 20, 40]]))
    assert by_node(graph, overheads_s(graph, backwards))["0:0F0 sends"] == 0.25


def test_a_message_takes_time_after_its_sender_and_before_its_receiver() -> None:
    costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, message_overhead_s=3)
    graph = graph_of(costs)
    found = by_node(graph, overheads_s(graph, costs))
    assert [found[f"0:{name}"] for name in ("0F0", "0F1", "0B0", "0B1")] == [0, 3, 6, 3]
    assert [found[f"1:{name}"] for name in ("1F0", "1B0", "1F1", "1B1")] == [3, 0, 6, 0]


def test_what_lies_between_rounds_is_before_the_first_action_of_the_first_stage() -> None:
    costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, between_rounds_s=6)
    graph = costs.graph(repeat_rounds(build("1f1b", pp=2, microbatches=2), 2))
    found = overheads_s(graph, costs)[: graph.num_actions]
    of_first = [float(seconds) for seconds, action in zip(found, graph.schedule, strict=True) if seconds]
    assert of_first == [6.0]
    assert str(list(graph.schedule)[int(found.argmax())]).startswith("0F")


def test_no_forward_of_a_stage_starts_before_it_is_ready() -> None:
    costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
    timeline = simulate(build("1f1b", pp=2, microbatches=2), costs, ready_s=np.array([5.0, 9.0]))
    assert timeline.start.tolist()[:8] == [5, 6, 12, 15, 9, 10, 12, 13]


def test_a_pair_saves_as_much_as_its_smaller_microbatch_or_slice() -> None:
    """A pair of 1 + 3 s of mean size saves 0.5 s."""
    table = parse_table("0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1")
    for factors, pair_s in (([1.0, 1.0], 4 - 0.5), ([1.0, 0.5], 3.5 - 0.25), ([1.5, 0.5], 5 - 0.25)):
        costs = StageCosts(
            forward_s=1, backward_input_s=1, backward_weight_s=2, fused_s=3.5, microbatch_factors=factors
        )
        graph = costs.graph(table)
        found = by_node(graph, durations_s(graph, costs.resolved_for(table)))
        assert found["1:1F1"] + found["1:1B0"] == pytest.approx(pair_s), factors
        parts = factors[1], 3 * factors[0]
        assert found["1:1F1"] / pair_s == pytest.approx(parts[0] / sum(parts))


def test_an_incomplete_table_and_other_kinds_of_objects_are_refused() -> None:
    costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
    with pytest.raises(ScheduleError, match="1F0 is missing"):
        simulate(parse_table("0F0,0B0\n1B0\n"), costs)
    wrong: Any = "1f1b"
    with pytest.raises(ConfigError, match=r"schedule .*a ppsim\.Schedule, as from ppsim\.build"):
        simulate(wrong, costs)
    with pytest.raises(ConfigError, match=r"costs .*a ppsim\.StageCosts"):
        simulate(build("1f1b", pp=2, microbatches=2), wrong)
