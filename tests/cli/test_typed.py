"""Every option of every command is typed at least once, and does what its case says."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest

from ppsim.base.option_declarations import declared_options
from ppsim.cli import main
from ppsim.projection.options import PlanOptions
from ppsim.tuning.options import TuneOptions
from tests.cli import typed
from tests.cli.running import ppsim


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The current folder has the files that the cases name; `tune` refines nothing, which takes most of its time."""
    folder = tmp_path_factory.mktemp("typed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        typed.write_inputs(folder)
        patch.setattr("ppsim.tuning.search.refine", lambda *_: None)
        yield


@cache
def outcome_of_base(base: str) -> tuple[str, list[bytes]]:
    return typed.outcome_of(typed.Typed(base, ""))


@pytest.mark.usefixtures("inputs")
@pytest.mark.parametrize("case", list(typed.typed()), ids=lambda case: f"{case.base} {case.option}")
def test_an_option_is_accepted_as_documented_and_changes_the_result(case: typed.Typed) -> None:
    outcome = typed.outcome_of(case) if case.option else outcome_of_base(case.base)
    assert not case.option or (outcome != outcome_of_base(case.base)) == case.changes


LONG = {
    PlanOptions: (
        "project --model gpt --layers 4 --hidden 256 --heads 4 --kv-heads 2 --vocab 1000 --gpus 16 --tp 2 --pp 2 --cp 2 --vpp 2 "
        "--group-size 2 --micro-batch-size 1 --global-batch-size 8 --seq-len 512 --offload-modules core_attn --max-inflight-offloads 2 "
        "--fp8-param-gather --json",
        "project --model qwen3-30b-a3b --layers 4 --gpus 8 --pp 2 --ep 2 --etp 1 --tp 2 --global-batch-size 8 --seq-len 256 "
        "--calibration overheads.json --json",
    ),
    TuneOptions: (
        "tune --model gpt --layers 4 --hidden 256 --heads 4 --kv-heads 2 --vocab 1000 --gpus 8 --tp 2 --pp 2 --cp 1 --vpp 1 "
        "--micro-batch-size 1,2 --schedule 1f1b --global-batch-size 8 --seq-len 256 --fp8-param-gather --json",
        "tune --model qwen3-30b-a3b --layers 4 --gpus 8 --pp 2 --ep 2 --etp 1 --tp 2 --vpp 1 --micro-batch-size 1 --schedule 1f1b "
        "--global-batch-size 8 --seq-len 256 --calibration overheads.json --json",
    ),
}  # fmt: skip


def test_project_and_tune_have_the_same_further_names() -> None:
    ranges, plans = declared_options(TuneOptions), declared_options(PlanOptions)
    assert {name: ranges[name].option.also for name in ranges if name in plans} == {
        name: plans[name].option.also for name in ranges if name in plans
    }


@pytest.mark.usefixtures("inputs")
@pytest.mark.parametrize("declared", LONG)
def test_each_further_name_of_an_option_gives_the_same_result(declared: type) -> None:
    further = {word.flag: word.option.also for word in declared_options(declared).values() if word.option.also}
    untyped = set(further)
    for line in LONG[declared]:
        untyped -= set(line.split())
        renamed = [name for word in line.split() for name in further.get(word, (word,))]
        typed_long, typed_short = (json.loads(ppsim(*words).stdout) for words in (renamed, line.split()))
        assert without_time(typed_long) == without_time(typed_short)
    assert not untyped


def without_time(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if not name.endswith("elapsed_s")}


def test_two_names_of_one_option_must_agree() -> None:
    line = "project --model gpt2 --pp 2 --micro-batch-size 2 --micro-batch"
    told = ppsim(*line.split(), "4", code=2).stderr
    assert "--micro-batch-size 2 and --micro-batch 4" in told
    ppsim(*line.split(), "2")


def commands(group: click.Group, *above: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *above, name)
        else:
            yield " ".join((*above, name)), command


@cache
def typed_lines() -> list[list[str]]:
    return [case.words for case in typed.typed()] + [
        line.split() for line in (*TRAINING, *PROFILING, *TRACING, *SERVING, *SWEEPING)
    ]


def typed_flags(command: str) -> set[str]:
    return {
        word for words in typed_lines() if words[: len(command.split())] == command.split() for word in words
        if word.startswith("-")
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "command"), list(commands(main)), ids=lambda one: one if isinstance(one, str) else ""
)
def test_every_option_has_a_case(name: str, command: click.Command) -> None:
    given = typed_flags(name)
    for option in command.params:
        if isinstance(option, click.Option):
            assert given & set(option.opts), f"{name} {option.opts[0]}: add a case to tests/cli/typed.py"
            off = set(option.secondary_opts)
            assert not off or given & off, f"{name} {option.secondary_opts[0]}: add a case to tests/cli/typed.py"


TRAINING = (
    "train --schedule 1f1b --pp 2 --vpp 1 --num-microbatches 2 --partitions 2 --device cpu --threads 1 --timeout 60 --model nano "
    "--layers 4 --hidden 32 --heads 2 --seq-len 16 --micro-batch-size 1 --dtype float32 --recompute full --split 1,3 --seed 1 "
    "--steps 1 --warm-up 1 --learning-rate 0.01 --receives torch --timeline --rows --json -o m.json",
    "train --schedule 1f1b --pp 2 --num-microbatches 2 --partitions 2 --model nano --emulate-costs M.json "
    "--straggling-step 0:2 --no-timeline",
    "train --schedule 1f1b --pp 2 --num-microbatches 2 --nproc 2 --model nano --steps 1 --warm-up 1 --verify --trace traces",
    "train --schedule 1f1b --pp 2 --num-microbatches 2 --partitions 2 --model nano --layers 4 --steps 1 --plan P.toml",
    "train --schedule 1f1b --pp 2 --num-microbatches 2 --partitions 2 --module own.py:stages --steps 1 --split even",
)
PROFILING = (
    "profile --model nano --layers 2 --hidden 32 --heads 2 --optimizer none --micro-batch-size 1,2 --seq-len 16 --tp 1 --cp 1 --ep 1 "
    "--recompute none --dtype float32 --device cpu --threads 1 --pp 1 --repeats 1 --warm-up 0 "
    "--start-over --time-limit 60 -o p.json",
    "profile --model nano --facts --compile --cuda-graphs --device cuda --dry-run -o q.json",
    "profile --suite smoke --dry-run -o suite",
    "profile --module own.py:stages --repeats 1 --warm-up 0 -o own.json",
)
TRACING = ("models --trace olmo.json --seq-len 1024 --json -o olmo-model.json",)
SWEEPING = (
    "sweep jobs.csv -o a.csv --backend dask --scheduler tcp://head:8786",
    "sweep jobs.csv -o a.csv --backend ray --address auto",
)
SERVING = ("serve --port 0 --open -- --pp 2 --num-microbatches 4", "serve --port 0 --no-open")
OWN = """import torch
from torch import nn


def stages(layers=(4,)):
    last = len(layers) - 1
    modules = [nn.Sequential(*(nn.Linear(8, 8) for _ in range(number + (place in (0, last))))) for place, number in enumerate(layers)]
    return modules, torch.randn(16, 8), torch.randn(16, 8), nn.MSELoss()
"""
MILLISECONDS = {"forward_s": 1e-3, "backward_input_s": 1e-3, "backward_weight_s": 1e-3}


@pytest.mark.torch
@pytest.mark.usefixtures("inputs")
@pytest.mark.parametrize("line", [*TRAINING, *PROFILING])
def test_options_of_commands_that_compute_are_accepted_together(line: str) -> None:
    pytest.importorskip("torch")
    Path("own.py").write_text(OWN)
    Path("M.json").write_text(json.dumps(MILLISECONDS))
    Path("traces").mkdir(exist_ok=True)
    words = line.split()
    result = ppsim(*words)
    assert result.stdout
    if "-o" in words and "--dry-run" not in words:
        assert Path(words[-1]).stat().st_size > 0
    if "--trace" in words:
        assert list(Path("traces").iterdir())


@pytest.mark.torch
@pytest.mark.usefixtures("inputs")
@pytest.mark.parametrize("line", TRACING)
def test_options_of_a_trace_are_accepted_together(line: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    Path("olmo.json").write_text(json.dumps({"model_type": "olmo2", "num_hidden_layers": 2}))
    words = line.split()
    counts = json.loads(ppsim(*words).stdout)
    assert counts["sequence_length"] == 1024
    stored = json.loads(ppsim("models", words[-1], "--seq-len", 1024, "--json").stdout)
    assert {**stored, "name": ""} == {**counts, "name": ""}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_serve_takes_a_port_and_opens_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dash")
    from werkzeug.serving import BaseWSGIServer

    opened: list[str] = []
    monkeypatch.setattr(click, "launch", opened.append)
    monkeypatch.setattr(BaseWSGIServer, "serve_forever", lambda self: None)
    for line in SERVING:
        assert "127.0.0.1" in ppsim(*line.split()).stdout
    assert len(opened) == 1
