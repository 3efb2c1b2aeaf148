"""Calls on several processes of this machine."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from threading import Thread
from typing import Any

from ppsim.base.errors import ConfigError, MissingExtra, RunFailed
from ppsim.base.process_startup import reduce_startup

Task = tuple[Any, ...]
"""The arguments of one call."""


def _start_worker(parent: int) -> None:
    """Without the parent, which a SIGKILL ends, loky's processes would wait for two minutes."""
    reduce_startup()
    Thread(target=_end_with, args=[parent], daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


_LOOK_S = 1.0


def in_processes(
    function: Callable[..., Any], tasks: Iterable[Task], number: int, *, is_ordered: bool = True
) -> Iterator[Any]:
    """Yield what the calls return, in the order of the tasks or, if not `is_ordered`, as they end.

    `number` of processes: −1 is one per core, 1 this process. The tasks are consumed while others run. Raises the
    function's exceptions, `ConfigError` for another number, `MissingExtra` without joblib, and `RunFailed` if a
    process is lost.

    >>> list(in_processes(divmod, [(7, 2), (9, 4)], 1))
    [(3, 1), (2, 1)]
    """
    if number == 1:
        yield from (function(*task) for task in tasks)
        return
    if number < -1 or number == 0:
        raise ConfigError(f"--jobs is a number of processes, or -1 for one per core: got {number}")
    try:
        from joblib import Parallel, delayed, parallel_config
        from joblib.externals.loky.process_executor import TerminatedWorkerError
    except ImportError:
        raise MissingExtra.of("tune", "several processes need joblib", otherwise="give --jobs 1") from None
    return_as = "generator" if is_ordered else "generator_unordered"
    try:
        with parallel_config("loky", n_jobs=number, initializer=_start_worker, initargs=(os.getpid(),)):
            yield from Parallel(return_as=return_as, batch_size=1)(delayed(function)(*task) for task in tasks)
    except TerminatedWorkerError as error:
        reason = str(error).split("\n")[0]
        raise RunFailed(f"a process of --jobs {number} was lost: have they memory enough? ({reason})") from error
