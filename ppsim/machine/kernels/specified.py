"""Seconds of single kernels on a device, from its data sheet and the constants of its class."""

from dataclasses import dataclass

from ppsim.machine.cluster import Device

_TILE_ROWS, _TILE_COLUMNS = 128, 128
"""The tile of a matrix product that one core computes at a time (CUTLASS' default for large products)."""


@dataclass(frozen=True)
class Kernels:
    """Seconds of kernels one after the other: matrix products, attention, and what is bound by memory.

    The `…_ideal_s` are what the FLOPs of products and attention would take at the device's peak; `count` is the
    number of launches.
    """

    matmul_ideal_s: float = 0.0
    matmul_s: float = 0.0
    attention_ideal_s: float = 0.0
    attention_s: float = 0.0
    memory_s: float = 0.0
    count: int = 0

    def __add__(self, other: "Kernels") -> "Kernels":
        return Kernels(
            self.matmul_ideal_s + other.matmul_ideal_s,
            self.matmul_s + other.matmul_s,
            self.attention_ideal_s + other.attention_ideal_s,
            self.attention_s + other.attention_s,
            self.memory_s + other.memory_s,
            self.count + other.count,
        )

    @property
    def busy_s(self) -> float:
        """What the device computes."""
        return self.matmul_s + self.attention_s + self.memory_s


def matmul(
    device: Device,
    *,
    rows: float,
    columns: float,
    depth: float,
    dtype: str,
    count: int = 1,
    output_bytes: float | None = None,
    kernels: int = 1,
) -> Kernels:
    """Return `count` products (rows × depth) · (depth × columns), launched as `kernels`.

    Seconds: 2·rows·columns·depth FLOPs at the device's share of its peak; plus `wave_tail` waves of tiles, for the
    last wave is not full; plus `depth_tail` of depth for each tile. Never faster than memory delivers operands and
    result (`output_bytes` an element, None: of an activation; 8 where a float32 gradient is read and written).
    """
    if not rows * columns * depth * count:
        return Kernels()
    flops = 2 * rows * columns * depth * count
    peak = device.peak(dtype)
    efficiency = device.efficiency
    waves = rows * columns * count / (_TILE_ROWS * _TILE_COLUMNS * device.num_cores)
    slowed = (1 + efficiency.wave_tail / waves) * (1 + efficiency.depth_tail / depth)
    computed = flops / (peak * device.matmul_share(dtype)) * slowed
    operand = _element_bytes(dtype) * (rows * depth + depth * columns)
    result = activation_bytes(dtype) if output_bytes is None else output_bytes
    moved = count * (operand + result * rows * columns)
    seconds = max(computed, moved / (device.memory_bytes_per_s * efficiency.memory))
    return Kernels(matmul_ideal_s=flops / peak, matmul_s=seconds + kernels * efficiency.kernel_s, count=kernels)


def memory_bound(device: Device, num_bytes: float, *, kernels: int = 1) -> Kernels:
    """Return kernels that read and write `num_bytes` in all and compute next to nothing."""
    if not num_bytes:
        return Kernels()
    seconds = num_bytes / (device.memory_bytes_per_s * device.efficiency.memory)
    return Kernels(memory_s=seconds + kernels * device.efficiency.kernel_s, count=kernels)


def fused_attention(
    device: Device, *, forward_flops: float, dtype: str, heads_and_sequences: float, sequence_length: float
) -> tuple[Kernels, Kernels]:
    """Return forward and backward of a fused attention kernel (Dao 2023, arXiv 2307.08691).

    `forward_flops` are those it does: half of all where it is causal. The backward recomputes the scores: 2.5 times
    as many, of which the ideal counts 2. Few heads of few tokens leave cores idle: tiles of 128 queries, as
    `wave_tail` has it. It computes in 16 bits whatever the type of the products.
    """
    if not forward_flops:
        return Kernels(), Kernels()
    sixteen = dtype if dtype in ("bfloat16", "float16", "float32") else "bfloat16"
    peak = device.peak(sixteen)
    constants = device.efficiency
    waves = heads_and_sequences * sequence_length / _TILE_ROWS / device.num_cores
    slowed = 1 + constants.wave_tail / waves
    forward = forward_flops / (peak * constants.attention_forward) * slowed + constants.kernel_s
    backward = 2.5 * forward_flops / (peak * constants.attention_backward) * slowed + constants.kernel_s
    return (
        Kernels(attention_ideal_s=forward_flops / peak, attention_s=forward, count=1),
        Kernels(attention_ideal_s=2 * forward_flops / peak, attention_s=backward, count=1),
    )


def as_attention(kernels: Kernels) -> Kernels:
    """Return the same with all of its time under attention."""
    return Kernels(attention_ideal_s=kernels.matmul_ideal_s, attention_s=kernels.busy_s, count=kernels.count)


def activation_bytes(dtype: str) -> int:
    """Return the bytes of an element between products of a type: 16-bit unless all of it is in 32."""
    return 4 if dtype in ("float32", "tf32") else 2


def _element_bytes(dtype: str) -> float:
    return {"float8": 1.0, "float4": 0.5}.get(dtype, activation_bytes(dtype))
