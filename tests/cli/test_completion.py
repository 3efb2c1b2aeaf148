"""A shell completes commands, options and their values."""

import os
import subprocess
import sys

import pytest
from click.shell_completion import BashComplete, FishComplete, get_completion_class

from ppsim.catalog.build import every_schedule
from ppsim.cli import main
from ppsim.cli.completion import use_files_otherwise
from ppsim.machine.cluster_files import packaged_clusters


@pytest.fixture(autouse=True)
def own_classes(monkeypatch):
    """Click's classes are there again behind each test."""
    monkeypatch.setattr("click.shell_completion._available_shells", {"bash": BashComplete, "fish": FishComplete})
    use_files_otherwise()


def completed(*args, shell="bash"):
    """What stands behind what was typed, the last word unfinished, by kind of completion."""
    *before, begun = args
    asked = get_completion_class(shell)(main, {}, "ppsim", "_PPSIM_COMPLETE")
    return [(item.type, item.value) for item in asked.get_completions(before, begun)]


VALUES = {
    "a command": (["cal"], ["calibrate"]),
    "a command of a group": (["figure", "par"], ["pareto"]),
    "an option": (["project", "--glob"], ["--global-batch-size"]),
    "a choice": (["project", "--runtime", "m"], ["megatron"]),
    "a schedule": (["project", "--schedule", "zb-h"], ["zb-h1", "zb-h2"]),
    "a schedule in capitals": (["project", "--schedule", "ZBV"], ["zbv", "zbv-fixed"]),
    "a list, without what it has": (["project", "--schedule", "zbv,zbv"], ["zbv,zbv-fixed"]),
    "all of them": (["project", "--schedule", "al"], ["all"]),
    "a search to build": (["build", "au"], ["auto"]),
    "a schedule to print": (["schedules", "dual"], ["dualpipev", "dualpipe"]),
    "a range of schedules": (["tune", "--schedule", "1f1b,zb-h"], ["1f1b,zb-h1", "1f1b,zb-h2"]),
    "a model": (["tune", "--model", "llama3-"], ["llama3-8b", "llama3-70b", "llama3-405b"]),
    "a model to print": (["models", "grok"], ["grok-1", "grok-2"]),
    "a cluster": (["project", "--cluster", "dgx-h1"], ["dgx-h100"]),
    "a cluster to print": (["clusters", "eos"], ["eos-h100"]),
    "a recipe": (
        ["project", "--recipe", "deepseek-v3/b200/n"],
        ["deepseek-v3/b200/nvfp4", "deepseek-v3/b200/nvfp4/v1"],
    ),
    "a profile": (["project", "--profile", "cpu"], ["cpu-gpt-mini"]),
}


@pytest.mark.parametrize("case", VALUES)
def test_a_shell_completes_(case):
    typed, values = VALUES[case]
    assert completed(*typed) == [("plain", value) for value in values]


def test_every_name_that_there_is_is_offered():
    assert {value for _, value in completed("project", "--schedule", "")} == {
        *every_schedule(),
        "all",
        "any",
        "auto",
    }
    assert {value for _, value in completed("schedules", "")} == set(every_schedule())
    assert {value for _, value in completed("project", "--cluster", "")} == set(packaged_clusters())


@pytest.mark.parametrize("typed", [["check", "T"], ["project", "-o", "time"], ["project", "--model", "./conf"]])
def test_what_is_no_name_is_a_file(typed):
    assert completed(*typed) == [("file", typed[-1])]


def test_an_option_that_there_is_not_is_no_file():
    assert completed("project", "--no-such") == []


def test_fish_takes_a_value_with_commas_whole():
    asked = get_completion_class("fish")(main, {}, "ppsim", "_PPSIM_COMPLETE")
    assert 'string split -m 1 ","' in asked.source()


def test_bash_itself_completes(tmp_path):
    """What the line of the docs sets up, called as bash calls it at a press of TAB."""
    command = tmp_path / "ppsim"
    program = "import sys; sys.argv[0] = 'ppsim'; from ppsim.__main__ import main; main()"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{program}" "$@"\n')
    command.chmod(0o755)
    script = """
        eval "$(_PPSIM_COMPLETE=bash_source ppsim)"
        complete -p ppsim
        COMP_WORDS=(ppsim project --schedule 1f1b,zb-h) COMP_CWORD=3
        _ppsim_completion ppsim
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "complete -o nosort -F _ppsim_completion ppsim", "1f1b,zb-h1", "1f1b,zb-h2",
    ]  # fmt: skip
