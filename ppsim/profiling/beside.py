"""Measuring in one of several partitions of a device, the others busy too: bandwidth and caches are shared."""

import copy
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import torch

from ppsim.profiling.measure import Module
from ppsim.runtime.partitions.device import SharedDevice, quick_turns
from ppsim.runtime.partitions.opened import open_device

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
    neighbours = [_Neighbour(copy.deepcopy(subject), shared, rank) for rank in range(1, num_partitions)]
    with closing(shared), quick_turns():
        try:
            for neighbour in neighbours:
                neighbour.start()
            for neighbour in neighbours:
                neighbour.running.wait()
            with shared.rank(0):
                yield
        finally:
            for neighbour in neighbours:
                neighbour.is_over = True
            for neighbour in neighbours:
                neighbour.join(_SHUTDOWN_S)
    for neighbour in neighbours:
        if neighbour.error is not None:
            raise neighbour.error


class _Neighbour(threading.Thread):
    """Another partition at work."""

    def __init__(self, subject: Module, shared: SharedDevice, rank: int) -> None:
        super().__init__(name=f"rank {rank}", daemon=True)
        self._subject, self._shared, self._rank = subject, shared, rank
        self.running = threading.Event()
        self.is_over = False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with self._shared.rank(self._rank):
                before = None
                while not self.is_over:
                    self._subject.pass_once(self._subject.next_input())
                    self.running.set()
                    before = self._keep_up(before)
        except BaseException as error:
            self.error = error
        finally:
            self.running.set()

    def _keep_up(self, before: "torch.cuda.Event | None") -> "torch.cuda.Event | None":
        """On a GPU, wait for the work before the one just launched: never idle, never far ahead."""
        if self._shared.where.type != "cuda":
            return None
        if before is not None:
            before.synchronize()
        event = torch.cuda.Event()
        event.record()
        return event
