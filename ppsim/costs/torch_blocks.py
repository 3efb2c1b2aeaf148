"""Memory-bound kernels of a layer in torch, in addition to Megatron-LM's and TransformerEngine's.

Sources: TorchTitan at 9dec370 and 820504e (models/llama, parallelize_llama.py, norms.py), torchao at 6243040
(float8), torch of December 2024. When compiled, pointwise operators are fused into one kernel and only the
following remain; e is the bytes of an element, c of an element that is gathered, T the tokens of a tensor-parallel
group, h the hidden size:

- rotation by complex numbers, for which inductor generates no code: 16 bytes more per column;
- repetition of keys and values for all heads: each read and written, and summed back;
- gathers and scatters along the sequence, which is not the first dimension of any tensor: the pieces are copied,
  2chT and 2ehT bytes (distributed/_functional_collectives.py: `all_gather_tensor`,
  `reduce_scatter_tensor`). In GEMMs pipelined with them (distributed/_symmetric_memory), a scatter adds up the
  ranks' parts instead;
- separate GEMMs for queries, keys and values, gate and up, whose n gradients of one input are summed: n + 1 passes,
  or n - 1 if the sum is fused with a norm;
- 8-bit casts: `_Casts`.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ppsim.costs.execution_context import ExecutionContext
from ppsim.costs.operator_kernels import OperatorKernels
from ppsim.costs.pass_kernels import NOTHING, PassKernels, products, total
from ppsim.machine.kernels.times import KernelTime
from ppsim.model.operators import Operator
from ppsim.model.weight_matrices import WeightMatrix

_NORM_FORWARD, _NORM_BACKWARD = (4, 28), (8, 68)
"""Bytes per element of an eager norm in F and in I, as a multiple of e and a constant: x in float32, its square,
their mean, the product with the root, the result in the dtype of x, and its product with the weights; I: autograd's
kernels for these."""

_CAST_EAGERLY = (4, 25)
"""Bytes per element of an eager 8-bit cast, as a multiple of e and a constant: absolute values, their maximum,
float32, times the scale, clamped, cast (torchao, float8_utils.py: `tensor_to_scale`, `to_fp8_saturated`)."""


@dataclass(frozen=True)
class TorchKernels(OperatorKernels):
    """`OperatorKernels`, and torch's further memory-bound kernels."""

    def gemm(self, linear: WeightMatrix) -> PassKernels:
        """Return a separate GEMM for each matrix.

        In GEMMs pipelined with tensor-parallel messages, the forward has one GEMM per rank's part of the tokens. So
        has the input gradient of a matrix whose output is scattered (distributed/_symmetric_memory,
        `_pipelined_multi_all_gather_and_consume`, `_pipelined_produce_and_all2all`).
        """
        tokens, pieces, kernels = self.rows["tokens"], self.place.cut.tp, NOTHING
        for matrix in linear.separate_matrices():
            product = products([matrix], self.place.times, tokens=tokens)
            if not self.place.is_async or matrix.kind != "dense" or matrix.split is None:
                kernels += product
                continue
            piece = products([matrix], self.place.times, tokens=tokens / pieces)
            scatters, gathers = matrix.split == "inputs", self.place.gathers_in_products
            kernels += PassKernels(
                piece.forward.times(pieces) if scatters or gathers else product.forward,
                piece.backward_input.times(pieces) if scatters and gathers else product.backward_input,
                product.backward_weight,
            )
        return kernels

    def passing(self, one: Operator) -> PassKernels:
        if one.kind == "scaled rotation":  # TorchTitan scales scores instead (models/common/rope.py)
            one = replace(one, kind="rotation")
        kernels = super().passing(one) + self.along_sequence(one)
        if one.weight is not None:
            return kernels + self._casts_of(one.weight)
        if one.kind == "rotation":
            kernels += self._rotated(one)
        if not self.place.execution.compile:
            kernels += self._eager(one)
        return kernels

    def along_sequence(self, operator: Operator) -> PassKernels:
        gathered, summed = self.gathered.get(operator.name), self.summed.get(operator.name)
        tensor = gathered or summed
        if tensor is None or not self.is_divided:
            return NOTHING
        size = self.place.execution.element_bytes * tensor.columns * self.rows["tokens"]
        if gathered is not None:
            is_outside = operator.weight is not None and operator.weight.kind == "outside"
            share = 1.0 if is_outside else self.place.execution.gathered_share
            copied = 0.0 if self.place.gathers_in_products else 2 * size * share
            return PassKernels(self.moved(copied, 1), self.moved(copied, 1))
        scattered = (1 + 1 / self.place.cut.tp if self.place.is_async else 2) * size
        return PassKernels(self.moved(scattered, 1), self.moved(2 * size, 1))

    def scattered_s(self) -> KernelTime:
        kernels = (self.along_sequence(operator) for operator in self.operators if operator.name in self.summed)
        return total(kernels).forward

    @property
    def is_divided(self) -> bool:
        return self.place.cut.norm_divisor > 1

    def _rotated(self, operator: Operator) -> PassKernels:
        tokens, e = self.rows["tokens"], self.place.execution.element_bytes
        complex_s = self.moved(16.0 * tokens * operator.passed, 4)
        queries, keys, *others = (tensor.columns for tensor in operator.writes) if operator.writes else (0, 0)
        repeated = 2 * (queries + keys) if keys < queries and not others else 0
        rotations = complex_s + self.moved(tokens * repeated * e, 2)
        return PassKernels(rotations, rotations)

    def _eager(self, operator: Operator) -> PassKernels:
        elements, e = operator.passed * self.rows[operator.rows], self.place.execution.element_bytes
        if operator.kind in ("norm", "final norm"):
            done, launches = ((2, 5), (5, 9)) if operator.kind == "norm" else ((2, 3), (0, 0))
            forward, backward = (times * e + beside for times, beside in (_NORM_FORWARD, _NORM_BACKWARD))
            return PassKernels(
                self.moved((forward - done[0] * e) * elements, launches[0]),
                self.moved((backward - done[1] * e) * elements, launches[1]),
            )
        if operator.kind in ("gated activation", "clamped activation"):
            return self.moving((2, 4, 1, 2), elements)
        return NOTHING

    def sums(self) -> PassKernels:
        """Also sum the gradients that separate matrices with the same input give, such as queries, keys, values."""
        read = [(width, number) for width, number in _inputs(self.operators) if number > 1]
        size, more = self.place.execution.element_bytes * self.rows["tokens"], 2 if self.is_divided else 0
        passes = sum(
            width * (number - 1 + more if self.place.execution.compile else 3 * (number - 1))
            for width, number in read
        )
        of_matrices = self.moved(passes * size, len(read))
        return super().sums() + PassKernels(backward_input=of_matrices)

    def _casts_of(self, linear: WeightMatrix) -> PassKernels:
        """torchao's layers save 16-bit inputs."""
        is_narrow = self.place.execution.dtype in ("float8", "float8-row")
        return _Casts(self, linear).passes if is_narrow and linear.kind in ("dense", "shared") else NOTHING


def _inputs(operators: Iterable[Operator]) -> list[tuple[int, int]]:
    """(Columns, number of readers) of each distinct input of dense matrices; each matrix is a reader."""
    number, width = Counter[str](), dict[str, int]()
    for operator in operators:
        if operator.weight is not None and operator.weight.kind in ("dense", "shared"):
            number[operator.weight.reads] += len(operator.weight.columns)
            width[operator.weight.reads] = operator.weight.inputs
    return [(width[name], count) for name, count in number.items()]


def num_amax(operators: Iterable[Operator], context: ExecutionContext) -> tuple[int, int]:
    """Return the number of scales that tensor-parallel ranks agree on in a forward and in a backward."""
    if context.execution.dtype != "float8" or context.cut.tp == 1:
        return 0, 0
    inputs = _inputs(operators)
    return len(inputs), sum(number for _, number in inputs)


@dataclass(frozen=True)
class _Casts:
    """Casts of the operands of a matrix to 8 bits.

    One scale per tensor: the maximum of the tensor is read first, then the tensor is cast, and then gathered. The
    operands of a weight gradient are copied to make tokens the last dimension (float8_ops.py: `preprocess_addmm`),
    and the weight is copied for an input gradient. One scale per row: operands are gathered in 16 bits. Maximum and
    cast are one pass by rows, and two by columns (operands of a weight gradient, weights of an input gradient).
    Weights are cast in F and again in I (float8_linear.py, all axiswise).
    """

    kernels: OperatorKernels
    linear: WeightMatrix

    @property
    def is_row(self) -> bool:
        return self.kernels.place.execution.dtype == "float8-row"

    def _bytes(self, *, by_columns: bool = False) -> float:
        """Bytes per element that is cast: e read, 1 written, and e more if the maximum is read separately."""
        execution = self.kernels.place.execution
        e = execution.element_bytes
        if not execution.compile:
            return _CAST_EAGERLY[0] * e + _CAST_EAGERLY[1]
        return e + 1 + e * (by_columns or not self.is_row)

    def _tokens(self, side: str) -> float:
        """A rank's own rows if the operand is gathered after the cast."""
        is_gathered = self.linear.split == side and not self.is_row
        return self.kernels.rows["own_tokens" if is_gathered else "tokens"]

    @property
    def passes(self) -> PassKernels:
        """F: input, and weight if scales are per row. I: output gradient and weight. W: both operands again."""
        one, tokens, moved = self.linear, self.kernels.rows["tokens"], self.kernels.moved
        weights, number = one.size * self.is_row, 2 * len(one.columns)
        forward = moved(self._bytes() * (one.inputs * self._tokens("outputs") + weights), 2)
        operands = (one.inputs + one.outputs) * tokens
        if self.is_row:
            wide = self._bytes(by_columns=True)
            backward = moved(self._bytes() * one.outputs * tokens + wide * one.size, number)
            return PassKernels(forward, backward, moved(wide * operands, number))
        backward = moved(self._bytes() * one.outputs * self._tokens("inputs") + 2.0 * one.size, number)
        return PassKernels(forward, backward, moved(2.0 * operands, number))
