"""The shared device on CUDA: a stream a rank, each in its own partition, time by events."""

import gc
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ppsim.runtime.clock import Clock, CudaClock, raise_clock
from ppsim.runtime.partitions.device import Edge, Parcel, SharedDevice, timed_out
from ppsim.runtime.partitions.green import release, split_device

_POLL_S = 5e-4
_CALIBRATION_CYCLES = (2_000_000, 12_000_000)
_ALIKE, _ALIKE_WITHIN = 5, 2e-3
_MOST_CALIBRATIONS = 400


class Streams(SharedDevice):
    """Ranks as streams of one GPU.

    Spinning ranks have plain streams: a spin kernel is one block, which leaves room for all others. Ranks that
    compute have the streams of green contexts. Copies of an edge have a stream of their own, outside all of them;
    one that takes longer than its sender's next action holds up the next copy.
    """

    def __init__(self, num_ranks: int, *, spinning: bool) -> None:
        torch.cuda.init()
        self.where = torch.device("cuda", torch.cuda.current_device())
        self.clock = CudaClock(self.where)
        torch.zeros(1, device=self.where)  # makes the primary context, from which the partitions are cut
        name = torch.cuda.get_device_name(self.where)
        if not spinning:
            raise_clock(self.where)
        self._partitions = [] if spinning else split_device(self.where.index, name, num_ranks)
        self._streams: list[Any] = [
            torch.cuda.ExternalStream(partition.stream.value, device=self.where) for partition in self._partitions
        ] or [torch.cuda.Stream(self.where) for _ in range(num_ranks)]
        self._cycles_per_s = _cycles_per_s(self.clock) if spinning else 0.0
        self._edges: dict[Edge, Any] = {}
        self._lock = threading.Lock()
        self._is_given_up = False

    def facts(self) -> dict[str, Any]:
        """Return its name, and the cycles of a second of spinning or the multiprocessors of each partition."""
        parts = [partition.num_multiprocessors for partition in self._partitions]
        counts = {"num_multiprocessors": parts} if parts else {"spin_cycles_per_s": self._cycles_per_s}
        return {"name": torch.cuda.get_device_name(self.where), **counts}

    @contextmanager
    def rank(self, rank: int) -> Iterator[None]:
        """Launch on the rank's stream; a backward too, which autograd gives to a thread of its own otherwise."""
        torch.cuda.set_device(self.where)
        with torch.cuda.stream(self._streams[rank]), torch.autograd.set_multithreading_enabled(False):
            yield

    def spin(self, seconds: float) -> None:
        """Launch a spin kernel."""
        if seconds > 0:
            torch.cuda._sleep(round(seconds * self._cycles_per_s))

    def send(self, tensor: Tensor | None, edge: Edge, seconds: float) -> Parcel:
        """Copy on the edge's stream; without a tensor or seconds, the receiver waits for the sender alone."""
        made = self.clock.now()
        if tensor is None and not seconds:
            return _Copy(None, made, made)
        with self._lock:
            if edge not in self._edges:
                # Another priority has another pool of 32 streams: none is a rank's.
                self._edges[edge] = torch.cuda.Stream(self.where, priority=-1)
        stream = self._edges[edge]
        with torch.cuda.stream(stream):
            stream.wait_event(made)
            begin = self.clock.now()
            self.spin(seconds)
            copy = None
            if tensor is not None:
                copy = tensor.clone()
                tensor.record_stream(stream)  # the sender drops it before the copy is done
            return _Copy(copy, begin, self.clock.now())

    def finish_step(self, timeout_s: float) -> None:
        """Poll, so that Ctrl-C and the time-out are heard while the device works."""
        deadline = time.monotonic() + timeout_s
        while not all(stream.query() for stream in (*self._streams, *self._edges.values())):
            if time.monotonic() > deadline:
                raise timed_out(timeout_s, "the device worked on one step")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Give up what is under way: no rank waits on the host for the device."""
        self._is_given_up = True

    def close(self) -> None:
        """Destroy the partitions, after what is under way; where that was given up, the process' end does it."""
        if self._is_given_up:
            return
        torch.cuda.synchronize(self.where)
        if self._partitions:
            gc.collect()
            torch.cuda.empty_cache()
            release(self._partitions)


class _Copy(Parcel):
    """What the receiver's stream waits for, and then owns."""

    def receive(self) -> Tensor | None:
        """Make the current stream wait for the copy."""
        tensor = super().receive()
        if tensor is not None:
            tensor.record_stream(torch.cuda.current_stream())
        return tensor

    def _wait(self) -> None:
        torch.cuda.current_stream().wait_event(self._end)


def _cycles_per_s(clock: Clock) -> float:
    """The cycles that `torch.cuda._sleep` spins in a second, by the difference of two lengths: no launch in it.

    The clock rises when there is work, and falls where that takes much power, which spinning does not: it is
    counted while spinning alone, until it changes no more. (After products of matrices an H100 took seconds to get
    back to the clock that its spins have: they came out up to 24 % too short.)
    """

    def seconds(cycles: int) -> float:
        return clock.time(torch.cuda._sleep, cycles)[1]()

    short, long = _CALIBRATION_CYCLES
    last: deque[float] = deque(maxlen=_ALIKE)
    for _ in range(_MOST_CALIBRATIONS):
        last.append((long - short) / (seconds(long) - seconds(short)))
        if len(last) == _ALIKE and max(last) < min(last) * (1 + _ALIKE_WITHIN):
            break
    return statistics.median(last)


def open_device(kind: str, num_ranks: int, *, spinning: bool, num_threads: int = 1) -> SharedDevice:
    """Return the device "cpu" or "cuda" for that many ranks; with `spinning` they only wait, on the whole of it.

    Raises `ConfigError` where it cannot be cut into as many partitions.
    """
    return SharedDevice(num_threads) if kind == "cpu" else Streams(num_ranks, spinning=spinning)
