"""A thread that does what it is given, one job after the other."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class JobThread(threading.Thread):
    """Begins at once, and does not keep the process from ending, as an executor's of the standard library does."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self.start()

    def put(self, job: Callable[[], Any]) -> "Future[Any]":
        """Have a job done; the future has what it returns or raises."""
        future: Future[Any] = Future()
        self._jobs.put((job, future))
        return future

    def run(self) -> None:
        """Do the jobs."""
        while (given := self._jobs.get()) is not None:
            job, future = given
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)
            del given, job, future  # with what they hold, until the next one comes

    def end(self, timeout_s: float = 0.0) -> None:
        """End it behind what it has to do, and wait so long for that."""
        self._jobs.put(None)
        self.join(timeout_s)
