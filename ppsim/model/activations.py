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
from ppsim.model.blocks import end_operators, layer_input, operators_of
from ppsim.model.execution import Execution
from ppsim.model.memory_settings import MemorySettings
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
from ppsim.parallel.sizes import share


def layer_activations(layer: Layer, settings: MemorySettings, recompute: Recompute = "none") -> dict[str, int]:
    """Saved bytes per microbatch, by component, with this recomputation of the layer."""
    if not layer.has_backward:
        return {}
    if recompute == BY_OPERATORS:
        return {"layer input": settings.hidden_bytes(layer.hidden_size)} | _of_operators(layer, settings)
    columns = _saved_columns(layer, settings, recompute)
    return bytes_of(
        columns, _rows(layer, settings), _widths(settings.execution, casts=_casts(layer, settings.execution))
    )


def _saved_columns(layer: Layer, settings: MemorySettings, recompute: Recompute) -> tuple[TensorColumns, ...]:
    sizes, execution = settings.cut, settings.execution
    key = (
        recompute,
        sizes.tp,
        sizes.cp,
        sizes.ep,
        sizes.expert_tp,
        execution.saved_tensors,
        settings.sequence_length,
    )
    if key not in layer.lists:
        operators = operators_of(layer, sizes, execution, settings.sequence_length)
        plan = plan_of(operators, recompute)
        layer.lists[key] = sum_columns(saved(operators, layer_input(layer), plan, casts=_casts(layer, execution)))
    saved_columns: tuple[TensorColumns, ...] = layer.lists[key]
    return saved_columns


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
    layer: Layer, settings: MemorySettings, recompute: Recompute, modules: str, min_elements: int
) -> LayerOffload:
    if recompute in (BY_OPERATORS, "full") or not layer.has_backward:
        return LayerOffload()
    key = "offload", recompute, *settings.layer_key, modules, min_elements
    if key not in layer.lists:
        execution, source = settings.execution, layer_input(layer)
        operators = operators_of(layer, settings.cut, execution, settings.sequence_length)
        plan, casts = plan_of(operators, recompute), _casts(layer, execution)
        rows, widths = _rows(layer, settings, is_even=True), _widths(execution, casts=casts)

        def large(offload: Iterable[Tensor]) -> tuple[Tensor, ...]:
            return tuple(one for one in offload if rows[one.rows] * one.columns >= min_elements)

        groups = [
            replace(one, copied=large(one.copied), freed=large(one.freed))
            for one in offload_groups(operators, source, plan, modules, casts=casts)
        ]
        size = partial(_size, rows, widths)
        sizes_of_groups = (
            (round(sum(map(size, group.copied))), round(sum(map(size, group.freed)))) for group in groups
        )
        layer.lists[key] = LayerOffload(
            tuple(one for one in sizes_of_groups if one[0]),
            forward_peak(operators, source, plan, size, groups, casts=casts),
        )
    offload: LayerOffload = layer.lists[key]
    return offload


def _size(rows: RowCounts, widths: Mapping[Dtype, float], tensor: Tensor) -> float:
    return float(rows[tensor.rows]) * tensor.columns * widths[tensor.dtype]


def layer_backward(layer: Layer, settings: MemorySettings, recompute: Recompute = "none") -> int:
    """Bytes at the peak of a layer's backward beyond those saved by its forward.

    Recomputation `selective-op` is treated as none.
    """
    key = "backward", recompute, *settings.layer_key
    if key not in layer.lists:
        execution = settings.execution
        operators = operators_of(layer, settings.cut, execution, settings.sequence_length)
        plan, casts = plan_of(operators, recompute), _casts(layer, execution)
        size = partial(_size, _rows(layer, settings), _widths(execution, casts=casts))
        layer.lists[key] = round(backward_peak(operators, layer_input(layer), plan, size, casts=casts))
    num_bytes: int = layer.lists[key]
    return num_bytes


def _casts(layer: Layer, execution: Execution) -> bool:
    """Return whether the layer saves GEMM inputs in 8 or 4 bits."""
    return execution.operand_bytes is not None and not layer.in_16_bits


def _widths(execution: Execution, *, casts: bool) -> dict[Dtype, float]:
    e = execution.element_bytes
    operand = (execution.operand_bytes or e) if casts else e
    return {"act": e, "operand": operand, "f32": 4, "f8": 1, "mask": 1, "i64": 8}


def _rows(layer: Layer, settings: MemorySettings, *, is_even: bool = False) -> RowCounts:
    """Rows of tensors; with `is_even`, experts get exactly the mean number of tokens."""
    sizes, factor = settings.cut, 1.0 if is_even else settings.execution.expert_buffer_factor
    own = share(settings.tokens, sizes.norm_divisor)
    pairs = own * layer.experts_per_token * sizes.expert_tp
    capacity = pairs if factor == 1 else pairs * Fraction(factor).limit_denominator(10**6)
    return {"tokens": settings.tokens, "own_tokens": own, "capacity": capacity}


def _of_operators(layer: Layer, settings: MemorySettings) -> dict[str, int]:
    """Bytes that `selective-op` saves besides the layer's input.

    They are outputs of GEMMs, of the attention core (with a statistic per head), of reduce-scatters, and of the
    all-to-alls before and after experts.
    """
    a, sizes, tokens, e = layer.attention, settings.cut, settings.tokens, settings.execution.element_bytes
    assert isinstance(a, ScoredAttention)
    kept, _ = by_operators(layer.linears(sizes), sizes)
    of_mixer = {linear.name for linear in a.linears(layer.hidden_size, sizes.tp)}
    outputs = {True: a.num_heads * a.v_head_size // sizes.tp, False: 0}
    for one in kept:
        outputs[one.name in of_mixer] += one.outputs
    scattered = tokens * layer.hidden_size // sizes.tp * (sizes.tp > 1)
    exchanged = 0
    if isinstance(layer.ffn, MixtureOfExperts) and sizes.ep > 1:
        columns = layer.ffn.latent_size or layer.hidden_size
        exchanged = 2 * round(_rows(layer, settings, is_even=True)["capacity"] * columns)
    unused = sum(unused_output_bytes(layer, settings))
    return {
        "attention": (tokens * outputs[True] + scattered) * e,
        "scores": 4 * a.num_heads // sizes.tp * tokens,
        "experts" if layer.is_moe else "feed-forward": (tokens * outputs[False] + exchanged) * e + unused,
    }


def unused_output_bytes(layer: Layer, settings: MemorySettings) -> tuple[int, int]:
    """Bytes that `selective-op` saves in eager mode although no backward needs them.

    They are the output of an MLP's last GEMM, and this rank's part of it after the reduce-scatter (torch,
    utils/checkpoint.py: `_CachingTorchDispatchMode`).
    """
    sizes, execution = settings.cut, settings.execution
    whole = settings.tokens * layer.hidden_size * execution.element_bytes * (execution.compile is False)
    matrices = list(counted_matrices(layer.linears(sizes)))
    if matrices[-1].name != "down":
        return 0, 0
    counted = sum(not matrix.biased for matrix in matrices)
    return whole * (counted % 2), share(whole, sizes.norm_divisor) * (sizes.tp > 1)


def weight_gradient_bytes(layer: Layer, settings: MemorySettings) -> int:
    """Bytes that a layer holds between I and W of a split backward, for evenly loaded experts.

    8-bit operands are assumed to be held in the dtype of activations.
    """
    if not layer.has_backward:
        return 0
    sizes = settings.cut
    key = "weight", sizes.tp, sizes.cp, sizes.ep, sizes.expert_tp
    if key not in layer.lists:
        operators = operators_of(layer, sizes, Execution(), settings.sequence_length)
        layer.lists[key] = sum_columns(saved_for_weight(operators, layer_input(layer)))
    widths: dict[Dtype, float] = {"act": settings.execution.element_bytes}
    return sum(bytes_of(layer.lists[key], _rows(layer, settings, is_even=True), widths).values())


def end_activations(model: Model, end: End, settings: MemorySettings) -> dict[str, int]:
    """Saved bytes per microbatch of a part outside the layers, by component, without the logits of the loss."""
    execution, tokens = settings.execution, settings.tokens
    source, operators = end_operators(model, end, settings.cut, execution)
    rows: RowCounts = {"tokens": tokens, "own_tokens": share(tokens, settings.cut.norm_divisor)}
    return bytes_of(
        sum_columns(saved(operators, source, ())),
        rows,
        _widths(execution, casts=execution.operand_bytes is not None),
    )
