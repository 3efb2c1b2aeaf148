"""One source for the hot loops: plain Python for small work, compiled by numba once that pays for compiling."""

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
"""Loop iterations of one kernel in a process from which compiling it costs less than going on in plain Python.

An iteration takes 1 to 2 µs there, compiling a kernel 0.2 to 2.5 s. Whoever goes on until as much has been spent as
compiling costs never spends more than twice the least. Importing numba and loading what it keeps takes some 0.6 s,
and is done from as many iterations of all kernels together on.
"""

_ITERATIONS: Counter[Callable[..., Any]] = Counter()
"""Of each kernel in this process so far."""

_KEPT: dict[Callable[..., Any], bool] = {}
"""Whether numba keeps a kernel compiled; those that were asked for."""

_ALL: ContextVar[bool] = ContextVar("_ALL", default=False)


@contextmanager
def every_kernel_compiled() -> Iterator[None]:
    """Within the block, compile every kernel that is run, however small the work."""
    token = _ALL.set(True)
    try:
        yield
    finally:
        _ALL.reset(token)


COMPILING = "compiling, once for this installation (numba keeps it beside the code)"

_TOLD: ContextVar[Callable[[str], None] | None] = ContextVar("_TOLD", default=None)
_ENGINE: ContextVar[Engine] = ContextVar("_ENGINE", default="auto")


@contextmanager
def running_on(engine: Engine) -> Iterator[None]:
    """Within the block, run kernels on `engine` where they are not given another; "auto" changes nothing."""
    token = _ENGINE.set(_ENGINE.get() if engine == "auto" else engine)
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
        def on_start(self, started: Any) -> None:
            _link(started.data["dispatcher"].py_func)
            _forget_older(started.data["dispatcher"])
            found.on_start(started)

        on_end = staticmethod(found.on_end)

    event.register("numba:compile", Listener())  # type: ignore[no-untyped-call]
    return found


def cache_folder() -> str:
    """Return where numba keeps what it compiles."""
    return os.environ.get("NUMBA_CACHE_DIR") or "__pycache__ beside the code, or numba's cache of this user"


def working_s() -> float:
    """Return a clock in seconds that stands still while this process compiles."""
    compiled_s = compilations().seconds if sys.modules.get("numba") else 0.0
    return time.monotonic() - compiled_s


class TimeIsUp(Exception):
    """The time of `ending_in` is over, or a kernel would outlast it: what was begun is not done."""


_UNTIL_S: ContextVar[float] = ContextVar("_UNTIL_S", default=math.inf)

_PACE_S: dict[Callable[..., Any], tuple[int, float]] = {}
"""Of each kernel: iterations of a run, and what one of them took, by the clock."""


@contextmanager
def ending_in(seconds: float) -> Iterator[None]:
    """Within the block, raise `TimeIsUp` in place of running a kernel that would not be done in so many seconds.

    They are those of `working_s`. A kernel is taken to go on at the pace of its last long run; nothing else
    takes time.
    """
    token = _UNTIL_S.set(working_s() + seconds)
    try:
        yield
    finally:
        _UNTIL_S.reset(token)


def _require_time(kernel: Callable[..., Any], size: int) -> None:
    """Raise `TimeIsUp` where a run of the kernel would not be done before the end."""
    if (until_s := _UNTIL_S.get()) < math.inf:
        _, pace_s = _PACE_S.get(kernel, (0, 0.0))
        if working_s() + size * pace_s > until_s:
            raise TimeIsUp


def _note_pace(kernel: Callable[..., Any], size: int, seconds: float) -> None:
    """Take note of what an iteration took; of shorter runs, which are not all iterations, only that it took less.

    A run in which the machine did something else counts twice the run before at most: what was broken off because
    of it would never be tried again.
    """
    known_size, known_s = _PACE_S.get(kernel, (0, math.inf))
    pace_s = seconds / max(size, 1)
    if 2 * size >= known_size or pace_s < known_s:
        _PACE_S[kernel] = (max(size, 1), min(pace_s, 2 * known_s))


_UNLINKED: dict[FunctionType, Callable[..., Any]] = {}
"""The kernels of functions that do not have the compiled form yet of what they call."""


@cache
def _compiled(kernel: Callable[..., Any], *, is_called_by_another: bool = False) -> Any:
    """Return the kernel compiled, together with the functions of its package that it calls."""
    import numba

    compilations()
    linked = FunctionType(kernel.__code__, dict(kernel.__globals__))
    # numba keeps compiled code until what is written in the kernel's file changes, and knows nothing of the others
    # that it is made of: what is written in them is part of the name that it keeps it under. Times are not, so that
    # what is compiled when a wheel is built is found wherever that is installed.
    linked.__qualname__ = f"{kernel.__qualname__}-{_state_of(_files(kernel))}"
    _UNLINKED[linked] = kernel
    # A kernel allocates nothing: without the counting of references (`_nrt`) named tuples cost nothing to hand on.
    options: dict[str, Any] = {"nogil": True, "_nrt": False}
    if is_called_by_another:  # becomes part of the caller, in its cache too
        options |= {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        return numba.njit(**options)(linked)
    return numba.njit(**options, cache=True)(linked)


def _link(linked: FunctionType) -> None:
    """Give a function that is about to be compiled the compiled form of what it calls."""
    if kernel := _UNLINKED.pop(linked, None):
        linked.__globals__.update(
            {name: _compiled(one, is_called_by_another=True) for name, one in _helpers(kernel).items()}
        )


def _forget_older(dispatcher: Any) -> None:
    """Delete what numba keeps of a kernel in an earlier state of its source: nothing reads it again."""
    name, dash, state = dispatcher.py_func.__qualname__.rpartition("-")
    if dash and (folder := dispatcher._cache.cache_path):
        begin = f"{Path(dispatcher.py_func.__code__.co_filename).stem}.{name}-"
        for path in Path(folder).glob(f"{begin}*.nb[ci]"):
            if not path.name.startswith(f"{begin}{state}-"):
                with suppress(OSError):
                    path.unlink()


def _is_kept(kernel: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    """Whether numba keeps the kernel for such arguments, its own version and this CPU: asked, and loaded, once."""
    if kernel not in _KEPT:
        compiled = _compiled(kernel)
        types = tuple(compiled.typeof_pyval(one) for one in arguments)
        found = compiled._cache.load_overload(types, compiled.targetctx)
        if found:
            compiled.add_overload(found)
        _KEPT[kernel] = found is not None
    return _KEPT[kernel]


def _helpers(kernel: Callable[..., Any]) -> dict[str, FunctionType]:
    """The functions of its own package that a kernel calls, by the names that it has for them."""
    called = {name: kernel.__globals__.get(name) for name in kernel.__code__.co_names}
    package = kernel.__module__.partition(".")[0]
    return {
        name: one
        for name, one in called.items()
        if isinstance(one, FunctionType) and one.__module__.partition(".")[0] == package
    }


def _files(kernel: Callable[..., Any]) -> list[Path]:
    """Where a kernel, what it calls and the named tuples that it gets are written."""
    found, open_ends = set(), [kernel]
    while open_ends:
        one = open_ends.pop()
        found |= {one, *(kind for kind in one.__annotations__.values() if hasattr(kind, "_fields"))}
        open_ends += _helpers(one).values()
    return sorted({Path(str(sys.modules[one.__module__].__file__)) for one in found})


def _state_of(files: Sequence[Path]) -> str:
    """What is written in files, in eight characters: it is the same wherever they are installed."""
    return f"{zlib.crc32(b''.join(file.read_bytes() for file in files)):08x}"


def _pays(kernel: Callable[..., Any], arguments: Sequence[Any], size: int) -> bool:
    """Whether to run a kernel compiled: it is there, or compiling it would have paid by now."""
    _ITERATIONS[kernel] += size
    if _ALL.get():
        return True
    if not sys.modules.get("numba") and (_ITERATIONS.total() < WORTH_COMPILING or not _has_numba()):
        return False
    return _ITERATIONS[kernel] >= WORTH_COMPILING or _is_kept(kernel, arguments)


@cache
def _has_numba() -> bool:
    """Whether it is installed: machines that only measure need not have it."""
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

    Inputs and outputs may also be named tuples of arrays, or of such tuples. A kernel may call functions of its
    package, which are compiled with it; it allocates nothing. `size` is about how many iterations its loops take.
    "auto" is the engine of `running_on`; outside of it, it compiles from `WORTH_COMPILING` of a kernel in this
    process on, and runs what is compiled already. Plain and compiled give the same bits: a kernel adds and
    compares, in one order.

    Raises `TimeIsUp` within `ending_in`.
    """
    _require_time(kernel, size)
    engine = _ENGINE.get() if engine == "auto" else engine
    # This imports numba, or loads what it keeps: what no later run does is not of this one's pace.
    is_compiled = engine == "compiled" or (engine == "auto" and _pays(kernel, (*inputs, *outputs), size))
    began_s = working_s()
    result = _run(kernel, inputs, outputs, is_compiled=is_compiled)
    _note_pace(kernel, size, working_s() - began_s)
    return result


def _run(kernel: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Any], *, is_compiled: bool) -> Any:
    if is_compiled:
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
