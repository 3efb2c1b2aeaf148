"""The model that Megatron-LM builds from its arguments (`core_transformer_config_from_args`).

Biases, norms, positions and tied weights follow `GPTModel`, so that parameter counts match the published ones.
"""

from dataclasses import replace

from ppsim.base.errors import ConfigError
from ppsim.model.architecture import Layer, Model, Norm
from ppsim.model.attention_and_mlp import Attention, FeedForward, LatentAttention, MixtureOfExperts
from ppsim.model.hybrid import HybridMixers
from ppsim.parallel.layer_partition import require_layers
from ppsim.trainers.arguments import Arguments, megatron_names_of
from ppsim.trainers.megatron.hybrid_layers import (
    HYBRIDS,
    hybrid_layers,
    hybrid_pattern,
    kind_of,
    mixers,
    parts_of,
    with_windows,
    yarn_factor,
)
from ppsim.trainers.megatron.layer_sizes import sizes_in

_TYPICAL = 128_256


def model_of(arguments: Arguments) -> Model:
    _require_decoder(arguments)
    hidden = arguments.need("hidden_size")
    norm: Norm = "rmsnorm" if str(arguments.get("normalization")).lower() == "rmsnorm" else "layernorm"
    attention, dense = _attention(arguments, hidden), _dense(arguments, hidden)
    experts = _experts(arguments, dense)
    num_layers = arguments.count("num_layers") or arguments.count("encoder_num_layers")
    pattern = hybrid_pattern(arguments, num_layers)
    if pattern:
        halves = HybridMixers(hidden, attention=attention, dense=dense, experts=experts, norm=norm)
        layers, mtp = hybrid_layers(arguments, pattern, halves)
    else:
        num_layers = arguments.need("num_layers", "encoder_num_layers")
        require_layers(num_layers)
        parts = parts_of(arguments, dense, experts, num_layers)
        each = zip(mixers(arguments, attention, num_layers), parts, strict=True)
        layers = tuple(Layer(hidden, mixer, part, norm) for mixer, part in each)
        mtp = (layers[-1],) * arguments.number("mtp_num_layers", 0, least=0)
    positions = arguments.count("max_position_embeddings") or 0
    length = arguments.count("seq_length", word="seq_len") or arguments.count("encoder_seq_length", word="seq_len")
    learned = arguments.get("position_embedding_type", "learned_absolute") == "learned_absolute"
    if not arguments.flag("add_position_embedding", default=True):
        learned = False
    return Model(
        with_windows(arguments, layers),
        _vocabulary(arguments),
        length or positions or 2048,
        tied_embeddings=not arguments.flag("untie_embeddings_and_output_weights"),
        learned_positions=positions if learned else 0,
        mtp=mtp,
        repeats_mtp=arguments.flag("mtp_use_repeated_layer"),
        source=arguments.source,
    )


def _require_decoder(arguments: Arguments) -> None:
    if arguments.has("encoder_num_layers") and arguments.has("decoder_num_layers"):
        raise ConfigError(f"{arguments.source}: an encoder with a decoder (T5) is not known, only chains of layers")
    if arguments.has("flextron"):
        raise ConfigError(f"{arguments.source}: flextron asks for elastic layers, which are not known")
    if arguments.asks("img_h") or arguments.asks("patch_dim"):
        raise ConfigError(f"{arguments.source}: img_h and patch_dim ask for images, which are not known")
    kind = kind_of(arguments)
    if kind not in ("gpt", "ModelType.encoder_or_decoder", *HYBRIDS):
        raise ConfigError(f"{arguments.source}: a model of type {kind} is not known, only decoders as GPT")


def _attention(arguments: Arguments, hidden: int) -> Attention | LatentAttention:
    heads = arguments.need("num_attention_heads")
    if arguments.flag("multi_latent_attention"):
        return LatentAttention(**sizes_in(arguments, LatentAttention))
    size = arguments.count("kv_channels")
    if size is None and hidden % heads:
        raise ConfigError(
            f"{arguments.source}: hidden_size {hidden} is no multiple of num_attention_heads {heads}, and "
            "kv_channels is not given"
        )
    groups = arguments.count("num_query_groups", 1) if arguments.flag("group_query_attention") else None
    bias = arguments.flag("add_bias_linear", default=True)
    return Attention(
        **sizes_in(arguments, Attention),
        num_kv_heads=groups or heads,
        head_size=size or hidden // heads,
        qkv_bias=bias or arguments.flag("add_qkv_bias"),
        out_bias=bias,
        sinks=str(arguments.get("softmax_type")) == "learnable",
        yarn=yarn_factor(arguments),
    )


def _dense(arguments: Arguments, hidden: int) -> FeedForward:
    gated = arguments.flag("swiglu") or arguments.flag("quick_geglu")
    size = arguments.count("ffn_hidden_size")
    if size is None:  # Megatron-LM's arguments.py; Megatron-Core's own default is 4 · hidden
        size = 64 * (4 * hidden * 2 // 3 // 64) if arguments.flag("swiglu") else 4 * hidden
    return FeedForward(
        size,
        gated=gated,
        bias=arguments.flag("add_bias_linear", default=True),
        clamped=gated and arguments.has("activation_func_clamp_value"),
    )


def _experts(arguments: Arguments, dense: FeedForward) -> MixtureOfExperts | None:
    """`moe_latent_size` narrows the experts' input and output."""
    if not arguments.count("num_experts", least=0):
        return None
    is_fused = dense.gated or arguments.flag("use_fused_weighted_squared_relu")
    size = arguments.count("moe_ffn_hidden_size") or dense.size
    sizes = sizes_in(arguments, MixtureOfExperts)
    sizes["router_bias"] |= dense.bias
    return MixtureOfExperts(replace(dense, size=size, weighted_apart=not is_fused), **sizes)


def _vocabulary(arguments: Arguments) -> int:
    given = arguments.count("vocab_size", word="model") or arguments.count("padded_vocab_size", word="model")
    if given:
        return given
    name = str(arguments.get("tokenizer_model") or "")
    size: int
    for tokenizer, size in megatron_names_of("vocabularies").items():
        if name.startswith(tokenizer):
            arguments.assumed.append(f"vocabulary of {tokenizer}: {size:,} rows")
            return size
    kind = str(arguments.get("tokenizer_type") or ("GPT2BPETokenizer" if arguments.has("merge_file") else ""))
    of_types = megatron_names_of("tokenizer_types")
    size = of_types.get(kind, _TYPICAL)
    why = f"that of {kind}" if kind in of_types else "the file names none (give vocab-size)"
    arguments.assumed.append(f"vocabulary of {size:,} rows: {why}")
    return size
