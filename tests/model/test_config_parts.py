"""Parts of a model from the fields of a config.json, and the defaults of fields that are missing."""

from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model import config_parts as config_parts_module
from ppsim.model.attention_and_mlp import FeedForward, MixtureOfExperts
from ppsim.model.config_parts import (
    are_of_kind,
    attention_of,
    decoder_of,
    dense_of,
    experts_of,
    latent_attention_of,
    layers_of,
    mamba_of,
    sparse_parts,
    with_windows,
)
from ppsim.model.hf_fields import ConfigFields
from tests.defaults import number_defaults


def fields(**values: Any) -> ConfigFields:
    return ConfigFields({"hidden_size": 64, "num_attention_heads": 8, **values}, "config.json")


def test_attention_has_a_share_of_the_hidden_size_per_head_unless_the_size_is_given() -> None:
    usual = attention_of(fields())
    assert (usual.num_heads, usual.num_kv_heads, usual.head_size) == (8, 8, 8)
    given = attention_of(fields(num_key_value_heads=2, head_dim=16))
    assert (given.num_kv_heads, given.head_size) == (2, 16)
    with pytest.raises(ConfigError, match="hidden_size 60 is no multiple"):
        attention_of(fields(hidden_size=60))
    assert attention_of(fields(hidden_size=60, head_dim=8)).head_size == 8


def test_a_family_has_its_own_default_of_the_head_size() -> None:
    default = attention_of(fields(num_key_value_heads=4), head_size=32)
    assert (default.num_kv_heads, default.head_size) == (4, 32)
    assert attention_of(fields(attention_head_dim=16), kv_heads=1, head_size=32).head_size == 16
    assert attention_of(ConfigFields({"hidden_size": 64}, ""), heads=4).num_heads == 4


def test_biases_of_attention_are_those_of_the_field_the_default_or_the_family() -> None:
    for options, biases in (
        ({}, (False, False)), ({"biased": True}, (True, True)), ({"qkv_bias": True, "out_bias": False}, (True, False)),
    ):  # fmt: skip
        found = attention_of(fields(), **options)
        assert (found.qkv_bias, found.out_bias) == biases
    assert attention_of(fields(attention_bias=True)).out_bias


def test_latent_attention_has_no_lora_of_queries_if_its_rank_is_null() -> None:
    ranks = {"kv_lora_rank": 32, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 10}
    found = latent_attention_of(fields(q_lora_rank=None, **ranks))
    assert (found.q_lora_rank, found.kv_lora_rank, found.v_head_size) == (None, 32, 10)
    assert (found.qk_nope_head_size, found.qk_rope_head_size) == (12, 4)


def test_mamba_has_biases_of_either_name_and_defaults_of_missing_fields() -> None:
    usual = mamba_of(fields(), 8, 16, 4, chunk=32)
    assert (usual.num_groups, usual.kernel, usual.chunk_size, usual.bias, usual.conv_bias) == (
        8,
        4,
        32,
        False,
        True,
    )
    other = mamba_of(
        fields(n_groups=2, conv_kernel=3, chunk_size=64, use_bias=True, use_conv_bias=False), 8, 16, 4, chunk=32
    )
    assert (other.num_groups, other.kernel, other.chunk_size, other.bias, other.conv_bias) == (
        2,
        3,
        64,
        True,
        False,
    )
    named = mamba_of(
        fields(mamba_proj_bias=False, use_bias=True, mamba_conv_bias=True, use_conv_bias=False), 8, 16, 4, chunk=32
    )
    assert (named.bias, named.conv_bias) == (False, True)


def test_feed_forward_parts_are_gated_without_biases_by_default() -> None:
    usual = dense_of(fields(intermediate_size=96))
    assert (usual.size, usual.gated, usual.bias) == (96, True, False)
    assert dense_of(fields(intermediate_size=96, mlp_bias=True)).bias


def experts(num_layers: int, **values: Any) -> list[bool]:
    """Return which layers have experts."""
    found = fields(
        intermediate_size=96, num_hidden_layers=num_layers, num_experts=4, num_experts_per_tok=2, **values
    )
    part = experts_of(found, ("num_experts",), FeedForward(32))
    return [isinstance(one, MixtureOfExperts) for one in sparse_parts(found, part)]


@pytest.mark.parametrize(
    ("values", "sparse"),
    [
        ({}, [True] * 4),
        ({"first_k_dense_replace": 1}, [False, True, True, True]),
        ({"first_k_dense_replace": 4}, [False] * 4),
        ({"moe_layer_freq": 2}, [True, False, True, False]),
        ({"moe_layer_freq": 2, "first_k_dense_replace": 1}, [False, False, True, False]),
        ({"moe_layer_freq": [0, 1, 1, 0, 1]}, [False, True, True, False]),
        ({"mlp_layer_types": ["dense", "sparse", "dense", "sparse"]}, [False, True, False, True]),
    ],
)
def test_layers_with_experts_are_counted_or_listed(values: dict[str, Any], sparse: list[bool]) -> None:
    assert experts(4, **values) == sparse


def test_more_dense_layers_than_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match="first_k_dense_replace 5"):
        experts(4, first_k_dense_replace=5)


def test_experts_have_the_counts_of_their_names() -> None:
    found = experts_of(
        fields(n_routed=16, top=4), ("num_experts", "n_routed"), FeedForward(32), chosen=("top",), shared_size=48
    )
    assert (found.num_experts, found.shared_size, found.expert.size) == (16, 48, 32)
    usual = fields(num_hidden_layers=2, intermediate_size=96)
    assert [one.size for one in sparse_parts(usual, found, first=2)] == [96, 96]
    assert [one.size for one in sparse_parts(usual, found, first=2, dense=FeedForward(24))] == [24, 24]


def test_layers_are_listed_by_kind_or_numbered_and_windows_are_for_some() -> None:
    assert are_of_kind(fields(), "sliding_attention", 3, lambda layer: layer % 2 == 0) == [True, False, True]
    listed = fields(layer_types=["full_attention", "sliding_attention"])
    assert are_of_kind(listed, "sliding_attention", 2, lambda layer: True) == [False, True]
    found = fields(num_hidden_layers=2, intermediate_size=96)
    layers = layers_of(found, attention_of(found), dense_of(found))
    assert with_windows(layers, None, [True, True]) == layers
    short, whole = with_windows(layers, 16, [True, False])
    assert short != layers[0]
    assert whole == layers[1]
    assert with_windows(layers, 16, [True, True], is_chunked=True)[0] != short


def test_a_decoder_has_its_fields_or_the_defaults_of_its_family() -> None:
    found = fields(num_hidden_layers=2, intermediate_size=96)
    layers = layers_of(found, attention_of(found), dense_of(found))
    usual = decoder_of(found, layers, tied=True, vocab=100, length=32)
    assert (usual.vocab_size, usual.tied_embeddings, usual.sequence_length) == (100, True, 32)
    assert usual.layers[0] is usual.layers[1]
    given = fields(vocab_size=200, max_position_embeddings=64, tie_word_embeddings=False)
    model = decoder_of(given, layers, tied=True, vocab=100, length=32)
    assert (model.vocab_size, model.tied_embeddings, model.sequence_length) == (200, False, 64)


def test_what_is_left_out_in_model_config_parts_has_these_values() -> None:
    assert number_defaults(config_parts_module) == {
        "decoder_of": {"tied": False},
        "attention_of": {"biased": False},
        "mamba_of": {"groups": 8},
        "dense_of": {"gated": True},
        "experts_of": {"shared_size": 0},
        "sparse_parts": {"first": 0},
        "with_windows": {"is_chunked": False},
    }  # fmt: skip
