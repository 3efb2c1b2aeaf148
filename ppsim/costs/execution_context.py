"""Execution options of a microbatch, and the cluster and layout on which it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from ppsim.base.errors import ConfigError
from ppsim.costs.pair_overlap import ORDERS, Order
from ppsim.machine import collectives
from ppsim.machine.cluster import Cluster, Constant, Device
from ppsim.machine.defaults import DISPATCHER_SMS, FLEX, Dispatcher
from ppsim.machine.kernels.corrected import Corrected
from ppsim.machine.kernels.data_sheet_times import OPERAND_BYTES, activation_bytes, at_least_16_bits
from ppsim.machine.kernels.published_tables import kernel_times
from ppsim.machine.kernels.times import KernelTime, KernelTimes
from ppsim.model.batch import CrossEntropy
from ppsim.model.cuda_graphs import CudaGraphs, cuda_graphs_of
from ppsim.model.recompute import Recompute, require_spelling
from ppsim.parallel.groups import GroupName, RankGroup, group
from ppsim.parallel.layout import Layout
from ppsim.parallel.sizes import ParallelSizes

_COLLECTIVE_CORES = 16
"""SMs of data-parallel collectives (Megatron-Bridge 0.3.1, performance-guide.md, `NVTE_FWD_LAYERNORM_SM_MARGIN`).

Megatron-FSDP's README (Megatron-LM 0.16) has 16 to 32 for NCCL without buffer registration, and 1 to 6 with it.
"""

_HIDDEN = {"tp": ("hidden_tp_forward", "hidden_tp_backward"), "ep": ("overlap_ep",)}
"""The fields scaled by a cluster's `overlap` constant, per kind of communication."""


def hidden_tp_of(given: str | float) -> dict[str, float]:
    """Return the fields of `Execution` for --overlap-tp: one part for both passes, or FORWARD,BACKWARD.

    >>> hidden_tp_of("0.75,0.5"), hidden_tp_of(0.5)["hidden_tp_backward"]
    ({'hidden_tp_forward': 0.75, 'hidden_tp_backward': 0.5}, 0.5)
    """
    try:
        parts = [float(part) for part in str(given).split(",")]
    except ValueError:
        parts = []
    if len(parts) not in (1, 2) or not all(0 <= part <= 1 for part in parts):
        raise ConfigError(f"--overlap-tp is '{given}': give a part from 0 to 1, or FORWARD,BACKWARD as 0.75,0.5")
    return {"hidden_tp_forward": parts[0], "hidden_tp_backward": parts[-1]}


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Execution options of a microbatch.

    attention
        "fused-fp8" has both of its GEMMs in 8 bits (TransformerEngine's fp8_dot_product_attention); "unfused"
        writes all s × s scores to memory.
    sequence_parallel
        Korthikanti et al. 2022, arXiv 2205.05198.
    deterministic_mode
        Only kernels with a fixed summation order; the cross entropy is then not fused.
    compile
        True: torch.compile fuses the operators between the GEMMs of TorchTitan's blocks; False: each operator runs
        by itself; None: the kernels of Megatron-LM and TransformerEngine.
    context
        Exchange of keys and values among cp ranks; "all-gather" as in torch, which repeats keys and values for all
        query heads first.
    dispatcher_sms
        SMs that exchange tokens (Megatron-LM's moe_flex_dispatcher_num_sms). None: the dispatcher's default.
    expert_imbalance
        Tokens of the rank whose experts get the most, relative to the mean; all other ranks wait for this rank.
    expert_capacity
        Tokens to which each expert is padded or cut, relative to the mean; None: no limit.
    fused_experts
        Grouped GEMMs for a rank's experts, with activation, cast, biases and weighting fused (TransformerEngine's
        op fuser, cuDNN's grouped_gemm_glu and grouped_gemm_dglu), and dense MLPs whose activation casts its result
        (the same flag of Megatron-LM, `use_transformer_engine_op_fuser`).
    activation_func_fp8_input_store
        Gated activations save their inputs in 8 bits.
    legacy_grouped_gemm
        Experts' GEMMs by the grouped_gemm package, which on AMD GPUs calls hipBLAS per expert (Megatron-LM's
        moe_use_legacy_grouped_gemm).
    moe_permute_fusion
        TransformerEngine's fused kernels sort tokens by expert and sum their outputs. False: torch's gather and
        scatter-add (Megatron-LM, `moe/moe_utils.py`, permute and unpermute).
    expert_rank_capacity
        Buffer for the tokens of a rank's experts, relative to the mean (Megatron-LM's
        moe_expert_rank_capacity_factor). None: exact size, which the host reads.
    paged_stash
        Buffer for experts' saved activations, relative to the mean, in pages (Megatron-LM's moe_paged_stash and its
        buffer_size_factor_cuda). A stream of its own copies next to the following kernels (`moe/paged_stash.py`),
        so the copies take no time here.
    hidden_tp_forward, hidden_tp_backward, overlap_ep, hidden_cp
        Fraction of the communication overlapped with compute, 0 to 1, or for `overlap_ep` the name of an order of
        operations (`ppsim.costs.pair_overlap`). Megatron-LM overlaps an all-reduce of the backward with the weight
        gradient.
    compute_share
        Multiplier on GEMM and attention throughput, relative to the GPU type; None: the cluster's constants.
    """

    dtype: str = "bfloat16"
    attention: Literal["fused", "fused-fp8", "unfused"] = "fused"
    recompute: Recompute = "none"
    cuda_graphs: CudaGraphs = "none"
    sequence_parallel: bool = False
    dropout: bool = False
    cross_entropy: CrossEntropy = "fused"
    deterministic_mode: bool = False
    compile: bool | None = None
    context: Literal["ring", "all-to-all", "all-gather"] = "ring"
    moe_dispatcher: Dispatcher = "deepep"
    dispatcher_sms: int | None = None
    expert_imbalance: float = 1.0
    expert_capacity: float | None = None
    fused_experts: bool = False
    activation_func_fp8_input_store: bool = False
    legacy_grouped_gemm: bool = False
    moe_permute_fusion: bool = True
    expert_rank_capacity: float | None = None
    paged_stash: float | None = None
    hidden_tp_forward: float = 0.0
    hidden_tp_backward: float = 0.0
    overlap_ep: float | Order = 0.0
    hidden_cp: float = 0.0
    compute_share: float | None = None

    @property
    def attention_dtype(self) -> Literal["float8", "mxfp8"] | None:
        """Format of attention's GEMMs in 8 bits.

        With GEMMs in MXFP8, attention is in MXFP8; otherwise it has one scale per tensor, with delayed scaling
        (TransformerEngine, `NVTE_DPA_FP8_RECIPE`).
        """
        if self.attention != "fused-fp8":
            return None
        return "mxfp8" if self.dtype == "mxfp8" else "float8"

    @property
    def overlap_tp(self) -> str:
        """Value of `--overlap-tp`: FORWARD,BACKWARD or one number for both."""
        return ",".join(
            repr(float(part)).removesuffix(".0")
            for part in dict.fromkeys((self.hidden_tp_forward, self.hidden_tp_backward))
        )

    @property
    def tp_overlap_text(self) -> str:
        parts = dict.fromkeys((self.hidden_tp_forward, self.hidden_tp_backward))
        if not any(parts):
            return "TP communication exposed"
        texts = [f"{100 * part:g} %" for part in parts]
        return (
            f"TP communication {texts[0]} hidden"
            if len(texts) == 1
            else (f"TP communication {texts[0]} (forward) and {texts[1]} (backward) hidden")
        )

    @property
    def num_dispatcher_sms(self) -> int:
        return self.dispatcher_sms or DISPATCHER_SMS[self.moe_dispatcher]

    @property
    def expert_load(self) -> float:
        """Tokens of the most loaded rank's experts, relative to the mean."""
        return self.expert_imbalance if self.expert_capacity is None else self.expert_capacity

    @property
    def is_dropless(self) -> bool:
        """True if the host must read the number of tokens of a rank's experts."""
        return self.expert_capacity is None and self.expert_rank_capacity is None

    @property
    def fp8_activation_inputs(self) -> tuple[str, ...]:
        """MLPs as in `KernelChoice`. The op fuser's grouped kernels ignore the option (`moe/experts.py`)."""
        if not self.activation_func_fp8_input_store:
            return ()
        return ("fed", "shared") if self.fused_experts else ("fed", "shared", "routed")

    @property
    def expert_buffer_factor(self) -> float:
        """Size of the buffer for experts' saved activations, relative to the mean."""
        return self.paged_stash or self.expert_rank_capacity or 1.0

    @property
    def element_bytes(self) -> int:
        """Bytes per element of activations and their messages."""
        return activation_bytes(self.dtype)

    @property
    def gathered_share(self) -> float:
        """Message size of a gathered GEMM operand relative to activations: below 1 if it is cast before it is sent.

        TransformerEngine gathers quantized tensors (`module/_common.py` and `distributed.py`), and so does
        TorchAO's `Float8ColwiseParallel`, except for operands with a scale per row.
        """
        if self.dtype == "float8-row":
            return 1.0
        return OPERAND_BYTES.get(self.dtype, self.element_bytes) / self.element_bytes

    def overlapping(self, times: Mapping[str, Constant]) -> "Execution":
        """Return a copy with hidden fractions of tp and ep communication multiplied by `times`, at most 1."""
        hidden = {
            name: min(1.0, times[kind].value * getattr(self, name))
            for kind, names in _HIDDEN.items() if kind in times
            for name in names
            if not isinstance(getattr(self, name), str)
        }  # fmt: skip
        return replace(self, **hidden)

    @property
    def ep_order(self) -> Order | None:
        return self.overlap_ep if isinstance(self.overlap_ep, str) else None

    @property
    def hidden_ep(self) -> float:
        """The fraction is 0 if communication is hidden by pairs (`ep_order`)."""
        return 0.0 if isinstance(self.overlap_ep, str) else self.overlap_ep

    def __post_init__(self) -> None:
        require_spelling(self.recompute)
        if (word := cuda_graphs_of(self.cuda_graphs)) != self.cuda_graphs:
            raise ConfigError(f"--cuda-graphs '{self.cuda_graphs}' is spelled '{word}'")
        if self.attention == "fused-fp8" and self.dtype not in OPERAND_BYTES:
            raise ConfigError(
                f"--attention fused-fp8 is for GEMMs in 8 or 4 bits: got --dtype {self.dtype} (give --dtype mxfp8, "
                "or --attention fused)"
            )
        if self.deterministic_mode and self.cross_entropy != "unfused":
            raise ConfigError(
                "deterministic mode has no fused cross entropy (Megatron-LM refuses both): "
                "give --cross-entropy unfused too"
            )
        if self.compile is False and self.hidden_tp_forward + self.hidden_tp_backward > 0:
            raise ConfigError(
                f"--overlap-tp {self.overlap_tp} is of products that torch.compile makes: give --compile, or "
                "--overlap-tp 0"
            )
        if not 1 <= self.expert_imbalance < float("inf"):
            raise ConfigError(f"--expert-imbalance is 1 (even) or more: got {self.expert_imbalance:g}")
        if self.expert_capacity is not None and not 0 < self.expert_capacity < float("inf"):
            raise ConfigError(f"--moe-expert-capacity-factor must be above 0: got {self.expert_capacity:g}")
        self._require_room()
        self._require_sms()
        for kind, names in (*_HIDDEN.items(), ("cp", ("hidden_cp",))):
            for hidden in (getattr(self, name) for name in names):
                if hidden not in ORDERS and not 0 <= hidden <= 1:
                    raise ConfigError(f"--overlap-{kind} is a part from 0 to 1: got {hidden}")
        if self.compute_share is not None and not 0 < self.compute_share < float("inf"):
            raise ConfigError(f"--compute-scale is a number above 0: got {self.compute_share:g}")

    def _require_room(self) -> None:
        """Raise `ConfigError` for expert buffers that Megatron-LM's `TransformerConfig` refuses."""
        room, stash = self.expert_rank_capacity, self.paged_stash
        for name, value in (("--moe-expert-rank-capacity-factor", room), ("--moe-paged-stash", stash)):
            if value is not None and not 1 <= value < float("inf"):
                raise ConfigError(f"{name} is 1 (as many as come where loads are even) or more: got {value:g}")
        if room is not None and not (self.fused_experts and self.moe_dispatcher == "hybridep"):
            raise ConfigError(
                f"--moe-expert-rank-capacity-factor {room:g} goes with --moe-dispatcher hybridep and "
                "--fused-experts"
            )
        if stash is not None and room is None:
            raise ConfigError(f"--moe-paged-stash {stash:g} goes with --moe-expert-rank-capacity-factor")

    def _require_sms(self) -> None:
        sms = self.dispatcher_sms
        if sms is None:
            return
        if sms < 1:
            raise ConfigError(f"--moe-flex-dispatcher-num-sms is 1 or more: got {sms}")
        if self.moe_dispatcher not in FLEX:
            raise ConfigError(
                f"--moe-flex-dispatcher-num-sms {sms} goes with --moe-dispatcher deepep or hybridep: got "
                f"{self.moe_dispatcher}"
            )


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
        found = kernel_times(self.device, dtype, deterministic=self.execution.deterministic_mode)
        factors = self.device.efficiency.operator_time
        return Corrected(found, dtype, factors) if factors else found

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
