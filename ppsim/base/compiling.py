"""One source for the hot loops: plain Python for small work, compiled by numba where that pays for its import."""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from types import FunctionType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Engine = Literal["auto", "plain", "compiled"]

WORTH_COMPILING = 100_000
"""Loop iterations from which importing numba costs less than running the loop in plain Python, 2 to 4 µs each."""


@cache
def _compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel compiled, together with the functions of its own module that it calls."""
    import numba

    called = {name: kernel.__globals__.get(name) for name in kernel.__code__.co_names}
    helpers = {
        name: _compiled(one)
        for name, one in called.items()
        if isinstance(one, FunctionType) and one.__module__ == kernel.__module__
    }
    linked = FunctionType(kernel.__code__, kernel.__globals__ | helpers) if helpers else kernel
    compiled: Callable[..., Any] = numba.njit(cache=True, nogil=True)(linked)
    return compiled


def run_kernel(
    kernel: Callable[..., Any],
    *,
    inputs: Sequence[Any],
    outputs: Sequence[NDArray[Any]] = (),
    size: int,
    engine: Engine = "auto",
) -> Any:
    """Return `kernel(*inputs, *outputs)`, a function over arrays that fills its outputs in place.

    A kernel may call functions of its own module, which are compiled with it. "auto" compiles from
    `WORTH_COMPILING` iterations on, and whenever numba is imported already. Plain and compiled give the same
    bits: a kernel adds and compares, in one order.
    """
    if engine == "compiled" or (engine == "auto" and (size >= WORTH_COMPILING or sys.modules.get("numba"))):
        return _compiled(kernel)(*inputs, *outputs)
    as_lists = [value.tolist() if isinstance(value, np.ndarray) else value for value in inputs]
    filled = [array.tolist() for array in outputs]  # plain Python is several times faster on lists
    result = kernel(*as_lists, *filled)
    for array, values in zip(outputs, filled, strict=True):
        array[:] = values
    return result
