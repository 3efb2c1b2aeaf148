"""Devices, links, and clusters: nested domains of devices, each with its link."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.machine.job_similarity import MeasuredJob


@dataclass(frozen=True, kw_only=True)
class InSituRatio:
    """Ratio of kernel times inside a training run to those in a table of isolated kernels.

    The keys of `factors` are dtypes of GEMMs, and "attention"; for missing dtypes, the table is not used. `sigma`
    is the standard deviation of the logarithm of the factors, over runs and devices of the GPU type.
    """

    factors: Mapping[str, float]
    sigma: float
    source: str

    def times(self, factor: float) -> "InSituRatio":
        """A larger `factor` means slower kernels."""
        return replace(self, factors={name: factor * value for name, value in self.factors.items()})


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """Achieved shares of the data sheet: calibration constants per GPU type, in machine/data/efficiency.toml.

    matmul
        Per dtype, share of the dense peak that large GEMMs achieve.
    wave_tail
        Waves of tiles that a GEMM loses to the last, partially filled wave and to start-up.
    depth_tail
        Depth (size of the summed dimension) whose time each tile loses to filling its pipeline and writing its
        result.
    attention_forward, attention_backward
        Share of the 16-bit peak that fused attention achieves, relative to its FLOPs (causal: half; backward: 2.5
        times the forward FLOPs).
    attention_fp8_gain
        Throughput of fused attention in 8 bits, relative to 16 bits, for "float8" (one scale per tensor) and
        "mxfp8" (default: as float8). None: as fast as in 16 bits.
    unmasked_attention
        Shares for scores without a mask; None: equal.
    deterministic_attention
        Shares if deterministic mode uses another kernel; None: the same kernel, with the slowdown in
        `DataSheetTimes`.
    scan_flops_per_s
        FLOP/s per core in the scan of a recurrent mixer (chunked Triton kernels); nearly independent of the GEMM
        peak.
    memory, optimizer
        Share of the memory bandwidth that memory-bound kernels and the optimizer step achieve.
    scatter
        Share of the memory bandwidth that unfused permutations achieve, which sum rows of (token, expert) pairs
        with torch's scatter-add; each pair and token counts once. None: unknown.
    kernel_s
        Seconds from the end of a kernel to the start of the next one on a busy device.
    host_s
        Host seconds to launch one kernel; an action takes at least the launch times of its kernels.
    routing_host_s
        Host seconds to launch the forward pass of a MoE layer, and again for its backward pass, at any size: the
        many small kernels of routing and permutation, and the wait for the token counts per expert.
    expert_call_s
        Host seconds per expert and GEMM of the grouped_gemm package (`Execution.legacy_grouped_gemm`). None: it has
        one kernel for all experts.
    jitter
        Relative standard deviation of a data-parallel rank's step time; all ranks wait for the slowest.
    experts
        Time of expert GEMMs in a run, relative to one isolated grouped kernel for all experts: a run has one GEMM
        per expert, padded rows, and concurrent kernels that sort the tokens.
    spread, experts_spread
        Standard deviation of the logarithm of a projected step time, for dense and for MoE models. None: no run of
        the GPU type is known.
    in_situ
        None: kernel times come from the data sheet, not from a table of measured kernels.
    operator_time
        Measured multipliers on the time of kernels by kind (`ppsim.machine.kernels.corrected`).
    fitted
        Constants that were fitted to training runs. Others are published, measured, or assumed (see `source`).
    """

    matmul: Mapping[str, float]
    wave_tail: float
    depth_tail: float
    attention_forward: float
    attention_backward: float
    memory: float
    optimizer: float
    kernel_s: float
    host_s: float
    scan_flops_per_s: float
    source: str
    routing_host_s: float = 0.0
    expert_call_s: float | None = None
    jitter: float = 0.0
    experts: float = 1.0
    scatter: float | None = None
    spread: float | None = None
    experts_spread: float | None = None
    attention_fp8_gain: Mapping[str, Mapping[str, float]] | None = None
    unmasked_attention: Mapping[str, float] | None = None
    deterministic_attention: Mapping[str, float] | None = None
    in_situ: InSituRatio | None = None
    operator_time: Mapping[str, float] = field(default_factory=dict)
    fitted: Sequence[str] = ()


@dataclass(frozen=True)
class GemmWorkspaces:
    """Bytes of a single cuBLAS workspace of torch and of TransformerEngine; the defaults are for Hopper.

    torch: aten/src/ATen/cuda/CublasHandlePool.cpp, `:4096:2:16:8` before Hopper. TransformerEngine at d0067d0d:
    pytorch/cpp_extensions/gemm.py, `get_cublas_workspace_size_bytes`.
    """

    torch: int = 32 * 2**20
    transformer_engine: int = 32 * 2**20

    def allocated(self, *, has_engine: bool, has_experts: bool, is_deterministic: bool) -> int:
        """Return the bytes that a process allocates; they are never freed.

        torch has one workspace for the forward thread and one for the backward thread, of 32 MiB in deterministic
        mode (CUBLAS_WORKSPACE_CONFIG=:4096:8). TransformerEngine has one, and one more for each of the four streams
        of grouped expert GEMMs.
        """
        num_bytes = 2 * (32 * 2**20 if is_deterministic else self.torch)
        return num_bytes + has_engine * (1 + 4 * has_experts) * self.transformer_engine


@dataclass(frozen=True, kw_only=True)
class Device:
    """An accelerator by its data sheet: dense FLOP/s per dtype, memory in bytes, bandwidths in bytes per second.

    - `num_cores`: streaming multiprocessors or compute units.
    - `efficiency_class`: the GPU type, which selects `efficiency`.
    - `host_bytes_per_s`: line rate to the host, one direction.
    - `host_memory_bytes_per_s`: the device's share of the host's memory bandwidth, reads and writes together.
    - `kernels`: name of the device's kernel table in profiles/kernels.
    - `has_runs`: whether published runs were compared with projections for it.
    """

    name: str
    efficiency_class: str
    num_cores: int
    memory_bytes: int
    memory_bytes_per_s: float
    peak_flops_per_s: Mapping[str, float]
    efficiency: Efficiency
    source: str
    host_bytes_per_s: float | None = None
    host_memory_bytes_per_s: float | None = None
    kernels: str | None = None
    gemm_workspaces: GemmWorkspaces = GemmWorkspaces()
    generation: str = ""
    has_runs: bool = True

    def peak(self, dtype: str) -> float:
        for name in (dtype, *_SAME_PEAK.get(dtype, ())):
            if name in self.peak_flops_per_s:
                return self.peak_flops_per_s[name]
        raise ConfigError(
            f"{self.name} has no {dtype} in its tensor cores: it has {', '.join(self.peak_flops_per_s)}"
        )

    def computing_at(self, share: float) -> "Device":
        class_ = self.efficiency
        matmul, unmasked, deterministic = (
            values and {name: share * value for name, value in values.items()}
            for values in (class_.matmul, class_.unmasked_attention, class_.deterministic_attention)
        )
        efficiency = replace(
            class_,
            matmul=matmul or {},
            attention_forward=share * class_.attention_forward,
            attention_backward=share * class_.attention_backward,
            unmasked_attention=unmasked,
            deterministic_attention=deterministic,
            scan_flops_per_s=share * class_.scan_flops_per_s,
            in_situ=class_.in_situ and class_.in_situ.times(1 / share),
        )
        return replace(self, efficiency=efficiency)

    def matmul_share(self, dtype: str) -> float:
        """For a missing dtype, return the share of the next wider dtype."""
        shares = self.efficiency.matmul
        for name in (dtype, *_WIDER.get(dtype, ())):
            if name in shares:
                return shares[name]
        return min(shares.values())


_SAME_PEAK = {"float8-row": ("float8",), "float8-block": ("float8",), "nvfp4": ("float4",), "mxfp4": ("float4",)}
"""These dtypes differ in their scales only. "float4" stands for both 4-bit formats."""

_WIDER = {
    "float4": ("float8", "bfloat16"),
    "nvfp4": ("float4", "float8", "bfloat16"),
    "mxfp4": ("float4", "float8", "bfloat16"),
    "float8": ("bfloat16",),
    "float8-row": ("float8", "bfloat16"),
    "float8-block": ("float8", "bfloat16"),
    "mxfp8": ("float8", "bfloat16"),
    "float16": ("bfloat16",),
    "tf32": ("bfloat16",),
    "float32": ("bfloat16",),
}


_HYBRID_SMS = 32
"""The largest number of SMs with which HybridEP was measured on NVLink (`links.toml`, nvlink5)."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """Bandwidth of one device's link in one direction, and the shares of it that collectives achieve.

    A message of x bytes takes `launch_s` + steps · `step_s` + x / (`bytes_per_s` · `efficiency`).

    - `reduction_gain`: bandwidth factor of an all-reduce among more than four ranks in a domain with in-switch
      reduction.
    - `small_group_loss`: share of the bandwidth lost by a group of half the domain's devices, and again per further
      halving.
    - `is_mesh`: no switch, but one link for each pair of the domain's N devices: a group of n ranks gets (n − 1) /
      (N − 1) of the bandwidth, a P2P transfer one link.
    - `copy_bytes_per_s`: bandwidth at which each of R ranks copies the 1/R of all bytes that it keeps itself. None:
      free.
    - `exchange_share`: bandwidth of an all-to-all relative to rings.
    - `dispatch_share`, `token_s`: bandwidth share of DeepEP's kernels, which send tokens to experts, and seconds
      per copy of a token, with at least `dispatch_sms` SMs. With n fewer SMs, a copy takes `dispatch_sms` / n times
      as long; 0: never.
    - `hybrid_share`, `hybrid_token_s`: the same for HybridEP with at least 32 SMs; None: as DeepEP with enough SMs.
      `hybrid_sms_gain`: relative gain of HybridEP's rate if its SMs double, up to 32.
    """

    name: str
    bytes_per_s: float
    efficiency: float
    reduction_gain: float
    launch_s: float
    step_s: float
    source: str
    small_group_loss: float = 0.0
    is_mesh: bool = False
    copy_bytes_per_s: float | None = None
    exchange_share: float = 1.0
    dispatch_share: float = 1.0
    token_s: float = 0.0
    dispatch_sms: float = 0.0
    hybrid_share: float | None = None
    hybrid_token_s: float = 0.0
    hybrid_sms_gain: float = 0.0

    def among(self, num_ranks: int, num_devices: int | None) -> "Link":
        if num_devices is None or num_ranks >= num_devices:
            return self
        if self.is_mesh:
            return replace(self, efficiency=self.efficiency * (num_ranks - 1) / (num_devices - 1))
        if not self.small_group_loss:
            return self
        halvings = math.log2(num_devices / num_ranks)
        return replace(self, efficiency=self.efficiency * (1 - self.small_group_loss) ** halvings)

    @property
    def achieved_bytes_per_s(self) -> float:
        return self.bytes_per_s * self.efficiency

    def token_copy_s(self, num_bytes: float, *, hybrid: bool, num_sms: int) -> float:
        if hybrid and self.hybrid_share is not None:
            slower = math.pow(1 + self.hybrid_sms_gain, max(math.log2(_HYBRID_SMS / num_sms), 0.0))
            return slower * (self.hybrid_token_s + num_bytes / (self.achieved_bytes_per_s * self.hybrid_share))
        slower = 1.0 if hybrid else max(self.dispatch_sms / num_sms, 1.0)
        return slower * (self.token_s + num_bytes / (self.achieved_bytes_per_s * self.dispatch_share))

    def copied_s(self, num_bytes: float) -> float:
        """Return the seconds to copy the part of a message that the rank keeps."""
        return num_bytes / self.copy_bytes_per_s if self.copy_bytes_per_s else 0.0


@dataclass(frozen=True)
class Tier:
    """Domains of `num_devices` connected by a link; None: all devices (the outermost tier).

    `usable_devices`: number of devices per domain that a job in several domains gets.
    """

    name: str
    num_devices: int | None
    link: Link
    usable_devices: int | None = None

    @property
    def p2p_link(self) -> Link:
        return self.link.among(2, self.num_devices) if self.link.is_mesh else self.link

    def size_for(self, num_devices: int) -> int | None:
        """All devices if a job fits into a domain, or fills domains and is no multiple of `usable_devices`."""
        size, usable = self.num_devices, self.usable_devices
        if size is None or usable is None or num_devices <= size:
            return size
        return size if num_devices % size == 0 and num_devices % usable else usable


@dataclass(frozen=True, kw_only=True)
class Constant:
    """A fitted value, its standard deviation (None: unknown), and the runs that it comes from."""

    value: float
    sigma: float | None = None
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Constants of one installation, fitted to its own runs, in addition to data sheets and GPU type.

    compute_share
        Per dtype of the GEMMs, multiplier on GEMM and attention throughput, relative to the GPU type.
    operator_time
        Per kind of operator, multiplier on its time, from measured kernels (`ppsim.machine.kernels.corrected`) and
        messages.
    link_efficiency
        Per tier, share of the link's line rate that large messages achieve; replaces the efficiency in `Link`.
    overlap
        For tp and ep, multiplier on the hidden part of the communication that the options assume.
    launch_s
        Host seconds per launch by the schedule: one per action, two per P2P transfer (its send and its receive).
    kernel_s, host_s, routing_host_s, jitter
        Replace the GPU type's values (`Efficiency`).
    overlap_slowdown
        Relative slowdown of compute that overlaps with a P2P transfer.
    runs
        Measured steps, each with its time relative to the time by these constants (`ppsim.machine.job_similarity`).
    fitted_on
        Sets of `ppsim validate`, or files of runs, whose rows marked fit the values come from.
    stack
        `--stack` of these rows, if all have the same.
    correlation
        Correlation of two constants of one fit, keyed by both names with a blank between; 0 for missing pairs.
    """

    compute_share: Mapping[str, Constant] = field(default_factory=dict)
    operator_time: Mapping[str, Constant] = field(default_factory=dict)
    link_efficiency: Mapping[str, Constant] = field(default_factory=dict)
    overlap: Mapping[str, Constant] = field(default_factory=dict)
    kernel_s: Constant | None = None
    launch_s: Constant | None = None
    host_s: Constant | None = None
    routing_host_s: Constant | None = None
    jitter: Constant | None = None
    overlap_slowdown: Constant | None = None
    runs: tuple[MeasuredJob, ...] = ()
    fitted_on: tuple[str, ...] = ()
    stack: str = ""
    correlation: Mapping[str, float] = field(default_factory=dict)

    @property
    def named(self) -> dict[str, Constant]:
        """A dot separates a name from the dtype, tier or kind: "compute_share.float8"."""
        constants = {f"{kind}.{of}": one for kind in PER_NAME for of, one in getattr(self, kind).items()}
        return constants | {name: one for name in PLAIN if (one := getattr(self, name)) is not None}

    def having(self, constants: Mapping[str, Constant]) -> "Constants":
        fields: dict[str, Any] = {}
        for name, constant in constants.items():
            kind, _, of = name.partition(".")
            fields[kind] = {**(fields.get(kind) or getattr(self, kind)), of: constant} if of else constant
        return replace(self, **fields)

    def with_values(self, values: Mapping[str, float]) -> "Constants":
        return self.having(
            {name: replace(old, value=values[name]) for name, old in self.named.items() if name in values}
        )


PER_NAME = ("compute_share", "operator_time", "link_efficiency", "overlap")

OF_DEVICE = ("kernel_s", "host_s", "routing_host_s", "jitter")
"""Constants that replace the value of the same name in `Efficiency`."""

PLAIN = ("kernel_s", "launch_s", "host_s", "routing_host_s", "jitter", "overlap_slowdown")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Devices of one kind in nested domains, innermost tier first; `num_devices` None: unlimited.

    `base` is the cluster whose file this one extends; `constants` are fitted to runs on the cluster. The price has
    the unit that its user chose.
    """

    name: str
    title: str
    device: Device
    tiers: tuple[Tier, ...]
    source: str
    num_devices: int | None = None
    base: str | None = None
    constants: Constants = Constants()
    price_per_gpu_hour: float | None = None

    def with_constants(self, constants: Constants) -> "Cluster":
        given: dict[str, Any] = {
            name: one.value for name in OF_DEVICE if (one := getattr(constants, name)) is not None
        }
        given["operator_time"] = {name: one.value for name, one in constants.operator_time.items()}
        device = replace(self.device, efficiency=replace(self.device.efficiency, **given))
        gets = constants.link_efficiency
        tiers = tuple(
            replace(tier, link=replace(tier.link, efficiency=gets[tier.name].value)) if tier.name in gets else tier
            for tier in self.tiers
        )
        return replace(self, constants=constants, device=device, tiers=tiers)

    def device_for(self, dtype: str, compute_share: float | None = None) -> Device:
        """Without `compute_share`, the cluster's constants apply."""
        device = self.device
        if compute_share is None:
            measured = self.constants.compute_share.get(dtype)
            compute_share = measured.value if measured else 1.0
        return device if compute_share == 1 else device.computing_at(compute_share)

    def domain_sizes(self, num_devices: int) -> tuple[int | None, ...]:
        return tuple(tier.size_for(num_devices) for tier in self.tiers)
