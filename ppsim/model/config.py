"""Models from a Hugging Face config.json.

Every field is either read, or known to change neither parameters nor matrix products, or refused: a new field might
be a new kind of layer.
"""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import naming
from ppsim.base.names import Names
from ppsim.layout.split import require_layers
from ppsim.model.architecture import Layer, Model, Norm
from ppsim.model.config_of_hybrids import READERS, decoder, deepseek_parts, latent_attention, qwen_parts
from ppsim.model.diffusion import DIFFUSERS
from ppsim.model.fields import Fields
from ppsim.model.halves import Attention, FeedForward, MixtureOfExperts
from ppsim.model.hybrid import windowed


def model_from(data: Any, where: str = "config.json") -> Model:
    """Return the model of a config.json's content.

    Raises `ConfigError` in one sentence for an unknown `model_type`, a field that is missing, has no meaning, is
    contradicted by another, or is unknown and so might change the weights.
    """
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: a config.json holds an object, this one a {type(data).__name__}")
    kind = data.get("model_type") or data.get("_class_name")
    if not isinstance(kind, str):
        raise ConfigError(f"{where}: model_type is missing; there are {', '.join(_READERS)}")
    if kind not in _READERS:
        raise ConfigError(f"{where}: {Names('model_type', _READERS).unknown(kind)}")
    fields = Fields(data, where)
    with naming(where):
        model = _READERS[kind](fields)
    fields.require_all_known()
    return model


def _attention(fields: Fields, hidden: int, **of_family: bool) -> Attention:
    heads = fields.count("num_attention_heads")
    given = fields.optional("head_dim")
    if given is None and hidden % heads:
        fields.refuse(
            "hidden_size", f"{hidden} is no multiple of num_attention_heads {heads}, and head_dim is not given"
        )
    kv_heads = fields.optional("num_key_value_heads") or heads
    return Attention(heads, kv_heads, given or hidden // heads, **of_family)


def _windowed(fields: Fields, layers: list[Layer], *, asked: bool) -> list[Layer]:
    """The layers that the file says see a window only: those of layer_types, or those from max_window_layers on."""
    kinds = fields.words("layer_types", {"sliding_attention": True, "full_attention": False}, len(layers))
    window = fields.optional("sliding_window") if asked else None
    if window is None:
        return layers
    first = fields.number("max_window_layers", default=0)
    are_windowed = kinds or [layer >= first for layer in range(len(layers))]
    whole, short = (
        [one for layer in layers for one in windowed(layer, window, [is_short])] for is_short in (False, True)
    )
    return [(short if is_short else whole)[layer] for layer, is_short in enumerate(are_windowed)]


def _llama(fields: Fields, *, has_window: bool = False) -> Model:
    """llama and mistral: biases where the file says so; mistral's `sliding_window` is all layers'."""
    hidden, bias = fields.count("hidden_size"), fields.flag("attention_bias", default=False)
    ffn = FeedForward(fields.count("intermediate_size"), bias=fields.flag("mlp_bias", default=False))
    layer = Layer(hidden, _attention(fields, hidden, qkv_bias=bias, out_bias=bias), ffn)
    return decoder(fields, _windowed(fields, [layer] * fields.num_layers(), asked=has_window))


def _qwen(fields: Fields, *, version: int) -> Model:
    hidden = fields.count("hidden_size")
    layer = Layer(hidden, _qwen_attention(fields, version), FeedForward(fields.count("intermediate_size")))
    asked = fields.flag("use_sliding_window", default=False)
    return decoder(fields, _windowed(fields, [layer] * fields.num_layers(), asked=asked))


def _qwen_attention(fields: Fields, version: int) -> Attention:
    """Version 2 has biases of queries, keys and values; version 3 norms, and biases where the file says so."""
    hidden = fields.count("hidden_size")
    if version == 2:
        return _attention(fields, hidden, qkv_bias=True)
    bias = fields.flag("attention_bias", default=False)
    return _attention(fields, hidden, qkv_bias=bias, out_bias=bias, qk_norm=True)


def _mixtral(fields: Fields) -> Model:
    hidden = fields.count("hidden_size")
    expert = FeedForward(fields.count("intermediate_size"))
    experts = MixtureOfExperts(expert, fields.count("num_local_experts"), fields.count("num_experts_per_tok"))
    layer = Layer(hidden, _attention(fields, hidden), experts)
    return decoder(fields, _windowed(fields, [layer] * fields.num_layers(), asked=True))


def _qwen_moe(fields: Fields, *, version: int) -> Model:
    hidden, attention = fields.count("hidden_size"), _qwen_attention(fields, version)
    shared = fields.number("shared_expert_intermediate_size", default=0) if version == 2 else 0
    parts = qwen_parts(fields, fields.num_layers(), shared_size=shared)
    asked = fields.flag("use_sliding_window", default=False)
    return decoder(fields, _windowed(fields, [Layer(hidden, attention, part) for part in parts], asked=asked))


def _deepseek(fields: Fields, *, version: int) -> Model:
    """V2 and V3: latent attention; the first layers dense, one MoE layer in `moe_layer_freq` behind them."""
    hidden, num_layers = fields.count("hidden_size"), fields.num_layers()
    attention = latent_attention(fields)
    fields.seen.update(("num_key_value_heads", "qk_head_dim", "head_dim"))  # of the latent: they follow
    if fields.flag("attention_bias", default=False):
        fields.refuse("attention_bias", "true is not known with latent attention; it is false in every release")
    expert = FeedForward(fields.count("moe_intermediate_size"))
    experts = MixtureOfExperts(
        expert,
        fields.count("n_routed_experts"),
        fields.count("num_experts_per_tok"),
        shared_size=expert.size * fields.number("n_shared_experts", default=0),
        router_bias=version == 3,
    )
    parts = deepseek_parts(fields, num_layers, experts)
    num_mtp = fields.number("num_nextn_predict_layers", default=0)
    require_layers(num_layers + num_mtp, "num_hidden_layers + num_nextn_predict_layers")
    mtp = (Layer(hidden, attention, experts),) * num_mtp
    return decoder(fields, [Layer(hidden, attention, part) for part in parts], mtp=mtp)


def _gpt2(fields: Fields) -> Model:
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


def _opt(fields: Fields) -> Model:
    """OPT: two more positions than the sequence; OPT-350m's narrower embedding and norms behind the parts."""
    hidden, bias = fields.count("hidden_size"), fields.flag("enable_bias", default=True)
    norm: Norm = "layernorm"
    layer = Layer(
        hidden,
        _attention(fields, hidden, qkv_bias=bias, out_bias=bias),
        FeedForward(fields.count("ffn_dim"), gated=False, bias=bias),
        norm,
    )
    width, length = fields.optional("word_embed_proj_dim"), fields.count("max_position_embeddings")
    before = fields.flag("do_layer_norm_before", default=True)
    removed = fields.flag("_remove_final_layer_norm", default=False)
    return Model(
        (layer,) * fields.num_layers(), fields.count("vocab_size"), length,
        tied_embeddings=fields.flag("tie_word_embeddings", default=True), learned_positions=length + 2,
        final_norm=before and not removed, projected_size=width if width != hidden else None, source="config.json",
    )  # fmt: skip


def _layernorm(fields: Fields, *, biased: bool) -> Model:
    """gpt_neox, whose feed-forward part always has biases, and nemotron, which has them where the file says so."""
    hidden, bias = fields.count("hidden_size"), fields.flag("attention_bias", default=biased)
    mlp_bias = biased or fields.flag("mlp_bias", default=False)
    ffn = FeedForward(fields.count("intermediate_size"), gated=False, bias=mlp_bias)
    layer = Layer(hidden, _attention(fields, hidden, qkv_bias=bias, out_bias=bias), ffn, "layernorm")
    return decoder(fields, [layer] * fields.num_layers())


_READERS: MappingProxyType[str, Callable[[Fields], Model]] = MappingProxyType(
    {
        "llama": _llama,
        "mistral": lambda fields: _llama(fields, has_window=True),
        "mixtral": _mixtral,
        "qwen2": lambda fields: _qwen(fields, version=2),
        "qwen3": lambda fields: _qwen(fields, version=3),
        "qwen2_moe": lambda fields: _qwen_moe(fields, version=2),
        "qwen3_moe": lambda fields: _qwen_moe(fields, version=3),
        "deepseek_v2": lambda fields: _deepseek(fields, version=2),
        "deepseek_v3": lambda fields: _deepseek(fields, version=3),
        "kimi_k2": lambda fields: _deepseek(fields, version=3),
        "gpt2": _gpt2,
        "gpt_neox": lambda fields: _layernorm(fields, biased=True),
        "opt": _opt,
        "nemotron": lambda fields: _layernorm(fields, biased=False),
        **READERS,
        **DIFFUSERS,
    }
)
