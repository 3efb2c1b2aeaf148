"""`ppsim train` as a user types it: outputs, torchrun, and what it refuses."""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

import numpy as np
import torch
from torch import nn

import ppsim
from ppsim.base.files import read_json, to_json
from ppsim.cli import main
from ppsim.runs.timeline_file import read_timeline, run_from_json
from ppsim.runs.timeline_import import import_result
from ppsim.runtime.launch import launch_all
from ppsim.runtime.partitions import run_partitions
from ppsim.runtime.train_config import TurnLimits
from ppsim.runtime.trained import model_of
from ppsim.runtime.worker import ReferenceWork
from ppsim.schedule.grammar import format_table
from tests.runtime.cases import config_of, table_of
from tests.runtime.processes import TINY, Training


def test_train_prints_one_json_object_and_writes_a_timeline_that_reads_again(training: Training) -> None:
    report = json.loads(training.out)
    assert report["schedule"] == "T"
    assert report["run"]["differences"]["gradient"] <= 1e-5
    assert len(report["run"]["step_times_s"]) == 12
    timeline, _ = read_timeline(training.folder / "measured.json")
    assert timeline.origin == "measured"
    assert timeline.step_time_s == pytest.approx(report["step_time_s"], rel=1e-12)
    run_again = run_from_json(read_json(training.folder / "measured.json"), "")
    assert np.shape(run_again.reference_s) == (12, 2)
    assert 0 < np.min(run_again.reference_s) < 10
    assert "stages of 32, 2 heads, 256 words, 1 × 16 tokens, float32, 2 ranks at once" in run_again.reference_work
    assert sum(run_again.reference_layers) == 4


def test_training_lowers_the_loss(training: Training) -> None:
    losses = json.loads(training.out)["run"]["losses"]
    assert losses[-1] < 0.8 * losses[0]


def test_what_tells_the_pace_is_no_time_between_steps(tmp_path: Path) -> None:
    """It is measured around each step, on two ranks; warm-up is left out."""
    table = table_of("1f1b", p=2, m=2)
    result = run_partitions(config_of(table, tmp_path, num_steps=3, num_warm_up=1))
    plain = import_result(result, table, None).run
    around = [[9.0, 9.0], [1e-4, 3e-4], [1e-4, 3e-4], [1e-4, 3e-4], [0.0, 0.0]]
    paced = import_result(result | {"reference_s": around}, table, None).run
    assert plain.reference_s == ()
    assert np.array(paced.reference_s) == pytest.approx(np.array([[1e-4, 3e-4], [1e-4, 3e-4], [5e-5, 1.5e-4]]))
    assert paced.gaps_s == pytest.approx([plain.gaps_s[0] - 3e-4, plain.gaps_s[1] - 3e-4])
    at_pace = paced.at_pace([2e-4, 4e-4])
    assert at_pace.step_times_s == pytest.approx([1.5, 1.5, 3.0] * plain.step_times_s)
    assert at_pace.costs.forward_s[0] > 1.2 * plain.costs.forward_s[0]
    assert plain.at_pace([3e-4, 3e-4]) is plain


def test_what_tells_the_pace_leaves_random_numbers_and_buffers_and_works_each_stage(tmp_path: Path) -> None:
    configs = [config_of(table_of("1f1b", p=2, m=2), tmp_path, num_threads=number) for number in (1, 2)]
    model = model_of(configs[0])
    stages = {
        stage: nn.Sequential(nn.BatchNorm1d(16) if stage else nn.Identity(), one, nn.Dropout(0.5))
        for stage, one in model.stages([0, 1]).items()
    }
    one, other = (ReferenceWork(config, model, stages) for config in configs)
    assert one.work != other.work
    before, buffers = torch.get_rng_state(), [buffer.clone() for buffer in stages[1].buffers()]
    assert one.seconds() > 0
    assert torch.equal(torch.get_rng_state(), before)
    assert len(buffers) > 1
    for buffer, was in zip(stages[1].buffers(), buffers, strict=True):
        assert torch.equal(buffer, was)
    for stage in stages.values():
        assert all(parameter.grad is not None for parameter in stage.parameters())


@pytest.mark.torch
def test_a_layer_that_is_recomputed_learns_the_same_and_keeps_less(tmp_path: Path) -> None:
    """Also where the backward is split; one process without recomputation is compared with."""
    tables = [table_of(name, p=2, m=4) for name in ("1f1b", "zb-h1")]
    configs = [config_of(table, tmp_path, num_warm_up=1, num_steps=2, verify=True) for table in tables]
    configs = [replace(one, layers_per_stage=[3, 3], model=replace(one.model, num_layers=6)) for one in configs]
    results = launch_all([*configs, *(replace(one, recompute="full") for one in configs)], quiet=True)
    for whole, again in zip(results[:2], results[2:], strict=True):
        assert again["losses"] == whole["losses"]
        assert again["differences"]["gradient"] <= 1e-5
        assert again["differences"]["loss"] <= 1e-6
        for kept, less in zip(whole["memory"]["ranks"], again["memory"]["ranks"], strict=True):
            assert 0 < less["peak_activation_bytes"] < 0.6 * kept["peak_activation_bytes"]
        assert again["reference_work"] == whole["reference_work"] + ", recompute full"


@pytest.mark.torch
def test_in_a_later_turn_a_run_goes_on_where_it_was_without_warming_up(tmp_path: Path) -> None:
    config = config_of(table_of("1f1b", p=2, m=2), tmp_path, num_steps=2, num_warm_up=1)
    [whole] = launch_all([replace(config, num_steps=4)], quiet=True)
    done: list[int] = []
    turns = launch_all([config], quiet=True, turns=TurnLimits(most=2, least=2), watch=done.append)
    assert [one["num_warm_up"] for one in turns] == [1, 0]
    assert [len(one["reference_s"]) for one in turns] == [4, 3]
    assert [loss for one in turns for loss in one["losses"]] == whole["losses"]
    assert done[-1] == 2


@pytest.mark.torch
def test_train_joins_the_processes_of_torchrun(folder: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "ppsim",
            "train", "--schedule", "T.csv", *TINY, "--steps", "1", "-o", "measured.json",
        ],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert read_timeline(folder / "measured.json")[0].num_actions == 48


@pytest.mark.torch
def test_transfers_of_one_queue_never_overlap_and_emulated_costs_take_no_less_than_the_simulation(
    tmp_path: Path,
) -> None:
    """Waiting overshoots and hosts take time, so that the run is the slower of the two; the order is the same."""
    table, configs = table_of("zbv-fixed", p=2, m=4), []
    costs = {"forward_s": 0.004, "backward_input_s": 0.004, "backward_weight_s": 0.004, "transfer_s": 0.005}
    channels = ("ideal", "edge", "pair", "rank")
    for channel in channels:
        (tmp_path / f"{channel}.json").write_text(to_json(costs | {"channel": channel}))
        configs.append(config_of(table, tmp_path, emulate_costs=str(tmp_path / f"{channel}.json"), num_warm_up=1))
    for channel, result in zip(channels, launch_all(configs, quiet=True), strict=True):
        given = ppsim.StageCosts(**costs, channel=channel)  # type: ignore[arg-type]
        measured = import_result(result, table, given).timeline
        on_torch = given.with_torch_first_stage(num_stages=table.num_stages, num_ranks=table.num_ranks)
        simulated = ppsim.simulate(table, on_torch)
        assert measured.step_time_s >= simulated.step_time_s
        took = (measured.end - measured.start)[: measured.num_actions]
        assert (took >= (simulated.end - simulated.start)[: measured.num_actions] - 1e-6).all()
        if channel != "ideal":
            require_apart(measured, channel)


def require_apart(measured: ppsim.Timeline, channel: str) -> None:
    graph, first = measured.graph, measured.num_actions
    assert graph.num_transfers > 0
    by_queue: dict[Any, list[tuple[float, float]]] = {}
    for transfer in range(graph.num_transfers):
        ranks = tuple(
            next(rank for rank in range(2) if entry < graph.schedule.rank_offsets[rank + 1])
            for entry in (int(graph.source[transfer]), int(graph.target[transfer]))
        )
        key = ranks if channel == "edge" else "one"
        by_queue.setdefault(key, []).append((measured.start[first + transfer], measured.end[first + transfer]))
    assert len(by_queue) == (2 if channel == "edge" else 1)
    for spans in by_queue.values():
        spans.sort()
        for (_, end), (start, _) in pairwise(spans):
            assert start >= end - 1e-4


@pytest.mark.parametrize("command", [["train", "--schedule", "T.csv"], ["profile", "-o", "P.json"]])
def test_without_torch_the_extra_is_named(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert "pip install 'ppsim-pipeline[torch]'" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--nproc", "3"], "T.csv has 2 ranks: got --nproc 3"),
        (["--model", "nanno"], "unknown model 'nanno': did you mean nano?"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--layers", "1"], "--layers 4 gives each one"),
        (["--heads", "5"], "the hidden size must be a multiple of the heads: got 256 and 5"),
        (["--timeout", "0"], "--timeout must be more than 0 and at most"),
        (["--threads", "0"], "--threads must be at least 1: got 0"),
        (["--learning-rate", "nan"], "--learning-rate must be a number from 0 on: got nan"),
        (["--learning-rate", "-1"], "--learning-rate must be a number from 0 on: got -1"),
        (["--emulate-costs", "none.json"], "none.json"),
        (["--split", "1,1,1"], "4 stages"),
        (["-o", "nowhere/measured.json"], "there is no folder nowhere"),
    ],
)
def test_wrong_arguments_end_before_anything_is_started(
    arguments: list[str], sentence: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("ppsim.runtime.launch.launch_all", lambda configs: pytest.fail("started"))
    result = CliRunner().invoke(main, ["train", "--schedule", "T.csv", *arguments])
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["T.csv", "slow.json"]


@pytest.mark.torch
def test_a_pair_of_a_forward_and_a_backward_takes_its_own_time() -> None:
    """Emulated pairs save what the costs say; without that the step would take 24 % more than projected."""
    table = ppsim.build("combined-1f1b", pp=2, vpp=2, microbatches=8)
    costs = ppsim.StageCosts(forward_s=0.03, backward_input_s=0.03, backward_weight_s=0.02, fused_s=0.06)
    projected_s = ppsim.simulate(table, costs).step_time_s
    alone_s = ppsim.simulate(table, costs.replace(fused_s=None)).step_time_s
    assert alone_s > 1.23 * projected_s
    measured_s = ppsim.train(table, emulate_costs=costs, steps=2).timeline.step_time_s
    assert 0.999 * projected_s <= measured_s < 1.15 * projected_s


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--schedule", "chimera.csv"], "a table of 2 replicas"),
        (["--schedule", "chimera.csv"], "torch, which holds one chain, cannot run it"),
    ],
)
def test_what_torch_cannot_run_ends_before_anything_is_started(
    arguments: list[str], sentence: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("ppsim.runtime.launch.launch_all", lambda configs: pytest.fail("started"))
    (folder / "chimera.csv").write_text(format_table(ppsim.build("chimera", pp=2, microbatches=4)))
    result = CliRunner().invoke(main, ["train", *arguments])
    assert result.exit_code == 2
    assert sentence in result.stderr


@pytest.mark.parametrize("how", [pytest.param((), marks=pytest.mark.long), ("--partitions", "2")])
@pytest.mark.torch
def test_a_loss_that_is_no_number_is_said_with_what_trains(
    how: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AdamW's epsilon is 0 in 16 bit, so that its first step divides by 0; no file is written of it."""
    monkeypatch.chdir(folder)
    words = ["train", "--schedule", "T.csv", *TINY, *how, "--dtype", "float16", "--steps", "2", "-o", "m.json"]
    refused = CliRunner().invoke(main, words)
    assert refused.exit_code == 2
    sentence = "the loss of step 2 is nan: --learning-rate 0.001 is too much in float16: give --dtype bfloat16"
    assert sentence in refused.stderr
    assert not (folder / "m.json").exists()
