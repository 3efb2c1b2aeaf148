"""torch.profiler's chrome traces of a pipelined run → what each rank ran. Imports no torch.

The format is Kineto's (pytorch/kineto, libkineto/src/output_json.cpp): complete events ("ph": "X") with `ts` and
`dur` in microseconds, from `baseTimeNanoseconds` on (without it, of the epoch), one clock for all processes of a
host. What is read:

- `user_annotation`, `python_function`: ranges on the host, of which `ppsim.runs.readers.patterns` tells which are
  passes of the pipeline. torch's runtime calls a cell "PP:3F0". "ProfilerStep#7" is a step.
- `user_annotation` "gloo:recv" and "ppsim:wait", which end when a receive has been waited for (CPU).
- `cpu_op` "autograd::engine::evaluate_function…": tells the backward of a fused cell from its forward.
- `cpu_op` "record_param_comms": what a send carries, where its kernel does not tell. Torch up to 2.12 batches
  sends, whose kernel is launched at the end of NCCL's group, behind these (pytorch/pytorch#194693).
- `cuda_runtime`, `cuda_driver`: launches (HIP's too); the `correlation` in `args` is that of what they launched.
- `kernel`, `gpu_memcpy`, `gpu_memset`: the device's work. "nccl" is in the name of every kernel of NCCL and RCCL.

A file is read event by event, and of an event is kept what is needed, so that memory does not grow with the file.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.runs.readers.patterns import PATTERNS, Names, Pattern
from ppsim.runs.readers.recording import Recording, reading, trace_of
from ppsim.runs.readers.stream import entries_of
from ppsim.runs.traces import RankTrace

WAIT_MARK = "ppsim:wait"
_WAITS = (WAIT_MARK, "gloo:recv")
_COLLECTIVE = re.compile(r"(?:gloo|nccl|mpi|ucc|xccl):_?(?:all_?reduce|all_?gather|reduce_scatter|barrier)")
_COLLECTIVE_KERNEL = re.compile(r"(?:nccl|rccl)\w*(?:AllReduce|AllGather|ReduceScatter)", re.IGNORECASE)
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_NAMED = ("user_annotation", "python_function")
_AUTOGRAD = "autograd::engine::evaluate_function"
_MESSAGE = "record_param_comms"
_CHECKED = 2**16  # entries after which the room for them is looked at
_FEWER = "torch.profiler.schedule(active=3)"
_ELEMENT_BYTES = {
    "float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2, "int": 4,
    "long": 8, "byte": 1, "char": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
"""What NCCL's kernels call their `dtype`, in small letters."""


def read_trace(path: str | Path, patterns: Sequence[Pattern] = PATTERNS) -> RankTrace:
    """Return the steps in one rank's trace file, packed with gzip or not.

    Memory is that of the events that are kept (`MOST_KEPT`, more are refused), not of the file. Raises
    `ConfigError` for what is no trace, for one without a range of a pass, a single step, or unlike steps.
    """
    with closing(entries_of(path, "traceEvents")) as entries:
        return trace_of(_recording(entries, str(path), patterns))


def _recording(entries: Iterator[tuple[str, Any]], source: str, patterns: Sequence[Pattern]) -> Recording:
    """What is needed of a trace's entries: an event of its list at a time, and the rest by key."""
    found, is_one = Recording(source, Names(patterns)), False
    with reading(source, "trace of torch.profiler"):
        for count, (key, value) in enumerate(entries):
            if count % _CHECKED == 0:
                found.require_room(_FEWER)
            if key == "traceEvents":
                is_one = True
                if value.get("ph") == "X":
                    _keep(value, found)
            elif key == "baseTimeNanoseconds":
                found.base_ns = int(value)
            elif key == "host_name":
                found.host = str(value)
            elif key == "distributedInfo" and isinstance(value, dict):
                rank = value.get("rank")
                found.rank = rank if isinstance(rank, int) else None
    found.require_room(_FEWER)
    if not is_one:
        raise ConfigError(f"{source} is no trace of torch.profiler: it has no list 'traceEvents' with an event")
    return found


def _keep(event: dict[str, Any], found: Recording) -> None:
    kind, name, begin = event.get("cat"), event["name"], event["ts"] / 1e6
    end, args = begin + event.get("dur", 0) / 1e6, event.get("args") or {}
    if kind in _NAMED:
        if name in _WAITS:
            found.waits.append((begin, end))
        elif _COLLECTIVE.match(name):
            if not found.device:
                found.collectives.append(begin)
        else:
            found.keep_range(name, begin, end)
    elif kind in _LAUNCHES:
        if "correlation" in args:
            found.launches.append((begin, int(args["correlation"])))
    elif kind in _ON_DEVICE:
        if "correlation" in args:
            found.keep_work(int(args["correlation"]), begin, end, name, _bytes_of(args))
            if len(found.device) == 1:  # the first work: what the host noted before is of no use
                found.operators.clear()
                found.collectives.clear()
            if _COLLECTIVE_KERNEL.match(name):
                found.collectives.append(begin)
    elif kind == "cpu_op" and name.startswith(_AUTOGRAD):
        found.nodes.append((begin, end))
    elif kind == "cpu_op":
        if not found.device:
            found.operators.append((begin, end))
        if name == _MESSAGE and args.get("Collective name") == "send" and (size := _bytes_of(args)):
            found.messages.append((begin, size))


def _bytes_of(args: dict[str, Any]) -> float | None:
    """What a kernel of NCCL carries, or the operator that asked for it: elements and type, where they are noted."""
    count, element = args.get("In msg nelems"), _ELEMENT_BYTES.get(str(args.get("dtype", "")).lower())
    return float(count * element) if isinstance(count, int) and count > 0 and element else None
