"""Read Nsight Systems' sqlite export (`nsys export --type sqlite`); each process is a rank.

Source: docs.nvidia.com/nsight-systems, "SQLite Schema Reference". Times are nanoseconds from the session's start.
`eventType` is 59 for push/pop and 60 for start/end ranges; `correlationId` links a launch to its work. `globalTid`
and `globalPid` hold the process in bits 24 to 47. Empty tables are not exported, so any table may be missing.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from ppsim.base.errors import ConfigError
from ppsim.base.limits import CONFIG_BYTES
from ppsim.runs.readers.patterns import PATTERNS, NameCounts, NamePattern
from ppsim.runs.readers.recording import Recording, limit_recording, trace_of
from ppsim.runs.traces import RankTrace

MAGIC = b"SQLite format 3\x00"
_RANGES = (59, 60)
_THREAD_BITS = 24
_LEAST_STEPS, _STEPS_PER_BYTE = 1_000_000, 20  # instructions of SQLite; reading a row of 30 bytes takes about 25
_FEWER = "nsys profile --capture-range cudaProfilerApi"
_ON_DEVICE = tuple(f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET"))
_READ = (
    "NVTX_EVENTS", "StringIds", "CUPTI_ACTIVITY_KIND_RUNTIME", *_ON_DEVICE,
    "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV",
)  # fmt: skip


def read_processes(path: str | Path, patterns: Sequence[NamePattern] = PATTERNS) -> list[RankTrace]:
    """Return the processes that ran pipeline actions, in the order of their devices.

    Raises `ConfigError` for other files, and for files without a range of an action.
    """
    return [trace_of(recording) for recording in read_recordings(path, patterns)]


def read_recordings(path: str | Path, patterns: Sequence[NamePattern] = PATTERNS) -> list[Recording]:
    """Return the processes that ran actions, or else had steps, in the order of their devices."""
    # A read-only URI, so that SQLite creates no file next to the export; `as_uri` quotes the path.
    uri = f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1"
    with limit_recording(str(path), "export of Nsight Systems"), closing(sqlite3.connect(uri, uri=True)) as file:
        _limit_statements(file, Path(path).stat().st_size)
        return _recordings(file, str(path), patterns)


def _limit_statements(file: sqlite3.Connection, num_bytes: int) -> None:
    """Interrupt statements that run longer than reading all rows takes, for example in a damaged file."""
    file.set_progress_handler(lambda: True, min(_LEAST_STEPS + _STEPS_PER_BYTE * num_bytes, 2**31 - 1))
    file.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, CONFIG_BYTES)


def _tables(file: sqlite3.Connection, path: str) -> list[str]:
    """Return the tables to read; raises `ConfigError` for a view or a computed column, which can be endless."""
    kinds = dict(file.execute(f"SELECT name, type FROM sqlite_master WHERE name IN {_READ}"))
    for name, kind in kinds.items():
        is_computed = any(hidden for *_, hidden in file.execute(f"PRAGMA table_xinfo({name})"))
        if kind != "table" or is_computed:
            raise ConfigError(f"{path} is no export of Nsight Systems: {name} is computed, it is no plain table")
    return list(kinds)


def _recordings(file: sqlite3.Connection, path: str, patterns: Sequence[NamePattern]) -> list[Recording]:
    tables = _tables(file, path)
    if "NVTX_EVENTS" not in tables:
        raise ConfigError(
            f"{path} has no NVTX ranges, by which passes are told: run nsys profile --trace cuda,nvtx on a program "
            f"that names them (Megatron-LM: --profile --nvtx-ranges)"
        )
    names = NameCounts(patterns)
    processes: defaultdict[int, Recording] = defaultdict(lambda: Recording(path, names))
    _keep_ranges(file, "StringIds" in tables, processes)
    device_of: dict[int, int] = {}
    for table in _ON_DEVICE:
        if table in tables:
            _keep_work(file, table, "StringIds" in tables, processes, device_of)
    if "CUPTI_ACTIVITY_KIND_RUNTIME" not in tables and device_of:
        raise ConfigError(
            f"{path} has kernels but no table CUPTI_ACTIVITY_KIND_RUNTIME, by which they are assigned to passes: "
            f"run nsys profile --trace cuda,nvtx, and nsys export --type sqlite without --tables"
        )
    if "CUPTI_ACTIVITY_KIND_RUNTIME" in tables:
        for begin, number, thread in file.execute(
            "SELECT start, CAST(correlationId AS INTEGER), globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME "
            "WHERE correlationId IS NOT NULL"
        ):
            kept = processes[_process(thread)]
            kept.launches.append((begin / 1e9, number))
            kept.require_room(_FEWER)
    active = [one for one in processes.items() if one[1].ranges] or [
        one for one in processes.items() if one[1].steps
    ]
    found = sorted((device_of.get(process, 0), process) for process, _ in active)
    base_ns, host = _session(file, tables)
    chosen = [processes[process] for _, process in found] or [Recording(path, names)]  # empty: trace_of refuses it
    for number, recording in enumerate(chosen):
        recording.base_ns, recording.host = base_ns, host or path
        recording.rank = number if len(chosen) > 1 else None
        recording.source = path if len(chosen) == 1 else f"{path}: process {found[number][1] & 0xFFFFFF}"
    return chosen


def _process(identity: int) -> int:
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
    file: sqlite3.Connection, table: str, has_strings: bool, processes: defaultdict[int, Recording],
    device_of: dict[int, int],
) -> None:  # fmt: skip
    is_named = has_strings and table.endswith("KERNEL")
    name = "(SELECT value FROM StringIds WHERE id = shortName)" if is_named else "NULL"
    for begin, end, number, process, device, text in file.execute(
        f"SELECT start, end, CAST(correlationId AS INTEGER), globalPid, deviceId, {name} FROM {table} "
        "WHERE correlationId IS NOT NULL"
    ):
        kept = processes[_process(process)]
        kept.keep_work(number, begin / 1e9, end / 1e9, text or "", None)
        device_of.setdefault(_process(process), device)
        kept.require_room(_FEWER)


def _session(file: sqlite3.Connection, tables: list[str]) -> tuple[int, str]:
    """Return the start in nanoseconds since the epoch (0 if unknown), and the host."""
    began = host = None
    if "TARGET_INFO_SESSION_START_TIME" in tables:
        began = file.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
    if "TARGET_INFO_SYSTEM_ENV" in tables:
        host = file.execute("SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'").fetchone()
    return int(began[0]) if began else 0, str(host[0]) if host and began else ""
