"""A cache that evicts the least recently used values."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

Value = TypeVar("Value")

_LARGEST_PART = 4
"""A value larger than 1/4 of the capacity is not cached, so that it does not evict all others."""


class LRUCache(Generic[Value]):
    """A least-recently-used cache: the sizes of its values sum to at most `most`.

    Returned values are shared and must not be changed.

    >>> kept = LRUCache(most=8)
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
        """This is thread-safe, but two threads that miss the same key both call `make`."""
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
        self._found[key] = value, size  # most recently used
        self._sum += size - replaced
        while self._sum > self._most:
            _, (_, forgotten) = self._found.popitem(last=False)
            self._sum -= forgotten

    def forget(self, key: Hashable) -> None:
        with self._lock:
            _, size = self._found.pop(key, (None, 0))
            self._sum -= size

    def clear(self) -> None:
        with self._lock:
            self._found.clear()
            self._sum = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._found
