"""Cache of table facts that do not depend on costs, so that sweeps and searches share one event graph per table."""

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
    """Call `make` once per table and key `what`; `part` is the result's size per action, relative to 50 bytes."""
    # The reference to the table prevents another table from getting the same id.
    size = int(part * len(schedule)) + _BESIDE
    kept: Found = KEPT.get((id(schedule), what), size=size, make=lambda: (schedule, make()))[1]
    return kept
