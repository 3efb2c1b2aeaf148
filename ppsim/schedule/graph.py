"""The event graph: actions and transfers of a table as a directed acyclic graph without durations.

Nodes 0 … n−1 are the actions of the compute-only table in table order; the transfers between ranks follow, in the
order of their receiving actions. `build_graph` has these options:

communication
    "overlap": an action waits only for its own input.
    "blocking": a rank blocks until its sends and receives are done. All of them between two compute actions are
    posted together, so `channel` has no effect.
    "megatron", "megatron-no-overlap": see `ppsim.schedule.blocking_calls`; `channel` and `receives` have no effect.
channel
    "ideal": no queues, and a transfer does not wait for its receive to be posted. Other channels: see `CHANNELS`.
receives
    Positions of the receives in the rows: see `ppsim.schedule.lowering.RECEIVES`.
pairs
    "parts": each part of a fused cell starts when its own input has arrived (torch).
    "whole": no part starts before all inputs have arrived.
waits_for_receives
    False: a transfer does not wait for its receive to be posted, on any channel.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Ints32, Ints64
from ppsim.base.errors import Deadlock, ScheduleError
from ppsim.base.numba_jit import run_kernel
from ppsim.schedule.analysis_cache import cached
from ppsim.schedule.blocking_calls import MessageEnds, megatron_calls
from ppsim.schedule.dependencies import transfers_of
from ppsim.schedule.explain_cycle import explain_cycle
from ppsim.schedule.lowering import lowered_messages, with_receives
from ppsim.schedule.messages import MessageTable, messages_of
from ppsim.schedule.option_types import Channel, Communication, Pairs, Receives
from ppsim.schedule.table import NONE, Op, Schedule, first_of_cell, last_of_cell

COMMUNICATIONS: dict[Communication, str] = {
    "overlap": "transfers overlap with compute",
    "blocking": "a rank blocks until its transfers are done",
    "megatron": "Megatron-LM's calls: 1F1B blocks at each, interleaved overlaps them in the steady state",
    "megatron-no-overlap": "Megatron-LM's calls without --overlap-p2p-communication",
}
CHANNELS: dict[Channel, str] = {
    "ideal": "no queues: every transfer on its own",
    "edge": "a queue for each directed pair of ranks (torch's per-edge groups; Megatron per direction and peer)",
    "pair": "a queue for each pair of ranks, both directions (NCCL, communicators made on first use)",
    "direction": "a queue a rank for downstream and one for upstream traffic (torch's per-direction groups)",
    "rank": "one queue for everything of a rank (NCCL, communicator made at start-up)",
}


@dataclass(frozen=True)
class EventGraph:
    """The event graph of the compute-only table `schedule`.

    `source` and `target` are the actions that produce and need the message of each transfer. Node j waits for the
    nodes `waits_for[offsets[j]:offsets[j + 1]]`; for an action, the first is the previous action on its rank.
    `order` is a topological order.
    """

    schedule: Schedule
    source: Ints32
    target: Ints32
    offsets: Ints32
    waits_for: Ints32
    order: Ints32

    @cached_property
    def num_actions(self) -> int:
        return len(self.schedule)

    @property
    def num_transfers(self) -> int:
        return len(self.source)

    @property
    def num_nodes(self) -> int:
        return self.num_actions + self.num_transfers


def build_graph(
    schedule: Schedule,
    *,
    communication: Communication = "overlap",
    channel: Channel = "ideal",
    receives: Receives = "torch",
    pairs: Pairs = "parts",
    waits_for_receives: bool = True,
) -> EventGraph:
    """Return the event graph of a table that has passed `ppsim.schedule.check.validate`.

    A compute+comms table uses its own sends and receives: `receives` is ignored, and a transfer follows the
    position of its SEND even on an "ideal" channel. Raises `Deadlock`, and `ScheduleError` if sends and receives
    match out of order.
    """
    return cached(
        schedule,
        ("graph", communication, channel, receives, pairs, waits_for_receives),
        lambda: _graph(schedule, communication, channel, receives, pairs, waits_for_receives),
    )


def _graph(
    schedule: Schedule, communication: Communication, channel: Channel, receives: Receives, pairs: Pairs,
    waits_for_receives: bool,
) -> EventGraph:  # fmt: skip
    if communication in ("megatron", "megatron-no-overlap"):
        return _megatron_graph(schedule, communication)
    if (communication, channel) != ("overlap", "ideal") or schedule.has_communication:
        receives = "torch" if schedule.has_communication else receives
        messages = cached(schedule, ("messages", receives), lambda: order_messages(messages_in(schedule), receives))
        return graph_of(
            messages, communication=communication, channel=channel, pairs=pairs,
            waits_for_receives=waits_for_receives,
        )  # fmt: skip
    compute = schedule.compute_only()
    source, target = transfers_of(compute)
    waits = _overlapping_waits(compute, target, pairs, [last_of_cell(compute)[source]])
    return _in_order(compute, source, target, waits)


def messages_in(schedule: Schedule) -> MessageTable:
    """Raises `ScheduleError` if a send or receive in the table is missing or at an impossible position."""

    def make() -> MessageTable:
        compute = schedule.compute_only()
        return messages_of(schedule, compute) if schedule.has_communication else lowered_messages(compute)

    return cached(schedule, "messages", make)


def order_messages(messages: MessageTable, receives: Receives) -> MessageTable:
    """Raises `ScheduleError` if messages match out of order."""
    placed = with_receives(messages, receives)
    placed.check_order()
    return placed


def graph_of(
    messages: MessageTable, *, communication: Communication, channel: Channel, pairs: Pairs = "parts",
    waits_for_receives: bool = True,
) -> EventGraph:  # fmt: skip
    compute, source, target = messages.compute, messages.source, messages.target
    if communication == "blocking":  # a rank blocks at its receives, before the cell
        return _in_order(compute, source, target, _blocking_waits(messages))
    sent_after, received_after = messages.after
    causes = [sent_after]
    if channel != "ideal":
        if waits_for_receives:
            causes.append(received_after)
        causes += [np.where(one == NONE, one, one + len(compute)) for one in _ahead_in_queue(messages, channel)]
    waits = _overlapping_waits(compute, target, pairs, causes)
    return _in_order(compute, source, target, waits)


def _in_order(compute: Schedule, source: Ints32, target: Ints32, waits: "_Waits") -> EventGraph:
    none = np.zeros(0, dtype=np.int32)
    graph = EventGraph(
        schedule=compute, source=source, target=target, offsets=waits[0], waits_for=waits[1], order=none
    )
    order, cycle = _topological_order(graph)
    if cycle:
        raise Deadlock(explain_cycle(compute, source, target, cycle))
    return replace(graph, order=order)


# --- dependencies of each node, in CSR form ---

_Waits = tuple[Ints32, Ints32]
_Listed = tuple[NDArray[Any], list[Ints32]]


def previous_on_rank(compute: Schedule) -> Ints32:
    previous = np.arange(-1, len(compute) - 1, dtype=np.int32)
    previous[compute.rank_offsets[:-1][np.diff(compute.rank_offsets) > 0]] = NONE
    return previous


def _overlapping_waits(compute: Schedule, target: Ints32, pairs: Pairs, causes: list[Ints32]) -> _Waits:
    """Each transfer waits for `causes`, and the action that needs it (or its whole fused cell) for the transfer."""

    def held_up() -> _Listed:
        holder = first_of_cell(compute)[target] if pairs == "whole" else target
        num_actions, num_nodes = len(compute), len(compute) + len(target)
        index = target - holder  # a fused cell may wait for several transfers
        holds_up = np.full((1 + int(index.max(initial=0)), num_actions), NONE, dtype=np.int32)
        holds_up[index, holder] = np.arange(num_actions, num_nodes, dtype=np.int32)
        return _listed([previous_on_rank(compute), *holds_up])

    return _joined(cached(compute, ("held up", pairs), held_up, part=10 / 50), _listed(causes))


_AT_ONCE = 1 << 15
"""Number of nodes processed at once, so that their columns fit in the processor's cache."""


def _listed(columns: list[Ints32]) -> _Listed:
    counts, waits_for = np.zeros(len(columns[0]), dtype=np.int16), []
    for begin in range(0, len(counts), _AT_ONCE):
        waits = np.stack([column[begin : begin + _AT_ONCE] for column in columns], axis=1)
        is_one = waits != NONE
        waits_for.append(waits[is_one])
        for one in is_one.T:
            counts[begin : begin + _AT_ONCE] += one
    return counts, waits_for


def _joined(*parts: _Listed) -> _Waits:
    """Return offsets and predecessor indices (CSR)."""
    offsets = np.concatenate([np.zeros(1, dtype=np.int32), *(counts for counts, _ in parts)], dtype=np.int32)
    return np.cumsum(offsets, out=offsets), np.concatenate([one for _, waits_for in parts for one in waits_for])


def _ahead_in_queue(messages: MessageTable, channel: Channel) -> list[Ints32]:
    """Return the transfer ahead of each transfer in its queue, or −1.

    There is one array for "edge", otherwise two, for the queues at the sender and at the receiver.
    """
    num_ranks, num_transfers = messages.compute.num_ranks, len(messages.source)
    if channel == "edge":  # the order on a route is the same at both ends
        sent, route = messages.by_route, messages.route[messages.by_route]
        behind = np.full(num_transfers, NONE, dtype=np.int32)
        same = route[1:] == route[:-1]
        behind[sent[1:][same]] = sent[:-1][same]
        return [behind]
    # queue number of each transfer
    queues: tuple[NDArray[Any], NDArray[Any]]
    if channel == "rank":
        queues = (np.zeros(num_transfers, dtype=np.int32),) * 2
    elif channel == "pair":
        sender, receiver = np.divmod(messages.route, num_ranks)
        queues = receiver, sender
    else:  # "direction": activations go downstream, to later stages
        queues = ((messages.compute.op[messages.source] == Op.F).astype(np.int32),) * 2
    ahead = np.empty((2, num_transfers), dtype=np.int32)
    run_kernel(
        _line_up, inputs=(messages.ends, np.cumsum(messages.num_ends), *queues),
        outputs=(np.full(num_ranks**2, NONE, dtype=np.int32), *ahead), size=2 * num_transfers,
    )  # fmt: skip
    return list(ahead)


def _line_up(
    ends: Any, end_of_rank: Any, of_sent: Any, of_received: Any, last: Any, ahead_sent: Any, ahead_received: Any
) -> None:
    rank, num_transfers = 0, len(of_sent)
    for index in range(len(ends)):
        while index == end_of_rank[rank]:
            rank += 1
        first = rank * len(end_of_rank)
        end = ends[index]
        if end < num_transfers:
            queue = of_sent[end]
            ahead_sent[end] = last[first + queue]
            last[first + queue] = end
        else:
            queue = of_received[end - num_transfers]
            ahead_received[end - num_transfers] = last[first + queue]
            last[first + queue] = end - num_transfers


def _blocking_waits(messages: MessageTable) -> _Waits:
    """A transfer starts when both ranks reach it. A rank continues when its batch of transfers is done."""
    compute, ends = messages.compute, messages.ends.copy()
    counts = np.zeros(len(compute), dtype=np.int32)
    waits_for = np.empty(len(compute) + len(ends), dtype=np.int32)
    used = run_kernel(
        _wait_for_batches,
        inputs=(messages.following, np.cumsum(messages.num_ends), compute.rank_offsets, len(messages.source)),
        outputs=(ends, counts, waits_for), size=len(waits_for),
    )  # fmt: skip
    return _joined((counts, [waits_for[:used]]), _listed(list(messages.after)))


def _wait_for_batches(
    following: Any, end_of_rank: Any, rank_offsets: Any, num_transfers: Any, ends: Any, counts: Any, waits_for: Any
) -> Any:
    """An action waits for the previous action and for the transfers posted since then, sends first."""
    used = position = 0
    for rank in range(len(end_of_rank)):
        for action in range(rank_offsets[rank], rank_offsets[rank + 1]):
            before = used
            if action > rank_offsets[rank]:
                waits_for[used] = action - 1
                used += 1
            batch = position
            while position < end_of_rank[rank] and following[position] == action:
                here = position
                while here > batch and ends[here - 1] > ends[here]:
                    ends[here - 1], ends[here] = ends[here], ends[here - 1]
                    here -= 1
                position += 1
            for here in range(batch, position):
                waits_for[used] = len(counts) + ends[here] % num_transfers
                used += 1
            counts[action] = used - before
        position = end_of_rank[rank]  # no action waits for transfers after the last action
    return used


def _megatron_graph(schedule: Schedule, communication: Communication) -> EventGraph:
    if schedule.has_communication:
        raise ScheduleError("Megatron-LM's calls are for a compute-only table: this one has its own communication")
    source, target = transfers_of(schedule)
    ends = megatron_calls(schedule, source, target, overlap=communication == "megatron")
    return _in_order(schedule, source, target, _called_waits(schedule, source, target, *ends))


def _called_waits(
    compute: Schedule, source: Ints32, target: Ints32, sends: MessageEnds, receives: MessageEnds
) -> _Waits:
    """A transfer starts when both ranks reach its call. A rank continues when the calls that block it are done.

    Transfers of one kind (forward or backward) from one rank to another run one after another. A rank waits for a
    non-blocking transfer when it issues its next transfer of the same kind to the same rank.
    """
    num_actions, num_transfers = len(compute), len(source)
    transfer = np.arange(num_actions, num_actions + num_transfers, dtype=np.int32)
    previous = previous_on_rank(compute)
    waiting, waited_for = [np.flatnonzero(previous != NONE)], [previous[previous != NONE]]

    def wait(node: Ints32, cause: Ints32, where: NDArray[np.bool_]) -> None:
        waiting.append(node[where].astype(np.int64))
        waited_for.append(cause[where])

    wait(target, transfer, np.ones(num_transfers, dtype=np.bool_))
    rank = np.concatenate([compute.rank[source], compute.rank[target]])
    calls = MessageEnds(
        *(np.concatenate(transfers) for transfers in zip(sends.columns, receives.columns, strict=True))
    )
    transfers = np.concatenate([transfer, transfer])
    wait(transfers, calls.after, calls.after != NONE)
    following = np.where(calls.after == NONE, compute.rank_offsets[rank], calls.after + 1)
    is_on_rank = following < compute.rank_offsets[rank + 1]
    wait(following, transfers, calls.holds & is_on_rank)
    second, first = _first_calls(compute, rank, calls)
    wait(transfers[second], transfers[first], np.ones(len(second), dtype=np.bool_))

    kind = compute.op[source] == Op.F
    order = np.lexsort((source, kind, compute.rank[target], compute.rank[source]))
    ahead, behind = order[:-1], order[1:]
    same = (compute.rank[source[ahead]] == compute.rank[source[behind]]) & (kind[ahead] == kind[behind])
    same &= compute.rank[target[ahead]] == compute.rank[target[behind]]
    wait(transfer[behind], transfer[ahead], same)
    handed_over = same & ~sends.holds[ahead] & ~sends.holds[behind] & is_on_rank[behind]
    wait(following[behind], transfer[ahead], handed_over)
    node, cause = np.concatenate(waiting), np.concatenate(waited_for).astype(np.int32)
    by_node = np.argsort(node, kind="stable")  # stable: keep the order of a node's waits
    return _joined((np.bincount(node, minlength=num_actions + num_transfers), [cause[by_node]]))


def _first_calls(compute: Schedule, rank: Ints32, ends: MessageEnds) -> tuple[Ints64, Ints64]:
    """Return pairs (second, first) of calls after the same action, if the first call blocks the rank."""
    positions = np.where(ends.after == NONE, len(compute) + rank, ends.after)
    held = np.flatnonzero((ends.turn == 0) & ends.holds)
    second = np.flatnonzero(ends.turn == 1)
    pairs = []
    for one in (held, held[::-1]):  # a first call can be both a send and a receive
        first = np.full(len(compute) + compute.num_ranks, NONE, dtype=np.int64)
        first[positions[one]] = one
        pairs.append((second, first[positions[second]]))
    behind, ahead = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return behind[ahead != NONE], ahead[ahead != NONE]


# --- topological order, or a cycle ---


def _topological_order(graph: EventGraph) -> tuple[Ints32, list[int]]:
    """Return a topological order and an empty list, or an unusable order and the nodes of a cycle."""
    order = np.zeros(graph.num_nodes + 1, dtype=np.int32)
    state, cursor = np.zeros(graph.num_nodes, dtype=np.int8), np.zeros(graph.num_nodes + 1, dtype=np.int32)
    depth = run_kernel(
        _depth_first, inputs=(graph.offsets, graph.waits_for, state, cursor),
        outputs=(order,), size=graph.num_nodes,
    )  # fmt: skip
    if depth < 0:
        return order[:-1], []
    path = order[::-1][: depth + 1].tolist()
    return order[:-1], path[path.index(path[-1]) : -1]


def _depth_first(offsets: Any, waits_for: Any, state: Any, cursor: Any, order: Any) -> Any:
    """Return −1, or the depth of the stack if its last node closes a cycle.

    The stack grows from the end of `order`, which has one entry more than there are nodes. A node is either on the
    stack or ordered, so the two never collide.
    """
    num_ordered, bottom = 0, len(state)
    for root in range(len(state)):
        if state[root] != 0:
            continue
        state[root] = 1
        order[bottom], cursor[0] = root, offsets[root]
        depth = 0
        while depth >= 0:
            node = order[bottom - depth]
            if cursor[depth] < offsets[node + 1]:
                cause = waits_for[cursor[depth]]
                cursor[depth] += 1
                if state[cause] == 0:
                    state[cause] = 1
                    depth += 1
                    order[bottom - depth], cursor[depth] = cause, offsets[cause]
                elif state[cause] == 1:
                    order[bottom - depth - 1] = cause
                    return depth + 1
            else:
                state[node] = 2
                order[num_ordered] = node
                num_ordered += 1
                depth -= 1
    return -1
