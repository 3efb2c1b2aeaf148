"""How a microbatch is computed, and where: what an estimate of seconds is asked for."""

from dataclasses import dataclass
from typing import Literal

from ppsim.base.errors import ConfigError
from ppsim.layout.cut import Cut
from ppsim.layout.groups import GroupName, group
from ppsim.layout.layout import Layout
from ppsim.machine import collectives
from ppsim.machine.cluster import Cluster
from ppsim.machine.kernels.specified import activation_bytes, at_least_16_bits
from ppsim.machine.kernels.tables import kernel_times
from ppsim.machine.kernels.times import KernelTimes
from ppsim.model.recompute import Recompute, require_spelling


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a microbatch is computed, in the field's words.

    attention
        "fused" keeps no scores; "unfused" writes all s × s of them, softmax and all, to memory (before 2022).
    recompute
        What the backward computes again of a layer: nothing, its forward, or modules (`ppsim.model.recompute`).
    sequence_parallel
        All-gather and reduce-scatter instead of an all-reduce, norms and residuals on 1/tp of the tokens
        (Korthikanti et al. 2022, arXiv 2205.05198).
    dropout
        Whether masks are drawn, behind attention and both halves of a layer.
    context
        How cp ranks exchange keys and values: round the "ring", or by "all-to-all" of heads.
    hidden_tp_forward, hidden_tp_backward, hidden_ep, hidden_cp
        What part of that communication runs beside computation, 0 to 1. Megatron-LM hides an all-reduce of the
        backward behind the weight gradient.
    """

    dtype: str = "bfloat16"
    attention: Literal["fused", "unfused"] = "fused"
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    dropout: bool = False
    fused_cross_entropy: bool = False
    context: Literal["ring", "all-to-all"] = "ring"
    hidden_tp_forward: float = 0.0
    hidden_tp_backward: float = 0.0
    hidden_ep: float = 0.0
    hidden_cp: float = 0.0

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of activations, and of messages of them."""
        return activation_bytes(self.dtype)

    def __post_init__(self) -> None:
        require_spelling(self.recompute)
        for name in ("hidden_tp_forward", "hidden_tp_backward", "hidden_ep", "hidden_cp"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is a part from 0 to 1: got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where and how: the cluster, the layout of ranks on it, the execution, and the padding of the vocabulary."""

    cluster: Cluster
    layout: Layout
    execution: Execution
    vocab_multiple: int = 1

    @property
    def cut(self) -> Cut:
        """How the ranks of one stage share its work."""
        return self.layout.cut(sequence_parallel=self.execution.sequence_parallel)

    @property
    def times(self) -> KernelTimes:
        """What the device takes for kernels in the type of the job."""
        return kernel_times(self.cluster.device, self.execution.dtype)

    @property
    def wide_times(self) -> KernelTimes:
        """What it takes for those that are computed in 16 bits at least: attention and the head."""
        return kernel_times(self.cluster.device, at_least_16_bits(self.execution.dtype))

    def tokens(self, micro_batch: int, sequence_length: int) -> int:
        """Return a rank's tokens of a microbatch; raises `ConfigError` where cp does not divide the sequence."""
        if sequence_length % self.layout.cp:
            raise ConfigError(f"cp must divide the sequence: got {self.layout.cp} with {sequence_length}")
        return micro_batch * sequence_length // self.layout.cp

    @property
    def domain_sizes(self) -> tuple[int | None, ...]:
        """How many of the layout's devices share a domain of each tier."""
        return self.cluster.domain_sizes(self.layout.num_devices)

    def seconds(self, operation: collectives.Operation, num_bytes: float, name: GroupName) -> float:
        """A collective among the ranks of a group."""
        ranks = group(self.layout, name, self.domain_sizes)
        return collectives.seconds(operation, num_bytes, ranks, self.cluster)

    def sum_over_tp_s(self, num_bytes: float, name: Literal["tp", "etp"] = "tp") -> float:
        """What ends a tensor-parallel region and starts the next: an all-reduce, or its two halves."""
        if not self.execution.sequence_parallel:
            return self.seconds("all-reduce", num_bytes, name)
        return self.seconds("reduce-scatter", num_bytes, name) + self.seconds("all-gather", num_bytes, name)
