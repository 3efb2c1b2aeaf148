"""Clocks of CPUs and GPUs."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

_CYCLES_PER_S = 3e9
"""Higher than any GPU's clock rate, so that a sleep by cycles is never shorter than requested."""

_LOAD_S = 1.0
_SIZE, _IN_FLIGHT = 4096, 20

Seconds = Callable[[], float]
"""Returns the seconds of a piece of work, once the device has finished it."""


class HostClock:
    """Clock of a CPU: moments are host time, common to all processes (CLOCK_MONOTONIC on Linux)."""

    def zero(self) -> None:
        """Wait until the device is idle, and start the time of a step."""

    def now(self) -> Any:
        return time.perf_counter()

    def wait(self, moment: Any) -> None:
        """Wait until the device has reached a moment."""

    def seconds(self, moment: Any) -> float:
        return float(moment)

    def between(self, first: Any, last: Any) -> float:
        return float(last - first)

    def done(self) -> float:
        return time.perf_counter()

    def time(self, work: Callable[..., Any], *arguments: Any, launch_s: float = 0.0) -> tuple[Any, Seconds]:
        """Return the result of the work, and a function that returns its seconds.

        A GPU first sleeps for `launch_s`, the host's time to launch the work, so that all kernels are in its queue
        and the seconds include no launches.
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
        """Measure the host's time to launch the work, on an idle stream."""
        self._settle()
        begin = time.perf_counter()
        done = work(*arguments)
        taken = time.perf_counter() - begin
        return done, lambda: taken

    def _sleep(self, seconds: float) -> None:
        """Delay the device's next work."""

    def _settle(self) -> None:
        """Wait for the current stream."""


class CudaClock(HostClock):
    """Clock of a GPU: a moment is an event on the current stream, tied to host time by `zero`."""

    def __init__(self, where: torch.device) -> None:
        self._where = where

    def zero(self) -> None:
        torch.cuda.synchronize(self._where)
        self._zero = self.now()
        self._zero.synchronize()
        self._host_zero = time.perf_counter()

    def now(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self, moment: Any) -> None:
        moment.synchronize()

    def seconds(self, moment: Any) -> float:
        return self._host_zero + self.between(self._zero, moment)

    def between(self, first: Any, last: Any) -> float:
        return float(first.elapsed_time(last)) / 1e3

    def done(self) -> float:
        torch.cuda.synchronize(self._where)
        return time.perf_counter()

    def _sleep(self, seconds: float) -> None:
        if seconds:
            torch.cuda._sleep(round(seconds * _CYCLES_PER_S))

    def _settle(self) -> None:
        torch.cuda.current_stream().synchronize()


@dataclass
class RecordedRange:
    """One action (or fused actions) of a rank; `calls` are the moments when the stage was called."""

    name: str
    begin: Any
    end: Any = None
    waits: list[tuple[Any, Any]] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)

    def record(self, at: Callable[[Any], float]) -> dict[str, Any]:
        return {
            "name": self.name,
            "begin": at(self.begin),
            "end": at(self.end),
            "waits": [[at(begin), at(end)] for begin, end in self.waits],
            "calls": [at(moment) for moment in self.calls],
        }


def clock_of(where: torch.device) -> HostClock:
    return CudaClock(where) if where.type == "cuda" else HostClock()


def raise_clock(where: torch.device) -> None:
    """Multiply random matrices for one second, because an idle GPU has a fifth of the clock rate of a busy GPU."""
    if where.type != "cuda":
        return
    one = torch.randn(_SIZE, _SIZE, device=where, dtype=torch.bfloat16)
    product = torch.empty_like(one)
    end = time.monotonic() + _LOAD_S
    while time.monotonic() < end:
        for _ in range(_IN_FLIGHT):
            torch.matmul(one, one, out=product)
        torch.cuda.synchronize(where)
