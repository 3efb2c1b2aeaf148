"""LoRA adapters and frozen weights in the matrices and operators of a layer.

Adapters are Megatron-Bridge's at 067f987d (peft/utils.py: `ParallelLinearAdapter`, peft/lora_layers.py:
`LoRALinear`): y = W·x + (alpha / rank) · B·A·x. With sequence parallelism A reads the gathered input of the module,
and saves it. The routed experts of a rank share one adapter per module (`share_expert_adapters`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ppsim.model.fine_tuning import LayerTraining, group_of, lora_module_of
from ppsim.model.operators import Operator, Tensor
from ppsim.model.weight_matrices import LinearKind, WeightMatrix
from ppsim.parallel.sizes import ParallelSizes


def trained_matrices(
    matrices: Iterable[WeightMatrix], mixer: Sequence[WeightMatrix], training: LayerTraining, sizes: ParallelSizes
) -> Iterator[WeightMatrix]:
    """Yield each matrix, followed by its adapter."""
    for matrix in matrices:
        yield replace(matrix, trainable=training.trains(group_of(matrix, 1 if matrix in mixer else 2)))
        if lora_module_of(matrix, mixer) in training.adapted:
            yield from adapter_of(matrix, training.rank, sizes)


def adapter_of(linear: WeightMatrix, rank: int, sizes: ParallelSizes) -> tuple[WeightMatrix, WeightMatrix]:
    """A and B of the adapter of a matrix, as one rank holds them.

    >>> qkv = WeightMatrix("queries, keys, values", "x", 8, (8, 2, 2), split="outputs")
    >>> # inputs · rank / tp, rank · outputs of this rank
    >>> [one.weights for one in adapter_of(qkv, 4, ParallelSizes(tp=2))]
    [16, 48]
    """
    is_routed, is_divided = linear.kind == "routed", linear.split == "outputs"
    tp = sizes.expert_tp if is_routed else sizes.tp
    kind: LinearKind = "routed adapter" if is_routed else "adapter"
    narrow = (rank if linear.split == "inputs" else rank // tp,)
    wide = (linear.outputs if is_divided else linear.outputs // tp,)
    return (
        WeightMatrix(f"{linear.name}, A", linear.reads, linear.inputs, narrow, kind=kind, rows=linear.rows),
        WeightMatrix(f"{linear.name}, B", f"{linear.name}, A", rank, wide, kind=kind, rows=linear.rows),
    )


def trained_operators(
    operators: Sequence[Operator],
    source: Tensor,
    mixer: Sequence[WeightMatrix],
    training: LayerTraining,
    sizes: ParallelSizes,
) -> Iterator[Operator]:
    """A frozen GEMM saves nothing, because its input gradient reads only the weight."""
    tensors = {source.name: source} | {tensor.name: tensor for one in operators for tensor in one.writes}
    for operator in operators:
        if operator.weight is None:
            yield operator if operator.kind != "norm" else replace(operator, trainable=training.trains("norms"))
            continue
        base = operator
        if not training.trains(group_of(operator.weight, operator.sublayer)):
            base = replace(operator, saved_for_i=(), saved_for_w=(), trainable=False)
        if operator.writes and lora_module_of(operator.weight, mixer) in training.adapted:
            yield from _with_adapter(base, tensors[operator.reads[0]], training.rank, sizes)
        else:
            yield base


def _with_adapter(one: Operator, source: Tensor, rank: int, sizes: ParallelSizes) -> Iterator[Operator]:
    assert one.weight is not None
    down, up = adapter_of(one.weight, rank, sizes)
    name, component = one.name, source.component

    def step(what: str, reads: tuple[str, ...], writes: Tensor, **fields: Any) -> Operator:
        return Operator(f"{name} {what}", one.module, reads, (writes,), sublayer=one.sublayer, **fields)

    plain = tuple(replace(made, name=f"{made.name} of W", storage=None) for made in one.writes)
    yield replace(one, writes=plain)
    if one.weight.split == "outputs" and source.rows == "own_tokens" and sizes.norm_divisor > 1:
        source = replace(source, name=f"gathered {source.name} of {name}", rows="tokens", storage=None)
        yield step("input", one.reads[:1], source, passes_gradient=True)
    rows = source.rows if one.weight.split else one.rows
    narrow = Tensor(f"{name} A", rows, rank, component)
    yield step("A", (source.name,), narrow, saved_for_w=(source.name,), weight=down)
    columns = sum(made.columns for made in plain)
    wide = Tensor(f"{name} B", rows, columns, component)
    yield step("B", (narrow.name,), wide, saved_for_w=(narrow.name,), weight=up)
    scaled = Tensor(f"{name} adapted", one.rows, columns, component)
    yield step("scale", (wide.name,), scaled, kind="scale")
    for number, (made, of_base) in enumerate(zip(one.writes, plain, strict=True)):
        reads = (of_base.name,) if number else (of_base.name, scaled.name)
        # One kernel adds all outputs.
        yield step(
            f"sum {number}", reads, made, passes_gradient=True, kind="" if number else "add", columns=columns
        )
