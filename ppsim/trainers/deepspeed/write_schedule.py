"""Writer of instructions of DeepSpeed's pipeline engine (deepspeed/runtime/pipe).

Sends and receives block, so both ranks of a pair must list their transfers in the same order. A simulated timeline
with unit costs determines this order.
"""

from itertools import pairwise
from typing import Any

from ppsim.base.errors import ScheduleError
from ppsim.schedule.check import compute_for
from ppsim.schedule.table import Action, Op, Schedule
from ppsim.simulation.simulate import simulate
from ppsim.simulation.stage_costs import StageCosts

FORMAT = "ppsim-deepspeed/1"

_LOAD, _FORWARD, _BACKWARD = "LoadMicroBatch", "ForwardPass", "BackwardPass"
_SENDS, _RECEIVES = ("SendActivation", "SendGrad"), ("RecvActivation", "RecvGrad")


def deepspeed_instructions(schedule: Schedule) -> dict[str, Any]:
    """Return each rank's instructions in order, as [name, buffer], and the number of buffers that it needs.

    Raises `ScheduleError` for several stages per rank, a split backward pass, microbatches out of order on a rank,
    and several pending losses on the last stage (the engine stores one).
    """
    compute = compute_for("DeepSpeed", schedule)
    if compute.vpp != 1 or compute.stage_to_rank.tolist() != list(range(compute.num_ranks)):
        raise ScheduleError(
            "DeepSpeed's engine holds one stage per rank, in order; this table places them otherwise"
        )
    if ((compute.op == Op.I) | (compute.op == Op.W)).any():
        raise ScheduleError("DeepSpeed's engine has no split backward (I and W); this table has one")
    rows = _passes(compute)
    for rank, row in enumerate(rows):
        forwards = [action.microbatch for action in row if action.op is Op.F]
        if forwards != sorted(forwards):
            raise ScheduleError(f"DeepSpeed's engine loads microbatches in order; rank {rank} runs {forwards}")
    ends = rows[-1]
    if any(ends[at].microbatch != ends[at + 1].microbatch for at in range(0, len(ends), 2)):
        raise ScheduleError(
            "DeepSpeed's engine keeps one loss, so that its last stage runs each backward behind its forward; this "
            "table runs others between"
        )
    ranks = [_on_buffers(events) for events in _events(compute)]
    return {
        "format": FORMAT,
        "stages": compute.num_ranks,
        "microbatches": compute.num_microbatches,
        "buffers": [1 + max(buffer for _, buffer in rank) for rank in ranks],
        "ranks": ranks,
    }


def _passes(compute: Schedule) -> list[list[Action]]:
    actions = list(compute)
    return [actions[begin:end] for begin, end in pairwise(compute.rank_offsets.tolist())]


def _events(compute: Schedule) -> list[list[tuple[str, int]]]:
    """Return, for each rank, (instruction, microbatch) in the order of a timeline where F and B take 1 s each.

    A gradient transfer waits until the rank's previous backward pass has ended, because the engine receives all
    gradients into the same buffer.
    """
    timeline = simulate(compute, StageCosts(forward_s=1.0, backward_input_s=0.5, backward_weight_s=0.5))
    last, ran = compute.num_ranks - 1, timeline.schedule
    begun = {
        (one.stage, one.op, one.microbatch): start for one, start in zip(ran, timeline.start.tolist(), strict=False)
    }
    found: list[list[tuple[tuple[float, int, int, int], str, int]]] = [[] for _ in range(compute.num_ranks)]
    for rank, row in enumerate(_passes(compute)):
        before = 0.0  # end of the rank's previous backward pass
        for action in row:
            is_backward, microbatch = action.op is not Op.F, action.microbatch
            start = begun[rank, action.op, microbatch]
            found[rank].append(((start, 1, 0, microbatch), _BACKWARD if is_backward else _FORWARD, microbatch))
            if not is_backward and rank in (0, last):
                found[rank].append(((start, 0, 9, microbatch), _LOAD, microbatch))
            peer = rank + 1 if is_backward else rank - 1
            if 0 <= peer <= last:
                ready = begun[peer, action.op, microbatch] + 1.0
                at = (max(ready, before) if is_backward else ready, 0, int(is_backward), microbatch)
                found[rank].append((at, _RECEIVES[is_backward], microbatch))
                found[peer].append((at, _SENDS[is_backward], microbatch))
            if is_backward:
                before = start + 1.0
    return [[(name, microbatch) for _, name, microbatch in sorted(events)] for events in found]


def _on_buffers(events: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """A buffer is free again after the last instruction of its microbatch."""
    last_use = {microbatch: index for index, (_, microbatch) in enumerate(events)}
    free: list[int] = []
    held: dict[int, int] = {}
    placed = []
    for index, (name, microbatch) in enumerate(events):
        if microbatch not in held:
            held[microbatch] = free.pop() if free else len(held)
        placed.append((name, held[microbatch]))
        if last_use[microbatch] == index:
            free.append(held[microbatch])
    return placed
