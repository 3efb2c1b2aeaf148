"""A module of one's own: measured like any other, and what is said where its backward cannot be split."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ppsim.base.boundary import validated
from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.cli import main
from ppsim.costs.profile import Profile
from ppsim.profiling.harness import profile_module
from ppsim.projection.project import project, project_all


class Reentrant(nn.Module):
    """Recomputed by the old kind of checkpoint, which no split backward gets through."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = checkpoint(self.inner, x, use_reentrant=True)
        return output


class TwoInputs(nn.Module):
    """Hidden states and a mask of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        output: Tensor = self.inner(x) * mask.unsqueeze(-1)
        return output


def profiled(module: nn.Module, inputs: Any, **fields: Any) -> dict[str, Any]:
    return profile_module(module, inputs, num_repeats=2, num_warm_up=0, **fields)


def test_it_is_a_layer_with_bytes_parameters_and_flops() -> None:
    content = profiled(TwoInputs(), (torch.randn(4, 16, 8), torch.ones(4, 16, dtype=torch.int64)), num_layers=6)
    profile = validated(Profile, content, "test")
    (layer,) = profile.measurements
    assert (layer.shape.micro_batch, layer.shape.sequence_length, layer.shape.dtype) == (4, 16, "float32")
    assert layer.parameters == 8 * 8 + 8
    assert layer.forward_flops == 2 * 4 * 16 * 8 * 8
    assert layer.output_bytes == layer.shape.micro_batch * 16 * 8 * 4
    assert layer.activation_bytes == 4 * 16 * 8 * 4 + 4 * 16 * 8  # the input, and the mask
    assert layer.backward_input_s is not None


def test_its_ends_cost_nothing_in_a_projection_which_says_so() -> None:
    profile = validated(
        Profile, profiled(TwoInputs(), (torch.randn(4, 16, 8), torch.ones(4, 16)), num_layers=4), ""
    )
    made = project(pp=2, schedule="zb-h1", profile=profile)
    assert made.split == [2, 2]
    assert "embedding and head: none in the profile, taken to cost nothing" in made.assumptions


def test_a_backward_that_cannot_be_split_is_recorded_whole_and_said() -> None:
    said: list[str] = []
    content = profiled(Reentrant(), torch.randn(4, 16, 8), name="old", num_layers=4, say=said.append)
    (part,) = content["measurements"]
    assert (part["backward_input_s"], part["backward_weight_s"]) == (None, None)
    assert part["backward_s"]["median"] > 0
    assert part["activation_bytes_kept_for_weight"] == part["activation_bytes"]
    assert said[-1].startswith("old: torch's split backward fails in it (")
    assert said[-1].endswith("its backward cannot be split, only B is recorded")

    profile = validated(Profile, content, "")
    assert project(pp=2, profile=profile).timeline.step_time_s > 0
    with pytest.raises(
        ScheduleError, match="zb-h1 splits the backward, which cannot be done to the layer of profile"
    ):
        project(pp=2, schedule="zb-h1", profile=profile)
    compared = project_all(project(pp=2, profile=profile).plan, ["1f1b", "zb-h1"])
    assert list(compared.reasons) == ["zb-h1"]


def test_halves_that_do_not_make_the_whole_are_found() -> None:
    """An autograd function that gives the weight its gradient only where the input wants one too."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.calls = 0
            ctx.save_for_backward(x, weight)
            return x * weight

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            x, weight = ctx.saved_tensors
            ctx.calls += 1
            return grad * weight / ctx.calls, (grad * x).sum((0, 1)) / ctx.calls

    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = Product.apply(x, self.weight)
            return output

    said: list[str] = []
    profiled(Wrong(), torch.randn(4, 16, 8), say=said.append)
    assert "I and W give another gradient of weight than B" in said[-1]


@pytest.mark.parametrize("case", ["no tensor", "no parameter", "two outputs"])
def test_what_no_stage_could_be_is_said(case: str) -> None:
    class Pair(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x), x

    module, inputs, sentence = {
        "no tensor": (nn.Linear(8, 8), (3,), "example inputs are tensors"),
        "no parameter": (nn.ReLU(), torch.randn(2, 8), "module has no parameter that learns"),
        "two outputs": (Pair(8, 8), torch.randn(2, 8), "a module to be measured returns one tensor: got tuple"),
    }[case]
    with pytest.raises(ConfigError, match=sentence):
        profiled(module, inputs)


def test_the_command_takes_a_factory_from_the_folder_it_is_given_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_layers.py").write_text(
        "import torch\ndef block():\n    return torch.nn.Linear(8, 8), (torch.randn(4, 16, 8),)\n"
        "def broken():\n    return torch.nn.Linear(8, 8), (torch.randn(4, 16, 9),)\n"
    )
    monkeypatch.chdir(tmp_path)
    command = ["profile", "--repeats", "2", "-o", "mine.json", "--module"]
    made = CliRunner().invoke(main, [*command, "my_layers:block", "--layers", "8"])
    assert made.exit_code == 0, made.output
    content = json.loads((tmp_path / "mine.json").read_text())
    assert (content["name"], content["model"]["num_layers"], content["model"]["hidden_size"]) == ("mine", 8, 8)
    wrong = CliRunner().invoke(main, [*command, "my_layers:broken"])
    assert wrong.exit_code == 2
    assert "my_layers:broken fails: mat1 and mat2 shapes cannot be multiplied" in wrong.stderr
