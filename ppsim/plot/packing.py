"""Compressed arrays for the interactive page.

Times and indices of a schedule repeat, but their bytes do not. So times become differences of whole ticks, and
every row is stored by byte position: first the lowest byte of all numbers, then the next byte, and so on.
"""

import base64
import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats
from ppsim.schedule.table import NONE

_TICKS = 12  # decimal digits of the longest time; later digits are floating-point rounding
_LEVEL = 4  # zlib level; higher levels are slower and save little


def tick_of(longest_s: float) -> float:
    """Return the seconds of a tick: a power of ten, such that the longest time has 12 or 13 digits.

    >>> tick_of(3.25)
    1e-12
    """
    return 10.0 ** (math.floor(math.log10(longest_s)) - _TICKS) if longest_s > 0 else 1.0


class PackedNumbers:
    """Rows of numbers in one compressed stream; each `add` method returns the row's address and encoding.

    `at` is the offset of the first byte. `how` is the decoding: "" for plain values, "sum" for differences to the
    previous value, "back" for the distance from the value's own index back to an earlier index (0: none).
    """

    def __init__(self, tick_s: float) -> None:
        self._tick_s = tick_s
        self._deflate = zlib.compressobj(_LEVEL)
        self._pieces: list[bytes] = []
        self._at = 0

    def add(self, values: NDArray[Any], how: str = "") -> dict[str, Any]:
        """Integers use the narrowest type that holds them all."""
        if values.dtype.kind in "iu":
            values = values.astype(_narrowest(values))
        kept = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False)
        planes = kept.view(np.uint8).reshape(len(kept), kept.itemsize).T
        self._pieces.append(self._deflate.compress(planes.tobytes()))
        told = {"type": kept.dtype.str[1:], "at": self._at, "length": len(kept), "how": how}
        self._at += kept.nbytes
        return told

    def add_times(self, at_s: Floats) -> dict[str, Any]:
        ticks = at_s / self._tick_s
        np.rint(ticks, out=ticks)
        ticks[1:] -= ticks[:-1]
        return self.add(ticks, "sum")

    def add_rising(self, values: NDArray[Any]) -> dict[str, Any]:
        """Differences are efficient if each integer is slightly larger than the previous one."""
        return self.add(np.diff(values.astype(np.int64), prepend=0), "sum")

    def add_back(self, values: NDArray[Any]) -> dict[str, Any]:
        """Add indices of earlier entries of the same row, or `NONE`."""
        places = np.arange(len(values), dtype=np.int32)
        return self.add(np.where(values == NONE, 0, places - values), "back")

    def packed(self) -> str:
        """Afterwards nothing can be added."""
        return base64.b64encode(b"".join([*self._pieces, self._deflate.flush()])).decode()


def _narrowest(values: NDArray[Any]) -> str:
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    return next(kind for kind in ("i1", "i2", "i4") if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
