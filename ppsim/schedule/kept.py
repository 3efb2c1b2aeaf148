"""What was found of a table, kept while it is asked for: the same at any costs, and shared by all who ask.

Its dependencies, that it keeps the rules, its sends and receives, and its event graph on every network: sweeps,
searches, advice and other channels evaluate new durations on the graphs that there are.
"""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from ppsim.base.kept import Kept
from ppsim.schedule.table import Schedule

_ACTIONS = 2_000_000
"""Of all that is kept, 50 bytes each at most."""

_BESIDE = 40
"""What is kept of a small table takes about as much as so many actions, beside its own."""

KEPT: Kept[tuple[Schedule, Any]] = Kept(_ACTIONS)

Found = TypeVar("Found")


def kept(schedule: Schedule, what: Hashable, make: Callable[[], Found], *, part: float = 1.0) -> Found:
    """Return what `make` finds of a table, or found of the same object before; `what` names it.

    `part` is of those 50 bytes an action. Nothing is kept where `make` raises.
    """
    # The table is kept beside what was found of it, so that no other gets its id.
    size = int(part * len(schedule)) + _BESIDE
    found: Found = KEPT.get((id(schedule), what), size=size, make=lambda: (schedule, make()))[1]
    return found
