"""How a microbatch is computed, and where: what an estimate of seconds is asked for."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from ppsim.base.errors import ConfigError
from ppsim.costs.pair_overlap import ORDERS, Order
from ppsim.machine import collectives
from ppsim.machine.choices import Dispatcher
from ppsim.machine.cluster import Cluster, Constant, Device
from ppsim.machine.kernels.specified import OPERAND_BYTES, activation_bytes, at_least_16_bits
from ppsim.machine.kernels.tables import kernel_times
from ppsim.machine.kernels.times import KernelTime, KernelTimes
from ppsim.model.graphs import CudaGraphs, cuda_graphs_of
from ppsim.model.losses import CrossEntropy
from ppsim.model.recompute import Recompute, require_spelling
from ppsim.parallel.groups import Group, GroupName, group
from ppsim.parallel.layout import Layout
from ppsim.parallel.sizes import Cut

_DISPATCH_CORES = 20
"""Cores that send tokens to experts and back: what DeepEP takes by default, and Megatron-LM asks it for."""

_HIDDEN = {"tp": ("hidden_tp_forward", "hidden_tp_backward"), "ep": ("overlap_ep",)}
"""The fields that a cluster's `overlap` of a kind of communication is of."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a microbatch is computed, in the field's words.

    attention
        "fused" keeps no scores; "unfused" writes all s × s of them, softmax and all, to memory (before 2022).
    recompute
        What the backward computes again of a layer: nothing, its forward, or modules (`ppsim.model.recompute`).
    cuda_graphs
        What the host launches as graphs: nothing, all, whole layers, or modules (`ppsim.model.graphs`).
    sequence_parallel
        All-gather and reduce-scatter instead of an all-reduce, norms and residuals on 1/tp of the tokens
        (Korthikanti et al. 2022, arXiv 2205.05198).
    dropout
        Whether masks are drawn, behind attention and both halves of a layer.
    deterministic_mode
        Whether only kernels run whose sums have one order (`Specified`); the cross entropy is not fused then.
    compile
        Whether torch.compile fuses what is between the products of TorchTitan's blocks, or each operator runs by
        itself (`ppsim.costs.torch_blocks`); None: the kernels of Megatron-LM and TransformerEngine.
    context
        How cp ranks exchange keys and values: round the "ring", by "all-to-all" of heads, or by an "all-gather" of
        those of every query head, as torch does of models that repeat them before.
    moe_dispatcher
        How tokens go to their experts and back (`ppsim.machine.dispatch`).
    expert_imbalance
        The tokens that the busiest rank's experts get, of the mean, 1 or more: all others wait for it.
    expert_capacity
        Tokens that each expert is padded or cut to, of the mean; None: as many as come. The shapes are known to the
        host then, which waits for no counts, and no rank's experts get more than others'.
    fused_experts
        Whether a rank's experts are one product, with its activation, cast, biases and weighing inside, or one each
        (TransformerEngine's op fuser, cuDNN's grouped_gemm_glu and grouped_gemm_dglu).
    expert_rank_capacity
        Tokens that a rank's experts have room for, of the mean, so that shapes are known to the host and none is
        waited for (Megatron-LM's moe_expert_rank_capacity_factor); only those that come are computed. None: no more
        than come, whose number the host reads.
    paged_stash
        Room for what experts keep for the backward, of the mean, in pages that kernels fill and empty
        (Megatron-LM's moe_paged_stash and its buffer_size_factor_cuda). None: it is kept where it is, with all
        the room there is.
    hidden_tp_forward, hidden_tp_backward, overlap_ep, hidden_cp
        What part of that communication runs beside computation, 0 to 1. Megatron-LM hides an all-reduce of the
        backward behind the weight gradient. Of ep no more than the other pass of a pair takes: a forward's
        all-to-alls run beside the backward of another microbatch, and the other way round, on cores that compute
        lacks meanwhile (`Place.hidden_ep_s`). A word instead of a number is an order of
        operations: each pair of a forward and a backward takes the time of `ppsim.costs.pair_overlap`.
    compute_share
        How many times what the class of devices gets products and attention run at; None: by the cluster's
        constants.
    """

    dtype: str = "bfloat16"
    attention: Literal["fused", "unfused"] = "fused"
    recompute: Recompute = "none"
    cuda_graphs: CudaGraphs = "none"
    sequence_parallel: bool = False
    dropout: bool = False
    cross_entropy: CrossEntropy = "fused"
    deterministic_mode: bool = False
    compile: bool | None = None
    context: Literal["ring", "all-to-all", "all-gather"] = "ring"
    moe_dispatcher: Dispatcher = "deepep"
    expert_imbalance: float = 1.0
    expert_capacity: float | None = None
    fused_experts: bool = False
    expert_rank_capacity: float | None = None
    paged_stash: float | None = None
    hidden_tp_forward: float = 0.0
    hidden_tp_backward: float = 0.0
    overlap_ep: float | Order = 0.0
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
    def expert_load(self) -> float:
        """Tokens that the busiest rank's experts compute, of the mean."""
        return self.expert_imbalance if self.expert_capacity is None else self.expert_capacity

    @property
    def is_dropless(self) -> bool:
        """Whether the host does not know how many tokens a rank's experts get before it reads it."""
        return self.expert_capacity is None and self.expert_rank_capacity is None

    @property
    def expert_room(self) -> float:
        """What experts' activations for the backward have room for, of the mean."""
        return self.paged_stash or self.expert_rank_capacity or 1.0

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of activations, and of messages of them."""
        return activation_bytes(self.dtype)

    @property
    def gathered_share(self) -> float:
        """What of those bytes a gathered operand of products has: it is cast before it is sent.

        TransformerEngine gathers quantized tensors (`module/_common.py` and `distributed.py`), with userbuffers and
        without; so does TorchAO's `Float8ColwiseParallel`, but for operands with a scale a row.
        """
        if self.dtype == "float8-row":
            return 1.0
        return OPERAND_BYTES.get(self.dtype, self.element_bytes) / self.element_bytes

    def overlapping(self, times: Mapping[str, Constant]) -> "Execution":
        """Return the same with so many times as much of tp and ep communication hidden, never more than all."""
        hidden = {
            name: min(1.0, times[kind].value * getattr(self, name))
            for kind, names in _HIDDEN.items() if kind in times
            for name in names
            if not isinstance(getattr(self, name), str)
        }  # fmt: skip
        return replace(self, **hidden)

    @property
    def ep_order(self) -> Order | None:
        """The order of operations in a pair of a forward and a backward; None if nothing runs in pairs."""
        return self.overlap_ep if isinstance(self.overlap_ep, str) else None

    @property
    def hidden_ep(self) -> float:
        """The fraction of expert-parallel communication that is hidden, whatever the schedule."""
        return 0.0 if isinstance(self.overlap_ep, str) else self.overlap_ep

    def __post_init__(self) -> None:
        require_spelling(self.recompute)
        if (word := cuda_graphs_of(self.cuda_graphs)) != self.cuda_graphs:
            raise ConfigError(f"cuda_graphs '{self.cuda_graphs}' is spelled '{word}'")
        if self.deterministic_mode and self.cross_entropy != "unfused":
            raise ConfigError(
                "deterministic mode has no fused cross entropy (Megatron-LM refuses both): "
                "give --cross-entropy unfused too"
            )
        if self.compile is False and self.hidden_tp_forward + self.hidden_tp_backward > 0:
            raise ConfigError(
                f"overlap_tp {self.overlap_tp} is of products that torch.compile makes: give --compile, or "
                "--overlap-tp 0"
            )
        if not 1 <= self.expert_imbalance < float("inf"):
            raise ConfigError(f"expert_imbalance is 1 (even) or more: got {self.expert_imbalance:g}")
        if self.expert_capacity is not None and not 0 < self.expert_capacity < float("inf"):
            raise ConfigError(f"expert_capacity must be above 0: got {self.expert_capacity:g}")
        self._require_room()
        for name in ("hidden_tp_forward", "hidden_tp_backward", "overlap_ep", "hidden_cp"):
            if getattr(self, name) not in ORDERS and not 0 <= getattr(self, name) <= 1:
                raise ConfigError(
                    f"{name.replace('hidden', 'overlap')} is a part from 0 to 1: got {getattr(self, name)}"
                )
        if self.compute_share is not None and not 0 < self.compute_share < float("inf"):
            raise ConfigError(f"compute_share is a number above 0: got {self.compute_share:g}")

    def _require_room(self) -> None:
        """Raise `ConfigError` where Megatron-LM's `TransformerConfig` refuses a room for experts' tokens."""
        room, stash = self.expert_rank_capacity, self.paged_stash
        for name, value in (("moe_expert_rank_capacity_factor", room), ("moe_paged_stash", stash)):
            if value is not None and not 1 <= value < float("inf"):
                raise ConfigError(f"{name} is 1 (as many as come where loads are even) or more: got {value:g}")
        if room is not None and not (self.fused_experts and self.moe_dispatcher == "hybridep"):
            raise ConfigError(
                f"moe_expert_rank_capacity_factor {room:g} goes with --moe-dispatcher hybridep and --fused-experts"
            )
        if stash is not None and room is None:
            raise ConfigError(f"moe_paged_stash {stash:g} goes with --moe-expert-rank-capacity-factor")


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

    @cached_property
    def times(self) -> KernelTimes:
        """What the device takes for kernels in the type of the job."""
        return kernel_times(self.device, self.execution.dtype, deterministic=self.execution.deterministic_mode)

    @cached_property
    def wide_times(self) -> KernelTimes:
        """What it takes for those that are computed in 16 bits at least: attention and the head."""
        wide = at_least_16_bits(self.execution.dtype)
        return kernel_times(self.device, wide, deterministic=self.execution.deterministic_mode)

    @property
    def operand_copies(self) -> int:
        """How often a narrow operand is held, by rows and by columns.

        One scale a tensor serves both where 8-bit products take operands either way, as they do from the devices on
        that know MXFP8.
        """
        return 1 if self.execution.dtype == "float8" and "mxfp8" in self.cluster.device.peak_flops_per_s else 2

    @property
    def is_async(self) -> bool:
        """Whether tensor-parallel messages are inside compiled products, TorchTitan's asynchronous ones."""
        return bool(self.execution.compile) and self.cut.norm_divisor > 1 and self.execution.hidden_tp_forward > 0

    @property
    def gathers_in_products(self) -> bool:
        """Whether gathers are among these too: not those whose rows are scaled by what was gathered.

        A product waits for all of them (torch, fx_passes/micro_pipeline_tp.py: `fuse_all_gather_matmul` leaves
        products whose scales depend on the gather; pytorch, issue 149990).
        """
        return self.is_async and self.execution.dtype != "float8-row"

    def tokens(self, micro_batch: int, sequence_length: int) -> int:
        """Return a rank's tokens of a microbatch; raises `ConfigError` where cp does not divide the sequence."""
        if sequence_length % self.layout.cp:
            raise ConfigError(f"cp must divide the sequence: got {self.layout.cp} with {sequence_length}")
        return micro_batch * sequence_length // self.layout.cp

    def hidden_ep_s(self, ep_s: float, beside: KernelTime) -> float:
        """Return what of `ep_s` is hidden where it runs beside these kernels, on cores that they go without."""
        hidden_s = self.execution.hidden_ep * min(ep_s, beside.busy_s)
        return hidden_s * (1 - self.dispatch_slowdown)

    @property
    def dispatch_slowdown(self) -> float:
        """The fraction by which compute is slower while the dispatch holds SMs."""
        return min(_DISPATCH_CORES / self.cluster.device.num_cores, 1)

    @property
    def domain_sizes(self) -> tuple[int | None, ...]:
        """How many of the layout's devices share a domain of each tier."""
        return self.cluster.domain_sizes(self.layout.num_devices)

    def ranks(self, name: GroupName) -> Group:
        """Return how the groups of a name lie on the cluster."""
        return group(self.layout, name, self.domain_sizes)

    def seconds(self, operation: collectives.Operation, num_bytes: float, name: GroupName) -> float:
        """A collective among the ranks of a group."""
        return collectives.seconds(operation, num_bytes, self.ranks(name), self.cluster)

    def gathered_s(self, num_bytes: float) -> float:
        """The whole sequence, from the tensor-parallel ranks that have it in parts."""
        return self.seconds("all-gather", num_bytes, "tp") if self.execution.sequence_parallel else 0.0

    def reduced_s(self, num_bytes: float) -> float:
        """The sum of what tensor-parallel ranks have, each with its part of the sequence or with all of it."""
        return self.seconds("reduce-scatter" if self.execution.sequence_parallel else "all-reduce", num_bytes, "tp")

    def sum_over_tp_s(self, num_bytes: float, name: Literal["tp", "etp"] = "tp") -> float:
        """What ends a tensor-parallel region and starts the next: an all-reduce, or its two halves.

        The second half gathers an operand of products; tokens that were dispatched to experts are not cast yet.
        """
        if not self.execution.sequence_parallel:
            return self.seconds("all-reduce", num_bytes, name)
        gathered = num_bytes * (self.execution.gathered_share if name == "tp" else 1)
        return self.seconds("reduce-scatter", num_bytes, name) + self.seconds("all-gather", gathered, name)
