"""`-o` writes a whole file or none, and says before the work where it cannot."""

import json
import os
import re
import stat
import subprocess
import sys

import pytest

from ppsim.base.errors import ConfigError
from ppsim.base.files import write_atomically
from tests.cli.running import ppsim

COMMANDS = ["project --pp 2", "simulate T.csv --costs C.json"]


def everything_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("missing/out.json", "cannot write missing/out.json: there is no folder missing"),
        ("taken.json", "cannot write taken.json: it is a folder"),
        ("out.xlsx", "cannot tell what to write to out.xlsx: give it one of .html, .svg, .pdf, .png, .json, .csv, .json.gz"),
        ("out", "cannot tell what to write to out:"),
    ],
)  # fmt: skip
def test_an_output_that_cannot_be_written_is_refused_before_the_work(folder, command, output, sentence):
    (folder / "taken.json").mkdir()
    before = everything_in(folder)
    result = ppsim(*command.split(), "-o", "fine.json", "-o", output, code=2)
    assert sentence in result.stderr
    assert result.stdout == ""
    assert everything_in(folder) == before


@pytest.mark.parametrize(
    ("command", "output", "sentence"),
    [
        ("build zbv --pp 2 --num-microbatches 4", "missing/x.csv", "cannot write missing/x.csv: there is no folder missing"),
        ("build zbv --pp 2 --num-microbatches 4", "taken.json", "cannot write taken.json: it is a folder"),
        ("build zbv --pp 2 --num-microbatches 4", "x.html", "cannot tell what to write to x.html: give it one of .csv, .json"),
        ("export T.csv --to torch", "missing/x.csv", "cannot write missing/x.csv: there is no folder missing"),
        ("export T.csv --to torch-comms", "taken.json", "cannot write taken.json: it is a folder"),
        ("export T.csv --to torch", "n" * 300 + ".csv", "nnn.csv: File name too long"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_written_leaves_nothing_behind(folder, command, output, sentence):
    (folder / "taken.json").mkdir()
    before = everything_in(folder)
    assert sentence in ppsim(*command.split(), "-o", output, code=2).stderr
    assert everything_in(folder) == before


@pytest.mark.parametrize("command", [*COMMANDS, "build zbv --pp 2 --num-microbatches 4"])
def test_a_link_into_a_folder_that_is_missing_is_named_with_its_target(folder, command):
    (folder / "link.csv").symlink_to("/missing/x.csv")
    sentence = "cannot write link.csv: it is a link to /missing/x.csv, and there is no folder /missing"
    assert sentence in ppsim(*command.split(), "-o", "link.csv", code=2).stderr


@pytest.mark.parametrize("command", [*COMMANDS, "build zbv --pp 2 --num-microbatches 4"])
def test_a_folder_without_permission_is_refused(folder, command, monkeypatch):
    (folder / "locked").mkdir(mode=0o500)
    monkeypatch.setattr(os, "access", lambda place, _: not str(place).endswith("locked"))  # root may write anywhere
    assert "cannot write locked/x.csv" in ppsim(*command.split(), "-o", "locked/x.csv", code=2).stderr
    assert everything_in(folder / "locked") == []


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("simulate T.csv --costs C.json -o fine.json", "C.json"),
        ("simulate T.csv --costs C.json", "T.csv"),
        ("simulate T.csv --costs C.json", "./C.json"),
        ("simulate T.csv --costs C.json", "link.json"),
        ("simulate T.csv --costs link.json", "C.json"),
        ("project --pp 2 --profile C.json", "C.json"),
        ("project --pp 2 --cluster C.json --model gpt2", "C.json"),
        ("export T.csv --to torch", "T.csv"),
        ("build auto --pp 2 --num-microbatches 4 --costs C.json", "C.json"),
        ("compare C.json", "C.json"),
        ("compare C.json --fit fit.json", "fit.json"),
        ("calibrate C.json", "C.json"),
        ("calibrate .", "C.json"),
        ("train --schedule T.csv --emulate-costs C.json", "C.json"),
        ("tune --model gpt2 --gpus 4 --global-batch-size 8 --cluster C.json", "C.json"),
        ("tune --model gpt2 --gpus 4 --global-batch-size 8 --resume a.json", "a.json"),
        ("project --pp 2 -o a.json", "a.json"),
    ],
)
def test_no_output_replaces_an_input_or_another_output(folder, command, output):
    (folder / "link.json").symlink_to("C.json")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    told = ppsim(*command.split(), "-o", output, code=2).stderr
    assert f"cannot write {output}: this command reads it" in told or "two of them are one file" in told
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_figure_does_not_replace_the_timeline_it_is_made_of(folder):
    ppsim("simulate", "T.csv", "--costs", "C.json", "-o", "step.json")
    (folder / "step.svg").symlink_to("step.json")
    told = ppsim("figure", "timeline", "step.json", "-o", "step.svg", code=2).stderr
    assert "cannot write step.svg: this command reads it" in told


def test_outputs_are_announced_beside_the_result(folder):
    result = ppsim("simulate", "T.csv", "--costs", "C.json", "--json", "-o", "a.json", "-o", "b.csv")
    assert json.loads(result.stdout)["schedule"] == "T"
    assert result.stderr == "wrote a.json (report with the timeline)\nwrote b.csv (schedule table)\n"
    assert (folder / "b.csv").read_bytes() == (folder / "T.csv").read_bytes()


def test_the_json_output_is_the_report_with_what_it_takes_to_load_it_again(folder):
    from ppsim.runs.timeline_file import read_timeline
    from ppsim.simulation.report import report_of

    printed = json.loads(
        ppsim("simulate", "zbv.csv", "--costs", "C.json", "--channel", "pair", "--json", "-o", "a.json").stdout
    )
    written = json.loads((folder / "a.json").read_text())
    assert written["format"] == "ppsim-timeline/1"
    assert written["origin"] == "simulated"
    assert {key: written[key] for key in printed} == printed
    timeline, costs = read_timeline("a.json")
    assert costs.channel == "pair"
    assert report_of(timeline, costs) == printed


@pytest.mark.parametrize("command", ["project --pp 2 --num-microbatches 4", "simulate T.csv --costs C.json"])
def test_html_is_one_self_contained_file(folder, command):
    ppsim(*command.split(), "-o", "timeline.html")
    text = (folder / "timeline.html").read_text()
    assert "<html" in text[:2000].lower()
    assert 'src="http' not in text


def test_a_page_says_which_command_made_it_and_when(folder, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1763769600")
    ppsim("project", "--pp", 2, "--num-microbatches", 4, "-o", "a b.html")
    text = (folder / "a b.html").read_text()
    assert "<dt>command</dt><dd>ppsim project --pp 2 --num-microbatches 4 -o &#x27;a b.html&#x27;</dd>" in text
    assert "<dt>made</dt><dd>2025-11-22</dd>" in text
    assert re.search("<title>.*, 2025-11-22</title>", text)


# --- write_whole, on which all of it rests ---


def test_writing_replaces_the_old_content_and_leaves_no_other_file(tmp_path):
    path = tmp_path / "out.txt"
    write_atomically(path, "old")
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["out.txt"]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path):
    path = tmp_path / "out.txt"
    for mode in (0o600, 0o644):
        write_atomically(path, "old")
        path.chmod(mode)
        write_atomically(path, "new")
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_write_that_is_interrupted_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "out.txt"
    write_atomically(path, "old")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_a_disk_that_is_full_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "out.txt"
    write_atomically(path, "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ConfigError, match=r"cannot write .*out.txt: No space left on device"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_a_link_is_followed_and_a_long_name_is_no_obstacle(tmp_path):
    target = tmp_path / ("n" * 250 + ".txt")
    (tmp_path / "link").symlink_to(target)
    write_atomically(tmp_path / "link", "new")
    assert target.read_text() == "new"
    assert (tmp_path / "link").is_symlink()


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    """As /dev/stdout and /dev/null are, which root could replace."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(path, "through the pipe")
        assert os.read(reader, 100) == b"through the pipe"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_files_are_written_although_nobody_reads_the_report(tmp_path):
    """`ppsim project … -o FILE | head -1` closes the pipe early."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ppsim", "project", "--pp", "2", "-o", "x.json"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    process.wait(timeout=60)
    assert (tmp_path / "x.json").stat().st_size > 0
