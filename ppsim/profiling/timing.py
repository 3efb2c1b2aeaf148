"""What keeps the seconds of a piece of work the same from one run to the next, and when they are enough."""

import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from ppsim.runtime.allocator import keep_freed_memory
from ppsim.runtime.clock import Seconds

Pass = TypeVar("Pass")

_CLOSE_ENOUGH = 0.005
"""Standard error of a median, relative, below which more repeats tell nothing new."""

PATIENCE = 4
"""How often the least time is spent before a median that is still uncertain is taken as it is."""


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


def are_enough(samples: Iterable[Sequence[float]], spent_s: float, least_s: float) -> bool:
    """Whether to stop: `least_s` seconds were spent, and medians are certain or won't become so."""
    return spent_s >= least_s and (spent_s >= PATIENCE * least_s or all(is_certain(one) for one in samples))


def sampled(
    repeat: Callable[[], Mapping[Pass, Seconds]], *, num_repeats: int, least_s: float
) -> dict[Pass, list[float]]:
    """Return the seconds of each pass in `num_repeats` repeats, or in whole multiples until they are enough.

    Seconds are asked for behind the last repeat: a device that computes beside the host is not waited for between.
    """
    samples: dict[Pass, list[float]] = defaultdict(list)
    begin, is_over = time.perf_counter(), False
    while not is_over:
        for passes in [repeat() for _ in range(num_repeats)]:
            for name, seconds in passes.items():
                samples[name].append(seconds())
        is_over = are_enough(samples.values(), time.perf_counter() - begin, least_s)
    return samples
