"""Exports of Nsight Systems: which rows become ranges, launches and work of which process."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.runs.readers import nsight
from ppsim.runs.readers.nsight import read_recordings
from ppsim.runs.readers.recording import DeviceWork
from ppsim.schedule.table import Action, Op

FIRST, SECOND = 5 << 24, 9 << 24
"""Processes 5 and 9: a thread's number has the process above its lowest 24 bits."""


def export_of(path: Path, statements: str) -> Path:
    with closing(sqlite3.connect(path)) as file:
        file.executescript(statements)
    return path


RANGES = f"""
CREATE TABLE StringIds (id INTEGER, value TEXT);
INSERT INTO StringIds VALUES (1, 'PP:0F3'), (2, 'nvjet_gemm'), (3, 'ncclDevKernel_SendRecv');
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER, globalTid INTEGER, eventType INTEGER);
INSERT INTO NVTX_EVENTS VALUES
  (1000000000, 3000000000, NULL, 1, {FIRST + 7}, 59), (4000000000, 6000000000, 'PP:0B3', NULL, {FIRST + 8}, 60),
  (500000000, 9000000000, 'iteration 12', NULL, {FIRST + 7}, 59), (1000000000, 2000000000, 'PP:1F3', 2, {SECOND}, 59),
  (1000000000, 2000000000, 'PP:0F4', NULL, {FIRST}, 58), (1000000000, NULL, 'PP:0F5', NULL, {FIRST}, 59),
  (1000000000, 2000000000, NULL, NULL, {FIRST}, 59);
"""
WORK = f"""
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL
  (start INTEGER, end INTEGER, correlationId INTEGER, globalPid INTEGER, deviceId INTEGER, shortName INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES
  (1500000000, 2500000000, 41, {FIRST}, 1, 2), (2500000000, 2750000000, 42, {FIRST}, 1, 3),
  (1500000000, 2000000000, 41, {SECOND}, 0, NULL), (0, 1, NULL, {FIRST}, 1, 2);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY
  (start INTEGER, end INTEGER, correlationId INTEGER, globalPid INTEGER, deviceId INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (3000000000, 3500000000, 43, {FIRST}, 1);
"""
LAUNCHES = f"""
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, correlationId INTEGER, globalTid INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES
  (1250000000, 41, {FIRST + 3}), (1750000000, 42, {FIRST + 3}), (1250000000, 41, {SECOND}), (9, NULL, {FIRST});
"""
SESSION = """
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1234567890);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT);
INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('OS', 'x'), ('Hostname', 'node3');
"""


def ranges_of(recording: Any) -> list[Any]:
    return [(begin, end, named.cell) for begin, end, _, named in recording.ranges]


def test_processes_come_in_the_order_of_their_devices_with_their_ranges_launches_and_work(tmp_path: Path) -> None:
    path = export_of(tmp_path / "run.sqlite", RANGES + WORK + LAUNCHES + SESSION)
    second, first = read_recordings(path)
    assert (second.rank, first.rank) == (0, 1)
    assert (second.source, first.source) == (f"{path}: process 9", f"{path}: process 5")
    assert (first.base_ns, first.host) == (1234567890, "node3")
    assert ranges_of(first) == [(1.0, 3.0, Action(Op.F, 0, 3)), (4.0, 6.0, Action(Op.B, 0, 3))]
    assert ranges_of(second) == [(1.0, 2.0, Action(Op.F, 1, 3))]
    assert first.steps == [(0.5, 9.0, 12)]
    assert first.launches == [(1.25, 41), (1.75, 42)]
    assert second.launches == [(1.25, 41)]
    assert first.device == {
        41: [DeviceWork(1.5, 2.5, False, None)], 42: [DeviceWork(2.5, 2.75, True, None)],
        43: [DeviceWork(3.0, 3.5, False, None)],
    }  # fmt: skip
    assert first.kernels.seconds == {"gemm": 1.0, "send-receive": 0.25, "memory": 0.5}
    assert second.kernels.seconds == {"memory": 0.5}


def test_a_file_of_one_process_has_no_rank_and_its_own_clock(tmp_path: Path) -> None:
    path = export_of(tmp_path / "run.sqlite", RANGES.replace("'PP:1F3'", "'other'"))
    [alone] = read_recordings(path)
    assert (alone.rank, alone.source, alone.host, alone.base_ns) == (None, str(path), str(path), 0)
    steps = RANGES.replace("'PP:", "'no ")
    [of_steps] = read_recordings(export_of(tmp_path / "steps.sqlite", steps))
    assert (of_steps.ranges, of_steps.steps) == ([], [(0.5, 9.0, 12)])
    [empty] = read_recordings(export_of(tmp_path / "none.sqlite", steps.replace("iteration 12", "x")))
    assert (empty.ranges, empty.steps, empty.rank) == ([], [], None)
    unnamed = SESSION.split("CREATE TABLE TARGET_INFO_SYSTEM_ENV")[0]
    [recorded] = read_recordings(export_of(tmp_path / "a.sqlite", RANGES.replace("'PP:1F3'", "'x'") + unnamed))
    assert (recorded.base_ns, recorded.host) == (1234567890, str(tmp_path / "a.sqlite"))


def test_names_are_texts_or_strings_of_the_table_that_there_is(tmp_path: Path) -> None:
    table = "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, {} globalTid INTEGER, eventType INTEGER);"
    row = "INSERT INTO NVTX_EVENTS VALUES (1000000000, 2000000000, {} 0, 59);"
    strings = "CREATE TABLE StringIds (id INTEGER, value TEXT); INSERT INTO StringIds VALUES (1, 'PP:0F3');"
    expected = [(1.0, 2.0, Action(Op.F, 0, 3))]
    only_text = table.format("text TEXT,") + row.format("'PP:0F3',")
    only_id = table.format("textId INTEGER,") + row.format("1,")
    for number, (content, ranges) in enumerate(
        ((only_text, expected), (only_text + strings, expected), (only_id + strings, expected), (only_id, []))
    ):
        [found] = read_recordings(export_of(tmp_path / f"{number}.sqlite", content))
        assert ranges_of(found) == ranges


def test_files_without_ranges_or_launches_and_computed_tables_are_refused(tmp_path: Path) -> None:
    for number, (content, sentence) in enumerate(
        (
            ("CREATE TABLE StringIds (id INTEGER);", "has no NVTX ranges"),
            (RANGES + WORK, "has kernels but no table CUPTI_ACTIVITY_KIND_RUNTIME"),
            ("CREATE VIEW NVTX_EVENTS AS SELECT 1;", "NVTX_EVENTS is computed, it is no plain table"),
            ("CREATE TABLE NVTX_EVENTS (a INTEGER, b INTEGER AS (a + 1));", "NVTX_EVENTS is computed"),
        )
    ):
        with pytest.raises(ConfigError, match=sentence):
            read_recordings(export_of(tmp_path / f"{number}.sqlite", content))


@pytest.mark.parametrize(("most", "parts"), [(1, "ranges"), (2, "work"), (6, "launches")])
def test_each_kind_of_row_is_limited(
    most: int, parts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 5 has two ranges, three pieces of work and two launches."""
    content = {"ranges": RANGES, "work": RANGES.replace("'PP:", "'") + WORK, "launches": RANGES + WORK + LAUNCHES}
    path = export_of(tmp_path / "run.sqlite", content[parts] + ("" if parts != "work" else LAUNCHES))
    monkeypatch.setattr("ppsim.runs.readers.recording.MOST_KEPT", most)
    with pytest.raises(ConfigError, match=rf"holds more than {most} .*: profile fewer steps"):
        read_recordings(path)
    monkeypatch.setattr("ppsim.runs.readers.recording.MOST_KEPT", 7)
    read_recordings(path)


def test_a_statement_is_interrupted_after_the_steps_of_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    class File:
        def set_progress_handler(self, handler: Any, steps: int) -> None:
            assert handler() is True
            self.steps = steps

        def setlimit(self, kind: int, most: int) -> None:
            self.limit = kind, most

    file: Any = File()
    nsight._limit_statements(file, 3_000)
    assert file.steps == 1_000_000 + 20 * 3_000
    assert file.limit == (sqlite3.SQLITE_LIMIT_LENGTH, nsight.CONFIG_BYTES)
    nsight._limit_statements(file, 10**9)
    assert file.steps == 2**31 - 1
