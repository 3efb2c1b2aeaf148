"""Seconds of a piece of work, and what keeps them the same from one run to the next."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ppsim.runtime.allocator import keep_freed_memory

_CLOSE_ENOUGH = 0.005
"""Standard error of a median, relative, below which more repeats tell nothing new."""

_CYCLES_PER_S = 3e9
"""More than any GPU's, so that a sleep of so many is no shorter than asked for."""

_PATIENCE = 4
"""How often the least time is spent before a median that is still uncertain is taken as it is."""


class Stopwatch:
    """Seconds of a piece of work: CUDA events on a GPU, the monotonic clock elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"

    def time(
        self, work: Callable[..., Any], *arguments: Any, launch_s: float = 0.0
    ) -> tuple[Any, Callable[[], float]]:
        """Return what the work returned, and a function that gives its seconds once the device is done.

        With `launch_s`, what the host takes to launch the work, a GPU sleeps so long before: it finds all kernels
        in its queue, and none of the launches in its seconds.
        """
        if not self._cuda:
            begin = time.perf_counter()
            done = work(*arguments)
            taken = time.perf_counter() - begin
            return done, lambda: taken
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if launch_s:
            torch.cuda._sleep(round(launch_s * _CYCLES_PER_S))
        first.record()
        done = work(*arguments)
        last.record()

        def seconds() -> float:
            last.synchronize()
            return float(first.elapsed_time(last)) / 1e3

        return done, seconds

    def time_launch(self, work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
        """Return what the work returned, and the seconds until the host is free again, its stream idle before."""
        if self._cuda:
            torch.cuda.current_stream().synchronize()
        begin = time.perf_counter()
        done = work(*arguments)
        return done, time.perf_counter() - begin


@contextmanager
def undisturbed() -> Iterator[None]:
    """Within, Python collects no garbage; freed memory stays with the process, then and afterwards.

    Both would come at other moments in every run.
    """
    keep_freed_memory()
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def is_certain(samples: Sequence[float]) -> bool:
    """Whether the median is known to half a percent: its standard error, by the quartiles of a normal spread.

    >>> is_certain([1.0, 1.001] * 10), is_certain([1.0, 2.0] * 10)
    (True, False)
    """
    if len(samples) < 4:
        return False
    low, median, high = statistics.quantiles(samples, n=4)
    # σ = IQR / 1.349; the median's standard error is √(π/2)·σ/√n.
    return bool(1.2533 * (high - low) / 1.349 <= _CLOSE_ENOUGH * median * len(samples) ** 0.5)


def are_enough(samples: Sequence[Sequence[float]], spent_s: float, least_s: float) -> bool:
    """Whether to stop: `least_s` seconds were spent, and medians are certain or won't become so."""
    return spent_s >= least_s and (spent_s >= _PATIENCE * least_s or all(is_certain(one) for one in samples))
