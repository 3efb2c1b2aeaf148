"""Megatron-LM's arguments for layers that differ: hybrid patterns, linear attention, windows, experts."""

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from ppsim.base.errors import ConfigError
from ppsim.model.architecture import Layer
from ppsim.model.attention_and_mlp import Attention, FeedForward, LatentAttention, MixtureOfExperts
from ppsim.model.attention_base import Indexer
from ppsim.model.hybrid import HybridMixers, windowed
from ppsim.model.mixer import Mixer
from ppsim.model.mixers.short_convolution import ShortConvolution
from ppsim.model.recurrent import GatedDeltaNet, KimiDeltaAttention, Mamba
from ppsim.trainers.arguments import Arguments
from ppsim.trainers.megatron.layer_sizes import sizes_in

HYBRIDS = ("mamba", "hybrid")


def kind_of(arguments: Arguments) -> str:
    return str(arguments.get("model_type") or arguments.get("model_provider") or "gpt")


def hybrid_pattern(arguments: Arguments, num_layers: int | None) -> str | None:
    """MTP layers come after "/" in the pattern; None for models that are not hybrid."""
    for name in ("hybrid_layer_pattern", "hybrid_override_pattern"):
        if arguments.has(name):
            return str(arguments.get(name)).strip()
    if not arguments.has("is_hybrid_model") and kind_of(arguments) not in HYBRIDS:
        return None
    if num_layers is None:
        raise ConfigError(f"{arguments.source}: num_layers is missing")
    if "hybrid_mamba_mla" in _spec(arguments):
        return _evenly(num_layers // 2, float(arguments.get("hybrid_attention_ratio", 0.0)))
    if arguments.has("hybrid_attention_ratio") or arguments.has("hybrid_mlp_ratio"):
        raise ConfigError(
            f"{arguments.source}: how hybrid_attention_ratio and hybrid_mlp_ratio spread layers differs from "
            "release to release: give hybrid-layer-pattern"
        )
    return "M" * num_layers


def _spec(arguments: Arguments) -> str:
    return str(arguments.get("spec", ""))


def _evenly(num_pairs: int, ratio: float) -> str:
    """Return pairs of a mixer and an MLP, a fraction `ratio` with attention (Primus, `HybridStack`)."""
    attends = int(num_pairs * ratio)
    others = num_pairs - attends
    if not attends:
        return "M-" * others
    if ratio <= 0.5:
        return ("*-" + "M-" * (others // attends)) * attends + "M-" * (others % attends)
    return "*-" * (attends - others) + "*-M-" * others


def hybrid_layers(
    arguments: Arguments, pattern: str, mixers: HybridMixers
) -> tuple[tuple[Layer, ...], tuple[Layer, ...]]:
    """MTP layers are the parts after a "/". "M" is a Mamba mixer, or the mixer that the spec uses in its place."""
    spec = _spec(arguments)
    main, *further = pattern.split("/")
    if not further and arguments.has("mtp_num_layers"):
        one = arguments.get("mtp_hybrid_override_pattern")
        if not one:
            raise ConfigError(
                f"{arguments.source}: mtp_num_layers of a hybrid needs their pattern, behind a / of {pattern}"
            )
        further = [str(one)] * arguments.number("mtp_num_layers", 0, least=0)
    if "M" in pattern:
        has_delta = "gdn" in spec or "kda" in spec
        mixer = _delta(arguments, is_kimis="kda" in spec) if has_delta else _mamba(arguments, mixers.hidden_size)
        mixers = replace(mixers, mamba=mixer)
    if "G" in pattern:
        mixers = replace(mixers, delta=_delta(arguments))
    return mixers.layers(main), tuple(mixers.whole(one) for one in further if one)


def layout_of(pattern: str, num_further: int) -> str | None:
    """Return the stages of a pattern as Megatron-LM's layout string, or None if the pattern has no "|".

    >>> layout_of("M-|M*-|M-/*-", 1)
    'Ett|ttt|ttmL'
    """
    stages = ["t" * len(stage) for stage in pattern.split("/")[0].split("|")]
    if len(stages) == 1:
        return None
    return "E" + "|".join(stages) + "m" * num_further + "L"


def _mamba(arguments: Arguments, hidden: int) -> Mamba:
    """Without a number of heads, their total width is twice the hidden size (Megatron-LM's `MambaMixer`)."""
    sizes = sizes_in(arguments, Mamba)
    heads, size = sizes["num_heads"], sizes["head_size"]
    inner = arguments.number("mamba_expand", 2) * hidden
    if heads is None and inner % size:
        raise ConfigError(
            f"{arguments.source}: mamba_head_dim {size} does not divide {inner}, the width of its heads"
        )
    chunk = arguments.number("mamba_chunk_size", 128)
    return Mamba(**sizes | {"num_heads": heads or inner // size}, chunk_size=chunk)


def _delta(arguments: Arguments, *, is_kimis: bool = False) -> GatedDeltaNet:
    sizes = sizes_in(arguments, GatedDeltaNet)
    return KimiDeltaAttention(**sizes, gate_bias=True) if is_kimis else GatedDeltaNet(**sizes)


def mixers(arguments: Arguments, attention: Mixer, num_layers: int) -> list[Mixer]:
    """With the variant dsa, a layer has an indexer, or attends to the keys that an earlier layer chose."""
    if kinds := arguments.get("lfm_layer_types"):
        return _with_convolutions(arguments, attention, kinds, num_layers)
    variant = arguments.get("experimental_attention_variant")
    if not variant:
        return [attention] * num_layers
    if variant == "dsa":
        return _sparse(arguments, attention, num_layers)
    if variant != "gated_delta_net":
        raise ConfigError(
            f"{arguments.source}: experimental_attention_variant {variant} is not known, only gated_delta_net "
            "and dsa"
        )
    delta = _delta(arguments)
    freq = arguments.get("linear_attention_freq", 4)
    are_delta = _listed(freq, "linear_attention_freq", num_layers, arguments.source, lambda one, k: (one + 1) % k)
    return [delta if is_delta else attention for is_delta in are_delta]


def _with_convolutions(arguments: Arguments, attention: Mixer, kinds: object, num_layers: int) -> list[Mixer]:
    """Primus' layers of LFM2 (primus/backends/megatron/core/models/gpt/gpt_layer_specs.py)."""
    names = kinds if isinstance(kinds, list) else re.findall(r"\w+", str(kinds))
    if len(names) != num_layers or (wrong := set(names) - {"conv", "full_attention"}):
        what = f"{', '.join(map(str, wrong))}" if len(names) == num_layers else f"{len(names)} entries"
        raise ConfigError(
            f"{arguments.source}: lfm_layer_types must be conv or full_attention for each of the {num_layers} "
            f"layers: got {what}"
        )
    kernel, bias = arguments.number("conv_L_cache", 3), arguments.flag("conv_bias")
    convolution = ShortConvolution(arguments.need("hidden_size"), kernel, bias)
    return [convolution if name == "conv" else attention for name in names]


def _sparse(arguments: Arguments, attention: Mixer, num_layers: int) -> list[Mixer]:
    """The first `dsa_indexer_skip_topk_offset` layers have an indexer each.

    Of the remaining layers, every `dsa_indexer_topk_freq`-th layer has one.
    """
    if not isinstance(attention, LatentAttention):
        raise ConfigError(
            f"{arguments.source}: experimental_attention_variant dsa is for latent attention: "
            "give multi-latent-attention"
        )
    indexer = Indexer(**sizes_in(arguments, Indexer))
    every = arguments.number("dsa_indexer_topk_freq", 1)
    offset = arguments.number("dsa_indexer_skip_topk_offset", 0, least=0)
    have = [layer < offset or (layer - offset + 1) % every == 0 for layer in range(num_layers)]
    return [replace(attention, num_keys=indexer.num_keys, indexer=indexer if has else None) for has in have]


def with_windows(arguments: Arguments, layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """With a window, each token sees `window_size` tokens before it, and itself.

    `window_attn_skip_freq` is k (every k-th layer sees all tokens), or a list with 1 for each layer with a window.
    """
    size = arguments.get("window_size")
    if size is None:
        return tuple(layers)
    before = _tokens_before(size, arguments.source)
    if before is None:
        return tuple(layers)
    window = before + 1
    freq = arguments.get("window_attn_skip_freq")
    are_windowed = [1] * len(layers)
    if freq:
        name, source = "window_attn_skip_freq", arguments.source
        are_windowed = _listed(freq, name, len(layers), source, lambda one, k: (one + 1) % k)
    layers_with_windows = []
    for layer, is_windowed in zip(layers, are_windowed, strict=True):
        sees_others = isinstance(layer.attention, Attention) and layer.has_mixer
        layers_with_windows.append(windowed(layer, window) if is_windowed and sees_others else layer)
    return tuple(layers_with_windows)


def _tokens_before(size: object, source: str) -> int | None:
    """Return None for -1, TransformerEngine's value for no window."""
    given = size if isinstance(size, list | tuple) else str(size).strip("()[] ").split(",")
    try:
        before, behind = (int(str(one)) for one in given)
    except ValueError:
        raise ConfigError(f"{source}: window_size must be two whole numbers: got {size!r}") from None
    if before == -1 and behind in (-1, 0):
        return None
    if before < 0 or behind != 0:
        raise ConfigError(f"{source}: window_size must be so many tokens before and 0 behind: got {size!r}")
    return before


def _listed(given: object, name: str, num_layers: int, source: str, entry: Callable[[int, int], int]) -> list[int]:
    value = _list_of(given, name, source) if isinstance(given, str) else given
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ConfigError(f"{source}: {name} must be 1 or more: got {value}")
        return [entry(layer, value) for layer in range(num_layers)]
    if not isinstance(value, list):
        raise ConfigError(f"{source}: {name} must be a whole number or a list: got {given!r}")
    if len(value) < num_layers:
        raise ConfigError(f"{source}: {name} has {len(value)} entries for {num_layers} layers")
    return value[:num_layers]


def _list_of(text: str, name: str, source: str) -> list[int]:
    """Evaluate an expression of lists, sums and repetitions without running it as code."""

    def value(node: ast.expr) -> list[int]:
        match node:
            case ast.List(elts=entries):
                return [int(ast.literal_eval(entry)) for entry in entries]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return value(left) + value(right)
            case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(times))) if times <= 10_000:
                return value(left) * times
        raise ValueError

    try:
        return value(ast.parse(text, mode="eval").body)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        raise ConfigError(f"{source}: {name} '{text}' is no list as ([0]*3+[1]*58)") from None


def yarn_factor(arguments: Arguments) -> float | None:
    """Raises `ConfigError` if the factor of YaRN is no number of 1 or more."""
    if arguments.get("position_embedding_type") != "yarn":
        return None
    name = next((one for one in _YARN_FACTORS if arguments.has(one)), _YARN_FACTORS[0])
    factor = arguments.get(name, 1.0)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor < float("inf"):
        raise ConfigError(f"{arguments.source}: {name} must be a number of 1 or more: got {factor!r}")
    return float(factor)


_YARN_FACTORS = ("rotary_scaling_factor", "yarn_rotary_scaling_factor")
"""Megatron-LM's argument, and the field of Megatron-Bridge's `GPTModelProvider`."""


def parts_of(
    arguments: Arguments, dense: FeedForward, experts: MixtureOfExperts | None, num_layers: int
) -> list[FeedForward | MixtureOfExperts]:
    """Experts are in every `moe_layer_freq`-th layer, or in the layers with 1 if it is a list."""
    if experts is None:
        return [dense] * num_layers
    freq = arguments.get("moe_layer_freq", 1)
    have_experts = _listed(freq, "moe_layer_freq", num_layers, arguments.source, lambda one, k: one % k == 0)
    return [experts if has_experts else dense for has_experts in have_experts]
