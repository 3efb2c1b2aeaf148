"""`ppsim train` as a process with one more for each rank, for the tests here."""

import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.processes import start

TINY = ("--hidden", "32", "--heads", "2", "--seq-len", "16", "--micro-batch-size", "1", "--warm-up", "0")


@dataclass(frozen=True)
class Training:
    """A run of `ppsim train` in `folder`, its output, and records of its processes."""

    folder: Path
    out: str
    sockets: set[tuple[str, str]]
    environment: dict[str, str]
    """Of a rank."""
    meeting_mode: int
    """`st_mode` of the folder where the ranks meet."""


def started(folder: Path, *arguments: str, under: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
    """`ppsim train` on the folder's table; `under` is a command that runs it."""
    return start([*under, sys.executable, "-m", "ppsim", "train", "--schedule", "T.csv", *arguments], cwd=folder)


def rank_process(parent: "subprocess.Popen[str]", rank: int) -> psutil.Process:
    """The process of a rank, once it is started; the ranks are started in order."""
    for _ in range(1200):
        with suppress(psutil.Error, IndexError):
            found = psutil.Process(parent.pid).children()
            ranks = [one for one in found if "run_rank" in one.cmdline()[-1]]
            return psutil.Process(sorted(one.pid for one in ranks)[rank])
        time.sleep(0.05)
    raise AssertionError("the processes never started")


def sockets_of(run: "subprocess.Popen[str]") -> set[tuple[str, str]]:
    """State and address of every socket of all processes of a run, looked at again and again until it ends."""
    found: set[tuple[str, str]] = set()
    own = psutil.Process(run.pid)
    while own.status() != psutil.STATUS_ZOMBIE:
        with suppress(psutil.Error):
            for process in (own, *own.children(recursive=True)):
                found |= {(each.status, each.laddr.ip) for each in process.net_connections("inet") if each.laddr}
        time.sleep(0.05)
    return found


def finished(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    children = psutil.Process(process.pid).children(recursive=True)
    out, err = process.communicate(timeout=60)
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive, f"left behind: {alive}"
    return process.returncode, out, err


def wait_for_line(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"never printed {text}")
