"""A Hugging Face config.json becomes the model it describes, or a sentence says why not."""

import json
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model import config as config_module
from ppsim.model.architecture import Layer
from ppsim.model.attention_and_mlp import Attention, FeedForward
from ppsim.model.config import model_from, remember_trace
from ppsim.model.registry import find_model, read_model
from tests.defaults import number_defaults
from tests.model.reader_cases import LENGTH, OF_CONFIG, H, in_windows, require_layers_of

COMMON = {"architectures": ["X"], "torch_dtype": "bfloat16", "hidden_act": "silu", "_name_or_path": "x"}
LLAMA3_8B = COMMON | {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "rope_theta": 500000.0,
}
QWEN3_30B = COMMON | {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "norm_topk_prob": True,
}
DEEPSEEK_V3 = COMMON | {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 1,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "tie_word_embeddings": False,
    "n_group": 8,
    "topk_group": 4,
    "quantization_config": {"quant_method": "fp8"},
}
DEEPSEEK_V2 = {key: value for key, value in DEEPSEEK_V3.items() if key != "num_nextn_predict_layers"} | {
    "model_type": "deepseek_v2",
    "hidden_size": 5120,
    "num_hidden_layers": 60,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 160,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "vocab_size": 102400,
}
# The counts are those of the released checkpoints (safetensors metadata), tied weights once.
RELEASED = {
    "llama3-8b": (LLAMA3_8B, 8_030_261_248),
    "mistral-7b": (
        {key: value for key, value in LLAMA3_8B.items() if key not in ("attention_bias", "mlp_bias")}
        | {"model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096},
        7_241_732_096,
    ),
    "mixtral-8x7b": (
        COMMON | {
            "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2,
            "vocab_size": 32000, "max_position_embeddings": 32768,
        },
        46_702_792_704,
    ),
    "qwen2.5-7b": (
        COMMON | {
            "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
            "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064,
            "max_position_embeddings": 131072, "tie_word_embeddings": False, "use_sliding_window": False,
        },
        7_615_616_512,
    ),
    "qwen3-8b": (
        COMMON | {
            "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936,
            "max_position_embeddings": 40960, "tie_word_embeddings": False,
        },
        8_190_735_360,
    ),
    "qwen1.5-moe-a2.7b": (
        COMMON | {
            "model_type": "qwen2_moe", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16,
            "num_key_value_heads": 16, "intermediate_size": 5632, "moe_intermediate_size": 1408, "num_experts": 60,
            "num_experts_per_tok": 4, "shared_expert_intermediate_size": 5632, "vocab_size": 151936,
            "max_position_embeddings": 8192, "tie_word_embeddings": False,
        },
        14_315_784_192,
    ),
    "qwen3-30b-a3b": (QWEN3_30B, 30_532_122_624),
    "deepseek-v2": (DEEPSEEK_V2, 235_741_434_880),
    "deepseek-v2-lite": (
        DEEPSEEK_V2 | {
            "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
            "q_lora_rank": None, "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64,
        },
        15_706_484_224,
    ),
    "deepseek-v3": (DEEPSEEK_V3, 671_026_419_200),
    "gpt2": (
        {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "n_ctx": 1024,
         "vocab_size": 50257, "activation_function": "gelu_new"},
        124_439_808,
    ),
    "pythia-1.4b": (
        {"model_type": "gpt_neox", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16,
         "intermediate_size": 8192, "vocab_size": 50304, "max_position_embeddings": 2048,
         "tie_word_embeddings": False, "use_parallel_residual": True},
        1_414_647_808,
    ),
    "opt-125m": (
        {"model_type": "opt", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
         "ffn_dim": 3072, "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 768,
         "do_layer_norm_before": True},
        125_239_296,
    ),
    "opt-350m": (
        {"model_type": "opt", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
         "ffn_dim": 4096, "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 512,
         "do_layer_norm_before": False},
        331_196_416,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RELEASED)
def test_the_parameters_are_those_of_the_release(name: str) -> None:
    config, parameters = RELEASED[name]
    assert model_from(config).parameters == parameters


@pytest.mark.parametrize(
    "name", ["llama3-8b", "qwen2.5-7b", "qwen3-8b", "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3"]
)
def test_the_layers_are_those_of_the_model_by_name(name: str) -> None:
    from_file, by_name = model_from(RELEASED[name][0]), find_model(name)
    assert (from_file.layers, from_file.mtp) == (by_name.layers, by_name.mtp)


def test_which_layers_are_dense_follows_the_file() -> None:
    """Qwen: every `decoder_sparse_step`-th has experts, but for `mlp_only_layers`; DeepSeek: the first are dense."""
    qwen = model_from(QWEN3_30B | {"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]})
    assert [layer.is_moe for layer in qwen.layers] == [False, True, False, False, False, True]
    deepseek = model_from(DEEPSEEK_V3 | {"num_hidden_layers": 6, "moe_layer_freq": 2})
    assert [layer.is_moe for layer in deepseek.layers] == [False, False, False, False, True, False]


def test_a_file_is_read_by_its_path(tmp_path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA3_8B))
    assert read_model(path).parameters == 8_030_261_248
    assert read_model("llama3-8b").parameters == 8_030_261_248
    with pytest.raises(ConfigError, match=f"is a folder: give the path of its config.json, {path.parent}/"):
        read_model(path.parent)


def without(config, *names):
    return {key: value for key, value in config.items() if key not in names}


WRONG = {
    "no object": ([1], "config.json: a config.json holds an object, this one a list"),
    "no type": ({}, "config.json: model_type is missing; there are llama, mistral"),
    "unknown type": (LLAMA3_8B | {"model_type": "lama"}, "unknown model_type 'lama' (nearest: llama"),
    "far type": (LLAMA3_8B | {"model_type": "zzz"}, "unknown model_type 'zzz' (nearest: "),
    "missing": (without(LLAMA3_8B, "intermediate_size"), "config.json: intermediate_size is missing"),
    "misspelt": (
        without(LLAMA3_8B, "intermediate_size") | {"intermediate_sizes": 5},
        "intermediate_size is missing (is 'intermediate_sizes' meant?)",
    ),
    "unknown": (LLAMA3_8B | {"mlp_biass": True}, "unknown field 'mlp_biass' (is 'mlp_bias' meant?)"),
    "unknown and far": (LLAMA3_8B | {"zz_top": 1}, "unknown field 'zz_top' (remove it if it changes no weights)"),
    "text": (LLAMA3_8B | {"hidden_size": "4096"}, "hidden_size must be a whole number of 1 or more: got '4096'"),
    "zero": (LLAMA3_8B | {"vocab_size": 0}, "vocab_size must be a whole number of 1 or more: got 0"),
    "true": (LLAMA3_8B | {"vocab_size": True}, "vocab_size must be a whole number of 1 or more: got True"),
    "flag": (LLAMA3_8B | {"attention_bias": 1}, "attention_bias must be true or false: got 1"),
    "negative": (
        DEEPSEEK_V3 | {"n_shared_experts": -1},
        "n_shared_experts must be a whole number of 0 or more: got -1",
    ),
    "list": (QWEN3_30B | {"mlp_only_layers": 3}, "mlp_only_layers must be a list of layers: got 3"),
    "heads": (
        LLAMA3_8B | {"num_attention_heads": 30},
        "4096 is no multiple of num_attention_heads 30, and head_dim",
    ),
    "groups": (
        LLAMA3_8B | {"num_key_value_heads": 5},
        "config.json: the heads must be a multiple of the key/value heads",
    ),
    "experts": (QWEN3_30B | {"num_experts": 4}, "experts per token must be 1 to the number of experts: got 8 of 4"),
    "dense first": (DEEPSEEK_V3 | {"first_k_dense_replace": 70}, "70 is more than num_hidden_layers 61"),
    "latent bias": (
        DEEPSEEK_V3 | {"attention_bias": True},
        "attention_bias true is not known; it is false",
    ),
    "gpt2 heads": (RELEASED["gpt2"][0] | {"n_head": 7}, "n_embd 768 is no multiple of n_head 7"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_a_sentence(case: str) -> None:
    config, sentence = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        model_from(config)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


_SHORT = {
    "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4,
    "intermediate_size": 2816, "vocab_size": 32_000, "max_position_embeddings": 4096,
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "llama", "num_key_value_heads": None},
        {"model_type": "llama", "head_dim": None, "tie_word_embeddings": True},
        {"model_type": "qwen3"},
        {"model_type": "ministral3"},
        {"model_type": "qwen3_moe", "num_experts": 0},
        {"model_type": "qwen3_moe", "num_experts": 8, "intermediate_size": None, "moe_intermediate_size": 256},
        {"model_type": "qwen3_moe", "num_experts": 8, "mlp_only_layers": [0, 1], "moe_intermediate_size": 256},
    ],
    ids=str,
)
def test_a_short_file_has_the_parameters_that_transformers_gives_it(changes: dict[str, object]) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    data = _SHORT | changes
    if data.get("num_experts"):
        data["num_experts_per_tok"] = 2
    given = {name: value for name, value in data.items() if value is not None}
    config = transformers.AutoConfig.for_model(**given)
    with torch.device("meta"):
        whole = transformers.AutoModelForCausalLM.from_config(config)
    assert model_from(data).parameters == sum(one.numel() for one in whole.parameters())


SIZES: dict[str, Any] = {
    "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 8,
    "intermediate_size": 1024, "vocab_size": 1000, "max_position_embeddings": 2048,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 256, "num_experts": 16, "num_experts_per_tok": 2}
ROUTED = {"moe_intermediate_size": 256, "n_routed_experts": 16, "num_experts_per_tok": 2}
LOCAL = {"num_local_experts": 16, "num_experts_per_tok": 2}
LATENT = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
DELTA = {
    "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
}  # fmt: skip
HYBRID = {"hybrid_override_pattern": "M*-EM*-E", "mamba_num_heads": 8, "mamba_head_dim": 64, "ssm_state_size": 32}
UNGATED = {"attention_bias": False, "mlp_bias": False}
SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"
DEFAULTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": (SIZES, {"head_dim": 64, "tie_word_embeddings": False, **UNGATED}),
    "mistral": (SIZES, {"head_dim": 64}),
    "qwen2": (SIZES | {"sliding_window": 512, "max_window_layers": 0}, {"use_sliding_window": False}),
    "qwen3": (SIZES, {"head_dim": 128, "attention_bias": False}),
    "qwen2_moe": (SIZES | EXPERTS, {"decoder_sparse_step": 1, "shared_expert_intermediate_size": 0}),
    "qwen3_next": (SIZES | EXPERTS | DELTA, {
        "linear_conv_kernel_dim": 4, "head_dim": 256, "full_attention_interval": 4, "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 0, "layer_types": [LINEAR, LINEAR, LINEAR, FULL] * 2,
        "mtp_num_hidden_layers": 0,
    }),
    "deepseek_v4": (
        {name: SIZES[name] for name in SIZES if name != "num_key_value_heads"} | ROUTED | {"q_lora_rank": 64}, {
            "head_dim": 512, "qk_rope_head_dim": 64, "sliding_window": 128, "o_groups": 8, "o_lora_rank": 1024,
            "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512, "n_shared_experts": 1, "hc_mult": 4,
            "num_nextn_predict_layers": 1, "num_key_value_heads": 1, "attention_bias": False,
            "mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 5, "num_hash_layers": 3,
            "compress_ratios": [128, 128, 128, 4, 128, 4, 128, 4, 0],
            "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
        },
    ),
    "kimi_linear": (
        {name: SIZES[name] for name in SIZES if name != "max_position_embeddings"} | LATENT | {
            "moe_intermediate_size": 256, "num_experts": 16, "num_experts_per_token": 2, "model_max_length": 2048,
            "linear_attn_config": {
                "num_heads": 8, "head_dim": 64, "full_attn_layers": [4, 8], "kda_layers": [1, 2, 3, 5, 6, 7],
            },
        }, {
            "linear_attn_config": {
                "num_heads": 8, "head_dim": 64, "full_attn_layers": [4, 8], "kda_layers": [1, 2, 3, 5, 6, 7],
                "short_conv_kernel_size": 4, "use_full_rank_gate": False,
            },
            "mla_use_output_gate": False, "num_nextn_predict_layers": 0, "num_shared_experts": 0,
            "latent_moe_use_norm": False, "moe_layer_freq": 1, "first_k_dense_replace": 0,
        },
    ),
    "gpt2": (
        {"n_embd": 64, "n_head": 4, "n_positions": 128, "n_layer": 2, "vocab_size": 100},
        {"tie_word_embeddings": True, "n_inner": 256},
    ),
    "opt": ({name: SIZES[name] for name in SIZES if name != "intermediate_size"} | {"ffn_dim": 1024}, {
        "enable_bias": True, "do_layer_norm_before": True, "_remove_final_layer_norm": False,
        "tie_word_embeddings": True, "word_embed_proj_dim": 512,
    }),
    "nemotron": (SIZES, UNGATED),
    "gpt_oss": (SIZES | LOCAL, {
        "head_dim": 64, "attention_bias": True, "sliding_window": 128, "layer_types": [SLIDING, FULL] * 4,
    }),
    "gemma2": ({}, {
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 9216,
        "hidden_size": 2304, "num_hidden_layers": 26, "sliding_window": 4096, "layer_types": [SLIDING, FULL] * 13,
        "vocab_size": 256000, "max_position_embeddings": 8192, "tie_word_embeddings": True,
    }),
    "gemma3_text": ({}, {
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 9216,
        "hidden_size": 2304, "num_hidden_layers": 26, "sliding_window": 4096,
        "layer_types": ([SLIDING] * 5 + [FULL]) * 4 + [SLIDING] * 2,
        "vocab_size": 262208, "max_position_embeddings": 131072, "tie_word_embeddings": True,
    }),
    "llama4_text": (SIZES | {"intermediate_size_mlp": 2048, "num_local_experts": 16, "attention_chunk_size": 512}, {
        "head_dim": 128, "num_experts_per_tok": 1, "moe_layers": list(range(8)), "interleave_moe_layer_step": 1,
        "layer_types": (["chunked_attention"] * 3 + [FULL]) * 2, "no_rope_layer_interval": 4,
    }),
    "nemotron_h": (SIZES | HYBRID | ROUTED, {
        "head_dim": 128, "n_groups": 8, "conv_kernel": 4, "chunk_size": 128, "mamba_proj_bias": False,
        "use_conv_bias": True, "n_shared_experts": 1, "moe_shared_expert_intermediate_size": 256,
        "num_nextn_predict_layers": 0,
    }),
    "mamba2": ({"hidden_size": 512, "num_hidden_layers": 2, "vocab_size": 1000}, {
        "num_heads": 128, "head_dim": 64, "state_size": 128, "n_groups": 8, "conv_kernel": 4, "chunk_size": 256,
        "use_bias": False, "use_conv_bias": True, "max_position_embeddings": 2048,
    }),
    "bamba": (
        {name: SIZES[name] for name in SIZES if name != "max_position_embeddings"} | {
            "mamba_n_heads": 16, "mamba_d_state": 32, "mamba_d_head": "auto", "attn_layer_indices": [3],
        }, {
            "mamba_expand": 2, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_chunk_size": 256,
            "mamba_proj_bias": False, "mamba_conv_bias": True, "max_position_embeddings": 262144,
        },
    ),
    "bailing_moe_v2": (SIZES | EXPERTS, {
        "use_qkv_bias": False, "use_bias": False, "use_qk_norm": True, "moe_router_enable_expert_bias": True,
        "num_shared_experts": 0, "first_k_dense_replace": 0, "num_nextn_predict_layers": 0,
    }),
    "deepseek_v3": (SIZES | ROUTED | LATENT, {
        "n_shared_experts": 0, "first_k_dense_replace": 0, "moe_layer_freq": 1, "num_nextn_predict_layers": 0,
        "attention_bias": False, "q_lora_rank": None,
    }),
    "deepseek_v32": (SIZES | ROUTED | LATENT | {"index_n_heads": 4, "q_lora_rank": 64}, {
        "index_topk": 2048, "index_head_dim": 128, "indexer_types": ["full"] * 8,
    }),
    "ernie4_5": (SIZES, {"head_dim": 128, "use_bias": False, "tie_word_embeddings": True}),
    "ernie4_5_moe": (SIZES | {"moe_intermediate_size": 256, "moe_num_experts": 16, "moe_k": 2}, {
        "moe_num_shared_experts": 2, "moe_layer_interval": 1, "moe_layer_start_index": 1, "moe_layer_end_index": 7,
        "use_bias": False, "tie_word_embeddings": True,
    }),
    "exaone4": (SIZES | {"sliding_window": 512}, {
        "sliding_window_pattern": 4, "layer_types": [SLIDING, SLIDING, SLIDING, FULL] * 2,
    }),
    "glm4_moe": (SIZES | ROUTED, {"attention_bias": False, "use_qk_norm": False}),
    "granitemoeshared": (SIZES | LOCAL, {"shared_intermediate_size": 0, "attention_bias": False}),
    "hunyuan_v1_moe": (SIZES | {"num_experts": 16}, {
        "moe_intermediate_size": 1024, "moe_topk": 1, "num_shared_expert": 1, "moe_layer_num_skipped": 0,
        "attention_bias": False, "use_cla": False, "use_mla": False,
    }),
    "hy_v3": (SIZES | EXPERTS, {"head_dim": 128, "attention_bias": False, "first_k_dense_replace": 1}),
    "mimo": (SIZES, {"num_nextn_predict_layers": 0}),
    "minimax_m2": (SIZES | LOCAL, {"head_dim": 128, "shared_intermediate_size": 0}),
    "olmo3": (SIZES | {"sliding_window": 512}, {
        "attention_bias": False, "layer_types": [SLIDING, SLIDING, SLIDING, FULL] * 2,
    }),
    "olmoe": (SIZES | {"num_experts": 16, "num_experts_per_tok": 2}, {"attention_bias": False}),
    "phi3": (SIZES, {"lm_head_bias": False, "sliding_window": None}),
    "seed_oss": (SIZES, {"head_dim": 128, "attention_bias": True, "attention_out_bias": False}),
}  # fmt: skip


@pytest.mark.parametrize("kind", DEFAULTS)
def test_a_missing_field_has_the_default_of_the_models_class(kind: str) -> None:
    needed, defaults = DEFAULTS[kind]
    assert model_from({"model_type": kind, **needed}) == model_from({"model_type": kind, **needed, **defaults})


PROPERTIES: dict[str, str] = {
    "is_moe": "bailing_moe_v2 deepseek_v3 deepseek_v32 deepseek_v4 ernie4_5_moe glm4_moe gpt_oss granitemoeshared "
    "hunyuan_v1_moe hy_v3 kimi_linear llama4_text minimax_m2 nemotron_h olmoe qwen2_moe qwen3_next",
    "attention.qkv_bias": "gpt2 gpt_oss mimo opt qwen2 qwen2_moe seed_oss",
    "attention.out_bias": "gpt2 gpt_oss opt",
    "attention.qk_norm": "bailing_moe_v2 exaone4 gemma3_text hunyuan_v1_moe hy_v3 minimax_m2 olmo3 olmoe qwen3 "
    "qwen3_next",
    "attention.joint_norm": "minimax_m2 olmo3 olmoe",
    "attention.sinks": "gpt_oss",
    "attention.gated": "qwen3_next",
    "attention.yarn": "gpt_oss",
    "attention.window": "deepseek_v4 exaone4 gemma2 gemma3_text gpt_oss llama4_text olmo3",
    "attention.is_chunked": "llama4_text",
    "attention.indexer": "deepseek_v32 deepseek_v4",
    "ffn.bias": "gpt2 opt",
    "ffn.expert.bias": "gpt_oss",
    "ffn.router_bias": "bailing_moe_v2 deepseek_v3 deepseek_v32 deepseek_v4 ernie4_5_moe glm4_moe gpt_oss hy_v3 "
    "kimi_linear minimax_m2 nemotron_h",
    "ffn.shared_size": "deepseek_v4 ernie4_5_moe hunyuan_v1_moe llama4_text nemotron_h",
}


@pytest.mark.parametrize("name", PROPERTIES)
def test_these_models_have_this_property_by_their_class(name: str) -> None:
    def has_property(kind: str) -> bool:
        model = model_from({"model_type": kind, **DEFAULTS[kind][0]})
        *path, last = name.split(".")
        for part in model.layers:
            for step in path:
                part = getattr(part, step, None)
            if getattr(part, last, None):
                return True
        return False

    assert [kind for kind in sorted(DEFAULTS) if has_property(kind)] == PROPERTIES[name].split()


def test_each_field_of_gemma_has_an_effect() -> None:
    """So that the comparison of defaults above cannot pass because a field is not read."""
    needed, defaults = DEFAULTS["gemma2"]
    for name, value in defaults.items():
        other = [FULL] * 26 if isinstance(value, list) else not value if isinstance(value, bool) else 2 * value
        found = {name: other} | ({"layer_types": [SLIDING, FULL] * 26} if name == "num_hidden_layers" else {})
        assert model_from({"model_type": "gemma2", **needed, **found}) != model_from({"model_type": "gemma2"}), name


NO_EFFECT = {
    "bailing_moe_v2": "embedding_dropout output_dropout mtp_loss_scaling_factor norm_head norm_softmax "
    "moe_shared_expert_intermediate_size rotary_dim router_dtype score_function",
    "bamba": "attn_rotary_emb z_loss_coefficient",
    "deepseek_v3": "qk_head_dim q_head_dim mlp_bias num_key_value_heads head_dim",
    "deepseek_v32": "index_share_for_mtp_iteration index_skip_topk_offset index_topk_freq index_topk_pattern "
    "indexer_rope_interleave moe_router_dtype",
    "deepseek_v4": "kv_lora_rank qk_nope_head_dim first_k_dense_replace",
    "ernie4_5": "compression_ratio fuse_rms_norm fuse_swiglu fuse_rope micro_batch_size ignored_index "
    "max_sequence_length use_flash_attention use_rmsnorm weight_share_add_bias",
    "ernie4_5_moe": "moe_capacity moe_gate moe_gate_act moe_norm_min moe_use_aux_free",
    "gemma2": "hidden_activation",
    "granitemoeshared": "attention_multiplier embedding_multiplier residual_multiplier logits_scaling",
    "hunyuan_v1_moe": "use_qk_norm attention_head_dim mlp_bias cla_share_factor class_num norm_type vit_patch",
    "hy_v3": "router_scaling_factor mlp_bias",
    "kimi_linear": "activation_situ_beta activation_situ_linear_beta mla_use_nope moe_renormalize "
    "moe_router_activation_func num_expert_group use_grouped_topk",
    "llama4_text": "no_rope_layers",
    "mimo": "attention_bias use_mrope",
    "minimax_m2": "attn_type_list mtp_transformer_layers num_mtp_modules qk_norm_type rotary_dim use_mtp "
    "use_routing_bias",
    "olmoe": "clip_qkv",
    "phi3": "full_attn_mod interpolate_factor",
    "qwen2_moe": "qkv_bias intermediate_size",
    "qwen3_next": "attn_output_gate mamba_ssm_dtype mtp_use_dedicated_embeddings",
    "seed_oss": "residual_dropout",
}


@pytest.mark.parametrize("kind", NO_EFFECT)
def test_fields_of_releases_without_effect_on_sizes_are_accepted(kind: str) -> None:
    config = {"model_type": kind, **DEFAULTS[kind][0]}
    assert model_from(config | dict.fromkeys(NO_EFFECT[kind].split(), 1)) == model_from(config)


@pytest.mark.parametrize("kind", OF_CONFIG)
def test_a_file_gives_these_layers(kind: str) -> None:
    require_layers_of(kind, OF_CONFIG)


def test_files_without_sizes_of_their_own_have_the_defaults_of_their_class() -> None:
    """Fields of a model outside its layers: learned positions, final norm, width of the embedding, tied tables."""
    gpt2 = model_from({"model_type": "gpt2", **OF_CONFIG["gpt2"][0], "n_inner": None})
    assert (gpt2.learned_positions, gpt2.layers[0].ffn.size, gpt2.source) == (LENGTH, 4 * H, "config.json")
    opt = OF_CONFIG["opt"][0]
    for given, final_norm, projected, positions in (
        ({}, True, None, LENGTH + 2),
        ({"word_embed_proj_dim": H}, True, None, LENGTH + 2),
        ({"word_embed_proj_dim": 61}, True, 61, LENGTH + 2),
        ({"do_layer_norm_before": False}, False, None, LENGTH + 2),
        ({"_remove_final_layer_norm": True}, False, None, LENGTH + 2),
    ):
        found = model_from({"model_type": "opt", **opt, **given})
        assert (found.final_norm, found.projected_size, found.learned_positions) == (
            final_norm,
            projected,
            positions,
        )
    for kind, vocab, length, window, pattern in (
        ("gemma2", 256_000, 8192, 4096, "w-w-w"), ("gemma3_text", 262_208, 131_072, 4096, "wwwww"),
    ):  # fmt: skip
        found = model_from({"model_type": kind, "num_hidden_layers": 5})
        assert (found.vocab_size, found.sequence_length, found.tied_embeddings) == (vocab, length, True)
        attention = Attention(8, 4, 256, qk_norm=kind == "gemma3_text")
        mixers = in_windows(attention, window, pattern)
        assert found.layers == tuple(Layer(2304, mixer, FeedForward(9216), num_norms=4) for mixer in mixers)


def test_what_is_left_out_in_model_config_has_these_values() -> None:
    assert number_defaults(config_module) == {
        "_qwen": {"has_experts": False},
        "_qwen3_next": {"has_experts": True},
    }  # fmt: skip


def test_a_trace_is_found_whatever_the_order_of_the_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_module, "_TRACED", {})
    unknown = {"model_type": "new", "num_layers": 2}
    remember_trace(unknown, {"model_type": "llama", **OF_CONFIG["llama"][0]})
    assert model_from({"num_layers": 2, "model_type": "new"}).layers == OF_CONFIG["llama"][1]
    with pytest.raises(ConfigError, match="unknown model_type 'new'"):
        model_from({"num_layers": 3, "model_type": "new"})
