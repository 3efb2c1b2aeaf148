"""What passes over memory in a layer that torch runs, beside what Megatron-LM's and TransformerEngine's kernels do.

TorchTitan at 9dec370 and 820504e (models/llama, parallelize_llama.py, norms.py), torchao at 6243040 (float8), torch
of December 2024. Compiled, what is point by point is one kernel and only this is left; e bytes of an element, c of
what is gathered, T tokens of a tensor-parallel group, of which a rank has T / tp, h hidden:

- rotation by complex numbers, which inductor has no code for: to float32 and back, and a product, 16 more a column;
- keys and values repeated to all heads: each read and written, and summed back;
- gathers and scatters along the sequence, which is no tensor's first dimension: pieces copied into or out of one
  another, 2chT and 2ehT (distributed/_functional_collectives.py: `all_gather_tensor`, `reduce_scatter_tensor`). In
  products that are pipelined with them (distributed/_symmetric_memory) a scatter adds up what ranks sent instead,
  and what a backward sums before it scatters stays as it was, as do gathers of what has a scale a row;
- queries, keys and values, gate and up are products of their own, whose n gradients of one input are summed: n + 1
  passes, fused with a norm's n - 1;
- 8 bits: `_Casts`.

Eagerly (no torch.compile) each operator passes over memory by itself: norms in float32, activations, sums of
gradients two by two, and casts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ppsim.costs.between import elementwise
from ppsim.costs.layer_kernels import PassKernels, RankPart
from ppsim.costs.place import Place
from ppsim.machine.kernels.times import KernelTime, moved
from ppsim.model.linears import Linear

_NORM_FORWARD, _NORM_BACKWARD = (4, 28), (8, 68)
"""Of an eager norm, times e and beside: x in float32, its square, their mean, the product with its root, that in
the type of x, and with the weights; and what autograd makes of these."""

_CAST_EAGERLY = (4, 25)
"""Of an eager cast to 8 bits, times e and beside: absolute values, their maximum, float32, times the scale,
clamped, cast (torchao, float8_utils.py: `tensor_to_scale`, `to_fp8_saturated`)."""


def torch_elementwise(part: RankPart, place: Place, *, tokens: int) -> PassKernels:
    """Return all that only passes over memory in a layer's passes."""
    backward, of_weight = _backward(part, place, tokens=tokens)
    return elementwise(part, place, tokens=tokens) + PassKernels(
        _forward(part, place, tokens=tokens, scatters=_num_regions(part)), backward, of_weight
    )


def torch_again(part: RankPart, place: Place, *, tokens: int, scatters: int) -> KernelTime:
    """Return what of a forward's a backward repeats: all but the last residual, and so many scatters."""
    e, own = place.execution.element_bytes, tokens / place.cut.norm_divisor
    whole = elementwise(part, place, tokens=tokens).forward
    whole += _forward(part, place, tokens=tokens, scatters=scatters)
    last = moved(place.times, "elementwise", 3.0 * e * part.hidden_size * own)
    return replace(whole, memory_s=whole.memory_s - last.memory_s, count=whole.count - last.count)


def num_amax(part: RankPart, place: Place) -> tuple[int, int]:
    """Return how many scales tensor-parallel ranks agree on in a forward and in a backward: one a tensor."""
    if place.execution.dtype != "float8" or place.cut.tp == 1:
        return 0, 0
    casts = _Casts.of(part, place)
    return len(casts.inputs), len(casts.outputs)


def norm_passes(place: Place) -> tuple[float, float]:
    """Return how often the norm before the head, which torch never compiles, passes over its input either way."""
    if place.execution.compile is None:
        return 2.0, 3.0
    e = place.execution.element_bytes
    forward, backward = ((times * e + beside) / e for times, beside in (_NORM_FORWARD, _NORM_BACKWARD))
    return forward, backward


def copied_along_sequence(place: Place, message: float) -> KernelTime:
    """Return what torch copies around a gather or scatter of so many bytes along the sequence."""
    is_copied = place.execution.compile is not None and place.cut.norm_divisor > 1
    return moved(place.wide_times, "copy", 2 * message) if is_copied else KernelTime()


def _num_regions(part: RankPart) -> int:
    """Parts of the layer that gather what they take in and scatter what they give: not those of experts."""
    return part.halves - (part.pairs > 0)


def _forward(part: RankPart, place: Place, *, tokens: int, scatters: int) -> KernelTime:
    execution, h, e = place.execution, part.hidden_size, place.execution.element_bytes
    own, whole = tokens / place.cut.norm_divisor, tokens
    times, compiled = place.times, execution.compile
    found = moved(times, "elementwise", 16.0 * whole * part.rotated, launches=4 * (part.rotated > 0))
    found += moved(times, "copy", whole * _repeated(part) * e, launches=2)
    if place.cut.norm_divisor > 1:
        gathered = 0.0 if place.gathers_in_products else 2 * e * execution.gathered_share * _num_regions(part)
        scattered = (1 + 1 / place.cut.tp if place.is_async else 2) * e * scatters
        found += moved(times, "copy", whole * h * (gathered + scattered), launches=_num_regions(part) + scatters)
    if not compiled:
        times_e, beside = _NORM_FORWARD
        found += moved(
            times, "norm", own * h * part.halves * ((times_e - 2) * e + beside), launches=5 * part.halves
        )
        found += moved(times, "elementwise", whole * part.activated * part.is_gated * 2 * e, launches=1)
    return found + _Casts.of(part, place).forward(place, tokens)


def _backward(part: RankPart, place: Place, *, tokens: int) -> tuple[KernelTime, KernelTime]:
    execution, h, e = place.execution, part.hidden_size, place.execution.element_bytes
    own, whole = tokens / place.cut.norm_divisor, tokens
    times, compiled, is_divided = place.times, execution.compile, place.cut.norm_divisor > 1
    found = moved(times, "elementwise", 16.0 * whole * part.rotated, launches=4 * (part.rotated > 0))
    found += moved(times, "copy", whole * _repeated(part) * e, launches=2)
    for reading in _readers(part.linears).values():
        width, number = reading[0].inputs, len(reading)
        if number > 1:
            passed = 3 * (number - 1) if not compiled else number + 1 if is_divided else number - 1
            found += moved(times, "elementwise", whole * width * e * passed)
    if is_divided:
        regions = _num_regions(part)
        gathered = 0.0 if place.gathers_in_products else 2 * e * execution.gathered_share
        found += moved(times, "copy", whole * h * regions * (gathered + 2 * e), launches=2 * regions)
    if not compiled:
        times_e, beside = _NORM_BACKWARD
        found += moved(
            times, "norm", own * h * part.halves * ((times_e - 5) * e + beside), launches=9 * part.halves
        )
        found += moved(times, "elementwise", whole * part.activated * part.is_gated * 4 * e, launches=2)
    of_input, of_weight = _Casts.of(part, place).backward(place, tokens)
    return found + of_input, of_weight


def _repeated(part: RankPart) -> float:
    """Columns that are read and written where keys and values are repeated to all heads."""
    for one in part.linears:
        if one.name == "queries, keys, values" and len(one.columns) == 3 and one.columns[1] < one.columns[0]:
            return 2.0 * (one.columns[0] + one.columns[1])
    return 0.0


def _readers(linears: Sequence[Linear]) -> dict[str, list[Linear]]:
    """The products of each input, each matrix for itself; those of experts and routers are not among them."""
    found: dict[str, list[Linear]] = {}
    for one in (part for linear in linears if linear.kind in ("dense", "shared") for part in linear.apart()):
        found.setdefault(one.reads, []).append(one)
    return found


@dataclass(frozen=True)
class _Casts:
    """What brings operands of products to 8 bits in torchao, whose layers keep 16-bit inputs of their products.

    `inputs` are the columns of each distinct input and whether ranks gather it, `outputs` those of each product's
    gradient and whether it is gathered (a product whose output is scattered). One scale a tensor: its maximum is
    read for, then it is cast, before it is gathered; and a weight gradient's operands are copied, tokens last
    (float8_ops.py: `preprocess_addmm`), as is the weight for an input gradient. A scale a row: gathered in 16 bits;
    a row's maximum and cast are one pass, but those of a weight gradient's operands go by columns, and weights are
    cast in each pass (float8_linear.py, all axiswise).
    """

    is_row: bool
    inputs: tuple[tuple[int, bool], ...]
    outputs: tuple[tuple[int, bool], ...]
    weights: int

    @classmethod
    def of(cls, part: RankPart, place: Place) -> "_Casts":
        dtype = place.execution.dtype
        readers = list(_readers(part.linears).values()) if dtype in ("float8", "float8-row") else []
        products, is_divided = [one for reading in readers for one in reading], place.cut.norm_divisor > 1
        return cls(
            dtype == "float8-row",
            tuple((reading[0].inputs, is_divided and reading[0].split == "outputs") for reading in readers),
            tuple((one.outputs, is_divided and one.split == "inputs") for one in products),
            sum(one.size for one in products),
        )

    def _bytes(self, place: Place, *, by_columns: bool = False) -> float:
        """Of an element that is cast: e read, 1 written, and e more where the maximum is read for apart."""
        e = place.execution.element_bytes
        if not place.execution.compile:
            return _CAST_EAGERLY[0] * e + _CAST_EAGERLY[1]
        return e + 1 + e * (by_columns or not self.is_row)

    def _tokens(self, gathered: bool, place: Place, tokens: int) -> float:
        return tokens / place.cut.norm_divisor if gathered and not self.is_row else tokens

    def forward(self, place: Place, tokens: int) -> KernelTime:
        """Inputs, and with a scale a row weights."""
        elements = sum(columns * self._tokens(gathered, place, tokens) for columns, gathered in self.inputs)
        size = self._bytes(place) * (elements + self.is_row * self.weights)
        return moved(place.times, "elementwise", size, launches=2 * len(self.inputs))

    def backward(self, place: Place, tokens: int) -> tuple[KernelTime, KernelTime]:
        """Gradients of outputs, and the operands of products of weight gradients."""
        times, launches = place.times, 2 * len(self.outputs)
        inputs, outputs = (sum(columns for columns, _ in side) for side in (self.inputs, self.outputs))
        if self.is_row:
            wide = self._bytes(place, by_columns=True)
            return (
                moved(
                    times,
                    "elementwise",
                    self._bytes(place) * outputs * tokens + wide * self.weights,
                    launches=launches,
                ),
                moved(times, "elementwise", wide * (inputs + outputs) * tokens, launches=launches),
            )
        cast = sum(columns * self._tokens(gathered, place, tokens) for columns, gathered in self.outputs)
        return (
            moved(times, "elementwise", self._bytes(place) * cast + 2.0 * self.weights, launches=launches),
            moved(times, "copy", 2.0 * (inputs + outputs) * tokens, launches=launches),
        )
