"""Chrome traces as torch.profiler writes them, made from timelines: what was put in is then known."""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ppsim.schedule.lowering import lower
from ppsim.schedule.table import Action, Op
from ppsim.simulation.timeline import Timeline

Event = dict[str, Any]


def sender(receive: Action) -> str:
    return str(
        Action(Op(receive.op - 1), receive.stage + (-1 if receive.op is Op.RECV_F else 1), receive.microbatch)
    )


def traces_of(
    steps: Sequence[Timeline], *, gap_s: float, cuda: bool, message_bytes: int = 2**20, batched: bool = False
) -> list[Any]:
    """One trace a rank: the steps of the timelines with `gap_s` seconds between, on the host or by kernels.

    `batched` as torch up to 2.12 sends: the kernel is launched at the end of NCCL's group, and what it carries is told
    by the operator on the host alone, `record_param_comms`, which has ended by then
    (https://github.com/pytorch/pytorch/issues/194693).
    """
    schedule = steps[0].schedule
    table = lower(schedule, receives="torch")
    offset, offsets = 100.0, []
    for step in steps:
        offsets.append(offset - step.begin_s)
        offset += step.step_time_s + gap_s
    return [
        {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl" if cuda else "gloo", "rank": rank, "world_size": len(table.rows())},
            "host_name": "host",
            "baseTimeNanoseconds": 1_700_000_000_000_000_000,
            "traceEvents": _events(steps, offsets, rank, list(table.rows())[rank], cuda, message_bytes, batched),
        }
        for rank in range(schedule.num_ranks)
    ]  # fmt: skip


def _events(
    steps: Sequence[Timeline],
    offsets: list[float],
    rank: int,
    row: Any,
    cuda: bool,
    message_bytes: int,
    batched: bool,
) -> list[Event]:
    events: list[Event] = [{"ph": "M", "name": "process_name", "pid": 1}]
    number = 0

    def add(kind: str, name: str, begin: float, end: float, **args: Any) -> None:
        tid = {"kernel": args.get("stream", 7)}.get(kind, 1)
        event = {
            "ph": "X",
            "cat": kind,
            "name": name,
            "pid": 1,
            "tid": tid,
            "ts": begin * 1e6,
            "dur": (end - begin) * 1e6,
        }
        events.append(event | {"args": args})

    for step, offset in zip(steps, offsets, strict=True):
        nodes = {step.name_of(node): node for node in range(step.graph.num_nodes)}
        at = offset - 1e-3
        for cell in row:
            members = (cell,) if isinstance(cell, Action) else cell
            text = str(cell) if isinstance(cell, Action) else "(" + ";".join(map(str, cell)) + ")OVERLAP_F_B"
            if members[0].op.is_compute:
                entries = [nodes[str(member)] for member in members]
                begin, end = offset + step.start[entries[0]], offset + step.end[entries[-1]]
                if not cuda:
                    waits = [step.blocker[entry] >= step.num_actions for entry in entries]
                    at = at if waits[0] else max(at, begin)  # host time passes between two ranges
                    add("user_annotation", f"PP:{text}", at, end)
                    for member, entry in zip(members, entries, strict=True):
                        start, finish = offset + step.start[entry], offset + step.end[entry]
                        if waits[entries.index(entry)]:
                            add("user_annotation", "gloo:recv", at - 1e-6, start)
                        name = (
                            "aten::linear"
                            if member.op is Op.F
                            else "autograd::engine::evaluate_function: AddmmBackward0"
                        )
                        add("cpu_op", name, start, finish)
                    at = end
                    continue
                # The host runs ahead: ranges, launches and nodes of autograd are long over when the kernels run.
                add("user_annotation", f"PP:{text}", at, at + 2e-5)
                add("gpu_user_annotation", f"PP:{text}", begin, end, stream=7)
                for place, (member, entry) in enumerate(zip(members, entries, strict=True)):
                    start, finish = offset + step.start[entry], offset + step.end[entry]
                    launch = at + 2e-6 + place * 8e-6
                    if member.op is not Op.F:
                        add(
                            "cpu_op",
                            "autograd::engine::evaluate_function: AddmmBackward0",
                            launch - 1e-6,
                            launch + 5e-6,
                        )
                    for part in range(2):
                        half = (finish - start) / 2
                        number += 1
                        add(
                            "cuda_runtime",
                            "cudaLaunchKernel",
                            launch + part * 1e-6,
                            launch + part * 1e-6,
                            correlation=number,
                        )
                        add(
                            "kernel",
                            "gemm",
                            start + part * half,
                            start + (part + 1) * half,
                            stream=7,
                            correlation=number,
                        )
                at += 3e-5
                continue
            add("user_annotation", f"PP:{text}", at, at + 1e-6)
            if cuda and members[0].op in (Op.SEND_F, Op.SEND_B, Op.RECV_F, Op.RECV_B):
                action = members[0]
                is_send = action.op in (Op.SEND_F, Op.SEND_B)
                node = nodes[text if is_send else sender(action)]
                number += 1
                start, end = offset + step.start[node], offset + step.end[node]
                # A receive is posted early and its kernel waits for the sender's.
                told = {"In msg nelems": message_bytes // 2, "Out msg nelems": message_bytes // 2, "dtype": "BFloat16",
                        "Collective name": "send" if is_send else "recv", "Group size": 2}  # fmt: skip
                waits = told | {"Collective name": "wait", "dtype": "Byte", "In msg nelems": 1}
                add("cpu_op", "record_param_comms", at + 5e-9, at + 8e-9, **waits)
                add("cpu_op", "record_param_comms", at + 1e-8, at + 2e-7 if batched else at + 5e-7, **told)
                add("cuda_runtime", "cudaLaunchKernelExC", at + 3e-7, at + 4e-7, correlation=number)
                add("kernel", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", start if is_send else start - 1e-4,
                    end, stream=20, correlation=number, **({} if batched else told))  # fmt: skip
            at += 2e-6 if cuda else 2e-9
    return events


def written(traces: list[Any], folder: Path, *, packed: bool = False) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = []
    for rank, trace in enumerate(traces):
        data = json.dumps(trace).encode()
        path = folder / f"rank{rank}.json{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(data) if packed else data)
        paths.append(path)
    return paths


def edited(traces: list[Any], rank: int, keep: Callable[[Event], bool]) -> list[Any]:
    """The traces with only some of one rank's events."""
    return [
        trace | {"traceEvents": [event for event in trace["traceEvents"] if keep(event)]}
        if number == rank
        else trace
        for number, trace in enumerate(traces)
    ]


def rescaled(timeline: Timeline, factor: float) -> Timeline:
    """The same step, all of it slower: one that straggled."""
    from dataclasses import replace

    return replace(timeline, start=np.asarray(timeline.start) * factor, end=np.asarray(timeline.end) * factor)
