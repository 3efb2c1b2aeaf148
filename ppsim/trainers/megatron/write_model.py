"""Megatron-LM's arguments for a model: the inverse of `ppsim.trainers.megatron.read_model`."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.model.architecture import Layer, Model
from ppsim.model.attention_and_mlp import (
    Attention,
    FeedForward,
    LatentAttention,
    MixtureOfExperts,
    NoAttention,
    NoFeedForward,
)
from ppsim.model.mixer import Mixer
from ppsim.model.recurrent import GatedDeltaNet, Mamba
from ppsim.trainers.arguments import Arguments, megatron_names
from ppsim.trainers.megatron.layer_sizes import sizes_of
from ppsim.trainers.megatron.read_model import model_of

_Found = dict[str, Any]
_CLAMPED: _Found = {"quick_geglu": True, "glu_linear_offset": 1.0, "activation_func_clamp_value": 7.0}
"""The activation of gpt-oss."""
_NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}


def model_arguments(model: Model, length: int) -> _Found | None:
    """Return None if no arguments build layers of these kinds: the arguments are read back and compared.

    Sizes of the layers may differ, such as norms that Megatron-LM does not have.

    >>> from ppsim.model.registry import find_model
    >>> found = model_arguments(find_model("llama3-8b"), 8192)
    >>> found["num_layers"], found["num_query_groups"], found["disable_bias_linear"]
    (32, 8, True)
    >>> model_arguments(find_model("flux.1-dev"), 4096) is None
    True
    """
    if model.norm not in _NORMS:
        return None
    try:
        arguments = _arguments(model, length)
        read = model_of(Arguments(megatron_names(arguments | {"seq_length": length}), "the arguments"))
    except ConfigError:
        return None
    return arguments if _kinds(read) == _kinds(model) else None


def _kinds(model: Model) -> list[type]:
    """Return the class of each mixer and MLP; Kimi's delta attention counts as a gated delta net."""
    parts = [part for layer in model.layers for part in (layer.attention, layer.ffn)]
    kinds = [GatedDeltaNet if isinstance(part, GatedDeltaNet) else type(part) for part in parts]
    return [kind for kind in kinds if kind not in (NoAttention, NoFeedForward)]


def without_source(model: Model) -> Model:
    return replace(model, source="", sequence_length=1)


def _arguments(model: Model, length: int) -> _Found:
    layers = model.layers
    patterns = layer_patterns(model)
    arguments = _of_mixers(layers) | _of_feed_forwards(layers)
    biased = any(isinstance(layer.ffn, FeedForward) and layer.ffn.bias for layer in layers)
    biased |= model.has_biased_experts
    biased |= any(isinstance(layer.attention, Attention) and layer.attention.out_bias for layer in layers)
    num_layers = len("".join(patterns)) if patterns else len(layers)
    sizes: _Found = {"num_layers": num_layers, "hidden_size": model.hidden_size}
    sizes |= {} if biased else {"disable_bias_linear": True}
    sizes["normalization"] = _NORMS[model.norm]
    sizes["vocab_size"] = model.vocab_size
    if model.learned_positions:
        sizes |= {"position_embedding_type": "learned_absolute", "add_position_embedding": True}
        sizes["max_position_embeddings"] = max(model.learned_positions, length)
    else:
        sizes |= {"position_embedding_type": "rope", "max_position_embeddings": length}
    sizes["untie_embeddings_and_output_weights"] = not model.tied_embeddings
    if patterns:
        further = "".join(f"/{_pattern(layer)}" for layer in model.mtp)
        sizes |= {"is_hybrid_model": True, "hybrid_layer_pattern": "".join(patterns) + further}
    elif model.mtp:
        sizes["mtp_num_layers"] = len(model.mtp)
    if model.repeats_mtp:
        sizes["mtp_use_repeated_layer"] = True
    return sizes | arguments


def _of_mixers(layers: Sequence[Layer]) -> _Found:
    mixers = [layer.attention for layer in layers if layer.has_mixer]
    attention = next((mixer for mixer in mixers if isinstance(mixer, Attention | LatentAttention)), None)
    arguments: _Found = {"num_attention_heads": 64, "kv_channels": 64}  # required of a model without attention, too
    if isinstance(attention, LatentAttention):
        # kv_channels is unused, but required if the heads do not divide the hidden size
        arguments = {"multi_latent_attention": True, **sizes_of(attention), "kv_channels": attention.v_head_size}
        arguments |= _of_indexers(mixers)
    elif attention is not None:
        arguments = sizes_of(attention) | {"kv_channels": attention.head_size}
        if attention.num_kv_heads != attention.num_heads:
            arguments |= {"group_query_attention": True, "num_query_groups": attention.num_kv_heads}
        if attention.qkv_bias and not attention.out_bias:
            arguments["add_qkv_bias"] = True
        arguments |= {"softmax_type": "learnable"} if attention.sinks else {}
        if attention.yarn:
            arguments |= {"position_embedding_type": "yarn", "rotary_scaling_factor": attention.yarn}
        arguments |= _of_windows(layers)
    return arguments | _of_recurrent(layers)


def _of_indexers(mixers: Sequence[Mixer]) -> _Found:
    have = [isinstance(mixer, LatentAttention) and mixer.indexer is not None for mixer in mixers]
    first = next((one.indexer for one in mixers if isinstance(one, LatentAttention) and one.indexer), None)
    if first is None:
        return {}
    arguments: _Found = {"experimental_attention_variant": "dsa", **sizes_of(first)}
    if False in have:
        offset = have.index(False)
        arguments["dsa_indexer_skip_topk_offset"] = offset
        arguments["dsa_indexer_topk_freq"] = (
            have[offset:].index(True) + 1 if True in have[offset:] else len(have) + 1
        )
    return arguments


def _of_windows(layers: Sequence[Layer]) -> _Found:
    windows = [getattr(layer.attention, "window", None) for layer in layers]
    sizes = {window for window in windows if window is not None}
    if not sizes:
        return {}
    arguments: _Found = {"window_size": f"{min(sizes) - 1},0"}
    if None in windows:
        arguments["window_attn_skip_freq"] = _listed([int(window is not None) for window in windows])
    return arguments


def _of_recurrent(layers: Sequence[Layer]) -> _Found:
    arguments: _Found = {}
    for mixer in {layer.attention: None for layer in layers if layer.is_recurrent}:
        if isinstance(mixer, Mamba | GatedDeltaNet):
            arguments |= sizes_of(mixer)
        has_both = all(layer.has_mixer and layer.has_feed_forward for layer in layers)
        if isinstance(mixer, GatedDeltaNet) and has_both:
            arguments["experimental_attention_variant"] = "gated_delta_net"
            arguments["linear_attention_freq"] = _listed([int(layer.is_recurrent) for layer in layers])
    return arguments


def _of_feed_forwards(layers: Sequence[Layer]) -> _Found:
    parts = [layer.ffn for layer in layers if layer.has_feed_forward]
    dense = next((part for part in parts if isinstance(part, FeedForward)), None)
    experts = next((part for part in parts if isinstance(part, MixtureOfExperts)), None)
    arguments: _Found = {}
    one = dense or (experts.expert if experts else None)
    if one is not None:
        arguments = _CLAMPED if one.clamped else {"swiglu": True} if one.gated else {}
        arguments = arguments | {"ffn_hidden_size": one.size}
    if experts is None:
        return arguments
    arguments |= sizes_of(experts) | {"moe_ffn_hidden_size": experts.expert.size}
    if len(parts) == len(layers) and dense is not None:
        arguments["moe_layer_freq"] = _listed([int(layer.is_moe) for layer in layers])
    if not experts.gated and not experts.expert.weighted_apart:
        arguments["use_fused_weighted_squared_relu"] = True
    return arguments


def layer_patterns(model: Model) -> list[str]:
    """Return the letters of each layer in a hybrid's pattern; empty if each layer has attention and an MLP."""
    layers = model.layers
    is_hybrid = any(
        not layer.has_mixer or not layer.has_feed_forward or isinstance(layer.attention, Mamba) for layer in layers
    )
    return [_pattern(layer) for layer in layers] if is_hybrid else []


def _pattern(layer: Layer) -> str:
    return _mixer(layer) + _feed_forward(layer)


def _mixer(layer: Layer) -> str:
    if not layer.has_mixer:
        return ""
    if isinstance(layer.attention, Mamba):
        return "M"
    return "G" if isinstance(layer.attention, GatedDeltaNet) else "*"


def _feed_forward(layer: Layer) -> str:
    return "" if not layer.has_feed_forward else "E" if layer.is_moe else "-"


def _listed(entries: Sequence[int]) -> str:
    """Format a list as Megatron-LM's options accept it.

    >>> _listed([0, 0, 1, 1, 1])
    '([0]*2+[1]*3)'
    """
    return f"({'+'.join(f'[{entry}]*{len(list(run))}' for entry, run in groupby(entries))})"
