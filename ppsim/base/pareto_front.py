"""Pareto sets of time and memory."""

from collections.abc import Callable, Iterable
from typing import TypeVar

Thing = TypeVar("Thing")


def pareto_front(things: Iterable[Thing], sizes: Callable[[Thing], tuple[float, float]]) -> list[Thing]:
    """The result is sorted by the first size. If items are equal in both sizes, the first is returned.

    >>> pareto_front([(3, 4), (2, 7), (1, 5), (1, 6)], lambda one: one)
    [(1, 5), (3, 4)]
    """
    front: list[Thing] = []
    for thing in sorted(things, key=sizes):
        if not front or sizes(thing)[1] < sizes(front[-1])[1]:
            front.append(thing)
    return front
