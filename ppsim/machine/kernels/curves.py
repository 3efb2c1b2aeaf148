"""Performance curves from device microbenchmarks: interpolation between measured sizes, never above the best."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from ppsim.base.errors import ConfigError
from ppsim.machine.kernels.microbenchmarks import AttentionTime, DeviceMicrobenchmarks, GemmTime, MeasuredTime
from ppsim.machine.kernels.names import Form, Kernels, MemoryKernel
from ppsim.machine.kernels.times import AttentionCore

Point = TypeVar("Point")

ELEMENT_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}

_NUM_NEAREST = 4


class Curves:
    """`KernelTimes` from device microbenchmarks in one dtype; `ConfigError` if the dtype was not measured."""

    def __init__(self, facts: DeviceMicrobenchmarks, dtype: str) -> None:
        if dtype not in ELEMENT_BYTES:
            raise ConfigError(f"shapes in {dtype} are not estimated: only in {', '.join(ELEMENT_BYTES)}")
        self.element_bytes = ELEMENT_BYTES[dtype]
        self._products = [point for point in facts.products if point.dtype == dtype]
        self._attention = [point for point in facts.attention if point.dtype == dtype]
        self._memory = [point for point in facts.memory if point.dtype == dtype]
        for what, points in (
            ("products", self._products),
            ("attention", self._attention),
            ("memory", self._memory),
        ):
            if not points:
                there = dict.fromkeys(point.dtype for point in facts.products)
                raise ConfigError(f"the device facts have no {what} in {dtype} (there is: {', '.join(there)})")
        self._peak = max(map(_rate, self._products))

    def product_s(self, form: Form, m: float, n: float, k: float, *, groups: int = 1) -> float:
        """FLOP/s are interpolated between the nearest points in log m, log n and log k.

        No GEMM is faster than the fastest of its form. If no grouped GEMM was measured, groups run one after the
        other.
        """
        points = [point for point in self._products if point.form == form and (point.groups > 1) == (groups > 1)]
        if not points and groups > 1:
            return groups * self.product_s(form, *_of_one_group(form, m, n, k, groups))
        points = points or self._products
        rate = _between(
            points, _logs(m / groups, n, k), lambda p: _logs(p.m / p.groups, p.n, p.k), _rate
        )  # fmt: skip
        return max(2.0 * m * n * k / rate, min(point.seconds.median for point in points))

    def attention_s(self, part: Literal["forward", "backward"], core: AttentionCore) -> float:
        def seconds(point: AttentionTime) -> float:
            time: MeasuredTime = point.forward_s if part == "forward" else point.backward_s
            return time.median

        def rate(point: AttentionTime) -> float:
            return _core_of(point).forward_flops / seconds(point)

        nearest = _between(self._attention, _logs_of_core(core), lambda point: _logs_of_core(_core_of(point)), rate)
        return max(core.forward_flops / nearest, min(map(seconds, self._attention)))

    def moved_s(self, kernel: MemoryKernel, num_bytes: float, *, launches: int = 1) -> float:
        """Interpolate; beyond the largest point, use its bandwidth."""
        del launches  # included in the measurements
        of_kernel = [point for point in self._memory if point.kernel == kernel] or self._memory
        points = sorted((point.bytes, point.seconds.median) for point in of_kernel)
        (least, fastest), (most, slowest) = points[0], points[-1]
        if num_bytes <= least:
            return fastest if num_bytes else 0.0
        if num_bytes >= most:
            return slowest * num_bytes / most
        index = next(index for index, (size, _) in enumerate(points) if size >= num_bytes)
        (low, low_s), (high, high_s) = points[index - 1], points[index]
        part = math.log(num_bytes / low) / math.log(high / low)
        return math.exp((1 - part) * math.log(low_s) + part * math.log(high_s))

    def peak(self, of: Literal["products", "attention"]) -> float:
        del of
        return self._peak

    def is_measured(self, of: Kernels) -> bool:
        del of
        return True


def _between(
    points: Sequence[Point],
    wanted: tuple[float, ...],
    where: Callable[[Point], tuple[float, ...]],
    value: Callable[[Point], float],
) -> float:
    ranked = sorted((math.dist(where(point), wanted), value(point)) for point in points)[:_NUM_NEAREST]
    if ranked[0][0] == 0:
        return ranked[0][1]
    weights = [1 / distance**2 for distance, _ in ranked]
    return sum(w * found for w, (_, found) in zip(weights, ranked, strict=True)) / sum(weights)


def _logs(*sizes: float) -> tuple[float, ...]:
    return tuple(math.log2(size) for size in sizes)


def _rate(point: GemmTime) -> float:
    return point.flops / point.seconds.median


def _core_of(point: AttentionTime) -> AttentionCore:
    length, size = point.sequence_length, point.head_size
    return AttentionCore(point.micro_batch * point.num_heads, length, length, size, size)


def _logs_of_core(core: AttentionCore) -> tuple[float, ...]:
    return _logs(core.keys, core.heads, (core.qk_size + core.v_size) / 2)


def _of_one_group(form: Form, m: float, n: float, k: float, groups: int) -> tuple[float, float, float]:
    return (m, n, max(k // groups, 1)) if form == "weight" else (max(m // groups, 1), n, k)
