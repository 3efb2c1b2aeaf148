"""Seconds of single kernels on a device by tables of what others measured on it, times what a run makes of them.

A file of profiles/kernels holds, for each type of numbers, the rate of products over m, n and k, of causal
attention over head size, sequence length and heads, and of grouped products over rows and columns of an expert: the
logarithm of TFLOP/s in steps of 1/`STEPS`, in 16 bits, `EMPTY` where nobody measured. `facts` has the source, its
copyright and licence, and which types stand for others. scripts/make_kernel_tables.py makes them.
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
from ppsim.base.data import data_folder
from ppsim.machine.cluster import Device, InSitu
from ppsim.machine.kernels.names import Form, Kernels, MemoryKernel
from ppsim.machine.kernels.specified import Specified, at_least_16_bits
from ppsim.machine.kernels.times import AttentionCore, of_one_group

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


class _Grids(Mapping[str, Grid]):
    """The grids of a kind, cells that nobody measured filled from those nearest to them when one is asked for."""

    def __init__(self, steps: Mapping[str, Any], places: Sequence[tuple[float, ...]]) -> None:
        self._steps, self._places = steps, tuple(places)
        self._made: dict[str, Grid] = {}

    def __getitem__(self, name: str) -> Grid:
        if name not in self._made:
            self._made[name] = Grid(self._places, filled(self._steps[name], self._places))
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


def filled(steps: np.ndarray[Any, Any], axes: Sequence[Sequence[float]]) -> Floats:
    """Return logarithms of FLOP/s; an empty cell has the mean of the nearest, by inverse square distance."""
    found: Floats = steps / STEPS + math.log(1e12)
    empty = steps == EMPTY
    if empty.any():
        where = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
        squares = ((where[empty][:, None] - where[~empty][None]) ** 2).sum(axis=-1)
        nearest = np.argpartition(squares, min(_NUM_NEAREST, squares.shape[1]) - 1, axis=1)[:, :_NUM_NEAREST]
        weights = 1 / np.take_along_axis(squares, nearest, axis=1)
        found[empty] = (found[~empty][nearest] * weights).sum(axis=1) / weights.sum(axis=1)
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

    @property
    def in_situ(self) -> InSitu:
        """What a run makes of the table; every device whose table is in use has it."""
        found = self.device.efficiency.in_situ
        assert found is not None, "kernel_times takes the data sheet where there is none"
        return found

    @cached_property
    def name(self) -> str | None:
        """The type whose products stand for those of the type; None where none of them was measured."""
        return self.table.type_for(self.specified.dtype)

    def factor(self, of: Kernels) -> float | None:
        """Return what a run makes of the table's seconds; None where these kernels are by the data sheet.

        Products go by the type itself, or the one that stands for it; attention is in 16 bits whatever the type.
        """
        if of not in self._factors:
            self._factors[of] = self._factor(of)
        return self._factors[of]

    @cached_property
    def _factors(self) -> dict[Kernels, float | None]:
        """Those that were asked for."""
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
        """The rows of an expert up to which its products were measured; None where they are by no table."""
        if self.factor("experts") is None or self.name is None:
            return None
        return round(math.exp(self.table.grouped[self.name].axes[0][-1]))

    def product_s(self, form: Form, m: float, n: float, k: float, *, groups: int = 1) -> float:
        """Return the seconds of a product, or of `groups` that share the tokens; never faster than memory.

        Groups are no faster than one product of all their rows, which was measured by itself: their rates are what
        is left of whole mixtures. What is narrower than any expert measured is by the data sheet.
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
        """Return the seconds of fused attention: 2.5 times the FLOPs backward."""
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
        """Return the seconds of memory-bound kernels, by the data sheet."""
        return self.specified.moved_s(kernel, num_bytes, launches=launches)

    def peak(self, of: Literal["products", "attention"]) -> float:
        """Return the data sheet's FLOP/s."""
        return self.specified.peak(of)

    def is_measured(self, of: Kernels) -> bool:
        """Return whether the table has them, and the class a factor for them."""
        return self.factor(of) is not None

    @property
    def _kernel_s(self) -> float:
        return self.device.efficiency.kernel_s


def expert_rate(grouped: Grid, rows: float, columns: float) -> float:
    """Return the FLOP/s of grouped products: as many fewer as there are fewer rows than the fewest measured."""
    fewest = math.exp(grouped.axes[0][0])
    return grouped.rate(rows, columns) * min(1.0, rows / fewest)


def kernel_times(device: Device, dtype: str, *, deterministic: bool = False) -> Tabled | Specified:
    """Return who knows a device's kernels best: the table where its class has in-situ factors, else its data sheet.

    A measured profile goes before both (`ppsim.costs.measured`).
    """
    specified = Specified(device, dtype, deterministic)
    if device.kernels is None or device.efficiency.in_situ is None:
        return specified
    return Tabled(specified, kernel_table(device.kernels))
