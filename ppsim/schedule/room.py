"""How large a table may be: what the memory that is free on this machine holds."""

import os
from pathlib import Path

from ppsim.base.errors import ConfigError
from ppsim.base.units import size

BYTES_BUILT = 160
"""Bytes an action takes while a table is built, measured: for a table of 400,000 to 1,200,000."""

BYTES_PROJECTED = 4_800
"""Bytes an action takes while a plan is projected and explained, measured alike."""

_MEMORY = Path("/proc/meminfo")
_ALWAYS_FREE = 2**24
"""Bytes for which nobody is asked: what Python and numpy take is more."""


def require_room(num_actions: int, *, bytes_each: int = BYTES_BUILT) -> None:
    """Raise `ConfigError` for more actions than the free memory holds, before any is made."""
    needed = num_actions * bytes_each
    if needed > _ALWAYS_FREE and needed > (free := free_bytes()):
        raise ConfigError(
            f"{num_actions:,} actions (two or three for each stage and microbatch) need about {size(needed)}, and "
            f"{size(free)} of memory are free on this machine, enough for {free // bytes_each:,}"
        )


def free_bytes() -> int:
    """Return the memory that can be had now; all there is where the system does not tell."""
    try:
        told = _MEMORY.read_text(encoding="ascii")
        return int(told.partition("MemAvailable:")[2].split()[0]) * 1024
    except (OSError, IndexError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
