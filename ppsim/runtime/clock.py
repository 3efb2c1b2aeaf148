"""The time of a device: when it got somewhere, what a piece of work took, and a GPU's clock rate under load."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

_CYCLES_PER_S = 3e9
"""More than any GPU's, so that a sleep of so many is no shorter than asked for."""

_LOAD_S = 1.0
_SIZE, _IN_FLIGHT = 4096, 20

Seconds = Callable[[], float]
"""Gives the seconds that a piece of work took, once the device is done with it."""


class Clock:
    """A CPU's: a moment is the host's time, which is one clock for all processes (CLOCK_MONOTONIC on Linux)."""

    def zero(self) -> None:
        """Wait for all that was given to the device, and take what comes next as the step's begin."""

    def now(self) -> Any:
        """Return the moment at which the device gets here."""
        return time.perf_counter()

    def wait(self, moment: Any) -> None:
        """Return when the device has got to a moment."""

    def seconds(self, moment: Any) -> float:
        """Return a moment in seconds of the host's time; the device must have got there."""
        return float(moment)

    def between(self, first: Any, last: Any) -> float:
        """Return the seconds from one moment to the other, which the device must have got to."""
        return float(last - first)

    def done(self) -> float:
        """Return the host's time at which the device is done with all that it was given."""
        return time.perf_counter()

    def time(self, work: Callable[..., Any], *arguments: Any, launch_s: float = 0.0) -> tuple[Any, Seconds]:
        """Return what the work returned, and what gives its seconds.

        With `launch_s`, what the host takes to launch the work, a GPU sleeps so long before: it finds all kernels
        in its queue, and none of the launches in its seconds.
        """
        self._sleep(launch_s)
        first = self.now()
        done = work(*arguments)
        last = self.now()

        def seconds() -> float:
            self.wait(last)
            return self.between(first, last)

        return done, seconds

    def time_launch(self, work: Callable[..., Any], *arguments: Any) -> tuple[Any, Seconds]:
        """As `time`, but of the seconds until the host is free again, its stream idle before."""
        self._settle()
        begin = time.perf_counter()
        done = work(*arguments)
        taken = time.perf_counter() - begin
        return done, lambda: taken

    def _sleep(self, seconds: float) -> None:
        """Keep the device from what is given to it next."""

    def _settle(self) -> None:
        """Wait for the current stream."""


class CudaClock(Clock):
    """A GPU's: a moment is an event on the current stream, tied to the host's time by `zero`."""

    def __init__(self, where: torch.device) -> None:
        self._where = where

    def zero(self) -> None:
        """Wait for the device, and record the zero of all events."""
        torch.cuda.synchronize(self._where)
        self._zero = self.now()
        self._zero.synchronize()
        self._host_zero = time.perf_counter()

    def now(self) -> Any:
        """Record an event on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self, moment: Any) -> None:
        """Wait for the event."""
        moment.synchronize()

    def seconds(self, moment: Any) -> float:
        """Return when the device came to an event."""
        return self._host_zero + self.between(self._zero, moment)

    def between(self, first: Any, last: Any) -> float:
        """Return the seconds between two events."""
        return float(first.elapsed_time(last)) / 1e3

    def done(self) -> float:
        """Wait for the device."""
        torch.cuda.synchronize(self._where)
        return time.perf_counter()

    def _sleep(self, seconds: float) -> None:
        if seconds:
            torch.cuda._sleep(round(seconds * _CYCLES_PER_S))

    def _settle(self) -> None:
        torch.cuda.current_stream().synchronize()


@dataclass
class Range:
    """One cell as a rank ran it: its name, begin and end, the waits inside it, when the stage was called."""

    name: str
    begin: Any
    end: Any = None
    waits: list[tuple[Any, Any]] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)

    def record(self, at: Callable[[Any], float]) -> dict[str, Any]:
        """Return it as a plain record; `at` gives a moment in seconds of the host's time."""
        return {
            "name": self.name,
            "begin": at(self.begin),
            "end": at(self.end),
            "waits": [[at(begin), at(end)] for begin, end in self.waits],
            "calls": [at(moment) for moment in self.calls],
        }


def clock_of(where: torch.device) -> Clock:
    """Return the clock of a device."""
    return CudaClock(where) if where.type == "cuda" else Clock()


def raise_clock(where: torch.device) -> None:
    """Multiply matrices of random numbers for a second, so that what is measured next finds the clock of a run.

    An idle GPU runs at a fifth of it, and takes its time to rise. Does nothing on a CPU.
    """
    if where.type != "cuda":
        return
    one = torch.randn(_SIZE, _SIZE, device=where, dtype=torch.bfloat16)
    product = torch.empty_like(one)
    end = time.monotonic() + _LOAD_S
    while time.monotonic() < end:
        for _ in range(_IN_FLIGHT):
            torch.matmul(one, one, out=product)
        torch.cuda.synchronize(where)
