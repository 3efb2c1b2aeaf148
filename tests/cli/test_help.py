"""Help is true: its examples run, and every option says what it is."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from ppsim import StageCosts, simulate
from ppsim.cli import main
from ppsim.schedule.grammar import read_schedule
from tests.cli.conftest import ANSWER, COSTS, VALIDATION
from tests.cli.running import ppsim, words_of
from tests.runtime.traces import traces_of, written

ROOT = Path(__file__).parents[2]
NEED_TORCH = ("train", "profile")
SERVE = ("serve",)  # run by tests/app: it ends when it is interrupted


def leaves_of(group, *above):
    """Every command by its words, those of groups as `figure bubble`."""
    found = {}
    for name, command in group.commands.items():
        words = (*above, name)
        found[" ".join(words)] = command
        if isinstance(command, click.Group):
            found |= leaves_of(command, *words)
    return found


COMMANDS = leaves_of(main)


def examples_of(name):
    """The example command lines in a command's help, or in that of `ppsim` itself for an empty name."""
    text = ppsim(*name.split(), "--help").stdout
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith(("ppsim ", "torchrun "))]
    return [line.split("  ")[0] for line in lines]


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_starts_with_three_examples(name):
    assert len(examples_of(name)) == 3


EXAMPLES = dict.fromkeys(
    line for name in ["", *COMMANDS] if name not in NEED_TORCH + SERVE for line in examples_of(name)
)
RUNNABLE = [
    line
    for line in EXAMPLES
    if line != "ppsim validate"  # all sets: tests/validation projects them once for many tests
    and not any(longer.startswith(f"{line} -o ") for longer in EXAMPLES)  # which runs the same and writes it too
]


@pytest.mark.parametrize("line", RUNNABLE)
def test_every_example_runs(folder, line):
    (folder / "schedules").mkdir()
    shutil.copy(ROOT / "schedules" / "zbv_pp4_v2_m8.csv", folder / "schedules")
    shutil.copy(ROOT / "profiles" / "zb-a100-1.5b.json", folder / "cpu.json")
    (folder / "overheads.json").write_text('{"action_overhead_s": 0.001, "hop_overhead_s": 0.002}')
    ppsim("simulate", "T.csv", "--costs", "C.json", "-o", "projected.json")
    measured = json.loads((folder / "projected.json").read_text()) | {"origin": "measured"}
    (folder / "measured.json").write_text(json.dumps(measured))
    if line.startswith("ppsim figure"):  # tune writes a tune.json itself, and goes on from one
        (folder / "tune.json").write_text(json.dumps(ANSWER))
        (folder / "validation.json").write_text(json.dumps(VALIDATION))
    for name in ("small.json", "large.json"):
        shutil.copy(folder / "measured.json", folder / name)
    written(
        traces_of([simulate(read_schedule("T.csv"), StageCosts(**COSTS))] * 2, gap_s=0.5, cuda=False),
        folder / "traces",
    )
    shutil.copytree(ROOT / "tests" / "runs" / "data" / "primus_pp8_1f1b", folder / "pp_dump")
    (folder / "train.log").write_text(2 * " iteration 1/ 2 | elapsed time per iteration (ms): 3240.1 |\n")
    if "--trace config.json" in line:
        pytest.importorskip("transformers", reason="a traced model needs transformers")
        (folder / "config.json").write_text('{"model_type": "helium", "num_hidden_layers": 2}')
    ppsim(*shlex.split(line)[1:])
    outputs = [
        word for before, word in zip(line.split(), line.split()[1:], strict=False) if before in ("-o", "--fit")
    ]
    assert all((folder / output).stat().st_size > 0 for output in outputs)


@pytest.mark.parametrize("line", [line for name in NEED_TORCH for line in examples_of(name)])
def test_every_example_that_needs_torch_is_understood(line):
    """The fast form: the words are parsed, and `profile` says what it would measure; tests of torch run the rest."""
    words = shlex.split(line.split("ppsim ")[1])
    command = main.commands[words[0]]
    assert command.make_context(words[0], words[1:]).params
    if words[0] == "profile":
        pytest.importorskip("torch")
        assert "about" in ppsim(*words, "--dry-run").stdout


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
