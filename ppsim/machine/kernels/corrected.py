"""Kernel times multiplied by measured factors per kind of operator."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ppsim.machine.kernels.names import Form, Kernels, MemoryKernel
from ppsim.machine.kernels.times import AttentionCore, KernelTimes


@dataclass(frozen=True)
class Corrected:
    """Kernel times of `source`, multiplied by `factors` per kind (`ppsim.machine.kernels.names`).

    Scans of recurrent mixers have no factor. The factor "optimizer" applies to the whole optimizer step, not here.
    """

    source: KernelTimes
    dtype: str
    factors: Mapping[str, float]

    def product_s(self, form: Form, m: float, n: float, k: float, *, groups: int = 1) -> float:
        kind = "experts" if groups > 1 else "gemm"
        factor = self.factors.get(f"{kind}-{self.dtype}", 1.0)
        return factor * self.source.product_s(form, m, n, k, groups=groups)

    def attention_s(self, part: Literal["forward", "backward"], core: AttentionCore) -> float:
        return self.factors.get("attention", 1.0) * self.source.attention_s(part, core)

    def moved_s(self, kernel: MemoryKernel, num_bytes: float, *, launches: int = 1) -> float:
        return self.factors.get("memory", 1.0) * self.source.moved_s(kernel, num_bytes, launches=launches)

    def peak(self, of: Literal["products", "attention"]) -> float:
        return self.source.peak(of)

    def is_measured(self, of: Kernels) -> bool:
        return self.source.is_measured(of)
