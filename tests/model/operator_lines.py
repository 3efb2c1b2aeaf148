"""Operators as short lines, for tests that compare all their fields."""

from collections.abc import Iterable

from ppsim.model.operators import Operator, Tensor
from ppsim.model.weight_matrices import WeightMatrix

_ROWS = {"tokens": "T", "own_tokens": "own", "capacity": "C"}


def lines_of(operators: Iterable[Operator]) -> list[str]:
    """Return a line per operator: name, module, reads > writes, then the fields that are not the default.

    A tensor is its name, rows (T: tokens), columns, component, and dtype and storage in brackets.
    """
    return [_line_of(operator) for operator in operators]


def _line_of(one: Operator) -> str:
    parts = [f"{one.name} <{one.module}> {', '.join(one.reads)} > {', '.join(map(_tensor, one.writes))}"]
    parts += [f"I: {', '.join(one.saved_for_i)}"] * bool(one.saved_for_i)
    parts += [f"W: {', '.join(one.saved_for_w)}"] * bool(one.saved_for_w)
    if one.weight is not None:
        rows = f" ×{one.weight.rows:g}" if one.weight.rows != 1 else ""
        parts.append(f"weight: {one.weight.name} {one.weight.inputs}·{one.weight.outputs}{rows}")
    parts += [f"kind: {one.kind}"] * bool(one.kind)
    parts += [f"columns: {one.columns:g}"] if one.columns is not None else []
    flags = {
        "8 bits": one.quantized, "passes": one.passes_gradient, "core": one.core is not None,
        "frozen": not one.trainable, "no gradient": not one.gives_gradient, f"share {one.share:g}": one.share != 1,
    }  # fmt: skip
    return "; ".join([*parts, *[name for name, holds in flags.items() if holds]])


def _tensor(tensor: Tensor) -> str:
    text = f"{tensor.name} {_ROWS[tensor.rows]}·{tensor.columns:g} {tensor.component}"
    text += f" [{tensor.dtype}]" if tensor.dtype != "act" else ""
    return text + (f" [{tensor.storage}]" if tensor.storage else "")


def matrix_lines_of(matrices: Iterable[WeightMatrix]) -> list[str]:
    """Return a line per matrix: name, its input, inputs and columns, then the fields that are not the default."""
    return [
        " ".join(
            [
                f"{one.name} <- {one.reads} {one.inputs}·{'+'.join(map(str, one.columns))}",
                *[one.kind] * (one.kind != "dense"), *[f"split {one.split}"] * bool(one.split),
                *["biased"] * one.biased, *[f"count {one.count}"] * (one.count > 1),
                *[f"rows {one.rows:g}"] * (one.rows != 1), *[f"groups {one.groups}"] * (one.groups > 1),
            ]
        )
        for one in matrices
    ]  # fmt: skip
