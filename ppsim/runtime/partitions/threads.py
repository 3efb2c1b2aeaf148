"""The stand-in for a shared device on a CPU: ranks as threads."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ppsim.runtime.clock import Clock
from ppsim.runtime.emulate import SPIN_S
from ppsim.runtime.partitions.device import Edge


class Threads:
    """The stand-in: a rank is a thread with one intra-op thread, a copy a clone, time the host's."""

    def __init__(self, num_threads: int = 1) -> None:
        self.where, self.clock = torch.device("cpu"), Clock()
        self._num_threads = num_threads
        self._stopped = threading.Event()

    def facts(self) -> dict[str, Any]:
        """Return the threads of a rank."""
        return {"num_threads": self._num_threads}

    @contextmanager
    def rank(self, rank: int) -> Iterator[None]:
        """Give this thread its number of intra-op threads."""
        del rank
        torch.set_num_threads(self._num_threads)
        yield

    def spin(self, seconds: float) -> None:
        """Sleep, and spin for the rest, which a sleep would overshoot."""
        end = time.perf_counter() + seconds
        if seconds > SPIN_S:
            self._stopped.wait(seconds - SPIN_S)
        while time.perf_counter() < end and not self._stopped.is_set():
            pass

    def send(self, tensor: Tensor | None, edge: Edge, seconds: float) -> "_Clone":
        """Clone here, where the content is; a transfer that shall take seconds is there that much later."""
        del edge
        begin = self.clock.now()
        clone = None if tensor is None else tensor.clone()
        return _Clone(self, clone, begin, begin + seconds if seconds else self.clock.now())

    def finish_step(self, timeout_s: float) -> None:
        """A thread that has ended has done all its work."""

    def stop(self) -> None:
        """Wake all who sleep."""
        self._stopped.set()

    def close(self) -> None:
        """Nothing to let go of."""


class _Clone:
    """A copy that arrives at a given time."""

    def __init__(self, device: Threads, tensor: Tensor | None, begin: float, end: float) -> None:
        self._device, self._tensor, self._begin, self._end = device, tensor, begin, end

    def receive(self) -> Tensor | None:
        """Wait until it is there."""
        self._device.spin(self._end - self._device.clock.now())
        tensor, self._tensor = self._tensor, None
        return tensor

    def span(self) -> tuple[float, float]:
        """Return when the copy began and ended."""
        return self._begin, self._end
