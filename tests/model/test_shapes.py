"""What a rank of a divided layer holds."""

from dataclasses import replace

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model import shapes as shapes_module
from ppsim.model.registry import find_model as find_registered
from ppsim.model.shapes import LayerShape, head_forward_flops, model_shape_of
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
