"""Readers of config.json for models whose layers differ: windows, Mamba-2, gated delta nets, latent experts.

Defaults are those of the classes in transformers, which released files leave out.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from ppsim.base.errors import ConfigError
from ppsim.model.architecture import Layer, Model
from ppsim.model.fields import Fields
from ppsim.model.halves import Attention, FeedForward, LatentAttention, Mixer, MixtureOfExperts
from ppsim.model.hybrid import Halves, windowed
from ppsim.model.recurrent import GatedDeltaNet, KimiDeltaAttention, Mamba

_WINDOWS = {"sliding_attention": True, "chunked_attention": True, "full_attention": False}


def decoder(
    fields: Fields,
    layers: Iterable[Layer],
    *,
    mtp: tuple[Layer, ...] = (),
    tied: bool = False,
    vocab: int | None = None,
    length: int | None = None,
) -> Model:
    """Return the model of these layers; `tied`, `vocab` and `length` stand where the file says nothing."""
    same: dict[Layer, Layer] = {}  # what is computed of a layer is computed once an object
    return Model(
        tuple(same.setdefault(layer, layer) for layer in layers),
        fields.count("vocab_size", default=vocab),
        fields.count("max_position_embeddings", default=length),
        tied_embeddings=fields.flag("tie_word_embeddings", default=tied),
        mtp=mtp,
        source="config.json",
    )


def _gpt_oss(fields: Fields) -> Model:
    hidden, bias, num_layers = (
        fields.count("hidden_size"),
        fields.flag("attention_bias", default=True),
        fields.num_layers(),
    )
    attention = _attention(fields, head_size=64, qkv_bias=bias, out_bias=bias, sinks=True)
    experts = MixtureOfExperts(
        FeedForward(fields.count("intermediate_size"), bias=True, clamped=True),
        fields.count("num_local_experts", "num_experts"),
        fields.count("num_experts_per_tok", "experts_per_token"),
        router_bias=True,
    )
    are_windowed = fields.words("layer_types", _WINDOWS, num_layers) or [one % 2 == 0 for one in range(num_layers)]
    window = fields.count("sliding_window", default=128)
    return decoder(fields, windowed(Layer(hidden, attention, experts), window, are_windowed))


def _gemma(fields: Fields, *, version: int) -> Model:
    hidden, num_layers = fields.count("hidden_size", default=2304), fields.num_layers(default=26)
    bias = fields.flag("attention_bias", default=False)
    attention = Attention(
        fields.count("num_attention_heads", default=8), fields.count("num_key_value_heads", default=4),
        fields.count("head_dim", default=256), qkv_bias=bias, out_bias=bias, qk_norm=version == 3,
    )  # fmt: skip
    fields.seen.add("hidden_activation")
    layer = Layer(hidden, attention, FeedForward(fields.count("intermediate_size", default=9216)), num_norms=4)
    every = fields.count("sliding_window_pattern", default=2 if version == 2 else 6)
    are_windowed = fields.words("layer_types", _WINDOWS, num_layers)
    are_windowed = are_windowed or [(one + 1) % every != 0 for one in range(num_layers)]
    layers = windowed(layer, fields.count("sliding_window", default=4096), are_windowed)
    vocab, length = (256_000, 8192) if version == 2 else (262_208, 131_072)
    return decoder(fields, layers, tied=True, vocab=vocab, length=length)


def _gemma3_of_images(fields: Fields) -> Model:
    """The language model of a file that has one for images too."""
    fields.seen.update(
        ("vision_config", "mm_tokens_per_image", "boi_token_index", "eoi_token_index", "image_token_index")
    )
    return _nested(fields, lambda text: _gemma(text, version=3))


def _nested(fields: Fields, read: Callable[[Fields], Model]) -> Model:
    text = fields.nested("text_config")
    found = read(text)
    text.require_all_known()
    return replace(found, tied_embeddings=fields.flag("tie_word_embeddings", default=found.tied_embeddings))


def _llama4(fields: Fields) -> Model:
    """The text model of Llama 4: a layer of `interleave_moe_layer_step` has experts, and a shared one."""
    hidden, num_layers = fields.count("hidden_size"), fields.num_layers()
    bias = fields.flag("attention_bias", default=False)
    attention = _attention(fields, head_size=128, qkv_bias=bias, out_bias=bias)
    size = fields.count("intermediate_size")
    experts = MixtureOfExperts(
        FeedForward(size), fields.count("num_local_experts"), fields.count("num_experts_per_tok", default=1),
        shared_size=size,
    )  # fmt: skip
    dense = FeedForward(fields.count("intermediate_size_mlp"))
    step = fields.count("interleave_moe_layer_step", default=1)
    sparse = fields.layers("moe_layers") or set(range(step - 1, num_layers, step))
    interval = fields.count("no_rope_layer_interval", default=4)
    fields.seen.add("no_rope_layers")
    are_chunked = fields.words("layer_types", _WINDOWS, num_layers)
    are_chunked = are_chunked or [(one + 1) % interval != 0 for one in range(num_layers)]
    chunk = fields.optional("attention_chunk_size")
    layers = []
    for one, is_chunked in enumerate(are_chunked):
        layer = Layer(hidden, attention, experts if one in sparse else dense)
        layers += windowed(layer, chunk, [is_chunked], is_chunked=True) if chunk else [layer]
    return decoder(fields, layers)


def _llama4_of_images(fields: Fields) -> Model:
    """The language model of a file that has one for images too."""
    fields.seen.update(("vision_config", "boi_token_index", "eoi_token_index", "image_token_index"))
    return _nested(fields, _llama4)


def _qwen3_next(fields: Fields) -> Model:
    hidden, num_layers = fields.count("hidden_size"), fields.num_layers()
    bias = fields.flag("attention_bias", default=False)
    delta = GatedDeltaNet(
        fields.count("linear_num_key_heads"), fields.count("linear_num_value_heads"),
        fields.count("linear_key_head_dim"), fields.count("linear_value_head_dim"),
        kernel=fields.count("linear_conv_kernel_dim", default=4),
    )  # fmt: skip
    attention = _attention(fields, head_size=256, qkv_bias=bias, out_bias=bias, qk_norm=True, gated=True)
    parts = qwen_parts(fields, num_layers, shared_size=fields.number("shared_expert_intermediate_size", default=0))
    interval = fields.count("full_attention_interval", default=4)
    are_linear = fields.words("layer_types", {"linear_attention": True, "full_attention": False}, num_layers)
    are_linear = are_linear or [(one + 1) % interval != 0 for one in range(num_layers)]
    mixers = (delta if is_linear else attention for is_linear in are_linear)
    return decoder(fields, [Layer(hidden, *halves) for halves in zip(mixers, parts, strict=True)])


def qwen_parts(fields: Fields, num_layers: int, *, shared_size: int) -> list[FeedForward | MixtureOfExperts]:
    """Return the feed-forward part of each layer, by the rule of transformers' `Qwen2MoeDecoderLayer`."""
    experts = MixtureOfExperts(
        FeedForward(fields.count("moe_intermediate_size")),
        fields.count("num_experts", "num_local_experts"),
        fields.count("num_experts_per_tok"),
        shared_size=shared_size,
        shared_gate=shared_size > 0,
    )
    dense, only_dense = FeedForward(fields.count("intermediate_size")), fields.layers("mlp_only_layers")
    step = fields.count("decoder_sparse_step", default=1)
    return [dense if layer in only_dense or (layer + 1) % step else experts for layer in range(num_layers)]


def _attention(fields: Fields, *, head_size: int, **of_family: bool) -> Attention:
    heads, kv_heads = fields.count("num_attention_heads"), fields.count("num_key_value_heads")
    return Attention(heads, kv_heads, fields.count("head_dim", default=head_size), **of_family)


def latent_attention(fields: Fields) -> LatentAttention:
    """Return attention by way of latents, as DeepSeek and Kimi name its sizes."""
    return LatentAttention(
        fields.count("num_attention_heads"),
        q_lora_rank=fields.optional("q_lora_rank"),
        kv_lora_rank=fields.count("kv_lora_rank"),
        qk_nope_head_size=fields.count("qk_nope_head_dim"),
        qk_rope_head_size=fields.count("qk_rope_head_dim"),
        v_head_size=fields.count("v_head_dim"),
    )


def _kimi_linear(fields: Fields) -> Model:
    """Latent attention in `full_attn_layers`, which count from 1, and Kimi delta attention in the others."""
    hidden, num_layers = fields.count("hidden_size"), fields.num_layers()
    linear = fields.nested("linear_attn_config")
    heads, size = linear.count("num_heads"), linear.count("head_dim")
    delta = KimiDeltaAttention(heads, heads, size, size, kernel=linear.count("short_conv_kernel_size", default=4))
    attends = linear.layers("full_attn_layers")
    if linear.layers("kda_layers") != set(range(1, num_layers + 1)) - attends:
        fields.refuse("linear_attn_config", f"must have each of {num_layers} layers in one of its two lists")
    linear.require_all_known()
    attention = latent_attention(fields)
    fields.seen.update(_OF_KIMI)
    if fields.number("num_nextn_predict_layers", default=0):
        fields.refuse("num_nextn_predict_layers", "is not known with kimi_linear; it is 0 in every release")
    size = fields.count("moe_intermediate_size")
    experts = MixtureOfExperts(
        FeedForward(size), fields.count("num_experts"), fields.count("num_experts_per_token"),
        shared_size=size * fields.number("num_shared_experts", default=0), router_bias=True,
    )  # fmt: skip
    layers = [
        Layer(hidden, attention if number in attends else delta, part)
        for number, part in enumerate(deepseek_parts(fields, num_layers, experts), start=1)
    ]
    return decoder(fields, layers, length=fields.optional("model_max_length"))


def deepseek_parts(
    fields: Fields, num_layers: int, experts: MixtureOfExperts
) -> list[FeedForward | MixtureOfExperts]:
    """Return the feed-forward part of each layer: dense ones first, then experts in one of `moe_layer_freq`."""
    dense, every = FeedForward(fields.count("intermediate_size")), fields.count("moe_layer_freq", default=1)
    first = fields.number("first_k_dense_replace", default=0)
    if first > num_layers:
        fields.refuse("first_k_dense_replace", f"{first} is more than num_hidden_layers {num_layers}")
    return [experts if layer >= first and layer % every == 0 else dense for layer in range(num_layers)]


_OF_KIMI = (
    "num_key_value_heads", "head_dim", "mla_use_nope", "moe_renormalize", "moe_router_activation_func",
    "num_expert_group", "use_grouped_topk",
)  # fmt: skip
"""Fields of Kimi Linear that follow from others, or change no matrix product."""


def _nemotron_h(fields: Fields) -> Model:
    """Nemotron-H and Nemotron 3: the pattern says what each layer is; its length is the number of layers."""
    hidden, pattern = fields.count("hidden_size"), fields.text("hybrid_override_pattern", "layers_block_type")
    if not pattern:
        fields.refuse("hybrid_override_pattern", "is missing (or layers_block_type)")
    pattern = pattern or ""
    given = fields.optional("num_hidden_layers")
    if given is not None and given != len(pattern):
        fields.refuse("num_hidden_layers", f"{given} is not the {len(pattern)} layers of the pattern")
    bias = fields.flag("attention_bias", default=False)
    proj_bias = fields.flag("mamba_proj_bias", default=fields.flag("use_bias", default=False))
    fields.seen.update(("intermediate_size", "mlp_bias"))
    parts = Halves(
        hidden,
        mamba=Mamba(
            fields.count("mamba_num_heads"), fields.count("mamba_head_dim"), fields.count("ssm_state_size"),
            num_groups=fields.count("n_groups", "mamba_n_groups", default=8),
            kernel=fields.count("conv_kernel", "mamba_d_conv", default=4),
            chunk_size=fields.count("chunk_size", "mamba_chunk_size", default=128), bias=proj_bias,
            conv_bias=fields.flag("use_conv_bias", default=True),
        ),
        attention=Attention(
            fields.count("num_attention_heads"), fields.count("num_key_value_heads"),
            fields.count("head_dim", "attention_head_dim", default=128), qkv_bias=bias, out_bias=bias,
        ),
        dense=_relu2_dense(fields) if "-" in pattern else None,
        experts=_relu2_experts(fields) if "E" in pattern else None,
    )  # fmt: skip
    further = fields.text("mtp_hybrid_override_pattern", "mtp_layers_block_type") or "*E"
    num_mtp = fields.number("num_nextn_predict_layers", default=0)
    layers = list(parts.layers(pattern))
    return decoder(fields, layers, mtp=(parts.whole(further),) * num_mtp if num_mtp else ())


def _relu2_dense(fields: Fields) -> FeedForward:
    bias = fields.flag("mlp_bias", default=False)
    return FeedForward(fields.count("intermediate_size"), gated=False, bias=bias)


def _relu2_experts(fields: Fields) -> MixtureOfExperts:
    size = fields.count("moe_intermediate_size")
    shared = fields.number("n_shared_experts", default=1)
    return MixtureOfExperts(
        FeedForward(size, gated=False),
        fields.count("n_routed_experts"),
        fields.count("num_experts_per_tok"),
        shared_size=shared * fields.number("moe_shared_expert_intermediate_size", default=size),
        router_bias=True,
        latent_size=fields.optional("moe_latent_size"),
    )


def _mamba2(fields: Fields) -> Model:
    hidden = fields.count("hidden_size")
    mamba = Mamba(
        fields.count("num_heads", default=128), fields.count("head_dim", default=64),
        fields.count("state_size", default=128), num_groups=fields.count("n_groups", default=8),
        kernel=fields.count("conv_kernel", default=4), chunk_size=fields.count("chunk_size", default=256),
        bias=fields.flag("use_bias", default=False), conv_bias=fields.flag("use_conv_bias", default=True),
    )  # fmt: skip
    layer = Halves(hidden, mamba=mamba).of_letter("M", "M")
    return decoder(fields, [layer] * fields.num_layers(), length=2048)


def _bamba(fields: Fields) -> Model:
    """Mamba-2 or, in the layers of `attn_layer_indices`, attention; a feed-forward part behind either."""
    hidden, num_layers = fields.count("hidden_size"), fields.num_layers()
    mixers: list[Mixer] = [
        Mamba(
            fields.count("mamba_n_heads"), _head_of(fields, hidden), fields.count("mamba_d_state"),
            num_groups=fields.count("mamba_n_groups"), kernel=fields.count("mamba_d_conv", default=4),
            chunk_size=fields.count("mamba_chunk_size", default=256),
            bias=fields.flag("mamba_proj_bias", default=False),
            conv_bias=fields.flag("mamba_conv_bias", default=True),
        ),
        Attention(
            heads := fields.count("num_attention_heads"), fields.count("num_key_value_heads", default=heads),
            fields.optional("head_dim") or hidden // heads,
        ),
    ]  # fmt: skip
    ffn = FeedForward(fields.count("intermediate_size"), bias=fields.flag("mlp_bias", default=False))
    fields.seen.update(("mamba_expand", "attn_rotary_emb", "z_loss_coefficient"))
    attends = fields.layers("attn_layer_indices")
    return decoder(
        fields, [Layer(hidden, mixers[one in attends], ffn) for one in range(num_layers)], length=262_144
    )


def _head_of(fields: Fields, hidden: int) -> int:
    """Bamba's `mamba_d_head` may be "auto": the expanded width over the heads."""
    heads, expand = fields.count("mamba_n_heads"), fields.count("mamba_expand", default=2)
    if fields.is_word("mamba_d_head", "auto"):
        if expand * hidden % heads:
            raise ConfigError(f"mamba_n_heads {heads} does not divide mamba_expand × hidden_size {expand * hidden}")
        return expand * hidden // heads
    return fields.count("mamba_d_head")


READERS: Mapping[str, Callable[[Fields], Model]] = MappingProxyType(
    {
        "gpt_oss": _gpt_oss,
        "gemma2": lambda fields: _gemma(fields, version=2),
        "gemma3_text": lambda fields: _gemma(fields, version=3),
        "gemma3": _gemma3_of_images,
        "llama4_text": _llama4,
        "llama4": _llama4_of_images,
        "qwen3_next": _qwen3_next,
        "kimi_linear": _kimi_linear,
        "nemotron_h": _nemotron_h,
        "mamba2": _mamba2,
        "bamba": _bamba,
    }
)
"""What reads a `model_type`, for the table of `ppsim.model.config`."""
