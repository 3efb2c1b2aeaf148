"""A thread that runs jobs one after the other."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class JobThread(threading.Thread):
    """A thread that starts at once. Unlike executors of the standard library, it does not keep a process alive."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self.start()

    def put(self, job: Callable[[], Any]) -> "Future[Any]":
        future: Future[Any] = Future()
        self._jobs.put((job, future))
        return future

    def run(self) -> None:
        while (given := self._jobs.get()) is not None:
            job, future = given
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)
            del given, job, future  # release their objects while waiting for the next job

    def end(self, timeout_s: float = 0.0) -> None:
        """End the thread after the queued jobs."""
        self._jobs.put(None)
        self.join(timeout_s)
