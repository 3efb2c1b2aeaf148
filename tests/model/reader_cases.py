"""Files for the readers of config.json, with sizes that all differ and are no defaults, and the layers that they give."""

from dataclasses import replace
from typing import Any

from ppsim.model.architecture import Layer
from ppsim.model.attention_and_mlp import (
    Attention,
    FeedForward,
    LatentAttention,
    MixtureOfExperts,
    NoAttention,
    NoFeedForward,
)
from ppsim.model.attention_base import Indexer
from ppsim.model.compressed_attention import CompressedAttention
from ppsim.model.config import model_from
from ppsim.model.mixer import Mixer
from ppsim.model.recurrent import GatedDeltaNet, KimiDeltaAttention, Mamba

H, HEADS, GROUPS, FFN, VOCAB, LENGTH = 120, 6, 3, 77, 211, 83
SIZES: dict[str, Any] = {
    "hidden_size": H, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "intermediate_size": FFN,
    "num_hidden_layers": 5, "vocab_size": VOCAB, "max_position_embeddings": LENGTH,
}  # fmt: skip
OWN_HEAD = SIZES | {"head_dim": 13}
SLIDING, FULL = "sliding_attention", "full_attention"
LATENT = {
    "q_lora_rank": 14, "kv_lora_rank": 15, "qk_nope_head_dim": 16, "qk_rope_head_dim": 4, "v_head_dim": 17,
}  # fmt: skip
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 9, "linear_value_head_dim": 11,
    "linear_conv_kernel_dim": 3,
}  # fmt: skip

ATTENTION = Attention(HEADS, GROUPS, 13)
DENSE = FeedForward(FFN)
MLA = LatentAttention(HEADS, 14, 15, 16, 4, 17)
GDN = GatedDeltaNet(2, 4, 9, 11, kernel=3)


def biased(attention: Attention, *, out: bool = True, **other: Any) -> Attention:
    return replace(attention, qkv_bias=True, out_bias=out, **other)


def experts(size: int, number: int, chosen: int, shared: int = 0, **other: Any) -> MixtureOfExperts:
    return MixtureOfExperts(FeedForward(size), number, chosen, shared, **other)


def layers(mixers: list[Mixer], parts: list[Any], **other: Any) -> tuple[Layer, ...]:
    return tuple(Layer(H, mixer, part, **other) for mixer, part in zip(mixers, parts, strict=True))


def same(mixer: Mixer, part: Any, number: int = 5, **other: Any) -> tuple[Layer, ...]:
    return layers([mixer] * number, [part] * number, **other)


def in_windows(attention: Attention, window: int, where: str, **other: Any) -> list[Mixer]:
    """`where`: a letter per layer; w: with a window."""
    windowed = replace(attention, window=window, **other)
    return [windowed if letter == "w" else attention for letter in where]


def mixed(first: Any, second: Any, where: str) -> list[Any]:
    """Letters of `second` are upper case."""
    return [second if letter.isupper() else first for letter in where]


QWEN_EXPERTS = experts(19, 7, 3, 23, shared_gate=True)
QWEN_SPARSE = {
    "num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 19, "decoder_sparse_step": 2,
    "mlp_only_layers": [3], "shared_expert_intermediate_size": 23,
}  # fmt: skip
ROUTED = {"n_routed_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 19, "n_shared_experts": 2}
ROUTED_EXPERTS = experts(19, 7, 3, 38, router_bias=True)
QK_NORM = replace(ATTENTION, qk_norm=True)
MAMBA = Mamba(10, 12, 14, num_groups=5, kernel=3, chunk_size=29, bias=True, conv_bias=False)
OF_MAMBA = {"n_groups": 5, "conv_kernel": 3, "chunk_size": 29, "use_bias": True, "use_conv_bias": False}
V4 = CompressedAttention(HEADS, 20, 14, 4, 27, 5, 22, block=6, indexer=Indexer(3, 9, 31))
V4_HEAVY = replace(V4, block=40, indexer=None)
V4_EXPERTS = experts(19, 7, 3, 38)
RELU2 = replace(
    ROUTED_EXPERTS, expert=FeedForward(19, gated=False), shared_size=2 * 23, latent_size=41
)  # fmt: skip
KDA = KimiDeltaAttention(4, 4, 9, 9, kernel=3, full_gate=True)
KIMI_EXPERTS = experts(19, 7, 3, 38, router_bias=True, latent_size=41, latent_norm=True)

OF_CONFIG: dict[str, tuple[dict[str, Any], tuple[Layer, ...]]] = {
    "llama": (
        OWN_HEAD | {"attention_bias": True, "mlp_bias": True}, same(biased(ATTENTION), FeedForward(FFN, bias=True)),
    ),
    "mistral": (
        SIZES | {"sliding_window": 31, "max_window_layers": 2},
        layers(in_windows(Attention(HEADS, GROUPS, 20), 31, "--www"), [DENSE] * 5),
    ),
    "ministral3": (SIZES, same(Attention(HEADS, GROUPS, 128), DENSE)),
    "mixtral": (
        OWN_HEAD | {"num_local_experts": 7, "num_experts_per_tok": 3, "layer_types": [SLIDING, *[FULL] * 4],
                    "sliding_window": 31},
        layers(in_windows(ATTENTION, 31, "w----"), [experts(FFN, 7, 3)] * 5),
    ),
    "qwen2": (
        OWN_HEAD | {"use_sliding_window": True, "sliding_window": 31, "max_window_layers": 3},
        layers(in_windows(biased(ATTENTION, out=False), 31, "---ww"), [DENSE] * 5),
    ),
    "qwen3": (OWN_HEAD | {"sliding_window": 31}, same(QK_NORM, DENSE)),
    "qwen2_moe": (
        OWN_HEAD | QWEN_SPARSE, layers([biased(ATTENTION, out=False)] * 5, mixed(DENSE, QWEN_EXPERTS, "-X---")),
    ),
    "qwen3_moe": (
        OWN_HEAD | QWEN_SPARSE | {"mlp_only_layers": [], "shared_expert_intermediate_size": 0},
        layers([QK_NORM] * 5, mixed(DENSE, replace(QWEN_EXPERTS, shared_size=0, shared_gate=False), "-X-X-")),
    ),
    "qwen3_next": (
        OWN_HEAD | QWEN_SPARSE | DELTA | {"full_attention_interval": 2},
        layers(
            mixed(GDN, replace(QK_NORM, gated=True), "-A-A-"), mixed(DENSE, QWEN_EXPERTS, "-X---"),
        ),
    ),
    "qwen3_5_text": (
        OWN_HEAD | DELTA | {"layer_types": [FULL, *["linear_attention"] * 4]},
        layers(mixed(GDN, replace(QK_NORM, gated=True), "A----"), [DENSE] * 5),
    ),
    "deepseek_v4": (
        {name: SIZES[name] for name in SIZES if name != "num_key_value_heads"} | ROUTED | {
            "head_dim": 20, "q_lora_rank": 14, "qk_rope_head_dim": 4, "sliding_window": 27, "o_groups": 5,
            "o_lora_rank": 22, "index_n_heads": 3, "index_head_dim": 9, "index_topk": 31, "num_hash_layers": 2,
            "hc_mult": 3, "num_nextn_predict_layers": 0,
            "compress_rates": {"compressed_sparse_attention": 6, "heavily_compressed_attention": 40},
        },
        layers(
            mixed(V4_HEAVY, V4, "---V-"), mixed(V4_EXPERTS, replace(V4_EXPERTS, router_bias=True), "--XXX"), streams=3,
        ),
    ),
    "kimi_linear": (
        {name: SIZES[name] for name in SIZES if name != "max_position_embeddings"} | LATENT | {
            "moe_intermediate_size": 19, "num_experts": 7, "num_experts_per_token": 3, "num_shared_experts": 2,
            "routed_expert_hidden_size": 41, "latent_moe_use_norm": True, "mla_use_output_gate": True,
            "first_k_dense_replace": 1, "attn_res_block_size": 2, "model_max_length": LENGTH, "linear_attn_config": {
                "num_heads": 4, "head_dim": 9, "short_conv_kernel_size": 3, "use_full_rank_gate": True,
                "full_attn_layers": [2, 5], "kda_layers": [1, 3, 4],
            },
        },
        tuple(
            replace(layer, summed_residuals=rows) for layer, rows in zip(
                layers(mixed(KDA, replace(MLA, gated=True), "-A--A"), mixed(DENSE, KIMI_EXPERTS, "-XXXX")),
                [(1, 2), (2, 2), (2, 3), (3, 3), (3, 4)], strict=True,
            )
        ),
    ),
    "gpt2": (
        {"n_embd": H, "n_head": HEADS, "n_layer": 5, "n_positions": LENGTH, "vocab_size": VOCAB, "n_inner": FFN,
         "tie_word_embeddings": False},
        same(biased(Attention(HEADS, HEADS, 20)), FeedForward(FFN, gated=False, bias=True), norm="layernorm"),
    ),
    "opt": (
        {name: SIZES[name] for name in SIZES if name != "intermediate_size"} | {
            "ffn_dim": FFN, "enable_bias": False, "tie_word_embeddings": False, "head_dim": 13,
        },
        same(ATTENTION, FeedForward(FFN, gated=False), norm="layernorm"),
    ),
    "gpt_neox": (OWN_HEAD, same(biased(ATTENTION), FeedForward(FFN, gated=False, bias=True), norm="layernorm")),
    "nemotron": (
        OWN_HEAD | {"mlp_bias": True}, same(ATTENTION, FeedForward(FFN, gated=False, bias=True), norm="layernorm"),
    ),
    "gpt_oss": (
        OWN_HEAD | {"num_local_experts": 7, "experts_per_token": 3, "sliding_window": 31},
        layers(
            in_windows(biased(ATTENTION, sinks=True, yarn=32.0), 31, "w-w-w"),
            [MixtureOfExperts(FeedForward(FFN, bias=True, clamped=True), 7, 3, router_bias=True)] * 5,
        ),
    ),
    "gemma2": (
        OWN_HEAD | {"sliding_window": 31, "sliding_window_pattern": 3, "tie_word_embeddings": False},
        layers(in_windows(ATTENTION, 31, "ww-ww"), [DENSE] * 5, num_norms=4),
    ),
    "gemma3_text": (
        OWN_HEAD | {"sliding_window": 31, "layer_types": [FULL, SLIDING, *[FULL] * 3], "tie_word_embeddings": False},
        layers(in_windows(QK_NORM, 31, "-w---"), [DENSE] * 5, num_norms=4),
    ),
    "llama4_text": (
        OWN_HEAD | {"intermediate_size_mlp": 97, "num_local_experts": 7, "num_experts_per_tok": 3,
                    "interleave_moe_layer_step": 2, "no_rope_layer_interval": 3, "attention_chunk_size": 31},
        layers(
            in_windows(ATTENTION, 31, "ww-ww", is_chunked=True), mixed(FeedForward(97), experts(FFN, 7, 3, FFN), "-X-X-"),
        ),
    ),
    "nemotron_h": (
        OWN_HEAD | ROUTED | OF_MAMBA | {
            "hybrid_override_pattern": "M*-EM", "mamba_num_heads": 10, "mamba_head_dim": 12, "ssm_state_size": 14,
            "moe_shared_expert_intermediate_size": 23, "moe_latent_size": 41,
        },
        (
            Layer(H, MAMBA, NoFeedForward(), num_norms=1), Layer(H, ATTENTION, NoFeedForward(), num_norms=1),
            Layer(H, NoAttention(), FeedForward(FFN, gated=False), num_norms=1),
            Layer(H, NoAttention(), RELU2, num_norms=1), Layer(H, MAMBA, NoFeedForward(), num_norms=1),
        ),
    ),
    "mamba2": (
        {"hidden_size": H, "num_hidden_layers": 5, "vocab_size": VOCAB, "max_position_embeddings": LENGTH} | OF_MAMBA | {
            "num_heads": 10, "head_dim": 12, "state_size": 14,
        },
        same(MAMBA, NoFeedForward(), num_norms=1),
    ),
    "bamba": (
        OWN_HEAD | {
            "mamba_n_heads": 10, "mamba_d_head": "auto", "mamba_d_state": 14, "mamba_expand": 3, "mamba_n_groups": 5,
            "mamba_d_conv": 3, "mamba_chunk_size": 29, "attn_layer_indices": [1, 4], "mamba_proj_bias": True,
            "mamba_conv_bias": False,
        },
        layers(mixed(replace(MAMBA, head_size=36), ATTENTION, "-A--A"), [DENSE] * 5),
    ),
}  # fmt: skip
"""Layers by model_type, of the readers in ppsim.model.config."""

OF_FAMILIES: dict[str, tuple[dict[str, Any], tuple[Layer, ...]]] = {
    "bailing_moe_v2": (
        OWN_HEAD | {
            "moe_intermediate_size": 19, "num_experts": 7, "num_experts_per_tok": 3, "num_shared_experts": 2,
            "use_qkv_bias": True, "use_bias": False, "use_qk_norm": False, "moe_router_enable_expert_bias": False,
            "first_k_dense_replace": 2,
        },
        layers([biased(ATTENTION, out=False)] * 5, mixed(DENSE, experts(19, 7, 3, 38), "--XXX")),
    ),
    "sarvam_moe": (
        OWN_HEAD | {"moe_intermediate_size": 19, "num_experts": 7, "num_experts_per_tok": 3, "use_bias": True},
        same(replace(QK_NORM, out_bias=True), experts(19, 7, 3, router_bias=True)),
    ),
    "deepseek_v2": (
        SIZES | LATENT | ROUTED | {"moe_layer_freq": 2, "first_k_dense_replace": 1},
        layers([MLA] * 5, mixed(DENSE, experts(19, 7, 3, 38), "--X-X")),
    ),
    "deepseek_v3": (SIZES | LATENT | ROUTED, same(MLA, ROUTED_EXPERTS)),
    "deepseek_v32": (
        SIZES | LATENT | ROUTED | {
            "index_topk": 31, "index_n_heads": 3, "index_head_dim": 9,
            "indexer_types": ["full", "shared", "shared", "full", "shared"],
        },
        layers(
            mixed(replace(MLA, num_keys=31), replace(MLA, num_keys=31, indexer=Indexer(3, 9, 31)), "I--I-"),
            [ROUTED_EXPERTS] * 5,
        ),
    ),
    "ernie4_5": (OWN_HEAD | {"tie_word_embeddings": False}, same(ATTENTION, DENSE)),
    "ernie4_5_moe": (
        OWN_HEAD | {
            "moe_intermediate_size": 19, "moe_num_experts": 7, "moe_k": 3, "moe_num_shared_experts": 2,
            "moe_layer_interval": 2, "moe_layer_start_index": 0, "moe_layer_end_index": 2, "tie_word_embeddings": False,
        },
        layers([ATTENTION] * 5, mixed(DENSE, ROUTED_EXPERTS, "-X---")),
    ),
    "exaone4": (
        OWN_HEAD | {"sliding_window": 31, "sliding_window_pattern": 2},
        layers(in_windows(QK_NORM, 31, "w-w-w"), [DENSE] * 5),
    ),
    "exaone_moe": (
        OWN_HEAD | ROUTED | {"sliding_window": 31, "sliding_window_pattern": 3, "first_k_dense_replace": 1},
        layers(in_windows(QK_NORM, 31, "ww-ww"), mixed(DENSE, ROUTED_EXPERTS, "-XXXX")),
    ),
    "glm4_moe": (
        OWN_HEAD | ROUTED | {"attention_bias": True, "use_qk_norm": True, "first_k_dense_replace": 3},
        layers([biased(QK_NORM, out=False)] * 5, mixed(DENSE, ROUTED_EXPERTS, "---XX")),
    ),
    "granite": (OWN_HEAD | {"attention_bias": True}, same(biased(ATTENTION), DENSE)),
    "granitemoe": (
        OWN_HEAD | {"num_local_experts": 7, "num_experts_per_tok": 3}, same(ATTENTION, experts(FFN, 7, 3)),
    ),
    "granitemoeshared": (
        OWN_HEAD | {"num_local_experts": 7, "num_experts_per_tok": 3, "shared_intermediate_size": 23},
        same(ATTENTION, experts(FFN, 7, 3, 23)),
    ),
    "hunyuan": (
        OWN_HEAD | {"num_experts": 7, "moe_topk": 3, "moe_intermediate_size": 19, "num_shared_expert": [2, 2, 2],
                    "attention_bias": True},
        same(biased(QK_NORM), experts(19, 7, 3, 38)),
    ),
    "hy_v3": (
        OWN_HEAD | {"moe_intermediate_size": 19, "num_experts": 7, "num_experts_per_tok": 3, "attention_bias": True},
        layers([biased(QK_NORM)] * 5, mixed(DENSE, experts(19, 7, 3, router_bias=True), "-XXXX")),
    ),
    "mimo": (OWN_HEAD, same(biased(ATTENTION, out=False), DENSE)),
    "minimax_m2": (
        OWN_HEAD | {"num_local_experts": 7, "num_experts_per_tok": 3},
        same(replace(QK_NORM, joint_norm=True), experts(FFN, 7, 3, router_bias=True)),
    ),
    "olmo2": (
        OWN_HEAD | {"attention_bias": True, "sliding_window": 31}, same(biased(QK_NORM, joint_norm=True), DENSE),
    ),
    "olmo3": (
        OWN_HEAD | {"sliding_window": 31},
        layers(in_windows(replace(QK_NORM, joint_norm=True), 31, "www-w"), [DENSE] * 5),
    ),
    "olmoe": (
        OWN_HEAD | {"num_experts": 7, "num_experts_per_tok": 3, "attention_bias": True},
        same(biased(QK_NORM, joint_norm=True), experts(FFN, 7, 3)),
    ),
    "phi3": (OWN_HEAD | {"sliding_window": 31}, same(replace(ATTENTION, window=31), DENSE)),
    "seed_oss": (OWN_HEAD | {"attention_out_bias": True, "attention_bias": False}, same(replace(ATTENTION, out_bias=True), DENSE)),
    # 2 · 1.6 · 120 / 3 = 128 columns, rounded up to 256; 2 · 3.3 · 120 / 3 = 264, to 512
    "nemotron-nas": (
        {name: SIZES[name] for name in SIZES if name != "num_key_value_heads"} | {"block_configs": [
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.6}},
            {"attention": {"no_op": True}, "ffn": {"ffn_mult": 3.3}},
            {"attention": {"n_heads_in_group": 3}, "ffn": {"no_op": True}},
            {"attention": {"n_heads_in_group": 6}, "ffn": {"ffn_mult": 3.2}},
            {"attention": {"no_op": True}, "ffn": {"no_op": True}},
        ]},
        (
            Layer(H, Attention(6, 3, 20), FeedForward(256)), Layer(H, NoAttention(), FeedForward(512), num_norms=1),
            Layer(H, Attention(6, 2, 20), NoFeedForward(), num_norms=1), Layer(H, Attention(6, 1, 20), FeedForward(256)),
            Layer(H, NoAttention(), NoFeedForward(), num_norms=0),
        ),
    ),
}  # fmt: skip
"""The same of ppsim.model.families."""

OF_HETEROGENEOUS: dict[str, tuple[dict[str, Any], tuple[Layer, ...]]] = {
    "mimo_v2_flash": (
        OWN_HEAD | ROUTED | {
            "n_shared_experts": None, "v_head_dim": 17, "add_full_attention_sink_bias": True, "sliding_window_size": 31,
            "swa_num_attention_heads": 10, "swa_num_key_value_heads": 5, "swa_head_dim": 18, "swa_v_head_dim": 21,
            "add_swa_attention_sink_bias": False, "hybrid_layer_pattern": [1, 0, 0, 1, 0, 0], "attention_bias": True,
        },
        layers(
            mixed(
                replace(ATTENTION, qkv_bias=True, value_size=17, sinks=True),
                Attention(10, 5, 18, qkv_bias=True, value_size=21, window=32), "W--W-",
            ), mixed(DENSE, experts(19, 7, 3, router_bias=True), "-XXXX"),
        ),
    ),
    "step3p5": (
        OWN_HEAD | {
            "moe_num_experts": 7, "moe_top_k": 3, "moe_intermediate_size": 19, "share_expert_dim": 23,
            "use_moe_router_bias": False, "moe_layers_enum": "1,4", "sliding_window": 31,
            "layer_types": [SLIDING, FULL, FULL, SLIDING, FULL],
            "attention_other_setting": {"num_attention_heads": 10, "num_attention_groups": 5, "head_dim": 18},
        },
        layers(
            mixed(
                replace(QK_NORM, gated=True, head_gates=True),
                Attention(10, 5, 18, qk_norm=True, gated=True, head_gates=True, window=31), "W--W-",
            ), mixed(DENSE, experts(19, 7, 3, 23), "-X--X"),
        ),
    ),
    "minimax_m3": (
        OWN_HEAD | {
            "moe_intermediate_size": 19, "num_local_experts": 7, "num_experts_per_tok": 3, "dense_intermediate_size": 97,
            "shared_intermediate_size": 23, "first_k_dense_replace": 2, "sparse_attention_config": {
                "sparse_block_size": 4, "sparse_topk_blocks": 8, "sparse_num_index_heads": 3, "sparse_index_dim": 9,
                "sparse_attention_freq": [0, 1, 0, 0, 1],
            },
        },
        layers(
            mixed(QK_NORM, replace(QK_NORM, indexer=Indexer(3, 9, 32, block=4)), "-S--S"), mixed(
                FeedForward(97, clamped=True),
                MixtureOfExperts(FeedForward(19, clamped=True), 7, 3, 23, router_bias=True), "--XXX",
            ),
        ),
    ),
    "gemma4_text": (
        OWN_HEAD | {
            "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "sliding_window": 31, "global_head_dim": 18,
            "attention_k_eq_v": True, "num_global_key_value_heads": 2, "enable_moe_block": True, "num_experts": 7,
            "top_k_experts": 3, "moe_intermediate_size": 19, "layer_types": [SLIDING, FULL, SLIDING, SLIDING, SLIDING],
            "num_attention_heads": 12, "tie_word_embeddings": False,
        },
        layers(
            mixed(
                Attention(12, 3, 13, qk_norm=True, value_norm=True, window=31),
                Attention(12, 2, 18, qk_norm=True, value_norm=True, tied_values=True), "-F--F",
            ),
            [experts(19, 7, 3, FFN, router_bias=True, joined_norms=True)] * 5, num_norms=8,
        ),
    ),
    "granitemoehybrid": (
        OWN_HEAD | {
            "num_local_experts": 7, "num_experts_per_tok": 3, "shared_intermediate_size": 23, "mamba_n_heads": 10,
            "mamba_d_head": None, "mamba_expand": 3, "mamba_d_state": 14, "mamba_n_groups": 5, "mamba_d_conv": 3,
            "mamba_chunk_size": 29, "mamba_proj_bias": True, "mamba_conv_bias": False,
            "layer_types": ["mamba", "attention", "mamba", "mamba", "attention"],
        },
        layers(mixed(replace(MAMBA, head_size=36), ATTENTION, "-A--A"), [experts(FFN, 7, 3, 23)] * 5),
    ),
    "zebra_llama": (
        {name: SIZES[name] for name in SIZES if name != "num_hidden_layers"} | LATENT | {
            "hybrid_override_pattern": "M-*-M", "mamba_num_heads": 10, "mamba_head_dim": 12, "ssm_state_size": 14,
            "n_groups": 5, "conv_kernel": 3, "chunk_size": 29, "mamba_proj_bias": True, "mamba_conv_bias": False,
            "tie_word_embeddings": False,
        },
        (
            Layer(H, MAMBA, NoFeedForward(), num_norms=1), Layer(H, NoAttention(), DENSE, num_norms=1),
            Layer(H, MLA, NoFeedForward(), num_norms=1), Layer(H, NoAttention(), DENSE, num_norms=1),
            Layer(H, MAMBA, NoFeedForward(), num_norms=1),
        ),
    ),
}  # fmt: skip
"""The same of ppsim.model.heterogeneous."""

MTP: dict[str, tuple[dict[str, Any], tuple[Layer, ...]]] = {
    "qwen3_next": (
        {"mtp_num_hidden_layers": 2}, same(replace(QK_NORM, gated=True), DENSE, 2),
    ),
    "deepseek_v4": (
        {"num_nextn_predict_layers": 2, "compress_ratios": None},
        same(replace(V4, block=None, indexer=None), replace(V4_EXPERTS, router_bias=True), 2, streams=3),
    ),
    "nemotron_h": (
        {"num_nextn_predict_layers": 2, "mtp_hybrid_override_pattern": "M-"},
        same(MAMBA, FeedForward(FFN, gated=False), 2),
    ),
    "mimo": ({"num_nextn_predict_layers": 2}, same(biased(ATTENTION, out=False), DENSE, 2)),
    "glm4_moe": ({"num_nextn_predict_layers": 2}, same(biased(QK_NORM, out=False), ROUTED_EXPERTS, 2)),
    "step3p5": (
        {"num_nextn_predict_layers": 3, "mtp_layer_types": [SLIDING, FULL, FULL]},
        layers(
            mixed(
                replace(QK_NORM, gated=True, head_gates=True),
                Attention(10, 5, 18, qk_norm=True, gated=True, head_gates=True, window=31), "W--",
            ), [DENSE] * 3,
        ),
    ),
}  # fmt: skip
"""Fields added to these files, and the layers of multi-token prediction that they give."""


def require_layers_of(kind: str, cases: dict[str, tuple[dict[str, Any], tuple[Layer, ...]]]) -> None:
    """Assert the layers that the file of a kind gives, and the fields around them."""
    data, expected = cases[kind]
    model = model_from({"model_type": kind, **data})
    assert model.layers == expected
    assert (model.vocab_size, model.sequence_length, model.tied_embeddings) == (VOCAB, LENGTH, False)
    assert model.mtp == ()
    if kind in MTP:
        given, mtp = MTP[kind]
        model = model_from({"model_type": kind, **data, **given})
        assert (model.layers, model.mtp) == (expected, mtp)
