"""What a rank of a divided layer holds."""

from dataclasses import replace
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model import shapes as shapes_module
from ppsim.model.activations import layer_activations
from ppsim.model.architecture import Model
from ppsim.model.attention_and_mlp import Attention, FeedForward
from ppsim.model.execution import Execution
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.recurrent import Mamba
from ppsim.model.registry import find_model as find_registered
from ppsim.model.shapes import (
    LayerShape,
    ModelShape,
    cut_of,
    head_activation_bytes,
    head_forward_flops,
    layer_activation_bytes,
    layer_forward_flops,
    layer_of,
    layer_parameters,
    model_shape_of,
    scores_in_prefix,
    shape_of,
    why_no_context_parallel,
)
from ppsim.profiling.model_shapes import find_model
from tests.defaults import number_defaults


def test_tensor_parallel_ranks_divide_heads_and_columns_those_of_a_shared_expert_too() -> None:
    whole = LayerShape(
        kind="moe", hidden_size=64, num_heads=8, num_kv_heads=4, head_size=8, ffn_size=96, num_experts=16,
        experts_per_token=2, shared_ffn_size=48,
    )  # fmt: skip
    part = whole.shard(tp=4, ep=8)
    assert (part.num_heads, part.num_kv_heads, part.ffn_size, part.shared_ffn_size) == (2, 1, 24, 12)
    assert part.local_experts == 2


def test_a_part_of_the_vocabulary_is_padded_as_megatron_lm_pads_it_and_the_whole_is_not() -> None:
    """A product of 6,283 columns, which no kernel is made for, took 5.6 times as long as one of 6,400 on an H100."""
    gpt = find_model("gpt3-175b")
    assert [gpt.shard(tp=tp).vocab_size for tp in (1, 8)] == [50257, 6400]
    assert find_model("llama3-8b").shard(tp=8).vocab_size == 16128


GPT = LayerShape(kind="gpt", hidden_size=64, num_heads=8, num_kv_heads=8, head_size=8, ffn_size=96)
MOE = replace(GPT, kind="moe", num_kv_heads=4, num_experts=16, experts_per_token=2)


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        (GPT, {"num_kv_heads": 4}),
        (GPT, {"num_experts": 4, "experts_per_token": 1}),
        (GPT, {"experts_per_token": 1}),
        (GPT, {"shared_ffn_size": 32}),
        (GPT, {"kind": "llama", "shared_ffn_size": 32}),
        (MOE, {"head_size": 7}),
        (MOE, {"ffn_size": 0}),
        (MOE, {"num_heads": 0}),
    ],
)
def test_a_layer_of_a_kind_has_only_the_sizes_of_this_kind(shape: LayerShape, sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        replace(shape, **sizes)


@pytest.mark.parametrize(
    ("shape", "cut"), [(MOE, {"tp": 0}), (MOE, {"ep": 0}), (MOE, {"tp": 3}), (MOE, {"ep": 3}), (GPT, {"ep": 2})]
)
def test_a_layer_is_divided_evenly_or_not_at_all(shape: LayerShape, cut: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        shape.shard(**cut)
    assert shape.shard() == replace(shape, num_local_experts=shape.shard().num_local_experts)


def test_the_head_multiplies_each_token_with_the_vocabulary() -> None:
    shape = model_shape_of(find_registered("llama3-8b"))
    assert head_forward_flops(shape, micro_batch=2, sequence_length=512) == 2 * 2 * 512 * 4096 * 128256


def test_what_is_left_out_in_model_shapes_has_these_values() -> None:
    assert number_defaults(shapes_module) == {
        "LayerShape": {"num_experts": 0, "experts_per_token": 0, "shared_ffn_size": 0},
        "LayerShape.shard": {"tp": 1, "ep": 1},
        "ModelShape.shard": {"tp": 1, "ep": 1},
        "layer_forward_flops": {"causal": False, "cp": 1},
        "layer_activation_bytes": {"fused_norm": True, "cp": 1},
        "head_activation_bytes": {"fused_norm": True},
    }  # fmt: skip


EAGER = Execution(fused_activation=False, weighted_output=True, norm_in_gemm=False)
LLAMA = replace(GPT, kind="llama", num_kv_heads=4)


def test_parameters_of_each_kind_are_those_of_its_matrices_biases_and_norms() -> None:
    """gpt: 4 · 64 + 96 + 64 biases and LayerNorms; llama: grouped queries and a gate; moe: a rank's experts."""
    attention, grouped = 4 * 64 * 64, 64 * (64 + 32 + 32) + 64 * 64
    assert layer_parameters(GPT) == attention + 2 * 64 * 96 + (3 * 64 + 64 + 96 + 64) + 2 * 2 * 64
    assert layer_parameters(LLAMA) == grouped + 3 * 64 * 96 + 2 * 64
    sparse = replace(MOE, shared_ffn_size=40)
    assert layer_parameters(sparse) == grouped + 16 * 3 * 64 * 96 + 3 * 64 * 40 + 64 * 16 + 2 * 64
    assert layer_parameters(sparse.shard(ep=4)) == grouped + 4 * 3 * 64 * 96 + 3 * 64 * 40 + 64 * 16 + 2 * 64
    assert (cut_of(sparse.shard(ep=4)).ep, cut_of(sparse.shard(ep=4)).dp, cut_of(GPT).ep) == (4, 4, 1)
    matrices = 2 * (grouped + 3 * 64 * 96)
    batch = {"micro_batch": 3, "sequence_length": 48}
    assert layer_forward_flops(LLAMA, **batch) == 3 * 48 * (matrices + 4 * 24 * 128)
    assert layer_forward_flops(LLAMA, **batch, causal=True, cp=2) == 3 * 48 * (matrices + 2 * 24 * 128) / 2


def test_shapes_are_those_of_layers_that_can_be_built() -> None:
    for shape in (GPT, LLAMA, MOE, replace(MOE, shared_ffn_size=40)):
        assert shape_of(layer_of(shape)) == shape
    for other in (
        replace(layer_of(LLAMA), attention=Mamba(8, 8, 8)),
        replace(layer_of(LLAMA), attention=Attention(8, 4, 8, qk_norm=True)),
        replace(layer_of(GPT), ffn=FeedForward(96)),
        replace(layer_of(GPT), attention=Attention(8, 4, 8, qkv_bias=True, out_bias=True)),
    ):
        assert shape_of(other) is None
    layer = layer_of(LLAMA)
    model = Model((layer,) * 3, 100, 48)
    assert model_shape_of(model) == ModelShape(LLAMA, 3, 100, 48)
    assert model_shape_of(Model((layer, layer_of(GPT)), 100, 48)) is None
    assert model_shape_of(Model((replace(layer, attention=Mamba(8, 8, 8)),), 100, 48)) is None
    assert ModelShape(LLAMA, 3, 100, 48).whole == model
    gpt = ModelShape(GPT, 3, 1000, 48)
    assert (gpt.whole.learned_positions, gpt.shard(tp=2).vocab_size, gpt.shard().vocab_size) == (48, 512, 1000)
    assert gpt.shard(tp=2).layer == GPT.shard(tp=2)
    for name in ("num_layers", "vocab_size", "sequence_length"):
        with pytest.raises(ConfigError, match=name):
            replace(gpt, **{name: 0})


@pytest.mark.parametrize(
    ("length", "cp", "reason"),
    [
        (10, 1, None), (12, 3, None), (11, 0, "cp must be at least 1: got 0"),
        (100, 3, "divisible by 6, two chunks per rank: got 100 (nearest: 96 or 102)"),
        (5, 3, "divisible by 6, two chunks per rank: got 5 (nearest: 6)"),
    ],
)  # fmt: skip
def test_context_parallel_ranks_have_two_chunks_each(length: int, cp: int, reason: str | None) -> None:
    found = why_no_context_parallel(length, cp)
    assert found is None if reason is None else reason in (found or "")
    for ranks in (2, 3, 5):
        chunks = [(i + 1) + (2 * ranks - i) for i in range(ranks)]
        assert scores_in_prefix(ranks) == sum(chunks) / ranks / (4 * ranks)


def saved_bytes(shape: LayerShape, **options: Any) -> float:
    given = {"micro_batch": 3, "sequence_length": 48, "dtype": "bfloat16"} | options
    return layer_activation_bytes(shape, **given) / (3 * 48)


def test_an_eager_layer_saves_its_tensors_and_the_statistics_of_norms() -> None:
    """Per token in 16 bits. Of 64: two residuals, two norms, queries, output; 32 keys and values; 8 float32 sums.

    The MLP: gate and up, SiLU and the product; in a gpt only up and its activation. A fused RMSNorm has 4 bytes, a
    LayerNorm two numbers; an RMSNorm of single operations saves two float32 tensors and a number.
    """
    tensors = 2 * (2 * 64 + 2 * 64 + 2 * 64 + 2 * 32) + 8 * 4 + 2 * 4 * 96
    assert saved_bytes(LLAMA) == tensors + 2 * 4
    assert saved_bytes(LLAMA, fused_norm=False) == tensors + 2 * ((2 * 64 + 1) * 4 - 64 * 2)
    assert saved_bytes(LLAMA, dtype="float32") == 2 * (tensors - 32) + 32 + 2 * 4
    assert saved_bytes(LLAMA, cp=2) == saved_bytes(LLAMA) / 2
    gpt = 2 * (2 * 64 + 2 * 64 + 2 * 64 + 2 * 64) + 8 * 4 + 2 * 2 * 96
    assert saved_bytes(GPT) == gpt + 2 * 2 * 2
    assert saved_bytes(LLAMA, recompute="full") == 2 * 64
    without_norms = saved_bytes(LLAMA, recompute="layernorm")
    assert without_norms == tensors - 2 * 2 * 64
    # Each of two experts per token has its weight twice, and three indices; the router's two float32 tensors go.
    beside = 2 * (4 + 2 + 24) - 8 * 16
    moe = replace(MOE, experts_per_token=2)
    by_plan = layer_activations(layer_of(moe), MemorySettings(3, 48, execution=EAGER), "none")
    assert saved_bytes(moe) == sum(by_plan.values()) / 144 + 2 * 4 + beside
    recomputed = layer_activations(layer_of(moe), MemorySettings(3, 48, execution=EAGER), "moe")
    assert saved_bytes(moe, recompute="moe") == sum(recomputed.values()) / 144 + 2 * 4


def test_a_head_saves_logits_in_float32_targets_and_its_norm() -> None:
    for kind, dtype, e, norm in (
        (LLAMA, "bfloat16", 2, 64 * 2 + 4), (LLAMA, "float32", 4, 64 * 4 + 4), (GPT, "bfloat16", 2, 66 * 2),
    ):  # fmt: skip
        model = ModelShape(kind, 3, 100, 48)
        found = head_activation_bytes(model, micro_batch=3, sequence_length=48, dtype=dtype)
        assert found == 3 * 48 * (64 * e + norm + 100 * 4 + 8)
    unfused = head_activation_bytes(
        ModelShape(LLAMA, 3, 100, 48), micro_batch=3, sequence_length=48, dtype="bfloat16", fused_norm=False
    )
    assert unfused == 3 * 48 * (64 * 2 + (2 * 64 + 1) * 4 + 100 * 4 + 8)


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_kv_heads": 3},
        {"kind": "moe", "num_experts": 4, "experts_per_token": 5},
        {"kind": "moe", "num_experts": 4, "experts_per_token": 0},
    ],
)
def test_heads_or_experts_that_cannot_be_are_refused(sizes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        replace(LLAMA, **sizes)
