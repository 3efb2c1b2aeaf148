"""How a process that does one thing starts and ends."""

import gc
import os
import sys
from types import ModuleType
from typing import Any


def start_lean() -> None:
    """Spend nothing from here on on what a process that soon ends has no use for; called before numpy is imported.

    Threads of numpy's linear algebra turn for 25 ms each while they wait for work; pydantic looks for plug-ins in
    all that is installed; Python collects garbage for each 700 objects more, an eighth of the time of a search; a
    tenth of numpy's import gives its functions their docstrings, which it does without under `python -OO` too.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    gc.set_threshold(100_000)
    for name in ("numpy._core._add_newdocs", "numpy._core._add_newdocs_scalars"):
        sys.modules.setdefault(name, ModuleType(name))


def end_lean(code: Any) -> None:
    """End the process with an exit code as Python does, but for taking all objects apart: a tenth of a projection.

    Returns where more than that may be left to do: to threads, other processes, a debugger or a profiler.
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
        return  # Python says what is wrong with them
    os._exit(code or 0)
