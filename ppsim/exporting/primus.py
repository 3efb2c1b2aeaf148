"""The table as Primus' node lists: `SchedulerNode(func_type, mini_batch, chunk, args)` a rank.

Primus (AMD, primus.core.pipeline_parallel.scheduler) makes its tables in Python and reads no file; docs/export.md
has the class that turns this JSON into one. Its letters: B is our I, BW our B. It sends and receives in the order
of the list, so that receives stand in the order in which the peer sends.
"""

from typing import Any, Literal

from ppsim.base.errors import ScheduleError
from ppsim.schedule.check import require_one_chain, validate
from ppsim.schedule.graph import build_graph
from ppsim.schedule.lowering import lower
from ppsim.schedule.table import Action, Op, Schedule

FORMAT: Literal["ppsim-primus/1"] = "ppsim-primus/1"

_FUNC_TYPE = {Op.F: "F", Op.I: "B", Op.W: "W", Op.B: "BW"}
_SENDS_AND_RECEIVES = {Op.SEND_F: "SF", Op.RECV_F: "RF", Op.SEND_B: "SB", Op.RECV_B: "RB"}


def primus_table(schedule: Schedule) -> dict[str, Any]:
    """Return a table as JSON for Primus: `ranks` holds a list of nodes a rank.

    Raises `ScheduleError` for what Primus has no node for: fused cells, replicas and slices. A hand-over between
    two stages of one rank is a send and a receive to itself, as in Primus' own V tables.
    """
    validate(schedule)
    require_one_chain(schedule, runtime="Primus")
    compute = schedule.compute_only()
    if (compute.fused >= 0).any():
        raise ScheduleError("Primus' tables have no fused cells; export the table to json instead")
    lowered = lower(compute, receives="ordered")
    build_graph(lowered, channel="edge")
    chunk_of = _chunks(compute)
    ranks: list[list[dict[str, Any]]] = []
    for rank, row in enumerate(lowered.rows()):
        nodes: list[dict[str, Any]] = []
        for cell in row:
            assert isinstance(cell, Action)
            if cell.op in _SENDS_AND_RECEIVES:
                nodes.append(_message(cell, rank, compute, chunk_of))
            elif cell.op in _FUNC_TYPE:
                nodes += _compute(cell, rank, compute, chunk_of)
        ranks.append(nodes)
    return {
        "format": FORMAT,
        "name": schedule.name,
        "pp_size": compute.num_ranks,
        "vpp_size": compute.vpp,
        "micro_batches": compute.num_microbatches,
        "last_stage_rank": int(compute.stage_to_rank[-1]),
        "ranks": ranks,
    }


def _chunks(compute: Schedule) -> list[int]:
    """The place of each stage among those of its rank."""
    return [list(compute.stages_of(int(rank))).index(stage) for stage, rank in enumerate(compute.stage_to_rank)]


def _compute(action: Action, rank: int, compute: Schedule, chunk_of: list[int]) -> list[dict[str, Any]]:
    """The node of an action, between those that hand over from and to a stage of the same rank."""
    node = _node(_FUNC_TYPE[action.op], action.microbatch, chunk_of[action.stage])
    if action.op is Op.W:
        return [node]
    towards = 1 if action.op is Op.F else -1
    receive, send = (Op.RECV_F, Op.SEND_F) if action.op is Op.F else (Op.RECV_B, Op.SEND_B)
    nodes = [node]
    if _is_on(compute, action.stage - towards, rank):
        nodes.insert(0, _message(Action(receive, action.stage, action.microbatch), rank, compute, chunk_of))
    if _is_on(compute, action.stage + towards, rank):
        nodes.append(_message(Action(send, action.stage, action.microbatch), rank, compute, chunk_of))
    return nodes


def _is_on(compute: Schedule, stage: int, rank: int) -> bool:
    return 0 <= stage < compute.num_stages and int(compute.stage_to_rank[stage]) == rank


def _message(action: Action, rank: int, compute: Schedule, chunk_of: list[int]) -> dict[str, Any]:
    is_send = action.op in (Op.SEND_F, Op.SEND_B)
    peer = action.stage + (1 if action.op in (Op.SEND_F, Op.RECV_B) else -1)
    other = int(compute.stage_to_rank[peer])
    return _node(
        _SENDS_AND_RECEIVES[action.op], action.microbatch, chunk_of[action.stage],
        {
            "from_pp_rank": rank if is_send else other,
            "to_pp_rank": other if is_send else rank,
            "send_to_chunk" if is_send else "recv_from_chunk": chunk_of[peer],
        },
    )  # fmt: skip


def _node(func_type: str, microbatch: int, chunk: int, args: dict[str, int] | None = None) -> dict[str, Any]:
    return {"func_type": func_type, "mini_batch": microbatch, "chunk": chunk, "args": args}
