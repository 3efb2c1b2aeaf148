"""The packaged tables of devices, links and classes of devices (data/*.toml): the one place of peaks.

Nothing heavy is imported, so that a measurement asks here too.
"""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from ppsim.base.data import data_folder
from ppsim.base.files import read_toml

TYPE_NAMES = {
    "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp8": "float8", "float8_e4m3fn": "float8",
    "float8_e5m2": "float8",
}  # fmt: skip
"""Names of types in profiles and in torch, beside those of the tables."""


@dataclass(frozen=True)
class DataSheet:
    """What a data sheet says that a device does at most: dense FLOP/s of matrix products by type."""

    source: str
    flops_per_s: dict[str, float]

    def peak(self, dtype: str) -> float | None:
        """Return the FLOP/s of a type by any of its names, None where the sheet has none."""
        return self.flops_per_s.get(TYPE_NAMES.get(dtype, dtype))


@cache
def hardware(part: str) -> dict[str, Any]:
    """Return one of the packaged tables: "devices", "links" or "efficiency"."""
    return read_toml(data_folder("machine/data") / f"{part}.toml")


def data_sheet(device_name: str) -> DataSheet | None:
    """Return what is known of a device by the name that torch gives it, None for one that is not in the table.

    >>> data_sheet("NVIDIA H100 80GB HBM3").flops_per_s["bfloat16"] / 1e12
    989.4
    >>> data_sheet("AMD EPYC") is None
    True
    """
    for device in hardware("devices").values():
        if re.search(device["pattern"], device_name):
            of_peaks = device["source"].split(";")[0]
            return DataSheet(of_peaks, device["peak_flops_per_s"])
    return None
