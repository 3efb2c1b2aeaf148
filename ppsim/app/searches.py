"""Searches for the best configurations, each in a process of its own."""

import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from threading import RLock
from typing import Any

from ppsim.api.tuning import tune_from
from ppsim.api.views import search_view
from ppsim.base.errors import PpsimError
from ppsim.plot.pareto import SearchView


@dataclass(frozen=True)
class Progress:
    """How far a search is: `found` at its end, or `failed` with a sentence; until then what was decided."""

    decided: int = 0
    total: int = 0
    best_s: float | None = None
    found: SearchView | None = None
    failed: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.found is not None or bool(self.failed)


@dataclass
class Searches:
    """The search under way, one at a time, by the command that asks for it."""

    _command: str = ""
    _process: BaseProcess | None = None
    _reports: "Connection | None" = None
    _last: Progress = field(default_factory=Progress)
    _lock: RLock = field(default_factory=RLock)

    def start(self, command: str, options: Mapping[str, Any]) -> None:
        """Start a search unless it is the one that runs or has found something; another is ended."""
        with self._lock:
            if command == self._command and not self._last.failed:
                return
            self.close()
            context = get_context("spawn")
            self._reports, theirs = context.Pipe(duplex=False)
            self._command, self._last = command, Progress()
            self._process = context.Process(target=_searching, args=(dict(options), theirs), daemon=True)
            self._process.start()
            theirs.close()

    def progress(self, command: str) -> Progress | None:
        """Return how far the search of a command is, None where it is not the last one."""
        with self._lock:
            if command != self._command:
                return None
            with suppress(EOFError, OSError):
                while self._reports is not None and self._reports.poll():
                    self._last = self._reports.recv()
            if not self._last.is_over and self._process is not None and not self._process.is_alive():
                self._last = Progress(failed="the search ended without an answer")
            return self._last

    def close(self) -> None:
        """End the search under way."""
        with self._lock:
            if self._process is not None:
                self._process.terminate()
                self._process.join()
                self._process = None
            self._command = ""


def _searching(options: dict[str, Any], reports: "Connection") -> None:
    """What the process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this

    def counted(decided: int, total: int, best_s: float | None) -> None:
        reports.send(Progress(decided, total, best_s))

    with suppress(BrokenPipeError):  # where the server is no more
        try:
            reports.send(Progress(found=search_view(tune_from(options, counted))))
        except PpsimError as error:
            reports.send(Progress(failed=str(error)))
