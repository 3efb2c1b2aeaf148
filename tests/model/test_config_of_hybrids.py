"""config.json of models whose layers differ is read as the model of that name, field by field as it was released."""

from dataclasses import replace

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model import hybrid as hybrid_module
from ppsim.model.architecture import Layer, Model
from ppsim.model.attention_and_mlp import (
    Attention,
    FeedForward,
    LatentAttention,
    MixtureOfExperts,
    NoAttention,
    NoFeedForward,
)
from ppsim.model.config import model_from
from ppsim.model.hybrid import HybridMixers, with_documents
from ppsim.model.recurrent import GatedDeltaNet, Mamba
from ppsim.model.registry import find_model
from tests.defaults import number_defaults

GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": 200002,
    "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
    "initializer_range": 0.02, "intermediate_size": 2880, "max_position_embeddings": 131072, "model_type": "gpt_oss",
    "layer_types": ["sliding_attention", "full_attention"] * 12, "num_attention_heads": 64, "num_experts_per_tok": 4,
    "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": False,
    "pad_token_id": 199999, "quantization_config": {"quant_method": "mxfp4"}, "rms_norm_eps": 1e-05,
    "rope_scaling": {"rope_type": "yarn"}, "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128,
    "swiglu_limit": 7.0, "tie_word_embeddings": False, "transformers_version": "4.55.0", "use_cache": True,
    "vocab_size": 201088,
}  # fmt: skip
NEMOTRON_3 = {
    "model_type": "nemotron_h", "attention_bias": False, "attention_dropout": 0.0, "chunk_size": 128,
    "conv_kernel": 4, "expand": 2, "head_dim": 128, "hidden_dropout": 0.0, "hidden_size": 2688,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "intermediate_size": 1856,
    "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 64,
    "mamba_proj_bias": False, "mamba_ssm_cache_dtype": "float32", "max_position_embeddings": 262144,
    "mlp_bias": False, "mlp_hidden_act": "relu2", "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "n_groups": 8, "n_routed_experts": 128,
    "n_shared_experts": 1, "norm_eps": 1e-05, "norm_topk_prob": True, "num_attention_heads": 32,
    "num_experts_per_tok": 6, "num_hidden_layers": 52, "num_key_value_heads": 2, "num_logits_to_keep": 1,
    "partial_rotary_factor": 1.0, "rescale_prenorm_residual": True, "residual_in_fp32": False, "rope_theta": 10000,
    "routed_scaling_factor": 2.5, "sliding_window": None, "ssm_state_size": 128, "tie_word_embeddings": False,
    "time_step_floor": 0.0001, "time_step_limit": [0.0, 9.0], "time_step_max": 0.1, "time_step_min": 0.001,
    "topk_group": 1, "use_bias": False, "use_cache": True, "use_conv_bias": True, "use_mamba_kernels": True,
    "vocab_size": 131072,
}  # fmt: skip
SUPER = NEMOTRON_3 | {
    "hidden_size": 4096, "mamba_num_heads": 128, "moe_latent_size": 1024, "moe_intermediate_size": 2688,
    "moe_shared_expert_intermediate_size": 5376, "n_routed_experts": 512, "num_experts_per_tok": 22,
    "hybrid_override_pattern": "MEMEMEM*EMEMEMEM*EMEMEMEM" + "*EMEMEMEMEM" * 4 + "*EMEMEMEM*EMEMEMEME",
    "num_hidden_layers": 88, "num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E",
}  # fmt: skip
NEMOTRON_H = {name: value for name, value in NEMOTRON_3.items() if "moe" not in name and "expert" not in name} | {
    "hidden_size": 4096, "mamba_num_heads": 128, "intermediate_size": 21504, "num_key_value_heads": 8,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", "num_hidden_layers": 52,
}  # fmt: skip
QWEN3_NEXT = {
    "model_type": "qwen3_next", "attention_bias": False, "decoder_sparse_step": 1, "full_attention_interval": 4,
    "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_value_head_dim": 128, "max_position_embeddings": 262144,
    "mlp_only_layers": [], "moe_intermediate_size": 512, "norm_topk_prob": True, "num_attention_heads": 16,
    "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2,
    "partial_rotary_factor": 0.25, "rope_scaling": None, "rope_theta": 10000000,
    "shared_expert_intermediate_size": 512, "tie_word_embeddings": False, "vocab_size": 151936,
}  # fmt: skip
LLAMA4_TEXT = {
    "model_type": "llama4_text", "attention_bias": False, "attention_chunk_size": 8192, "attn_scale": 0.1,
    "attn_temperature_tuning": 4, "floor_scale": 8192, "for_llm_compressor": False, "head_dim": 128,
    "hidden_size": 5120, "interleave_moe_layer_step": 2, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
    "max_position_embeddings": 1048576, "no_rope_layers": [], "num_attention_heads": 40, "num_experts_per_tok": 1,
    "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 128, "output_router_logits": False,
    "rope_theta": 500000.0, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "use_qk_norm": False,
    "vocab_size": 202048, "tie_word_embeddings": False,
}  # fmt: skip
GEMMA2 = {
    "model_type": "gemma2", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 3584,
    "intermediate_size": 14336, "max_position_embeddings": 8192, "num_attention_heads": 16, "num_hidden_layers": 42,
    "num_key_value_heads": 8, "query_pre_attn_scalar": 256, "sliding_window": 4096, "vocab_size": 256000,
}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3", "boi_token_index": 255999, "eoi_token_index": 256000, "image_token_index": 262144,
    "mm_tokens_per_image": 256, "vision_config": {"hidden_size": 1152},
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0}, "sliding_window": 1024,
    },
}  # fmt: skip
FULL = [4, 8, 12, 16, 20, 24, 27]
KIMI_LINEAR = {
    "model_type": "kimi_linear", "first_k_dense_replace": 1, "head_dim": 72, "hidden_act": "silu",
    "hidden_size": 2304, "intermediate_size": 9216, "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": FULL, "head_dim": 128, "kda_layers": sorted(set(range(1, 28)) - set(FULL)),
        "num_heads": 32, "short_conv_kernel_size": 4,
    },
    "mla_use_nope": True, "model_max_length": 1048576, "moe_intermediate_size": 1024, "moe_layer_freq": 1,
    "moe_renormalize": True, "moe_router_activation_func": "sigmoid", "num_attention_heads": 32,
    "num_expert_group": 1, "num_experts": 256, "num_experts_per_token": 8, "num_hidden_layers": 27,
    "num_key_value_heads": 32, "num_nextn_predict_layers": 0, "num_shared_experts": 1, "q_lora_rank": None,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_scaling": None, "rope_theta": 10000.0,
    "routed_scaling_factor": 2.446, "tie_word_embeddings": False, "topk_group": 1, "use_grouped_topk": True,
    "v_head_dim": 128, "vocab_size": 163840,
}  # fmt: skip
MAMBA2 = {
    "model_type": "mamba2", "hidden_size": 2560, "num_heads": 80, "head_dim": 64, "state_size": 128, "n_groups": 1,
    "expand": 2, "conv_kernel": 4, "chunk_size": 256, "num_hidden_layers": 64, "vocab_size": 50288, "use_bias": False,
    "use_conv_bias": True, "tie_word_embeddings": True, "rms_norm": True, "time_step_rank": 160,
}  # fmt: skip
BAMBA = {
    "model_type": "bamba", "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 1024, "mamba_n_heads": 16, "mamba_d_head": "auto",
    "mamba_expand": 2, "mamba_n_groups": 2, "mamba_d_state": 32, "vocab_size": 1000, "attn_layer_indices": [2, 4],
}  # fmt: skip
BY_NAME = {
    "gpt-oss-20b": GPT_OSS,
    "nemotron-3-nano-30b-a3b": NEMOTRON_3,
    "nemotron-3-super-120b-a12b": SUPER,
    "nemotron-h-8b": NEMOTRON_H,
    "qwen3-next-80b-a3b": QWEN3_NEXT,
    "llama4-maverick": {"model_type": "llama4", "vision_config": {}, "text_config": LLAMA4_TEXT},
    "gemma2-9b": GEMMA2,
    "gemma3-4b": GEMMA3,
    "kimi-linear-48b-a3b": KIMI_LINEAR,
    "mamba2-2.7b": MAMBA2,
}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_released_file_is_the_model_of_that_name(name: str) -> None:
    read, known = model_from(BY_NAME[name]), find_model(name)
    assert read.without_encoders().parameters == known.parameters
    assert (read.layers, read.mtp, read.tied_embeddings) == (known.layers, known.mtp, known.tied_embeddings)


def test_bambas_layers_have_a_mixer_and_a_feed_forward_part() -> None:
    """18,654,400: the parameters of `BambaForCausalLM` in transformers 5.23 of these sizes."""
    model = model_from(BAMBA)
    assert model.parameters == 18_654_400
    assert [isinstance(layer.attention, Mamba) for layer in model.layers] == [True, True, False, True, False, True]


def test_the_kinds_of_layers_follow_layer_types() -> None:
    words = ["full_attention", "linear_attention"]
    model = model_from(QWEN3_NEXT | {"num_hidden_layers": 2, "layer_types": words})
    assert [isinstance(layer.attention, GatedDeltaNet) for layer in model.layers] == [False, True]
    whole = model_from(GPT_OSS | {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2})
    assert [layer.attention.window for layer in whole.layers] == [None, None]


def test_nemotrons_list_of_words_is_its_pattern() -> None:
    words = {"M": "mamba", "E": "moe", "*": "attention"}
    spelt = {name: value for name, value in NEMOTRON_3.items() if name != "hybrid_override_pattern"}
    spelt["layers_block_type"] = [words[letter] for letter in NEMOTRON_3["hybrid_override_pattern"]]
    assert model_from(spelt).layers == model_from(NEMOTRON_3).layers


def windows(model: Model) -> list[int | None]:
    return [layer.attention.window for layer in model.layers]


def test_sliding_windows_of_mistral_and_qwen_are_counted() -> None:
    """Mistral's is all layers'; Qwen's those from max_window_layers on, where use_sliding_window asks for it."""
    llama = {
        "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128,
        "vocab_size": 100, "max_position_embeddings": 4096, "sliding_window": 32, "max_window_layers": 2,
    }  # fmt: skip
    mistral = {name: value for name, value in llama.items() if name != "max_window_layers"}
    assert windows(model_from(mistral | {"model_type": "mistral"})) == [32, 32, 32]
    assert windows(model_from(mistral | {"model_type": "mistral", "sliding_window": None})) == [None] * 3
    for kind in ("qwen2", "qwen3"):
        assert windows(model_from(llama | {"model_type": kind})) == [None] * 3
        asked = llama | {"model_type": kind, "use_sliding_window": True}
        assert windows(model_from(asked)) == [None, None, 32]


WRONG = {
    "no pattern": (
        {name: value for name, value in NEMOTRON_3.items() if name != "hybrid_override_pattern"},
        "hybrid_override_pattern is missing (or layers_block_type)",
    ),
    "pattern and layers": (NEMOTRON_3 | {"num_hidden_layers": 50}, "num_hidden_layers 50 is not the 52 layers"),
    "letter": (
        NEMOTRON_3 | {"hybrid_override_pattern": "MX", "num_hidden_layers": 2}, "a layer 'X', which is not known"
    ),
    "word": (
        NEMOTRON_3 | {"hybrid_override_pattern": ["mamba", "lstm"]}, "must be of mamba, linear_attention, attention"
    ),
    "number of words": (GPT_OSS | {"layer_types": ["full_attention"]}, "layer_types must be a list of 24 words"),
    "kind of attention": (
        GPT_OSS | {"layer_types": ["sparse_attention"] * 24}, "layer_types must be of sliding_attention"
    ),
    "new field": (GPT_OSS | {"num_hyper_connections": 4}, "unknown field 'num_hyper_connections'"),
    "new field of the text": (
        GEMMA3 | {"text_config": GEMMA3["text_config"] | {"laurel_rank": 64}},
        "config.json, text_config: unknown field 'laurel_rank'",
    ),
    "further tokens of kimi": (
        KIMI_LINEAR | {"num_nextn_predict_layers": 1}, "num_nextn_predict_layers 1 is not known; it is 0 in"
    ),
    "a layer of neither kind": (
        KIMI_LINEAR | {"num_hidden_layers": 28}, "linear_attn_config must have each of 28 layers in one of its two"
    ),
    "no text": ({"model_type": "llama4", "text_config": 5}, "text_config must be an object: got 5"),
    "groups": (MAMBA2 | {"n_groups": 3}, "the Mamba heads must be a multiple of the groups: got 80 and 3"),
    "head of bamba": (
        BAMBA | {"mamba_n_heads": 12}, "mamba_n_heads 12 does not divide mamba_expand × hidden_size 1024"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_a_sentence(case: str) -> None:
    config, sentence = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        model_from(config)
    assert sentence in str(caught.value)


def test_what_is_left_out_in_model_hybrid_has_these_values() -> None:
    assert number_defaults(hybrid_module) == {
        "windowed": {"is_chunked": False},
    }  # fmt: skip


def test_each_letter_of_a_pattern_is_a_layer_with_one_norm() -> None:
    attention, mamba, delta = Attention(6, 3, 13), Mamba(8, 12, 14), GatedDeltaNet(2, 4, 9, 11)
    dense, experts = FeedForward(46), MixtureOfExperts(FeedForward(26), 8, 3)
    parts = HybridMixers(36, mamba, delta, attention, dense, experts, norm="layernorm")
    assert parts.layers("MG*-|E*") == tuple(
        Layer(36, mixer, part, "layernorm", num_norms=1)
        for mixer, part in (
            (mamba, NoFeedForward()), (delta, NoFeedForward()), (attention, NoFeedForward()), (NoAttention(), dense),
            (NoAttention(), experts), (attention, NoFeedForward()),
        )
    )  # fmt: skip
    assert parts.whole("G-") == Layer(36, delta, dense, "layernorm", num_norms=2)
    for pattern in ("*", "**", "-E", "E*", "*E*"):
        with pytest.raises(ConfigError):
            parts.whole(pattern)


def test_documents_cut_attention_into_chunks_unless_its_window_is_shorter() -> None:
    def window(attention: Attention) -> tuple[int | None, bool]:
        layer = Layer(36, attention, FeedForward(46))
        (found,) = with_documents(Model((layer,), 100, 50), 20).layers
        return found.attention.window, found.attention.is_chunked

    grouped = Attention(6, 3, 13)
    assert window(grouped) == (20, True)
    assert [window(replace(grouped, window=size)) for size in (19, 20, 21)] == [
        (19, False),
        (20, False),
        (20, True),
    ]
    mamba = Layer(36, Mamba(8, 12, 14), NoFeedForward())
    assert with_documents(Model((mamba,), 100, 50), 20).layers == (mamba,)
    with pytest.raises(ConfigError, match="document-length"):
        with_documents(Model((Layer(36, LatentAttention(6, 18, 22, 10, 4, 7), FeedForward(46)),), 100, 50), 20)
