"""Device microbenchmarks: the section `device_facts` of a profile file, for estimates of other shapes."""

from dataclasses import field
from typing import Literal

from ppsim.base.file_schema import AboveZero, Positive, Strict
from ppsim.machine.kernels.names import Form, MemoryKernel


class Time(Strict):
    """Seconds of one run: median and quartiles."""

    median: AboveZero
    low: AboveZero
    high: AboveZero


class Product(Strict):
    """A GEMM [m, k] · [k, n]; `m` is the total over all groups."""

    form: Form
    m: Positive
    n: Positive
    k: Positive
    groups: Positive = 1
    dtype: str
    seconds: Time

    @property
    def flops(self) -> float:
        """2 per multiply-add."""
        return 2.0 * self.m * self.n * self.k


class AttentionFact(Strict):
    """Causal fused attention of [micro_batch, heads, sequence, head size]."""

    micro_batch: Positive
    num_heads: Positive
    num_kv_heads: Positive
    sequence_length: Positive
    head_size: Positive
    dtype: str
    forward_s: Time
    backward_s: Time


class MemoryFact(Strict):
    """A memory-bound kernel; `bytes` are read and written bytes."""

    kernel: MemoryKernel
    bytes: Positive
    dtype: str
    seconds: Time


class HostTransfer(Strict):
    """A copy between pinned host memory and the device."""

    direction: Literal["to_device", "to_host"]
    bytes: Positive
    seconds: Time


class DeviceTransfer(Strict):
    """A message between devices of this machine; `bytes` are per device, as passed to the operation."""

    kind: Literal["p2p", "all_reduce", "all_gather", "reduce_scatter"]
    num_devices: Positive
    bytes: Positive
    seconds: Time


class BesideCopy(Strict):
    """A GEMM alone, and during a copy on the device or from the host to the device."""

    copy_of: Literal["device", "host"]
    dtype: str
    alone_s: Time
    beside_s: Time


class DeviceFacts(Strict):
    """All microbenchmarks, and a sentence for each one that was not measured."""

    products: list[Product] = field(default_factory=list)
    attention: list[AttentionFact] = field(default_factory=list)
    memory: list[MemoryFact] = field(default_factory=list)
    host_transfers: list[HostTransfer] = field(default_factory=list)
    device_transfers: list[DeviceTransfer] = field(default_factory=list)
    beside_copies: list[BesideCopy] = field(default_factory=list)
    not_measured: list[str] = field(default_factory=list)
