"""Decoders whose layers have different mixers: windows with other heads, chosen blocks, sums of residuals."""

from dataclasses import replace
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model.activations import layer_activations
from ppsim.model.architecture import Model
from ppsim.model.attention_and_mlp import Attention, FeedForward
from ppsim.model.blocks import operators_of
from ppsim.model.config import model_from
from ppsim.model.execution import Execution
from ppsim.model.hf_fields import UnknownModelType
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.pipeline_stages import stages_of
from ppsim.model.recurrent import GatedDeltaNet, KimiDeltaAttention
from ppsim.model.registry import _told, find_model
from ppsim.parallel.sizes import ParallelSizes
from ppsim.trainers.arguments import Arguments, megatron_names
from ppsim.trainers.megatron.read_model import model_of
from tests.model.reader_cases import DELTA, OF_CONFIG, OF_HETEROGENEOUS, OF_MAMBA, mixed, require_layers_of
from tests.model.stages import stage_activations


def kinds(model: Model) -> list[Attention]:
    return [one.attention for one in model.kinds if isinstance(one.attention, Attention)]


def test_mimo_has_more_key_heads_and_sinks_in_its_windows() -> None:
    model = find_model("mimo-v2-flash")
    whole, windowed = (
        next(one for one in kinds(model) if (one.window is not None) == has) for has in (False, True)
    )
    assert (whole.num_kv_heads, whole.sinks, windowed.num_kv_heads, windowed.sinks) == (4, False, 8, True)
    assert windowed.window == 129, "128 tokens before the query, and itself"
    assert [layer.attention.window is None for layer in model.layers[:7]] == [True, *[False] * 4, True, False]
    assert whole.score_width == 64 * (192 + 128)
    *_, out = whole.linears(4096, 2)
    assert out.inputs == 32 * 128, "values are narrower than queries"


def test_gemma_4_uses_keys_as_values_in_full_attention() -> None:
    model = find_model("gemma4-31b")
    windowed, whole = (layer.attention for layer in model.kinds)
    assert isinstance(whole, Attention)
    assert isinstance(windowed, Attention)
    assert (windowed.window, windowed.tied_values, whole.window, whole.tied_values) == (1024, False, None, True)
    assert windowed.linears(5376, 4)[0].columns == (8 * 256, 4 * 256, 4 * 256)
    assert whole.linears(5376, 4)[0].columns == (8 * 512, 512)
    assert [layer.attention.window is None for layer in model.layers[:6]] == [False] * 5 + [True]


@pytest.mark.parametrize("part", [{"num_kv_shared_layers": 2}, {"hidden_size_per_layer_input": 256}])
def test_gemma_4_with_other_parts_is_traced(part: dict[str, int]) -> None:
    data = dict(_told()["gemma4-31b"][0]) | part
    with pytest.raises(UnknownModelType, match=f"{next(iter(part))} .* must be traced"):
        model_from(data)


def test_gemma_4_has_parts_that_are_traced_unless_the_file_says_otherwise() -> None:
    with pytest.raises(UnknownModelType, match="hidden_size_per_layer_input 256 is not read by name"):
        model_from({"model_type": "gemma4_text"})


SIZES: dict[str, Any] = {
    "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 8,
    "intermediate_size": 1024, "vocab_size": 1000, "max_position_embeddings": 2048,
}  # fmt: skip
ROUTED = {"moe_intermediate_size": 256, "n_routed_experts": 16, "num_experts_per_tok": 2}
SLIDING, FULL = "sliding_attention", "full_attention"
DEFAULTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gemma4_text": ({"hidden_size_per_layer_input": 0}, {
        "num_kv_shared_layers": 0, "num_hidden_layers": 30, "hidden_size": 2304, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 512, "global_head_dim": 512,
        "layer_types": ([SLIDING] * 5 + [FULL]) * 5, "attention_k_eq_v": False, "intermediate_size": 9216,
        "enable_moe_block": False, "tie_word_embeddings": True, "vocab_size": 262_144,
        "max_position_embeddings": 131_072,
    }),
    "granitemoehybrid": (SIZES | {"num_experts_per_tok": 2, "num_local_experts": 8, "mamba_n_heads": 16}, {
        "layer_types": ["mamba"] * 8, "mamba_expand": 2, "mamba_d_head": 64, "mamba_d_state": 256, "mamba_n_groups": 1,
        "mamba_d_conv": 4, "mamba_chunk_size": 256, "shared_intermediate_size": 1024,
    }),
    "mimo_v2_flash": (SIZES | ROUTED, {
        "head_dim": 192, "v_head_dim": 128, "sliding_window": 129, "swa_num_attention_heads": 8,
        "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128, "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False, "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0, 1, 1],
        "mlp_layer_types": ["dense"] + ["sparse"] * 7,
    }),
    "minimax_m3": (
        SIZES | {"moe_intermediate_size": 256, "num_local_experts": 16, "num_experts_per_tok": 2} | {
            "dense_intermediate_size": 1024, "layer_types": ["minimax_m3_sparse"] * 8,
        }, {
            "head_dim": 128, "index_block_size": 128, "index_topk_blocks": 16, "index_n_heads": 4,
            "index_head_dim": 128, "shared_intermediate_size": 3072, "first_k_dense_replace": 0,
        },
    ),
    "step3p5": (
        {name: SIZES[name] for name in SIZES if name not in ("num_attention_heads", "num_key_value_heads")} | ROUTED, {
            "num_attention_heads": 64, "num_attention_groups": 8, "head_dim": 128, "use_head_wise_attn_gate": True,
            "attention_other_setting": {"num_attention_heads": 64, "num_attention_groups": 8, "head_dim": 128},
            "layer_types": [FULL] * 8, "share_expert_dim": 1280, "use_moe_router_bias": True,
            "num_nextn_predict_layers": 0, "moe_layers_enum": "3,4,5,6,7",
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DEFAULTS)
def test_a_missing_field_has_the_default_of_the_models_class(kind: str) -> None:
    needed, defaults = DEFAULTS[kind]
    assert model_from({"model_type": kind, **needed}) == model_from({"model_type": kind, **needed, **defaults})


def test_a_text_model_is_found_in_a_file_of_an_unknown_type() -> None:
    for name in ("text_config", "llm_config", "language_config", "thinker_config"):
        found = model_from({"model_type": "new_vl", name: _told()["llama3-8b"][0], "vision_config": {}})
        assert found.parameters == find_model("llama3-8b").parameters
        assert found.left_out == "text model only, other parts of model_type new_vl ignored"
    inner = {"model_type": "new_thinker", "text_config": _told()["llama3-8b"][0]}
    assert model_from({"model_type": "new_omni", "thinker_config": inner}).layers == find_model("llama3-8b").layers


def test_step_has_more_heads_in_its_windows_and_a_gate_a_head() -> None:
    model = find_model("step-3.5-flash")
    assert {(one.num_heads, one.window) for one in kinds(model)} == {(64, None), (96, 512)}
    inwards = kinds(model)[0].linears(4096, 1)[0]
    assert inwards.columns[1] == kinds(model)[0].num_heads, "one gate a head"
    assert [(layer.is_moe, layer.attention.window) for layer in model.mtp] == [(False, 512)] * 3
    assert [layer.is_moe for layer in model.layers] == [False] * 3 + [True] * 42


def test_chosen_blocks_are_scored_and_the_indexer_scores_all() -> None:
    model = find_model("minimax-m3")
    sparse = model.layers[-1].attention
    assert model.layers[0].attention.indexer is None
    seen = [min(t + 1, 2048) if t < 2048 else 15 * 128 + t % 128 + 1 for t in range(4096)]
    assert sparse.keys_per_query(4096) == sum(seen) / 4096
    assert sparse.core_flops(4096, causal=True) == 2 * sparse.keys_per_query(4096) * 64 * 256 + 4 * 128 * 4096
    index = next(
        made
        for one in operators_of(model.layers[-1], ParallelSizes(), Execution(), 4096)
        for made in one.writes
        if made.name == "index"
    )
    assert index.columns == 4 * 16, "each of four heads chooses 16 blocks"
    with pytest.raises(ConfigError, match="context parallelism is not known with sparse attention: got cp 2"):
        sparse.require_division(ParallelSizes(cp=2))


def test_kimi_k3_sums_the_residuals_of_blocks() -> None:
    """Rows as in Megatron-Bridge 067f987, kimi_k3_pipeline.py: ⌈layer / 12⌉ snapshots before a layer."""
    model = find_model("kimi-k3")
    rows = [layer.summed_residuals for layer in model.layers]
    assert rows[0] == (1, 2)
    assert rows[11] == (2, 2)
    assert rows[12] == (2, 3)
    assert rows[13] == (3, 3)
    assert rows[92] == (9, 9)
    for number, layer in enumerate(model.layers[:-1]):
        assert layer.residual_size == 7168 * (1 + -(-(number + 1) // 12)), number
    assert model.outside_parameters("head") == 3 * 7168, "the final norm, and the norm and weights of the last sum"
    sums = [
        one
        for one in operators_of(model.layers[12], ParallelSizes(), Execution(), 4096)
        if one.kind == "weighted sum"
    ]
    assert [one.columns for one in sums] == [3 * 7168, 4 * 7168]
    settings = MemorySettings(1, 4096, ParallelSizes())
    stages = stages_of(model, [31, 31, 31])
    received = [stage_activations(model, stage, settings).get("earlier residuals", 0) for stage in stages]
    assert received == [0, 3 * 4096 * 7168 * 2, 6 * 4096 * 7168 * 2]


def test_a_gate_is_saved_with_its_output() -> None:
    """Latent attention with a gate saves the gate, the result that it weighs, and the gated result."""
    content = {name: value for name, value in _told()["kimi-k3"][0].items() if name != "attn_res_block_size"}
    layers = [model_from(content | {"mla_use_output_gate": has}).layers[3] for has in (True, False)]
    batch = (1, 4096)
    gated, plain = (sum(layer_activations(one, MemorySettings(*batch)).values()) for one in layers)
    assert gated - plain == 2 * 4096 * 96 * 128 * 2
    assert layers[0].parameters - layers[1].parameters == 7168 * 96 * 128


PRIMUS = {
    "num_layers": 32, "hidden_size": 2048, "ffn_hidden_size": 8192, "swiglu": True, "normalization": "RMSNorm",
    "disable_bias_linear": True, "vocab_size": 128_256, "position_embedding_type": "none", "is_hybrid_model": True,
}  # fmt: skip
MLA = {"multi_latent_attention": True, "num_attention_heads": 32}
ZEBRAS = {
    "zebra-llama-1b": PRIMUS
    | MLA
    | {
        "hybrid_attention_ratio": 0.25, "mamba_state_dim": 64, "mamba_head_dim": 64, "mamba_num_groups": 8,
        "q_lora_rank": 1344, "kv_lora_rank": 128, "qk_head_dim": 32, "qk_pos_emb_head_dim": 32, "v_head_dim": 64,
        "spec": "hybrid_mamba_mla_layer_specs",
    },
    "zebra-llama-8b": PRIMUS
    | MLA
    | {
        "num_layers": 64, "hidden_size": 4096, "ffn_hidden_size": 14436, "hybrid_attention_ratio": 0.25,
        "mamba_state_dim": 128, "mamba_head_dim": 128, "mamba_num_groups": 8, "q_lora_rank": 2048,
        "kv_lora_rank": 160, "qk_head_dim": 64, "qk_pos_emb_head_dim": 64, "v_head_dim": 128,
        "spec": "hybrid_mamba_mla_layer_specs",
    },
    "zebra-llama-1b-kda": PRIMUS
    | {
        "num_attention_heads": 16, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
        "linear_key_head_dim": 32, "linear_value_head_dim": 64, "hybrid_layer_pattern": "M-" * 16, "spec": "kda",
    },
    "zebra-llama-1b-gdn": PRIMUS
    | {
        "num_attention_heads": 8, "linear_num_key_heads": 8, "linear_num_value_heads": 16,
        "linear_key_head_dim": 64, "linear_value_head_dim": 64, "hybrid_layer_pattern": "M-" * 16, "spec": "gdn",
    },
    "zebra-llama-300m-gdn-mla": PRIMUS
    | {
        "num_layers": 24, "hidden_size": 1024, "ffn_hidden_size": 4096, "multi_latent_attention": True,
        "num_attention_heads": 16, "q_lora_rank": 672, "kv_lora_rank": 64, "qk_head_dim": 32,
        "qk_pos_emb_head_dim": 32, "v_head_dim": 64, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
        "linear_key_head_dim": 64, "linear_value_head_dim": 64, "hybrid_layer_pattern": "*-M-M-M-" * 3, "spec": "gdn",
    },
}  # fmt: skip
"""Arguments of Primus' presets (fd1eeab, primus/configs/models/megatron/zebra_llama_*.yaml)."""


@pytest.mark.parametrize("name", ZEBRAS)
def test_zebra_llama_is_what_megatron_builds_of_primus_arguments(name: str) -> None:
    built = model_of(Arguments(megatron_names(ZEBRAS[name] | {"seq_length": 4096}), "arguments"))
    assert built.layers == find_model(name).layers
    assert built.parameters == find_model(name).parameters


@pytest.mark.parametrize("kind", OF_HETEROGENEOUS)
def test_a_file_gives_these_layers(kind: str) -> None:
    require_layers_of(kind, OF_HETEROGENEOUS)


@pytest.mark.parametrize(
    ("given", "windows"),
    [
        ({"layer_types": None}, [None] * 5 + [31, 31]),
        (
            {"layer_types": [SLIDING, FULL, FULL, SLIDING, FULL, FULL, SLIDING]},
            [31, None, None, 31, None, None, 31],
        ),
        ({"mtp_layer_types": [FULL, SLIDING]}, [31, None, None, 31, None, None, 31]),
        ({"attention_other_setting": None, "num_sliding_attention_heads": 12}, [31, None, None, 31, None, 31, 31]),
    ],
)
def test_step_lists_the_layers_of_multi_token_prediction_with_the_others(given: Any, windows: list[Any]) -> None:
    model = model_from(
        {"model_type": "step3p5", **OF_HETEROGENEOUS["step3p5"][0], "num_nextn_predict_layers": 2, **given}
    )
    found = [layer.attention for layer in (*model.layers, *model.mtp)]
    assert [one.window for one in found] == windows
    heads = {(one.num_heads, one.num_kv_heads, one.head_size) for one in found if one.window}
    assert heads == ({(12, 3, 13)} if "num_sliding_attention_heads" in given else {(10, 5, 18)})


def test_gemma_4_without_sizes_has_the_defaults_of_its_class() -> None:
    gemma4 = model_from({"model_type": "gemma4_text", "hidden_size_per_layer_input": 0})
    attention = Attention(8, 4, 256, qk_norm=True, value_norm=True, window=512)
    full = replace(attention, head_size=512, window=None)
    assert [layer.attention for layer in gemma4.layers] == mixed(attention, full, "-----F" * 5)
    assert (gemma4.vocab_size, gemma4.sequence_length, gemma4.tied_embeddings) == (262_144, 131_072, True)
    assert (gemma4.hidden_size, gemma4.layers[0].ffn, gemma4.layers[0].num_norms) == (2304, FeedForward(9216), 4)
    saved = {"per_layer_config": {"5": {"head_dim": 99, "num_key_value_heads": 2}}, "attention_k_eq_v": True}
    other = model_from({"model_type": "gemma4_text", "hidden_size_per_layer_input": 0, **saved}).layers[5].attention
    assert other == replace(full, head_size=99, num_kv_heads=2, tied_values=True)


def test_delta_nets_of_zebra_llama_have_either_kind() -> None:
    data, _ = OF_HETEROGENEOUS["zebra_llama"]
    without = {name: value for name, value in data.items() if "mamba" not in name and name not in OF_MAMBA}
    del without["ssm_state_size"]
    delta = {name: size for name, size in DELTA.items() if "kernel" not in name}
    for uses_kda, mixer in (
        (False, GatedDeltaNet(2, 4, 9, 11)),
        (True, KimiDeltaAttention(2, 4, 9, 11, gate_bias=True)),
    ):
        found = model_from({"model_type": "zebra_llama", **without, **delta, "use_kda": uses_kda})
        assert found.layers[0].attention == mixer
    tied = {name: value for name, value in data.items() if name != "tie_word_embeddings"}
    assert model_from({"model_type": "zebra_llama", **tied}).tied_embeddings


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("minimax_m3", "sparse_attention_config"), ("step3p5", "attention_other_setting"),
        ("deepseek_v4", "compress_rates"), ("kimi_linear", "linear_attn_config"),
    ],
)  # fmt: skip
def test_an_unknown_field_of_a_nested_object_is_refused(kind: str, name: str) -> None:
    """It might be a new kind of layer."""
    fields, _ = (OF_CONFIG | OF_HETEROGENEOUS)[kind]
    assert model_from({"model_type": kind, **fields}).layers
    nested = (fields.get(name) or {}) | {"new_kind_of_gate": 1}
    with pytest.raises(ConfigError, match=f"{name}: unknown field 'new_kind_of_gate'"):
        model_from({"model_type": kind, **fields, name: nested})
