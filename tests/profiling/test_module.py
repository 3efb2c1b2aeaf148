"""A module of one's own: measured like any other, and what is said where its backward cannot be split."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ppsim.api import profile as profiles
from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.base.file_schema import validated
from ppsim.cli import main
from ppsim.costs.profile import Profile, load_profile
from ppsim.profiling import module as own_chunks
from ppsim.profiling.chunks import LayerWindow
from ppsim.profiling.harness import profile_module
from ppsim.profiling.module import UserChunkBuilder, profile_made, profile_pipeline
from ppsim.profiling.settings import MeasurementKey, MeasuringSettings
from ppsim.profiling.suite import SUITES
from ppsim.projection.project import project, project_all
from ppsim.runtime.user_model import UserFunction, function_of


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
    made = project(pp=2, schedule="zb-h1", profile=profile, split="balanced")
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
    with pytest.raises(ScheduleError, match="zb-h1 splits"):
        project(pp=2, schedule="zb-h1", profile=profile)
    compared = project_all(project(pp=2, profile=profile).plan, ["1f1b", "zb-h1"])
    assert list(compared.rejected) == ["zb-h1"]


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


OWN = """
import torch
from torch import nn

class Stage(nn.Module):
    def __init__(self, widths, is_first, is_last):
        super().__init__()
        ends = [nn.Embedding(16, 8)] * is_first, [nn.Linear(8, 16)] * is_last
        self.rows = nn.Sequential(*ends[0], *(nn.Sequential(nn.Linear(8, n), nn.Linear(n, 8)) for n in widths), *ends[1])

    def forward(self, x):
        return self.rows(x).clone()

def made(layers, width):
    starts, last = [sum(layers[:place]) for place in range(len(layers))], len(layers) - 1
    for stage, (start, count) in enumerate(zip(starts, layers)):
        yield Stage([width(place) for place in range(start, start + count)], stage == 0, stage == last)

def loss(output, targets):
    return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())

def alike(layers=(5,)):
    tokens = torch.randint(0, 16, (8, 5))
    return made(layers, lambda place: 16), tokens[:, :-1], tokens[:, 1:], loss

def mixed(layers=(6,)):
    return made(layers, lambda place: 16 if place < 3 else 24), *alike()[1:]

def block():
    return nn.Linear(8, 8), torch.randn(4, 16, 8)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_model_of_layers_alike_is_measured_by_layer_and_ends(folder: Path) -> None:
    """Sequences of 4 tokens; a layer has matrices of 8 × 16 and 16 × 8, the head one of 8 × 16."""
    command = [
        "profile",
        "--module",
        "own.py:alike",
        "--micro-batch-size",
        "1,2",
        "--repeats",
        "2",
        "-o",
        "own.json",
    ]
    made = CliRunner().invoke(main, command)
    assert made.exit_code == 0, made.output
    profile = load_profile("own.json")
    assert (profile.model.num_layers, profile.model.hidden_size) == (5, 8)
    measured = [
        (part.component, part.shape.micro_batch, part.parameters, part.forward_flops)
        for part in profile.measurements
    ]
    assert measured == [
        row
        for size in (1, 2)
        for row in (
            ("embedding", size, 16 * 8, 0),
            ("layer", size, 2 * 8 * 16 + 24, 2 * 4 * size * 2 * 8 * 16),
            ("head", size, 8 * 16 + 16, 2 * 4 * size * 8 * 16),
        )
    ]


def test_a_model_for_a_pipeline_is_measured_in_its_stages_and_answers_it_and_others(folder: Path) -> None:
    """Six layers of two kinds: the three stages as they are, and what tells every other split; at two micro-batches."""
    command = ["profile", "--module", "own.py:mixed", "--pp", "3", "--micro-batch-size", "1,2", "--repeats", "2"]
    made = CliRunner().invoke(main, [*command, "-o", "own.json"])
    assert made.exit_code == 0, made.output
    assert "its layers are not alike" in made.stderr
    profile = load_profile("own.json")
    assert profile.model.layer_kinds == "tttuuu"
    assert [chunk.shape.micro_batch for chunk in profile.chunks] == [1] * 5 + [2] * 5
    by_contents = {chunk.contents: chunk for chunk in profile.chunks if chunk.shape.micro_batch == 1}
    assert {"Ett", "tu", "uuL"} < set(by_contents)
    weights = {"E": 16 * 8, "t": 2 * 8 * 16 + 24, "u": 2 * 8 * 24 + 32, "L": 8 * 16 + 16}
    for contents, chunk in by_contents.items():
        assert chunk.parameters == sum(weights[letter] for letter in contents), contents
    answered = project(pp=3, profile=profile, split=[2, 2, 2])
    assert "chunks: 3 of 3 stages measured as they are" in answered.assumptions
    taken = [by_contents[contents].forward_s.median for contents in ("Ett", "tu", "uuL")]
    assert answered.costs.forward_s == pytest.approx(taken)
    assert project(pp=2, profile=profile, split=[4, 2]).timeline.step_time_s > 0


def test_a_pipeline_of_layers_alike_is_rehearsed_with_the_functions_own_stages(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is found is in the file, and slows the passes of a projection as of a model that ppsim has."""
    told: dict[str, Any] = {}
    found = {"slowdown": 2.0, "action_overhead_s": 1e-3, "hop_overhead_s": 0.0, "step_spread": 0.1}

    def rehearsed(profile: Profile, model_of: Any, key: Any, settings: Any, *, num_processes: int, say: Any) -> Any:
        told.update(key=key, model=model_of(4))
        return found | {"num_processes": num_processes, "num_threads": 1, "pass_factors": [1.0]}

    monkeypatch.setattr(own_chunks, "rehearsal_of", rehearsed)
    command = ["profile", "--module", "own.py:alike", "--pp", "2", "--repeats", "2", "-o", "own.json"]
    made = CliRunner().invoke(main, command)
    assert made.exit_code == 0, made.output
    assert told["key"] == MeasurementKey(2, 4, "float32")
    assert told["model"].num_layers == 4
    assert [tuple(one.shape) for one in told["model"].boundaries] == [(2, 4), (2, 4, 8), (2, 4, 16)]
    profile = load_profile("own.json")
    alone = project(pp=2, profile=replace(profile, rehearsal=None), split=[2, 3])
    beside = project(pp=2, profile=profile, split=[2, 3])
    assert np.asarray(beside.costs.forward_s) == pytest.approx(2 * np.asarray(alone.costs.forward_s))


def test_with_a_suite_a_model_is_measured_as_the_suite_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its micro-batches and with its repeats, into a file of the function's name beside the suite's."""
    monkeypatch.setattr(profiles, "measure", lambda *jobs, **options: None)
    command = ["profile", "--suite", "smoke", "--module", "own.py:mixed", "--pp", "2", "-o", "suite"]
    made = CliRunner().invoke(main, command)
    assert made.exit_code == 0, made.output
    profile = load_profile(folder / "suite" / "mixed.json")
    assert {chunk.shape.micro_batch for chunk in profile.chunks} == {1, 2}
    assert profile.provenance.num_repeats == SUITES["smoke"].settings.num_repeats


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["own.py:alike", "--pp", "6"], "--pp 6 is more than the 5 layers of own.py:alike"),
        (["own.py:block", "--pp", "2"], "own.py:block makes one layer: give it a parameter"),
        (["own.py:alike", "--pp", "0"], "--pp must be at least 1: got 0"),
        (["own.py:alike", "--suite", "smoke", "--micro-batch-size", "3"], "leave out --micro-batch-size"),
        (["own.py:alike", "--suite", "smoke", "--dry-run"], "--dry-run knows the FLOPs of models only"),
    ],
)
def test_a_pipeline_that_cannot_be_measured_is_refused_in_a_sentence(
    folder: Path, words: list[str], told: str
) -> None:
    made = CliRunner().invoke(
        main, ["profile", "-o", "own" if "--suite" in words else "own.json", "--module", *words]
    )
    assert made.exit_code == 2, made.output
    assert told in " ".join(made.stderr.split())
    assert [path.name for path in folder.iterdir() if path.is_file()] == ["own.py"]


def layer_widths(module: nn.Module) -> list[int]:
    """Return the inner widths of the layers of a stage of `own.py`."""
    return [part[0].out_features for part in module.rows if isinstance(part, nn.Sequential)]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("window", "widths", "has_embedding", "has_head"),
    [
        (LayerWindow(0, 0, is_first=True), [], True, False),
        (LayerWindow(0, 6, is_first=True, is_last=True), [16] * 3 + [24] * 3, True, True),
        (LayerWindow(2, 5), [16, 24, 24], False, False),
        (LayerWindow(0, 1), [16], False, False),
        (LayerWindow(5, 6, is_last=True), [24], False, True),
        (LayerWindow(6, 6, is_last=True), [], False, True),
    ],
)
def test_a_chunk_has_the_layers_of_its_window(
    folder: Path, window: LayerWindow, widths: list[int], has_embedding: bool, has_head: bool
) -> None:
    chunk = UserChunkBuilder(function_of("own.py:mixed"), 6, 3, "cpu").build(window)
    assert layer_widths(chunk.module) == widths if window.is_first or window.start else True
    assert isinstance(chunk.module.rows[0], nn.Embedding) is has_embedding  # type: ignore[index]
    assert (chunk.loss is not None) is has_head
    assert [layer_widths(layer) for layer in chunk.layers] == [[width] for width in widths]
    assert all(parameter.is_meta for layer in chunk.layers for parameter in layer.parameters())


def test_the_loss_of_the_last_chunk_is_of_the_targets_of_its_inputs(folder: Path) -> None:
    builder = UserChunkBuilder(function_of("own.py:mixed"), 6, 3, "cpu")
    chunk = builder.build(LayerWindow(0, 6, is_first=True, is_last=True))
    assert chunk.loss is not None
    (tokens, targets), output = builder._made.rows(3, 0), torch.randn(3, 4, 16)
    assert torch.equal(builder.input_of(LayerWindow(0, 2, is_first=True)), tokens)
    assert chunk.loss(output) == nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())
    assert builder.shape() == {"micro_batch": 3, "sequence_length": 4, "dtype": "float32"}


def test_the_input_of_a_later_chunk_is_random_with_the_shape_of_what_is_sent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder, built = UserChunkBuilder(function_of("own.py:mixed"), 6, 3, "cpu"), []
    build = UserChunkBuilder.build
    monkeypatch.setattr(
        UserChunkBuilder, "build", lambda builder, window: built.append(window) or build(builder, window)
    )
    first, second = (builder.input_of(LayerWindow(2, 4)) for _ in range(2))
    assert first.shape == second.shape == (3, 4, 8)
    assert not torch.equal(first, second)
    assert built == [LayerWindow(0, 2, is_first=True)], "the chunk before is run once"
    assert not builder._sent[2].requires_grad


class Pipelines:
    """Stand-ins for the measurements of a pipeline: chunks by micro-batch, and a calibration run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, layer_kinds: str) -> None:
        self.layer_kinds, self.checked = layer_kinds, []
        self.said: list[str] = []
        monkeypatch.setattr(own_chunks, "check_user_model", self.check)
        monkeypatch.setattr(own_chunks, "profile_chunks", self.chunks)
        monkeypatch.setattr(own_chunks, "_calibration_run", self.calibration)

    def check(self, function: Any, counts: Sequence[int], **how: Any) -> tuple[list[Any], str]:
        self.checked.append((counts, how))
        return [SimpleNamespace(shape=[2, size]) for size in (4, 8, 16)], "float32"

    def chunks(self, builder: UserChunkBuilder, splits: Any, settings: Any, **how: Any) -> dict[str, Any]:
        how["model"]["layer_kinds"] = self.layer_kinds
        return {"chunks": [(builder.micro_batch, builder.num_layers, splits)], "model": how["model"]}

    def calibration(self, function: Any, content: Any, settings: Any, *, num_processes: int, say: Any) -> str:
        assert settings.device == "cpu"
        return f"{function.name} of {len(content['chunks'])} chunks in {num_processes} processes"

    def profile(self, device: str = "cpu", *, pp: int = 2, num_layers: int | None = 5) -> dict[str, Any]:
        function = UserFunction("own.py:stages", lambda layers=(7,): None, "")
        return profile_pipeline(
            function, MeasuringSettings(device), pp=pp, num_layers=num_layers, micro_batches=[3, 1],
            say=self.said.append,
        )  # fmt: skip


def test_the_profile_of_a_pipeline_has_the_chunks_of_each_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins = Pipelines(monkeypatch, "ttttt")
    content = stand_ins.profile()
    assert content["chunks"] == [(3, 5, [[3, 2]]), (1, 5, [[3, 2]])]
    assert content["model"] == {"name": "stages", "hidden_size": 8, "layer_kinds": "ttttt"}
    assert content["rehearsal"] == "stages of 2 chunks in 2 processes"
    assert [how["micro_batch"] for _, how in stand_ins.checked] == [3, 1]
    assert stand_ins.said == []
    assert stand_ins.profile(pp=5)["chunks"][0] == (3, 5, [[1] * 5])
    with pytest.raises(ConfigError, match=r"--pp 6 is more than the 5 layers of own\.py:stages"):
        stand_ins.profile(pp=6)


@pytest.mark.parametrize(
    ("device", "layer_kinds", "reason"),
    [("cuda", "tt", "it takes a cuda device for each rank"), ("cpu", "tu", "its layers are not alike")],
)
def test_a_pipeline_on_a_gpu_or_of_different_layers_has_no_calibration_run(
    monkeypatch: pytest.MonkeyPatch, device: str, layer_kinds: str, reason: str
) -> None:
    stand_ins = Pipelines(monkeypatch, layer_kinds)
    assert "rehearsal" not in stand_ins.profile(device)
    (sentence,) = stand_ins.said
    assert sentence.startswith(f"no calibration run with 2 processes: {reason}")


def made_with(monkeypatch: pytest.MonkeyPatch, call: Any, **how: Any) -> dict[str, Any]:
    """Profile a function as `profile_made` does, with functions in place of the measurements."""
    monkeypatch.setattr(own_chunks, "function_of", lambda where: UserFunction(where, call, ""))
    for name in ("profile_pipeline", "_profile_stages"):
        monkeypatch.setattr(own_chunks, name, lambda function, settings, name=name, **how: {"by": name, **how})
    monkeypatch.setattr(
        own_chunks, "profile_module", lambda module, inputs, **how: {"module": module, "inputs": inputs, **how}
    )
    given = {"num_layers": None, "micro_batches": None, "pp": 1, "say": print, **how}
    return profile_made("own.py:stages", given.pop("settings", MeasuringSettings()), **given)


def test_a_model_is_measured_as_a_pipeline_or_by_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    def stages(layers: Sequence[int]) -> None:
        """Never called."""

    piped = made_with(monkeypatch, stages, pp=2)
    assert (piped["by"], piped["pp"], piped["micro_batches"]) == ("profile_pipeline", 2, [2])
    assert made_with(monkeypatch, stages, pp=2, micro_batches=[3])["micro_batches"] == [3]
    alone = made_with(monkeypatch, stages, num_layers=7)
    assert (alone["by"], alone["num_layers"], alone["micro_batches"]) == ("_profile_stages", 7, None)


def test_a_layer_is_measured_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, inputs = nn.Linear(2, 2), torch.zeros(3, 2)
    settings = MeasuringSettings("meta", 7, 3, 5, least_s=11.0, cuda_graphs=True)
    profile = made_with(monkeypatch, lambda: [layer, [inputs, 13]], settings=settings)
    assert profile.pop("module") is layer
    assert layer.weight.is_meta
    moved, number = profile.pop("inputs")
    assert (moved.is_meta, number) == (True, 13)
    assert profile == {
        "name": "stages", "num_layers": 1, "num_repeats": 7, "num_warm_up": 3, "num_threads": 5, "least_s": 11.0,
        "cuda_graphs": True, "say": print,
    }  # fmt: skip
    assert made_with(monkeypatch, lambda: (nn.ReLU(), inputs), num_layers=17)["num_layers"] == 17
    with pytest.raises(ConfigError, match="leave out --micro-batch-size"):
        made_with(monkeypatch, lambda: (layer, inputs), micro_batches=[2])
    with pytest.raises(ConfigError, match="--pp 2 measures the stages of a pipeline"):
        made_with(monkeypatch, lambda: (layer, inputs), pp=2)


@pytest.mark.parametrize("returned", [nn.ReLU(), (nn.ReLU(),), (nn.ReLU(), 3), (torch.zeros(2), torch.zeros(2))])
def test_a_layer_is_a_module_and_its_inputs(monkeypatch: pytest.MonkeyPatch, returned: Any) -> None:
    with pytest.raises(ConfigError, match="returns a torch module and its example inputs, a tuple"):
        made_with(monkeypatch, lambda: returned)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [("CUDA out of memory", "own.py:stages does not fit the memory of this device"), ("odd\neven", "fails: odd")],
)
def test_an_error_of_torch_is_a_sentence_and_garbage_is_collected_again(
    monkeypatch: pytest.MonkeyPatch, error: str, sentence: str
) -> None:
    calls: list[str] = []
    collector = SimpleNamespace(freeze=lambda: calls.append("freeze"), unfreeze=lambda: calls.append("unfreeze"))
    monkeypatch.setattr(own_chunks, "gc", collector)

    def failing(settings: Any, device: str) -> None:
        calls.append("measured")
        raise RuntimeError(error)

    monkeypatch.setattr(own_chunks, "_layer_made", failing)
    with pytest.raises(ConfigError, match=f"{sentence}$"):
        made_with(monkeypatch, lambda: None)
    assert calls == ["freeze", "measured", "unfreeze"]


def test_parts_of_a_model_have_the_flops_of_one_layer_and_the_threads_of_the_settings(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four layers are measured in a row; a model without its layers has the inputs' sequences of 4 tokens."""
    threads: list[int] = []
    asked: list[Any] = []

    def measured(parts: Any, settings: Any, *, shape: Any, say: Any) -> list[dict[str, Any]]:
        asked.append(([(part.name, len(part.subjects), part.flops, part.num_units) for part in parts], shape))
        return [{"micro_batch": shape["micro_batch"]}]

    checked: list[Any] = []
    monkeypatch.setattr(
        own_chunks, "check_user_model", lambda function, layers, **how: checked.append((layers, how))
    )
    monkeypatch.setattr(own_chunks, "measured_components", measured)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    content = own_chunks._profile_stages(
        function_of("own.py:alike"),
        MeasuringSettings(num_threads=3),
        num_layers=None,
        micro_batches=None,
        say=print,
    )
    tokens = 2 * 4
    assert asked == [
        (
            [("embedding", 1, 0, 1), ("layer", 2, tokens * 2 * 2 * 8 * 16, 4), ("head", 1, tokens * 2 * 8 * 16, 1)],
            {"micro_batch": 2, "sequence_length": 4, "dtype": "float32"},
        )
    ]
    assert threads == [3]
    assert checked == [([0, 1, 0], {"micro_batch": 2, "seed": 0, "device": "cpu"})]
    assert content["model"] == {"name": "alike", "num_layers": 5, "hidden_size": 8}
    assert content["measurements"] == [{"micro_batch": 2}]


def test_a_model_that_sends_single_numbers_has_one_column(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "own.py").write_text(
        "import torch\n"
        "class Stage(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.weight = torch.nn.Parameter(torch.ones(()))\n"
        "    def forward(self, x):\n"
        "        return x.mean() * self.weight\n"
        "def scalar(layers=(3,)):\n"
        "    stages = [Stage() for _ in layers]\n"
        "    return stages, torch.ones(4, 3), torch.zeros(4), lambda output, targets: output - targets.mean()\n"
    )
    monkeypatch.setattr(own_chunks, "measured_components", lambda parts, settings, shape, say: [])
    monkeypatch.setattr(UserChunkBuilder, "_layers", [nn.Linear(1, 1)] * 4)
    content = own_chunks._profile_stages(
        function_of("own.py:scalar"), MeasuringSettings(), num_layers=None, micro_batches=[2], say=print
    )
    assert content["model"] == {"name": "scalar", "num_layers": 3, "hidden_size": 1}
