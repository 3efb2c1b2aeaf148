"""Chunks of TorchTitan's models: their modules, inputs and sizes, without TorchTitan itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from tests.integrations.stubs import imported_with

pytest.importorskip("torch")

import torch

MODULE = "ppsim.integrations.torchtitan_chunks"
NOTED: list[Any] = []


def note(call: Any, answer: Any) -> Any:
    NOTED.append(call)
    return answer


@contextmanager
def noted(name: Any) -> Iterator[None]:
    """Note begin and end of a block."""
    NOTED.append(f"{name} begins")
    yield
    NOTED.append(f"{name} ends")


PARTS = [["tok_embeddings", "layers.0"], ["layers.1", "layers.2", "norm"], ["lm_head"], ["of no stage"]]
STUBS: dict[str, dict[str, Any]] = {
    "torchtitan.config": {"TORCH_DTYPE_MAP": {"bfloat16": torch.bfloat16}},
    "torchtitan.distributed": {
        "pipeline_parallel": SimpleNamespace(
            _get_pipeline_metadata=lambda *given: (3, *given),
            _generate_llm_fqn_per_model_part=lambda stages, *rest: note(rest, PARTS[:stages]),
        )
    },
    "torchtitan.tools": {"utils": SimpleNamespace(set_default_dtype=noted)},
}


@pytest.fixture(scope="module")
def chunks() -> Iterator[Any]:
    """Return the module, imported with names of TorchTitan that do nothing."""
    with imported_with(STUBS, MODULE) as module:
        yield module


@dataclass(frozen=True)
class Parallelism:
    """Options of a trainer's pipeline."""

    module_fqns_per_model_part: list[list[str]] | None = None
    pipeline_parallel_microbatch_size: int = 3
    pipeline_parallel_schedule: str = "Interleaved1F1B"
    pipeline_parallel_schedule_csv: str = "T.csv"


class Model(torch.nn.Module):
    """A model that adds `arguments["add"]`, and notes calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleDict({"4": torch.nn.Identity(), "5": torch.nn.Identity()})
        self.lm_head = torch.nn.Identity()

    def to_empty(self, *, device: Any, recurse: bool = True) -> Any:
        NOTED.append(("to_empty", device.type))

    def init_weights(self, *, buffer_device: Any) -> None:
        NOTED.append(("init_weights", buffer_device, torch.is_grad_enabled()))

    def forward(self, given: Any, *, add: float) -> Any:
        NOTED.append(("forward", given.shape, torch.is_grad_enabled()))
        return given + add


class Sharded(Model):
    """A model with FSDP."""

    def set_is_last_backward(self, setting: bool) -> None:
        NOTED.append(("last backward", setting))

    def set_reshard_after_backward(self, setting: bool) -> None:
        NOTED.append(("reshard", setting))

    def set_requires_gradient_sync(self, setting: bool) -> None:
        NOTED.append(("sync", setting))


class Loss:
    """A loss that holds the head."""

    def set_lm_head(self, head: Any) -> None:
        NOTED.append(("head", type(head).__name__))

    def __call__(self, output: Any, labels: Any, *, global_valid_tokens: Any) -> Any:
        return output, labels, global_valid_tokens


class FullAC:
    class Config: ...


class SelectiveAC:
    class Config: ...


class Other:
    class Config: ...


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a trainer of 7 layers, with batches of 3 · 20 tokens on 5 context-parallel ranks."""
    NOTED.clear()
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "fake")

    def prepared(inputs: dict[str, Any], labels: Any) -> Any:
        NOTED.append(inputs)
        return "inputs", labels + 100, {"add": 0.5}

    training = SimpleNamespace(seq_len=20, dtype="bfloat16", mixed_precision_param="float16")
    built = Model()
    return SimpleNamespace(
        config=SimpleNamespace(
            parallelism=Parallelism(), training=training, compile="compile", activation_checkpoint=None,
            dump_folder="folder", model_spec=SimpleNamespace(
                pipelining_fn=lambda *given, **named: note((given, named), ("stages", [built], "more", 1)),
                parallelize_fn="parallelize",
            ),
        ),
        parallel_dims=SimpleNamespace(pp_enabled=True, pp=2, tp=7, cp=5, ep=11), device=torch.device("cpu"),
        model_config=SimpleNamespace(layers=range(7), vocab_size=13, build=lambda: note("built", "whole")),
        post_dataloading_process=prepared, train_context=lambda: noted("context"), loss_fn=Loss(), built=built,
    )  # fmt: skip


def test_a_trainer_needs_a_pipeline_and_fake_process_groups(
    chunks: Any, trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "gloo")
    with pytest.raises(ConfigError, match="the trainer's process groups send"):
        chunks.TitanBuilder(trainer)
    trainer.parallel_dims.pp_enabled = False
    with pytest.raises(ConfigError, match="the trainer has no pipeline"):
        chunks.TitanBuilder(trainer)


def test_tokens_have_the_part_of_a_sequence_on_a_context_parallel_rank(chunks: Any, trainer: Any) -> None:
    builder = chunks.TitanBuilder(trainer)
    (inputs,) = NOTED
    assert inputs["positions"].tolist() == 3 * [[0, 1, 2, 3]]
    tokens = [inputs["input"], builder.tokens(), builder.input_of(chunks.LayerWindow(0, 1, is_first=True))]
    assert [tuple(batch.shape) for batch in tokens] == 3 * [(3, 4)]
    assert all(0 <= int(batch.min()) <= int(batch.max()) < 13 for batch in tokens)
    assert builder.num_layers == 7
    trainer.loss_fn = lambda *given, **named: [(*given, named["global_valid_tokens"])]
    output, labels, valid = builder._loss("output")
    assert (output, valid.item()) == ("output", 12.0)
    assert 100 <= int(labels.min()) <= int(labels.max()) < 113


def test_the_own_split_counts_the_layers_of_each_part(chunks: Any, trainer: Any) -> None:
    builder = chunks.TitanBuilder(trainer)
    assert builder.own_split() == [1, 2, 0]
    assert NOTED[-1] == (trainer.parallel_dims, trainer.config.parallelism, trainer.model_config)
    parts = [["tok_embeddings"], ["layers.0", "layers.1", "layers.2"], ["layers.3", "norm", "lm_head"]]
    trainer.config.parallelism = Parallelism(parts)
    assert builder.own_split() == [0, 3, 1]


@pytest.mark.parametrize(
    ("window", "names"),
    [
        ((0, 2, True, False), ["tok_embeddings", "layers.0", "layers.1"]),
        ((4, 6, False, False), ["layers.4", "layers.5"]),
        ((6, 7, False, True), ["layers.6", "norm", "lm_head"]),
    ],
)
def test_a_window_is_built_as_every_stage_of_the_pipeline(
    chunks: Any, trainer: Any, window: Any, names: list[str]
) -> None:
    builder = chunks.TitanBuilder(trainer)
    NOTED.clear()
    is_last = window[-1]
    chunk = builder.build(chunks.LayerWindow(*window))
    parallelism = Parallelism([names, names], 3, "1F1B", "")
    given, named = NOTED[3]
    assert NOTED[:3] == ["torch.bfloat16 begins", "built", "torch.bfloat16 ends"]
    assert given == ("whole",)
    assert named == {
        "parallel_dims": trainer.parallel_dims, "training": trainer.config.training, "parallelism": parallelism,
        "compile_config": "compile", "ac_config": None, "dump_folder": "folder", "device": trainer.device,
        "model_config": trainer.model_config, "parallelize_fn": "parallelize", "loss_fn": trainer.loss_fn,
    }  # fmt: skip
    assert NOTED[4:] == [("to_empty", "cpu"), ("init_weights", None, False), *[("head", "Identity")] * is_last]
    assert chunk.layers == list(trainer.built.layers.values())
    assert (chunk.loss == builder._loss) == is_last
    assert (chunk.loss is None) != is_last
    assert getattr(trainer.built, "_skip_lm_head", False) is is_last
    NOTED.clear()
    assert chunk.module(torch.tensor([2.0])).tolist() == [2.5]
    assert NOTED == ["context begins", ("forward", (1,), True), "context ends"]


def test_a_sharded_model_keeps_its_weights_and_gradients_as_before_the_last_microbatch(
    chunks: Any, trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "FSDPModule", Sharded)
    sharded, trainer.loss_fn = Sharded().eval(), "a loss without a head"
    trainer.config.model_spec.pipelining_fn = lambda *given, **named: ("stages", [sharded])
    builder = chunks.TitanBuilder(trainer)
    builder.build(chunks.LayerWindow(0, 7, is_first=True, is_last=True))
    assert NOTED[-3:] == [("last backward", False), ("reshard", False), ("sync", False)]
    assert sharded.training
    assert not hasattr(sharded, "_skip_lm_head")


def test_hidden_states_are_of_the_output_of_the_embedding_which_runs_once(chunks: Any, trainer: Any) -> None:
    builder, later = chunks.TitanBuilder(trainer), chunks.LayerWindow(2, 4)
    NOTED.clear()
    builder.tokens = lambda: torch.zeros(3, 4)
    first, second = builder.input_of(later), builder.input_of(later)
    assert [names for names in NOTED if names[0] == "forward"] == [("forward", (3, 4), False)]
    assert NOTED[3][1]["parallelism"].module_fqns_per_model_part == 2 * [["tok_embeddings"]]
    assert first.shape == second.shape == (3, 4)
    assert not torch.equal(first, second)
    builder._hidden, builder.tokens = None, lambda: torch.nn.Parameter(torch.zeros(3, 4))
    trainer.built.forward = lambda given, **_: given
    with pytest.raises(ConfigError, match="stages send a Parameter: only plain tensors are measured"):
        builder.input_of(later)


def test_a_profile_has_the_sizes_of_the_trainer(chunks: Any, trainer: Any) -> None:
    builder = chunks.TitanBuilder(trainer)
    sizes = {"micro_batch": 3, "sequence_length": 20, "dtype": "float16", "tp": 7, "cp": 5, "ep": 11}
    assert builder.shape() == sizes | {"recompute": "none"}
    assert builder.forward_flops("Ett") is None
    for checkpointing, recompute in ((FullAC, "full"), (SelectiveAC, "selective-op")):
        trainer.config.activation_checkpoint = checkpointing.Config()
        assert builder.shape() == sizes | {"recompute": recompute}
    trainer.config.activation_checkpoint = Other.Config()
    with pytest.raises(ConfigError, match="activation checkpointing by Other is not known here"):
        builder.shape()
