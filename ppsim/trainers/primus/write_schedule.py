"""Writer of Primus' node lists, one list of `SchedulerNode` per rank.

Primus (AMD, primus.core.pipeline_parallel.scheduler) builds its tables in Python and reads no file. Its letters
differ: its B is our I, its BW is our B.

Primus' communication handler collects consecutive sends and receives of a rank's list into a batch. It starts the
batch when the next node computes or has another `args["time_step"]`. Before that it waits for the sends of the
previous batch (in `batch_p2p` for the whole batch). Therefore a batch must contain the same messages on both ranks,
and all ranks must reach their batches in the same order. Both conditions hold if the time step of a message is the
instant at which its content is produced, on one timeline for all ranks, whatever the real durations are. The
timeline uses unit costs (F, I and W 1, B 2), so that simultaneous transfers in both directions form one batch.
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
from ppsim.simulation.simulate import simulate
from ppsim.simulation.stage_costs import StageCosts

FORMAT: Literal["ppsim-primus/1"] = "ppsim-primus/1"

_FUNC_TYPE = {Op.F: "F", Op.I: "B", Op.W: "W", Op.B: "BW"}
_UNIT = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
_SEND, _RECEIVE, _COMPUTE = range(3)  # order within an instant: a rank's messages to itself need it


class _Placed(NamedTuple):
    rank: int
    place: tuple[int, int]
    node: dict[str, Any]


def primus_table(schedule: Schedule) -> dict[str, Any]:
    """A transfer between two stages on a rank is a send and a receive to itself, as in Primus' own V tables.

    Raises `ScheduleError` for actions without a node in Primus (fused cells, model replicas, slices), and for a
    placement other than a loop or a V of two chunks per rank.
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
            "Primus places stage s on rank s mod pp, or two stages per rank in a V; this table places them "
            f"otherwise: on ranks {', '.join(map(str, placed))}"
        )


def _nodes(compute: Schedule) -> Iterator[_Placed]:
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
    """Instants are numbered from 0 for all ranks."""
    timeline = simulate(compute, _UNIT)
    times = np.stack([timeline.start[: len(compute)], timeline.end[: len(compute)]])
    instants: NDArray[np.int64] = np.unique(times, return_inverse=True)[1].reshape(times.shape)
    start, end = instants.tolist()
    return start, end


def _chunks(compute: Schedule) -> list[int]:
    return [list(compute.stages_of(int(rank))).index(stage) for stage, rank in enumerate(compute.stage_to_rank)]
