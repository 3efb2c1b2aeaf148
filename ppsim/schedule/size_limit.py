"""Limit on the size of a schedule table: it must fit in the free memory of this machine."""

import os
from pathlib import Path

from ppsim.base.errors import ConfigError
from ppsim.base.units import size

BYTES_BUILT = 160
"""Bytes per action while a table is built, measured for tables of 400,000 to 1,200,000 actions."""

BYTES_PROJECTED = 4_800
"""Bytes per action while a plan is projected and explained, measured for the same tables."""

_MEMORY = Path("/proc/meminfo")
_ALWAYS_FREE = 2**24
"""Requests up to 16 MiB are always allowed: Python and numpy need more themselves."""


def require_memory(num_actions: int, *, bytes_each: int = BYTES_BUILT) -> None:
    needed = num_actions * bytes_each
    if needed > _ALWAYS_FREE and needed > (free := free_bytes()):
        raise ConfigError(
            f"{num_actions:,} actions (two or three for each stage and microbatch) need about {size(needed)}, and "
            f"{size(free)} of memory are free on this machine, enough for {free // bytes_each:,}"
        )


def free_bytes() -> int:
    """Return all physical memory if the system does not report the available memory."""
    try:
        told = _MEMORY.read_text(encoding="ascii")
        return int(told.partition("MemAvailable:")[2].split()[0]) * 1024
    except (OSError, IndexError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
