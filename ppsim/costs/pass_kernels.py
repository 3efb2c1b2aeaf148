"""Kernels of F, I and W: of operators, and of GEMMs."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ppsim.machine.kernels.times import KernelTime, KernelTimes, gemm_time
from ppsim.model.weight_matrices import WeightMatrix


@dataclass(frozen=True)
class PassKernels:
    """Kernels of the forward (F), input gradient (I) and weight gradient (W)."""

    forward: KernelTime = field(default_factory=KernelTime)
    backward_input: KernelTime = field(default_factory=KernelTime)
    backward_weight: KernelTime = field(default_factory=KernelTime)

    @property
    def passes(self) -> tuple[KernelTime, KernelTime, KernelTime]:
        return self.forward, self.backward_input, self.backward_weight

    def __add__(self, other: "PassKernels") -> "PassKernels":
        if self is NOTHING or other is NOTHING:
            return other if self is NOTHING else self
        return PassKernels(*(mine + its for mine, its in zip(self.passes, other.passes, strict=True)))

    def slowed(self, factor: float) -> "PassKernels":
        return PassKernels(*(pass_cost.slowed(factor) for pass_cost in self.passes))


NOTHING = PassKernels()
"""No kernels. Sums skip it by identity."""


def total(kernels: Iterable[PassKernels]) -> PassKernels:
    passes = zip(*(kernel.passes for kernel in kernels if kernel is not NOTHING), strict=True)
    return PassKernels(
        *(KernelTime(*map(sum, zip(*(vars(one).values() for one in each), strict=True))) for each in passes)
    )


def products(
    linears: Iterable[WeightMatrix], times: KernelTimes, *, tokens: float, pairs: float = 0.0
) -> PassKernels:
    """`pairs`, the number of (token, expert) pairs, is distributed evenly over the experts."""
    kernels = NOTHING
    for linear in linears:
        if not linear.is_product:
            continue
        rows = pairs if linear.kind == "routed" else tokens * linear.rows * linear.groups
        inputs, outputs, groups = (
            linear.inputs // linear.groups,
            linear.outputs // linear.groups,
            linear.count * linear.groups,
        )
        kernels += PassKernels(
            gemm_time(times, "forward", rows, outputs, inputs, groups=groups),
            gemm_time(times, "input", rows, inputs, outputs, groups=groups),
            gemm_time(times, "weight", outputs, inputs, rows, groups=groups),
        )
    return kernels
