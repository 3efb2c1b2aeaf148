"""The device that the ranks of a process share: here a CPU, on CUDA `ppsim.runtime.partitions.cuda.Streams`."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ppsim.base.errors import RunFailed
from ppsim.runtime.clock import Clock
from ppsim.runtime.emulate import SPIN_S

Edge = tuple[int, int]
"""The sending and the receiving rank."""


class SharedDevice:
    """Ranks as threads of one process on a CPU, each with its number of intra-op threads; a copy is a clone.

    `clock` is that of all ranks: a moment is when the rank that asks got there. Moments are read as seconds once
    the step is finished.
    """

    where: torch.device
    clock: Clock

    def __init__(self, num_threads: int = 1) -> None:
        self.where, self.clock = torch.device("cpu"), Clock()
        self._num_threads = num_threads
        self._stopped = threading.Event()

    def facts(self) -> dict[str, Any]:
        """Return what a run says of the device, as file content."""
        return {"num_threads": self._num_threads}

    @contextmanager
    def rank(self, rank: int) -> Iterator[None]:
        """Compute within the context as this rank: in its partition, on its stream."""
        del rank
        torch.set_num_threads(self._num_threads)
        yield

    def spin(self, seconds: float) -> None:
        """Keep the current rank busy for that long: it sleeps, and spins for the rest, which a sleep overshoots."""
        end = time.perf_counter() + seconds
        if seconds > SPIN_S:
            self._stopped.wait(seconds - SPIN_S)
        while time.perf_counter() < end and not self._stopped.is_set():
            pass

    def send(self, tensor: Tensor | None, edge: Edge, seconds: float) -> "Parcel":
        """Copy what the current rank has just made, or take the seconds that copying it shall take.

        A copy goes on beside compute. It starts when its content is there, whether or not the receiver has come to
        it.
        """
        del edge
        begin = self.clock.now()
        clone = None if tensor is None else tensor.clone()
        return Parcel(clone, begin, begin + seconds if seconds else self.clock.now(), self.spin)

    def finish_step(self, timeout_s: float) -> None:
        """Return when all ranks are done; raises `RunFailed` after that many seconds."""

    def stop(self) -> None:
        """Make every wait that is under way return at once."""
        self._stopped.set()

    def close(self) -> None:
        """Let go of the device."""


class Parcel:
    """What one rank hands to another: a copy that is there at its `end`, for which a receiver on a CPU spins."""

    def __init__(self, tensor: Tensor | None, begin: Any, end: Any, spin: Any = None) -> None:
        self._tensor, self._begin, self._end, self._spin = tensor, begin, end, spin

    def receive(self) -> Tensor | None:
        """Return the receiver's own copy; what its rank does from here on comes after the transfer."""
        self._wait()
        tensor, self._tensor = self._tensor, None
        return tensor

    def span(self) -> tuple[Any, Any]:
        """Return the moments at which the transfer began and ended."""
        return self._begin, self._end

    def _wait(self) -> None:
        self._spin(self._end - time.perf_counter())


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
