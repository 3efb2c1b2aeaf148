"""Cluster and layout on which a microbatch runs, with its execution options."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ppsim.base.errors import ConfigError
from ppsim.base.number_formats import at_least_16_bits
from ppsim.machine import collectives
from ppsim.machine.cluster import Cluster, Device
from ppsim.machine.kernels.corrected import Corrected
from ppsim.machine.kernels.published_tables import kernel_times
from ppsim.machine.kernels.times import KernelTime, KernelTimes
from ppsim.model.execution import Execution
from ppsim.parallel.groups import GroupName, RankGroup, group
from ppsim.parallel.layout import Layout
from ppsim.parallel.sizes import ParallelSizes

_COLLECTIVE_CORES = 16
"""SMs of data-parallel collectives (Megatron-Bridge 0.3.1, performance-guide.md, `NVTE_FWD_LAYERNORM_SM_MARGIN`).

Megatron-FSDP's README (Megatron-LM 0.16) has 16 to 32 for NCCL without buffer registration, and 1 to 6 with it.
"""


@dataclass(frozen=True, kw_only=True)
class ExecutionContext:
    """Cluster, layout of ranks, execution options, and padding of the vocabulary."""

    cluster: Cluster
    layout: Layout
    execution: Execution
    vocab_multiple: int = 1

    @property
    def cut(self) -> ParallelSizes:
        return self.layout.cut(sequence_parallel=self.execution.sequence_parallel)

    @cached_property
    def device(self) -> Device:
        return self.cluster.device_for(self.execution.dtype, self.execution.compute_share)

    @cached_property
    def times(self) -> KernelTimes:
        return self._times(self.execution.dtype)

    @cached_property
    def wide_times(self) -> KernelTimes:
        """Attention and the head are computed in at least 16 bits."""
        return self._times(at_least_16_bits(self.execution.dtype))

    def _times(self, dtype: str) -> KernelTimes:
        times = kernel_times(self.device, dtype, deterministic=self.execution.deterministic_mode)
        factors = self.device.efficiency.operator_time
        return Corrected(times, dtype, factors) if factors else times

    @property
    def operand_copies(self) -> int:
        """Copies of a narrow operand: one by rows, one by columns.

        A single copy suffices if 8-bit GEMMs accept both layouts, as on devices with MXFP8.
        """
        return 1 if self.execution.dtype == "float8" and "mxfp8" in self.cluster.device.peak_flops_per_s else 2

    @property
    def is_async(self) -> bool:
        """True if tensor-parallel messages are pipelined with compiled GEMMs (TorchTitan's async TP)."""
        return bool(self.execution.compile) and self.cut.norm_divisor > 1 and self.execution.hidden_tp_forward > 0

    @property
    def gathers_in_products(self) -> bool:
        """True if all-gathers, too, are pipelined with GEMMs.

        A GEMM with row-wise scales waits for the whole gather, because its scales depend on the gather (torch,
        fx_passes/micro_pipeline_tp.py, `fuse_all_gather_matmul`; pytorch, issue 149990).
        """
        return self.is_async and self.execution.dtype != "float8-row"

    def tokens(self, micro_batch: int, sequence_length: int) -> int:
        """Raises `ConfigError` if cp does not divide the sequence."""
        if sequence_length % self.layout.cp:
            raise ConfigError(f"cp must divide the sequence: got {self.layout.cp} with {sequence_length}")
        return micro_batch * sequence_length // self.layout.cp

    def hidden_ep_s(self, ep_s: float, concurrent: KernelTime) -> float:
        """Return the hidden part of `ep_s`, less the slowdown of concurrent kernels by the SMs of the exchange."""
        hidden_s = self.execution.hidden_ep * min(ep_s, concurrent.busy_s)
        return hidden_s * (1 - self.dispatch_slowdown)

    @property
    def permutes_in_exchange(self) -> bool:
        """HybridEP permutes tokens in the calls that exchange them (Megatron-LM, `HybridEPDispatch`)."""
        return self.execution.moe_dispatcher == "hybridep" and self.cut.ep > 1

    @property
    def dispatch_slowdown(self) -> float:
        """Fraction by which compute is slower during an exchange of tokens: the SMs that the exchange holds."""
        return min(self.execution.num_dispatcher_sms / self.cluster.device.num_cores, 1)

    @property
    def collective_slowdown(self) -> float:
        """Fraction by which compute is slower during a data-parallel collective."""
        return min(_COLLECTIVE_CORES / self.cluster.device.num_cores, 1)

    def held_cores(self, name: GroupName) -> float:
        """Fraction of the SMs that NCCL holds during a collective of a group.

        Two channels per network adapter, one adapter per rank of the group in a node ("Channel 00/16" on nodes of
        eight H100, NVIDIA/nccl, issue 1453); 16 within a node.
        """
        group = self.ranks(name)
        channels = 2 * group.extents[0] if group.tier else _COLLECTIVE_CORES
        return min(channels, _COLLECTIVE_CORES) / max(self.cluster.device.num_cores, _COLLECTIVE_CORES)

    @property
    def domain_sizes(self) -> tuple[int | None, ...]:
        return self.cluster.domain_sizes(self.layout.num_devices)

    def ranks(self, name: GroupName) -> RankGroup:
        return group(self.layout, name, self.domain_sizes)

    def seconds(self, operation: collectives.Operation, num_bytes: float, name: GroupName) -> float:
        return collectives.seconds(operation, num_bytes, self.ranks(name), self.cluster)

    def gathered_s(self, num_bytes: float) -> float:
        return self.seconds("all-gather", num_bytes, "tp") if self.execution.sequence_parallel else 0.0

    def reduced_s(self, num_bytes: float) -> float:
        return self.seconds("reduce-scatter" if self.execution.sequence_parallel else "all-reduce", num_bytes, "tp")

    def sum_over_tp_s(self, num_bytes: float, name: Literal["tp", "etp"] = "tp") -> float:
        """Return the seconds of the communication between two tensor-parallel regions.

        The all-gather sends GEMM operands, which are already cast; tokens dispatched to experts are not cast yet.
        """
        if not self.execution.sequence_parallel:
            return self.seconds("all-reduce", num_bytes, name)
        gathered = num_bytes * (self.execution.gathered_share if name == "tp" else 1)
        return self.seconds("reduce-scatter", num_bytes, name) + self.seconds("all-gather", gathered, name)
