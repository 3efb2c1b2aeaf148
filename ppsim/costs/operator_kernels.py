"""Kernels of a layer's operators on one rank.

All operators except GEMMs and mixer cores are memory-bound: each tensor is read or written once, in the kernels of
Megatron-LM and TransformerEngine.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from ppsim.base.user_defaults import FLEX
from ppsim.costs.cores import core_of
from ppsim.costs.execution_context import ExecutionContext
from ppsim.costs.pass_kernels import NOTHING, PassKernels, products
from ppsim.machine.kernels.times import KernelTime, memory_kernel_time
from ppsim.model.architecture import Layer
from ppsim.model.blocks import operators_of
from ppsim.model.execution import moved_of_loss
from ppsim.model.hyper_connections import passes
from ppsim.model.operators import Kind, Operator, Rows, Tensor, gathered_inputs, summed_outputs, tensors_of
from ppsim.model.parameters import require_division_of_layer
from ppsim.model.weight_matrices import WeightMatrix
from ppsim.parallel.sizes import ParallelSizes

_STREAMS = 4
"""Streams on which TransformerEngine launches the GEMMs of experts in turn (`nvte_get_num_compute_streams`)."""

_PASSES: Mapping[Kind, tuple[int, int, int, int]] = MappingProxyType(
    {
        "norm": (2, 5, 1, 2),
        "rotation": (2, 2, 1, 1),
        "scaled rotation": (12, 14, 12, 14),
        "activation": (2, 3, 1, 1),
        "gated activation": (3, 5, 1, 1),
        "clamped activation": (3 + 8, 5 + 15, 1 + 3, 1 + 7),
        "convolution": (2, 5, 1, 2),
        "gate": (3, 6, 1, 2),
        "add": (3, 0, 1, 0),
        "modulation": (2, 4, 0, 0),
        "scale": (2, 2, 1, 1),
        "weighted sum": (1, 3, 1, 1),
        "look up": (2, 1, 2, 2),
        "dropout": (1, 0, 0, 0),
        "copies": (1, 1, 0, 0),
        "norms": (2, 5, 4, 4),
        "final norm": (2, 3, 1, 1),
    }
)
"""Elements that F and I read and write per column, and their numbers of kernels.

A norm's backward reads input and gradient again for the weight gradient, a convolution's backward computes the
output again, and the gate of a recurrent mixer contains a norm. A clamp applies to gate and up before they are
joined. The columns of a weighted sum of residuals are counted over all its inputs and its output; the backward
reads inputs and output again, and adds to each gradient.

Megatron-LM applies clamps and scaled rotations in torch's kernels (core_v0.16.0: `apply_rotary_pos_emb`, because
TransformerEngine's fused rotation has no scale; `weighted_bias_quick_geglu_impl`). Clamps in F: gate and up are
clamped, then joined. In I (torch, `clamp_backward`): comparisons to one and to two limits write masks of one byte
per element, which select the gradients; these are then joined. The numbers are for 16 bits. Scaled rotation in F,
for queries and for keys: product with the cosine, negated half, join, product with the sine, sum, and join with the
columns that are not rotated, here none. In I: the same without the last join; zeros for these columns are added.
"""

_STRIDED: Mapping[Kind, tuple[tuple[float, float], tuple[float, float]]] = MappingProxyType(
    {"clamped activation": ((2, 4), (5, 9.5)), "scaled rotation": ((3.5, 7), (3.5, 7))}
)
"""Part of `_PASSES` in kernels with strided or broadcast operands: (elements, passes) per column in F and in I."""

_STRIDED_ELEMENTS_PER_S = 2.87e9
"""Elements per second and core in torch's kernels with strided or broadcast operands.

These kernels compute an offset per element and load one element at a time (torch, CUDALoops.cuh,
`gpu_kernel_impl_nocast`). On an H200 with 132 cores, torch 2.9.1 takes 35.5 µs for prelu of 1024 × 10240 elements
with a weight per column (1.18 TB/s for 4 bytes per element in float16: tile-ai/TileOPs, pull request 500, March
2026). Of these, 7.9 µs are fixed per call: maximum of 4.2, 10.5 and 21.0 million elements takes 13.8, 22.5 and 37.3
µs in the same set-up (TileOPs, issue 512). Other types: assumed.
"""

_DENSE_ACTIVATION = "fed act"
"""Name of the activation of a dense MLP (see `ppsim.model.blocks.mlp`)."""

_BIASES = MappingProxyType({False: ((0, 6, 2, 1), (0, 8, 4, 1)), True: ((24, 2, 2, 2), (32, 4, 7, 3))})
"""Expert biases in F and I: bytes per column and (token, expert) pair (a constant, and a multiple of the bytes of
an element), kernels per expert, kernels for all experts together. True: float32 routing weights, as DeepEP and
HybridEP require (`fused_a2a.py`); False: routing weights in the activations' dtype, in which torch then multiplies
and adds. Biases are weighted, which broadcasts both, and added to the rows of each expert, and the rows are joined.
In I the gradients are multiplied by the weights and by the biases, which are broadcast (Megatron-LM,
`weighted_bias_quick_geglu_impl`, `TEGroupedMLP._apply_bias`, `token_dispatcher.py`)."""


def layer_operators(layer: Layer, context: ExecutionContext, sequence_length: int) -> tuple[Operator, ...]:
    """Raises `ConfigError` if ranks cannot divide the layer."""
    require_division_of_layer(layer, context.cut)
    return operators_of(layer, context.cut, context.execution, sequence_length)


def computed_rows(layer: Layer, sizes: ParallelSizes, *, tokens: int, load: float = 1.0) -> dict[Rows, float]:
    """A rank's experts get `load` times the mean number of (token, expert) pairs."""
    pairs = load * layer.experts_per_token * sizes.expert_tp / sizes.tp
    return {"tokens": tokens, "own_tokens": tokens / sizes.norm_divisor, "capacity": tokens * pairs}


@dataclass(frozen=True)
class OperatorKernels:
    """Kernels of a layer's operators on one rank, in Megatron-LM's implementation."""

    place: ExecutionContext
    operators: Sequence[Operator]
    layer_input: Tensor
    rows: Mapping[Rows, float]
    micro_batch: int = 0
    sequence_length: int = 0

    def of_all(self) -> dict[str, PassKernels]:
        """Return the kernels by operator name; "sums" adds gradients of tensors with several readers."""
        kernels = {}
        for operator in self.operators:
            passes = self.product(operator) + self.passing(operator)
            if not operator.gives_gradient:
                passes = replace(passes, backward_input=KernelTime())
            if operator.weight is not None and not operator.trainable:
                passes = replace(passes, backward_weight=KernelTime())
            kernels[operator.name] = passes
        return kernels | {"sums": self.sums()}

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        return tensors_of(self.operators, self.layer_input)

    @cached_property
    def gathered(self) -> dict[str, Tensor]:
        """Tensors that tensor-parallel ranks gather, by the operator that reads them."""
        return gathered_inputs(self.operators, self.tensors)

    @cached_property
    def summed(self) -> dict[str, Tensor]:
        """Tensors that tensor-parallel ranks reduce, by the operator that writes them."""
        return summed_outputs(self.operators)

    def product(self, one: Operator) -> PassKernels:
        if one.core is not None:
            return core_of(one.core, self.place, micro_batch=self.micro_batch, sequence_length=self.sequence_length)
        if one.weight is None or not one.weight.is_product:
            return NOTHING
        if one.weight.is_wide:
            return products([one.weight], self.place.wide_times, tokens=self.rows[one.rows])
        return self._experts(one.weight) if one.weight.kind == "routed" else self.gemm(one.weight)

    def gemm(self, linear: WeightMatrix) -> PassKernels:
        """Replicated matrices multiply a rank's own part of the sequence; their outputs are then gathered."""
        rows = self.rows["tokens"] if linear.split or linear.kind == "shared" else self.rows["own_tokens"]
        return products([linear], self.place.times, tokens=rows)

    def _experts(self, linear: WeightMatrix) -> PassKernels:
        """Experts take `Efficiency.experts` times as long as a single kernel.

        There is one launch per expert on one of `_STREAMS` (TransformerEngine, `nvte_multi_tensor_gemm`). Fused
        experts are one kernel.
        """
        kernels = products([linear], self.place.times, tokens=0, pairs=self.rows["capacity"])
        if self.place.execution.fused_experts:
            return kernels
        efficiency = self.place.device.efficiency
        if linear.count > 1:
            kernels = kernels.slowed(efficiency.experts)
        between_s = (-(-linear.count // _STREAMS) - 1) * efficiency.kernel_s
        return kernels + PassKernels(*[KernelTime(matmul_s=between_s, count=linear.count - 1)] * 3)

    def passing(self, one: Operator) -> PassKernels:
        """Return the memory-bound kernels of an operator."""
        if one.weight is not None:
            return self._around_routed(one.weight) if one.weight.kind == "routed" else self._around(one.weight)
        if one.kind == "mix":
            wide, narrow = one.writes
            forward, backward = passes(round(wide.columns / narrow.columns))
            return self.moving((forward, backward, 1, 1), narrow.columns * self.rows[one.rows])
        if one.kind in ("dispatch", "combine"):
            if self.place.permutes_in_exchange:
                return NOTHING
            again = 2 * self._orderings
            return self.moving((again, again, 3, 3), one.passed * self.rows["capacity"]) + self._scatter(one)
        if one.kind == "loss":
            execution, elements = self.place.execution, one.passed * self.rows[one.rows]
            moved = moved_of_loss(
                execution.cross_entropy, execution.element_bytes, fills=execution.deterministic_mode
            )
            return PassKernels(*(self.moved(num_bytes * elements, count) for num_bytes, count in moved))
        if one.kind not in _PASSES or (
            one.rows == "capacity" and self.place.execution.fused_experts and "activation" in one.kind
        ):
            return NOTHING
        forward, backward, *launches = _PASSES[one.kind]
        if not one.trainable:  # a norm
            backward, launches = backward - 2, [launches[0], launches[1] - 1]
        if one.kind == "norm" and self.place.execution.deterministic_mode:
            forward, backward = forward + 1, backward + 1  # its output is filled first
        if one.name == _DENSE_ACTIVATION and self._casts_in_activation:
            forward, backward = forward - 2, backward - 2 * (1 + (one.kind == "gated activation"))
        elements = one.passed * self.rows[one.rows]
        kernels = self.moving((forward, backward, launches[0], launches[1]), elements)
        if one.kind in _STRIDED:
            e = self.place.execution.element_bytes
            kernels += PassKernels(
                *(self._strided(count * elements, passes * e * elements) for count, passes in _STRIDED[one.kind])
            )
        if one.kind == "look up":  # the gradient of the table is in float32
            kernels += PassKernels(KernelTime(), self.moved(8 * elements, 0))
        if one.kind == "add" and any(tensor.dtype == "mask" for tensor in one.writes):
            e = self.place.execution.element_bytes
            kernels += PassKernels(self.moved(elements, 0), self.moved((2 * e + 1) * elements, 0))
        kernels += self._casts_of_input(one)
        return kernels

    def _casts_of_input(self, one: Operator) -> PassKernels:
        """A saved input in 8 bits is cast by a kernel in F, and back in I (Megatron-LM, fused_bias_swiglu.py)."""
        elements = sum(self.rows[output.rows] * output.columns for output in one.writes if output.dtype == "f8")
        if not elements:
            return NOTHING
        cast = self.moved((self.place.execution.element_bytes + 1) * elements, 1)
        return PassKernels(cast, cast)

    @property
    def _casts_in_activation(self) -> bool:
        """Return whether the activation of a dense MLP and its gradient write 8-bit GEMM operands.

        Each result is then not written in 16 bits and not read again by a cast. The calibrated fraction of peak
        includes this cast. With NVFP4 and MXFP4 the cast remains a kernel (Megatron-LM, `TEFusedMLP`;
        TransformerEngine 2.8, `csrc/extensions/activation.cpp`, `FULLY_FUSED`).
        """
        execution = self.place.execution
        return execution.fused_experts and execution.dtype in ("float8", "mxfp8")

    def moved(self, num_bytes: float, launches: int) -> KernelTime:
        return memory_kernel_time(self.place.times, "elementwise", num_bytes, launches=launches)

    def _strided(self, elements: float, num_bytes: float) -> KernelTime:
        """Additional time of kernels with strided or broadcast operands, beyond the time to move their bytes."""
        took_s = elements / (self.place.device.num_cores * _STRIDED_ELEMENTS_PER_S)
        return KernelTime(memory_s=max(0.0, took_s - self.moved(num_bytes, 0).memory_s))

    def moving(self, passed: tuple[int, int, int, int], elements: float) -> PassKernels:
        """Return F and I from (passes over the elements in F, in I, kernels in F, in I)."""
        size, (forward, backward, *launches) = self.place.execution.element_bytes * elements, passed
        return PassKernels(self.moved(forward * size, launches[0]), self.moved(backward * size, launches[1]))

    def _around(self, linear: WeightMatrix) -> PassKernels:
        e, times = self.place.execution.element_bytes, self.place.times
        if linear.kind == "condition":
            read, written = (memory_kernel_time(times, "copy", float(size * linear.weights)) for size in (e, e + 8))
            return PassKernels(read, read, written)
        if linear.kind != "dense":
            return NOTHING
        rows = self.rows["tokens" if linear.split == "outputs" else "own_tokens"]
        return PassKernels(backward_weight=self.moved(e * linear.rows * linear.biases * rows, 1))

    def _around_routed(self, linear: WeightMatrix) -> PassKernels:
        if linear.split == "inputs":
            return self._casts(linear) + self._biases(linear)
        return self._fused(linear) if self.place.execution.fused_experts else self._casts(linear)

    def _casts(self, linear: WeightMatrix) -> PassKernels:
        """Casts of the experts' GEMM inputs and output gradients to a narrow dtype, with one kernel per expert.

        This follows TransformerEngine, `GroupedLinear`, `split_quantize`. For other GEMMs, the calibrated fraction
        of peak includes casts.
        """
        narrow = self.place.execution.operand_bytes
        if narrow is None or self.place.execution.fused_experts:
            return NOTHING
        each = self.rows["capacity"] * (self.place.execution.element_bytes + self.place.operand_copies * narrow)
        of_input, of_output = (self.moved(each * side, linear.count) for side in (linear.inputs, linear.outputs))
        return PassKernels(of_input, of_output)

    def _fused(self, up: WeightMatrix) -> PassKernels:
        """Memory traffic of fused experts beyond the operands and results of their two GEMMs.

        The forward casts the inputs and writes the activated values. The backward casts the output gradients, reads
        the result of the up-projection and writes its gradients. Each element has e bytes when read, and narrow
        bytes · `operand_copies` when written. In 16 bits nothing is cast, and each element is written with e bytes
        (TransformerEngine, `ops/fused/forward_grouped_mlp.py` and `backward_grouped_mlp.py`).
        """
        e, narrow = self.place.execution.element_bytes, self.place.execution.operand_bytes
        written = e if narrow is None else self.place.operand_copies * narrow
        cast = 0.0 if narrow is None else up.inputs * (e + written)
        forward, backward = up.columns[0] * written, up.outputs * (e + written)
        launches = int(narrow is not None)
        return PassKernels(
            *(self.moved(self.rows["capacity"] * (cast + inside), launches) for inside in (forward, backward))
        )

    def _biases(self, down: WeightMatrix) -> PassKernels:
        if not down.biased or self.place.execution.fused_experts:
            return NOTHING
        elements, e = self.rows["capacity"] * down.outputs, self.place.execution.element_bytes
        is_wide = self.place.execution.moe_dispatcher in FLEX
        moved = (
            self.moved((own + of_e * e) * elements, an_expert * down.count + for_all)
            for own, of_e, an_expert, for_all in _BIASES[is_wide]
        )
        product = 4.0 if is_wide else e
        strided = (
            self._strided(elements, product * elements),
            self._strided(2 * elements, (2 * e + 2 * product) * elements),
        )
        return PassKernels(*(one + slower for one, slower in zip(moved, strided, strict=True)))

    def permuted_in_exchange_s(self) -> float:
        """Return the seconds of the permutations inside a pass's two exchanges, which read and write all rows."""
        if not self.place.permutes_in_exchange:
            return 0.0
        e, pairs = self.place.execution.element_bytes, self.rows["capacity"]
        permuted = [operator.passed for operator in self.operators if operator.kind in ("dispatch", "combine")]
        return sum(self.moved(2 * e * columns * pairs, 1).memory_s for columns in permuted)

    def _scatter(self, one: Operator) -> PassKernels:
        """Additional time of unfused permutations, whose scatter-add is slower than a copy.

        The combine's forward adds each expert's output to its token, and the dispatch's backward adds the
        gradients, instead of a copy. Without a measured rate (`Efficiency.scatter`), the kernels write zeros per
        token, and per (token, expert) pair read a row and read and write its sum.
        """
        execution, device, pairs = self.place.execution, self.place.device, self.rows["capacity"]
        if execution.moe_permute_fusion:
            return NOTHING
        size, tokens = execution.element_bytes * one.passed, self.rows["own_tokens"]
        if (share := device.efficiency.scatter) is None:
            scattered_s = self.moved((tokens + 3 * pairs) * size, 0).memory_s
        else:
            scattered_s = (tokens + pairs) * size / (device.memory_bytes_per_s * share)
        copied_s = self.moved(2 * pairs * size, 0).memory_s
        slower = KernelTime(memory_s=scattered_s - copied_s)
        return PassKernels(slower) if one.kind == "combine" else PassKernels(KernelTime(), slower)

    @property
    def _orderings(self) -> int:
        """Number of permutations of the experts' tokens on either side of the exchange.

        An all-to-all adds one. Padding of each expert's tokens for narrow GEMMs adds one (`Fp8Padding`), unless
        capacities or HybridEP do it.
        """
        execution = self.place.execution
        orderings = 1 + (execution.moe_dispatcher == "alltoall" and self.place.cut.ep > 1)
        if execution.operand_bytes and execution.expert_capacity is None:
            orderings += execution.moe_dispatcher != "hybridep"
        return orderings

    def sums(self) -> PassKernels:
        readers = Counter(
            name for operator in self.operators for name in operator.reads if _gives_gradient(operator)
        )
        more = {self.tensors[name]: number - 1 for name, number in readers.items() if number > 1}
        elements = sum(number * one.columns * self.rows[one.rows] for one, number in more.items())
        return self.moving((0, 3, 0, sum(more.values())), elements)


def _gives_gradient(one: Operator) -> bool:
    """Views, and rotations of a part of a tensor, make no gradient of their own."""
    is_view = one.passes_gradient and any(tensor.storage for tensor in one.writes)
    return not is_view and "rotation" not in one.kind
