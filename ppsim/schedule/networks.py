"""The event graph of a table as a networkx graph."""

from typing import TYPE_CHECKING, Any

from ppsim.schedule.check import validate
from ppsim.schedule.graph import EventGraph, build_graph
from ppsim.schedule.table import Action, Op, Schedule

if TYPE_CHECKING:
    import networkx


def network_of_table(schedule: Schedule) -> "networkx.DiGraph[str]":
    """Raises `ScheduleError` if the table cannot run."""
    validate(schedule)
    return network_of(build_graph(schedule))


def name_of(graph: EventGraph, node: int) -> str:
    """Return `3F0` for an action, `3SEND_F0` for the transfer of its result."""
    if node < graph.num_actions:
        return str(graph.schedule[node])
    op, stage, microbatch = graph.schedule[int(graph.source[node - graph.num_actions])]
    return str(Action(Op.SEND_F if op is Op.F else Op.SEND_B, stage, microbatch))


def network_of(graph: EventGraph) -> "networkx.DiGraph[str]":
    """Set the attributes that `Schedule.to_networkx` describes.

    Edges of kind message also connect consecutive transfers of a queue.
    """
    import networkx

    schedule, actions = graph.schedule, graph.num_actions
    names = [name_of(graph, node) for node in range(graph.num_nodes)]
    rank, stage, microbatch = (one.tolist() for one in (schedule.rank, schedule.stage, schedule.microbatch))
    network: networkx.DiGraph[str] = networkx.DiGraph(schedule=schedule.name)
    for node, name in enumerate(names):
        is_transfer = node >= actions
        made_by = int(graph.source[node - actions]) if is_transfer else node
        attributes: dict[str, Any] = {
            "number": node, "kind": name.lstrip("0123456789").rstrip("0123456789"), "rank": rank[made_by],
            "stage": stage[made_by], "microbatch": microbatch[made_by],
        }  # fmt: skip
        if is_transfer:
            attributes["to_rank"] = rank[int(graph.target[node - actions])]
        network.add_node(name, **attributes)
    offsets, waits = graph.offsets.tolist(), graph.waits_for.tolist()
    for node, name in enumerate(names):
        for before in waits[offsets[node] : offsets[node + 1]]:
            kind = "message" if max(before, node) >= actions else "order"
            network.add_edge(names[before], name, kind=kind)
    return network
