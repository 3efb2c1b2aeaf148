"""Interface of kernel times, independent of their source."""

from dataclasses import dataclass, replace
from typing import Literal, Protocol

from ppsim.machine.kernels.names import Form, Kernels, MemoryKernel


@dataclass(frozen=True)
class AttentionCore:
    """Causal attention without projections (scores, softmax, weighted sum); `heads` is summed over all sequences.

    `unmasked` is the share of the FLOPs in separate kernels without a mask: keys of other context-parallel ranks.
    """

    heads: int
    queries: int
    keys: int
    qk_size: int
    v_size: int
    unmasked: float = 0.0

    @property
    def forward_flops(self) -> float:
        """FLOPs of the causal half, 2 per multiply-add."""
        return 1.0 * self.heads * self.queries * self.keys * (self.qk_size + self.v_size)


class KernelTimes(Protocol):
    """Kernel times of a device in one dtype."""

    def product_s(self, form: Form, m: float, n: float, k: float, *, groups: int = ...) -> float:
        """Return the seconds of a GEMM [m, k] · [k, n], or of a grouped GEMM whose `groups` share the tokens."""

    def attention_s(self, part: Literal["forward", "backward"], core: AttentionCore) -> float:
        """Return the seconds of fused attention; the backward pass recomputes the scores."""

    def moved_s(self, kernel: MemoryKernel, num_bytes: float, *, launches: int = ...) -> float:
        """Return the seconds of `launches` consecutive memory-bound kernels; `num_bytes` is their total traffic."""

    def peak(self, of: Literal["products", "attention"]) -> float:
        """Return the peak FLOP/s."""

    def is_measured(self, of: Kernels) -> bool:
        """Return whether times of these kernels come from measurements, not from the data sheet."""


@dataclass(frozen=True)
class KernelTime:
    """Time of consecutive kernels: GEMMs, attention, and memory-bound kernels.

    `…_ideal_s` is the time of the FLOPs at the device's peak; `count` is the number of launches; `measured_s` is
    the part of the time that comes from measured kernels.
    """

    matmul_ideal_s: float = 0.0
    matmul_s: float = 0.0
    attention_ideal_s: float = 0.0
    attention_s: float = 0.0
    memory_s: float = 0.0
    count: int = 0
    measured_s: float = 0.0

    def __add__(self, other: "KernelTime") -> "KernelTime":
        return KernelTime(
            self.matmul_ideal_s + other.matmul_ideal_s,
            self.matmul_s + other.matmul_s,
            self.attention_ideal_s + other.attention_ideal_s,
            self.attention_s + other.attention_s,
            self.memory_s + other.memory_s,
            self.count + other.count,
            self.measured_s + other.measured_s,
        )

    def without(self, other: "KernelTime") -> "KernelTime":
        return self + other.times(-1)

    def times(self, number: int) -> "KernelTime":
        return KernelTime(*(number * mine for mine in vars(self).values()))

    @property
    def busy_s(self) -> float:
        return self.matmul_s + self.attention_s + self.memory_s

    def slowed(self, factor: float) -> "KernelTime":
        return replace(
            self,
            matmul_s=factor * self.matmul_s,
            attention_s=factor * self.attention_s,
            memory_s=factor * self.memory_s,
            measured_s=factor * self.measured_s,
        )

    def as_attention(self) -> "KernelTime":
        return KernelTime(
            attention_ideal_s=self.matmul_ideal_s,
            attention_s=self.busy_s,
            count=self.count,
            measured_s=self.measured_s,
        )


def gemm_time(times: KernelTimes, form: Form, m: float, n: float, k: float, *, groups: int = 1) -> KernelTime:
    if not m * n * k * groups:
        return KernelTime()
    rows, columns, depth = of_one_group(form, m, n, k, groups)
    flops = 2 * rows * columns * depth * groups
    took = times.product_s(form, m, n, k, groups=groups)
    measured_s = took if times.is_measured("experts" if groups > 1 else "products") else 0.0
    return KernelTime(matmul_ideal_s=flops / times.peak("products"), matmul_s=took, count=1, measured_s=measured_s)


def attention_time(times: KernelTimes, core: AttentionCore) -> tuple[KernelTime, KernelTime]:
    """The ideal backward has 2 times the forward FLOPs, the real one 2.5."""
    flops, peak = core.forward_flops, times.peak("attention")
    if not flops:
        return KernelTime(), KernelTime()
    forward_s, backward_s = times.attention_s("forward", core), times.attention_s("backward", core)
    is_measured = times.is_measured("attention")
    return (
        KernelTime(
            attention_ideal_s=flops / peak, attention_s=forward_s, count=1, measured_s=forward_s * is_measured
        ),
        KernelTime(
            attention_ideal_s=2 * flops / peak, attention_s=backward_s, count=1, measured_s=backward_s * is_measured
        ),
    )


def memory_kernel_time(
    times: KernelTimes, kernel: MemoryKernel, num_bytes: float, *, launches: int = 1
) -> KernelTime:
    if not num_bytes:
        return KernelTime()
    return KernelTime(memory_s=times.moved_s(kernel, num_bytes, launches=launches), count=launches)


def of_one_group(form: Form, m: float, n: float, k: float, groups: int) -> tuple[float, float, float]:
    """Groups share the tokens evenly."""
    return (m, n, k / groups) if form == "weight" else (m / groups, n, k)
