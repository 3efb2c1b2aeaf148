"""What the command line costs to start: nothing heavy is loaded before it is needed."""

import json
import subprocess
import sys

import pytest

HEAVY = {"numpy", "numba", "pandas", "torch", "plotly", "matplotlib", "pydantic", "rich", "networkx"}

LOADED_AFTER = """
import contextlib, io, json, sys
from ppsim.cli import main
for line in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main(line)
print(json.dumps(sorted(name for name in sys.modules if "." not in name)))
"""


def loaded_after(*command_lines):
    """The top-level modules that a fresh Python has loaded after running these command lines."""
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


def test_a_projection_as_json_loads_no_torch_plots_or_data_frames():
    loaded = loaded_after(["project", "--pp", "2", "--microbatches", "4", "--json"])
    assert loaded & {"torch", "plotly", "matplotlib", "pandas", "networkx", "rich"} == set()


@pytest.mark.parametrize(
    ("args", "code", "where", "words"),
    [
        (["--version"], 0, "stdout", "ppsim 0."),
        (["build", "1f1b", "--pp", "2", "--microbatches", "2"], 0, "stdout", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"),
        (["build", "1f1b", "--pp", "0", "--microbatches", "2"], 2, "stderr", "ppsim: pp must be at least 1: got 0\n"),
    ],
)  # fmt: skip
def test_python_m_ppsim_is_the_command_line(args, code, where, words):
    done = subprocess.run([sys.executable, "-m", "ppsim", *args], capture_output=True, text=True)
    assert done.returncode == code
    assert words in getattr(done, where)
    assert "Traceback" not in done.stderr
