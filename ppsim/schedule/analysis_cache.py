"""Cache of the facts that do not depend on costs: dependencies, checks, messages and event graphs of a table.

All users of a table share the cached results, so that sweeps, searches, advice and other channels evaluate new
durations on existing graphs.
"""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from ppsim.base.lru_cache import LRUCache
from ppsim.schedule.table import Schedule

_ACTIONS = 2_000_000
"""Capacity of the cache in actions, at up to 50 bytes per action."""

_BESIDE = 40
"""Fixed size of a cached result, in the same unit as `_ACTIONS`. It dominates for small tables."""

KEPT: LRUCache[tuple[Schedule, Any]] = LRUCache(_ACTIONS)

Found = TypeVar("Found")


def cached(schedule: Schedule, what: Hashable, make: Callable[[], Found], *, part: float = 1.0) -> Found:
    """Return the cached result `what` for a table object; compute it with `make` at the first request.

    `part` is the result's size per action, relative to 50 bytes. If `make` raises, nothing is cached.
    """
    # The cache entry holds a reference to the table, so that no other table can get the same id.
    size = int(part * len(schedule)) + _BESIDE
    found: Found = KEPT.get((id(schedule), what), size=size, make=lambda: (schedule, make()))[1]
    return found
