"""The device that the ranks of a process share, as the executor sees it, and its stand-in on a CPU."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from ppsim.base.errors import RunFailed
from ppsim.runtime.emulate import SPIN_S

Edge = tuple[int, int]
"""The sending and the receiving rank."""


class Parcel(Protocol):
    """What one rank hands to another."""

    def receive(self) -> Tensor | None:
        """Return the receiver's own copy; what its rank does from here on comes after the transfer."""

    def span(self) -> tuple[Any, Any]:
        """Return the moments at which the transfer began and ended."""


class SharedDevice(Protocol):
    """Ranks as threads of one process on one device. Moments are read as seconds once the step is finished."""

    where: torch.device

    def facts(self) -> dict[str, Any]:
        """Return what a run says of the device, as file content."""

    def rank(self, rank: int) -> Any:
        """Return the context in which a thread computes as this rank: in its partition, on its stream."""

    def begin_step(self) -> None:
        """Wait for everything before, and set the common zero of all ranks."""

    def now(self) -> Any:
        """Return the moment at which the current rank got here."""

    def seconds(self, moment: Any) -> float:
        """Return a moment in seconds, on one clock for all ranks."""

    def spin(self, seconds: float) -> None:
        """Keep the current rank busy for that long."""

    def send(self, tensor: Tensor | None, edge: Edge, seconds: float) -> Parcel:
        """Copy what the current rank has just made, or spin for what copying it shall take.

        A copy goes on beside compute. It starts when its content is there, whether or not the receiver has come to
        it.
        """

    def finish_step(self, timeout_s: float) -> None:
        """Return when all ranks are done; raises `RunFailed` after that many seconds."""

    def stop(self) -> None:
        """Make every wait that is under way return at once."""

    def close(self) -> None:
        """Let go of the device."""


class Threads:
    """The stand-in: a rank is a thread with one intra-op thread, a copy a clone, time the monotonic clock."""

    def __init__(self, num_threads: int = 1) -> None:
        self.where = torch.device("cpu")
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

    def begin_step(self) -> None:
        """Nothing is under way between steps."""

    def now(self) -> float:
        """Return the monotonic clock."""
        return time.monotonic()

    def seconds(self, moment: float) -> float:
        """Return the moment."""
        return moment

    def spin(self, seconds: float) -> None:
        """Sleep, and spin for the rest, which a sleep would overshoot."""
        end = time.monotonic() + seconds
        if seconds > SPIN_S:
            self._stopped.wait(seconds - SPIN_S)
        while time.monotonic() < end and not self._stopped.is_set():
            pass

    def send(self, tensor: Tensor | None, edge: Edge, seconds: float) -> "_Clone":
        """Clone here, where the content is; a transfer that shall take seconds is there that much later."""
        del edge
        begin = time.monotonic()
        clone = None if tensor is None else tensor.clone()
        return _Clone(self, clone, begin, begin + seconds if seconds else time.monotonic())

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
        self._device.spin(self._end - time.monotonic())
        tensor, self._tensor = self._tensor, None
        return tensor

    def span(self) -> tuple[float, float]:
        """Return when the copy began and ended."""
        return self._begin, self._end


def open_device(kind: str, num_ranks: int, *, spinning: bool, num_threads: int = 1) -> SharedDevice:
    """Return the device "cpu" or "cuda" for that many ranks; with `spinning` they only wait, on the whole of it.

    Raises `ConfigError` where it cannot be cut into as many partitions.
    """
    if kind == "cpu":
        return Threads(num_threads)
    from ppsim.runtime.partitions.cuda import Streams

    return Streams(num_ranks, spinning=spinning)


@contextmanager
def quick_turns() -> Iterator[None]:
    """Let no thread wait 5 ms for its turn, which is the interpreter's default."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def timed_out(timeout_s: float, waiting: str) -> RunFailed:
    """Return the error of a wait that lasted too long."""
    return RunFailed(f"{waiting} for more than {timeout_s:g} s (--timeout); all ranks were stopped")
