"""What arrays are called where they are passed on."""

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints32: TypeAlias = NDArray[np.int32]
Ints64: TypeAlias = NDArray[np.int64]

Numbers: TypeAlias = float | Sequence[float] | Floats
"""One number for all, or a sequence of one entry each."""

_Number = TypeVar("_Number", bound=np.generic)


def distinct(values: NDArray[_Number]) -> NDArray[_Number]:
    """Return what an array has, ascending, each once: `np.unique`, which imports masked arrays to look for some.

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    found = np.sort(values, axis=None)
    is_new = np.ones(len(found), dtype=bool)
    is_new[1:] = found[1:] != found[:-1]
    return found[is_new]
