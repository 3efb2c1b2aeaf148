"""Device microbenchmarks: the section `device_facts` of a profile file, for estimates of other shapes."""

from dataclasses import field
from typing import Literal

from ppsim.base.file_schema import AboveZero, FileSchema, Positive
from ppsim.machine.kernels.names import Form, MemoryKernel


class MeasuredTime(FileSchema):
    """Seconds of one run: median and quartiles."""

    median: AboveZero
    low: AboveZero
    high: AboveZero


class GemmTime(FileSchema):
    """A GEMM [m, k] · [k, n]; `m` is the total over all groups."""

    form: Form
    m: Positive
    n: Positive
    k: Positive
    groups: Positive = 1
    dtype: str
    seconds: MeasuredTime

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k


class AttentionTime(FileSchema):
    """Causal fused attention of [micro_batch, heads, sequence, head size]."""

    micro_batch: Positive
    num_heads: Positive
    num_kv_heads: Positive
    sequence_length: Positive
    head_size: Positive
    dtype: str
    forward_s: MeasuredTime
    backward_s: MeasuredTime


class MemoryKernelTime(FileSchema):
    """A memory-bound kernel; `bytes` are read and written bytes."""

    kernel: MemoryKernel
    bytes: Positive
    dtype: str
    seconds: MeasuredTime


class HostTransfer(FileSchema):
    """A copy between pinned host memory and the device."""

    direction: Literal["to_device", "to_host"]
    bytes: Positive
    seconds: MeasuredTime


class DeviceTransfer(FileSchema):
    """A message between devices of the measured machine; `bytes` are per device, as passed to the operation."""

    kind: Literal["p2p", "all_reduce", "all_gather", "reduce_scatter"]
    num_devices: Positive
    bytes: Positive
    seconds: MeasuredTime


class GemmDuringCopy(FileSchema):
    """A GEMM alone, and during a copy on the device or from the host to the device."""

    copy_of: Literal["device", "host"]
    dtype: str
    alone_s: MeasuredTime
    beside_s: MeasuredTime


class DeviceMicrobenchmarks(FileSchema):
    """`not_measured` has a sentence for each missing microbenchmark."""

    products: list[GemmTime] = field(default_factory=list)
    attention: list[AttentionTime] = field(default_factory=list)
    memory: list[MemoryKernelTime] = field(default_factory=list)
    host_transfers: list[HostTransfer] = field(default_factory=list)
    device_transfers: list[DeviceTransfer] = field(default_factory=list)
    beside_copies: list[GemmDuringCopy] = field(default_factory=list)
    not_measured: list[str] = field(default_factory=list)
