"""What a terminal and a pipe show: lines that fit, numbers whole, progress only where somebody watches."""

import io
import json
import os
import pty
import re
import subprocess
import sys

import pytest

from ppsim import build, tune
from ppsim.results.text_layout import Page, TableLines, notable_items
from ppsim.schedule.grammar import format_table
from tests.cli.running import measured_from, ppsim, words_of

WIDE = """
project --pp 4
project --pp 4 --straggler 3:1.2 --tokens 1e12 --timeline
project --pp 4 --num-microbatches 4 --vpp 2 --schedule all
project --model llama3-8b --gpus 16 --pp 4 --vpp 2 --tp 2 --global-batch-size 64
tune --model gpt2 --gpus 4 --global-batch-size 16 --pp 2 --vpp 1 --tp 1 --recompute none --split auto,even
validate zero-bubble-sync
validate mlperf-405b --rows
schedules
schedules zbv
schedules dualpipe
schedules interleaved-1f1b
schedules seq1f1b
models
models deepseek-v3
clusters
clusters dgx-h100
clusters gb200-nvl72
check T.csv
check hangs.csv
simulate T.csv --costs C.json
simulate T.csv --costs C.json --timeline
simulate wide.csv --costs C.json --rows
compare measured.json
compare measured.json --fit overheads.json
calibrate measured.json
profile --model llama-mini --micro-batch-size 1,2 --seq-len 64,128 --tp 1,2 --recompute selective --dry-run -o p.json
""".strip().splitlines()


@pytest.fixture
def files(folder):
    """`folder` with a table of 64 ranks, one that deadlocks, and a run that passes for measured."""
    (folder / "wide.csv").write_text(format_table(build("1f1b", pp=64, microbatches=128)))
    rows = [["0F0", "0B0", "0F1", "0B1"], ["1F0", "1F1", "1B0", "1B1"]]
    (folder / "hangs.csv").write_text("\n".join(map(",".join, rows)) + "\n")
    ppsim("simulate", "T.csv", "--costs", "C.json", "-o", "measured.json")
    (folder / "measured.json").write_text(json.dumps(measured_from(folder / "measured.json")))
    return folder


@pytest.mark.parametrize("line", WIDE)
def test_no_line_in_a_pipe_is_wider_than_100_columns(files, line):
    printed = ppsim(*line.split(), code=1 if "hangs" in line else 0).stdout
    assert printed
    assert max(map(len, printed.splitlines())) <= 100
    assert "…" not in re.sub(r"→ … →|… \S+ µs|\S+ … ", "", printed), "no cell is cut off"


def test_of_many_ranks_the_ends_the_extremes_and_some_between_are_shown(files):
    printed = ppsim("simulate", "wide.csv", "--costs", "C.json").stdout
    ranks = re.findall(r"^(\d+) +\S+ s ", printed, flags=re.MULTILINE)
    assert ranks == ["0", "8", "16", "24", "32", "40", "48", "56", "63"]
    assert "9 of 64 ranks: rank 0 computes longest, rank 0 idles longest, rank 0 has the highest peak." in words_of(
        printed
    )
    every = ppsim("simulate", "wide.csv", "--costs", "C.json", "--rows").stdout
    assert re.findall(r"^(\d+) +\S+ s ", every, flags=re.MULTILINE) == [str(rank) for rank in range(64)]


def test_some_rows_hold_the_ends_and_the_notable_and_no_more_than_most_beside():
    for count in range(1, 200):
        shown = notable_items(count, [count // 3], most=16)
        assert {0, count // 3, count - 1} <= set(shown)
        assert len(shown) <= 18
        assert shown == sorted(set(shown))
        assert count > 16 or len(shown) == count


def test_a_timeline_is_drawn_where_it_can_be_read_and_where_it_is_asked_for(files):
    assert "one column is" in ppsim("simulate", "T.csv", "--costs", "C.json").stdout
    assert "one column is" not in ppsim("simulate", "T.csv", "--costs", "C.json", "--no-timeline").stdout
    assert "one column is" not in ppsim("simulate", "wide.csv", "--costs", "C.json").stdout
    assert "for most of it" in words_of(ppsim("simulate", "wide.csv", "--costs", "C.json", "--timeline").stdout)


def test_schedules_that_share_a_reason_share_a_line(folder):
    printed = words_of(
        ppsim("project", "--pp", 2, "--vpp", 1, "--num-microbatches", 2, "--schedule", "all", "--full").stdout
    )
    assert "gis, gis-h, hanayo: needs at least 2 stages per rank: got vpp=1 (nearest: 2)" in printed
    assert "\n* torch cannot run" in ppsim(
        "project", "--pp", 4, "--num-microbatches", 8, "--vpp", 2, "--schedule", "all", "--full"
    ).stdout  # fmt: skip


def test_a_circle_of_many_waits_is_told_in_part(folder):
    (folder / "long.csv").write_text(format_table(build("interleaved-1f1b", pp=16, vpp=2, microbatches=16)))
    printed = words_of(ppsim("check", "long.csv").stdout)
    assert (
        "; … 12 more, which --json has …; the transfer of 14F1 (rank 14 → 15) is queued after the transfer of 15F0"
        in printed
    )
    reasons = [verdict["reason"] for verdict in json.loads(ppsim("check", "long.csv", "--json").stdout)["verdicts"]]
    assert max(reason.count("; ") for reason in reasons) == 15


# --- in few columns ---


def columns_in(width, table, monkeypatch, capsys):
    """The lines of a table on a console of that width."""
    monkeypatch.setattr("ppsim.results.text_layout.WIDTH", width)
    Page().add(table)
    return capsys.readouterr().out.splitlines()


TABLE = TableLines(["rank", "time", "size", "place"], [["0", "1.00 s", "2.00 GiB", "3F0"]], spare=["place", "size"])


def test_a_table_that_is_too_wide_gives_up_blanks_first_and_then_named_columns(monkeypatch, capsys):
    assert columns_in(29, TABLE, monkeypatch, capsys) == [
        "rank    time      size  place",
        "0     1.00 s  2.00 GiB    3F0",
    ]
    assert columns_in(26, TABLE, monkeypatch, capsys) == [
        "rank   time     size place",
        "0    1.00 s 2.00 GiB   3F0",
    ]
    narrow = columns_in(22, TABLE, monkeypatch, capsys)
    assert narrow[:2] == ["rank   time     size", "0    1.00 s 2.00 GiB"]
    assert " ".join(narrow[2:]).startswith("columns omitted to fit 22 characters: place")


def test_text_on_the_left_wraps_before_a_number_is_cut(monkeypatch, capsys):
    table = TableLines(["shape", "time"], [["micro-batch 1, full recompute", "1.00 s"]])
    lines = columns_in(20, table, monkeypatch, capsys)
    assert lines == ["shape           time", "micro-batch   1.00 s", "1, full", "recompute"]


def test_a_number_is_not_parted_from_its_unit(monkeypatch, capsys):
    text = "lower bound 1.00 s, gap 5.00 % at 3.00 GiB"
    for width in range(12, 50):
        lines = columns_in(width, text, monkeypatch, capsys)
        assert " ".join(lines) == text
        assert not any(line.endswith(("1.00", "5.00", "3.00")) for line in lines)


# --- on a terminal ---


def on_a_terminal(command, columns=80, **environment):
    """What a command shows on a terminal of so many columns, standard error included."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ppsim", *command.split()], stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL,
        env=os.environ | {"COLUMNS": str(columns), "TERM": "xterm-256color", "COLORTERM": "truecolor"} | environment,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while more := os.read(ours, 65536):
            shown += more
    except OSError:  # the other side is closed
        pass
    os.close(ours)
    assert process.wait() == 0, shown.decode()
    return shown.decode().replace("\r\n", "\n")


def plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_a_terminal_has_colours_and_its_own_width_and_no_color_has_none(files):
    command = "simulate T.csv --costs C.json"
    shown = on_a_terminal(command)
    assert "\x1b[38;2;255;255;255;48;2;0;68;136mF0" in shown, "F in its colour"
    lines = plain(shown).splitlines()
    assert max(map(len, lines)) <= 80
    assert "0     48.0 s  10.8 s   4.00 s     4.88 s   625 ms  1.25 s  11.0 GiB  0F6" in lines
    assert max(map(len, plain(on_a_terminal(command, columns=120)).splitlines())) > 100
    assert "48;2;" not in on_a_terminal(command, NO_COLOR="1")


def test_progress_is_a_bar_on_a_terminal_and_nothing_in_a_pipe(files):
    command = "validate mlperf-405b"
    assert "0/1 sets" in plain(on_a_terminal(command)).split("largest errors")[0]
    assert ppsim(*command.split()).stderr == ""


def test_a_search_in_python_shows_its_progress_in_a_notebook_and_nothing_in_a_pipe(monkeypatch, capsys):
    words = {"model": "gpt2", "gpus": 2, "global_batch": 8, "tp": [1], "pp": [1], "micro_batch": [4]}
    tune(**words)
    assert capsys.readouterr().err == ""
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    with monkeypatch.context() as notebook:
        notebook.setenv("COLUMNS", "200")
        notebook.setattr(sys, "stderr", stream)
        tune(**words)
    assert "finding a lower bound of each" in stream.getvalue()
    calls = []
    tune(**words, progress=lambda decided, total, best_s: calls.append((decided, total, best_s)))
    assert capsys.readouterr().err == ""
    assert calls[-1][0] == calls[-1][1] > 0
