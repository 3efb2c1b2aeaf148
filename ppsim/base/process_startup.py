"""Fast start and end of short-lived processes."""

import gc
import os
import sys
from types import ModuleType
from typing import Any


def reduce_startup() -> None:
    """Turn off work that a short-lived process does not need; call this before numpy is imported.

    numpy's linear algebra threads busy-wait for 25 ms each. pydantic searches all installed packages for plug-ins.
    Garbage collection takes an eighth of a search. numpy spends a tenth of its import on adding docstrings.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    gc.set_threshold(100_000)
    for name in ("numpy._core._add_newdocs", "numpy._core._add_newdocs_scalars"):
        sys.modules.setdefault(name, ModuleType(name))


def exit_fast(code: Any) -> None:
    """End the process without freeing all objects, which takes a tenth of a projection's time.

    Returns without effect if other threads run, if multiprocessing or torch is imported, in interactive mode, and
    under a debugger or a profiler.
    """
    import atexit
    import threading

    at_work = {"multiprocessing", "torch"} & {*sys.modules} or threading.active_count() > 1
    if at_work or sys.gettrace() or sys.getprofile() or sys.flags.interactive or not isinstance(code, int | None):
        return
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        return  # Python reports the error
    os._exit(code or 0)
