"""Time of a component as a sum of eager torch's kernels, without gaps, from the device's performance curves."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ppsim.costs.pass_kernels import PassKernels, products
from ppsim.costs.profile import Component, Shape
from ppsim.machine.kernels.curves import Curves
from ppsim.machine.kernels.microbenchmarks import DeviceMicrobenchmarks
from ppsim.machine.kernels.names import MemoryKernel
from ppsim.machine.kernels.times import AttentionCore, KernelTime, attention_time, memory_kernel_time
from ppsim.model.shapes import LayerShape, ModelShape, cut_of, layer_of
from ppsim.model.weight_matrices import WeightMatrix

_ACCUMULATED = 3
"""Read the gradient of a weight, read its sum so far, write the new sum."""


@dataclass(frozen=True)
class PassSeconds:
    """Estimated seconds of F, B, I and W."""

    forward_s: float
    backward_s: float
    backward_input_s: float
    backward_weight_s: float


def estimate(component: Component, model: ModelShape, shape: Shape, facts: DeviceMicrobenchmarks) -> PassSeconds:
    """Raises `ConfigError` if the device was not measured in the dtype of the shape."""
    times = Curves(facts, shape.dtype)
    shard = replace(model, sequence_length=shape.sequence_length).shard(tp=shape.tp, ep=shape.ep)
    tokens = shape.micro_batch * shape.sequence_length
    if component == "embedding":
        kernels = _embedding(shard, tokens, times)
    elif component == "head":
        kernels = _head(shard, tokens, times)
    else:
        linears = _linears(shard.layer)
        kernels = _layer(shard.layer, linears, shape, times)
    forward, inputs, weights = (pass_cost.busy_s for pass_cost in kernels.passes)
    again = forward if component == "layer" and shape.recompute == "full" else 0.0
    if not again:
        return PassSeconds(forward, inputs + weights, inputs, weights)
    # Eager torch runs the forward again for B, for I, and once for each group of parameters in W.
    return PassSeconds(forward, inputs + weights + again, inputs + again, weights + len(linears) * again)


def _linears(shape: LayerShape) -> Sequence[WeightMatrix]:
    """In a GPT layer, queries, keys and values are one matrix; other layers have only separate matrices."""
    linears = layer_of(shape).linears(cut_of(shape))
    return linears if shape.kind == "gpt" else [part for linear in linears for part in linear.separate_matrices()]


def _layer(layer: LayerShape, linears: Sequence[WeightMatrix], shape: Shape, times: Curves) -> PassKernels:
    tokens, length = shape.micro_batch * shape.sequence_length, shape.sequence_length
    core = AttentionCore(shape.micro_batch * layer.num_heads, length, length, layer.head_size, layer.head_size)
    of_products = products(linears, times, tokens=tokens, pairs=tokens * layer.experts_per_token)
    traffic = _traffic(_forward_elements(layer), tokens, times)
    return of_products + PassKernels(*attention_time(times, core)) + traffic + _accumulation(linears, times)


def _forward_elements(layer: LayerShape) -> list[tuple[MemoryKernel, int]]:
    """Elements per token that the kernels between GEMMs read and write in a forward of eager torch."""
    h, f = layer.hidden_size, layer.ffn_size
    nd, gd = layer.num_heads * layer.head_size, layer.num_kv_heads * layer.head_size
    of_token: list[tuple[MemoryKernel, int]] = [("norm", 2 * h), ("norm", 2 * h), ("elementwise", 3 * h)]
    of_token += [("elementwise", 3 * h), ("copy", 2 * nd)]
    if layer.kind == "gpt":
        return [*of_token, ("elementwise", 2 * f)]
    # Per column: negate half (1) and concatenate (2), multiply twice (2 each), add (3).
    rotary: tuple[tuple[MemoryKernel, int], ...] = (("copy", 3), ("elementwise", 7))
    of_token += [(kernel, factor * columns) for columns in (nd, gd) for kernel, factor in rotary]
    if layer.kind == "llama":
        return [*of_token, ("elementwise", 2 * f), ("elementwise", 3 * f)]
    k, shared = layer.experts_per_token, layer.shared_ffn_size
    of_token += [("elementwise", 2 * k * f), ("elementwise", 3 * k * f)]
    of_token += [("copy", 2 * k * h), ("copy", 2 * k * h), ("elementwise", 3 * k * h)]  # gather, back, sum
    if shared:
        of_token += [("elementwise", 5 * shared)]
    return of_token


def _traffic(elements: Iterable[tuple[MemoryKernel, int]], tokens: int, times: Curves) -> PassKernels:
    """A backward moves twice the bytes of a forward: it also reads a gradient and writes one per input."""
    of_kernels = (
        memory_kernel_time(times, kernel, tokens * times.element_bytes * count) for kernel, count in elements
    )
    forward = sum(of_kernels, KernelTime())
    return PassKernels(forward, forward + forward)


def _accumulation(linears: Iterable[WeightMatrix], times: Curves) -> PassKernels:
    sizes = (_ACCUMULATED * linear.weights * times.element_bytes for linear in linears)
    return PassKernels(
        backward_weight=sum((memory_kernel_time(times, "elementwise", size) for size in sizes), KernelTime())
    )


def _embedding(model: ModelShape, tokens: int, times: Curves) -> PassKernels:
    e = times.element_bytes
    rows, table = 2 * tokens * model.layer.hidden_size * e, model.whole.embedding_parameters * e
    scatter = memory_kernel_time(times, "copy", table) + memory_kernel_time(times, "copy", rows)
    return PassKernels(
        memory_kernel_time(times, "copy", rows),
        backward_weight=scatter + memory_kernel_time(times, "elementwise", _ACCUMULATED * table),
    )


def _head(model: ModelShape, tokens: int, times: Curves) -> PassKernels:
    e, h, vocab = times.element_bytes, model.layer.hidden_size, model.vocab_size
    linear, wide = WeightMatrix("head", "hidden state", h, (vocab,)), max(e, 4)
    around = memory_kernel_time(times, "norm", 2 * tokens * h * e) + memory_kernel_time(
        times, "elementwise", 2 * tokens * vocab * wide
    )
    if e < wide:
        around += memory_kernel_time(times, "copy", tokens * vocab * (e + wide))
    return (
        products([linear], times, tokens=tokens)
        + PassKernels(around, around + around)
        + _accumulation([linear], times)
    )
