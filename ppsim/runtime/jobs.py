"""A thread that does what it is given, one job after the other."""

import queue
import threading
from collections.abc import Callable


class JobThread(threading.Thread):
    """Begins at once, and does not keep the process from ending."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.start()

    def put(self, job: Callable[[], None]) -> None:
        """Have a job done, which raises nothing."""
        self._jobs.put(job)

    def run(self) -> None:
        """Do the jobs."""
        while (job := self._jobs.get()) is not None:
            job()
            del job  # with what it holds, until the next one comes

    def end(self, timeout_s: float = 0.0) -> None:
        """End it behind what it has to do, and wait so long for that."""
        self._jobs.put(None)
        self.join(timeout_s)
