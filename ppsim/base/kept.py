"""What a process keeps of its work: the last that was asked for, as much as may be kept."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
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
        self._sum = 0
        self._found: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, *, size: int, make: Callable[[], Value]) -> Value:
        """Return the value that is kept under `key` or else what `make` returns, which counts `size`.

        Threads may ask at once; where two ask for what is not there, both make it.
        """
        with self._lock:
            if (entry := self._found.get(key)) is not None:
                self._found.move_to_end(key)
                return entry[0]
        value = make()
        if size * _LARGEST_PART <= self._most:
            with self._lock:
                self._keep(key, value, size)
        return value

    def _keep(self, key: Hashable, value: Value, size: int) -> None:
        _, replaced = self._found.pop(key, (None, 0))
        self._found[key] = value, size  # behind all others
        self._sum += size - replaced
        while self._sum > self._most:
            _, (_, forgotten) = self._found.popitem(last=False)
            self._sum -= forgotten

    def forget(self, key: Hashable) -> None:
        """Forget one value, where it is kept."""
        with self._lock:
            _, size = self._found.pop(key, (None, 0))
            self._sum -= size

    def clear(self) -> None:
        """Forget all: benchmarks time what is found anew."""
        with self._lock:
            self._found.clear()
            self._sum = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._found
