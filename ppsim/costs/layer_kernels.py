"""The kernels of a rank's part of a layer: matrix products, attention, and what passes over memory.

Bytes are of a read and a write each once, in the kernels that Megatron-LM and TransformerEngine run. T tokens, h
hidden, n and g query and key/value heads of size d, f feed-forward columns, e bytes of an element.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from ppsim.base.errors import ConfigError
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
from ppsim.model.parameters import kv_heads_on_a_rank


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
    """What one tensor- and expert-parallel rank computes of a layer.

    `dense` and `expert` are the columns and depths of its matrix products, over all tokens and over those of each
    of `local_experts`. A head has `qk_size` and `v_size` columns; `rotated` columns of queries and keys rotate;
    `activated` columns pass through an activation function, of which a gated one reads twice as many. `biases` are
    the columns that have one.
    """

    hidden_size: int
    num_heads: int
    qk_size: int
    v_size: int
    dense: tuple[tuple[int, int], ...]
    expert: tuple[tuple[int, int], ...] = ()
    local_experts: int = 0
    experts_per_token: int = 0
    rotated: int = 0
    activated: int = 0
    is_gated: bool = True
    biases: int = 0


def rank_part(layer: Layer, *, tp: int = 1, ep: int = 1) -> RankPart:
    """Return a rank's part of a layer; raises `ConfigError` naming what tp or ep does not divide.

    MLA's projections to the latents are whole on every rank, as Megatron-LM has them.
    """
    return _with_feed_forward(_attention_part(layer, tp), layer, tp, ep)


def module_part(layer: Layer, modules: Collection[str], *, tp: int = 1, ep: int = 1) -> RankPart:
    """Return of a rank's part what modules of `ppsim.model.recompute` have: their products, and what is between
    them.

    Norms and the core of attention are no part of it.
    """
    a, ffn, attention_part = layer.attention, layer.ffn, _attention_part(layer, tp)
    part = replace(attention_part, dense=(), rotated=0, biases=0)
    if "mla_up_proj" in modules and isinstance(a, LatentAttention):
        ups = _latent_ups(a, layer.hidden_size, attention_part.num_heads)
        part = replace(part, dense=ups, rotated=attention_part.rotated)
    if ("moe" if layer.is_moe else "mlp") in modules:
        return replace(_with_feed_forward(part, layer, tp, ep), biases=0)
    if isinstance(ffn, FeedForward):
        return replace(part, activated=ffn.size // tp * ("mlp_act" in modules), is_gated=ffn.gated)
    activated = ffn.expert.size * ffn.experts_per_token * ("moe_act" in modules)
    if ffn.shared and "shared_experts" in modules:
        part = replace(part, dense=part.dense + _products_of(ffn.shared, layer.hidden_size, tp))
        activated += ffn.shared.size
    return replace(part, activated=activated // tp, is_gated=ffn.expert.gated)


def _attention_part(layer: Layer, tp: int) -> RankPart:
    h, a = layer.hidden_size, layer.attention
    _divides("tp", tp, "heads", a.num_heads)
    heads = a.num_heads // tp
    if isinstance(a, LatentAttention):
        query, values = _latent_ups(a, h, heads)
        down = () if a.q_lora_rank is None else ((a.q_lora_rank, h),)
        dense = *down, query, (a.kv_lora_rank + a.qk_rope_head_size, h), values, (h, heads * a.v_head_size)
        return RankPart(h, heads, a.qk_head_size, a.v_head_size, dense, rotated=(heads + 1) * a.qk_rope_head_size)
    d, groups = a.head_size, kv_heads_on_a_rank(a, tp)
    return RankPart(
        h, heads, d, d, dense=(((heads + 2 * groups) * d, h), (h, heads * d)),
        rotated=(heads + groups) * d if layer.norm == "rmsnorm" else 0,
        biases=a.qkv_bias * (heads + 2 * groups) * d + a.out_bias * h,
    )  # fmt: skip


def _latent_ups(a: LatentAttention, h: int, heads: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """MLA's products up from its latents: queries (from the hidden state where they have none), keys and values."""
    queries = heads * a.qk_head_size, h if a.q_lora_rank is None else a.q_lora_rank
    return queries, (heads * (a.qk_nope_head_size + a.v_head_size), a.kv_lora_rank)


def _with_feed_forward(part: RankPart, layer: Layer, tp: int, ep: int) -> RankPart:
    h, ffn = layer.hidden_size, layer.ffn
    if isinstance(ffn, FeedForward):
        _divides("tp", tp, "feed-forward columns", ffn.size)
        return replace(
            part,
            dense=part.dense + _products_of(ffn, h, tp),
            activated=ffn.size // tp,
            is_gated=ffn.gated,
            biases=part.biases + ffn.bias * (ffn.size // tp + h),
        )
    _divides("tp", tp, "columns of an expert", ffn.expert.size)
    _divides("ep", ep, "experts", ffn.num_experts)
    shared = ffn.shared
    if shared:
        _divides("tp", tp, "columns of the shared expert", shared.size)
    return replace(
        part,
        dense=(*part.dense, (ffn.num_experts, h), *(_products_of(shared, h, tp) if shared else ())),
        expert=_products_of(ffn.expert, h, tp),
        local_experts=ffn.num_experts // ep,
        experts_per_token=ffn.experts_per_token,
        activated=(ffn.expert.size * ffn.experts_per_token + ffn.shared_size) // tp,
        is_gated=ffn.expert.gated,
    )


def _products_of(ffn: FeedForward, h: int, tp: int) -> tuple[tuple[int, int], ...]:
    return (ffn.up_columns // tp, h), (h, ffn.size // tp)


def _divides(name: str, by: int, what: str, count: int) -> None:
    if count % by:
        raise ConfigError(f"{name} must divide the {what}: got {by} with {count}")


def products(part: RankPart, device: Device, *, tokens: int, dtype: str) -> Passes:
    """Return the matrix products: projections, feed-forward or experts and router; each has an I and a W.

    Evenly loaded experts take T·k / E rows each of those this rank holds, in one launch for all (a grouped
    product).
    """
    found: list[tuple[float, int, int, int]] = [(tokens, columns, depth, 1) for columns, depth in part.dense]
    if part.local_experts:
        rows = tokens * part.experts_per_token / part.local_experts
        found += [(rows, columns, depth, part.local_experts) for columns, depth in part.expert]
    passes = Passes()
    for rows, columns, depth, count in found:
        passes += Passes(
            matmul(device, rows=rows, columns=columns, depth=depth, dtype=dtype, count=count),
            matmul(device, rows=rows, columns=depth, depth=columns, dtype=dtype, count=count),
            matmul(device, rows=columns, columns=depth, depth=rows, dtype=dtype, count=count, output_bytes=8),
        )
    return passes


def attention(
    part: RankPart,
    device: Device,
    *,
    dtype: str,
    micro_batch: int,
    sequence_length: int,
    cp: int,
    fused: bool,
    dropout: bool,
) -> Passes:
    """Return scores, softmax and their use, of 1/cp of the queries; nothing of it is W's.

    fused: half of the scores, being causal. unfused: all of them, by two batched products; and a score costs
    softmax 2e bytes forward and 3e backward, dropout 2e + 1 more each.
    """
    queries = sequence_length // cp
    heads = micro_batch * part.num_heads
    if fused:
        flops = 1.0 * heads * queries * sequence_length * (part.qk_size + part.v_size)
        return Passes(
            *fused_attention(
                device, forward_flops=flops, dtype=dtype, heads_and_sequences=heads, sequence_length=queries
            )
        )
    sixteen = dtype if dtype in ("bfloat16", "float16", "float32") else "bfloat16"
    wide = matmul(device, rows=queries, columns=sequence_length, depth=part.qk_size, dtype=sixteen, count=heads)
    deep = matmul(device, rows=queries, columns=part.v_size, depth=sequence_length, dtype=sixteen, count=heads)
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
    moved = 2 * e * part.rotated + 4 * e * h * part.experts_per_token
    kernels = 8 if part.local_experts else (f > 0) + (part.rotated > 0)
    return Passes(
        memory_bound(device, tokens * ((3 if part.is_gated else 2) * e * f + moved), kernels=kernels),
        memory_bound(device, tokens * ((5 if part.is_gated else 3) * e * f + moved), kernels=kernels),
    )
