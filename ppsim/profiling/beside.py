"""Measuring in one of several partitions of a device, the others busy too: bandwidth and caches are shared."""

import copy
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial

import torch

from ppsim.profiling.measure import Module
from ppsim.runtime.jobs import JobThread
from ppsim.runtime.partitions.cuda import open_device
from ppsim.runtime.partitions.device import SharedDevice, quick_turns

_SHUTDOWN_S = 60.0


@contextmanager
def in_partition(subject: Module, device: str, num_partitions: int, *, num_threads: int) -> Iterator[None]:
    """Compute within the context in the first of `num_partitions`, copies of `subject` being busy in all others.

    That is a pipeline's layers, whatever is measured: only one rank has the head. They repeat F and B until the
    context ends. With one partition nothing changes. Partitions are those of `ppsim train --partitions`: parts of a
    GPU's multiprocessors, or threads on a CPU. Raises `ConfigError` where the device cannot be cut so, and whatever
    a copy fails with: what was measured beside it does not count.
    """
    if num_partitions == 1:
        yield
        return
    shared = open_device(device, num_partitions, spinning=False, num_threads=num_threads)
    copies = {rank: copy.deepcopy(subject) for rank in range(1, num_partitions)}
    is_over = threading.Event()
    running = {rank: threading.Event() for rank in copies}

    def keep_busy(rank: int) -> None:
        """Repeat F and B; on a GPU never idle, never far ahead: behind a launch, the one before is waited for."""
        before = None
        try:
            with shared.rank(rank):
                while not is_over.is_set():
                    copies[rank].pass_once(copies[rank].next_input())
                    running[rank].set()
                    before = _keep_up(shared, before)
        finally:
            running[rank].set()

    with closing(shared), quick_turns():
        threads = [JobThread(f"rank {rank}") for rank in copies]
        try:
            busy = [thread.put(partial(keep_busy, rank)) for thread, rank in zip(threads, copies, strict=True)]
            for event in running.values():
                event.wait()
            with shared.rank(0):
                yield
        finally:
            is_over.set()
            for thread in threads:
                thread.end(_SHUTDOWN_S)
    for future in busy:
        if future.done():
            future.result()


def _keep_up(shared: SharedDevice, before: "torch.cuda.Event | None") -> "torch.cuda.Event | None":
    """On a GPU, an event behind what was just launched, once the one before has come."""
    if shared.where.type != "cuda":
        return None
    if before is not None:
        before.synchronize()
    event = torch.cuda.Event()
    event.record()
    return event
