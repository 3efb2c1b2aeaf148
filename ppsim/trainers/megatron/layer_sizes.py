"""Megatron-LM's arguments for the fields of a layer's parts: one table for reading and writing."""

from typing import Any

from ppsim.model.attention_and_mlp import Attention, LatentAttention, MixtureOfExperts
from ppsim.model.attention_base import Indexer
from ppsim.model.recurrent import GatedDeltaNet, Mamba
from ppsim.trainers.arguments import Arguments

REQUIRED = "required"
_SIZES: dict[type, tuple[tuple[str, str, Any], ...]] = {
    Attention: (
        ("num_attention_heads", "num_heads", REQUIRED),
        ("qk_layernorm", "qk_norm", False),
        ("attention_output_gate", "gated", False),
    ),
    LatentAttention: (
        ("num_attention_heads", "num_heads", REQUIRED),
        ("kv_lora_rank", "kv_lora_rank", 32),
        ("qk_head_dim", "qk_nope_head_size", 128),
        ("qk_pos_emb_head_dim", "qk_rope_head_size", 64),
        ("v_head_dim", "v_head_size", 128),
        ("q_lora_rank", "q_lora_rank", None),
    ),
    Indexer: (
        ("dsa_indexer_n_heads", "num_heads", REQUIRED),
        ("dsa_indexer_head_dim", "head_size", REQUIRED),
        ("dsa_indexer_topk", "num_keys", REQUIRED),
    ),
    Mamba: (
        ("mamba_num_heads", "num_heads", None),
        ("mamba_head_dim", "head_size", 64),
        ("mamba_state_dim", "state_size", 128),
        ("mamba_num_groups", "num_groups", 8),
    ),
    GatedDeltaNet: (
        ("linear_num_key_heads", "num_key_heads", 16),
        ("linear_num_value_heads", "num_value_heads", 32),
        ("linear_key_head_dim", "key_size", 128),
        ("linear_value_head_dim", "value_size", 128),
        ("linear_conv_kernel_dim", "kernel", 4),
    ),
    MixtureOfExperts: (
        ("num_experts", "num_experts", REQUIRED),
        ("moe_router_topk", "experts_per_token", 2),
        ("moe_shared_expert_intermediate_size", "shared_size", 0),
        ("moe_router_enable_expert_bias", "router_bias", False),
        ("moe_shared_expert_gate", "shared_gate", False),
        ("moe_grouped_gemm", "grouped", False),
        ("moe_latent_size", "latent_size", None),
    ),
}
"""Rows of each part: argument, field, and Megatron-LM's default (None: another rule)."""


def sizes_in(arguments: Arguments, part: type) -> dict[str, Any]:
    """Return the fields of a part. Raises `ConfigError` for a required argument that is missing."""
    return {field: _size(arguments, name, default) for name, field, default in _SIZES[part]}


def _size(arguments: Arguments, name: str, default: Any) -> Any:
    if default == REQUIRED:
        return arguments.need(name)
    if isinstance(default, bool):
        return arguments.flag(name)
    return arguments.count(name, default, least=0 if default == 0 else 1)


def sizes_of(part: Any) -> dict[str, Any]:
    """Return the arguments of a part, without those that are off."""
    rows = next(rows for kind, rows in _SIZES.items() if isinstance(part, kind))
    return {name: size for name, field, _ in rows if (size := getattr(part, field))}
