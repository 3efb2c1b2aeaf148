"""Background processes of the server: schedules fitted to costs, and searches."""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from threading import RLock
from typing import Any

from ppsim.api.project import plan_of_options
from ppsim.api.tune import search_of
from ppsim.api.views import search_view
from ppsim.base.errors import PpsimError
from ppsim.catalog.entry import ScheduleEntry
from ppsim.plot.pareto_page import SearchView
from ppsim.projection.plan import Plan
from ppsim.projection.project import project_all, table_of
from ppsim.schedule.table import Schedule

Work = Callable[[Any, Callable[[Any], None]], None]
"""Function of a worker: (question, callback), calls the callback with each answer; may raise `PpsimError`."""

Table = tuple[Schedule, str | None]

Key = tuple[str, ...]


@dataclass
class Worker:
    """A process that answers questions one after the other; the first question starts it."""

    work: Work
    _process: BaseProcess | None = field(default=None, init=False)
    _pipe: Connection | None = field(default=None, init=False)

    def ask(self, question: Any) -> None:
        if self._pipe is None:
            context = get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_working, args=(self.work, theirs), daemon=True)
            self._process.start()
            theirs.close()
        self._pipe.send(question)

    def answer(self) -> Any:
        """Return the next answer, a `PpsimError` if a question failed, None if there is no answer yet."""
        try:
            return self._pipe.recv() if self._pipe is not None and self._pipe.poll() else None
        except (EOFError, OSError):
            self.close()
            return PpsimError("the search ended without an answer")

    def close(self) -> None:
        if self._process is not None and self._pipe is not None:
            self._process.terminate()
            self._process.join()
            self._pipe.close()
        self._process = self._pipe = None


def _working(work: Work, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the server, which ends this process
    if hasattr(os, "nice"):
        os.nice(5)  # the page's own requests have priority
    with suppress(EOFError, BrokenPipeError):  # the server has ended
        while True:
            question = pipe.recv()
            try:
                work(question, pipe.send)
            except PpsimError as error:
                pipe.send(PpsimError(str(error)))


@dataclass(frozen=True)
class ScheduleRequest:
    """A schedule to fit to the costs of a plan's options; `key` identifies it."""

    key: Key
    options: Mapping[str, Any]
    name: str


def optimise_schedule(request: ScheduleRequest, report: Callable[[Table], None]) -> None:
    tables: list[Table] = []

    def noted(plan: Plan, entry: ScheduleEntry) -> Table:
        tables.append(table_of(plan, entry))
        return tables[-1]

    answer = project_all(plan_of_options(request.options), [request.name], tables=noted)
    if not tables:
        raise PpsimError(answer.rejected[request.name])
    report(tables[0])


@dataclass
class ScheduleOptimiser:
    """The current and the next schedules to fit; the process starts with the first."""

    _next: list[ScheduleRequest] = field(default_factory=list)
    _current: ScheduleRequest | None = None
    _worker: Worker = field(default_factory=lambda: Worker(optimise_schedule))

    def want(self, requests: Sequence[ScheduleRequest]) -> None:
        """Replace the queue of schedules to fit; the current one is finished."""
        self._next = [request for request in requests if self._current is None or request.key != self._current.key]
        self._go_on()

    def found(self) -> list[tuple[Key, Table | str]]:
        results: list[tuple[Key, Table | str]] = []
        while self._current is not None and (answer := self._worker.answer()) is not None:
            results.append(
                (self._current.key, str(answer).splitlines()[0] if isinstance(answer, PpsimError) else answer)
            )
            self._current = None
            self._go_on()
        return results

    def close(self) -> None:
        self._worker.close()

    def _go_on(self) -> None:
        if self._current is None and self._next:
            self._current = self._next.pop(0)
            self._worker.ask(self._current)


@dataclass(frozen=True)
class SearchProgress:
    """Progress of a search: numbers of configurations, then `found`, or `failed` with a message."""

    decided: int = 0
    total: int = 0
    best_s: float | None = None
    found: SearchView | None = None
    failed: str = ""


def search(options: Mapping[str, Any], report: Callable[[SearchProgress], None]) -> None:
    def counted(decided: int, total: int, best_s: float | None) -> None:
        report(SearchProgress(decided, total, best_s))

    report(SearchProgress(found=search_view(search_of(options)(progress=counted))))


@dataclass
class SearchWorker:
    """The running search, identified by its command; at most one."""

    _command: str = ""
    _last: SearchProgress = field(default_factory=SearchProgress)
    _worker: Worker = field(default_factory=lambda: Worker(search))
    _lock: RLock = field(default_factory=RLock)

    def start(self, command: str, options: Mapping[str, Any]) -> None:
        """Start a search unless the same search is running or has a result; end any other search."""
        with self._lock:
            if command == self._command and not self._last.failed:
                return
            self.close()
            self._command, self._last = command, SearchProgress()
            self._worker.ask(dict(options))

    def progress(self, command: str) -> SearchProgress | None:
        with self._lock:
            if command != self._command:
                return None
            while answer := self._worker.answer():
                self._last = SearchProgress(failed=str(answer)) if isinstance(answer, PpsimError) else answer
            return self._last

    def close(self) -> None:
        with self._lock:
            self._worker.close()
            self._command = ""
