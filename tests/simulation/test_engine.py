"""The engine against an independent longest path, and against itself compiled."""

import sys
from types import SimpleNamespace

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim import StageCosts, build
from ppsim.base.errors import ScheduleError
from ppsim.schedule.graph import CHANNELS, build_graph
from ppsim.schedule.lowering import RECEIVES
from ppsim.simulation import engine as engine_module
from ppsim.simulation import overlap as overlap_module
from ppsim.simulation.engine import evaluate, evaluate_many
from ppsim.simulation.simulate import durations_s, overheads_s, simulate, simulate_graph
from tests.strategies import tables_and_costs

UNIT = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)

ways = st.one_of(
    st.tuples(st.just("overlap"), st.sampled_from(list(CHANNELS)), st.sampled_from(list(RECEIVES))),
    st.tuples(st.just("blocking"), st.just("ideal"), st.sampled_from(list(RECEIVES))),
)


def graph_of(table, way, pairs):
    communication, channel, receives = way
    try:
        return build_graph(table, communication=communication, channel=channel, receives=receives, pairs=pairs)
    except ScheduleError:
        return None  # a deadlock or misordered messages, which is for the checker's tests


def oracle(graph, duration, overhead):
    """Longest path by networkx: each wait is an edge, weighted with what the waiting node takes."""
    net = networkx.DiGraph()
    net.add_nodes_from(range(graph.num_nodes))
    for node in range(graph.num_nodes):
        net.add_edge("begin", node, weight=overhead[node] + duration[node])
        for k in range(graph.offsets[node], graph.offsets[node + 1]):
            cause = int(graph.waits_for[k])
            in_queue = min(cause, node) >= graph.num_actions  # a transfer behind a transfer has no overhead
            net.add_edge(cause, node, weight=duration[node] + (0.0 if in_queue else overhead[node]))
    end = dict.fromkeys(net, 0.0)
    for node in networkx.topological_sort(net):
        for _, after, weight in net.out_edges(node, data="weight"):
            end[after] = max(end[after], end[node] + weight)
    return np.array([end[node] for node in range(graph.num_nodes)])


@given(tables_and_costs(), ways)
def test_ends_are_the_longest_path_that_networkx_finds(table_and_costs, way):
    table, costs = table_and_costs
    graph = graph_of(table, way, costs.pairs)
    if graph is None:
        return
    resolved = costs.resolved_for(table)
    duration, overhead = durations_s(graph, resolved), overheads_s(graph, costs)
    assert evaluate(graph, duration, overhead).end == pytest.approx(oracle(graph, duration, overhead), rel=1e-12)


@settings(max_examples=30)
@given(tables_and_costs(), ways)
def test_plain_and_compiled_engines_give_the_same_bits(table_and_costs, way):
    table, costs = table_and_costs
    communication, channel, receives = way
    costs = costs.replace(communication=communication, channel=channel, receives=receives)
    other = table.named("other")  # of which no graph is kept
    try:
        plain = simulate(table, costs, engine="plain")
    except ScheduleError as error:
        with pytest.raises(type(error)) as again:
            simulate(other, costs, engine="compiled")
        assert str(again.value) == str(error)
        return
    compiled = simulate(other, costs, engine="compiled")
    for name in ("start", "end", "blocker"):
        assert getattr(plain, name).tobytes() == getattr(compiled, name).tobytes()
    assert plain.graph.order.tobytes() == compiled.graph.order.tobytes()


@given(tables_and_costs(), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_many_cost_vectors_on_one_graph_equal_one_at_a_time(table_and_costs, num_sets, seed):
    table, costs = table_and_costs
    graph = build_graph(table)
    resolved = costs.resolved_for(table)
    jitter = np.random.default_rng(seed).uniform(0.5, 1.5, (num_sets, graph.num_nodes))
    durations, overhead = durations_s(graph, resolved) * jitter, overheads_s(graph, costs)
    many = evaluate_many(graph, durations, overhead)
    assert many.step_time_s.shape == (num_sets,)
    for k in range(num_sets):
        times = evaluate(graph, durations[k], overhead)
        actions = slice(graph.num_actions)
        assert many.step_time_s[k] == times.end[actions].max() - times.start[actions].min()


@given(tables_and_costs(), ways)
def test_every_start_is_the_end_of_its_blocker_plus_the_overhead(table_and_costs, way):
    table, costs = table_and_costs
    graph = graph_of(table, way, costs.pairs)
    if graph is None:
        return
    timeline = simulate_graph(graph, costs)
    overhead = overheads_s(graph, costs)
    blocked = timeline.blocker >= 0
    ready = np.where(blocked, timeline.end[timeline.blocker], 0.0)
    in_queue = (timeline.blocker >= graph.num_actions) & (np.arange(graph.num_nodes) >= graph.num_actions)
    assert np.array_equal(timeline.start, np.where(in_queue, ready, ready + overhead))


@pytest.mark.parametrize("engine", ["plain", "compiled"])
def test_of_causes_that_end_together_the_action_before_on_the_rank_is_the_blocker(engine):
    """Unit costs, free transfers: stage 1's second forward could start at 2 by either; its own rank held it up."""
    timeline = simulate(build("gpipe", pp=2, microbatches=3), UNIT, engine=engine)
    names = [timeline.name_of(node) for node in range(timeline.graph.num_nodes)]
    of = {
        name: timeline.name_of(int(timeline.blocker[node]))
        for node, name in enumerate(names)
        if timeline.blocker[node] >= 0
    }
    assert of["1F0"] == "0SEND_F0"
    assert (of["1F1"], of["1F2"]) == ("1F0", "1F1")
    ends = dict(zip(names, timeline.end.tolist(), strict=True))
    assert ends["1F0"] == ends["0SEND_F1"] == 2.0


@pytest.mark.parametrize("channel", ["ideal", "pair"])
def test_sets_evaluated_side_by_side_give_the_bits_of_each_by_itself(channel, monkeypatch):
    """What a process without numba does with small graphs."""
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    graph = build_graph(build("interleaved-1f1b", pp=4, vpp=2, microbatches=8), channel=channel)
    random = np.random.default_rng(0)
    durations, overheads = random.random((7, graph.num_nodes)), random.random((1, graph.num_nodes))
    together = evaluate_many(graph, durations, overheads)
    assert "numba" not in sys.modules
    begins = graph.schedule.rank_offsets
    for k, duration in enumerate(durations):
        alone = evaluate(graph, duration, overheads[0])
        assert (together.first_start[k] == alone.start[begins[:-1]]).all()
        assert (together.last_end[k] == alone.end[begins[1:] - 1]).all()


def test_limits_of_the_engine() -> None:
    assert engine_module._SIDE_BY_SIDE == 10**6
    assert (overlap_module._MOST_ROUNDS, overlap_module._PLAIN_ROUNDS, overlap_module._CONVERGED) == (12, 3, 1e-4)


CHAIN = SimpleNamespace(
    num_actions=3, num_nodes=5, order=np.array([0, 1, 3, 4, 2]), offsets=np.array([0, 0, 1, 2, 3, 5]),
    waits_for=np.array([0, 4, 0, 3, 1]), schedule=SimpleNamespace(rank_offsets=np.array([0, 2, 3])),
)  # fmt: skip
"""Two actions of a rank and two transfers in one queue, the second behind both, and an action that waits for it."""

DURATION, OVERHEAD = np.array([3.0, 5.0, 7.0, 11.0, 13.0]), np.array([0.5, 0.25, 0.125, 2.0, 4.0])


def test_a_small_graph_has_the_times_that_a_hand_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transfer behind a transfer has no overhead, and a node that `earliest` delays no blocker."""
    sizes = []

    def plain(kernel, inputs, outputs, size):
        sizes.append(size)
        kernel(*inputs, *outputs)

    monkeypatch.setattr(engine_module, "run_kernel", plain)
    times = evaluate(CHAIN, DURATION, OVERHEAD, num_sets=3)
    assert times.start.tolist() == [0.5, 3.75, 29.625, 5.5, 16.5]
    assert times.end.tolist() == [3.5, 8.75, 36.625, 16.5, 29.5]
    assert times.blocker.tolist() == [-1, 0, 4, 0, 3]
    later = evaluate(CHAIN, DURATION, OVERHEAD, earliest=np.array([0, 9.0, 0, 5.5, 0]))
    assert later.start.tolist() == [0.5, 9.0, 31.125, 5.5, 18.0]
    assert later.blocker.tolist() == [-1, -1, 4, 0, 1]
    assert engine_module.blockers_of(CHAIN, times.end).tolist() == [-1, 0, 4, 0, 3]
    assert engine_module.blockers_of(CHAIN, np.array([3, 9, 0, 8, 2.0]))[4] == 1
    assert engine_module.blockers_of(CHAIN, np.array([3, 9, 0, 9, 2.0]))[4] == 3
    assert sizes == [15, 5, 5, 5, 5]
    monkeypatch.setattr(engine_module, "_SIDE_BY_SIDE", 0)
    monkeypatch.setattr(engine_module, "_side_by_side", None)
    many = evaluate_many(CHAIN, np.array([DURATION, 2 * DURATION]), OVERHEAD)
    assert sizes[5:] == [10, 10]
    monkeypatch.undo()
    for ranks in (
        many,
        engine_module._side_by_side(CHAIN, np.array([DURATION, 2 * DURATION]), np.array([OVERHEAD] * 2)),
    ):
        assert ranks.first_start.tolist() == [[0.5, 29.625], [0.5, 6.5 + 2 + 22 + 26 + 0.125]]
        assert ranks.last_end.tolist() == [[8.75, 36.625], [6.75 + 10, 70.625]]
        assert ranks.step_time_s.tolist() == [36.125, 70.125]
        assert ranks.span_s.tolist() == [8.25, 16.25]
