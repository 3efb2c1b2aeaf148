"""Help is true: its examples are understood and run, and every option says what it is."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from ppsim.cli import main
from tests.cli.conftest import ANSWER
from tests.cli.running import measured_from, ppsim, words_of

ROOT = Path(__file__).parents[2]
NEED_TORCH = ("train", "profile")
LARGE = ("tune", "validate", "warm-up")  # test_typed.py has smaller ones
SERVE = ("serve",)  # run by tests/app: it ends when it is interrupted


def leaves_of(group, *above):
    """Every command by its words, those of groups as `figure memory`."""
    found = {}
    for name, command in group.commands.items():
        words = (*above, name)
        found[" ".join(words)] = command
        if isinstance(command, click.Group):
            found |= leaves_of(command, *words)
    return found


COMMANDS = leaves_of(main)
GROUPS = tuple(name for name, command in COMMANDS.items() if isinstance(command, click.Group))


def examples_of(name):
    """The example command lines in a command's help, or in that of `ppsim` itself for an empty name."""
    text = ppsim(*name.split(), "--help").stdout
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith(("ppsim ", "torchrun "))]
    return [line.split("  ")[0] for line in lines]


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_starts_with_three_examples(name):
    assert len(examples_of(name)) == 3


EXAMPLES = list(dict.fromkeys(line for name in ["", *COMMANDS] for line in examples_of(name)))


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_example_is_understood(folder, line):
    name, *words = shlex.split(line.partition("ppsim ")[2])
    command = main.commands[name]
    while isinstance(command, click.Group):
        name, *words = words
        command = command.commands[name]
    assert command.make_context(name, words).params


def run_example_of(name):
    """The first example of a command, or the first that also writes what it prints."""
    first = examples_of(name)[0]
    return next((line for line in EXAMPLES if line.startswith(f"{first} -o ")), first)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in NEED_TORCH + LARGE + SERVE + GROUPS])
def test_an_example_of_every_command_runs(folder, name):
    shutil.copytree(ROOT / "tests" / "runs" / "data" / "primus_pp8_1f1b", folder / "pp_dump")
    (folder / "tune.json").write_text(json.dumps(ANSWER))
    (folder / "jobs.yaml").write_text("{model: gpt2, gpus: [1, 2], pp: 1}")
    ppsim("simulate", "T.csv", "--costs", "C.json", "-o", "projected.json")
    (folder / "measured.json").write_text(json.dumps(measured_from(folder / "projected.json")))
    line = run_example_of(name)
    ppsim(*shlex.split(line)[1:])
    outputs = [
        word for before, word in zip(line.split(), line.split()[1:], strict=False) if before in ("-o", "--fit")
    ]
    assert all((folder / output).stat().st_size > 0 for output in outputs)


@pytest.mark.torch
@pytest.mark.parametrize("line", examples_of("profile"))
def test_every_example_of_profile_says_what_it_would_measure(line):
    pytest.importorskip("torch")
    assert "about" in ppsim(*shlex.split(line)[1:], "--dry-run").stdout


def full_help(name):
    """The help of a command with every option."""
    has_short = any(parameter.name == "help_all" for parameter in COMMANDS[name].params)
    return ppsim(*name.split(), "--help-all" if has_short else "--help").stdout


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_a_terminal_of_80_columns(name):
    text = ppsim(*name.split(), "--help").stdout + (full_help(name) if name else "")
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("name", ["project", "tune"])
def test_a_short_help_has_thirty_options_in_fifty_lines_and_says_where_the_rest_is(name):
    short, long = ppsim(name, "--help").stdout, full_help(name)
    assert len(short.splitlines()) <= 50
    assert short.startswith(f"Usage: ppsim {name} ")
    assert len(COMMANDS[name].common) <= 30
    assert "--help-all" in short
    assert len(long.splitlines()) > 2.5 * len(short.splitlines())
    for option in re.findall(r"^  (--[a-z-]+)", short, flags=re.MULTILINE):
        assert re.search(rf"^  (?:-o, )?{option}\b", long, flags=re.MULTILINE), option


def test_help_whose_reader_goes_early_is_fine():
    for page in ("--help", "project --help-all", "build --help"):
        command = f"'{sys.executable}' -m ppsim {page} | true; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_listed_once_and_says_what_its_value_is(name):
    options = full_help(name)
    assert " INTEGER" not in options
    assert " FLOAT" not in options
    for parameter in COMMANDS[name].params:
        if isinstance(parameter, click.Option):
            listed = re.findall(rf"^  (?:-o, )?{parameter.opts[-1]}\b(?!-)", options, flags=re.MULTILINE)
            assert len(listed) == (not parameter.hidden), f"{name} {parameter.opts[-1]}"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_sentence(name):
    for parameter in COMMANDS[name].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts[0]} has no help"
            sentence = re.sub(r" \[default[^]]*: [^]]+\]$", "", parameter.help)
            assert sentence.endswith("."), f"{name} {parameter.opts[0]}: {parameter.help}"


def test_the_exit_codes_are_in_the_help():
    text = words_of(ppsim("--help").stdout)
    assert "0 fine; 1 valid but impossible" in text
    assert "2 wrong usage or file" in text


def test_an_option_that_runs_code_of_a_file_says_so():
    for command in ("profile", "train"):
        assert "runs its code" in next(one.help for one in COMMANDS[command].params if one.name == "module")
