"""`ppsim train` as a process with one more for each rank, for the tests here."""

import subprocess
import sys
import time
from pathlib import Path

import psutil

TINY = ("--hidden", "32", "--heads", "2", "--seq-len", "16", "--micro-batch-size", "1", "--warm-up", "0")


def started(folder: Path, *arguments: str, under: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
    """`ppsim train` on the folder's table; `under` is a command that runs it."""
    return subprocess.Popen(
        [*under, sys.executable, "-m", "ppsim", "train", "--schedule", "T.csv", *arguments],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def rank_process(parent: "subprocess.Popen[str]", rank: int) -> psutil.Process:
    """The worker of a rank, once its interpreter has been told that it is one."""
    for _ in range(600):
        for child in psutil.Process(parent.pid).children(recursive=True):
            try:
                if child.environ().get("RANK") == str(rank) and "ppsim.runtime.worker" in child.cmdline():
                    return child
            except psutil.Error:
                continue
        time.sleep(0.05)
    raise AssertionError("the rank never started")


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
