"""Execution of a table with its ranks as threads of this process, which share one device."""

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from ppsim.base.arrays import Floats
from ppsim.base.errors import RunFailed
from ppsim.runtime.clock import HostClock, RecordedRange
from ppsim.runtime.emulate import SPIN_S, JobThread
from ppsim.runtime.live_bytes import LiveBytes
from ppsim.schedule.dependencies import dependencies, transfers_of
from ppsim.schedule.table import NONE, Action, Op, Schedule, last_of_cell

_SHUTDOWN_S = 5.0
"""Seconds to wait for a stopped rank; then it is left to end with the process."""

Edge = tuple[int, int]


class SharedDevice:
    """Ranks as threads of one process on a CPU; a transfer is a clone of the tensor.

    The ranks share `clock`, whose `now` is the moment at which the calling rank reaches the call.
    """

    clock: HostClock

    def __init__(self, num_threads: int = 1) -> None:
        self.clock = HostClock()
        self._num_threads = num_threads
        self._stopped = threading.Event()

    def facts(self) -> dict[str, Any]:
        return {"num_threads": self._num_threads}

    @contextmanager
    def rank(self, rank: int) -> Iterator[None]:
        del rank
        torch.set_num_threads(self._num_threads)
        yield

    def spin(self, seconds: float) -> None:
        """Sleep, then spin, because a sleep overshoots."""
        end = time.perf_counter() + seconds
        if seconds > SPIN_S:
            self._stopped.wait(seconds - SPIN_S)
        while time.perf_counter() < end and not self._stopped.is_set():
            pass

    def send(self, tensor: Tensor | None, edge: Edge, seconds: float) -> "DeviceTransfer":
        """Start a transfer, whether or not the receiver is ready for it; its `seconds` overlap with compute."""
        del edge
        begin = self.clock.now()
        clone = None if tensor is None else tensor.clone()
        return DeviceTransfer(clone, begin, begin + seconds if seconds else self.clock.now(), self.spin)

    def finish_step(self, timeout_s: float) -> None:
        """Return when all ranks have finished; raises `RunFailed` after the timeout."""

    def stop(self) -> None:
        self._stopped.set()


class DeviceTransfer:
    """A copy between two ranks that is complete at `end`."""

    def __init__(self, tensor: Tensor | None, begin: Any, end: Any, spin: Any = None) -> None:
        self._tensor, self._begin, self._end, self._spin = tensor, begin, end, spin

    def receive(self) -> Tensor | None:
        self._wait()
        tensor, self._tensor = self._tensor, None
        return tensor

    def span(self) -> tuple[Any, Any]:
        return self._begin, self._end

    def _wait(self) -> None:
        self._spin(self._end - time.perf_counter())


@contextmanager
def quick_turns() -> Iterator[None]:
    """Shorten the interpreter's thread switch interval, which is 5 ms by default."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def timed_out(timeout_s: float, waiting: str) -> RunFailed:
    return RunFailed(f"{waiting} for more than {timeout_s:g} s (--timeout); all ranks were stopped")


class StageRunner(Protocol):
    """Runs the actions of a stage."""

    def run(self, op: Op, microbatch: int, received: Tensor | None) -> Tensor | None:
        """Run F, B, I or W; return the output for the neighbouring stage, None if there is none."""


class _Stopped(Exception):
    """Another rank has failed."""


class Executor:
    """The stages of all ranks of a compute-only table on one device.

    `transfer_s` has one entry per stage boundary; 0 if transfers are copies of real tensors. `timeout_s` limits a
    rank's wait for another.
    """

    def __init__(
        self,
        table: Schedule,
        stages: Mapping[int, StageRunner],
        device: SharedDevice,
        *,
        transfer_s: Floats,
        timeout_s: float,
    ) -> None:
        self.table, self.stages, self.device = table, stages, device
        self._transfer_s, self._timeout_s = transfer_s, timeout_s
        self._takes_from = dependencies(table).neighbour.tolist()
        self._sends = self._sends_of_cells()
        # One thread per rank for all steps, because libraries cache costly objects per thread.
        self._threads = [JobThread(f"rank {rank}") for rank in range(table.num_ranks)]

    def _sends_of_cells(self) -> dict[int, list[tuple[int, int]]]:
        sends: dict[int, list[tuple[int, int]]] = {}
        last = last_of_cell(self.table)
        for source, target in zip(*transfers_of(self.table), strict=True):
            sends.setdefault(int(last[source]), []).append((int(source), int(self.table.rank[target])))
        return sends

    def step(self, counters: Sequence[LiveBytes] | None = None) -> list[dict[str, Any]]:
        """Run the table once; return each rank's records and transfers in seconds, the input of `import_result`.

        `counters`, one per rank, count the bytes that autograd saves, which takes host time. Raises `RunFailed`
        with the error of the rank that failed first, and after the timeout. After any error all ranks are stopped
        for good.
        """
        run = _Step(self, counters)
        try:
            run.run(self._threads)
            self.device.finish_step(self._timeout_s)
        except BaseException:
            run.stop()
            self.close()
            raise
        return [self._in_seconds(row) for row in run.rows]

    def close(self) -> None:
        for thread in self._threads:
            thread.end(_SHUTDOWN_S)

    def name_of_send(self, source: int) -> str:
        """Return `3SEND_F0` for the output of the forward 3F0."""
        op, stage, microbatch = self.table[source]
        return str(Action(Op.SEND_F if op is Op.F else Op.SEND_B, stage, microbatch))

    def transfer_s(self, source: int) -> float:
        op, stage, _ = self.table[source]
        return float(self._transfer_s[stage if op is Op.F else stage - 1])

    def _in_seconds(self, row: "_RankLog") -> dict[str, Any]:
        at = self.device.clock.seconds
        return {
            "records": [action.record(at) for action in row.actions],
            "transfers": {name: tuple(map(at, parcel.span())) for name, parcel in row.parcels.items()},
        }


@dataclass
class _RankLog:
    actions: list[RecordedRange] = field(default_factory=list)
    parcels: dict[str, DeviceTransfer] = field(default_factory=dict)


class _Slot:
    def __init__(self) -> None:
        self.posted = threading.Event()
        self.parcel: DeviceTransfer | None = None


class _Step:
    def __init__(self, executor: Executor, counters: Sequence[LiveBytes] | None) -> None:
        self._executor, self._counters = executor, counters
        self._table, self._device = executor.table, executor.device
        sources = [source for sends in executor._sends.values() for source, _ in sends]
        self._slots = {source: _Slot() for source in sources}
        self._start = threading.Barrier(self._table.num_ranks)
        self._lock = threading.Lock()
        self._stopped = False
        self._failure: BaseException | None = None
        self.rows = [_RankLog() for _ in range(self._table.num_ranks)]
        self._begun: list[Future[None]] = []

    def run(self, threads: Sequence[JobThread]) -> None:
        self._device.clock.zero()
        self._begun = [thread.put(partial(self._guarded, rank)) for rank, thread in enumerate(threads)]
        wait(self._begun, return_when=FIRST_EXCEPTION)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Stop waiting ranks now, and computing ranks after the current action."""
        self._stopped = True
        self._device.stop()
        self._start.abort()
        for slot in self._slots.values():
            slot.posted.set()
        wait(self._begun, _SHUTDOWN_S)

    def _guarded(self, rank: int) -> None:
        try:
            counting = self._counters[rank].counting() if self._counters else nullcontext()
            with self._device.rank(rank), counting:
                self._start.wait()
                self._run_rank(rank)
        except (_Stopped, threading.BrokenBarrierError):
            pass
        except BaseException as error:
            with self._lock:
                if self._failure is None and not self._stopped:
                    self._failure = _as_failure(rank, error)
            raise

    def _run_rank(self, rank: int) -> None:
        table, executor, device, row = self._table, self._executor, self._device, self.rows[rank]
        now = device.clock.now
        kept: dict[int, Tensor | None] = {}
        for entry in table.entries_of(rank):
            if self._stopped:
                raise _Stopped
            action = table[entry]
            source = executor._takes_from[entry]
            name, begin = str(action), now()
            call, received = begin, None
            if source in self._slots:
                received = self._receive(source, rank)
                call = now()
            elif source != NONE:
                received = kept.pop(source)
            if self._counters:
                self._counters[rank].action = name
            kept[entry] = executor.stages[action.stage].run(action.op, action.microbatch, received)
            del received
            row.actions.append(
                RecordedRange(name, begin, now(), [(begin, call)] if call is not begin else [], [call])
            )
            for made, receiver in executor._sends.get(entry, ()):
                begin = now()
                parcel = device.send(kept.pop(made), (rank, receiver), executor.transfer_s(made))
                name = executor.name_of_send(made)
                row.actions.append(RecordedRange(name, begin, now(), [], [begin]))
                row.parcels[name] = parcel
                self._slots[made].parcel = parcel
                self._slots[made].posted.set()

    def _receive(self, source: int, rank: int) -> Tensor | None:
        slot, timeout_s = self._slots[source], self._executor._timeout_s
        if not slot.posted.wait(timeout_s):
            waiting = (
                f"rank {rank} waited for {self._executor.name_of_send(source)} of rank {self._table.rank[source]}"
            )
            raise timed_out(timeout_s, waiting)
        if self._stopped:
            raise _Stopped
        assert slot.parcel is not None
        tensor, slot.parcel = slot.parcel.receive(), None
        return tensor


def _as_failure(rank: int, error: BaseException) -> BaseException:
    if isinstance(error, RunFailed):
        return error
    failure = RunFailed(f"rank {rank} failed: {type(error).__name__}: {error}; the other ranks were stopped")
    failure.__cause__ = error
    return failure
