"""Seconds of single kernels on a device by tables of what others measured on it, times what a run makes of them.

A file of profiles/kernels holds, for each type of numbers, the rate of products over m, n and k, of causal
attention over head size, sequence length and heads, and of grouped products over rows and columns of an expert: the
logarithm of TFLOP/s in steps of 1/`STEPS`, in 16 bits, `EMPTY` where nobody measured. `facts` has the source, its
copyright and licence, and which types stand for others. scripts/make_kernel_tables.py makes them.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.data import data_folder
from ppsim.machine.cluster import Device
from ppsim.machine.kernels.specified import Specified, at_least_16_bits
from ppsim.machine.kernels.times import AttentionCore, Form, MemoryKernel, of_one_group

STEPS = 512
"""Steps of a rate's natural logarithm: 0.2 % each."""

EMPTY = -(2**15)

_NUM_NEAREST = 6



@dataclass(frozen=True)
class Grid:
    """Logarithms of rates in FLOP/s over the logarithms of sizes."""

    axes: tuple[tuple[float, ...], ...]
    rates: Floats

    def rate(self, *sizes: float) -> float:
        """Return the FLOP/s at sizes: between the cells around them, beyond the outermost as there."""
        places = [_place(axis, math.log(size)) for axis, size in zip(self.axes, sizes, strict=True)]
        found = self.rates
        for index, part in places:
            found = found[index] if part == 0 else (1 - part) * found[index] + part * found[index + 1]
        return math.exp(float(found))


@dataclass(frozen=True)
class KernelTable:
    """What was measured on a device: grids by the type of numbers, and where they are from.

    `stand_ins` has for a type that nobody measured the one whose kernels are nearest to it on this device.
    """

    name: str
    products: Mapping[str, Grid]
    attention: Mapping[str, Grid]
    grouped: Mapping[str, Grid]
    stand_ins: Mapping[str, str]
    provenance: Mapping[str, str]

    def type_for(self, dtype: str) -> str | None:
        """Return the type whose products stand for those of `dtype`; None where none of them was measured."""
        return next((name for name in (dtype, self.stand_ins.get(dtype)) if name in self.products), None)


@cache
def kernel_table(name: str) -> KernelTable:
    """Return a packaged table by the name of its device."""
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


def _grids(arrays: Mapping[str, Any], kind: str, axes: Sequence[str]) -> dict[str, Grid]:
    """The grids of a kind, cells that nobody measured filled from those nearest to them."""
    of_kind = [name for name in arrays if name.startswith(f"{kind}_") and f"{kind}_axis_" not in name]
    places = tuple(tuple(np.log(arrays[f"{kind}_axis_{axis}"]).tolist()) for axis in axes) if of_kind else ()
    return {name.removeprefix(f"{kind}_"): Grid(places, filled(arrays[name], places)) for name in of_kind}


def filled(steps: np.ndarray[Any, Any], axes: Sequence[Sequence[float]]) -> Floats:
    """Return logarithms of FLOP/s; an empty cell has the mean of the nearest, weighted by inverse square distance."""
    found: Floats = steps / STEPS + math.log(1e12)
    empty = steps == EMPTY
    if empty.any():
        where = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
        measured, values = where[~empty], found[~empty]
        for cell in np.argwhere(empty):
            distance = np.linalg.norm(measured - where[tuple(cell)], axis=1)
            nearest = np.argsort(distance, kind="stable")[:_NUM_NEAREST]
            found[tuple(cell)] = np.average(values[nearest], weights=distance[nearest] ** -2.0)
    return found


def _place(axis: Sequence[float], value: float) -> tuple[int, float]:
    """The cell before a value, and how far it is on the way to the next."""
    if value <= axis[0]:
        return 0, 0.0
    if value >= axis[-1]:
        return len(axis) - 1, 0.0
    index = bisect_right(axis, value) - 1
    return index, (value - axis[index]) / (axis[index + 1] - axis[index])


@dataclass(frozen=True)
class Tabled:
    """The `KernelTimes` of a device's table, for products of a type; what the table lacks is the data sheet's.

    A kernel takes what the table says times the class's in-situ factor, and `kernel_s` from the one before it. The
    two products of a backward are forward products with other roles of m, n and k. Attention's backward was not
    measured: it has the forward's rate times the ratio of what the class gets of the peak in both.
    """

    specified: Specified
    table: KernelTable

    @property
    def device(self) -> Device:
        """The device."""
        return self.specified.device

    def product_s(self, form: Form, m: float, n: float, k: float, *, groups: int = 1) -> float:
        """Return the seconds of a product, or of `groups` that share the tokens; never faster than memory."""
        factor, name = self._factor("products"), self.table.type_for(self.specified.dtype)
        if factor is None or name is None:
            return self.specified.product_s(form, m, n, k, groups=groups)
        rows, columns, depth = of_one_group(form, m, n, k, groups)
        grouped = self.table.grouped.get(name) if groups > 1 else None
        if grouped is None:
            rate = self.table.products[name].rate(rows, columns, depth)
        else:
            tokens, sides = (depth, (rows, columns)) if form == "weight" else (rows, (columns, depth))
            rate = expert_rate(grouped, tokens, min(sides))
        computed = factor * 2 * rows * columns * depth * groups / rate
        return max(computed, self.specified.memory_s(form, m, n, k, groups=groups)) + self._kernel_s

    def attention_s(self, part: Literal["forward", "backward"], core: AttentionCore) -> float:
        """Return the seconds of fused attention: 2.5 times the FLOPs backward."""
        factor, grid = self._factor("attention"), self.table.attention.get(at_least_16_bits(self.specified.dtype))
        if factor is None or grid is None:
            return self.specified.attention_s(part, core)
        size, sequences = (core.qk_size + core.v_size) / 2, core.heads * core.queries / core.keys
        forward_s = factor * core.forward_flops / grid.rate(size, core.keys, sequences)
        if part == "forward":
            return forward_s + self._kernel_s
        constants = self.device.efficiency
        return 2.5 * forward_s * constants.attention_forward / constants.attention_backward + self._kernel_s

    def moved_s(self, kernel: MemoryKernel, num_bytes: float, *, launches: int = 1) -> float:
        """Return the seconds of kernels bound by memory, by the data sheet."""
        return self.specified.moved_s(kernel, num_bytes, launches=launches)

    def peak(self, of: Literal["products", "attention"]) -> float:
        """Return the data sheet's FLOP/s."""
        return self.specified.peak(of)

    def is_measured(self, of: Literal["products", "attention"]) -> bool:
        """Return whether the table has them."""
        if self._factor(of) is None:
            return False
        dtype = self.specified.dtype
        return self.table.type_for(dtype) is not None if of == "products" else "bfloat16" in self.table.attention

    @property
    def _kernel_s(self) -> float:
        return self.device.efficiency.kernel_s

    def _factor(self, of: Literal["products", "attention"]) -> float | None:
        in_situ = self.device.efficiency.in_situ
        assert in_situ is not None, "tables are in use where a class says what a run makes of them"
        if of == "attention":
            return in_situ.factors.get("attention")
        dtype = self.specified.dtype
        names = (dtype, self.table.type_for(dtype) or dtype)
        return next((in_situ.factors[name] for name in names if name in in_situ.factors), None)


def expert_rate(grouped: Grid, rows: float, columns: float) -> float:
    """Return the FLOP/s of grouped products: as many fewer as there are fewer rows than the fewest measured."""
    fewest = math.exp(grouped.axes[0][0])
    return grouped.rate(rows, columns) * min(1.0, rows / fewest)


def kernel_times(device: Device, dtype: str) -> Tabled | Specified:
    """Return who knows a device's kernels best: the table where its class has in-situ factors, else its data sheet.

    A measured profile goes before both (`ppsim.costs.measured`).
    """
    specified = Specified(device, dtype)
    if device.kernels is None or device.efficiency.in_situ is None:
        return specified
    return Tabled(specified, kernel_table(device.kernels))


def most_expert_rows(times: Tabled | Specified) -> float | None:
    """Return the rows of an expert up to which its products were measured; None where they are by no table."""
    if not isinstance(times, Tabled) or not times.is_measured("products"):
        return None
    grouped = times.table.grouped.get(times.table.type_for(times.specified.dtype) or "")
    return None if grouped is None else math.exp(grouped.axes[0][-1])
