"""Models as Megatron-LM's arguments: what their papers and configurations say of each kind of layer."""

from typing import Any

import pytest

from ppsim.model.registry import find_model
from ppsim.trainers.megatron.write_model import model_arguments, without_source

LATENT = {"multi_latent_attention": True, "kv_lora_rank": 512, "qk_pos_emb_head_dim": 64}


@pytest.mark.parametrize(
    ("name", "expected", "absent"),
    [
        ("gpt2", {
            "num_layers": 12, "hidden_size": 768, "normalization": "LayerNorm", "vocab_size": 50257,
            "position_embedding_type": "learned_absolute", "add_position_embedding": True, "max_position_embeddings": 1024,
            "untie_embeddings_and_output_weights": False, "num_attention_heads": 12, "kv_channels": 64, "ffn_hidden_size": 3072,
        }, {"disable_bias_linear", "swiglu", "num_query_groups", "window_size"}),
        ("gpt-oss-20b", {
            "position_embedding_type": "yarn", "rotary_scaling_factor": 32.0, "max_position_embeddings": 512,
            "window_size": "127,0", "window_attn_skip_freq": "(" + "+".join(["[1]*1+[0]*1"] * 12) + ")",
            "softmax_type": "learnable", "num_query_groups": 8, "quick_geglu": True, "glu_linear_offset": 1.0,
            "activation_func_clamp_value": 7.0, "num_experts": 32, "moe_router_topk": 4,
        }, {"disable_bias_linear", "swiglu", "add_qkv_bias", "moe_layer_freq"}),
        ("deepseek-v3", LATENT | {
            "num_layers": 61, "disable_bias_linear": True, "mtp_num_layers": 1, "qk_head_dim": 128, "v_head_dim": 128,
            "q_lora_rank": 1536, "kv_channels": 128, "num_attention_heads": 128, "num_experts": 256, "moe_router_topk": 8,
            "moe_shared_expert_intermediate_size": 2048, "moe_layer_freq": "([0]*3+[1]*58)", "ffn_hidden_size": 18432,
        }, {"experimental_attention_variant", "group_query_attention", "mtp_use_repeated_layer"}),
        ("glm-5.2", LATENT | {
            "experimental_attention_variant": "dsa", "dsa_indexer_topk": 2048, "dsa_indexer_skip_topk_offset": 3,
            "dsa_indexer_topk_freq": 4, "kv_channels": 256, "moe_layer_freq": "([0]*3+[1]*75)",
        }, {"linear_attention_freq"}),
        ("qwen3-next-80b-a3b", {
            "experimental_attention_variant": "gated_delta_net", "linear_num_key_heads": 16, "linear_num_value_heads": 32,
            "linear_attention_freq": "(" + "+".join(["[1]*3+[0]*1"] * 12) + ")", "moe_shared_expert_gate": True,
            "attention_output_gate": True, "num_query_groups": 2,
        }, {"is_hybrid_model", "window_size"}),
        ("nemotron-h-8b", {
            "num_layers": 52, "is_hybrid_model": True, "mamba_num_heads": 128, "mamba_head_dim": 64, "mamba_state_dim": 128,
            "mamba_num_groups": 8, "ffn_hidden_size": 21504, "num_query_groups": 8,
        }, {"experimental_attention_variant", "mtp_num_layers"}),
        ("qwen2.5-7b", {"add_qkv_bias": True, "disable_bias_linear": True, "swiglu": True, "num_query_groups": 4}, {"mtp_num_layers"}),
        ("gemma3-1b", {
            "window_size": "511,0", "window_attn_skip_freq": "(" + "+".join(["[1]*5+[0]*1"] * 4) + "+[1]*2)",
            "untie_embeddings_and_output_weights": False, "qk_layernorm": True,
        }, {"softmax_type"}),
    ],
)  # fmt: skip
def test_a_model_has_these_arguments(name: str, expected: dict[str, Any], absent: set[str]) -> None:
    found = model_arguments(find_model(name), 512)
    assert found is not None
    assert {option: found.get(option) for option in expected} == expected
    assert not absent & found.keys()


def test_a_pattern_has_a_letter_for_each_layer() -> None:
    found = model_arguments(find_model("nemotron-h-8b"), 512)
    assert found is not None
    pattern = found["hybrid_layer_pattern"]
    assert {letter: pattern.count(letter) for letter in "M*-"} == {"M": 24, "*": 4, "-": 24}


def test_learned_positions_are_as_many_as_the_sequence_needs() -> None:
    for length, positions in ((512, 1024), (4096, 4096)):
        found = model_arguments(find_model("gpt2"), length)
        assert found is not None
        assert found["max_position_embeddings"] == positions


def test_models_are_compared_without_their_source_and_length() -> None:
    found = without_source(find_model("gpt2"))
    assert (found.source, found.sequence_length) == ("", 1)
