"""Builders of model parts from the field names of config.json that families share."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ppsim.model.architecture import Layer, Model, Norm
from ppsim.model.attention_and_mlp import Attention, FeedForward, LatentAttention, MixtureOfExperts
from ppsim.model.hf_fields import ConfigFields
from ppsim.model.hybrid import windowed
from ppsim.model.mixer import Mixer
from ppsim.model.recurrent import Mamba

Part: TypeAlias = FeedForward | MixtureOfExperts
Reader: TypeAlias = Callable[[ConfigFields], Model]


def decoder_of(
    fields: ConfigFields,
    layers: Sequence[Layer],
    *,
    mtp: tuple[Layer, ...] = (),
    tied: bool = False,
    vocab: int | None = None,
    length: int | None = None,
) -> Model:
    """`tied`, `vocab` and `length` are defaults of missing fields."""
    same: dict[Layer, Layer] = {}  # equal layers are one object, so that each is computed once
    return Model(
        tuple(same.setdefault(layer, layer) for layer in layers),
        fields.count("vocab_size", default=vocab),
        fields.count("max_position_embeddings", default=length),
        tied_embeddings=fields.flag("tie_word_embeddings", default=tied),
        mtp=mtp,
        source="config.json",
    )


def layers_of(
    fields: ConfigFields, mixers: Mixer | Sequence[Mixer], parts: Part | Sequence[Part], norm: Norm = "rmsnorm"
) -> list[Layer]:
    hidden, number = fields.count("hidden_size"), fields.num_layers()
    first = mixers if isinstance(mixers, Sequence) else [mixers] * number
    second = parts if isinstance(parts, Sequence) else [parts] * number
    return [Layer(hidden, mixer, part, norm) for mixer, part in zip(first, second, strict=True)]


def attention_of(
    fields: ConfigFields,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_size: int | None = None,
    biased: bool = False,
    **of_family: Any,
) -> Attention:
    """`biased`: default of the biases of all four projections. `head_size`: default of the family.

    Without `head_size`, the default of head_dim is hidden size / heads, and the default of num_key_value_heads is
    the number of heads.
    """
    if "qkv_bias" not in of_family:
        bias = fields.flag("attention_bias", default=biased)
        of_family |= {"qkv_bias": bias, "out_bias": bias}
    number = fields.count("num_attention_heads", default=heads)
    if head_size is not None:
        kv_heads = fields.count("num_key_value_heads", default=kv_heads)
        size = fields.count("head_dim", "attention_head_dim", default=head_size)
        return Attention(number, kv_heads, size, **of_family)
    hidden, given = fields.count("hidden_size"), fields.optional("head_dim")
    if given is None and hidden % number:
        fields.refuse(
            "hidden_size", f"{hidden} is no multiple of num_attention_heads {number}, and head_dim is not given"
        )
    return Attention(
        number, fields.optional("num_key_value_heads") or number, given or hidden // number, **of_family
    )


def latent_attention_of(fields: ConfigFields) -> LatentAttention:
    """Read the field names of DeepSeek and Kimi."""
    fields.seen |= {"num_key_value_heads", "head_dim"}  # derived from other fields
    return LatentAttention(
        fields.count("num_attention_heads"),
        q_lora_rank=fields.optional("q_lora_rank"),
        kv_lora_rank=fields.count("kv_lora_rank"),
        qk_nope_head_size=fields.count("qk_nope_head_dim"),
        qk_rope_head_size=fields.count("qk_rope_head_dim"),
        v_head_size=fields.count("v_head_dim"),
    )


def mamba_of(
    fields: ConfigFields, num_heads: int, head_size: int, state_size: int, *, chunk: int, groups: int = 8
) -> Mamba:
    """`chunk` and `groups` are defaults of missing fields."""
    return Mamba(
        num_heads, head_size, state_size,
        num_groups=fields.count("n_groups", "mamba_n_groups", default=groups),
        kernel=fields.count("conv_kernel", "mamba_d_conv", default=4),
        chunk_size=fields.count("chunk_size", "mamba_chunk_size", default=chunk),
        bias=fields.flag("mamba_proj_bias", default=fields.flag("use_bias", default=False)),
        conv_bias=fields.flag("mamba_conv_bias", default=fields.flag("use_conv_bias", default=True)),
    )  # fmt: skip


def dense_of(fields: ConfigFields, *, gated: bool = True) -> FeedForward:
    return FeedForward(fields.count("intermediate_size"), gated=gated, bias=fields.flag("mlp_bias", default=False))


def experts_of(
    fields: ConfigFields,
    names: Sequence[str],
    expert: FeedForward,
    *,
    chosen: Sequence[str] = ("num_experts_per_tok",),
    shared_size: int = 0,
    **of_family: Any,
) -> MixtureOfExperts:
    return MixtureOfExperts(expert, fields.count(*names), fields.count(*chosen), shared_size, **of_family)


def sparse_parts(
    fields: ConfigFields, experts: MixtureOfExperts, *, first: int = 0, dense: FeedForward | None = None
) -> list[Part]:
    """Dense layers come first, then every `moe_layer_freq`-th layer has experts, unless a field lists the layers.

    `first`: default number of dense layers. `dense`: the dense part, if its size is not `intermediate_size`.
    """
    num_layers = fields.num_layers()
    by_layer = fields.counts("moe_layer_freq", num_layers) if fields.is_list("moe_layer_freq") else None
    every = 1 if by_layer else fields.count("moe_layer_freq", default=1)
    first = fields.number("first_k_dense_replace", default=first)
    if first > num_layers:
        fields.refuse("first_k_dense_replace", f"{first} is more than num_hidden_layers {num_layers}")
    listed = fields.words("mlp_layer_types", {"dense": False, "sparse": True}, num_layers)
    listed = listed or [bool(one) for one in (by_layer or ())[:num_layers]]
    are_sparse = listed or [layer >= first and layer % every == 0 for layer in range(num_layers)]
    dense = dense or FeedForward(fields.count("intermediate_size"))
    return [experts if is_sparse else dense for is_sparse in are_sparse]


def are_of_kind(fields: ConfigFields, word: str, number: int, otherwise: Callable[[int], bool]) -> list[bool]:
    listed = fields.words("layer_types", {word: True, "full_attention": False}, number)
    return listed or [otherwise(layer) for layer in range(number)]


def with_windows(
    layers: list[Layer], window: int | None, are_windowed: list[bool], *, is_chunked: bool = False
) -> list[Layer]:
    if window is None:
        return layers
    each = zip(layers, are_windowed, strict=True)
    return [windowed(layer, window, is_chunked=is_chunked) if is_short else layer for layer, is_short in each]
