"""Megatron-LM's options on the model, their defaults, and vocabularies of tokenizers."""

from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model.architecture import Model
from ppsim.model.registry import find_model
from ppsim.trainers.arguments import Arguments
from ppsim.trainers.megatron.read_model import model_of

MODEL = {"num_layers": 4, "hidden_size": 256, "ffn_hidden_size": 512, "num_attention_heads": 4, "seq_length": 512}


def model(**options: Any) -> Model:
    return model_of(Arguments({**MODEL, "vocab_size": 1000, **options}, "here", options))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"num_heads": 4, "num_kv_heads": 4, "head_size": 64, "qkv_bias": True, "out_bias": True}),
        ({"kv_channels": 32}, {"head_size": 32}),
        ({"num_query_groups": 2}, {"num_kv_heads": 4}),
        ({"group_query_attention": True, "num_query_groups": 2}, {"num_kv_heads": 2}),
        ({"group_query_attention": True}, {"num_kv_heads": 1}),
        ({"add_bias_linear": False}, {"qkv_bias": False, "out_bias": False}),
        ({"add_bias_linear": False, "add_qkv_bias": True}, {"qkv_bias": True, "out_bias": False}),
        ({"qk_layernorm": True}, {"qk_norm": True}),
        (
            {"multi_latent_attention": True},
            {"q_lora_rank": None, "kv_lora_rank": 32, "qk_nope_head_size": 128, "qk_rope_head_size": 64, "v_head_size": 128},
        ),
        (
            {"multi_latent_attention": True, "q_lora_rank": 16, "kv_lora_rank": 8, "qk_head_dim": 12, "v_head_dim": 10},
            {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_nope_head_size": 12, "v_head_size": 10},
        ),
    ],
)  # fmt: skip
def test_attention_has_the_sizes_of_the_options(options: dict[str, Any], expected: dict[str, Any]) -> None:
    mixer = model(**options).layers[0].attention
    assert {name: getattr(mixer, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("options", "size", "gated"),
    [
        ({}, 512, False),
        ({"swiglu": True}, 512, True),
        ({"quick_geglu": True}, 512, True),
        ({"ffn_hidden_size": None}, 4 * 256, False),
        (
            {"ffn_hidden_size": None, "swiglu": True},
            64 * 10,
            True,
        ),  # 4 · 256 · 2 / 3 = 682, down to a multiple of 64
        ({"ffn_hidden_size": None, "quick_geglu": True}, 4 * 256, True),
    ],
)
def test_dense_parts_have_megatron_lms_sizes(options: dict[str, Any], size: int, gated: bool) -> None:
    part = model(**options).layers[0].ffn
    assert (part.size, part.gated, part.bias) == (size, gated, True)


def test_experts_have_the_size_of_the_dense_part_and_two_experts_per_token_by_default() -> None:
    usual = model(num_experts=8).layers[0].ffn
    assert (usual.num_experts, usual.experts_per_token, usual.expert.size, usual.shared_size) == (8, 2, 512, 0)
    given = model(
        num_experts=8, moe_ffn_hidden_size=128, moe_router_topk=4, moe_shared_expert_intermediate_size=64
    ).layers[0].ffn  # fmt: skip
    assert (given.experts_per_token, given.expert.size, given.shared_size) == (4, 128, 64)
    assert model(num_experts=0).layers[0].ffn == model().layers[0].ffn


@pytest.mark.parametrize(
    ("options", "length", "learned"),
    [
        ({}, 512, 0),
        ({"max_position_embeddings": 1024}, 512, 1024),
        ({"max_position_embeddings": 1024, "position_embedding_type": "rope"}, 512, 0),
        ({"max_position_embeddings": 1024, "add_position_embedding": False}, 512, 0),
        ({"max_position_embeddings": 1024, "seq_length": None}, 1024, 1024),
        ({"seq_length": None, "encoder_seq_length": 256}, 256, 0),
        ({"seq_length": None}, 2048, 0),
    ],
)
def test_positions_and_lengths_have_their_fallbacks(options: dict[str, Any], length: int, learned: int) -> None:
    found = model(**options)
    assert (found.sequence_length, found.learned_positions) == (length, learned)


def test_layers_embeddings_norms_and_further_predictions_are_read() -> None:
    usual = model()
    assert (len(usual.layers), len(usual.mtp), usual.tied_embeddings, usual.layers[0].norm) == (
        4,
        0,
        True,
        "layernorm",
    )
    other = model(
        num_layers=None, encoder_num_layers=3, mtp_num_layers=2, untie_embeddings_and_output_weights=True,
        normalization="RMSNorm", mtp_use_repeated_layer=True,
    )  # fmt: skip
    assert (len(other.layers), len(other.mtp), other.tied_embeddings, other.layers[0].norm) == (
        3,
        2,
        False,
        "rmsnorm",
    )
    assert other.repeats_mtp
    assert not usual.repeats_mtp


@pytest.mark.parametrize(
    "options",
    [
        {"hidden_size": 254},
        {"encoder_num_layers": 2, "decoder_num_layers": 2},
        {"flextron": True},
        {"img_h": 224},
        {"patch_dim": 16},
        {"model_type": "bert"},
    ],
)
def test_models_that_are_no_chain_of_layers_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="here"):
        model(**options)


def read(**options: Any) -> tuple[int, str]:
    """Return the size of the vocabulary and the sentences on assumed values."""
    arguments = Arguments({**MODEL, **options}, "here", options)
    return model_of(arguments).vocab_size, " ".join(arguments.assumed)


@pytest.mark.parametrize(
    ("tokenizer", "model"),
    [
        ("meta-llama/Llama-2-7b-hf", "llama2-7b"),
        ("meta-llama/Meta-Llama-3-8B", "llama3-8b"),
        ("meta-llama/Llama-3.1-8B", "llama3-8b"),
        ("meta-llama/Llama-4-Scout-17B-16E", "llama4-scout"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("mistralai/Mixtral-8x22B-v0.1", "mixtral-8x22b"),
        ("deepseek-ai/DeepSeek-V2", "deepseek-v2"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("Qwen/Qwen3.5-27B", "qwen3.5-27b"),
        ("moonshotai/Kimi-K2-Base", "kimi-k2"),
        ("unsloth/gpt-oss-20b", "gpt-oss-20b"),
    ],
)
def test_a_tokenizer_has_the_vocabulary_of_its_model(tokenizer: str, model: str) -> None:
    size, assumed = read(tokenizer_model=tokenizer)
    assert size == find_model(model).vocab_size
    assert f"{size:,} rows" in assumed


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"tokenizer_type": "GPT2BPETokenizer"}, 50257),
        ({"merge_file": "merges.txt"}, 50257),
        ({"tokenizer_type": "Llama2Tokenizer"}, 32000),
        ({"tokenizer_type": "Llama3Tokenizer"}, 128256),
        ({"tokenizer_type": "BertWordPieceCase"}, 28996),  # of bert-base-cased
        ({"tokenizer_type": "BertWordPieceLowerCase"}, 30522),  # of bert-base-uncased
        (
            {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "THUDM/glm-4-9b"},
            151552,
        ),  # its config.json
        ({}, 128256),
    ],
)
def test_a_type_of_tokenizer_or_none_has_a_vocabulary(options: dict[str, str], size: int) -> None:
    found, assumed = read(**options)
    assert found == size
    assert ("give vocab-size" in assumed) == (not options)


@pytest.mark.parametrize("name", ["vocab_size", "padded_vocab_size"])
def test_a_size_that_is_given_is_taken(name: str) -> None:
    assert read(tokenizer_model="Qwen/Qwen3-8B", **{name: 1000}) == (1000, "")
