"""Bytes of single rows of a ledger: Llama 3 8B's with 1024 tokens, by hand, and an encoder's."""

from dataclasses import replace
from typing import Any

import pytest

from ppsim.model import memory_rows as memory_rows_module
from ppsim.model.architecture import Layer, Model
from ppsim.model.attention_and_mlp import Attention, FeedForward
from ppsim.model.execution import Execution
from ppsim.model.fine_tuning import LayerTraining, fine_tuning_of, freeze_of
from ppsim.model.memory_rows import LAYER_GRADIENT, RowBytes, backward_bytes, bytes_of_row, saved_bytes
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.pipeline_stages import stages_of
from ppsim.model.recurrent import Mamba
from ppsim.model.registry import find_model
from ppsim.model.stage_rows import rows_of
from ppsim.parallel.sizes import ParallelSizes
from tests.defaults import number_defaults

HIDDEN = 1024 * 4096 * 2
LOGITS = 1024 * 128256
LAYER = 2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336 + 2 * 4096
SAVED = {
    "norms": 2 * HIDDEN,
    "attention": HIDDEN * 7 // 2,
    "scores": 1024 * 32 * 4,
    "feed-forward": HIDDEN * 23 // 2,
}
"""The norms' inputs; of attention the norm's output, q, k, v and output; sums; and four tensors of the MLP."""


def rows(
    *, name: str = "llama3-8b", freeze: str = "", recompute: str = "none", **fields: Any
) -> dict[str, RowBytes]:
    cut = fields.pop("cut", ParallelSizes())
    model = find_model(name).with_layers(4)
    model = model.with_fine_tuning(fine_tuning_of("", freeze_of(freeze))) if freeze else model
    settings = MemorySettings(1, 1024, cut, execution=Execution(recompute=recompute, **fields), deferred_head=3)
    (stage,) = stages_of(model, [4])
    return {row.kind: bytes_of_row(model, row, settings) for row in rows_of(model, stage, recompute)}


def test_a_layer_keeps_its_tensors_and_is_gathered_and_reduced_whole() -> None:
    layer = rows()["layer"]
    assert layer.saved == SAVED
    assert (layer.gathered, layer.reduced) == (2 * LAYER, LAYER)
    assert layer.for_weight == sum(SAVED.values()) - SAVED["scores"]
    assert (layer.mixed_again, layer.first_streams, layer.num_graphs) == (0, 0, 0)


def test_a_checkpoint_of_two_layers_keeps_their_input_and_makes_the_others_again() -> None:
    (largest,), (of_two,) = rows()["layer"].moments, rows(recompute="uniform/2")["checkpoint"].moments
    checkpoint = rows(recompute="uniform/2")["checkpoint"]
    assert checkpoint.saved == {"layer input": HIDDEN}
    assert of_two == {LAYER_GRADIENT: largest[LAYER_GRADIENT] + 2 * sum(SAVED.values()) - HIDDEN}
    assert (checkpoint.reduced, checkpoint.for_weight) == (LAYER, 2 * rows()["layer"].for_weight)


def test_a_head_has_a_moment_of_its_logits_and_one_of_their_gradient() -> None:
    """Without fusion, float32 logits and 16-bit gradients. Two tensor-parallel ranks gather the sequence for both passes."""
    (fused,) = rows()["head"].moments
    assert {name: size for name, size in fused.items() if size} == {
        "head": 2 * HIDDEN, "logits": 2 * LOGITS, "gradient placeholder of the head": 128256 * 4096 * 2,
    }  # fmt: skip
    assert rows()["head"].deferred == 3 * (2 * LOGITS + HIDDEN)
    first, last = rows(cross_entropy="unfused", cut=ParallelSizes(tp=2))["head"].moments
    assert (first["logits"], last["logits"]) == (4 * LOGITS / 2, 0)
    assert first["gradient of the logits"] == last["gradient of the logits"] == 2 * LOGITS / 2
    assert first["gathered sequence"] == 2 * HIDDEN
    assert "gradient placeholder of the head" in last.keys() - first.keys()
    frozen = rows(freeze="head", cut=ParallelSizes(tp=2))["head"]
    assert frozen.deferred == 0
    assert [moment["gathered sequence"] for moment in frozen.moments] == [HIDDEN]
    assert "gradient placeholder of the head" not in frozen.moments[-1]


@pytest.mark.parametrize("freeze", ["", "encoder", "encoder+projector"])
def test_an_encoder_is_gathered_by_layer_and_reduces_what_trains(freeze: str) -> None:
    """Qwen3-VL's encoder: the first layer has the embedding of patches and of positions."""
    encoder = rows(name="qwen3-vl-8b", freeze=freeze)["encoder"]
    layer = 4 * 1152**2 + 2 * 1152 * 4304 + 3456 + 1152 + 4304 + 1152 + 4 * 1152
    embedding = 1152 * (3 * 2 * 16 * 16 + 1) + 1152 * 48**2
    assert encoder.gathered == 2 * (layer + embedding)
    assert encoder.reduced == (0 if freeze else layer + embedding)
    assert (encoder.saved == {}) == (freeze == "encoder+projector")
    assert bool(encoder.for_weight) == (not freeze)


def test_what_is_left_out_in_model_memory_rows_has_these_values() -> None:
    assert number_defaults(memory_rows_module) == {
        "RowBytes": {"for_weight": 0, "num_graphs": 0, "mixed_again": 0, "first_streams": 0, "gathered": 0, "reduced": 0, "deferred": 0},
    }  # fmt: skip


ATTENTION = Attention(12, 6, 10)
SMALL = Layer(36, ATTENTION, FeedForward(46))


def row_of(model: Model, kind: str, *, recompute: str = "none", layers: int = 2, **other: Any) -> RowBytes:
    settings = MemorySettings(3, 50, execution=Execution(recompute=recompute), **other)
    (stage, *_) = reversed(stages_of(model, [len(model.layers) - layers, layers]))
    return next(bytes_of_row(model, row, settings) for row in rows_of(model, stage, recompute) if row.kind == kind)


def test_a_stage_receives_earlier_residuals_except_that_of_its_first_layer() -> None:
    """The first layer of the second stage sums four states, and counts one of them itself."""
    sums = tuple(replace(SMALL, summed_residuals=rows) for rows in ((1, 2), (2, 3), (4, 7), (7, 8)))
    received = row_of(Model(sums, 100, 50), "received")
    assert received.saved == {"earlier residuals": 3 * 150 * 36 * 2}


def test_a_checkpoint_of_layers_of_two_widths_of_streams_holds_the_input_of_the_first() -> None:
    layers = (SMALL,) * 2 + (replace(SMALL, streams=3), replace(SMALL, streams=3, norm="layernorm"))
    found = row_of(Model(layers, 100, 50), "checkpoint", recompute="uniform/2")
    assert found.saved == {"layer input": 150 * 3 * 36 * 2}
    assert found.num_graphs == 0


def test_a_layer_of_further_tokens_also_saves_its_projection_and_is_not_gathered() -> None:
    model = Model((SMALL,) * 4, 100, 50, mtp=(SMALL,))
    layer, further = row_of(model, "layer"), row_of(model, "mtp")
    # The two normed states, their inputs: token and x.
    extra = {name: size - layer.saved.get(name, 0) for name, size in further.saved.items()}
    assert {name: size for name, size in extra.items() if size} == {
        "multi-token prediction": 150 * 2 * (36 + 36 + 72)
    }
    assert (further.gathered, further.reduced) == (0, 0)
    assert layer.gathered == 2 * SMALL.parameters
    assert layer.reduced == SMALL.parameters
    assert layer.sizes == {36 * 240, 120 * 36, 36 * 92, 46 * 36}


def test_streams_are_mixed_again_from_the_first_ones() -> None:
    model = Model((replace(SMALL, streams=3),) * 4, 100, 50)
    plain, mixed = row_of(model, "layer"), row_of(model, "layer", recompute="mhc")
    assert (plain.first_streams, plain.mixed_again) == (0, 0)
    assert mixed.first_streams == 150 * 3 * 36 * 2
    assert mixed.mixed_again == sum(plain.saved.values()) - sum(mixed.saved.values()) > 0


def test_a_backward_needs_the_states_of_a_scan_if_they_are_larger_and_what_is_computed_again() -> None:
    mamba = Layer(36, Mamba(8, 12, 64, chunk_size=2), FeedForward(4))
    settings = MemorySettings(3, 50, ParallelSizes(tp=2))
    assert backward_bytes(mamba, settings) == 150 * (8 * 96 * 64 // 2) // 2
    frozen = replace(SMALL, training=LayerTraining(frozenset(), has_backward=False))
    assert backward_bytes(frozen, settings) == 0
    assert saved_bytes(frozen, settings) == 0
    again = backward_bytes(SMALL, settings, "selective-op") - backward_bytes(SMALL, settings)
    assert again > 0
