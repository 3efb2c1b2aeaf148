"""A component taken apart into kernels, each at the time that the curves of the device give it.

Products of matrices, attention, and bytes that the other kernels move, as eager torch runs them; nothing for the
gaps between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ppsim.costs.profile import Component, Shape
from ppsim.machine.kernels.curves import Curves, Kernel
from ppsim.machine.kernels.facts import DeviceFacts
from ppsim.model import shapes
from ppsim.model.linears import Linear
from ppsim.model.shapes import LayerShape, ModelShape, cut_of, layer_of

_BACKWARD_TRAFFIC = 2.0
"""A backward reads the gradient beside what its forward read, and writes one for each of its inputs."""

_ACCUMULATED = 3
"""The gradient of a weight is read, its sum so far read, and the new sum written."""


@dataclass(frozen=True)
class Passes:
    """Estimated seconds of F, B, I and W."""

    forward_s: float
    backward_s: float
    backward_input_s: float
    backward_weight_s: float


def estimate(component: Component, model: ModelShape, shape: Shape, facts: DeviceFacts) -> Passes:
    """Return the seconds of the passes of a component of `model` at a shape, of one rank's part.

    Raises `ConfigError` where the device was not measured in the shape's type.
    """
    curves = Curves(facts, shape.dtype)
    shard = replace(model, sequence_length=shape.sequence_length).shard(tp=shape.tp, ep=shape.ep)
    if component == "layer":
        return _layer(shard.layer, shape, curves)
    return _embedding(shard, shape, curves) if component == "embedding" else _head(shard, shape, curves)


_Product = tuple[Linear, int]
"""A matrix, and the rows of tokens that it multiplies, of all experts where it is theirs."""


def _products(shape: LayerShape, tokens: int) -> list[_Product]:
    """The matrices as eager torch has them: GPT's queries, keys and values are one, all others apart."""
    layer = layer_of(shape)
    linears = layer.linears(cut_of(shape))
    if shape.kind != "gpt":
        linears = [part for one in linears for part in one.apart()]
    return [(one, tokens * (layer.experts_per_token if one.kind == "routed" else 1)) for one in linears]


def _forward_traffic(layer: LayerShape, tokens: int, element_bytes: int) -> list[tuple[Kernel, float]]:
    """What the kernels between the products move in a forward, in eager torch: reads and writes."""
    h, f = layer.hidden_size, layer.ffn_size
    nd, gd = layer.num_heads * layer.head_size, layer.num_kv_heads * layer.head_size
    of_token: list[tuple[Kernel, float]] = [("norm", 2 * h), ("norm", 2 * h), ("elementwise", 3 * h)]
    of_token += [("elementwise", 3 * h), ("copy", 2 * nd)]
    if layer.kind == "gpt":
        of_token += [("elementwise", 2 * f)]
    else:
        # Halves negated (2, of a half each) and joined (2), two products (2 each), one sum (3).
        rotary: tuple[tuple[Kernel, int], ...] = (("copy", 3), ("elementwise", 7))
        of_token += [(kernel, factor * columns) for columns in (nd, gd) for kernel, factor in rotary]
    if layer.kind == "llama":
        of_token += [("elementwise", 2 * f), ("elementwise", 3 * f)]
    elif layer.kind == "moe":
        k, shared = layer.experts_per_token, layer.shared_ffn_size
        of_token += [("elementwise", 2 * k * f), ("elementwise", 3 * k * f)]
        of_token += [("copy", 2 * k * h), ("copy", 2 * k * h), ("elementwise", 3 * k * h)]  # gather, back, sum
        of_token += [("elementwise", 5 * shared)] if shared else []
    return [(kernel, tokens * element_bytes * count) for kernel, count in of_token]


def _layer(layer: LayerShape, shape: Shape, curves: Curves) -> Passes:
    tokens, e = shape.micro_batch * shape.sequence_length, curves.element_bytes
    linears = _products(layer, tokens)
    moved = sum(curves.memory_s(kernel, size) for kernel, size in _forward_traffic(layer, tokens, e))
    forward = _forward_products(linears, curves) + _attention(layer, shape, "forward_s", curves) + moved
    backward_input = _input_products(linears, curves) + _attention(layer, shape, "backward_s", curves)
    backward_input += _BACKWARD_TRAFFIC * moved
    backward_weight = _weight_products(linears, curves)
    backward = backward_input + backward_weight
    if shape.recompute == "full":
        # Eager torch runs the forward again for B, for I, and once for each group of parameters in W.
        backward += forward
        backward_input += forward
        backward_weight += len(linears) * forward
    return Passes(forward, backward, backward_input, backward_weight)


def _attention(layer: LayerShape, shape: Shape, part: Literal["forward_s", "backward_s"], curves: Curves) -> float:
    heads = shape.micro_batch * layer.num_heads
    return curves.attention_s(part, heads=heads, sequence=shape.sequence_length, head_size=layer.head_size)


def _embedding(model: ModelShape, shape: Shape, curves: Curves) -> Passes:
    tokens, e, h = shape.micro_batch * shape.sequence_length, curves.element_bytes, model.layer.hidden_size
    table = shapes.embedding_parameters(model) * e
    gather = curves.memory_s("copy", 2 * tokens * h * e)
    scatter = curves.memory_s("copy", table) + curves.memory_s("copy", 2 * tokens * h * e)
    backward = scatter + curves.memory_s("elementwise", _ACCUMULATED * table)
    return Passes(gather, backward, 0.0, backward)


def _head(model: ModelShape, shape: Shape, curves: Curves) -> Passes:
    tokens, e, h = shape.micro_batch * shape.sequence_length, curves.element_bytes, model.layer.hidden_size
    linear = [(Linear("head", "hidden state", h, (model.vocab_size,)), tokens)]
    logits, wide = tokens * model.vocab_size, max(e, 4)
    moved = curves.memory_s("norm", 2 * tokens * h * e) + curves.memory_s("elementwise", 2 * logits * wide)
    moved += curves.memory_s("copy", logits * (e + wide)) if e < wide else 0.0
    backward_input = _input_products(linear, curves) + _BACKWARD_TRAFFIC * moved
    backward_weight = _weight_products(linear, curves)
    forward = _forward_products(linear, curves) + moved
    return Passes(forward, backward_input + backward_weight, backward_input, backward_weight)


def _forward_products(linears: Sequence[_Product], curves: Curves) -> float:
    return sum(
        curves.product_s("forward", rows, one.outputs, one.inputs, groups=one.count) for one, rows in linears
    )


def _input_products(linears: Sequence[_Product], curves: Curves) -> float:
    return sum(curves.product_s("input", rows, one.inputs, one.outputs, groups=one.count) for one, rows in linears)


def _weight_products(linears: Sequence[_Product], curves: Curves) -> float:
    """With the sums of gradients over microbatches."""
    products = sum(
        curves.product_s("weight", one.outputs, one.inputs, rows, groups=one.count) for one, rows in linears
    )
    size = curves.element_bytes
    return products + sum(curves.memory_s("elementwise", _ACCUMULATED * one.weights * size) for one, _ in linears)
