"""The device that the ranks of a process share, as the executor sees it, and its stand-in on a CPU."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from ppsim.base.errors import RunFailed
from ppsim.runtime.clock import Clock

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
    clock: Clock
    """Of all ranks: a moment is when the rank that asks got there."""

    def facts(self) -> dict[str, Any]:
        """Return what a run says of the device, as file content."""

    def rank(self, rank: int) -> Any:
        """Return the context in which a thread computes as this rank: in its partition, on its stream."""

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
