"""A place whose kernels take a second per FLOP or byte, and the host no time, so that seconds are counts."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from ppsim.costs.execution_context import ExecutionContext
from ppsim.machine.cluster_files import load_cluster
from ppsim.machine.kernels.names import Form, Kernels, MemoryKernel
from ppsim.machine.kernels.times import AttentionCore
from ppsim.model.execution import Execution
from ppsim.parallel.layout import Layout


class CountedKernels:
    """One second per FLOP and per byte; `masked` attention counts the causal half."""

    def product_s(self, form: Form, m: float, n: float, k: float, *, groups: int = 1) -> float:
        return 2.0 * m * n * k

    def attention_s(self, part: Literal["forward", "backward"], core: AttentionCore) -> float:
        return core.forward_flops * (1.0 if part == "forward" else 2.5)

    def moved_s(self, kernel: MemoryKernel, num_bytes: float, *, launches: int = 1) -> float:
        return num_bytes

    def peak(self, of: Literal["products", "attention"]) -> float:
        return 1.0

    def is_measured(self, of: Kernels) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class CountedPlace(ExecutionContext):
    @cached_property
    def times(self) -> CountedKernels:  # type: ignore[override]
        return CountedKernels()

    @cached_property
    def wide_times(self) -> CountedKernels:  # type: ignore[override]
        return CountedKernels()


def counted(*, vocab_multiple: int = 1, layout: dict[str, int] | None = None, **execution: Any) -> CountedPlace:
    """Return a place on an H100 node, whose links are real."""
    cluster = load_cluster("dgx-h100")
    efficiency = replace(cluster.device.efficiency, host_s=0.0, routing_host_s=0.0, operator_time={})
    cluster = replace(cluster, device=replace(cluster.device, efficiency=efficiency))
    return CountedPlace(
        cluster=cluster,
        layout=Layout(**(layout or {})),
        execution=Execution(**execution),
        vocab_multiple=vocab_multiple,
    )
