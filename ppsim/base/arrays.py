"""Type aliases for arrays."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints32: TypeAlias = NDArray[np.int32]
Ints64: TypeAlias = NDArray[np.int64]

Numbers: TypeAlias = float | Sequence[float] | Floats
"""One number for all items, or one number per item."""

_Number = TypeVar("_Number", bound=np.generic)


def distinct(values: NDArray[_Number]) -> NDArray[_Number]:
    """Unlike `np.unique`, this does not import masked arrays.

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    ordered = np.sort(values, axis=None)
    is_new = np.ones(len(ordered), dtype=bool)
    is_new[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_new]


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
