"""A process that fits tables to costs, one after the other, while the page goes on."""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from ppsim.api.plans import plan_from
from ppsim.base.errors import PpsimError
from ppsim.catalog.entry import Entry
from ppsim.projection.plan import Plan
from ppsim.projection.project import project_all, table_of
from ppsim.schedule.table import Schedule

Table = tuple[Schedule, str | None]
"""A table, and the note that says where it is from."""

Key = tuple[str, ...]


@dataclass(frozen=True)
class Wanted:
    """A schedule to fit for the options of a plan; `key` is what it is known by."""

    key: Key
    options: Mapping[str, Any]
    name: str


@dataclass
class Fitter:
    """The process, what it does now, and what it will do next; nothing is started before something is wanted."""

    _next: list[Wanted] = field(default_factory=list)
    _current: Wanted | None = None
    _process: BaseProcess | None = None
    _pipe: Connection | None = None

    def want(self, wanted: Sequence[Wanted]) -> None:
        """Fit these next, in this order, and nothing else; what is being fitted is brought to its end."""
        self._next = [one for one in wanted if self._current is None or one.key != self._current.key]
        self._go_on()

    def found(self, *, wait_s: float = 0.0) -> list[tuple[Key, Table | str]]:
        """Return what was fitted since the last time, or why it could not be; waits for the first so long."""
        results: list[tuple[Key, Table | str]] = []
        while self._current is not None and self._pipe is not None:
            try:
                if not self._pipe.poll(0.0 if results else wait_s):
                    break
                results.append((self._current.key, self._pipe.recv()))
            except (EOFError, OSError):
                results.append((self._current.key, "the search for its table ended without an answer"))
                self.close()
            self._current = None
            self._go_on()
        return results

    def close(self) -> None:
        """End the process; what is wanted is kept."""
        if self._process is not None:
            self._process.terminate()
            self._process.join()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None

    def _go_on(self) -> None:
        if self._current is not None or not self._next:
            return
        if self._process is None or self._pipe is None:
            context = get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_fitting, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        self._current = self._next.pop(0)
        self._pipe.send((dict(self._current.options), self._current.name))


def _fitting(pipe: Connection) -> None:
    """What the process does, until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this
    if hasattr(os, "nice"):
        os.nice(5)  # what moves on the page comes first
    while True:
        try:
            options, name = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(fitted(options, name))
        except PpsimError as error:
            pipe.send(str(error).splitlines()[0])


def fitted(options: Mapping[str, Any], name: str) -> Table:
    """Return the table of a schedule at a plan's costs, as the command line finds it; raises `PpsimError`."""
    made: list[Table] = []

    def noted(plan: Plan, entry: Entry) -> Table:
        made.append(table_of(plan, entry))
        return made[-1]

    found = project_all(plan_from(options), [name], tables=noted)
    if not made:
        raise PpsimError(found.reasons[name])
    return made[0]
