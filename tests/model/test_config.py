"""A Hugging Face config.json becomes the model it describes, or a sentence says why not."""

import json

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model.config import model_from
from ppsim.model.registry import find_model, read_model

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
        "attention_bias true is not known with latent attention",
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
