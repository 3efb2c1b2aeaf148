"""Ranks as forks of a process that has imported torch, for the tests here: an import takes seconds of CPU time."""

import gc
import multiprocessing
import os
import sys
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, NoReturn

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["__main__", "ppsim.runtime.worker"])


class ForkedRank:
    """The methods of `subprocess.Popen` that a launcher calls."""

    def __init__(self, process: ForkServerProcess) -> None:
        self.process, self.kill = process, process.kill

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> None:
        self.process.join()
        self.process.close()


def fork_rank(folder: Path, environment: Mapping[str, str], stdin: int, stderr: int) -> ForkedRank:
    """Start a rank as `ppsim.runtime.launch.start_rank` does."""
    settings = {"environment": {**os.environ, **environment}, "cwd": os.getcwd(), "path": sys.path}
    process = CONTEXT.Process(target=_run, args=(str(folder), settings, DupFd(stdin), DupFd(stderr)))
    process.start()
    return ForkedRank(process)


def _run(folder: str, settings: Mapping[str, Any], stdin: Any, stderr: Any) -> NoReturn:
    from ppsim.runtime.launch import run_rank

    gc.freeze()
    os.dup2(stdin.detach(), 0)
    os.dup2(stderr.detach(), 2)
    os.setsid()
    os.environ.clear()
    os.environ.update(settings["environment"])
    os.chdir(settings["cwd"])
    sys.path[:] = settings["path"]
    run_rank(folder)
    os._exit(0)
