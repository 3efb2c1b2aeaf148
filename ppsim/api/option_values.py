"""Parsers of option values."""

import re
from collections.abc import Sequence
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.model.execution import ORDERS, Order


def parse_split(given: str | Sequence[int]) -> Any:
    """For a layout string, return the content of each stage; for numbers, the layers per stage."""
    if not isinstance(given, str):
        return list(given)
    if given in ("auto", "even"):
        return given
    if "|" in given or given.startswith("E"):
        from ppsim.trainers.megatron.write_schedule import parse_layout  # heavy import

        return parse_layout(given)
    try:
        return [int(part) for part in given.split(",")]
    except ValueError:
        raise ConfigError(
            f"--split is '{given}': give auto, even or layers per stage as 2,3,3,2, or a layout as Ett|tttL"
        ) from None


def parse_overlap(given: str | float) -> float | Order:
    """Return the order of operations, or the hidden fraction, of --overlap-ep.

    >>> parse_overlap("megatron"), parse_overlap("0.9")
    ('megatron', 0.9)
    """
    if given in ORDERS:
        return given
    try:
        return float(given)
    except ValueError:
        orders = ", ".join(ORDERS)
        raise ConfigError(f"--overlap-ep is '{given}': give {orders}, or a part from 0 to 1") from None


def parse_compute_scale(given: str | float | None, dtype: str) -> float | None:
    """Return the value of --compute-scale for a dtype.

    >>> parse_compute_scale("bfloat16:0.97,float8:1.2", "float8"), parse_compute_scale(0.9, "float8")
    (1.2, 0.9)
    """
    if given is None:
        return None
    try:
        if ":" not in str(given):
            return float(given)
        pairs = dict(part.strip().split(":") for part in str(given).split(","))
        return {name: float(number) for name, number in pairs.items()}.get(dtype)
    except ValueError:
        raise ConfigError(
            f"--compute-scale is '{given}': give a number, or one a dtype as bfloat16:0.97,float8:1.2"
        ) from None


def parse_size(given: str | float | None) -> float | None:
    """Return bytes for 80GiB, 80GB or a number of bytes.

    >>> parse_size("80GiB") == parse_size(80 * 2**30)
    True
    """
    if given is None:
        return None
    if not isinstance(given, str):
        if not 0 < given < float("inf"):
            raise ConfigError(f"a memory limit must be more than 0 bytes: got {given:g}")
        if given < 2**20:
            raise ConfigError(
                f"a memory limit of {given:g} has no unit: is '{given:g}GiB' meant? (or '{given:g}B', bytes)"
            )
        return float(given)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", given.strip(), re.IGNORECASE)
    if match is None or float(match[1]) == 0:
        raise ConfigError(f"cannot read the size '{given}': write it as 80GiB or 80GB")
    base = 1024 if match[3] else 1000
    if given.strip()[-1].isdigit() and float(match[1]) < 2**20:
        raise ConfigError(f"the size '{given}' has no unit: is {match[1]}GiB meant? (or {match[1]}B, bytes)")
    return float(float(match[1]) * base ** " KMGT".index(match[2].upper() or " "))
