"""Rows of numbers as the page carries them: behind each other in one piece that deflates well, in base64.

A table's times and indices repeat themselves, but their bytes do not. So times are whole ticks, of which only the
differences are kept, and of every row first come the lowest bytes of all numbers, then the next ones, and so on.
"""

import base64
import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats
from ppsim.schedule.table import NONE

_TICKS = 12  # decimal digits of the longest time: below them is what adding floats in another order leaves
_LEVEL = 4  # of zlib, beyond which it takes longer for little


def tick_of(longest_s: float) -> float:
    """Return seconds of a tick: a power of ten, of which the longest time has 12 digits or 13.

    >>> tick_of(3.25)
    1e-12
    """
    return 10.0 ** (math.floor(math.log10(longest_s)) - _TICKS) if longest_s > 0 else 1.0


class Numbers:
    """Rows of numbers; what `add` and the others return says where a row lies, and how it is read back.

    That is its `type` (i1, i2, i4, f4 or f8), the byte `at` which it begins, its `length`, and `how` its numbers
    follow from those that are kept: as they are (""), each added to the one before ("sum"), or taken from its own
    place, 0 standing for none ("back").
    """

    def __init__(self, tick_s: float) -> None:
        self._tick_s = tick_s
        self._deflate = zlib.compressobj(_LEVEL)
        self._pieces: list[bytes] = []
        self._at = 0

    def add(self, values: NDArray[Any], how: str = "") -> dict[str, Any]:
        """Add a row as it is kept; whole numbers take as few bytes as the largest needs."""
        if values.dtype.kind in "iu":
            values = values.astype(_narrowest(values))
        kept = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False)
        planes = kept.view(np.uint8).reshape(len(kept), kept.itemsize).T
        self._pieces.append(self._deflate.compress(planes.tobytes()))
        told = {"type": kept.dtype.str[1:], "at": self._at, "length": len(kept), "how": how}
        self._at += kept.nbytes
        return told

    def add_times(self, at_s: Floats) -> dict[str, Any]:
        """Add times, in ticks."""
        ticks = at_s / self._tick_s
        np.rint(ticks, out=ticks)
        ticks[1:] -= ticks[:-1]
        return self.add(ticks, "sum")

    def add_rising(self, values: NDArray[Any]) -> dict[str, Any]:
        """Add whole numbers that are mostly a little more than the one before."""
        return self.add(np.diff(values.astype(np.int64), prepend=0), "sum")

    def add_back(self, values: NDArray[Any]) -> dict[str, Any]:
        """Add the place of another for each, or `NONE`."""
        places = np.arange(len(values), dtype=np.int32)
        return self.add(np.where(values == NONE, 0, places - values), "back")

    def packed(self) -> str:
        """Return all rows, deflated, in base64; nothing can be added any more."""
        return base64.b64encode(b"".join([*self._pieces, self._deflate.flush()])).decode()


def _narrowest(values: NDArray[Any]) -> str:
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    return next(kind for kind in ("i1", "i2", "i4") if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
