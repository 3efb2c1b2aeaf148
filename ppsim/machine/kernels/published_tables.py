"""Kernel times from tables of published measurements, multiplied by in-situ factors.

A file in profiles/kernels contains, for each dtype, the rates of GEMMs over m, n and k, of causal attention over
head size, sequence length and heads, and of grouped GEMMs over rows and columns of an expert. Values are the
logarithm of TFLOP/s in steps of 1/`STEPS`. scripts/make_kernel_tables.py makes the files.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.files import data_folder
from ppsim.base.number_formats import at_least_16_bits
from ppsim.machine.cluster import Device, InSituRatio
from ppsim.machine.kernels.data_sheet_times import DataSheetTimes
from ppsim.machine.kernels.names import Form, Kernels, MemoryKernel
from ppsim.machine.kernels.times import AttentionCore, of_one_group

STEPS = 512
"""Steps per unit of the natural logarithm of a rate: 0.2 % each."""

EMPTY = -(2**15)

_NUM_NEAREST = 6


@dataclass(frozen=True)
class RateGrid:
    """Logarithms of rates in FLOP/s over the logarithms of sizes."""

    axes: tuple[tuple[float, ...], ...]
    rates: Floats

    def rate(self, *sizes: float) -> float:
        places = [_place(axis, math.log(size)) for axis, size in zip(self.axes, sizes, strict=True)]
        rates = self.rates
        for index, part in places:
            rates = rates[index] if part == 0 else (1 - part) * rates[index] + part * rates[index + 1]
        return math.exp(float(rates))


@dataclass(frozen=True)
class KernelTable:
    """Measurements of a device: grids by dtype, and their provenance.

    `stand_ins` maps dtypes that were not measured to the dtype with the most similar kernels on this device.
    """

    name: str
    products: Mapping[str, RateGrid]
    attention: Mapping[str, RateGrid]
    grouped: Mapping[str, RateGrid]
    stand_ins: Mapping[str, str]
    provenance: Mapping[str, str]

    def type_for(self, dtype: str) -> str | None:
        return next((name for name in (dtype, self.stand_ins.get(dtype)) if name in self.products), None)


@cache
def kernel_table(name: str) -> KernelTable:
    with np.load(data_folder("profiles") / "kernels" / f"{name}.npz") as file:
        arrays: dict[str, Any] = dict(file)
    facts = json.loads(str(arrays["facts"]))
    return KernelTable(
        name,
        **{what: _grids(arrays, kind, axes) for what, (kind, axes) in _KINDS.items()},
        stand_ins=facts.pop("stand_ins"),
        provenance=facts,
    )


_KINDS = {
    "products": ("product", ("m", "n", "k")),
    "attention": ("attention", ("size", "length", "heads")),
    "grouped": ("grouped", ("rows", "columns")),
}


class _Grids(Mapping[str, RateGrid]):
    """Grids of a kind; on first access, missing points are filled from the nearest ones.

    NVFP4 rates do not fall with more rows. The rates of isolated GEMMs do (GB300, 26,624 × 16,384: 5,830 TFLOP/s
    with 4,096 rows, 4,559 with 16,384), but runs do not show it.
    """

    def __init__(self, steps: Mapping[str, Any], places: Sequence[tuple[float, ...]]) -> None:
        self._steps, self._places = steps, tuple(places)
        self._made: dict[str, RateGrid] = {}

    def __getitem__(self, name: str) -> RateGrid:
        if name not in self._made:
            rates = fill_missing(self._steps[name], self._places)
            rates = np.maximum.accumulate(rates) if name == "nvfp4" else rates
            self._made[name] = RateGrid(self._places, rates)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._steps

    def __iter__(self) -> Iterator[str]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)


def _grids(arrays: Mapping[str, Any], kind: str, axes: Sequence[str]) -> _Grids:
    of_kind = [name for name in arrays if name.startswith(f"{kind}_") and f"{kind}_axis_" not in name]
    places = [tuple(np.log(arrays[f"{kind}_axis_{axis}"]).tolist()) for axis in axes if of_kind]
    return _Grids({name.removeprefix(f"{kind}_"): arrays[name] for name in of_kind}, places)


def fill_missing(steps: np.ndarray[Any, Any], axes: Sequence[Sequence[float]]) -> Floats:
    """Missing points get the mean of the nearest ones, weighted by inverse squared distance."""
    steps_s: Floats = steps / STEPS + math.log(1e12)
    empty = steps == EMPTY
    if empty.any():
        where = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
        squares = ((where[empty][:, None] - where[~empty][None]) ** 2).sum(axis=-1)
        nearest = np.argpartition(squares, min(_NUM_NEAREST, squares.shape[1]) - 1, axis=1)[:, :_NUM_NEAREST]
        weights = 1 / np.take_along_axis(squares, nearest, axis=1)
        steps_s[empty] = (steps_s[~empty][nearest] * weights).sum(axis=1) / weights.sum(axis=1)
    return steps_s


def _place(axis: Sequence[float], value: float) -> tuple[int, float]:
    if value <= axis[0]:
        return 0, 0.0
    if value >= axis[-1]:
        return len(axis) - 1, 0.0
    index = bisect_right(axis, value) - 1
    return index, (value - axis[index]) / (axis[index + 1] - axis[index])


@dataclass(frozen=True)
class TableTimes:
    """`KernelTimes` from a device's table, for GEMMs of a dtype; missing kernels come from the data sheet.

    A kernel takes the table's time × the GPU type's in-situ factor, plus `kernel_s`. The two GEMMs of a backward
    pass use the forward measurements with other roles of m, n and k. The backward pass of attention was not
    measured: its rate is the forward rate × the ratio of the GPU type's shares of the peak.
    """

    specified: DataSheetTimes
    table: KernelTable

    @property
    def device(self) -> Device:
        return self.specified.device

    @property
    def in_situ(self) -> InSituRatio:
        in_situ = self.device.efficiency.in_situ
        assert in_situ is not None, "kernel_times takes the data sheet where there is none"
        return in_situ

    @cached_property
    def name(self) -> str | None:
        return self.table.type_for(self.specified.dtype)

    def factor(self, of: Kernels) -> float | None:
        """Return None if these kernels come from the data sheet.

        GEMMs use the factor of the dtype itself, or of its substitute; attention always computes in 16 bits.
        """
        if of not in self._factors:
            self._factors[of] = self._factor(of)
        return self._factors[of]

    @cached_property
    def _factors(self) -> dict[Kernels, float | None]:
        return {}

    def _factor(self, of: Kernels) -> float | None:
        if of == "attention" and self.specified.deterministic:
            return None
        if of == "attention":
            in_16_bits = at_least_16_bits(self.specified.dtype) in ("bfloat16", "float16")
            names: tuple[str | None, ...] = ("attention",) if in_16_bits and self.table.attention else ()
        elif of == "experts":
            names = (self.specified.dtype, self.name) if self.name in self.table.grouped else ()
        else:
            names = (self.specified.dtype, self.name) if self.name else ()
        factors = self.in_situ.factors
        return next((factors[name] for name in names if name is not None and name in factors), None)

    @property
    def most_expert_rows(self) -> float | None:
        if self.factor("experts") is None or self.name is None:
            return None
        return round(math.exp(self.table.grouped[self.name].axes[0][-1]))

    def product_s(self, form: Form, m: float, n: float, k: float, *, groups: int = 1) -> float:
        """A grouped GEMM is at most as fast as one GEMM over all its rows.

        Grouped rates were derived from whole MoE layers. Experts narrower than any measured one use the data sheet.
        """
        rows, columns, depth = of_one_group(form, m, n, k, groups)
        factor = self.factor("experts" if groups > 1 else "products")
        if factor is None or self.name is None:
            return self.specified.product_s(form, m, n, k, groups=groups)
        if groups == 1:
            rate = self.table.products[self.name].rate(rows, columns, depth)
        else:
            tokens, sides = (depth, (rows, columns)) if form == "weight" else (rows, (columns, depth))
            grouped = self.table.grouped[self.name]
            if math.log(min(sides)) < grouped.axes[1][0]:
                return self.specified.product_s(form, m, n, k, groups=groups)
            side_by_side = self.table.products[self.name].rate(rows * groups, columns, depth)
            rate = min(expert_rate(grouped, tokens, min(sides)), side_by_side)
        computed = factor * 2 * rows * columns * depth * groups / rate
        slowest = max(computed, self.specified.memory_s(form, m, n, k, groups=groups))
        return slowest + self._kernel_s + self.specified.filled_s(rows * columns * groups)

    def attention_s(self, part: Literal["forward", "backward"], core: AttentionCore) -> float:
        """The backward pass has 2.5 times the FLOPs."""
        factor = self.factor("attention")
        if factor is None:
            return self.specified.attention_s(part, core)
        grid, constants = self.table.attention["bfloat16"], self.device.efficiency
        size, sequences = (core.qk_size + core.v_size) / 2, core.heads * core.queries / core.keys
        forward_s = factor * core.forward_flops / grid.rate(size, core.keys, sequences)
        if part == "forward":
            return forward_s + self._kernel_s
        return 2.5 * forward_s * constants.attention_forward / constants.attention_backward + self._kernel_s

    def moved_s(self, kernel: MemoryKernel, num_bytes: float, *, launches: int = 1) -> float:
        return self.specified.moved_s(kernel, num_bytes, launches=launches)

    def peak(self, of: Literal["products", "attention"]) -> float:
        return self.specified.peak(of)

    def is_measured(self, of: Kernels) -> bool:
        return self.factor(of) is not None

    @property
    def _kernel_s(self) -> float:
        return self.device.efficiency.kernel_s


def expert_rate(grouped: RateGrid, rows: float, columns: float) -> float:
    """The rate is proportional to the rows below the smallest measured number of rows."""
    fewest = math.exp(grouped.axes[0][0])
    return grouped.rate(rows, columns) * min(1.0, rows / fewest)


def kernel_times(device: Device, dtype: str, *, deterministic: bool = False) -> TableTimes | DataSheetTimes:
    """Use the device's table if the GPU type has in-situ factors, else its data sheet.

    A measured profile takes precedence over both (`ppsim.costs.profile_costs`).
    """
    specified = DataSheetTimes(device, dtype, deterministic)
    if device.kernels is None or device.efficiency.in_situ is None:
        return specified
    return TableTimes(specified, kernel_table(device.kernels))
