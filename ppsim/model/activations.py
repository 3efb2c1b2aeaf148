"""Bytes that a forward saves for its backward, by component, on one rank; every tensor is counted once.

Letters: T tokens of a microbatch on a context-parallel rank, b·s/cp; t = tp; q = t with sequence parallelism, else
1; e bytes per element; others as in `ppsim.model.architecture`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from ppsim.model.architecture import End, Layer, Model
from ppsim.model.attention_and_mlp import MixtureOfExperts
from ppsim.model.attention_base import ScoredAttention
from ppsim.model.backward import backward_peak, forward_peak
from ppsim.model.batch import Batch, KernelChoice
from ppsim.model.blocks import end_operators, layer_input, operators_of
from ppsim.model.operators import (
    Dtype,
    RowCounts,
    Tensor,
    TensorColumns,
    bytes_of,
    offload_groups,
    plan_of,
    saved,
    saved_for_weight,
    sum_columns,
)
from ppsim.model.recompute import BY_OPERATORS, Recompute, by_operators, counted_matrices
from ppsim.parallel.sizes import ParallelSizes, share


def layer_activations(layer: Layer, batch: Batch, cut: ParallelSizes, kernels: KernelChoice) -> dict[str, int]:
    """Saved bytes per microbatch, by component; `batch.recompute` is the recomputation of this layer."""
    if not layer.has_backward:
        return {}
    kernels = kernels.of_layer(in_16_bits=layer.in_16_bits)
    if batch.recompute == BY_OPERATORS:
        hidden = share(batch.tokens(cut) * layer.hidden_size, cut.norm_divisor)
        return {"layer input": hidden * batch.element_bytes} | _of_operators(layer, batch, cut, kernels)
    columns = _saved_columns(layer, batch.recompute, cut, kernels, batch.sequence_length)
    return bytes_of(columns, _rows(layer, batch, cut, kernels.expert_buffer_factor), _widths(batch, kernels))


def _saved_columns(
    layer: Layer, recompute: Recompute, cut: ParallelSizes, kernels: KernelChoice, sequence_length: int
) -> tuple[TensorColumns, ...]:
    key = recompute, cut.tp, cut.cp, cut.ep, cut.expert_tp, kernels, sequence_length
    if key not in layer.lists:
        operators = operators_of(layer, cut, kernels, sequence_length)
        plan = plan_of(operators, recompute)
        layer.lists[key] = sum_columns(
            saved(operators, layer_input(layer), plan, casts=kernels.input_bytes is not None)
        )
    found: tuple[TensorColumns, ...] = layer.lists[key]
    return found


@dataclass(frozen=True)
class LayerOffload:
    """Offloaded bytes of a layer per microbatch.

    groups: bytes copied and bytes freed per module; forward_bytes: peak of the forward beyond the tensors that stay
    saved.
    """

    groups: tuple[tuple[int, int], ...] = ()
    forward_bytes: float = 0.0

    @property
    def copied(self) -> int:
        return sum(copied for copied, _ in self.groups)

    @property
    def freed(self) -> int:
        return sum(freed for _, freed in self.groups)


def layer_offload(
    layer: Layer, batch: Batch, cut: ParallelSizes, kernels: KernelChoice, modules: str, min_elements: int
) -> LayerOffload:
    if batch.recompute in (BY_OPERATORS, "full") or not layer.has_backward:
        return LayerOffload()
    kernels = kernels.of_layer(in_16_bits=layer.in_16_bits)
    key = "offload", batch, cut, kernels, modules, min_elements
    if key not in layer.lists:
        operators, source = operators_of(layer, cut, kernels, batch.sequence_length), layer_input(layer)
        rows, widths = _rows(layer, batch, cut), _widths(batch, kernels)
        plan, casts = plan_of(operators, batch.recompute), kernels.input_bytes is not None

        def large(found: Iterable[Tensor]) -> tuple[Tensor, ...]:
            return tuple(one for one in found if rows[one.rows] * one.columns >= min_elements)

        groups = [
            replace(one, copied=large(one.copied), freed=large(one.freed))
            for one in offload_groups(operators, source, plan, modules, casts=casts)
        ]
        size = partial(_size, rows, widths)
        both = ((round(sum(map(size, group.copied))), round(sum(map(size, group.freed)))) for group in groups)
        layer.lists[key] = LayerOffload(
            tuple(one for one in both if one[0]),
            forward_peak(operators, source, plan, size, groups, casts=casts),
        )
    found: LayerOffload = layer.lists[key]
    return found


def _size(rows: RowCounts, widths: Mapping[Dtype, float], tensor: Tensor) -> float:
    return float(rows[tensor.rows]) * tensor.columns * widths[tensor.dtype]


def layer_backward(layer: Layer, batch: Batch, cut: ParallelSizes, kernels: KernelChoice) -> int:
    """Bytes at the peak of a layer's backward beyond those saved by its forward.

    Recomputation `selective-op` is treated as none.
    """
    kernels = kernels.of_layer(in_16_bits=layer.in_16_bits)
    key = "backward", batch, cut, kernels
    if key not in layer.lists:
        operators = operators_of(layer, cut, kernels, batch.sequence_length)
        rows, widths = _rows(layer, batch, cut, kernels.expert_buffer_factor), _widths(batch, kernels)
        plan, casts = plan_of(operators, batch.recompute), kernels.input_bytes is not None
        size = partial(_size, rows, widths)
        layer.lists[key] = round(backward_peak(operators, layer_input(layer), plan, size, casts=casts))
    found: int = layer.lists[key]
    return found


def _widths(batch: Batch, kernels: KernelChoice) -> dict[Dtype, float]:
    e = batch.element_bytes
    return {"act": e, "operand": kernels.input_bytes or e, "f32": 4, "f8": 1, "mask": 1, "i64": 8}


def _rows(layer: Layer, batch: Batch, cut: ParallelSizes, expert_buffer_factor: float = 1.0) -> RowCounts:
    own = share(batch.tokens(cut), cut.norm_divisor)
    pairs = own * layer.experts_per_token * cut.expert_tp
    capacity = (
        pairs if expert_buffer_factor == 1 else pairs * Fraction(expert_buffer_factor).limit_denominator(10**6)
    )
    return {"tokens": batch.tokens(cut), "own_tokens": own, "capacity": capacity}


def _of_operators(layer: Layer, batch: Batch, cut: ParallelSizes, kernels: KernelChoice) -> dict[str, int]:
    """Bytes that `selective-op` saves besides the layer's input.

    They are outputs of GEMMs, of the attention core (with a statistic per head), of reduce-scatters, and of the
    all-to-alls before and after experts.
    """
    a, tokens, e = layer.attention, batch.tokens(cut), batch.element_bytes
    assert isinstance(a, ScoredAttention)
    kept, _ = by_operators(layer.linears(cut), cut)
    of_mixer = {linear.name for linear in a.linears(layer.hidden_size, cut.tp)}
    outputs = {True: a.num_heads * a.v_head_size // cut.tp, False: 0}
    for one in kept:
        outputs[one.name in of_mixer] += one.outputs
    scattered = tokens * layer.hidden_size // cut.tp * (cut.tp > 1)
    exchanged = 0
    if isinstance(layer.ffn, MixtureOfExperts) and cut.ep > 1:
        exchanged = 2 * round(_rows(layer, batch, cut)["capacity"] * (layer.ffn.latent_size or layer.hidden_size))
    unused = sum(unused_output_bytes(layer, batch, cut, kernels))
    return {
        "attention": (tokens * outputs[True] + scattered) * e,
        "scores": 4 * a.num_heads // cut.tp * tokens,
        "experts" if layer.is_moe else "feed-forward": (tokens * outputs[False] + exchanged) * e + unused,
    }


def unused_output_bytes(layer: Layer, batch: Batch, cut: ParallelSizes, kernels: KernelChoice) -> tuple[int, int]:
    """Bytes that `selective-op` saves in eager mode although no backward needs them.

    They are the output of an MLP's last GEMM, and this rank's part of it after the reduce-scatter.
    """
    whole = batch.tokens(cut) * layer.hidden_size * batch.element_bytes * kernels.eager
    matrices = list(counted_matrices(layer.linears(cut)))
    if matrices[-1].name != "down":
        return 0, 0
    counted = sum(not matrix.biased for matrix in matrices)
    return whole * (counted % 2), share(whole, cut.norm_divisor) * (cut.tp > 1)


def weight_gradient_bytes(layer: Layer, batch: Batch, cut: ParallelSizes) -> int:
    """Bytes that a layer holds between I and W of a split backward, for evenly loaded experts.

    8-bit operands are assumed to be held in the dtype of activations.
    """
    if not layer.has_backward:
        return 0
    key = "weight", cut.tp, cut.cp, cut.ep, cut.expert_tp
    if key not in layer.lists:
        operators = operators_of(layer, cut, KernelChoice(), batch.sequence_length)
        layer.lists[key] = sum_columns(saved_for_weight(operators, layer_input(layer)))
    return sum(bytes_of(layer.lists[key], _rows(layer, batch, cut), {"act": batch.element_bytes}).values())


def end_activations(
    model: Model, end: End, batch: Batch, cut: ParallelSizes, kernels: KernelChoice
) -> dict[str, int]:
    """Saved bytes per microbatch of a part outside the layers, by component, without the logits of the loss."""
    source, operators = end_operators(model, end, cut, kernels)
    rows: RowCounts = {"tokens": batch.tokens(cut), "own_tokens": share(batch.tokens(cut), cut.norm_divisor)}
    return bytes_of(sum_columns(saved(operators, source, ())), rows, _widths(batch, kernels))
