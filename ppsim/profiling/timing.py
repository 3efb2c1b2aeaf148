"""Reproducible timing: measures against disturbances, and the rule for the number of repeats."""

import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from ppsim.runtime.clock import Seconds
from ppsim.runtime.malloc_settings import keep_freed_memory

Pass = TypeVar("Pass")

_CLOSE_ENOUGH = 0.005
"""Relative standard error of a median below which more repeats are useless."""

PATIENCE = 4
"""Multiple of the minimum time after which a median is accepted even if uncertain."""


@contextmanager
def without_interruptions() -> Iterator[None]:
    """Disable garbage collection within the block, and keep freed memory in the process from now on.

    Collections and page faults would otherwise happen at different moments in every run.
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
    """Return whether the standard error of the median is at most 0.5 %.

    >>> is_certain([1.0, 1.001] * 10), is_certain([1.0, 2.0] * 10)
    (True, False)
    """
    if len(samples) < 4:
        return False
    low, median, high = statistics.quantiles(samples, n=4)
    # σ = IQR / 1.349; the median's standard error is √(π/2)·σ/√n.
    return bool(1.2533 * (high - low) / 1.349 <= _CLOSE_ENOUGH * median * len(samples) ** 0.5)


def are_enough(samples: Iterable[Sequence[float]], spent_s: float, least_s: float) -> bool:
    """Return whether `least_s` seconds were spent, and the medians are certain or unlikely to become so."""
    return spent_s >= least_s and (spent_s >= PATIENCE * least_s or all(is_certain(one) for one in samples))


def sample_times(
    repeat: Callable[[], Mapping[Pass, Seconds]], *, num_repeats: int, least_s: float
) -> dict[Pass, list[float]]:
    """Return the seconds of each action in a multiple of `num_repeats` repeats.

    The seconds are read after every `num_repeats` repeats, so that the host does not wait for an asynchronous
    device in between.
    """
    samples: dict[Pass, list[float]] = defaultdict(list)
    begin, is_over = time.perf_counter(), False
    while not is_over:
        for passes in [repeat() for _ in range(num_repeats)]:
            for name, seconds in passes.items():
                samples[name].append(seconds())
        is_over = are_enough(samples.values(), time.perf_counter() - begin, least_s)
    return samples
