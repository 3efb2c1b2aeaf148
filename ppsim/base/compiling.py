"""One source for the hot loops: plain Python for small work, compiled by numba where that pays for its import."""

import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, Literal

import numpy as np

Engine = Literal["auto", "plain", "compiled"]

WORTH_COMPILING = 100_000
"""Loop iterations from which importing numba costs less than running the loop in plain Python, 2 to 4 µs each."""


COMPILING = "compiling, once for this installation (numba keeps it beside the code)"

_TOLD: ContextVar[Callable[[str], None] | None] = ContextVar("_TOLD", default=None)
_ENGINE: ContextVar[Engine] = ContextVar("_ENGINE", default="auto")


@contextmanager
def running_on(engine: Engine) -> Iterator[None]:
    """Within the block, run kernels on `engine` where they are not given another."""
    token = _ENGINE.set(engine)
    try:
        yield
    finally:
        _ENGINE.reset(token)


@contextmanager
def told_of_compiling(say: Callable[[str], None]) -> Iterator[None]:
    """Within the block, call `say` with `COMPILING` when a kernel is compiled that no cache holds; at most once."""
    token = _TOLD.set(say)
    try:
        yield
    finally:
        _TOLD.reset(token)


class Compilations:
    """How many kernels this process has compiled, and how long; numba tells of nested ones too."""

    number, seconds, depth, began = 0, 0.0, 0, 0.0

    def on_start(self, _: Any) -> None:
        """Begin to count where this is within no other, and tell who wants to know."""
        if self.depth == 0:
            self.began = time.monotonic()
            if say := _TOLD.get():
                _TOLD.set(None)
                say(COMPILING)
        self.depth += 1

    def on_end(self, _: Any) -> None:
        """Count what was compiled."""
        self.depth -= 1
        if self.depth == 0:
            self.seconds += time.monotonic() - self.began
            self.number += 1


@cache
def compilations() -> Compilations:
    """Return what this process has compiled so far; it goes on counting. Imports numba."""
    from numba.core import event

    found = Compilations()

    class Listener(event.Listener):
        on_start, on_end = staticmethod(found.on_start), staticmethod(found.on_end)

    event.register("numba:compile", Listener())  # type: ignore[no-untyped-call]
    return found


def cache_folder() -> str:
    """Return where numba keeps what it compiles."""
    return os.environ.get("NUMBA_CACHE_DIR") or "__pycache__ beside the code, or numba's cache of this user"


def working_s() -> float:
    """Return a clock in seconds that stands still while this process compiles."""
    compiled_s = compilations().seconds if sys.modules.get("numba") else 0.0
    return time.monotonic() - compiled_s


@cache
def _compiled(kernel: Callable[..., Any], *, is_called_by_another: bool = False) -> Callable[..., Any]:
    """Return the kernel compiled, together with the functions of its package that it calls."""
    import numba

    compilations()
    helpers = {name: _compiled(one, is_called_by_another=True) for name, one in _helpers(kernel).items()}
    linked = FunctionType(kernel.__code__, kernel.__globals__ | helpers)
    # numba keeps compiled code until the file of the kernel changes, and knows nothing of the others that it is
    # made of: their state is part of the name that it keeps it under.
    linked.__qualname__ = kernel.__qualname__ + _state_of(_other_files(kernel))
    # A kernel allocates nothing: without the counting of references (`_nrt`) named tuples cost nothing to hand on.
    options: dict[str, Any] = {"nogil": True, "_nrt": False}
    if is_called_by_another:  # becomes part of the caller, in its cache too
        options |= {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    else:
        options["cache"] = True
    compiled: Callable[..., Any] = numba.njit(**options)(linked)
    return compiled


def _helpers(kernel: Callable[..., Any]) -> dict[str, FunctionType]:
    """The functions of its own package that a kernel calls, by the names that it has for them."""
    called = {name: kernel.__globals__.get(name) for name in kernel.__code__.co_names}
    package = kernel.__module__.partition(".")[0]
    return {
        name: one
        for name, one in called.items()
        if isinstance(one, FunctionType) and one.__module__.partition(".")[0] == package
    }


def _other_files(kernel: Callable[..., Any]) -> list[Path]:
    """Where what a kernel calls and the named tuples that it gets are written, but for its own file."""
    found, open_ends = set(), [kernel]
    while open_ends:
        one = open_ends.pop()
        found |= {one, *(kind for kind in one.__annotations__.values() if hasattr(kind, "_fields"))}
        open_ends += _helpers(one).values()
    modules = {one.__module__ for one in found} - {kernel.__module__}
    return sorted(Path(str(sys.modules[module].__file__)) for module in modules)


def _state_of(files: Sequence[Path]) -> str:
    if not files:
        return ""
    state = repr([(file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files])
    return f"-{zlib.crc32(state.encode()):08x}"


def run_kernel(
    kernel: Callable[..., Any],
    *,
    inputs: Sequence[Any],
    outputs: Sequence[Any] = (),
    size: int,
    engine: Engine = "auto",
) -> Any:
    """Return `kernel(*inputs, *outputs)`, a function over arrays that fills its outputs in place.

    Inputs and outputs may also be named tuples of arrays, or of such tuples. A kernel may call functions of its
    package, which are compiled with it; it allocates nothing. "auto" is the engine of `running_on`; outside of it,
    it compiles from `WORTH_COMPILING` iterations on, and whenever numba is imported already. Plain and compiled
    give the same bits: a kernel adds and compares, in one order.
    """
    engine = _ENGINE.get() if engine == "auto" else engine
    if engine == "compiled" or (engine == "auto" and (size >= WORTH_COMPILING or sys.modules.get("numba"))):
        return _compiled(kernel)(*inputs, *outputs)
    filled = [_in_plain(one) for one in outputs]
    result = kernel(*(_in_plain(one) for one in inputs), *filled)
    for target, values in zip(outputs, filled, strict=True):
        _copy_back(target, values)
    return result


def _in_plain(value: Any) -> Any:
    """The value with lists in place of its arrays: plain Python is several times faster on them."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return type(value)(*(_in_plain(one) for one in value))
    return value


def _copy_back(target: Any, values: Any) -> None:
    """Write what lists hold into the arrays that they were made of."""
    if isinstance(target, np.ndarray):
        target[:] = values
    elif isinstance(target, tuple):
        for one, filled in zip(target, values, strict=True):
            _copy_back(one, filled)
