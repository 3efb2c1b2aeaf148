"""The kernels of a rank's part of a layer: matrix products, attention, and what passes over memory.

Bytes are of a read and a write each once, in the kernels that Megatron-LM and TransformerEngine run. T tokens, h
hidden, n and g query and key/value heads of size d, f feed-forward columns, e bytes of an element.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from ppsim.layout.cut import Cut
from ppsim.machine.cluster import Device
from ppsim.machine.kernels.specified import (
    Kernels,
    activation_bytes,
    as_attention,
    fused_attention,
    matmul,
    memory_bound,
)
from ppsim.model.architecture import FeedForward, LatentAttention, Layer
from ppsim.model.linears import UP_AND_DOWN, UPS_OF_LATENTS, Linear
from ppsim.model.parameters import require_division_of_layer
from ppsim.model.recompute import MODULES


@dataclass(frozen=True)
class Passes:
    """The kernels of F, I and W."""

    forward: Kernels = field(default_factory=Kernels)
    backward_input: Kernels = field(default_factory=Kernels)
    backward_weight: Kernels = field(default_factory=Kernels)

    def __add__(self, other: "Passes") -> "Passes":
        return Passes(
            self.forward + other.forward,
            self.backward_input + other.backward_input,
            self.backward_weight + other.backward_weight,
        )


@dataclass(frozen=True)
class RankPart:
    """What a rank computes of a layer, or of some of its modules, but for the core of attention and norms.

    `pairs` of a token and an expert come to the rank for each token of its own; `rotated` columns of queries and
    keys rotate; `activated` columns pass through an activation function, of which a gated one reads twice as many.
    `biases` are the columns that have one.
    """

    hidden_size: int
    linears: tuple[Linear, ...]
    pairs: float = 0
    rotated: int = 0
    activated: int = 0
    is_gated: bool = True
    biases: int = 0


def rank_part(layer: Layer, cut: Cut) -> RankPart:
    """Return a rank's part of a layer; raises `ConfigError` naming what the cut does not divide."""
    require_division_of_layer(layer, cut)
    linears = tuple(layer.linears(cut))
    return RankPart(
        layer.hidden_size,
        linears,
        pairs=_pairs(layer, cut),
        rotated=_rotated(layer, cut.tp),
        activated=_activated(layer, cut.tp, MODULES),
        is_gated=layer.ffn.gated,
        biases=sum(one.biases for one in linears if one.kind == "dense"),
    )


def module_part(layer: Layer, modules: Collection[str], cut: Cut) -> RankPart:
    """Return what modules of `ppsim.model.recompute` have of a rank's part: their products, and what is between."""
    ups = "mla_up_proj" in modules and isinstance(layer.attention, LatentAttention)
    whole = ("moe" if layer.is_moe else "mlp") in modules
    return RankPart(
        layer.hidden_size,
        tuple(one for one in layer.linears(cut) if _is_in(one, modules)),
        pairs=_pairs(layer, cut) if whole else 0,
        rotated=_rotated(layer, cut.tp) if ups else 0,
        activated=_activated(layer, cut.tp, modules),
        is_gated=layer.ffn.gated,
    )


def _is_in(one: Linear, modules: Collection[str]) -> bool:
    """Whether a matrix is in one of the modules."""
    if one.kind != "dense":
        return "moe" in modules or (one.kind == "shared" and "shared_experts" in modules)
    return ("mla_up_proj" in modules and one.name in UPS_OF_LATENTS) or (
        "mlp" in modules and one.name in UP_AND_DOWN
    )


def _pairs(layer: Layer, cut: Cut) -> float:
    """Of experts that are loaded evenly: a rank takes in as many tokens as it sends, etp ranks the same."""
    return layer.experts_per_token * cut.expert_tp / cut.tp


def _rotated(layer: Layer, tp: int) -> int:
    a = layer.attention
    if isinstance(a, LatentAttention):
        return (a.num_heads // tp + 1) * a.qk_rope_head_size
    heads = a.num_heads // tp + a.kv_heads_on_a_rank(tp)
    return heads * a.head_size if layer.norm == "rmsnorm" else 0


def _activated(layer: Layer, tp: int, modules: Collection[str]) -> int:
    """Columns a token; those of its experts are as many whatever etp, which has fewer columns of more tokens."""
    ffn = layer.ffn

    def any_of(*names: str) -> bool:
        return any(name in modules for name in names)

    if isinstance(ffn, FeedForward):
        return ffn.size // tp * any_of("mlp", "mlp_act")
    routed = ffn.expert.size * ffn.experts_per_token * any_of("moe", "moe_act")
    return (routed + ffn.shared_size * any_of("moe", "shared_experts")) // tp


def products(part: RankPart, device: Device, *, tokens: int, dtype: str) -> Passes:
    """Return the matrix products: projections, feed-forward or experts and router; each has an I and a W.

    Evenly loaded experts take T·k / E rows each of those this rank holds, in one launch for all (a grouped
    product).
    """
    passes = Passes()
    for one in sorted(part.linears, key=lambda one: one.kind == "routed"):
        if not one.is_product:
            continue
        rows = tokens * part.pairs / one.count if one.kind == "routed" else tokens
        columns, depth, count = one.outputs, one.inputs, one.count
        passes += Passes(
            matmul(device, rows=rows, columns=columns, depth=depth, dtype=dtype, count=count),
            matmul(device, rows=rows, columns=depth, depth=columns, dtype=dtype, count=count),
            matmul(device, rows=columns, columns=depth, depth=rows, dtype=dtype, count=count, output_bytes=8),
        )
    return passes


def attention(
    layer: Layer,
    cut: Cut,
    device: Device,
    *,
    dtype: str,
    micro_batch: int,
    sequence_length: int,
    fused: bool,
    dropout: bool,
) -> Passes:
    """Return scores, softmax and their use, of 1/cp of the queries; nothing of it is W's.

    fused: half of the scores, being causal. unfused: all of them, by two batched products; and a score costs
    softmax 2e bytes forward and 3e backward, dropout 2e + 1 more each.
    """
    queries = sequence_length // cut.cp
    part = layer.attention
    heads = micro_batch * (part.num_heads // cut.tp)
    if fused:
        flops = 1.0 * heads * queries * sequence_length * (part.qk_head_size + part.v_head_size)
        return Passes(
            *fused_attention(
                device, forward_flops=flops, dtype=dtype, heads_and_sequences=heads, sequence_length=queries
            )
        )
    sixteen = dtype if dtype in ("bfloat16", "float16", "float32") else "bfloat16"
    wide = matmul(
        device, rows=queries, columns=sequence_length, depth=part.qk_head_size, dtype=sixteen, count=heads
    )
    deep = matmul(device, rows=queries, columns=part.v_head_size, depth=sequence_length, dtype=sixteen, count=heads)
    scores = float(heads * queries * sequence_length)
    e = activation_bytes(sixteen)
    masked = (2 * e + 1) * dropout
    forward, backward = 2 * e + masked, 3 * e + masked
    kernels = 2 if dropout else 1
    return Passes(
        as_attention(wide + deep + memory_bound(device, forward * scores, kernels=kernels)),
        as_attention(wide + wide + deep + deep + memory_bound(device, backward * scores, kernels=kernels)),
    )


def elementwise(part: RankPart, device: Device, *, dtype: str, tokens: int, split: int, dropout: bool) -> Passes:
    """Return what only passes over memory, bytes a token; norms, dropout and residuals on 1/`split` of the tokens.

    Forward: two norms 4eh, two residuals 6eh (masks 2h). Backward: norms 10eh (their parameters' gradients read
    input and gradient again), residuals 6eh (dropout 4eh, masks 2h). W: the gradients of biases read what the
    products did, e a column. The rest is `between_products`.
    """
    h, e = part.hidden_size, activation_bytes(dtype)
    forward = norm_bytes(h, dtype) + (6 * e + 2 * dropout) * h
    backward = (16 * e + (4 * e + 2) * dropout) * h
    return between_products(part, device, dtype=dtype, tokens=tokens) + Passes(
        memory_bound(device, tokens * forward / split, kernels=4),
        memory_bound(device, tokens * backward / split, kernels=6),
        memory_bound(device, tokens * e * part.biases, kernels=4),
    )


def norm_bytes(hidden_size: int, dtype: str) -> int:
    """Return what both norms of a layer move of a token: 4eh."""
    return 4 * activation_bytes(dtype) * hidden_size


def between_products(part: RankPart, device: Device, *, dtype: str, tokens: int) -> Passes:
    """Return what passes over memory between the products, bytes a token.

    An activation of f columns 2ef forward and 3ef backward, a gated one 3ef and 5ef; rotation 2e a column either
    way; moe, for each of a token's k experts, to and from them 4eh either way.
    """
    h, f, e = part.hidden_size, part.activated, activation_bytes(dtype)
    moved = 2 * e * part.rotated + 4 * e * h * part.pairs
    kernels = 8 if part.pairs else (f > 0) + (part.rotated > 0)
    return Passes(
        memory_bound(device, tokens * ((3 if part.is_gated else 2) * e * f + moved), kernels=kernels),
        memory_bound(device, tokens * ((5 if part.is_gated else 3) * e * f + moved), kernels=kernels),
    )
