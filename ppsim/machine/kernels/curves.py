"""What a device does at its own as functions of size: between its measured points, never beyond the best."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from ppsim.base.errors import ConfigError
from ppsim.machine.kernels.facts import AttentionFact, DeviceFacts, Product, Time
from ppsim.machine.kernels.names import Form, Kernels, MemoryKernel
from ppsim.machine.kernels.times import AttentionCore

Point = TypeVar("Point")

ELEMENT_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}

_NUM_NEAREST = 4


class Curves:
    """The `KernelTimes` of a device's facts in one type; `ConfigError` where it was not measured in it."""

    def __init__(self, facts: DeviceFacts, dtype: str) -> None:
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
        """Seconds of a product; of `groups` side by side, `m` rows in all.

        Its FLOP/s are between those of the nearest points in the logarithms of m, n and k, so never above the best
        one; no product is faster than the fastest of its form. Groups of which no grouped product was measured are
        run one after the other.
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
        """Seconds of causal attention, by the points that are nearest in sequence, heads and their size."""

        def seconds(point: AttentionFact) -> float:
            time: Time = point.forward_s if part == "forward" else point.backward_s
            return time.median

        def rate(point: AttentionFact) -> float:
            return _core_of(point).forward_flops / seconds(point)

        nearest = _between(self._attention, _logs_of_core(core), lambda point: _logs_of_core(_core_of(point)), rate)
        return max(core.forward_flops / nearest, min(map(seconds, self._attention)))

    def moved_s(self, kernel: MemoryKernel, num_bytes: float, *, launches: int = 1) -> float:
        """Seconds of a kernel that moves so many bytes: between its points, their bandwidth beyond the largest."""
        del launches  # what was measured has them
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
        """Return the FLOP/s of the best product that was measured, for attention too."""
        del of
        return self._peak

    def is_measured(self, of: Kernels) -> bool:
        """Return that they are."""
        del of
        return True


def _between(
    points: Sequence[Point],
    wanted: tuple[float, ...],
    where: Callable[[Point], tuple[float, ...]],
    value: Callable[[Point], float],
) -> float:
    """The mean of the nearest points' values, weighted by the inverse square of their distance."""
    ranked = sorted((math.dist(where(point), wanted), value(point)) for point in points)[:_NUM_NEAREST]
    if ranked[0][0] == 0:
        return ranked[0][1]
    weights = [1 / distance**2 for distance, _ in ranked]
    return sum(w * found for w, (_, found) in zip(weights, ranked, strict=True)) / sum(weights)


def _logs(*sizes: float) -> tuple[float, ...]:
    return tuple(math.log2(size) for size in sizes)


def _rate(point: Product) -> float:
    return point.flops / point.seconds.median


def _core_of(point: AttentionFact) -> AttentionCore:
    length, size = point.sequence_length, point.head_size
    return AttentionCore(point.micro_batch * point.num_heads, length, length, size, size)


def _logs_of_core(core: AttentionCore) -> tuple[float, ...]:
    return _logs(core.keys, core.heads, (core.qk_size + core.v_size) / 2)


def _of_one_group(form: Form, m: float, n: float, k: float, groups: int) -> tuple[float, float, float]:
    """The product of one group: its share of the tokens, which are k in the form "weight"."""
    return (m, n, max(k // groups, 1)) if form == "weight" else (max(m // groups, 1), n, k)
