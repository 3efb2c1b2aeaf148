"""Optimizer steps: what they hold, by hand, and that they are the real ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

import torch
from torch import nn

from ppsim.cli import main
from ppsim.costs.profile import load_profile
from ppsim.model.shapes import layer_parameters
from ppsim.profiling.model_shapes import MODELS
from ppsim.profiling.settings import MeasuringSettings
from ppsim.profiling.sweep import _Step, measure_step


def measured(module: nn.Module, name: str, **fields: Any) -> dict[str, Any]:
    return measure_step(
        module, name, MeasuringSettings(num_repeats=3, num_warm_up=0), **{"is_hidden": True, **fields}
    )


def test_adamw_holds_two_moments_and_a_master_copy_of_16_bit_weights() -> None:
    assert measured(nn.Linear(8, 16), "adamw")["state_bytes"] == 2 * 4 * (8 * 16 + 16)
    half = measured(nn.Linear(8, 16).bfloat16(), "adamw")
    assert half["state_bytes"] == 3 * 4 * (8 * 16 + 16)
    assert half["parameters"] == 8 * 16 + 16
    assert half["step_s"]["median"] > 0
    assert half["gradient_norm_s"]["median"] > 0


def test_muon_holds_one_moment_of_a_matrix_and_leaves_the_rest_to_adamw() -> None:
    assert measured(nn.Linear(8, 16), "muon")["state_bytes"] == 4 * 8 * 16 + 2 * 4 * 16
    end = measured(nn.Linear(8, 16), "muon", is_hidden=False)  # of embedding and head, all
    assert end["state_bytes"] == 2 * 4 * (8 * 16 + 16)


def test_muon_takes_each_experts_matrix() -> None:
    experts = nn.Module()
    experts.gate = nn.Parameter(torch.randn(3, 8, 16))
    assert measured(experts, "muon")["state_bytes"] == 4 * 3 * 8 * 16
    step = _Step([experts.gate.detach()], "muon", is_hidden=True)
    before = step.masters[0].clone()
    step.step()
    for one, other in zip(before, step.masters[0], strict=True):
        # A step of Muon is a matrix with singular values near 1: each expert's is turned on its own.
        change = torch.linalg.svdvals((one * (1 - 0.001 * 0.1) - other) / 0.001)
        assert 0.5 < change.min() <= change.max() < 1.5


def test_a_step_changes_the_parameters_by_way_of_the_masters() -> None:
    step = _Step([torch.ones(4, 4, dtype=torch.bfloat16)], "adamw", is_hidden=True)
    for _ in range(20):
        step.clip()
        step.step()
    torch.testing.assert_close(step.parameters[0], step.masters[0].bfloat16())
    assert not torch.equal(step.masters[0], torch.ones(4, 4))


def test_of_several_alike_it_is_that_of_one() -> None:
    layers = nn.Sequential(*(nn.Linear(8, 16) for _ in range(4)))
    assert measured(layers, "adamw", num_units=4)["state_bytes"] == 2 * 4 * (8 * 16 + 16)


def test_the_command_measures_each_once_for_a_shard_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    command = ["profile", "--model", "llama-mini", "--seq-len", "8,16", "--tp", "1,2", "--repeats", "2", "--warm-up",
               "0", "-o", str(path)]  # fmt: skip
    made = CliRunner().invoke(main, [*command, "--optimizer", "none"])
    assert made.exit_code == 0, made.output
    assert json.loads(path.read_text())["optimizer"] == []
    made = CliRunner().invoke(main, command)
    assert made.exit_code == 0, made.output
    assert "gradient norm" in made.stdout
    assert made.stderr.count("measuring a step of adamw") == 2
    assert "measuring" not in CliRunner().invoke(main, command).stderr
    assert CliRunner().invoke(main, [*command, "--optimizer", "adamw,muon"]).stderr.count("step of muon") == 2
    profile = load_profile(path)
    assert len(profile.optimizer) == 2 * 2 * 3
    step = profile.find_step("layer", optimizer="adamw", tp=2, dtype="float32")
    assert step is not None
    assert step.parameters == layer_parameters(MODELS["llama-mini"].layer.shard(tp=2))
    assert step.state_bytes == 8 * step.parameters
    assert profile.find_step("layer", optimizer="adamw", tp=4, dtype="float32") is None


def test_an_unknown_optimizer_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    made = CliRunner().invoke(main, ["profile", "--optimizer", "sgd", "-o", str(tmp_path / "p.json")])
    assert made.exit_code == 2
    assert "unknown optimizer 'sgd': there are adamw and muon" in made.stderr
