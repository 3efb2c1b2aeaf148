"""Packaged tables of devices, links and GPU types (data/*.toml), the only source of peaks."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from ppsim.base.files import data_folder, read_toml

TYPE_NAMES = {
    "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp8": "float8", "float8_e4m3fn": "float8",
    "float8_e5m2": "float8",
}  # fmt: skip
"""Dtype names of profiles and torch → names in the tables."""


@dataclass(frozen=True)
class DataSheet:
    """Dense GEMM peak of a device by dtype, in FLOP/s."""

    source: str
    flops_per_s: dict[str, float]

    def peak(self, dtype: str) -> float | None:
        return self.flops_per_s.get(TYPE_NAMES.get(dtype, dtype))


@cache
def hardware(part: str) -> dict[str, Any]:
    """The parts are "devices", "links" and "efficiency"."""
    return read_toml(data_folder("machine/data") / f"{part}.toml")


def data_sheet(device_name: str) -> DataSheet | None:
    """Return the data sheet by the name that torch reports, or None for an unknown device.

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
