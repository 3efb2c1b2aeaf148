"""The harness: passes as torch's runtime splits them, bytes that can be counted by hand, a file that validates."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from ppsim.base.files import to_json
from ppsim.costs.profile import load_profile
from ppsim.profiling import measure as measure_module
from ppsim.profiling import measure as measuring
from ppsim.profiling.harness import measure_shape, model_header
from ppsim.profiling.measure import MeasuredModule, _transient_bytes, measure
from ppsim.profiling.model_shapes import of_gpt
from ppsim.profiling.settings import LEAST_REPEATS, MeasurementKey, MeasuringSettings, summarise_samples
from ppsim.runtime.train_config import GPTShape
from tests.profiling.emulated import Allocator
from tests.profiling.once import ONCE

SHAPE = GPTShape(num_layers=2, hidden_size=32, num_heads=2, sequence_length=16)


def profiled(**fields: Any) -> dict[str, Any]:
    settings = MeasuringSettings(num_repeats=3, num_warm_up=1)
    key = MeasurementKey(**{"micro_batch": 2, "sequence_length": 16, "dtype": "float32", **fields})
    content = model_header("test", "tiny", of_gpt(SHAPE), settings)
    return content | {"measurements": measure_shape(of_gpt(SHAPE), key, settings)}


class Recorded(nn.Module):
    """Counts how often its input's and its weight's gradients are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.calls = {"input": 0, "weight": 0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        class Multiply(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor, calls: dict[str, int], name: str) -> torch.Tensor:
                ctx.calls, ctx.name = calls, name
                return x.clone()

            @staticmethod
            def backward(ctx: Any, grad: torch.Tensor) -> Any:
                ctx.calls[ctx.name] += 1
                return grad, None, None

        output: torch.Tensor = Multiply.apply(x, self.calls, "input") * Multiply.apply(
            self.weight, self.calls, "weight"
        )
        return output


def test_i_runs_the_inputs_gradient_and_w_the_weights() -> None:
    module = Recorded()
    subject = MeasuredModule(module, [torch.ones(3, 4)])
    x = subject.next_input()
    output = subject.forward(x)
    grad = subject.grad_of(output)
    groups = subject.backward_input(x, output, grad)
    assert module.calls == {"input": 1, "weight": 0}
    subject.backward_weight(x, output, grad, groups)
    assert module.calls == {"input": 1, "weight": 1}


def test_the_first_stage_does_its_whole_backward_in_w() -> None:
    module = nn.Embedding(10, 4)
    subject = MeasuredModule(module, [torch.tensor([1, 2])], is_first=True)
    x = subject.next_input()
    output = subject.forward(x)
    subject.backward_input(x, output, subject.grad_of(output))
    assert module.weight.grad is None
    subject.backward_weight(x, output, subject.grad_of(output), None)
    assert module.weight.grad is not None


def test_gradients_that_come_back_are_random_and_others_after_another_input() -> None:
    """The same for a B and for the I and W that are compared with it, which take one input."""
    subject = MeasuredModule(nn.Linear(64, 64), [torch.randn(64, 64) for _ in range(3)])
    output = subject.forward(subject.next_input())
    first, again = subject.grad_of(output), subject.grad_of(output)
    subject.next_input()
    second = subject.grad_of(output)
    assert first is again is not second
    for grad in (first, second):
        assert grad is not None
        assert abs(float(grad.std()) - 1.0) < 0.1
        assert len(grad.unique()) > 0.9 * grad.numel()


def test_gradients_take_no_more_memory_than_inputs_but_for_three_of_them() -> None:
    """An embedding has thousands of inputs of some kilobytes each, and outputs of megabytes."""
    for out, expected in ((8, 100), (80, 11), (800, 3)):
        subject = MeasuredModule(nn.Linear(8, out), [torch.randn(2, 8) for _ in range(100)])
        subject.grad_of(subject.forward(subject.next_input()))
        assert len(subject._grads) == expected


def test_saved_bytes_are_those_of_the_input_of_a_linear_layer() -> None:
    """A linear layer saves its input, 8 × 16 floats, and its weight, which is a parameter; W needs the input."""
    [passes] = measure([MeasuredModule(nn.Linear(16, 32, bias=False), [torch.randn(8, 16)])], ONCE)
    assert passes.activation_bytes == 8 * 16 * 4
    assert passes.kept_bytes == 8 * 16 * 4
    assert passes.output_bytes == 8 * 32 * 4


def test_what_only_i_needs_is_not_kept_for_w() -> None:
    """tanh saves its output, 8 × 32 floats, for I alone; the layer before it saves its input for W."""
    module = nn.Sequential(nn.Linear(16, 32, bias=False), nn.Tanh())
    [passes] = measure([MeasuredModule(module, [torch.randn(8, 16)])], ONCE)
    assert passes.activation_bytes == (8 * 16 + 8 * 32) * 4
    assert passes.kept_bytes < passes.activation_bytes


def test_transient_bytes_leave_out_the_gradients_of_parameters_but_for_one_that_is_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of five products, whose weights are all there is: in a steady state each new gradient lives until it is added."""
    module = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(5)))
    subject, weight_bytes = MeasuredModule(module, [torch.randn(2, 256)]), 256 * 256 * 4
    with Allocator(monkeypatch):
        found = _transient_bytes(subject, activation_bytes=5 * 2 * 256 * 4)
    assert weight_bytes <= found < 1.1 * weight_bytes
    assert all(parameter.grad is None for parameter in module.parameters())


def test_every_repeat_is_a_sample_and_no_sample_is_a_warm_up() -> None:
    [passes] = measure(
        [MeasuredModule(nn.Linear(4, 4), [torch.randn(2, 4)])], MeasuringSettings(num_repeats=5, num_warm_up=2)
    )
    assert list(passes.seconds) == ["F", "B", "I", "W"]
    for samples in passes.seconds.values():
        assert len(samples) == 5
        assert min(samples) > 0


def test_quantity_is_median_and_quartiles() -> None:
    assert summarise_samples([5.0, 1.0, 3.0, 2.0, 4.0]) == {"median": 3.0, "low": 1.5, "high": 4.5}
    assert summarise_samples([2.0]) == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert summarise_samples([1.0, 9.0]) == {"median": 5.0, "low": 1.0, "high": 9.0}  # not −1 and 11


def test_the_content_is_a_valid_profile_with_parameters_and_flops_counted_by_hand(tmp_path: Path) -> None:
    (tmp_path / "test.json").write_text(to_json(profiled()))
    profile = load_profile(str(tmp_path / "test.json"))
    by_component = {measurement.component: measurement for measurement in profile.measurements}
    h, s, b, vocabulary = 32, 16, 2, 256
    assert by_component["layer"].parameters == 12 * h * h + 13 * h
    assert by_component["embedding"].parameters == vocabulary * h + s * h
    assert by_component["head"].parameters == vocabulary * h + 2 * h
    assert by_component["layer"].forward_flops == b * s * (2 * 12 * h * h + 4 * s * h)
    assert by_component["layer"].output_bytes == b * s * h * 4
    assert by_component["embedding"].backward_input_s.median < by_component["embedding"].backward_weight_s.median
    assert profile.provenance.kind == "measured"
    assert profile.provenance.software["torch"] == torch.__version__


def test_shorter_numbers_take_fewer_bytes() -> None:
    full, half = profiled(), profiled(dtype="bfloat16")
    assert half["measurements"][1]["output_bytes"] * 2 == full["measurements"][1]["output_bytes"]
    assert half["measurements"][1]["activation_bytes"] < full["measurements"][1]["activation_bytes"]


@pytest.mark.torch
def test_profiling_loads_nothing_heavier_than_torch(tmp_path: Path) -> None:
    """A machine with a GPU often has torch and little else."""
    code = (
        "import sys; sys.argv = ['ppsim', 'profile', '--model', 'nano', '--seq-len', '16', '--repeats', '2', "
        "'-o', 'p.json']\n"
        "for name in ('pydantic', 'plotly', 'matplotlib', 'pandas', 'numba'): sys.modules[name] = None\n"
        "from ppsim.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "p.json").read_text())["format"] == "ppsim-profile/1"


def test_a_measured_profile_projects(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from ppsim.cli import main

    path = str(tmp_path / "here.json")
    made = CliRunner().invoke(main, ["profile", "--model", "nano", "--seq-len", "16", "--repeats", "2", "-o", path])
    assert made.exit_code == 0, made.output
    assert made.stdout.startswith("component")
    result = CliRunner().invoke(main, ["project", "--pp", "2", "--profile", path, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["profile"]["provenance"] == "measured"


def test_where_repeats_take_longer_than_their_time_they_are_few_and_so_is_what_warms_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done, real = [], measuring._Run.repeat
    monkeypatch.setattr(measuring._Run, "repeat", lambda run: done.append(run) or real(run))  # type: ignore[func-returns-value]
    subject = MeasuredModule(nn.Linear(4, 4), [torch.ones(2, 4)])
    measure([subject], MeasuringSettings(num_repeats=30, num_warm_up=5, component_s=1e-9))
    assert len(done) == measuring.FEWEST_WARM_UPS + LEAST_REPEATS
    done.clear()
    measure([subject], MeasuringSettings(num_repeats=30, num_warm_up=5, component_s=60.0))
    assert len(done) == 5 + 30


def test_limits_of_a_measurement() -> None:
    assert (measure_module.LAUNCHES, measure_module.LAUNCHES_BEFORE) == (5, 1)
    assert (measure_module.FEWEST_WARM_UPS, measure_module._FEWEST_GRADS) == (2, 3)


class Passes:
    """A module whose passes are recorded, with the number of their microbatch."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.number = -1
        self.module = SimpleNamespace(zero_grad=lambda set_to_none: self.calls.append(f"to none: {set_to_none}"))

    def next_input(self) -> int:
        self.number += 1
        return self.number

    def forward(self, x: int) -> str:
        self.calls.append(f"F{x}")
        return f"output {x}"

    def grad_of(self, output: str) -> str:
        return output.replace("output", "gradient")

    def backward(self, x: int, output: str, grad: str) -> None:
        assert (output, grad) == (f"output {x}", f"gradient {x}")
        self.calls.append(f"B{x}")

    def backward_input(self, x: int, output: str, grad: str) -> str:
        assert (output, grad) == (f"output {x}", f"gradient {x}")
        self.calls.append(f"I{x}")
        return f"groups {x}"

    def backward_weight(self, x: int, output: str, grad: str, groups: str) -> None:
        assert (output, grad, groups) == (f"output {x}", f"gradient {x}", f"groups {x}")
        self.calls.append(f"W{x}")


def timed(work: Any, *arguments: Any) -> tuple[Any, Any]:
    name = work.__name__
    return work(*arguments), lambda: name


@pytest.mark.parametrize("can_split", [True, False])
def test_two_later_microbatches_are_held_during_a_backward(can_split: bool) -> None:
    subject: Any = Passes()
    run = measuring._Run(subject, timed, can_split=can_split)
    taken = [{name: seconds() for name, seconds in run.repeat().items()} for _ in range(2)]
    names = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
    assert taken == [names if can_split else {name: names[name] for name in "FB"}] * 2
    order = ["F0", "F1", "F2", "B0", "F3", "I1", "W1", "F4", "B2", "F5", "I3", "W3"]
    assert subject.calls == (order if can_split else ["F0", "F1", "F2", "B0", "F3", "B2"])
    run.forget()
    assert subject.calls[-1] == "to none: True"
    assert run._waiting == []


def test_launches_are_timed_five_times_after_an_untimed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(100))

    def time_launch(work: Any, *arguments: Any) -> tuple[Any, Any]:
        moment = next(moments)
        return work(*arguments), lambda: float(moment)

    monkeypatch.setattr(measuring, "clock_of", lambda device: SimpleNamespace(time_launch=time_launch))
    subject: Any = Passes()
    taken = measuring.launch_seconds(subject, device=torch.device("cpu"), can_split=False)
    # The forwards 0 and 1 are of later microbatches, 2 and 3 of the untimed repeat.
    assert taken == {"F": [2.0, 4.0, 6.0, 8.0, 10.0], "B": [5.0, 7.0, 9.0, 11.0, 13.0]}
    assert subject.calls[-1] == "to none: True"


def test_inputs_take_turns_and_only_numbers_have_gradients() -> None:
    inputs = [(torch.full((2,), float(number)), torch.tensor([number, 7])) for number in range(3)]
    subject = MeasuredModule(nn.Linear(2, 2), inputs)
    assert [subject.next_input()[0].tolist()[0] for _ in range(4)] == [1.0, 2.0, 0.0, 1.0]
    assert [part.requires_grad for part in subject.next_input()] == [True, False]
    first = MeasuredModule(nn.Linear(2, 2), inputs, is_first=True)
    assert [part.requires_grad for part in first.next_input()] == [False, False]


def test_the_last_stage_has_a_loss_and_no_gradient_of_its_output() -> None:
    subject = MeasuredModule(nn.Linear(2, 2), [torch.ones(3, 2)], loss=lambda output: output.sum())
    inputs = subject.next_input()
    output = subject.forward(inputs)
    assert (output.shape, subject.grad_of(output)) == ((), None)
    groups = subject.backward_input(inputs, output, None)
    subject.backward_weight(inputs, output, None, groups)
    weight = subject.module.weight
    assert isinstance(weight, nn.Parameter)
    assert weight.grad is not None
    assert weight.grad.tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_gradients_are_made_anew_for_an_output_of_another_shape() -> None:
    subject = MeasuredModule(nn.Linear(2, 2), [torch.ones(3, 2)])
    for rows in (3, 5):
        grad = subject.grad_of(torch.zeros(rows, 2))
        assert grad is not None
        assert grad.shape == (rows, 2)


def test_gradients_accumulate_until_the_measurement_is_over() -> None:
    subject = MeasuredModule(nn.Linear(2, 2), [torch.ones(3, 2)])
    for _ in range(2):
        subject.pass_once(subject.next_input())
    weight = subject.module.weight
    assert isinstance(weight, nn.Parameter)
    assert weight.grad is not None
    measure([subject], ONCE)
    assert weight.grad is None


@pytest.mark.parametrize("can_split", [True, False])
def test_bytes_after_the_backward_of_inputs_are_those_without_what_only_it_needs(can_split: bool) -> None:
    """A layer of 4 → 8 columns saves 3 × 4 floats for W, and tanh 3 × 8 floats for I; no gradients are left."""
    module = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Tanh())
    subject = MeasuredModule(module, [torch.randn(3, 4)])
    saved, kept, output = measuring._saved_bytes(subject, can_split=can_split)
    assert (saved, output) == ((12 + 24) * 4, 24 * 4)
    assert kept == (12 * 4 if can_split else saved)
    assert module[0].weight.grad is None


def test_released_memory_of_a_gpu_is_returned_once_it_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(measuring.gc, "collect", lambda: calls.append("collect"))
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: calls.append(name))
    for is_initialized, expected in ((False, ["collect"]), (True, ["collect", "synchronize", "empty_cache"])):
        calls.clear()
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda is_initialized=is_initialized: is_initialized)
        measuring.release_memory()
        assert calls == expected
