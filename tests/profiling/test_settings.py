"""How it is measured: as long as needed, one layer beside several, compiled, launched by the host."""

import gc
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ppsim.base.file_schema import validated
from ppsim.cli import main
from ppsim.costs.profile import Profile, load_profile
from ppsim.profiling import harness
from ppsim.profiling import measure as measure_module
from ppsim.profiling import settings as settings_module
from ppsim.profiling.harness import launch_times, measure_shape, model_header, profile_module
from ppsim.profiling.measure import MeasuredModule, measure
from ppsim.profiling.model_shapes import MODELS
from ppsim.profiling.settings import MeasurementKey, MeasuringSettings
from ppsim.profiling.timing import are_enough, without_interruptions
from tests.defaults import field_defaults
from tests.profiling.emulated import Allocator

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_it_is_repeated_until_the_least_time_is_spent_and_no_longer_where_medians_are_certain() -> None:
    steady, restless = [1.0, 1.001] * 15, [1.0, 2.0] * 15
    assert not are_enough([steady], 0.5, 1.0)
    assert are_enough([steady], 1.0, 1.0)
    assert not are_enough([steady, restless], 1.0, 1.0)
    assert are_enough([steady, restless], 4.0, 1.0)
    linear = MeasuredModule(nn.Linear(4, 4), [torch.randn(2, 4)])
    [passes] = measure([linear], MeasuringSettings(num_repeats=5, num_warm_up=0, least_s=0.05))
    assert len(passes.seconds["F"]) > 5
    assert len(passes.seconds["F"]) % 5 == 0
    assert len(passes.seconds["B"]) == len(passes.seconds["F"])


def test_no_garbage_is_collected_while_it_is_measured() -> None:
    assert gc.isenabled()
    with without_interruptions():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_of_layers_in_a_row_one_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's time is that of one layer; the device would compute four where one says as much."""
    launched: list[int] = []

    def noted(subject: MeasuredModule, **fields: Any) -> dict[str, list[float]]:
        launched.append(sum(one.numel() for one in subject.module.parameters()))
        return {name: [1e-3] * 5 for name in "FBIW"}

    Allocator(monkeypatch)
    for module in (harness, measure_module):
        monkeypatch.setattr(module, "is_asynchronous", lambda where: True)
    monkeypatch.setattr(harness, "launch_seconds", noted)
    settings = MeasuringSettings(num_repeats=1, num_warm_up=0)
    found = measure_shape(
        MODELS["nano"], MeasurementKey(micro_batch=1, sequence_length=16, dtype="float32"), settings
    )
    assert launched == [part["parameters"] for part in found]
    assert found[1]["launch"]["forward_s"]["median"] == 1e-3


def test_the_attention_that_was_picked_is_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    key, settings = (
        MeasurementKey(micro_batch=1, sequence_length=16, dtype="float32"),
        MeasuringSettings(num_repeats=1, num_warm_up=0),
    )
    found = measure_shape(MODELS["nano"], key, settings)
    assert [part.get("attention") for part in found] == [None, "flash", None]
    with sdpa_kernel(SDPBackend.MATH):
        assert measure_shape(MODELS["nano"], key, settings)[1]["attention"] == "math"


def test_several_are_measured_in_turns() -> None:
    order: list[str] = []

    class Noted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            order.append(self.name)
            return super().forward(x)

    modules = [Noted(4, 4), Noted(4, 4)]
    for name, module in zip("ab", modules, strict=True):
        module.name = name  # type: ignore[assignment]
    subjects = [MeasuredModule(module, [torch.randn(2, 4)]) for module in modules]
    passes = measure(subjects, MeasuringSettings(num_repeats=3, num_warm_up=0))
    assert "".join(order).startswith("aabb" + "aabb" * 3)
    assert [len(one.seconds["B"]) for one in passes] == [3, 3]


def test_one_layer_alone_is_in_the_file_beside_those_in_a_row() -> None:
    settings = MeasuringSettings(num_repeats=3, num_warm_up=0)
    key = MeasurementKey(micro_batch=1, sequence_length=16, dtype="float32")
    content = model_header("test", "nano", MODELS["nano"], settings)
    content["measurements"] = measure_shape(MODELS["nano"], key, settings)
    embedding, layer, head = validated(Profile, content, "test").measurements
    assert layer.alone is not None
    assert layer.alone.num_in_row == 4
    assert layer.alone.backward_input_s is not None
    assert (embedding.alone, head.alone) == (None, None)
    assert layer.launch is None  # on a CPU the host computes


def test_launches_are_a_profiles_times_and_few() -> None:
    """On a CPU the host is free only when the pass is done: the times are the passes'."""
    calls: list[int] = []

    class Counted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(1)
            return super().forward(x)

    subject = MeasuredModule(Counted(64, 64), [torch.randn(32, 64)])
    times = launch_times(subject, CPU, can_split=True)
    assert set(times) == {"forward_s", "backward_s", "backward_input_s", "backward_weight_s"}
    assert all(time["median"] > 0 for time in times.values())
    assert len(calls) == 2 + 2 * (1 + 5)  # two are in flight
    assert launch_times(subject, CPU, can_split=False)["backward_weight_s"] is None


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad


def test_functions_written_in_python_are_measured_as_they_are() -> None:
    class WithFunction(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            doubled: Tensor = Doubled.apply(self.inner(x))
            return doubled

    said: list[str] = []
    content = profile_module(WithFunction(), torch.randn(4, 16, 8), num_repeats=2, num_warm_up=0, say=said.append)
    assert content["measurements"][0]["backward_weight_s"]["median"] > 0
    assert said == ["measuring module"]


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute"
)  # torch hides its own warning, but not from an error filter
def test_a_compiled_module_is_measured_as_it_is() -> None:
    """One node of the graph holds its whole backward: split or not, what is recorded is what was found."""
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    module.compile(backend="aot_eager")
    said: list[str] = []
    content = profile_module(module, torch.randn(4, 16, 8), num_repeats=2, num_warm_up=0, say=said.append)
    part = content["measurements"][0]
    assert part["backward_s"]["median"] > 0
    assert (part["backward_input_s"] is None) == ("cannot be split" in said[-1])


def test_what_was_compiled_says_so_and_is_not_mixed_with_what_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler itself is left out: it takes half a minute. Which modules are handed to it is what is tested."""
    compiled: list[str] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self: compiled.append(type(self).__name__))
    path = tmp_path / "p.json"
    command = ["profile", "--seq-len", "16", "--repeats", "2", "--warm-up", "0", "-o", str(path)]
    assert CliRunner().invoke(main, [*command, "--compile"]).exit_code == 0
    assert compiled == ["Block"] * 4 + ["Embedding", "Head"]
    assert load_profile(path).provenance.compiled
    mixed = CliRunner().invoke(main, command)
    assert mixed.exit_code == 2
    assert f"{path} holds measurements with compiled True, not None" in mixed.stderr


def test_cuda_graphs_are_not_for_a_cpu_and_selective_recomputation_not_for_the_compiler(tmp_path: Path) -> None:
    for options, sentence in (
        (["--cuda-graphs"], "--cuda-graphs is for --device cuda: a CPU has none"),
        (["--compile", "--recompute", "selective"], "torch.compile chooses by itself what to recompute"),
        (
            ["--cp", "3"],
            "cp 3 needs a sequence length divisible by 6, two chunks per rank: got 128 (nearest: 126 or 132)",
        ),
    ):
        made = CliRunner().invoke(main, ["profile", *options, "-o", str(tmp_path / "p.json")])
        assert made.exit_code == 2
        assert sentence in made.stderr


def test_a_context_parallel_part_is_measured_and_projected_where_asked_for(tmp_path: Path) -> None:
    path = str(tmp_path / "p.json")
    command = ["profile", "--model", "llama-mini", "--seq-len", "32", "--cp", "1,2", "--repeats", "2",
               "--recompute", "selective", "-o", path]  # fmt: skip
    made = CliRunner().invoke(main, command)
    assert made.exit_code == 0, made.output
    profile = load_profile(path)
    whole, part = (profile.find("layer", profile.shape_at(cp=cp)) for cp in (1, 2))
    assert part.forward_flops * 2 == whole.forward_flops
    assert part.activation_bytes * 2 == whole.activation_bytes
    assert profile.find("head", profile.shape_at(cp=2)).output_bytes == 4
    assert profile.shape_at().cp == 1
    shown = CliRunner().invoke(main, ["project", "--pp", "2", "--profile", path, "--cp", "2", "--full"])
    assert shown.exit_code == 0, shown.output
    assert "tp 1, cp 2, ep 1: one rank's part" in shown.stdout


def test_a_profile_is_measured_30_times_after_5_on_a_cpu() -> None:
    assert field_defaults(settings_module.MeasuringSettings) == {
        "device": "cpu", "num_repeats": 30, "num_warm_up": 5, "num_threads": 1, "least_s": 0.0, "compiled": False,
        "cuda_graphs": False,
    }  # fmt: skip
    assert field_defaults(settings_module.MeasurementKey) == {"tp": 1, "cp": 1, "ep": 1, "recompute": "none"}
    assert settings_module.LEAST_REPEATS == 5
