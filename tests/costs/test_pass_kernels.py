"""Kernels of F, I and W: sums, and three GEMMs per matrix."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ppsim.costs.pass_kernels import NOTHING, PassKernels, products, total
from ppsim.machine.kernels.names import Form, Kernels, MemoryKernel
from ppsim.machine.kernels.times import AttentionCore, KernelTime
from ppsim.model.weight_matrices import WeightMatrix

FORWARD, INPUT, WEIGHT = (
    KernelTime(matmul_s=seconds, count=count) for seconds, count in ((2.0, 1), (3.0, 5), (7.0, 11))
)
KERNELS = PassKernels(FORWARD, INPUT, WEIGHT)


@dataclass
class Recorded:
    """A device that takes a second for a GEMM, and remembers its sizes."""

    seen: list[tuple[Any, ...]] = field(default_factory=list)

    def product_s(self, form: Form, m: float, n: float, k: float, *, groups: int = 1) -> float:
        self.seen.append((form, m, n, k, groups))
        return 1.0

    def attention_s(self, part: Literal["forward", "backward"], core: AttentionCore) -> float:
        raise NotImplementedError

    def moved_s(self, kernel: MemoryKernel, num_bytes: float, *, launches: int = 1) -> float:
        raise NotImplementedError

    def peak(self, of: Literal["products", "attention"]) -> float:
        return 1.0

    def is_measured(self, of: Kernels) -> bool:
        return False


def test_sums_and_slower_kernels_apply_to_each_pass() -> None:
    assert (KERNELS + KERNELS).passes == (FORWARD.times(2), INPUT.times(2), WEIGHT.times(2))
    assert KERNELS.slowed(3.0).passes == (FORWARD.slowed(3.0), INPUT.slowed(3.0), WEIGHT.slowed(3.0))
    assert KERNELS + NOTHING is NOTHING + KERNELS is KERNELS
    assert NOTHING + NOTHING is NOTHING
    assert total([KERNELS, NOTHING, KERNELS]) == KERNELS + KERNELS
    assert total([NOTHING]) == total([]) == PassKernels()


def test_a_matrix_has_a_gemm_in_each_pass() -> None:
    times = Recorded()
    kernels = products([WeightMatrix("w", "input", 6, (10, 4), rows=3)], times, tokens=5)
    assert times.seen == [("forward", 15, 14, 6, 1), ("input", 15, 6, 14, 1), ("weight", 14, 6, 15, 1)]
    assert [one.count for one in kernels.passes] == [1, 1, 1]


def test_parallel_matrices_are_one_grouped_gemm_of_all_their_tokens() -> None:
    """3 copies of 2 parallel matrices with 3 inputs and 7 outputs each."""
    times = Recorded()
    products([WeightMatrix("w", "input", 6, (10, 4), groups=2, count=3)], times, tokens=5)
    assert times.seen == [("forward", 10, 7, 3, 6), ("input", 10, 3, 7, 6), ("weight", 7, 3, 10, 6)]


def test_routed_experts_have_pairs_and_vectors_no_gemm() -> None:
    times = Recorded()
    expert = WeightMatrix("up", "input", 6, (10,), kind="routed", count=4)
    assert products([WeightMatrix("norm", "input", 1, (9,), kind="vector")], times, tokens=5) is NOTHING
    products([expert], times, tokens=5, pairs=8)
    assert times.seen[0] == ("forward", 8, 10, 6, 4)
    times.seen.clear()
    assert products([expert], times, tokens=5) == PassKernels()
