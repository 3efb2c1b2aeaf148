"""Seconds of single kernels on a device, from its data sheet and the constants of its class."""

from dataclasses import dataclass
from typing import Literal

from ppsim.machine.cluster import Device
from ppsim.machine.kernels.names import Form, Kernels, MemoryKernel
from ppsim.machine.kernels.times import AttentionCore, of_one_group

_TILE_ROWS, _TILE_COLUMNS = 128, 128
"""The tile of a matrix product that one core computes at a time (CUTLASS' default for large products)."""

_GRADIENT_BYTES = 8
"""Of an element of a weight's gradient, which is read and written in float32."""

_IN_TURN = 1 - 0.379
"""What a deterministic backward of attention gets of the other's rate: see `Specified`."""

OPERAND_BYTES = {
    "float8": 1.0, "float8-row": 1.0, "float8-block": 1 + 4 / 128, "mxfp8": 1 + 1 / 32, "float4": 0.5,
    "nvfp4": 0.5 + 1 / 16, "mxfp4": 0.5 + 1 / 32,
}  # fmt: skip
"""Bytes of an operand's element with its part of a scale: 4 bytes for 128 values, 1 for 32, 1 for 16 (NVFP4)."""


@dataclass(frozen=True)
class Specified:
    """The `KernelTimes` of a device's data sheet, for products of a type.

    A kernel takes `kernel_s` from the one before it to its start. Attention computes in 16 bits at least whatever
    the type of the products.

    `deterministic`: kernels whose sums have one order only. What TransformerEngine allocates is filled before a
    product writes to it (torch, `fill_uninitialized_memory`, `empty_cuda`); attention has the shares of
    `Efficiency.deterministic_attention`, by default its own but for a backward that adds the gradients of queries
    in turn: 1 / (1 - 0.379) times as long, what FlashAttention-3 loses at most (Qiang et al. 2026, arXiv
    2601.21824).
    """

    device: Device
    dtype: str
    deterministic: bool = False

    def product_s(self, form: Form, m: float, n: float, k: float, *, groups: int = 1) -> float:
        """Return the seconds of a product, or of `groups` that share the tokens, in one launch.

        Its FLOPs at the device's share of its peak; plus `wave_tail` waves of tiles, for the last wave is not full;
        plus `depth_tail` of depth for each tile. Never faster than memory delivers operands and result.
        """
        rows, columns, depth = of_one_group(form, m, n, k, groups)
        device, efficiency = self.device, self.device.efficiency
        flops = 2 * rows * columns * depth * groups
        waves = rows * columns * groups / (_TILE_ROWS * _TILE_COLUMNS * device.num_cores)
        slowed = (1 + efficiency.wave_tail / waves) * (1 + efficiency.depth_tail / depth)
        computed = flops / (device.peak(self.dtype) * device.matmul_share(self.dtype)) * slowed
        slowest = max(computed, self.memory_s(form, m, n, k, groups=groups))
        return slowest + efficiency.kernel_s + self.filled_s(rows * columns * groups)

    def filled_s(self, elements: float) -> float:
        """Return the seconds in which the result of a product is filled before it; 0 where nothing is."""
        if not self.deterministic:
            return 0.0
        return self.moved_s("copy", activation_bytes(self.dtype) * elements)

    def memory_s(self, form: Form, m: float, n: float, k: float, *, groups: int = 1) -> float:
        """Return the seconds in which memory delivers the operands of a product and takes its result."""
        rows, columns, depth = of_one_group(form, m, n, k, groups)
        operand = OPERAND_BYTES.get(self.dtype, activation_bytes(self.dtype)) * (rows * depth + depth * columns)
        result = _GRADIENT_BYTES if form == "weight" else activation_bytes(self.dtype)
        num_bytes = groups * (operand + result * rows * columns)
        return num_bytes / (self.device.memory_bytes_per_s * self.device.efficiency.memory)

    def attention_s(self, part: Literal["forward", "backward"], core: AttentionCore) -> float:
        """Return the seconds of a fused attention kernel (Dao 2023, arXiv 2307.08691).

        The backward recomputes the scores: 2.5 times the FLOPs. Few heads of few tokens leave cores idle: tiles of
        128 queries, as `wave_tail` has it.
        """
        constants = self.device.efficiency
        rates = {"forward": constants.attention_forward, "backward": constants.attention_backward}
        in_turn = rates | {"backward": _IN_TURN * rates["backward"]}
        masked, unmasked = rates, constants.unmasked_attention or rates
        if self.deterministic:
            masked = unmasked = dict(constants.deterministic_attention or in_turn)
        waves = core.heads * core.queries / _TILE_ROWS / self.device.num_cores
        flops = (1.0 if part == "forward" else 2.5) * core.forward_flops * (1 + constants.wave_tail / waves)
        of_peak = (1 - core.unmasked) / masked[part] + core.unmasked / unmasked[part]
        return flops * of_peak / self.peak("attention") + constants.kernel_s

    def moved_s(self, kernel: MemoryKernel, num_bytes: float, *, launches: int = 1) -> float:
        """Return the seconds of memory-bound kernels, all of a kind."""
        del kernel
        efficiency = self.device.efficiency
        return num_bytes / (self.device.memory_bytes_per_s * efficiency.memory) + launches * efficiency.kernel_s

    def peak(self, of: Literal["products", "attention"]) -> float:
        """Return the data sheet's FLOP/s."""
        return self.device.peak(self.dtype if of == "products" else at_least_16_bits(self.dtype))

    def is_measured(self, of: Kernels) -> bool:
        """Return that they are not."""
        del of
        return False


def at_least_16_bits(dtype: str) -> str:
    """Return the type in which a job of this type computes attention and the head."""
    return dtype if dtype in ("bfloat16", "float16", "float32") else "bfloat16"


def activation_bytes(dtype: str) -> int:
    """Return the bytes of an element between products of a type: 16-bit unless all of it is in 32."""
    return 4 if dtype in ("float32", "tf32") else 2
