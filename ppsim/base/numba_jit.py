"""Kernels (hot loops) with one source: plain Python for small work, numba for large work."""

import math
import os
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any, Literal

import numpy as np

Engine = Literal["auto", "plain", "compiled"]

WORTH_COMPILING = 400_000
"""Loop iterations of a kernel per process, after which it is compiled.

An iteration takes 1 to 2 µs in plain Python, compiling a kernel 0.2 to 2.5 s. If a kernel is compiled when its time
in plain Python has reached its compilation time, the total is at most twice the optimum. Importing numba and
loading its cache takes about 0.6 s; this happens after the same number of iterations of all kernels together.
"""

_ITERATIONS: Counter[Callable[..., Any]] = Counter()
"""Iterations of each kernel in this process."""

_KEPT: dict[Callable[..., Any], bool] = {}
"""Whether a kernel is in numba's cache, for kernels that were looked up."""

_ALL: ContextVar[bool] = ContextVar("_ALL", default=False)


@contextmanager
def every_kernel_compiled() -> Iterator[None]:
    token = _ALL.set(True)
    try:
        yield
    finally:
        _ALL.reset(token)


COMPILING = "compiling CPU kernels, once per installation (numba caches them next to the code)"

_TOLD: ContextVar[Callable[[str], None] | None] = ContextVar("_TOLD", default=None)
_ENGINE: ContextVar[Engine] = ContextVar("_ENGINE", default="auto")


@contextmanager
def running_on(engine: Engine) -> Iterator[None]:
    """Set the default engine within the block; "auto" changes nothing."""
    token = _ENGINE.set(_ENGINE.get() if engine == "auto" else engine)
    try:
        yield
    finally:
        _ENGINE.reset(token)


@contextmanager
def announce_compiling(say: Callable[[str], None]) -> Iterator[None]:
    """Within the block, call `say` with `COMPILING`, at most once, when a kernel is compiled.

    Loading a kernel from the cache does not count.
    """
    token = _TOLD.set(say)
    try:
        yield
    finally:
        _TOLD.reset(token)


class Compilations:
    """Number and total seconds of compilations in this process; nested ones count once."""

    number, seconds, depth, began = 0, 0.0, 0, 0.0

    def on_start(self, _: Any) -> None:
        if self.depth == 0:
            self.began = time.monotonic()
            if say := _TOLD.get():
                _TOLD.set(None)
                say(COMPILING)
        self.depth += 1

    def on_end(self, _: Any) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.seconds += time.monotonic() - self.began
            self.number += 1


@cache
def compilations() -> Compilations:
    """This imports numba."""
    from numba.core import event

    counts = Compilations()

    class Listener(event.Listener):
        def on_start(self, started: Any) -> None:
            _link(started.data["dispatcher"].py_func)
            _forget_older(started.data["dispatcher"])
            counts.on_start(started)

        on_end = staticmethod(counts.on_end)

    event.register("numba:compile", Listener())  # type: ignore[no-untyped-call]
    return counts


def cache_folder() -> str:
    return os.environ.get("NUMBA_CACHE_DIR") or "__pycache__ next to the code, or in the numba cache of this user"


def working_clock() -> float:
    """Return a clock in seconds that does not run during compilations."""
    compiled_s = compilations().seconds if sys.modules.get("numba") else 0.0
    return time.monotonic() - compiled_s


class TimeIsUp(Exception):
    """The time of `time_limit` is over, or a kernel would exceed it; the work is not finished."""


_UNTIL_S: ContextVar[float] = ContextVar("_UNTIL_S", default=math.inf)

_PACE_S: dict[Callable[..., Any], tuple[int, float]] = {}
"""For each kernel: (iterations of a run, seconds per iteration)."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Within the block, raise `TimeIsUp` instead of running a kernel that would exceed a limit of `working_clock`.

    A kernel's duration is extrapolated from its last long run.
    """
    token = _UNTIL_S.set(working_clock() + seconds)
    try:
        yield
    finally:
        _UNTIL_S.reset(token)


def _require_time(kernel: Callable[..., Any], size: int) -> None:
    if (until_s := _UNTIL_S.get()) < math.inf:
        _, pace_s = _PACE_S.get(kernel, (0, 0.0))
        if working_clock() + size * pace_s > until_s:
            raise TimeIsUp


def _note_pace(kernel: Callable[..., Any], size: int, seconds: float) -> None:
    """Record the seconds per iteration. A run of less than half the recorded size counts only if it was faster.

    The recorded time at most doubles per run: otherwise one run disturbed by other processes could prevent all
    later runs, and the estimate would never recover.
    """
    known_size, known_s = _PACE_S.get(kernel, (0, math.inf))
    pace_s = seconds / max(size, 1)
    if 2 * size >= known_size or pace_s < known_s:
        _PACE_S[kernel] = (max(size, 1), min(pace_s, 2 * known_s))


_UNLINKED: dict[FunctionType, Callable[..., Any]] = {}
"""For each copy of a kernel's function that still calls uncompiled helpers: the kernel."""


@cache
def _compiled(kernel: Callable[..., Any], *, is_called_by_another: bool = False) -> Any:
    import numba

    compilations()
    linked = FunctionType(kernel.__code__, dict(kernel.__globals__))
    # numba's cache detects changes of the kernel's own file only, so the name in the cache has a checksum of all
    # files with code of the kernel. The checksum ignores file times, so that the cache of a wheel stays valid.
    linked.__qualname__ = f"{kernel.__qualname__}-{_state_of(_files(kernel))}"
    _UNLINKED[linked] = kernel
    # Kernels allocate nothing. Without reference counting (`_nrt`), passing named tuples is free.
    options: dict[str, Any] = {"nogil": True, "_nrt": False}
    if is_called_by_another:  # inlined into the caller and its cache entry
        options |= {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        return numba.njit(**options)(linked)
    return numba.njit(**options, cache=True)(linked)


def _link(linked: FunctionType) -> None:
    if kernel := _UNLINKED.pop(linked, None):
        linked.__globals__.update(
            {name: _compiled(helper, is_called_by_another=True) for name, helper in _helpers(kernel).items()}
        )


def _forget_older(dispatcher: Any) -> None:
    """Delete cache entries of earlier versions of a kernel's source, which nothing reads again."""
    name, dash, state = dispatcher.py_func.__qualname__.rpartition("-")
    if dash and (folder := dispatcher._cache.cache_path):
        begin = f"{Path(dispatcher.py_func.__code__.co_filename).stem}.{name}-"
        for path in Path(folder).glob(f"{begin}*.nb[ci]"):
            if not path.name.startswith(f"{begin}{state}-"):
                with suppress(OSError):
                    path.unlink()


def _is_kept(kernel: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    if kernel not in _KEPT:
        compiled = _compiled(kernel)
        types = tuple(compiled.typeof_pyval(argument) for argument in arguments)
        overload = compiled._cache.load_overload(types, compiled.targetctx)
        if overload:
            compiled.add_overload(overload)
        _KEPT[kernel] = overload is not None
    return _KEPT[kernel]


def _helpers(kernel: Callable[..., Any]) -> dict[str, FunctionType]:
    called = {name: kernel.__globals__.get(name) for name in kernel.__code__.co_names}
    package = kernel.__module__.partition(".")[0]
    return {
        name: one
        for name, one in called.items()
        if isinstance(one, FunctionType) and one.__module__.partition(".")[0] == package
    }


def _files(kernel: Callable[..., Any]) -> list[Path]:
    functions, open_ends = set(), [kernel]
    while open_ends:
        one = open_ends.pop()
        functions |= {one, *(kind for kind in one.__annotations__.values() if hasattr(kind, "_fields"))}
        open_ends += _helpers(one).values()
    return sorted({Path(str(sys.modules[one.__module__].__file__)) for one in functions})


def _state_of(files: Sequence[Path]) -> str:
    """The checksum is independent of the place of installation."""
    return f"{zlib.crc32(b''.join(file.read_bytes() for file in files)):08x}"


def _pays(kernel: Callable[..., Any], arguments: Sequence[Any], size: int) -> bool:
    _ITERATIONS[kernel] += size
    if _ALL.get():
        return True
    if not sys.modules.get("numba") and (_ITERATIONS.total() < WORTH_COMPILING or not _has_numba()):
        return False
    return _ITERATIONS[kernel] >= WORTH_COMPILING or _is_kept(kernel, arguments)


@cache
def _has_numba() -> bool:
    return find_spec("numba") is not None


def run_kernel(
    kernel: Callable[..., Any],
    *,
    inputs: Sequence[Any],
    outputs: Sequence[Any] = (),
    size: int,
    engine: Engine = "auto",
) -> Any:
    """Return `kernel(*inputs, *outputs)`, a function over arrays that fills its outputs in place.

    Inputs and outputs may also be named tuples of arrays. A kernel may call functions of its package, and must not
    allocate memory. `size` is the approximate number of loop iterations. Plain and compiled runs give identical
    bits. Raises `TimeIsUp` within `time_limit`.
    """
    _require_time(kernel, size)
    engine = _ENGINE.get() if engine == "auto" else engine
    # This may import numba or load its cache, so it is outside of the measured time.
    is_compiled = engine == "compiled" or (engine == "auto" and _pays(kernel, (*inputs, *outputs), size))
    began_s = working_clock()
    result = _run(kernel, inputs, outputs, is_compiled=is_compiled)
    _note_pace(kernel, size, working_clock() - began_s)
    return result


def _run(kernel: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Any], *, is_compiled: bool) -> Any:
    if is_compiled:
        return _compiled(kernel)(*inputs, *outputs)
    filled = [_in_plain(output) for output in outputs]
    result = kernel(*(_in_plain(array) for array in inputs), *filled)
    for target, values in zip(outputs, filled, strict=True):
        _copy_back(target, values)
    return result


def _in_plain(value: Any) -> Any:
    """Turn arrays into lists, because plain Python is several times faster on lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return type(value)(*(_in_plain(one) for one in value))
    return value


def _copy_back(target: Any, values: Any) -> None:
    if isinstance(target, np.ndarray):
        target[:] = values
    elif isinstance(target, tuple):
        for one, filled in zip(target, values, strict=True):
            _copy_back(one, filled)
