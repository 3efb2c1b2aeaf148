"""What the command line costs to start: nothing heavy is loaded before it is needed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import start

HEAVY = {"numpy", "numba", "pandas", "torch", "plotly", "matplotlib", "pydantic", "networkx"}

LOADED_AFTER = """
import contextlib, io, json, sys
from ppsim.cli import main
for line in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main(line)
print(json.dumps(sorted(name for name in sys.modules if "." not in name or name.startswith(("ppsim.", "numpy.ma")))))
"""


def loaded_after(*command_lines):
    """The top-level modules, and those of ppsim, that a fresh Python has loaded after command lines."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED_AFTER, json.dumps(command_lines)], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


def test_no_help_page_loads_anything_heavy():
    from ppsim.cli import main

    command_lines = [["--help"], ["--version"], *([name, "--help"] for name in main.commands)]
    assert len(command_lines) > 9
    loaded = loaded_after(*command_lines)
    assert loaded & HEAVY == set()
    assert {"ppsim", "click"} <= loaded


def test_the_page_of_all_commands_needs_not_even_click_and_is_that_of_the_command_line(monkeypatch):
    from ppsim.base.help_front_page import front_page
    from ppsim.cli import main
    from tests.cli.running import ppsim, words_of

    monkeypatch.setenv("COLUMNS", "90")
    run = "import sys; from ppsim.__main__ import main; main(); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", run, "--help"], capture_output=True, text=True, check=True)
    assert {*done.stderr.split()} & (HEAVY | {"click", "typing", "re"}) == set()
    assert done.stdout == front_page(88)
    assert words_of(done.stdout) == words_of(ppsim("--help").stdout)
    words = done.stdout.split()
    assert all(option in done.stdout for param in main.params for option in param.opts)
    assert set(main.commands) <= set(words)
    assert max(map(len, done.stdout.splitlines())) <= 88


def test_a_command_is_imported_when_it_is_asked_for():
    assert {name for name in loaded_after(["--help"]) if name.startswith("ppsim.cli.")} == set()
    assert "ppsim.cli.project" not in loaded_after(["tune", "--help"])


def test_a_projection_as_json_loads_no_torch_plots_or_data_frames():
    loaded = loaded_after(["project", "--pp", "2", "--num-microbatches", "4", "--json"])
    assert loaded & {"torch", "plotly", "matplotlib", "pandas", "networkx"} == set()


OF_JOBS = {"ppsim.costs.job", "ppsim.model.architecture", "ppsim.machine.cluster", "ppsim.parallel.layout"}


def test_a_projection_of_what_ships_checks_no_file_and_one_without_a_model_loads_none():
    plain = loaded_after(["project", "--pp", "2", "--num-microbatches", "4"])
    of_jobs = loaded_after(["project", "--model", "gpt2", "--cluster", "dgx-h100", "--gpus", "2", "--pp", "2"])
    unused = {"pydantic", "numba", "ppsim.runs.calibrate", "ppsim.simulation.cost_files", "statistics", "gzip"}
    assert (plain | of_jobs) & unused == set()
    assert of_jobs >= OF_JOBS
    assert (plain | of_jobs) & {"numpy.ma"} == plain & {"zipfile"} == set()
    assert plain & {*OF_JOBS, "ppsim.trainers.run_config", "ppsim.costs.layer_kernels"} == set()


@pytest.mark.parametrize(
    ("args", "code", "where", "words"),
    [
        (["--version"], 0, "stdout", "ppsim 0."),
        (["build", "1f1b", "--pp", "2", "--num-microbatches", "2"], 0, "stdout", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"),
        (["build", "1f1b", "--pp", "0", "--num-microbatches", "2"], 2, "stderr", "ppsim: pp must be at least 1: got 0\n"),
    ],
)  # fmt: skip
def test_python_m_ppsim_is_the_command_line(args, code, where, words):
    done = subprocess.run([sys.executable, "-m", "ppsim", *args], capture_output=True, text=True)
    assert done.returncode == code
    assert words in getattr(done, where)
    assert "Traceback" not in done.stderr


def test_an_error_that_nobody_foresaw_is_a_sentence_with_a_code_of_its_own(monkeypatch, tmp_path):
    from click.testing import CliRunner

    from ppsim.cli import main

    def fails(*_, **__):
        raise ZeroDivisionError("of a kind")

    monkeypatch.setattr("ppsim.catalog.build.build", fails)
    command = ["build", "1f1b", "--pp", "2", "--num-microbatches", "2"]
    told = CliRunner().invoke(main, command)
    assert told.exit_code == 3
    assert "(ZeroDivisionError: of a kind)" in told.stderr
    assert "ppsim --debug" in told.stderr
    assert "unexpected error in ppsim" in told.stderr
    assert "report" in told.stderr
    assert "Traceback" not in told.stderr
    assert "in fails" in CliRunner().invoke(main, ["--debug", *command]).stderr


def test_an_error_that_a_library_makes_of_an_interruption_ends_as_quietly(monkeypatch):
    from click.testing import CliRunner

    from ppsim.cli import main

    def fails(*_, **__):
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("the pool is closed")

    monkeypatch.setattr("ppsim.catalog.build.build", fails)
    told = CliRunner().invoke(main, ["build", "1f1b", "--pp", "2", "--num-microbatches", "2"])
    assert told.exit_code == 130
    assert told.stderr == ""


def test_an_interruption_while_the_command_line_is_parsed_ends_as_quietly(monkeypatch):
    from click.testing import CliRunner

    from ppsim.cli import main

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "parse_args", interrupted)
    ended = CliRunner().invoke(main, ["schedules"])
    assert (ended.exit_code, ended.output) == (130, "")


BUILD = [sys.executable, "-m", "ppsim", "build", "1f1b", "--pp", "8", "--num-microbatches", "4000"]


@pytest.mark.parametrize("waited_s", [0.03, 0.1, 0.3, 0.6])
def test_an_interruption_at_any_time_ends_quietly(waited_s):
    command = [
        sys.executable,
        "-c",
        "import runpy; print(1, flush=True); runpy.run_module('ppsim', run_name='__main__')",
    ]
    process = start([*command, *BUILD[3:]])
    process.stdout.readline()
    time.sleep(waited_s)
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=60)[1]
    if "<frozen runpy>" in told:  # on a busy machine, Python was still about to load the package
        assert "/ppsim/" not in told
        return
    assert told == ""
    assert process.returncode in (130, 0)  # it may have been ready before


def test_a_reader_that_goes_early_ends_it_as_it_ends_other_tools():
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}  # it loses the error
    with subprocess.Popen(BUILD, env=buffered, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize("command", [BUILD, [*BUILD[:3], "--help"], [*BUILD[:4], "--help"]])
def test_a_result_that_cannot_be_written_is_a_sentence(command):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "ppsim: cannot write the result: No space left on device\n")
