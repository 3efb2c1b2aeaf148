"""The table as Primus' node lists: `SchedulerNode(func_type, mini_batch, chunk, args)` a rank.

Primus (AMD, primus.core.pipeline_parallel.scheduler) makes its tables in Python and reads no file. Its letters: B
is our I, BW our B.

Time steps. Primus' communication handler collects sends and receives that stand next to each other in a rank's list
and starts them together, once the next node computes or has another `args["time_step"]`; before that it waits for
the sends of the batch before, in `batch_p2p` for the whole batch. So a batch must hold the same messages at both of
its ends, and all ranks must come to their batches in one order. Both hold where the time step of a message is its
place in one timeline: the instant at which its content is made, counted over all ranks. A rank's list runs through
these instants: what is made there is sent at once, what its peers made there is received before the next action
starts. No rank then waits for a batch whose other end waits for a later one, whatever the actions really take. The
timeline is that of unit costs (F, I and W 1, B 2), where what goes both ways at a time is one batch.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppsim.base.errors import ScheduleError
from ppsim.schedule.check import compute_for
from ppsim.schedule.dependencies import dependencies
from ppsim.schedule.placement import loop, v_shape
from ppsim.schedule.table import NONE, Op, Schedule
from ppsim.simulation.run import simulate
from ppsim.simulation.stage_costs import StageCosts

FORMAT: Literal["ppsim-primus/1"] = "ppsim-primus/1"

_FUNC_TYPE = {Op.F: "F", Op.I: "B", Op.W: "W", Op.B: "BW"}
_UNIT = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
_SEND, _RECEIVE, _COMPUTE = range(3)  # in this order at one instant: a rank's messages to itself need it


class _Placed(NamedTuple):
    """A node and its place in the list of its rank."""

    rank: int
    place: tuple[int, int]
    node: dict[str, Any]


def primus_table(schedule: Schedule) -> dict[str, Any]:
    """Return a table as JSON for Primus: `ranks` holds a list of nodes a rank.

    Raises `ScheduleError` for what Primus has no node for (fused cells, replicas and slices), and for a placement
    that it does not build: it has loops, and a V of two chunks a rank. A hand-over between two stages of one rank
    is a send and a receive to itself, as in Primus' own V tables.
    """
    compute = compute_for("Primus", schedule)
    if (compute.fused >= 0).any():
        raise ScheduleError("Primus' tables have no fused cells; export the table to json instead")
    _require_placement(compute)
    ranks: list[list[_Placed]] = [[] for _ in range(compute.num_ranks)]
    for placed in _nodes(compute):
        ranks[placed.rank].append(placed)
    return {
        "format": FORMAT,
        "name": schedule.name,
        "pp_size": compute.num_ranks,
        "vpp_size": compute.vpp,
        "micro_batches": compute.num_microbatches,
        "last_stage_rank": int(compute.stage_to_rank[-1]),
        "ranks": [[placed.node for placed in sorted(row, key=lambda one: one.place)] for row in ranks],
    }


def _require_placement(compute: Schedule) -> None:
    placed, p = compute.stage_to_rank.tolist(), compute.num_ranks
    if placed not in (loop(p, p * compute.vpp), v_shape(p, 2 * p)):
        raise ScheduleError(
            "Primus places stage s on rank s mod pp, or two stages a rank in a V; this table places them "
            f"otherwise: on ranks {', '.join(map(str, placed))}"
        )


def _nodes(compute: Schedule) -> Iterator[_Placed]:
    """The nodes of all ranks: those that compute in the order of the table, then both ends of every message."""
    start, end = _instants(compute)
    rank, chunk_of = compute.rank.tolist(), _chunks(compute)
    for entry, (op, stage, microbatch) in enumerate(compute):
        node = {"func_type": _FUNC_TYPE[op], "mini_batch": microbatch, "chunk": chunk_of[stage], "args": None}
        yield _Placed(rank[entry], (start[entry], _COMPUTE), node)
    for taker, maker in enumerate(dependencies(compute).neighbour.tolist()):
        if maker == NONE:
            continue
        (op, sender, microbatch), receiver = compute[maker], compute[taker].stage
        letter, step = "F" if op is Op.F else "B", end[maker]
        args = {"from_pp_rank": rank[maker], "to_pp_rank": rank[taker], "time_step": step}
        for kind, place, stage, other in (("S", _SEND, sender, receiver), ("R", _RECEIVE, receiver, sender)):
            named = {"send_to_chunk" if kind == "S" else "recv_from_chunk": chunk_of[other]}
            node = {"func_type": kind + letter, "mini_batch": microbatch, "chunk": chunk_of[stage]}
            yield _Placed(rank[maker if kind == "S" else taker], (step, place), node | {"args": args | named})


def _instants(compute: Schedule) -> tuple[list[int], list[int]]:
    """When each action starts and ends at unit costs, as numbers from 0 that all ranks share."""
    timeline = simulate(compute, _UNIT)
    times = np.stack([timeline.start[: len(compute)], timeline.end[: len(compute)]])
    instants: NDArray[np.int64] = np.unique(times, return_inverse=True)[1].reshape(times.shape)
    start, end = instants.tolist()
    return start, end


def _chunks(compute: Schedule) -> list[int]:
    """The place of each stage among those of its rank."""
    return [list(compute.stages_of(int(rank))).index(stage) for stage, rank in enumerate(compute.stage_to_rank)]
