"""Nsight Systems' sqlite export (`nsys export --type sqlite`) → what each rank ran, a process being a rank.

Of the schema (docs.nvidia.com/nsight-systems, "SQLite Schema Reference") are read, times in nanoseconds from the
session's start:

- `NVTX_EVENTS`: push/pop ranges (`eventType` 59) and start/end ranges (60); their name is `text`, or the string of
  `textId`. `ppsim.runs.readers.patterns` tells which are passes of the pipeline.
- `CUPTI_ACTIVITY_KIND_RUNTIME`: launches, `correlationId` being that of what they launched.
- `CUPTI_ACTIVITY_KIND_KERNEL`, `_MEMCPY`, `_MEMSET`: the device's work; "nccl" is in the name of NCCL's kernels.
- `StringIds`: names; `TARGET_INFO_SESSION_START_TIME`, `TARGET_INFO_SYSTEM_ENV`: when, and on which host.

`globalTid` and `globalPid` hold the process in bits 24 to 47. Tables are made when there is something to put in, so
that any may be missing. Rows are read one at a time.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from ppsim.base.errors import ConfigError
from ppsim.runs.readers.patterns import PATTERNS, Names, Pattern
from ppsim.runs.readers.recording import Recording, reading, trace_of
from ppsim.runs.traces import RankTrace

MAGIC = b"SQLite format 3\x00"
_RANGES = (59, 60)
_THREAD_BITS = 24
_FEWER = "nsys profile --capture-range cudaProfilerApi"
_ON_DEVICE = tuple(f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET"))


def read_processes(path: str | Path, patterns: Sequence[Pattern] = PATTERNS) -> list[RankTrace]:
    """Return the processes of an export that ran passes of a pipeline, in the order of their devices.

    Raises `ConfigError` for a file that is no such export, and for one without a range of a pass.
    """
    # As a URI, so that nothing is written beside it; the name is quoted by Path.
    uri = f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1"
    with reading(str(path), "export of Nsight Systems"), closing(sqlite3.connect(uri, uri=True)) as file:
        return _traces(file, str(path), patterns)


def _traces(file: sqlite3.Connection, path: str, patterns: Sequence[Pattern]) -> list[RankTrace]:
    tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if "NVTX_EVENTS" not in tables:
        raise ConfigError(
            f"{path} has no NVTX ranges, by which passes are told: run nsys profile --trace cuda,nvtx on a program "
            f"that names them (Megatron-LM: --profile --nvtx-ranges)"
        )
    names = Names(patterns)
    processes: defaultdict[int, Recording] = defaultdict(lambda: Recording(path, names))
    _keep_ranges(file, "StringIds" in tables, processes)
    device_of: dict[int, int] = {}
    for table in _ON_DEVICE:
        if table in tables:
            _keep_work(file, table, processes, device_of)
    if "CUPTI_ACTIVITY_KIND_RUNTIME" not in tables and device_of:
        raise ConfigError(
            f"{path} has kernels but no table CUPTI_ACTIVITY_KIND_RUNTIME, by which they are assigned to passes: "
            f"run nsys profile --trace cuda,nvtx, and nsys export --type sqlite without --tables"
        )
    if "CUPTI_ACTIVITY_KIND_RUNTIME" in tables:
        for begin, number, thread in file.execute(
            "SELECT start, correlationId, globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME"
        ):
            kept = processes[_process(thread)]
            kept.launches.append((begin / 1e9, number))
            kept.require_room(_FEWER)
    found = sorted((device_of.get(process, 0), process) for process, one in processes.items() if one.ranges)
    base_ns, host = _session(file, tables)
    chosen = [processes[process] for _, process in found] or [Recording(path, names)]  # without, says which it saw
    for number, recording in enumerate(chosen):
        recording.base_ns, recording.host = base_ns, host or path
        recording.rank = number if len(chosen) > 1 else None
        recording.source = path if len(chosen) == 1 else f"{path}: process {found[number][1] & 0xFFFFFF}"
    return [trace_of(recording) for recording in chosen]


def _process(identity: int) -> int:
    """The process of a `globalTid` or `globalPid`, with the machine above it."""
    return identity >> _THREAD_BITS


def _keep_ranges(file: sqlite3.Connection, has_strings: bool, processes: defaultdict[int, Recording]) -> None:
    columns = {row[1] for row in file.execute("PRAGMA table_info(NVTX_EVENTS)")}
    name = "text" if "text" in columns else "NULL"
    if has_strings and "textId" in columns:
        name = f"COALESCE({name}, (SELECT value FROM StringIds WHERE id = textId))"
    query = (
        f"SELECT start, end, {name}, globalTid FROM NVTX_EVENTS WHERE eventType IN {_RANGES} AND end IS NOT NULL"
    )
    for begin, end, text, thread in file.execute(query):
        if text:
            kept = processes[_process(thread)]
            kept.keep_range(text, begin / 1e9, end / 1e9)
            kept.require_room(_FEWER)


def _keep_work(
    file: sqlite3.Connection, table: str, processes: defaultdict[int, Recording], device_of: dict[int, int]
) -> None:
    name = "(SELECT value FROM StringIds WHERE id = shortName)" if table.endswith("KERNEL") else "NULL"
    for begin, end, number, process, device, text in file.execute(
        f"SELECT start, end, correlationId, globalPid, deviceId, {name} FROM {table}"
    ):
        kept = processes[_process(process)]
        kept.keep_work(number, begin / 1e9, end / 1e9, text or "", None)
        device_of.setdefault(_process(process), device)
        kept.require_room(_FEWER)


def _session(file: sqlite3.Connection, tables: list[str]) -> tuple[int, str]:
    """When the session began, in nanoseconds of the epoch (0 where it is not told), and on which host."""
    began = host = None
    if "TARGET_INFO_SESSION_START_TIME" in tables:
        began = file.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
    if "TARGET_INFO_SYSTEM_ENV" in tables:
        host = file.execute("SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'").fetchone()
    return int(began[0]) if began else 0, str(host[0]) if host and began else ""
