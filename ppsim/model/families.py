"""Readers of config.json for decoders of attention and SwiGLU, dense or with experts.

Each switch follows the class of the model_type in transformers 5.23, or the released code if transformers has no
class (Ling, MiMo, Sarvam, Llama-Nemotron).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from ppsim.model.architecture import Layer, Model
from ppsim.model.attention_and_mlp import (
    Attention,
    FeedForward,
    LatentAttention,
    MixtureOfExperts,
    NoAttention,
    NoFeedForward,
)
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
    sparse_parts,
    with_windows,
)
from ppsim.model.hf_fields import ConfigFields
from ppsim.model.mixer import Mixer
from ppsim.parallel.layer_partition import require_layers

_EVERY = 4
"""Period of the layers with full attention, if the file has neither layer_types nor a pattern."""


def _dense(fields: ConfigFields, attention: Mixer, *, windows: bool = False) -> Model:
    layers = layers_of(fields, attention, dense_of(fields))
    return decoder_of(fields, _windowed(fields, layers) if windows else layers)


def _windowed(fields: ConfigFields, layers: list[Layer]) -> list[Layer]:
    """Apply the windows of layer_types, or a window in all but every `sliding_window_pattern`-th layer."""
    pattern = "sliding_window_pattern"
    every = _EVERY if fields.is_word(pattern, "LLLG") else fields.count(pattern, default=_EVERY)
    are_windowed = are_of_kind(fields, "sliding_attention", len(layers), lambda layer: (layer + 1) % every != 0)
    return with_windows(layers, fields.optional("sliding_window"), are_windowed)


def _olmo(fields: ConfigFields, *, version: int) -> Model:
    """Queries and keys each have one norm over all heads; the two norms of a layer are after its mixers."""
    attention = attention_of(fields, qk_norm=True, joint_norm=True, **_biases(fields, default=False))
    if version == 3 and fields.is_word("sliding_window", None):
        fields.refuse("sliding_window", "is missing; it is 4096 in every release")
    return _dense(fields, attention, windows=version == 3)


def _biases(fields: ConfigFields, *, default: bool, out: str = "attention_bias") -> dict[str, bool]:
    bias = fields.flag("attention_bias", default=default)
    return {"qkv_bias": bias, "out_bias": bias if out == "attention_bias" else fields.flag(out, default=False)}


def _seed_oss(fields: ConfigFields) -> Model:
    return _dense(
        fields, attention_of(fields, head_size=128, **_biases(fields, default=True, out="attention_out_bias"))
    )


def _phi3(fields: ConfigFields) -> Model:
    """The fused matrices have the sizes of separate ones; all layers have the window."""
    layers = layers_of(fields, attention_of(fields), dense_of(fields))
    return decoder_of(fields, with_windows(layers, fields.optional("sliding_window"), [True] * len(layers)))


def _mimo(fields: ConfigFields) -> Model:
    """Qwen2 with multi-token prediction."""
    model = _dense(fields, attention_of(fields, qkv_bias=True))
    return replace(model, mtp=(model.layers[-1],) * fields.number("num_nextn_predict_layers", default=0))


def _ernie(fields: ConfigFields) -> Model:
    model = _dense(fields, attention_of(fields, head_size=128, qkv_bias=False))
    return replace(model, tied_embeddings=fields.flag("tie_word_embeddings", default=True))


def _ernie_moe(fields: ConfigFields) -> Model:
    attention = attention_of(fields, qkv_bias=False)
    expert = FeedForward(fields.count("moe_intermediate_size"))
    shared = expert.size * fields.number("moe_num_shared_experts", default=2)
    experts = experts_of(
        fields, ("moe_num_experts",), expert, chosen=("moe_k", "num_experts_per_tok"), shared_size=shared,
        router_bias=True,
    )  # fmt: skip
    number, every = fields.num_layers(), fields.count("moe_layer_interval", default=1)
    first = fields.number("moe_layer_start_index", default=1)
    last = number - 1 if fields.is_word("moe_layer_end_index", -1) else None
    last = fields.number("moe_layer_end_index", default=number - 1) if last is None else last
    dense = dense_of(fields)
    parts: list[Part] = [
        experts if first <= layer <= last and (layer + 1) % every == 0 else dense for layer in range(number)
    ]
    return decoder_of(fields, layers_of(fields, attention, parts), tied=True)


def _minimax_m2(fields: ConfigFields) -> Model:
    attention = attention_of(fields, head_size=128, qk_norm=True, joint_norm=True, qkv_bias=False)
    expert = FeedForward(fields.count("intermediate_size"))
    experts = experts_of(fields, ("num_local_experts", "num_experts"), expert, router_bias=True)
    model = decoder_of(fields, layers_of(fields, attention, experts))
    return replace(model, left_out="modules for multi-token prediction left out, as in the released weights")


def _olmoe(fields: ConfigFields) -> Model:
    attention = attention_of(fields, qk_norm=True, joint_norm=True, **_biases(fields, default=False))
    expert = FeedForward(fields.count("intermediate_size"))
    return decoder_of(fields, layers_of(fields, attention, experts_of(fields, ("num_experts",), expert)))


def _granite(fields: ConfigFields, *, has_experts: bool = False, has_shared: bool = False) -> Model:
    """The multipliers change no size."""
    dense = dense_of(fields)
    part: Part = dense
    if has_experts:
        shared = fields.number("shared_intermediate_size", default=0) if has_shared else 0
        part = experts_of(fields, ("num_local_experts",), dense, shared_size=shared)
    return decoder_of(fields, layers_of(fields, attention_of(fields, **_biases(fields, default=False)), part))


def _hunyuan(fields: ConfigFields) -> Model:
    """Sizes of experts may be lists, whose entries are equal in every release."""
    expert = FeedForward(_same(fields, "moe_intermediate_size") or fields.count("intermediate_size"))
    experts = MixtureOfExperts(
        expert, fields.count("num_experts"), _same(fields, "moe_topk") or 1,
        shared_size=expert.size * (_same(fields, "num_shared_expert") or 1),
    )  # fmt: skip
    attention = attention_of(fields, qk_norm=True, **_biases(fields, default=False))
    return decoder_of(fields, layers_of(fields, attention, experts))


def _same(fields: ConfigFields, name: str) -> int | None:
    if fields.is_list(name):
        values = set(fields.counts(name, 1) or ())
        if len(values) > 1:
            fields.refuse(name, "must be one number for all layers")
        return values.pop()
    return fields.optional(name)


def _exaone(fields: ConfigFields) -> Model:
    return _dense(fields, attention_of(fields, qk_norm=True, qkv_bias=False), windows=True)


def _exaone_moe(fields: ConfigFields) -> Model:
    attention = attention_of(fields, qk_norm=True, qkv_bias=False)
    return _sparse(fields, attention, windows=True)


def _nemotron_nas(fields: ConfigFields) -> Model:
    """Llama-Nemotron Super and Ultra."""
    hidden, heads, layers = fields.count("hidden_size"), fields.count("num_attention_heads"), []
    for block in fields.objects("block_configs"):
        mixer, part = (
            ConfigFields(block.get(name) or {}, f"block_configs, {name}") for name in ("attention", "ffn")
        )
        if any(one.flag("replace_with_linear", default=False) for one in (mixer, part)):
            fields.refuse("block_configs", "has a layer with replace_with_linear, which is not known")
        attention: Attention = NoAttention()
        if not mixer.flag("no_op", default=False):
            attention = Attention(heads, heads // mixer.count("n_heads_in_group"), hidden // heads)
        ffn: FeedForward = NoFeedForward()
        if not part.flag("no_op", default=False):
            ffn = FeedForward(-(-int(2 * part.factor("ffn_mult") * hidden / 3) // 256) * 256)
        layer = Layer(hidden, attention, ffn)
        layers.append(replace(layer, num_norms=layer.num_sublayers))
    if len(layers) != fields.num_layers():
        fields.refuse("block_configs", f"has {len(layers)} layers, not num_hidden_layers {fields.num_layers()}")
    return decoder_of(fields, layers)


def _glm(fields: ConfigFields) -> Model:
    """GLM-4.5 to 4.7; only the larger model normalises queries and keys."""
    bias, qk_norm = fields.flag("attention_bias", default=False), fields.flag("use_qk_norm", default=False)
    return _sparse(fields, attention_of(fields, qkv_bias=bias, qk_norm=qk_norm))


def _hy_v3(fields: ConfigFields) -> Model:
    attention = attention_of(fields, head_size=128, qk_norm=True, **_biases(fields, default=False))
    return _sparse(fields, attention, first=1)


def _bailing(fields: ConfigFields) -> Model:
    """Ling 2.0 and Sarvam."""
    bias, out = fields.flag("use_qkv_bias", default=False), fields.flag("use_bias", default=False)
    attention = attention_of(fields, qk_norm=fields.flag("use_qk_norm", default=True), qkv_bias=bias, out_bias=out)
    return _sparse(fields, attention, router_bias=fields.flag("moe_router_enable_expert_bias", default=True))


def _latent(fields: ConfigFields, *, router_bias: bool = True, is_sparse: bool = False) -> Model:
    """DeepSeek-V2, V3, Kimi K2, GLM-4.7-Flash, Sarvam 105B; with `is_sparse` V3.2 and GLM-5."""
    attention = latent_attention_of(fields)
    mixers = _choosing(fields, attention) if is_sparse else [attention] * fields.num_layers()
    return _sparse(fields, mixers, router_bias=router_bias)


def _choosing(fields: ConfigFields, attention: LatentAttention) -> list[LatentAttention]:
    """A layer has an indexer, or attends to the keys that an earlier layer chose."""
    num_keys, number = fields.count("index_topk", default=2048), fields.num_layers()
    indexer = Indexer(fields.count("index_n_heads"), fields.count("index_head_dim", default=128), num_keys)
    have = fields.words("indexer_types", {"full": True, "shared": False}, number) or [True] * number
    return [replace(attention, num_keys=num_keys, indexer=indexer if has_indexer else None) for has_indexer in have]


def _sparse(
    fields: ConfigFields,
    attention: Mixer | Sequence[Mixer],
    *,
    router_bias: bool = True,
    first: int = 0,
    windows: bool = False,
) -> Model:
    expert = FeedForward(fields.count("moe_intermediate_size"))
    shared = expert.size * fields.number("n_shared_experts", "num_shared_experts", default=0)
    experts = experts_of(
        fields, ("n_routed_experts", "num_experts"), expert, shared_size=shared, router_bias=router_bias
    )
    layers = layers_of(fields, attention, sparse_parts(fields, experts, first=first))
    layers = _windowed(fields, layers) if windows else layers
    num_mtp = fields.number("num_nextn_predict_layers", "num_mtp_layers", default=0)
    require_layers(len(layers) + num_mtp, "num_hidden_layers + num_nextn_predict_layers")
    return decoder_of(fields, layers, mtp=(replace(layers[-1], ffn=experts),) * num_mtp)


READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "bailing_moe_v2": _bailing,
        "deepseek_v2": partial(_latent, router_bias=False),
        "deepseek_v3": _latent,
        "deepseek_v32": partial(_latent, is_sparse=True),
        "ernie4_5": _ernie,
        "ernie4_5_moe": _ernie_moe,
        "exaone4": _exaone,
        "exaone_moe": _exaone_moe,
        "glm4_moe": _glm,
        "glm4_moe_lite": _latent,
        "glm_moe_dsa": partial(_latent, is_sparse=True),
        "granite": _granite,
        "granitemoe": partial(_granite, has_experts=True),
        "granitemoeshared": partial(_granite, has_experts=True, has_shared=True),
        "hunyuan": _hunyuan,
        "hunyuan_v1_moe": _hunyuan,
        "hy_v3": _hy_v3,
        "kimi_k2": _latent,
        "mimo": _mimo,
        "minimax_m2": _minimax_m2,
        "nemotron-nas": _nemotron_nas,
        "olmo2": partial(_olmo, version=2),
        "olmo3": partial(_olmo, version=3),
        "olmoe": _olmoe,
        "phi3": _phi3,
        "sarvam_mla": _latent,
        "sarvam_moe": _bailing,
        "seed_oss": _seed_oss,
    }
)
