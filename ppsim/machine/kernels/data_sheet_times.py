"""Kernel times from a device's data sheet and the calibration constants of its GPU type."""

from dataclasses import dataclass
from typing import Literal

from ppsim.base.number_formats import OPERAND_BYTES, activation_bytes, at_least_16_bits
from ppsim.machine.cluster import Device
from ppsim.machine.kernels.names import Form, Kernels, MemoryKernel
from ppsim.machine.kernels.times import AttentionCore, of_one_group

_TILE_ROWS, _TILE_COLUMNS = 128, 128
"""The tile of a GEMM that one core computes at a time (CUTLASS' default for large GEMMs)."""

_GRADIENT_BYTES = 8
"""A weight gradient is read and written in float32."""

_IN_TURN = 1 - 0.379
"""Rate of a deterministic attention backward relative to the default one: see `DataSheetTimes`."""


@dataclass(frozen=True)
class DataSheetTimes:
    """`KernelTimes` from a device's data sheet, for GEMMs of a dtype.

    In deterministic mode, memory that TransformerEngine allocates is filled before a GEMM writes to it (torch,
    `fill_uninitialized_memory`, `empty_cuda`). Attention has the shares of `Efficiency.deterministic_attention`.
    Without these, only the backward pass is slower, because it adds the query gradients in order: 1 / (1 - 0.379)
    times, the maximum loss of FlashAttention-3 (Qiang et al. 2026, arXiv 2601.21824).
    """

    device: Device
    dtype: str
    deterministic: bool = False

    def product_s(self, form: Form, m: float, n: float, k: float, *, groups: int = 1) -> float:
        """The time is FLOPs / (peak × efficiency), and at least the time to read the operands and write the output.

        A fixed number of waves of tiles is added because the last wave is not full (`wave_tail`), and a fixed inner
        dimension per tile (`depth_tail`).
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
        if not self.deterministic:
            return 0.0
        return self.moved_s("copy", activation_bytes(self.dtype) * elements)

    def memory_s(self, form: Form, m: float, n: float, k: float, *, groups: int = 1) -> float:
        rows, columns, depth = of_one_group(form, m, n, k, groups)
        operand = OPERAND_BYTES.get(self.dtype, activation_bytes(self.dtype)) * (rows * depth + depth * columns)
        result = _GRADIENT_BYTES if form == "weight" else activation_bytes(self.dtype)
        num_bytes = groups * (operand + result * rows * columns)
        return num_bytes / (self.device.memory_bytes_per_s * self.device.efficiency.memory)

    def attention_s(self, part: Literal["forward", "backward"], core: AttentionCore) -> float:
        """Return the seconds of a fused attention kernel (Dao 2023, arXiv 2307.08691).

        The backward pass recomputes the scores: 2.5 times the FLOPs. Few heads with few tokens leave cores idle:
        tiles have 128 queries, with the loss of `wave_tail`.
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
        del kernel
        efficiency = self.device.efficiency
        return num_bytes / (self.device.memory_bytes_per_s * efficiency.memory) + launches * efficiency.kernel_s

    def peak(self, of: Literal["products", "attention"]) -> float:
        return self.device.peak(self.dtype if of == "products" else at_least_16_bits(self.dtype))

    def is_measured(self, of: Kernels) -> bool:
        del of
        return False
