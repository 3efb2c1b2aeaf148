"""Seconds of F, I, W and B of a layer, an embedding and a head, estimated from specifications.

For shapes and devices that no profile has. Every number here is an estimate: data-sheet rates times the constants
of the device's class (hardware/efficiency.toml) and of its links; `benchmarks/analytic.py` prints how far it is
from published runs. The letters are those of `ppsim.model.shapes`.
"""

from dataclasses import dataclass
from typing import Literal

from ppsim.base.errors import ConfigError
from ppsim.costs.layer_kernels import (
    attention,
    between_products,
    elementwise,
    module_part,
    norm_bytes,
    products,
    rank_part,
)
from ppsim.costs.parts import Estimate, Parts
from ppsim.layout.cut import Cut
from ppsim.layout.groups import group
from ppsim.layout.layout import Layout
from ppsim.machine import collectives
from ppsim.machine.cluster import Cluster
from ppsim.machine.kernels.specified import Kernels, activation_bytes, matmul, memory_bound
from ppsim.model.architecture import LatentAttention, Layer, MixtureOfExperts, Model
from ppsim.model.parameters import padded_vocabulary
from ppsim.model.recompute import MODULES, Recompute, recomputes, require_spelling

Attention = Literal["fused", "unfused"]


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a microbatch is computed, in the field's words.

    attention
        "fused" keeps no scores; "unfused" writes all s × s of them, softmax and all, to memory (before 2022).
    recompute
        What the backward computes again of a layer: nothing, its forward, or modules (`ppsim.model.recompute`).
    sequence_parallel
        All-gather and reduce-scatter instead of an all-reduce, norms and residuals on 1/tp of the tokens
        (Korthikanti et al. 2022, arXiv 2205.05198).
    dropout
        Whether masks are drawn, behind attention and both halves of a layer.
    context
        How cp ranks exchange keys and values: round the "ring", or by "all-to-all" of heads.
    hidden_tp_forward, hidden_tp_backward, hidden_ep, hidden_cp
        What part of that communication runs beside computation, 0 to 1. Megatron-LM hides an all-reduce of the
        backward behind the weight gradient.
    """

    dtype: str = "bfloat16"
    attention: Attention = "fused"
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    dropout: bool = False
    fused_cross_entropy: bool = False
    context: Literal["ring", "all-to-all"] = "ring"
    hidden_tp_forward: float = 0.0
    hidden_tp_backward: float = 0.0
    hidden_ep: float = 0.0
    hidden_cp: float = 0.0

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of activations, and of messages of them."""
        return activation_bytes(self.dtype)

    def __post_init__(self) -> None:
        require_spelling(self.recompute)
        for name in ("hidden_tp_forward", "hidden_tp_backward", "hidden_ep", "hidden_cp"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is a part from 0 to 1: got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where and how: the cluster, the layout of ranks on it, the execution, and the padding of the vocabulary."""

    cluster: Cluster
    layout: Layout
    execution: Execution
    vocab_multiple: int = 1

    @property
    def cut(self) -> Cut:
        """How the ranks of one stage share its work."""
        return self.layout.cut(sequence_parallel=self.execution.sequence_parallel)

    @property
    def domain_sizes(self) -> tuple[int | None, ...]:
        """How many of the layout's devices share a domain of each tier."""
        return self.cluster.domain_sizes(self.layout.num_devices)

    def seconds(self, operation: collectives.Operation, num_bytes: float, name: Literal["tp", "cp", "ep"]) -> float:
        """A collective among the ranks of a group."""
        ranks = group(self.layout, name, self.domain_sizes)
        return collectives.seconds(operation, num_bytes, ranks, self.cluster)

    def sum_over_tp_s(self, num_bytes: float) -> float:
        """What ends a tensor-parallel region and starts the next: an all-reduce, or its two halves."""
        if not self.execution.sequence_parallel:
            return self.seconds("all-reduce", num_bytes, "tp")
        return self.seconds("reduce-scatter", num_bytes, "tp") + self.seconds("all-gather", num_bytes, "tp")


def layer_estimate(layer: Layer, place: Place, *, micro_batch: int, sequence_length: int) -> Estimate:
    """Return the seconds of one layer, given whole, on the ranks of a layout.

    Raises `ConfigError` where tp, cp or ep divide the shape badly, or the device has no peak for the dtype.
    """
    layout, execution = place.layout, place.execution
    part = rank_part(layer, place.cut)
    if sequence_length % layout.cp:
        raise ConfigError(f"cp must divide the sequence: got {layout.cp} with {sequence_length}")
    tokens = micro_batch * sequence_length // layout.cp
    device, dtype, unfused = place.cluster.device, execution.dtype, execution.attention == "unfused"
    of_products = products(part, device, tokens=tokens, dtype=dtype)
    of_attention = attention(
        layer, place.cut, device, dtype=dtype, micro_batch=micro_batch, sequence_length=sequence_length,
        fused=not unfused, dropout=execution.dropout,
    )  # fmt: skip
    split = place.cut.norm_divisor
    of_rest = elementwise(part, device, dtype=dtype, tokens=tokens, split=split, dropout=execution.dropout)
    message = float(tokens * layer.hidden_size * execution.element_bytes)
    tp_s = 2 * place.sum_over_tp_s(message)
    ep_s = (1 - execution.hidden_ep) * _experts_s(layer, place, tokens / split)
    cp_s = _context_s(layer, place, tokens)
    scores = sequence_length * layer.attention.score_width * tokens / layout.tp
    flops = layer.forward_flops(sequence_length, causal=True) * tokens / layout.tp
    forward = _parts(
        place,
        of_products.forward + of_attention.forward + of_rest.forward,
        flops,
        tp_s=(1 - execution.hidden_tp_forward) * tp_s,
        ep_s=ep_s,
        cp_s=(1 - execution.hidden_cp) * cp_s,
    )
    again = forward.total_s
    if execution.recompute != "full":
        again = _modules_again(layer, place, tokens, of_attention.forward, forward).total_s
    gathered = 2 * place.seconds("all-gather", message, "tp") if execution.sequence_parallel else 0.0
    backward_input = _parts(
        place,
        of_products.backward_input + of_attention.backward_input + of_rest.backward_input,
        flops + scores,
        tp_s=(1 - execution.hidden_tp_backward) * (tp_s + gathered),
        ep_s=ep_s,
        cp_s=(1 - execution.hidden_cp) * (1 if execution.context == "all-to-all" else 2) * cp_s,
        recompute_s=again,
    )
    of_weights = of_products.backward_weight + of_rest.backward_weight
    return Estimate(forward, backward_input, _parts(place, of_weights, flops - scores))


def _modules_again(layer: Layer, place: Place, tokens: int, core: Kernels, forward: Parts) -> Parts:
    """The forwards of the modules that are recomputed; `core` are the kernels of attention."""
    execution = place.execution
    modules = [module for module in MODULES if recomputes(execution.recompute, module)]
    device, split = place.cluster.device, place.cut.norm_divisor
    part = module_part(layer, modules, place.cut)
    kernels = products(part, device, tokens=tokens, dtype=execution.dtype).forward
    kernels += between_products(part, device, dtype=execution.dtype, tokens=tokens).forward
    if "core_attn" in modules:
        kernels += core
    if "layernorm" in modules:
        norms = norm_bytes(layer.hidden_size, execution.dtype)
        kernels += memory_bound(device, tokens * norms / split, kernels=2)
    return _parts(place, kernels) + communicated_again(layer, execution.recompute, forward)


def communicated_again(layer: Layer, recompute: Recompute, forward: Parts) -> Parts:
    """Return what of a layer's exposed communication its backward repeats.

    Half of the tensor-parallel one belongs to the feed-forward part or the mixture, as does all of the
    expert-parallel one; the context-parallel one to the core of attention.
    """
    if recompute == "full":
        return Parts(tp_s=forward.tp_s, ep_s=forward.ep_s, cp_s=forward.cp_s)
    feeds, attends = recomputes(recompute, "moe" if layer.is_moe else "mlp"), recomputes(recompute, "core_attn")
    return Parts(tp_s=forward.tp_s / 2 * feeds, ep_s=forward.ep_s * feeds, cp_s=forward.cp_s * attends)


def embedding_estimate(model: Model, place: Place, *, micro_batch: int, sequence_length: int) -> Estimate:
    """Return the seconds of the embedding: a look-up, summed over tp, and its gradient; I is free."""
    execution, device = place.execution, place.cluster.device
    elements = micro_batch * sequence_length // place.layout.cp * model.hidden_size
    message = float(elements * execution.element_bytes)
    looked_up = memory_bound(device, (3 if execution.dropout else 2) * message, kernels=2)
    operation: collectives.Operation = "reduce-scatter" if execution.sequence_parallel else "all-reduce"
    gathered = place.seconds("all-gather", message, "tp") if execution.sequence_parallel else 0.0
    return Estimate(
        _parts(place, looked_up, tp_s=place.seconds(operation, message, "tp")),
        Parts(),
        _parts(place, memory_bound(device, message + 8.0 * elements, kernels=2), tp_s=gathered),
    )


def mtp_estimate(model: Model, place: Place, *, micro_batch: int, sequence_length: int) -> Estimate:
    """Return the seconds of what a layer for a further token has beside the layer and its pass through the head.

    An embedding of that token, norms of it and of the hidden state, both in a row, their projection from 2h to h,
    of which each tensor-parallel rank computes a part that is then gathered, and the norm behind the layer
    (Megatron-LM, `core/transformer/multi_token_prediction.py`, `eh_proj`).
    """
    execution, device, layout, h = place.execution, place.cluster.device, place.layout, model.hidden_size
    e, dtype, tokens = execution.element_bytes, execution.dtype, micro_batch * sequence_length // layout.cp
    share = place.cut.norm_divisor
    message, columns = float(tokens * h * e), h // layout.tp
    flops = 4.0 * h * h * tokens / layout.tp
    forward = matmul(device, rows=tokens, columns=columns, depth=2 * h, dtype=dtype)
    inputs = matmul(device, rows=tokens, columns=2 * h, depth=columns, dtype=dtype)
    weights = matmul(device, rows=columns, columns=2 * h, depth=tokens, dtype=dtype, output_bytes=8)
    around = [memory_bound(device, (3 * norm + 4) * message / share, kernels=4) for norm in (2, 5)]
    gathered, summed = place.seconds("all-gather", message, "tp"), place.seconds("all-reduce", 2 * message, "tp")
    own = gathered
    if execution.sequence_parallel:
        whole = place.seconds("all-gather", 2 * message, "tp")
        own, summed = gathered + whole, place.seconds("reduce-scatter", 2 * message, "tp") + whole + gathered
    joined = Estimate(
        _parts(place, forward + around[0], flops, tp_s=(1 - execution.hidden_tp_forward) * own),
        _parts(place, inputs + around[1], flops, tp_s=(1 - execution.hidden_tp_backward) * summed),
        _parts(place, weights, flops),
    )
    return joined + embedding_estimate(model, place, micro_batch=micro_batch, sequence_length=sequence_length)


def head_estimate(model: Model, place: Place, *, micro_batch: int, sequence_length: int) -> Estimate:
    """Return the seconds of final norm, projection to the vocabulary and cross entropy, cut by tp.

    A logit of e bytes costs 4e forward and 2e backward where the cross entropy is one kernel, else 32 and 12 bytes:
    a float32 copy (without which it is 26 and 8), maximum, difference, exponential, sum and quotient each pass over
    it.
    """
    execution, device, layout = place.execution, place.cluster.device, place.layout
    h = model.hidden_size
    columns = padded_vocabulary(model.vocab_size, tp=layout.tp, multiple=place.vocab_multiple) // layout.tp
    tokens = micro_batch * sequence_length // layout.cp
    flops = model.head_forward_flops() * tokens / layout.tp
    dtype = execution.dtype if execution.dtype in ("float16", "float32") else "bfloat16"
    logits = float(tokens * columns)
    e = execution.element_bytes
    message = float(tokens * h * e)
    share = place.cut.norm_divisor
    per_logit = (4 * e, 2 * e) if execution.fused_cross_entropy else (32, 12) if e == 2 else (26, 8)
    norm = memory_bound(device, 2 * message / share), memory_bound(device, 3 * message / share)
    forward = matmul(device, rows=tokens, columns=columns, depth=h, dtype=dtype)
    inputs = matmul(device, rows=tokens, columns=h, depth=columns, dtype=dtype)
    weights = matmul(device, rows=columns, columns=h, depth=tokens, dtype=dtype, output_bytes=8)
    launches = (2, 1) if execution.fused_cross_entropy else (8, 3)
    losses = [
        memory_bound(device, count * logits, kernels=kernels)
        for count, kernels in zip(per_logit, launches, strict=True)
    ]
    gathered = place.seconds("all-gather", message, "tp") if execution.sequence_parallel else 0.0
    sums = 3 * place.seconds("all-reduce", tokens * 4.0, "tp")
    operation: collectives.Operation = "reduce-scatter" if execution.sequence_parallel else "all-reduce"
    return Estimate(
        _parts(place, norm[0] + forward + losses[0], flops, tp_s=gathered + sums),
        _parts(
            place,
            norm[1] + inputs + losses[1],
            flops,
            tp_s=(1 - execution.hidden_tp_backward) * (gathered + place.seconds(operation, message, "tp")),
        ),
        _parts(place, weights, flops),
    )


def _parts(place: Place, kernels: Kernels, model_flops: float = 0.0, **communication: float) -> Parts:
    """The seconds of kernels by cause; the device waits where the host cannot launch them as fast.

    `model_flops` are those of the model that these kernels compute.
    """
    device = place.cluster.device
    launches, ideal_s = kernels.count * device.efficiency.host_s, model_flops / device.peak(place.execution.dtype)
    return Parts(
        ideal_s=ideal_s,
        more_flops_s=kernels.matmul_ideal_s + kernels.attention_ideal_s - ideal_s,
        matmul_loss_s=kernels.matmul_s - kernels.matmul_ideal_s,
        attention_loss_s=kernels.attention_s - kernels.attention_ideal_s,
        memory_s=kernels.memory_s,
        host_s=max(launches - kernels.busy_s, 0.0),
        **communication,
    )


def _experts_s(layer: Layer, place: Place, tokens: float) -> float:
    """Dispatch to the experts and the way back: two all-to-alls of every (token, expert) pair."""
    if not isinstance(layer.ffn, MixtureOfExperts):
        return 0.0
    pairs = tokens * layer.ffn.experts_per_token
    return 2 * place.seconds("all-to-all", pairs * layer.hidden_size * place.execution.element_bytes, "ep")


def _context_s(layer: Layer, place: Place, tokens: int) -> float:
    """The forward's exchange among cp ranks; round the ring the backward has twice as much, with gradients."""
    cp = place.layout.cp
    if cp == 1:
        return 0.0
    a, tp = layer.attention, place.layout.tp
    if isinstance(a, LatentAttention):
        columns = (a.score_width // tp // 2,) * 2
    else:
        columns = a.num_heads // tp * a.head_size, a.kv_heads_on_a_rank(tp) * a.head_size
    queries, keys = (float(count * tokens * place.execution.element_bytes) for count in columns)
    if place.execution.context == "all-to-all":
        return 2 * place.seconds("all-to-all", queries, "cp") + 2 * place.seconds("all-to-all", keys, "cp")
    link = place.cluster.tiers[group(place.layout, "cp", place.domain_sizes).tier].link
    return (cp - 1) * collectives.point_to_point_s(2 * keys, link)
