"""What of several things nothing improves on, in time and memory."""

from collections.abc import Callable, Iterable
from typing import TypeVar

Thing = TypeVar("Thing")


def front_of(things: Iterable[Thing], sizes: Callable[[Thing], tuple[float, float]]) -> list[Thing]:
    """Return the Pareto set, the least of the first size first: each has less of the second than all before.

    Of those alike in both sizes, the first is kept.

    >>> front_of([(3, 4), (2, 7), (1, 5), (1, 6)], lambda one: one)
    [(1, 5), (3, 4)]
    """
    front: list[Thing] = []
    for thing in sorted(things, key=sizes):
        if not front or sizes(thing)[1] < sizes(front[-1])[1]:
            front.append(thing)
    return front
