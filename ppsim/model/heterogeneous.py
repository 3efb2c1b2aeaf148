"""Readers of config.json for decoders whose layers differ in their mixers.

Each switch follows the class of the model_type in transformers 5.23, or AMD-AGI/Primus if transformers has no class
(Zebra-Llama).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from ppsim.model.architecture import Layer, Model
from ppsim.model.attention_and_mlp import Attention, FeedForward
from ppsim.model.attention_base import Indexer
from ppsim.model.config_parts import (
    Part,
    Reader,
    are_of_kind,
    attention_of,
    decoder_of,
    dense_of,
    experts_of,
    latent_attention_of,
    layers_of,
    mamba_of,
    sparse_parts,
)
from ppsim.model.hf_fields import ConfigFields
from ppsim.model.hybrid import HybridMixers
from ppsim.model.mixer import Mixer
from ppsim.model.recurrent import GatedDeltaNet, KimiDeltaAttention
from ppsim.parallel.layer_partition import require_layers


def _mimo_v2_flash(fields: ConfigFields) -> Model:
    number = fields.num_layers()
    full_attention = replace(
        attention_of(fields, head_size=192),
        out_bias=False,
        value_size=fields.count("v_head_dim", default=128),
        sinks=fields.flag("add_full_attention_sink_bias", default=False),
    )
    # `sliding_window_size` counts the tokens before the query; `sliding_window` also counts the query.
    before = fields.optional("sliding_window_size")
    window = fields.count("sliding_window", default=129)
    windowed = replace(
        full_attention,
        num_heads=fields.count("swa_num_attention_heads", default=full_attention.num_heads),
        num_kv_heads=fields.count("swa_num_key_value_heads", default=2 * full_attention.num_kv_heads),
        head_size=fields.count("swa_head_dim", default=full_attention.head_size),
        value_size=fields.count("swa_v_head_dim", default=full_attention.value_size),
        window=window if before is None else before + 1,
        sinks=fields.flag("add_swa_attention_sink_bias", default=True),
    )
    are_windowed = fields.counts("hybrid_layer_pattern", number) or [
        int(one)
        for one in are_of_kind(fields, "sliding_attention", number, lambda one: one > 0 and (one + 1) % 6 != 0)
    ]
    expert = FeedForward(fields.count("moe_intermediate_size"))
    experts = experts_of(fields, ("n_routed_experts", "num_local_experts"), expert, router_bias=True)
    mixers = [windowed if one else full_attention for one in are_windowed[:number]]
    return decoder_of(fields, layers_of(fields, mixers, sparse_parts(fields, experts, first=1)))


def _step(fields: ConfigFields) -> Model:
    """`layer_types` may contain the MTP layers; `attention_other_setting` has the sizes of layers with a window."""
    number, num_mtp = fields.num_layers(), fields.number("num_nextn_predict_layers", default=0)
    require_layers(number + num_mtp, "num_hidden_layers + num_nextn_predict_layers")
    has_gate = fields.flag("use_head_wise_attn_gate", default=True)
    full_attention = Attention(
        fields.count("num_attention_heads", default=64),
        fields.count("num_attention_groups", "num_key_value_heads", default=8),
        fields.count("head_dim", default=128),
        qk_norm=True, gated=has_gate, head_gates=has_gate,
    )  # fmt: skip
    other = fields.nested("attention_other_setting")
    windowed = replace(
        full_attention,
        num_heads=other.optional("num_attention_heads")
        or fields.optional("num_sliding_attention_heads")
        or full_attention.num_heads,
        num_kv_heads=other.count("num_attention_groups", default=full_attention.num_kv_heads),
        head_size=other.count("head_dim", default=full_attention.head_size),
        window=fields.optional("sliding_window"),
    )
    other.require_all_known()
    kinds = {"full_attention": full_attention, "sliding_attention": windowed}
    listed = number + num_mtp if fields.length("layer_types") == number + num_mtp else number
    mixers = fields.words("layer_types", kinds, listed) or [full_attention] * number
    mixers += fields.words("mtp_layer_types", kinds, num_mtp) or []
    mixers += [windowed] * (number + num_mtp - len(mixers))
    dense = dense_of(fields)
    sizes = fields.number("share_expert_dim", "share_expert_dims", default=1280)
    experts = experts_of(
        fields, ("moe_num_experts", "n_routed_experts", "num_experts", "num_local_experts"),
        FeedForward(fields.count("moe_intermediate_size")), chosen=("moe_top_k", "num_experts_per_tok"),
        shared_size=sizes, router_bias=fields.flag("use_moe_router_bias", default=True),
    )  # fmt: skip
    parts: list[Part]
    if fields.is_word("moe_layers_enum", None):
        parts = sparse_parts(fields, experts, first=3)
    else:
        sparse = fields.layers("moe_layers_enum")
        parts = [experts if layer in sparse else dense for layer in range(number)]
    layers = layers_of(fields, mixers[:number], parts)
    mtp = tuple(replace(layers[-1], attention=mixer, ffn=dense) for mixer in mixers[number : number + num_mtp])
    return decoder_of(fields, layers, mtp=mtp)


def _minimax_m3(fields: ConfigFields) -> Model:
    """The release has no weights of MTP layers (Megatron-Bridge 067f987, docs/models/minimax/minimax-m3.md)."""
    number, sparse = fields.num_layers(), fields.nested("sparse_attention_config")
    attention = attention_of(fields, head_size=128, qkv_bias=False, qk_norm=True)
    block = sparse.count("sparse_block_size", default=fields.count("index_block_size", default=128))
    blocks = sparse.count("sparse_topk_blocks", default=fields.count("index_topk_blocks", default=16))
    indexer = Indexer(
        sparse.count("sparse_num_index_heads", default=fields.count("index_n_heads", default=4)),
        sparse.count("sparse_index_dim", default=fields.count("index_head_dim", default=128)),
        blocks * block, block=block,
    )  # fmt: skip
    are_sparse = sparse.counts("sparse_attention_freq", number) or fields.words(
        "layer_types", {"minimax_m3_sparse": 1, "full_attention": 0}, number
    )
    sparse.require_all_known()
    mixers: Sequence[Mixer] = [
        replace(attention, indexer=indexer if one else None) for one in (are_sparse or [0] * number)[:number]
    ]
    expert = FeedForward(fields.count("moe_intermediate_size", "intermediate_size"), clamped=True)
    shared = fields.count("shared_intermediate_size", default=3072)
    experts = experts_of(fields, ("num_local_experts",), expert, shared_size=shared, router_bias=True)
    dense = FeedForward(fields.count("dense_intermediate_size"), clamped=True)
    parts = sparse_parts(fields, experts, dense=dense)
    return decoder_of(fields, layers_of(fields, mixers, parts))


def _gemma4(fields: ConfigFields) -> Model:
    """The text model of Gemma 4 31B, and of 26B-A4B, whose layers have experts next to a dense part.

    Layers with experts have three more norms; the scale of the router's input counts as a fourth.
    """
    for name, default in (("hidden_size_per_layer_input", 256), ("num_kv_shared_layers", 0)):
        if size := fields.number(name, default=default):
            fields.require_trace(f"{name} {size}")
    number, hidden = fields.num_layers(default=30), fields.count("hidden_size", default=2304)
    windowed = replace(
        attention_of(fields, heads=8, kv_heads=4, head_size=256, qk_norm=True),
        value_norm=True,
        window=fields.count("sliding_window", default=512),
    )
    are_windowed = are_of_kind(fields, "sliding_attention", number, lambda layer: (layer + 1) % 6 != 0)
    are_windowed[-1] = False  # as in Gemma4TextConfig
    # In a file saved by transformers, per_layer_config has the sizes of the layers without a window.
    other = fields.nested("per_layer_config").nested(str(are_windowed.index(False)))
    own_size = other.count("head_dim", default=512)
    full_attention = replace(windowed, head_size=fields.count("global_head_dim", default=own_size), window=None)
    if fields.flag("attention_k_eq_v", default=False):
        kv_heads = other.count("num_key_value_heads", default=full_attention.num_kv_heads)
        kv_heads = fields.count("num_global_key_value_heads", default=kv_heads)
        full_attention = replace(full_attention, num_kv_heads=kv_heads, tied_values=True)
    dense = FeedForward(fields.count("intermediate_size", default=9216))
    part: Part = dense
    has_experts = fields.flag("enable_moe_block", default=False)
    if has_experts:
        expert = FeedForward(fields.count("moe_intermediate_size"))
        part = experts_of(
            fields, ("num_experts",), expert, chosen=("top_k_experts",), shared_size=dense.size, router_bias=True,
            joined_norms=True,
        )  # fmt: skip
    layer = Layer(hidden, full_attention, part, num_norms=8 if has_experts else 4)
    layers = [replace(layer, attention=windowed) if is_windowed else layer for is_windowed in are_windowed]
    return decoder_of(fields, layers, tied=True, vocab=262_144, length=131_072)


def _granite_hybrid(fields: ConfigFields) -> Model:
    number, attention = fields.num_layers(), attention_of(fields)
    kinds = dict.fromkeys(("mamba", "linear_attention"), True) | dict.fromkeys(
        ("attention", "full_attention"), False
    )
    name = "layers_block_type" if fields.is_list("layers_block_type") else "layer_types"
    are_mamba = fields.words(name, kinds, number) or [True] * number
    mixers: list[Mixer] = [attention] * number
    if any(are_mamba):
        heads = fields.count("mamba_n_heads", default=128)
        inner = fields.count("mamba_expand", default=2) * fields.count("hidden_size")
        is_auto = fields.is_word("mamba_d_head", "auto") or fields.is_word("mamba_d_head", None)
        size = inner // heads if is_auto else fields.count("mamba_d_head")
        mamba = mamba_of(fields, heads, size, fields.count("mamba_d_state", default=256), chunk=256, groups=1)
        mixers = [mamba if is_mamba else attention for is_mamba in are_mamba]
    shared = fields.number("shared_intermediate_size", default=1024)
    part: Part = FeedForward(shared)
    if fields.number("num_local_experts", default=8):
        expert = FeedForward(fields.count("intermediate_size"))
        part = experts_of(fields, ("num_local_experts",), expert, shared_size=shared)
    return decoder_of(fields, layers_of(fields, mixers, part))


def _zebra_llama(fields: ConfigFields) -> Model:
    pattern, mixer = fields.text("hybrid_override_pattern") or "", _recurrent_of(fields)
    latent = latent_attention_of(fields) if "*" in pattern else None
    parts = HybridMixers(fields.count("hidden_size"), mamba=mixer, attention=latent, dense=dense_of(fields))
    layers: list[Layer] = list(parts.layers(pattern))
    return decoder_of(fields, layers, tied=True)


def _recurrent_of(fields: ConfigFields) -> Mixer:
    if (heads := fields.optional("mamba_num_heads")) is not None:
        size = fields.count("mamba_head_dim", default=64)
        return mamba_of(fields, heads, size, fields.count("ssm_state_size", default=128), chunk=128)
    sizes = (
        fields.count("linear_num_key_heads"),
        fields.count("linear_num_value_heads"),
        fields.count("linear_key_head_dim"),
        fields.count("linear_value_head_dim"),
    )
    if fields.flag("use_kda", default=False):
        return KimiDeltaAttention(*sizes, gate_bias=True)
    return GatedDeltaNet(*sizes)


READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "gemma4_text": _gemma4,
        "granitemoehybrid": _granite_hybrid,
        "mimo_v2_flash": _mimo_v2_flash,
        "minimax_m3": _minimax_m3,
        "minimax_m3_vl_text": _minimax_m3,
        "step3p5": _step,
        "zebra_llama": _zebra_llama,
    }
)
