"""The event graph as a networkx graph: every node and every edge of a small table."""

import pytest

from ppsim import build
from ppsim.base.errors import ScheduleError
from ppsim.schedule.grammar import parse_table
from ppsim.schedule.graph import build_graph
from ppsim.schedule.networks import name_of, network_of_table

TABLE = build("1f1b", pp=2, microbatches=2)


def test_every_node_has_its_place_and_a_transfer_its_receiver():
    network = network_of_table(TABLE)
    assert network.graph == {"schedule": "1f1b"}
    places = {
        name: tuple(node.get(key) for key in ("number", "kind", "rank", "stage", "microbatch", "to_rank"))
        for name, node in network.nodes(data=True)
    }
    transfers = {name: places.pop(name)[1:] for name in list(places) if "SEND" in name}
    assert places == {
        "0F0": (0, "F", 0, 0, 0, None), "0F1": (1, "F", 0, 0, 1, None),
        "0B0": (2, "B", 0, 0, 0, None), "0B1": (3, "B", 0, 0, 1, None),
        "1F0": (4, "F", 1, 1, 0, None), "1B0": (5, "B", 1, 1, 0, None),
        "1F1": (6, "F", 1, 1, 1, None), "1B1": (7, "B", 1, 1, 1, None),
    }  # fmt: skip
    assert transfers == {
        "0SEND_F0": ("SEND_F", 0, 0, 0, 1), "0SEND_F1": ("SEND_F", 0, 0, 1, 1),
        "1SEND_B0": ("SEND_B", 1, 1, 0, 0), "1SEND_B1": ("SEND_B", 1, 1, 1, 0),
    }  # fmt: skip


def test_edges_are_the_order_of_a_rank_or_messages():
    kinds = {(before, after): kind for before, after, kind in network_of_table(TABLE).edges(data="kind")}
    order = {pair for pair, kind in kinds.items() if kind == "order"}
    assert order == {("0F0", "0F1"), ("0F1", "0B0"), ("0B0", "0B1"), ("1F0", "1B0"), ("1B0", "1F1"), ("1F1", "1B1")}
    messages = {pair for pair, kind in kinds.items() if kind == "message"}
    assert messages >= {("0F0", "0SEND_F0"), ("0SEND_F0", "1F0"), ("1B1", "1SEND_B1"), ("1SEND_B1", "0B1")}
    assert order | messages == set(kinds)


@pytest.mark.parametrize(("name", "vpp", "communication"), [("zbv-fixed", 2, "overlap"), ("1f1b", 1, "blocking")])
def test_actions_wait_for_the_previous_action_of_their_rank_and_for_transfers_only(name, vpp, communication):
    """Inputs of the same rank (stages 1 and 2 of a V) come earlier in its order."""
    table = build(name, pp=2, vpp=vpp, microbatches=4)
    graph = build_graph(table, communication=communication, receives="ordered")
    first = set(table.rank_offsets[:-1].tolist())
    for node in range(graph.num_actions):
        waits = graph.waits_for[graph.offsets[node] : graph.offsets[node + 1]]
        assert waits[waits < graph.num_actions].tolist() == ([] if node in first else [node - 1])


def test_actions_come_before_transfers():
    graph = build_graph(TABLE)
    names = [name_of(graph, node) for node in range(graph.num_nodes)]
    assert names[:8] == [str(action) for action in TABLE]
    assert all("SEND" in name for name in names[8:])


def test_a_broken_table_has_no_network():
    with pytest.raises(ScheduleError, match="0F1 is missing"):
        network_of_table(parse_table("0F0,0B0,0B1\n1F0,1F1,1B0,1B1\n"))


def test_a_split_backward_has_its_kinds():
    network = network_of_table(build("zb-h1", pp=2, microbatches=2))
    kinds = {name: node["kind"] for name, node in network.nodes(data=True)}
    assert {kinds[name] for name in ("0I0", "1W1", "1SEND_B1", "0SEND_F0")} == {"I", "W", "SEND_B", "SEND_F"}
