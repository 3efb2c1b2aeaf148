"""Interpolation error of tables of measured kernels: each inner cell is estimated from its neighbours.

python benchmarks/kernel_tables.py

One axis at a time, a cell is left out and interpolated from its two neighbours, like a size between them. Errors
are in seconds: interpolated / measured - 1.
"""

from collections.abc import Iterator

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.units import signed_percent
from ppsim.machine.devices import hardware
from ppsim.machine.kernels.published_tables import RateGrid, kernel_table


def left_out(grid: RateGrid) -> Iterator[Floats]:
    """Yield the errors of the inner cells, one array per axis; for unmeasured cells, of their filled values."""
    for number, axis in enumerate(grid.axes):
        places = np.array(axis)
        rates = np.moveaxis(grid.rates, number, -1)
        part = (places[1:-1] - places[:-2]) / (places[2:] - places[:-2])
        between = (1 - part) * rates[..., :-2] + part * rates[..., 2:]
        yield np.exp(rates[..., 1:-1] - between).ravel() - 1


def main() -> None:
    print("| table | kernels | type | cells | median TFLOP/s | mean error | mean absolute | 95 % within |")
    print("|---|---|---|--:|--:|--:|--:|--:|")
    for name in dict.fromkeys(device["kernels"] for device in hardware("devices").values() if "kernels" in device):
        table = kernel_table(name)
        for what in ("products", "attention", "grouped"):
            for dtype, grid in getattr(table, what).items():
                errors = np.concatenate(list(left_out(grid)))
                print(
                    f"| {name} | {what} | {dtype} | {grid.rates.size} | {np.exp(np.median(grid.rates)) / 1e12:.0f} "
                    f"| {signed_percent(float(errors.mean()))} | {100 * np.abs(errors).mean():.2f} % "
                    f"| {100 * np.quantile(np.abs(errors), 0.95):.2f} % |"
                )


if __name__ == "__main__":
    main()
