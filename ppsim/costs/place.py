"""How a microbatch is computed, and where: what an estimate of seconds is asked for."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ppsim.base.errors import ConfigError
from ppsim.layout.cut import Cut
from ppsim.layout.groups import GroupName, group
from ppsim.layout.layout import Layout
from ppsim.machine import collectives
from ppsim.machine.cluster import Cluster, Device
from ppsim.machine.kernels.specified import Specified, activation_bytes, at_least_16_bits
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
    compute_share
        How many times what the class of devices gets products and attention run at; None: by the cluster's
        constants.
    """

    dtype: str = "bfloat16"
    attention: Literal["fused", "unfused"] = "fused"
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    dropout: bool = False
    fused_cross_entropy: bool = True
    context: Literal["ring", "all-to-all"] = "ring"
    hidden_tp_forward: float = 0.0
    hidden_tp_backward: float = 0.0
    hidden_ep: float = 0.0
    hidden_cp: float = 0.0
    compute_share: float | None = None

    @property
    def overlap_tp(self) -> str:
        """What is hidden of tensor-parallel communication, as `--overlap-tp` has it: FORWARD,BACKWARD or both."""
        return ",".join(
            repr(float(part)).removesuffix(".0")
            for part in dict.fromkeys((self.hidden_tp_forward, self.hidden_tp_backward))
        )

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of activations, and of messages of them."""
        return activation_bytes(self.dtype)

    def __post_init__(self) -> None:
        require_spelling(self.recompute)
        for name in ("hidden_tp_forward", "hidden_tp_backward", "hidden_ep", "hidden_cp"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(
                    f"{name.replace('hidden', 'overlap')} is a part from 0 to 1: got {getattr(self, name)}"
                )
        if self.compute_share is not None and not 0 < self.compute_share < float("inf"):
            raise ConfigError(f"compute_share is a number above 0: got {self.compute_share:g}")


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

    @cached_property
    def device(self) -> Device:
        """The device as this execution gets it."""
        return self.cluster.device_for(self.execution.dtype, self.execution.compute_share)

    @property
    def times(self) -> KernelTimes:
        """What the device takes for kernels in the type of the job."""
        return Specified(self.device, self.execution.dtype)

    @property
    def wide_times(self) -> KernelTimes:
        """What it takes for those that are computed in 16 bits at least: attention and the head."""
        return Specified(self.device, at_least_16_bits(self.execution.dtype))

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
