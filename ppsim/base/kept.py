"""What a process keeps of its work: the last that was asked for, as much as may be kept."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")

_LARGEST_PART = 4
"""One thing takes at most this part of the room, so that a large one does not drive out all others."""


class Kept(Generic[Value]):
    """Values by key; where their sizes sum to more than `most`, those asked for longest ago are forgotten.

    What is returned is shared: nobody may change it.

    >>> kept = Kept(most=8)
    >>> [kept.get(key, size=2, make=lambda key=key: key.upper()) for key in "abcda"]
    ['A', 'B', 'C', 'D', 'A']
    >>> kept.get("e", size=2, make=lambda: "E"), "b" in kept, "a" in kept
    ('E', False, True)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: dict[Hashable, tuple[Value, int]] = {}

    def get(self, key: Hashable, *, size: int, make: Callable[[], Value]) -> Value:
        """Return the value that is kept under `key` or else what `make` returns, which counts `size`."""
        entry = self._found.pop(key, None)
        if entry is None:
            entry = make(), size
        if size * _LARGEST_PART <= self._most:
            self._found[key] = entry  # behind all others
            while sum(size for _, size in list(self._found.values())) > self._most:
                self._found.pop(next(iter(list(self._found))), None)
        return entry[0]

    def forget(self, key: Hashable) -> None:
        """Forget one value, where it is kept."""
        self._found.pop(key, None)

    def clear(self) -> None:
        """Forget all: benchmarks time what is found anew."""
        self._found.clear()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._found
