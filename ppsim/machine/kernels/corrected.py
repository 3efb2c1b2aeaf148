"""Kernel times multiplied by measured factors per kind of operator."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ppsim.machine.kernels.names import Form, Kernels, MemoryKernel
from ppsim.machine.kernels.times import AttentionCore, KernelTimes


@dataclass(frozen=True)
class Corrected:
    """Kernel times of `source` in one dtype, multiplied by `factors` per kind (`ppsim.machine.kernels.names`).

    Grouped GEMMs use the factor "experts". Scans of recurrent mixers have no factor. The factor "optimizer" is not
    applied here but to the whole optimizer step.
    """

    source: KernelTimes
    dtype: str
    factors: Mapping[str, float]

    def product_s(self, form: Form, m: float, n: float, k: float, *, groups: int = 1) -> float:
        """Return the seconds of a GEMM or grouped GEMM."""
        kind = "experts" if groups > 1 else "gemm"
        factor = self.factors.get(f"{kind}-{self.dtype}", 1.0)
        return factor * self.source.product_s(form, m, n, k, groups=groups)

    def attention_s(self, part: Literal["forward", "backward"], core: AttentionCore) -> float:
        """Return the seconds of fused attention."""
        return self.factors.get("attention", 1.0) * self.source.attention_s(part, core)

    def moved_s(self, kernel: MemoryKernel, num_bytes: float, *, launches: int = 1) -> float:
        """Return the seconds of memory-bound kernels."""
        return self.factors.get("memory", 1.0) * self.source.moved_s(kernel, num_bytes, launches=launches)

    def peak(self, of: Literal["products", "attention"]) -> float:
        """Return the data sheet's FLOP/s."""
        return self.source.peak(of)

    def is_measured(self, of: Kernels) -> bool:
        """Return whether the times come from measured kernels."""
        return self.source.is_measured(of)
