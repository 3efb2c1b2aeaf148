"""CSVs of passes: units, defaults, overlaps and wrong lines."""

from pathlib import Path
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.runs.readers import csv_rows
from ppsim.runs.readers.csv_rows import has_header, read_rows
from ppsim.runs.traces import RankTrace
from ppsim.schedule.table import NONE, Action, Op


@pytest.fixture(autouse=True)
def _with_steps_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "split_by_names", lambda trace: trace)
    monkeypatch.setattr(csv_rows, "require_like_steps", lambda trace: trace)


def read(folder: Path, text: str) -> list[RankTrace]:
    file = folder / "p.csv"
    file.write_text(text)
    return read_rows(file).traces


def passes_of(trace: RankTrace) -> list[Any]:
    return [[(one.begin, one.end, one.cell) for one in step] for step in trace.steps]


@pytest.mark.parametrize(
    ("suffix", "seconds"), [("", 1.0), ("_s", 1.0), ("_ms", 1e-3), ("_us", 1e-6), ("_ns", 1e-9)]
)
def test_times_are_in_the_unit_of_their_columns(suffix: str, seconds: float, tmp_path: Path) -> None:
    header = f"rank,kind,start{suffix},end{suffix}"
    assert has_header(header)
    [trace] = read(tmp_path, f"{header}\n0,F,3,7\n")
    assert passes_of(trace) == [
        [(pytest.approx(3 * seconds), pytest.approx(7 * seconds), Action(Op.F, NONE, NONE))]
    ]


@pytest.mark.parametrize(
    ("header", "is_one"),
    [
        (" RANK , Kind,START,end", True), ("rank,kind,start_ms,end_ms,more", True), ("rank,kind,start,end_s", False),
        ("kind,start,end", False), ("rank,start,end", False), ("rank,kind,start_h,end_h", False),
    ],
)  # fmt: skip
def test_a_header_has_a_rank_a_kind_and_times(header: str, is_one: bool) -> None:
    assert has_header(header) is is_one


def test_passes_are_sorted_by_rank_step_and_start_with_defaults(tmp_path: Path) -> None:
    text = """\
rank, step, kind, stage, microbatch, start, end, clock
3, 2, B, 7, 5, 30, 31, b
3, 1, F, 7, 5, 12, 13, b
1, , forward, , , 4, 5,
3, 1, I, 7, 4, 10, 12, b
"""
    first, second = read(tmp_path, text)
    assert (first.rank, first.host, first.source, first.on_device) == (
        1,
        "",
        f"{tmp_path / 'p.csv'}: rank 1",
        False,
    )
    assert (second.rank, second.host) == (3, "b")
    assert passes_of(first) == [[(4.0, 5.0, Action(Op.F, NONE, NONE))]]
    assert passes_of(second) == [
        [(10.0, 12.0, Action(Op.I, 7, 4)), (12.0, 13.0, Action(Op.F, 7, 5))], [(30.0, 31.0, Action(Op.B, 7, 5))],
    ]  # fmt: skip
    recordings = read_rows(tmp_path / "p.csv")
    assert (recordings.kind, recordings.passes_by, recordings.source) == (
        "CSV of passes", "its times", str(tmp_path / "p.csv"),
    )  # fmt: skip


def test_steps_without_numbers_are_told_apart_by_their_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(csv_rows, "split_by_names", lambda trace: calls.append("split") or trace)
    monkeypatch.setattr(csv_rows, "require_like_steps", lambda trace: calls.append("alike") or trace)
    header = "rank,step,kind,stage,microbatch,start,end\n"
    read(tmp_path, header + "0,,F,0,0,1,2\n")
    read(tmp_path, header + "0,1,F,0,0,1,2\n0,2,F,0,0,3,4\n")
    read(tmp_path, header + "0,1,F,,,1,2\n0,2,F,,,3,4\n")
    assert calls == ["split", "alike"]


def test_two_passes_may_overlap_by_a_thousandth_of_the_shorter_one(tmp_path: Path) -> None:
    header = "rank,kind,start,end\n"
    [trace] = read(tmp_path, header + "0,F,0,1000\n0,B,999.9,1100\n")
    assert [(begin, end) for begin, end, _ in passes_of(trace)[0]] == [(0.0, 1000.0), (1000.0, 1100.0)]
    for begin in (999.8, 500.0):
        with pytest.raises(
            ConfigError, match=rf"rank 0 has two passes at once, F from 0 s to 1000 s and B from {begin:g}"
        ):
            read(tmp_path, f"{header}0,F,0,1000\n0,B,{begin},1100\n")
    with pytest.raises(ConfigError, match=r"two passes at once, F from 0 s to 0\.5 s and B from 0 s"):
        read(tmp_path, header + "0,B,0,1\n0,F,0,0.5\n")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kind,start,end\n", "lacks the column rank: there must be rank, kind, start, end"),
        ("rank,kind,end\n", "lacks the column start"),
        ("rank,start_ms,end_ms\n", "lacks the column kind"),
        ("rank,kind,start,end\n", "has no passes below its header"),
        ("rank,kind,start,end\n0,X,1,2\n", "p.csv: line 2: kind 'X' is none of "),
        ("rank,kind,start,end\n0,F,1,2\n0,F,a,2\n", "line 3: start and end must be numbers: got 'a' and '2'"),
        ("rank,kind,start,end\n0,F,1\n", "line 2: start and end must be numbers: got '1' and ''"),
        ("rank,kind,start,end\n0,F,2,1\n", "end not before start: got 2.0 and 1.0"),
        ("rank,kind,start,end\n0,F,1,inf\n", "end not before start: got 1.0 and inf"),
        ("rank,kind,start,end\n,F,1,2\n", "rank must be a whole number from 0 on: got ''"),
        ("rank,kind,start,end\n-1,F,1,2\n", "rank must be a whole number from 0 on: got '-1'"),
        ("rank,kind,start,end,stage\n0,F,1,2,99999999999999999999\n", "stage must be a whole number from 0 on"),
        ("rank,kind,start,end,clock\n0,F,1,2,a\n0,F,3,4,b\n", "line 3: rank 0 has two clocks"),
    ],
)
def test_a_wrong_line_is_named(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read(tmp_path, text)


def test_lines_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "rank,kind,start,end\n0,F,1,2\n0,F,3,4\n"
    monkeypatch.setattr(csv_rows, "MOST_KEPT", 3)
    assert len(read(tmp_path, text)) == 1
    monkeypatch.setattr(csv_rows, "MOST_KEPT", 2)
    with pytest.raises(ConfigError, match=r"p.csv has more than 2 lines"):
        read(tmp_path, text)


def test_a_pass_without_a_step_is_of_step_0(tmp_path: Path) -> None:
    [trace] = read(tmp_path, "rank,step,kind,start,end\n0,,F,1,2\n0,0,B,3,4\n0,1,F,5,6\n")
    assert [len(step) for step in trace.steps] == [2, 1]
