"""Reproducible timing: measures against disturbances, and the rule for the number of repeats."""

import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

from ppsim.runtime.clock import Seconds
from ppsim.runtime.live_bytes import keep_freed_memory

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
    return spent_s >= least_s and (spent_s >= PATIENCE * least_s or all(is_certain(sample) for sample in samples))


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


_NO_MEMORY = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Messages of the CPU's allocator and of CUDA (torch, the driver and cuBLAS each have their own wording)."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that device or host memory is exhausted.

    >>> is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    True
    >>> is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
    False
    """
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _NO_MEMORY)


def first_sentence(error: BaseException) -> str:
    """Return the first sentence of an error's root cause, which torch wraps in a long report.

    >>> first_sentence(RuntimeError("\\nCUDA error: no kernel image is available. Compile with DEBUG"))
    'CUDA error: no kernel image is available'
    """
    while error.__cause__ is not None:
        error = error.__cause__
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line.split(". ")[0].rstrip(".")
