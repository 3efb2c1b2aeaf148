"""Reader of torch.profiler's chrome traces of a pipelined run; does not import torch.

The format is Kineto's (pytorch/kineto, libkineto/src/output_json.cpp), with `ts` and `dur` in microseconds,
relative to `baseTimeNanoseconds` (to the epoch if it is missing). These events are read:

- `user_annotation`, `python_function`: ranges on the host. torch's runtime names a cell "PP:3F0". "ProfilerStep#7"
  is a step.
- `user_annotation` "gloo:recv" and "ppsim:wait", which end when the wait for a receive ends (CPU).
- `cpu_op` "autograd::engine::evaluate_function…": separates backward and forward pass of a fused cell.
- `cpu_op` "record_param_comms": size of a send, if its kernel does not have it. Torch up to 2.12 batches sends and
  launches their kernel at the end of NCCL's group, after these events (pytorch/pytorch#194693).
- `cuda_runtime`, `cuda_driver`: launches (also of HIP). `correlation` in `args` links a launch to its kernel.
- `kernel`, `gpu_memcpy`, `gpu_memset`: work on the device. All kernels of NCCL and RCCL have "nccl" in their name.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from math import isfinite
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.limits import LARGEST_COUNT, count_from
from ppsim.machine.kernels.names import COLLECTIVES
from ppsim.runs.kernel_totals import kind_of_kernel
from ppsim.runs.readers.patterns import PATTERNS, NameCounts, NamePattern
from ppsim.runs.readers.recording import Recording, limit_recording, trace_of
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
_CHECKED = 2**16  # number of entries between two checks of the memory limit
_FEWER = "torch.profiler.schedule(active=3)"
_ELEMENT_BYTES = {
    "float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2, "int": 4,
    "long": 8, "byte": 1, "char": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
"""Bytes per element for the `dtype` of NCCL's kernels, in lower case."""


def read_trace(path: str | Path, patterns: Sequence[NamePattern] = PATTERNS) -> RankTrace:
    """Return the steps in one rank's trace file, plain or gzip.

    Raises `ConfigError` for a trace without actions, with a single step, or with unequal steps, and for more than
    `MOST_KEPT` stored events.
    """
    return trace_of(recording_of(path, patterns))


def recording_of(path: str | Path, patterns: Sequence[NamePattern] = PATTERNS) -> Recording:
    with closing(entries_of(path, "traceEvents")) as entries:
        return _recording(entries, str(path), patterns)


def _recording(entries: Iterator[tuple[str, Any]], source: str, patterns: Sequence[NamePattern]) -> Recording:
    recording, is_one = Recording(source, NameCounts(patterns)), False
    with limit_recording(source, "trace of torch.profiler"):
        for count, (key, value) in enumerate(entries):
            if count % _CHECKED == 0:
                recording.require_room(_FEWER)
            if key == "traceEvents":
                is_one = True
                if value.get("ph") == "X":
                    _keep(value, recording)
            elif key == "baseTimeNanoseconds":
                recording.base_ns = count_from(value, f"{source}: {key}", most=LARGEST_COUNT * 10**9)
            elif key == "host_name":
                recording.host = str(value)
            elif key == "distributedInfo" and isinstance(value, dict):
                counts = (value.get("rank"), value.get("world_size"))
                recording.rank, recording.num_ranks = (
                    count if isinstance(count, int) else None for count in counts
                )
    recording.require_room(_FEWER)
    if not is_one:
        raise ConfigError(f"{source} is no trace of torch.profiler: it has no list 'traceEvents' with an event")
    return recording


def _keep(event: dict[str, Any], recording: Recording) -> None:
    kind, name, args = event.get("cat"), event["name"], event.get("args") or {}
    begin, end = _times_of(event)
    if kind in _NAMED:
        if name in _WAITS:
            recording.waits.append((begin, end))
        elif _COLLECTIVE.match(name):
            if not recording.device:
                recording.collectives.append(begin)
        else:
            recording.keep_range(name, begin, end)
    elif kind in _LAUNCHES:
        if "correlation" in args:
            recording.launches.append((begin, int(args["correlation"])))
    elif kind in _ON_DEVICE:
        if "correlation" in args:
            recording.keep_work(int(args["correlation"]), begin, end, name, _bytes_of(args))
            if len(recording.device) == 1:  # a trace with device work needs no host operators
                recording.operators.clear()
                recording.collectives.clear()
            if _COLLECTIVE_KERNEL.match(name):
                recording.collectives.append(begin)
                _keep_message(name, args, end - begin, recording)
    elif kind == "cpu_op" and name.startswith(_AUTOGRAD):
        recording.nodes.append((begin, end))
    elif kind == "cpu_op":
        if not recording.device:
            recording.operators.append((begin, end))
        if name == _MESSAGE and args.get("Collective name") == "send" and (size := _bytes_of(args)):
            recording.messages.append((begin, size))


def _times_of(event: dict[str, Any]) -> tuple[float, float]:
    begin: float = event["ts"] / 1e6
    end: float = begin + event.get("dur", 0) / 1e6
    if not isfinite(begin + end):
        raise ValueError(f"{event['name']} is from {begin:g} to {end:g} s")
    return begin, end


def _keep_message(name: str, args: dict[str, Any], seconds: float, recording: Recording) -> None:
    """Store the bytes of the result of an all-gather, of the input of other collectives."""
    kind, ranks = kind_of_kernel(name), args.get("Group size")
    size = _bytes_of(args, "Out" if kind == "all-gather" else "In")
    if size and kind in COLLECTIVES and isinstance(ranks, int) and ranks > 1:
        recording.kernels.messages.append((kind, size, ranks, seconds))


def _bytes_of(args: dict[str, Any], side: str = "In") -> float | None:
    count, element = args.get(f"{side} msg nelems"), _ELEMENT_BYTES.get(str(args.get("dtype", "")).lower())
    return float(count * element) if isinstance(count, int) and count > 0 and element else None
