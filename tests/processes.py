"""Child processes that tests talk to or interrupt. A fixture of conftest.py ends them after their test."""

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_STARTED: list["subprocess.Popen[str]"] = []


def start(command: Sequence[str | Path], **options: Any) -> "subprocess.Popen[str]":
    """Start a process with pipes that SIGINT and SIGHUP interrupt, also where pytest ignores them.

    A shell that starts pytest in the background has it ignore SIGINT, nohup SIGHUP, and child processes inherit that.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, preexec_fn=_default_signals, **(pipes | options))
    _STARTED.append(process)
    return process


def end_all() -> None:
    """Kill the processes that still run, and close the pipes of all."""
    while _STARTED:
        with _STARTED.pop() as process:
            if process.poll() is None:
                process.kill()


def _default_signals() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
