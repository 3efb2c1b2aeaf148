"""Devices, the links between them, and clusters: domains of devices, one inside the other, each with its link.

All of it is data: `ppsim.machine.files` reads it from the packaged files or a user's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.machine.choices import MEMORY_SHARE
from ppsim.machine.likeness import Run


@dataclass(frozen=True, kw_only=True)
class InSitu:
    """What kernels inside a training run take, times the seconds that a table has of them alone.

    factors
        By type of the products; "attention" for fused attention. A type that is not there has no use of the table.
    sigma
        How sure that is: the standard deviation of its logarithm over runs and devices of the class.
    """

    factors: Mapping[str, float]
    sigma: float
    source: str

    def times(self, factor: float) -> "InSitu":
        """Return the same with all kernels so many times as slow."""
        return replace(self, factors={name: factor * value for name, value in self.factors.items()})


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """What a class of devices gets of its data sheet: one set of constants a class, in hardware/efficiency.toml.

    matmul
        Per dtype, what large matrix products get of the dense peak.
    wave_tail
        Waves of tiles that a product loses to the last, unfilled wave and to start-up.
    depth_tail
        Depth (the summed dimension) whose time each tile loses to filling its pipeline and writing its result.
    attention_forward, attention_backward
        What fused attention gets of the 16-bit peak, for the FLOPs it does (causal: half; backward: 2.5 forwards).
    unmasked_attention
        The same of "forward" and "backward" for scores of which no mask takes any; None: as much.
    deterministic_attention
        The same of "forward" and "backward" where another kernel runs in deterministic mode; None: the same kernel,
        as `Specified` has it.
    scan_flops_per_s
        FLOP/s that a core does of the scan of a recurrent mixer, in Triton's kernels for chunks: about as many
        whatever its peak for products is.
    memory
        What memory-bound kernels get of its bandwidth.
    optimizer
        What an optimizer step gets of it.
    kernel_s
        Seconds from a kernel's end to the next one's start on a busy device.
    host_s
        Seconds that the host needs to launch one kernel: a pass is never faster than its kernels' launches.
    routing_host_s
        Seconds that the host needs to launch a forward of a layer of experts, and again for its backward, whatever
        the size of both: the many small kernels of routing and permutation, and its wait for how many tokens each
        expert has, before which it launches nothing ahead. The device waits where it is done sooner.
    jitter
        Relative standard deviation of a replica's step: of n replicas all wait for the slowest.
    experts
        How many times as long products of experts take in a run as in one kernel for all of them alone: there is
        one an expert, their rows are padded, and what orders the tokens runs beside.
    spread, experts_spread
        How far a projected step of a dense model, and of one with experts, is off: the standard deviation of its
        logarithm. None: no run of the class has said (`ppsim.projection.answering`).
    source
        Where each of the numbers comes from.
    in_situ
        What makes a table of measured kernels one of a run's; None: kernels are by the data sheet.
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
    jitter: float = 0.0
    experts: float = 1.0
    spread: float | None = None
    experts_spread: float | None = None
    unmasked_attention: Mapping[str, float] | None = None
    deterministic_attention: Mapping[str, float] | None = None
    in_situ: InSitu | None = None


@dataclass(frozen=True)
class GemmWorkspaces:
    """Bytes of one workspace for cuBLAS that torch and TransformerEngine allocate; the defaults are Hopper's.

    torch: aten/src/ATen/cuda/CublasHandlePool.cpp, `:4096:2:16:8` before Hopper. TransformerEngine at d0067d0d:
    pytorch/cpp_extensions/gemm.py, `get_cublas_workspace_size_bytes`.
    """

    torch: int = 32 * 2**20
    transformer_engine: int = 32 * 2**20

    def allocated(self, *, has_engine: bool, has_experts: bool, is_deterministic: bool) -> int:
        """Return the bytes that a process allocates: they are never freed.

        torch has a workspace for the thread of forwards and one for that of backwards, of 32 MiB
        in deterministic mode (CUBLAS_WORKSPACE_CONFIG=:4096:8). TransformerEngine has one, and one for each of the
        four streams of the experts' grouped products.
        """
        found = 2 * (32 * 2**20 if is_deterministic else self.torch)
        return found + has_engine * (1 + 4 * has_experts) * self.transformer_engine


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator by its data sheet: dense FLOP/s per dtype, bytes, bytes a second.

    `num_cores` counts streaming multiprocessors or compute units; `efficiency_class` names its `efficiency`.
    `host_bytes_per_s` is the line rate to the host, one direction, `host_memory_bytes_per_s` its part of the host's
    memory bandwidth, read and written together; None where nobody said. `kernels` names the table of
    profiles/kernels that has its kernels; None: there is none.
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

    def usable_bytes(self, share: float | None = None) -> float:
        """Return what a step may take of the memory: this share, by default 95 %; the rest is the allocator's."""
        return (MEMORY_SHARE if share is None else share) * self.memory_bytes

    def peak(self, dtype: str) -> float:
        """Return the dense peak in FLOP/s; raises `ConfigError` naming the dtypes that the device has."""
        for name in (dtype, *_SAME_PEAK.get(dtype, ())):
            if name in self.peak_flops_per_s:
                return self.peak_flops_per_s[name]
        raise ConfigError(f"{self.name} has no peak for {dtype}: there are {', '.join(self.peak_flops_per_s)}")

    def computing_at(self, share: float) -> "Device":
        """Return the device with products and attention at so many times what its class gets."""
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
        """Return what large products get of the peak; of a dtype that nobody measured the nearest wider one's."""
        shares = self.efficiency.matmul
        for name in (dtype, *_WIDER.get(dtype, ())):
            if name in shares:
                return shares[name]
        return min(shares.values())


_SAME_PEAK = {"float8-row": ("float8",), "float8-block": ("float8",), "nvfp4": ("float4",), "mxfp4": ("float4",)}
"""Types that are another one with scales of their own; of 4 bits there are two, and a file may mean both."""

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


@dataclass(frozen=True, kw_only=True)
class Link:
    """What one device can send, one direction, and what of it collectives get.

    A message of x bytes takes `launch_s` + steps · `step_s` + x / (`bytes_per_s` · `efficiency`); an all-reduce
    inside a domain whose switch adds up gets `reduction_gain` times the bandwidth, if more than four ranks take
    part. A group of half as many ranks as the domain has devices loses `small_group_loss` of the bandwidth, and so
    on by halves. What a rank keeps for itself, 1/R of all bytes, it copies at `copy_bytes_per_s` (None: at no
    cost): half of all among two ranks, little among many. An all-to-all gets `exchange_share` of what rings get;
    DeepEP's kernels, which send tokens to their experts, get `dispatch_share` of it, and take `token_s` for each
    copy of one; HybridEP's get `hybrid_share` and take `hybrid_token_s`, None: as DeepEP's.
    """

    name: str
    bytes_per_s: float
    efficiency: float
    reduction_gain: float
    launch_s: float
    step_s: float
    source: str
    small_group_loss: float = 0.0
    copy_bytes_per_s: float | None = None
    exchange_share: float = 1.0
    dispatch_share: float = 1.0
    token_s: float = 0.0
    hybrid_share: float | None = None
    hybrid_token_s: float = 0.0

    def among(self, num_ranks: int, num_devices: int | None) -> "Link":
        """Return the link as a group of so many ranks in a domain of so many devices gets it."""
        if not self.small_group_loss or num_devices is None or num_ranks >= num_devices:
            return self
        halvings = math.log2(num_devices / num_ranks)
        return replace(self, efficiency=self.efficiency * (1 - self.small_group_loss) ** halvings)

    @property
    def achieved_bytes_per_s(self) -> float:
        """What large messages get."""
        return self.bytes_per_s * self.efficiency

    def token_copy_s(self, num_bytes: float, *, hybrid: bool) -> float:
        """Return the seconds that a copy of a token of so many bytes takes DeepEP's kernels, or HybridEP's."""
        if hybrid and self.hybrid_share is not None:
            return self.hybrid_token_s + num_bytes / (self.achieved_bytes_per_s * self.hybrid_share)
        return self.token_s + num_bytes / (self.achieved_bytes_per_s * self.dispatch_share)

    def copied_s(self, num_bytes: float) -> float:
        """Return the seconds in which a rank copies what it keeps for itself."""
        return num_bytes / self.copy_bytes_per_s if self.copy_bytes_per_s else 0.0


@dataclass(frozen=True)
class Tier:
    """Domains of `num_devices` that a link connects; None: however many there are (the outermost).

    `usable_devices`: how many of a domain a job of several gets, None: all of them.
    """

    name: str
    num_devices: int | None
    link: Link
    usable_devices: int | None = None

    def size_for(self, num_devices: int) -> int | None:
        """Return the devices of a domain that a job of so many gets: all where it fits one or fills whole ones."""
        whole, usable = self.num_devices, self.usable_devices
        if whole is None or usable is None or num_devices <= whole:
            return whole
        return whole if num_devices % whole == 0 and num_devices % usable else usable


@dataclass(frozen=True, kw_only=True)
class Constant:
    """What runs on a cluster said of it: a value, its standard deviation where that is known, and which runs."""

    value: float
    sigma: float | None = None
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What steps on one installation take beyond data sheets and the class of its devices, from runs of its own.

    compute_share
        Per dtype of the products, how many times what the class gets products and attention run at; 1 for others.
        1 over it is the in-situ factor beyond the class's.
    link_efficiency
        Per tier, what large messages get of its link's line rate, in place of the link's class.
    overlap
        Of tp and ep, how many times what options hide of that communication really is hidden.
    kernel_s
        Seconds from a kernel's end to the next one's start, in place of the class's.
    launch_s
        Host seconds of a launch by the schedule: an action is one, a message between ranks two, its send and its
        receive.
    routing_host_s, jitter
        In place of the class's (`Efficiency`).
    overlap_slowdown
        How much longer compute takes beside a message between ranks, as a part of its own time.
    runs
        Measured steps, each with how many times as long it took as all of these say (`ppsim.machine.likeness`).
    fitted_on
        The sets of `ppsim validate`, or files of runs, whose rows marked fit the values are from.
    correlation
        Of two constants that one fit found, by both names with a blank between; those of no pair here are 0.
    """

    compute_share: Mapping[str, Constant] = field(default_factory=dict)
    link_efficiency: Mapping[str, Constant] = field(default_factory=dict)
    overlap: Mapping[str, Constant] = field(default_factory=dict)
    kernel_s: Constant | None = None
    launch_s: Constant | None = None
    routing_host_s: Constant | None = None
    jitter: Constant | None = None
    overlap_slowdown: Constant | None = None
    runs: tuple[Run, ...] = ()
    fitted_on: tuple[str, ...] = ()
    correlation: Mapping[str, float] = field(default_factory=dict)

    @property
    def named(self) -> dict[str, Constant]:
        """Those that there are by name, what they are of behind a dot: "compute_share.float8"."""
        found = {f"{kind}.{of}": one for kind in PER_NAME for of, one in getattr(self, kind).items()}
        return found | {name: one for name in PLAIN if (one := getattr(self, name)) is not None}

    def having(self, constants: Mapping[str, Constant]) -> "Constants":
        """Return these with others beside or in place of them, by the names of `named`."""
        fields: dict[str, Any] = {}
        for name, constant in constants.items():
            kind, _, of = name.partition(".")
            fields[kind] = {**(fields.get(kind) or getattr(self, kind)), of: constant} if of else constant
        return replace(self, **fields)

    def with_values(self, values: Mapping[str, float]) -> "Constants":
        """Return the constants with other values of those that are `named` so."""
        return self.having(
            {name: replace(old, value=values[name]) for name, old in self.named.items() if name in values}
        )


PER_NAME = ("compute_share", "link_efficiency", "overlap")
"""Constants of which there is one a dtype, tier, or kind of communication."""

OF_DEVICE = ("kernel_s", "routing_host_s", "jitter")
"""Constants that stand in place of their namesakes in `Efficiency`."""

PLAIN = ("kernel_s", "launch_s", "routing_host_s", "jitter", "overlap_slowdown")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """So many devices of one kind (None: as many as wanted) in domains, from the innermost tier outwards.

    `base` is the cluster whose file this one's extends, `constants` what runs on it said of it.
    """

    name: str
    title: str
    device: Device
    tiers: tuple[Tier, ...]
    source: str
    num_devices: int | None = None
    base: str | None = None
    constants: Constants = Constants()

    def with_constants(self, constants: Constants) -> "Cluster":
        """Return the cluster with other constants, its device and its links as they say."""
        given = {name: one.value for name in OF_DEVICE if (one := getattr(constants, name)) is not None}
        device = replace(self.device, efficiency=replace(self.device.efficiency, **given))
        gets = constants.link_efficiency
        tiers = tuple(
            replace(tier, link=replace(tier.link, efficiency=gets[tier.name].value)) if tier.name in gets else tier
            for tier in self.tiers
        )
        return replace(self, constants=constants, device=device, tiers=tiers)

    def device_for(self, dtype: str, compute_share: float | None = None) -> Device:
        """Return the device as products of a type get it, at `compute_share` or by the cluster's constants."""
        device = self.device
        if compute_share is None:
            known = self.constants.compute_share.get(dtype)
            compute_share = known.value if known else 1.0
        return device if compute_share == 1 else device.computing_at(compute_share)

    def domain_sizes(self, num_devices: int) -> tuple[int | None, ...]:
        """Return how many of a job's devices share a domain of each tier, from the inside."""
        return tuple(tier.size_for(num_devices) for tier in self.tiers)
