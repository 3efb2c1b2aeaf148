"""What computes in processes beside the server while the page goes on: tables fitted to costs, and searches."""

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

from ppsim.api.project import plan_from
from ppsim.api.tune import search_of
from ppsim.api.views import search_view
from ppsim.base.errors import PpsimError
from ppsim.catalog.entry import Entry
from ppsim.plot.pareto import SearchView
from ppsim.projection.plan import Plan
from ppsim.projection.project import project_all, table_of
from ppsim.schedule.table import Schedule

Work = Callable[[Any, Callable[[Any], None]], None]
"""What answers a question by what it is given to call, once or more often; it may raise `PpsimError`."""

Table = tuple[Schedule, str | None]
"""A table, and the note that says where it is from."""

Key = tuple[str, ...]


@dataclass
class Worker:
    """A process that answers questions one after the other, by a module's function; the first starts it."""

    work: Work
    _process: BaseProcess | None = field(default=None, init=False)
    _pipe: Connection | None = field(default=None, init=False)

    def ask(self, question: Any) -> None:
        """Have a question answered, after those that were asked before."""
        if self._pipe is None:
            context = get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_working, args=(self.work, theirs), daemon=True)
            self._process.start()
            theirs.close()
        self._pipe.send(question)

    def answer(self) -> Any:
        """Return the next answer, a `PpsimError` for a question that has none, None where nothing came so far."""
        try:
            return self._pipe.recv() if self._pipe is not None and self._pipe.poll() else None
        except (EOFError, OSError):
            self.close()
            return PpsimError("the search ended without an answer")

    def close(self) -> None:
        """End the process, and with it what was asked."""
        if self._process is not None and self._pipe is not None:
            self._process.terminate()
            self._process.join()
            self._pipe.close()
        self._process = self._pipe = None


def _working(work: Work, pipe: Connection) -> None:
    """What the process does, until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this
    if hasattr(os, "nice"):
        os.nice(5)  # what moves on the page comes first
    with suppress(EOFError, BrokenPipeError):  # where the server is no more
        while True:
            question = pipe.recv()
            try:
                work(question, pipe.send)
            except PpsimError as error:
                pipe.send(PpsimError(str(error)))


@dataclass(frozen=True)
class Wanted:
    """A schedule to fit for the options of a plan; `key` is what it is known by."""

    key: Key
    options: Mapping[str, Any]
    name: str


def fit(wanted: Wanted, tell: Callable[[Table], None]) -> None:
    """Tell the table of a schedule at a plan's costs, as the command line finds it; raises `PpsimError`."""
    made: list[Table] = []

    def noted(plan: Plan, entry: Entry) -> Table:
        made.append(table_of(plan, entry))
        return made[-1]

    found = project_all(plan_from(wanted.options), [wanted.name], tables=noted)
    if not made:
        raise PpsimError(found.reasons[wanted.name])
    tell(made[0])


@dataclass
class Fitter:
    """What is fitted now, and what next; nothing is started before something is wanted."""

    _next: list[Wanted] = field(default_factory=list)
    _current: Wanted | None = None
    _worker: Worker = field(default_factory=lambda: Worker(fit))

    def want(self, wanted: Sequence[Wanted]) -> None:
        """Fit these next, in this order, and nothing else; what is being fitted is brought to its end."""
        self._next = [one for one in wanted if self._current is None or one.key != self._current.key]
        self._go_on()

    def found(self) -> list[tuple[Key, Table | str]]:
        """Return what was fitted since the last time, or why it could not be."""
        results: list[tuple[Key, Table | str]] = []
        while self._current is not None and (found := self._worker.answer()) is not None:
            results.append(
                (self._current.key, str(found).splitlines()[0] if isinstance(found, PpsimError) else found)
            )
            self._current = None
            self._go_on()
        return results

    def close(self) -> None:
        """End the process; what is wanted is kept."""
        self._worker.close()

    def _go_on(self) -> None:
        if self._current is None and self._next:
            self._current = self._next.pop(0)
            self._worker.ask(self._current)


@dataclass(frozen=True)
class Progress:
    """How far a search is: `found` at its end, or `failed` with a sentence; until then what was decided."""

    decided: int = 0
    total: int = 0
    best_s: float | None = None
    found: SearchView | None = None
    failed: str = ""


def search(options: Mapping[str, Any], tell: Callable[[Progress], None]) -> None:
    """Tell how far the search of these options is, and at last what it found; raises `PpsimError`."""

    def counted(decided: int, total: int, best_s: float | None) -> None:
        tell(Progress(decided, total, best_s))

    tell(Progress(found=search_view(search_of(options)(progress=counted))))


@dataclass
class Searches:
    """The search under way, one at a time, by the command that asks for it."""

    _command: str = ""
    _last: Progress = field(default_factory=Progress)
    _worker: Worker = field(default_factory=lambda: Worker(search))
    _lock: RLock = field(default_factory=RLock)

    def start(self, command: str, options: Mapping[str, Any]) -> None:
        """Start a search unless it is the one that runs or has found something; another is ended."""
        with self._lock:
            if command == self._command and not self._last.failed:
                return
            self.close()
            self._command, self._last = command, Progress()
            self._worker.ask(dict(options))

    def progress(self, command: str) -> Progress | None:
        """Return how far the search of a command is, None where it is not the last one."""
        with self._lock:
            if command != self._command:
                return None
            while told := self._worker.answer():
                self._last = Progress(failed=str(told)) if isinstance(told, PpsimError) else told
            return self._last

    def close(self) -> None:
        """End the search under way."""
        with self._lock:
            self._worker.close()
            self._command = ""
