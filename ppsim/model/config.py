"""Models from a Hugging Face config.json.

A field that ppsim neither reads nor knows to be harmless is refused, because it might be a new kind of layer.
Released files leave out fields with the default of their class in transformers, so ppsim has these defaults.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import prefix_errors
from ppsim.base.name_lookup import NameLookup
from ppsim.model import families, heterogeneous, mixers
from ppsim.model.architecture import Layer, Model
from ppsim.model.attention_and_mlp import Attention, FeedForward, MixtureOfExperts
from ppsim.model.attention_base import Indexer
from ppsim.model.compressed_attention import CompressedAttention
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
    with_windows,
)
from ppsim.model.diffusion import DIFFUSERS
from ppsim.model.hf_fields import ConfigFields, UnknownModelType
from ppsim.model.hybrid import HybridMixers
from ppsim.model.multimodal import multimodal_model, omni_thinker
from ppsim.model.recurrent import GatedDeltaNet, KimiDeltaAttention
from ppsim.parallel.layer_partition import require_layers

_TRACED: dict[str, dict[str, Any]] = {}


def remember_trace(data: dict[str, Any], traced: dict[str, Any]) -> None:
    """In this process, let `model_from` replace a config.json of an unknown `model_type` by its trace."""
    _TRACED[_key(data)] = traced


def _key(data: dict[str, Any]) -> str:
    return json.dumps(data, sort_keys=True)


def model_from(data: Any, where: str = "config.json") -> Model:
    """Read a config.json; raises `ConfigError` in one sentence for a missing, unknown or contradictory field."""
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: a config.json holds an object, this one a {type(data).__name__}")
    kind = data.get("model_type") or data.get("_class_name")
    if not isinstance(kind, str):
        raise ConfigError(f"{where}: model_type is missing; there are {', '.join(_READERS)}")
    if _TRACED and (traced := _TRACED.get(_key(data))):
        data, kind = traced, str(traced["model_type"])
    if kind not in _READERS and (model := _nested_text_model(data, where)):
        return replace(model, left_out=f"text model only, other parts of model_type {kind} ignored")
    if kind not in _READERS:
        nearest = ", ".join(NameLookup("model_type", _READERS).nearest(kind))
        raise UnknownModelType(f"{where}: unknown model_type '{kind}' (nearest: {nearest})")
    fields = ConfigFields(data, where)
    with prefix_errors(where):
        model = _read_as(kind, fields)
    fields.require_all_known()
    return model


def _read_as(kind: str, fields: ConfigFields) -> Model:
    fields.kinds.add(kind)
    return _READERS[kind](fields)


def _with_encoders(kind: str, *encoders: str) -> Reader:
    """Return the reader of a model with encoders and a text model of some kind."""
    return partial(multimodal_model, read=partial(_read_as, kind), kinds=encoders or ("vision",))


_TEXT_CONFIGS = "text_config", "llm_config", "language_config", "thinker_config"
"""Fields of a file with encoders that hold the text model's own configuration."""


def _nested_text_model(data: dict[str, Any], where: str) -> Model | None:
    for name in _TEXT_CONFIGS:
        text = data.get(name)
        if isinstance(text, dict) and text.get("model_type") in _READERS:
            return model_from(text, f"{where}, {name}")
        if isinstance(text, dict) and (model := _nested_text_model(text, f"{where}, {name}")):
            return model
    return None


def _llama(fields: ConfigFields, part: Part | Sequence[Part], attention: Attention, *, has_window: bool) -> Model:
    """layer_types has the layers with a window; without it, they begin at layer max_window_layers."""
    layers = layers_of(fields, attention, part)
    first = fields.number("max_window_layers", default=0) if has_window else 0
    are_windowed = are_of_kind(fields, "sliding_attention", len(layers), lambda layer: layer >= first)
    window = fields.optional("sliding_window") if has_window else None
    return decoder_of(fields, with_windows(layers, window, are_windowed))


def _mistral(fields: ConfigFields) -> Model:
    attention = attention_of(fields)
    if fields.is_word("model_type", "ministral3"):
        attention = _with_head_size(fields, attention, 128)
    return _llama(fields, dense_of(fields), attention, has_window=True)


def _with_head_size(fields: ConfigFields, attention: Attention, size: int) -> Attention:
    """Apply this head size if the file has none: the default of some classes of transformers."""
    return attention if fields.has_any("head_dim") else replace(attention, head_size=size)


def _mixtral(fields: ConfigFields) -> Model:
    experts = experts_of(fields, ("num_local_experts",), FeedForward(fields.count("intermediate_size")))
    return _llama(fields, experts, attention_of(fields, qkv_bias=False), has_window=True)


def _qwen(fields: ConfigFields, *, version: int, has_experts: bool = False) -> Model:
    attention = attention_of(fields, qkv_bias=True) if version == 2 else attention_of(fields, qk_norm=True)
    if version == 3 and not has_experts:
        attention = _with_head_size(fields, attention, 128)
    part: Part | Sequence[Part]
    if has_experts:
        part = _qwen_parts(fields, fields.number("shared_expert_intermediate_size", default=0))
    else:
        part = FeedForward(fields.count("intermediate_size"))
    return _llama(fields, part, attention, has_window=fields.flag("use_sliding_window", default=False))


def _qwen_parts(fields: ConfigFields, shared_size: int) -> list[Part]:
    """Select the layers with experts as transformers' `Qwen2MoeDecoderLayer` does."""
    if fields.is_word("num_experts", 0):
        return [dense_of(fields)] * fields.num_layers()
    experts = experts_of(
        fields, ("num_experts", "num_local_experts"), FeedForward(fields.count("moe_intermediate_size")),
        shared_size=shared_size, shared_gate=shared_size > 0,
    )  # fmt: skip
    only_dense, step = fields.layers("mlp_only_layers"), fields.count("decoder_sparse_step", default=1)
    are_dense = [layer in only_dense or (layer + 1) % step != 0 for layer in range(fields.num_layers())]
    dense = FeedForward(fields.count("intermediate_size")) if any(are_dense) else experts
    return [dense if is_dense else experts for is_dense in are_dense]


def _qwen3_next(fields: ConfigFields, *, has_experts: bool = True) -> Model:
    """Qwen3-Next and Qwen3.5."""
    delta = GatedDeltaNet(
        fields.count("linear_num_key_heads"), fields.count("linear_num_value_heads"),
        fields.count("linear_key_head_dim"), fields.count("linear_value_head_dim"),
        kernel=fields.count("linear_conv_kernel_dim", default=4),
    )  # fmt: skip
    attention = attention_of(fields, head_size=256, qk_norm=True, gated=True)
    number = fields.num_layers()
    shared = fields.number("shared_expert_intermediate_size", default=0)
    parts: list[Part] = _qwen_parts(fields, shared) if has_experts else [dense_of(fields)] * number
    every = fields.count("full_attention_interval", default=4)
    are_linear = are_of_kind(fields, "linear_attention", number, lambda layer: (layer + 1) % every != 0)
    mixers = [delta if is_linear else attention for is_linear in are_linear]
    further = Layer(fields.count("hidden_size"), attention, parts[-1])
    num_mtp = fields.number("mtp_num_hidden_layers", default=0)
    return decoder_of(fields, layers_of(fields, mixers, parts), mtp=(further,) * num_mtp)


_BLOCKS = MappingProxyType(
    {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
)
"""Default tokens per compressed key, by DeepSeek-V4's `layer_types`; `compress_rates` can change them."""


def _deepseek_v4(fields: ConfigFields) -> Model:
    """The first layers route by token id."""
    number, num_mtp = fields.num_layers(), fields.number("num_nextn_predict_layers", default=1)
    require_layers(number + num_mtp, "num_hidden_layers + num_nextn_predict_layers")
    if fields.count("num_key_value_heads", default=1) != 1:
        fields.refuse("num_key_value_heads", "is 1 in compressed attention, one key that is its value too")
    blocks, indexed = _compressed_blocks(fields, number, num_mtp)
    attention = _compressed_attention(fields)
    mixers = [
        replace(attention, block=block or None, indexer=attention.indexer if block == indexed else None)
        for block in blocks
    ]
    expert = FeedForward(fields.count("moe_intermediate_size", "intermediate_size"))
    shared = expert.size * fields.number("n_shared_experts", default=1)
    experts = experts_of(
        fields, ("n_routed_experts", "num_local_experts"), expert, shared_size=shared, router_bias=True
    )
    num_hashed = fields.number("num_hash_layers", default=3)
    are_hashed = fields.words("mlp_layer_types", {"hash_moe": True, "moe": False}, number)
    are_hashed = (are_hashed or [layer < num_hashed for layer in range(number)]) + [False] * num_mtp
    streams = fields.count("hc_mult", default=4)
    layers = [
        Layer(fields.count("hidden_size"), mixer, replace(experts, router_bias=not is_hashed), streams=streams)
        for mixer, is_hashed in zip(mixers, are_hashed, strict=True)
    ]
    return decoder_of(fields, layers[:number], mtp=tuple(layers[number:]))


def _compressed_blocks(fields: ConfigFields, number: int, num_mtp: int) -> tuple[list[int], int]:
    """Return the tokens per compressed key of each layer, MTP layers included, and of layers with an indexer.

    By default, as in transformers, two heavily compressed layers come first, then heavy and sparse layers in turns.
    """
    given = fields.nested("compress_rates")
    of_words = {word: given.count(word, default=block) if block else 0 for word, block in sorted(_BLOCKS.items())}
    given.require_all_known()
    sparse, heavy = of_words["compressed_sparse_attention"], of_words["heavily_compressed_attention"]
    of_layers = fields.words("layer_types", of_words, number)
    blocks = (
        fields.counts("compress_ratios", number)
        or of_layers
        or [sparse if layer > 1 and layer % 2 else heavy for layer in range(number)]
    )
    return (blocks + [0] * num_mtp)[: number + num_mtp], sparse


def _compressed_attention(fields: ConfigFields) -> CompressedAttention:
    return CompressedAttention(
        fields.count("num_attention_heads"), fields.count("head_dim", default=512), fields.count("q_lora_rank"),
        fields.count("qk_rope_head_dim", default=64), fields.count("sliding_window", default=128),
        out_groups=fields.count("o_groups", default=8), out_rank=fields.count("o_lora_rank", default=1024),
        block=1, indexer=Indexer(
            fields.count("index_n_heads", default=64), fields.count("index_head_dim", default=128),
            fields.count("index_topk", default=512),
        ),
    )  # fmt: skip


def _kimi_linear(fields: ConfigFields) -> Model:
    """Latent attention in `full_attn_layers`, which count from 1, and Kimi delta attention in the others.

    In Kimi K3 each mixer reads a weighted sum of the residual and of the earlier residuals before every
    `attn_res_block_size`-th layer.
    """
    linear, numbers = fields.nested("linear_attn_config"), range(1, fields.num_layers() + 1)
    heads, size = linear.count("num_heads"), linear.count("head_dim")
    delta = KimiDeltaAttention(
        heads, heads, size, size, kernel=linear.count("short_conv_kernel_size", default=4),
        full_gate=linear.flag("use_full_rank_gate", default=False),
    )  # fmt: skip
    attends = linear.layers("full_attn_layers")
    if linear.layers("kda_layers") != set(numbers) - attends:
        fields.refuse("linear_attn_config", f"must have each of {len(numbers)} layers in one of its two lists")
    linear.require_all_known()
    attention = replace(latent_attention_of(fields), gated=fields.flag("mla_use_output_gate", default=False))
    expert = FeedForward(fields.count("moe_intermediate_size"))
    experts = experts_of(
        fields, ("num_experts",), expert, chosen=("num_experts_per_token",),
        shared_size=expert.size * fields.number("num_shared_experts", default=0), router_bias=True,
        latent_size=fields.optional("routed_expert_hidden_size"),
        latent_norm=fields.flag("latent_moe_use_norm", default=False),
    )  # fmt: skip
    mixers = [attention if number in attends else delta for number in numbers]
    layers = layers_of(fields, mixers, sparse_parts(fields, experts))
    if block := fields.optional("attn_res_block_size"):
        layers = [
            replace(layer, summed_residuals=(1 + -(-number // block), 2 + number // block))
            for number, layer in enumerate(layers)
        ]
    return decoder_of(fields, layers, length=fields.optional("model_max_length"))


def _gemma4(fields: ConfigFields) -> Model:
    """A model with an audio encoder is traced."""
    if not fields.is_word("audio_config", None):
        fields.require_trace("audio_config")
    return _with_encoders("gemma4_text")(fields)


def _step3p7(fields: ConfigFields) -> Model:
    has_text = not fields.is_word("text_config", None)
    return _with_encoders("step3p5")(fields) if has_text else _read_as("step3p5", fields)


def _gpt2(fields: ConfigFields) -> Model:
    hidden, heads = fields.count("n_embd", "hidden_size"), fields.count("n_head", "num_attention_heads")
    if hidden % heads:
        fields.refuse("n_embd", f"{hidden} is no multiple of n_head {heads}")
    positions = fields.count("n_positions", "max_position_embeddings")
    ffn = FeedForward(fields.optional("n_inner") or 4 * hidden, gated=False, bias=True)
    layer = Layer(hidden, Attention(heads, heads, hidden // heads, qkv_bias=True, out_bias=True), ffn, "layernorm")
    return Model(
        (layer,) * fields.num_layers("n_layer", "num_hidden_layers"), fields.count("vocab_size"), positions,
        tied_embeddings=fields.flag("tie_word_embeddings", default=True), learned_positions=positions,
        source="config.json",
    )  # fmt: skip


def _opt(fields: ConfigFields) -> Model:
    """There are two more positions than tokens; OPT-350m has a narrower embedding, and norms after the mixers."""
    bias, width = fields.flag("enable_bias", default=True), fields.optional("word_embed_proj_dim")
    ffn = FeedForward(fields.count("ffn_dim"), gated=False, bias=bias)
    layers = layers_of(fields, attention_of(fields, qkv_bias=bias, out_bias=bias), ffn, "layernorm")
    model = decoder_of(fields, layers, tied=True)
    before = fields.flag("do_layer_norm_before", default=True)
    removed = fields.flag("_remove_final_layer_norm", default=False)
    return replace(
        model, learned_positions=model.sequence_length + 2, final_norm=before and not removed,
        projected_size=width if width != model.hidden_size else None,
    )  # fmt: skip


def _layernorm(fields: ConfigFields, *, biased: bool) -> Model:
    bias = biased or fields.flag("mlp_bias", default=False)
    part = FeedForward(fields.count("intermediate_size"), gated=False, bias=bias)
    return decoder_of(fields, layers_of(fields, attention_of(fields, biased=biased), part, "layernorm"))


def _gpt_oss(fields: ConfigFields) -> Model:
    experts = experts_of(
        fields, ("num_local_experts", "num_experts"),
        FeedForward(fields.count("intermediate_size"), bias=True, clamped=True),
        chosen=("num_experts_per_tok", "experts_per_token"), router_bias=True,
    )  # fmt: skip
    layers = layers_of(fields, attention_of(fields, head_size=64, biased=True, sinks=True, yarn=32.0), experts)
    are_windowed = are_of_kind(fields, "sliding_attention", len(layers), lambda layer: layer % 2 == 0)
    return decoder_of(fields, with_windows(layers, fields.count("sliding_window", default=128), are_windowed))


def _gemma(fields: ConfigFields, *, version: int) -> Model:
    attention = attention_of(fields, heads=8, kv_heads=4, head_size=256, qk_norm=version == 3)
    ffn = FeedForward(fields.count("intermediate_size", default=9216))
    layer = Layer(fields.count("hidden_size", default=2304), attention, ffn, num_norms=4)
    layers = [layer] * fields.num_layers(default=26)
    every = fields.count("sliding_window_pattern", default=2 if version == 2 else 6)
    are_windowed = are_of_kind(fields, "sliding_attention", len(layers), lambda one: (one + 1) % every != 0)
    vocab, length = (256_000, 8192) if version == 2 else (262_208, 131_072)
    seen = with_windows(layers, fields.count("sliding_window", default=4096), are_windowed)
    return decoder_of(fields, seen, tied=True, vocab=vocab, length=length)


def _llama4(fields: ConfigFields) -> Model:
    attention, num_layers = attention_of(fields, head_size=128), fields.num_layers()
    expert, dense = (FeedForward(fields.count(f"intermediate_size{end}")) for end in ("", "_mlp"))
    chosen = fields.count("num_experts_per_tok", default=1)
    experts = MixtureOfExperts(expert, fields.count("num_local_experts"), chosen, shared_size=expert.size)
    step = fields.count("interleave_moe_layer_step", default=1)
    sparse = fields.layers("moe_layers") or set(range(step - 1, num_layers, step))
    layers = layers_of(fields, attention, [experts if layer in sparse else dense for layer in range(num_layers)])
    every = fields.count("no_rope_layer_interval", default=4)
    are_chunked = are_of_kind(fields, "chunked_attention", num_layers, lambda one: (one + 1) % every != 0)
    chunk = fields.optional("attention_chunk_size")
    return decoder_of(fields, with_windows(layers, chunk, are_chunked, is_chunked=True))


def _nemotron_h(fields: ConfigFields) -> Model:
    """Nemotron-H and Nemotron 3."""
    pattern = fields.text("hybrid_override_pattern", "layers_block_type")
    if not pattern:
        fields.refuse("hybrid_override_pattern", "is missing (or layers_block_type)")
    pattern = pattern or ""
    given = fields.optional("num_hidden_layers")
    if given is not None and given != len(pattern):
        fields.refuse("num_hidden_layers", f"{given} is not the {len(pattern)} layers of the pattern")
    heads = fields.count("mamba_num_heads"), fields.count("mamba_head_dim"), fields.count("ssm_state_size")
    parts = HybridMixers(
        fields.count("hidden_size"),
        mamba=mamba_of(fields, *heads, chunk=128),
        attention=attention_of(fields, head_size=128),
        dense=dense_of(fields, gated=False) if "-" in pattern else None,
        experts=_relu2_experts(fields) if "E" in pattern else None,
    )
    further = fields.text("mtp_hybrid_override_pattern", "mtp_layers_block_type") or "*E"
    num_mtp = fields.number("num_nextn_predict_layers", default=0)
    layers = list(parts.layers(pattern))
    return decoder_of(fields, layers, mtp=(parts.whole(further),) * num_mtp if num_mtp else ())


def _relu2_experts(fields: ConfigFields) -> MixtureOfExperts:
    expert = FeedForward(fields.count("moe_intermediate_size"), gated=False)
    shared = fields.number("n_shared_experts", default=1)
    shared *= fields.number("moe_shared_expert_intermediate_size", default=expert.size)
    latent = fields.optional("moe_latent_size")
    return experts_of(
        fields, ("n_routed_experts",), expert, shared_size=shared, router_bias=True, latent_size=latent
    )


def _mamba2(fields: ConfigFields) -> Model:
    heads, size = fields.count("num_heads", default=128), fields.count("head_dim", default=64)
    mamba = mamba_of(fields, heads, size, fields.count("state_size", default=128), chunk=256)
    layer = HybridMixers(fields.count("hidden_size"), mamba=mamba).of_letter("M", "M")
    return decoder_of(fields, [layer] * fields.num_layers(), length=2048)


def _bamba(fields: ConfigFields) -> Model:
    heads, expanded = fields.count("mamba_n_heads"), fields.count("mamba_expand", default=2)
    expanded *= fields.count("hidden_size")
    if not fields.is_word("mamba_d_head", "auto"):
        size = fields.count("mamba_d_head")
    elif expanded % heads:
        raise ConfigError(f"mamba_n_heads {heads} does not divide mamba_expand × hidden_size {expanded}")
    else:
        size = expanded // heads
    mamba = mamba_of(fields, heads, size, fields.count("mamba_d_state"), chunk=256, groups=1)
    attention, attends = attention_of(fields), fields.layers("attn_layer_indices")
    mixers = [attention if layer in attends else mamba for layer in range(fields.num_layers())]
    return decoder_of(fields, layers_of(fields, mixers, dense_of(fields)), length=262_144)


def _of_mixers() -> dict[str, Reader]:
    names = sorted(module.name for module in iter_modules(mixers.__path__))
    files = [import_module(f"{mixers.__name__}.{name}") for name in names]
    return {kind: read for file in files for kind, read in file.READERS.items()}


_READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "llama": lambda fields: _llama(fields, dense_of(fields), attention_of(fields), has_window=False),
        "mistral": _mistral,
        "ministral3": _mistral,
        "mixtral": _mixtral,
        "qwen2": partial(_qwen, version=2),
        "qwen3": partial(_qwen, version=3),
        "qwen2_moe": partial(_qwen, version=2, has_experts=True),
        "qwen3_moe": partial(_qwen, version=3, has_experts=True),
        "deepseek_v4": _deepseek_v4,
        "gpt2": _gpt2,
        "gpt_neox": partial(_layernorm, biased=True),
        "opt": _opt,
        "nemotron": partial(_layernorm, biased=False),
        "gpt_oss": _gpt_oss,
        "gemma2": partial(_gemma, version=2),
        "gemma3_text": partial(_gemma, version=3),
        "gemma3": _with_encoders("gemma3_text"),
        "gemma4": _gemma4,
        "llama4_text": _llama4,
        "llama4": _with_encoders("llama4_text"),
        "kimi_k25": _with_encoders("kimi_k2"),
        "mistral3": _with_encoders("mistral"),
        "qwen3_next": _qwen3_next,
        "qwen3_5_text": partial(_qwen3_next, has_experts=False),
        "qwen3_5_moe_text": _qwen3_next,
        "qwen3_5": _with_encoders("qwen3_5_text"),
        "qwen3_5_moe": _with_encoders("qwen3_5_moe_text"),
        "kimi_linear": _kimi_linear,
        "qwen2_5_vl": _with_encoders("qwen2"),
        "qwen3_vl": _with_encoders("qwen3"),
        "qwen3_vl_moe": _with_encoders("qwen3_moe"),
        "glm4v_moe": _with_encoders("glm4_moe"),
        "kimi_vl": _with_encoders("deepseek_v3"),
        "qwen2_audio": _with_encoders("qwen2", "audio"),
        "qwen2_5_omni": partial(omni_thinker, read=partial(_read_as, "qwen2")),
        "qwen3_omni_moe": partial(omni_thinker, read=partial(_read_as, "qwen3_moe")),
        "nemotron_h": _nemotron_h,
        "mamba2": _mamba2,
        "bamba": _bamba,
        **families.READERS,
        **heterogeneous.READERS,
        "kimi_k3": _with_encoders("kimi_linear"),
        "minimax_m3_vl": _with_encoders("minimax_m3"),
        "step3p7": _step3p7,
        **DIFFUSERS,
        **_of_mixers(),
    }
)
