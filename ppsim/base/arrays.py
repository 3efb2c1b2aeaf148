"""What arrays are called where they are passed on."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints32: TypeAlias = NDArray[np.int32]
Ints64: TypeAlias = NDArray[np.int64]

Numbers: TypeAlias = float | Sequence[float] | Floats
"""One number for all, or a sequence of one entry each."""
