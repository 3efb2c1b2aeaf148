"""Emulated actions of a table on one device: spin kernels on a GPU, waiting threads on a CPU.

A spin kernel occupies one block, so that the kernels of all ranks run at once.
"""

import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import torch
from torch import Tensor

from ppsim.base.errors import ConfigError, RunFailed
from ppsim.runtime.clock import CudaClock, HostClock
from ppsim.runtime.emulate import emulated_costs, factor_of, waits_of
from ppsim.runtime.executor import DeviceTransfer, Edge, Executor, SharedDevice, quick_turns, timed_out
from ppsim.runtime.threads import empty_result, print_progress, train_threads
from ppsim.runtime.train_config import TrainConfig
from ppsim.schedule.check import validate
from ppsim.schedule.dependencies import transfers_of
from ppsim.schedule.grammar import read_schedule
from ppsim.schedule.graph import build_graph
from ppsim.schedule.table import Op, Schedule
from ppsim.simulation.cost_arrays import CostArrays
from ppsim.simulation.stage_costs import StageCosts

_NUM_QUEUES = 32
"""Hardware queues of a GPU: streams that share a queue wait for each other."""

_POLL_S = 5e-4
_CALIBRATION_CYCLES = (2_000_000, 12_000_000)
_ALIKE, _ALIKE_WITHIN = 5, 2e-3
_MOST_CALIBRATIONS = 400


def check_partitions(
    table: Schedule, source: str, num_partitions: int, device: str, costs: StageCosts | None
) -> None:
    """Raise `ConfigError` if a table cannot run in partitions.

    `costs` are the emulated costs, None for real layers.
    """
    if num_partitions != table.num_ranks:
        raise ConfigError(f"{source} has {table.num_ranks} ranks: got --partitions {num_partitions}")
    if table.has_communication:
        raise ConfigError(
            f"{source} spells out its sends and receives, which --partitions does not execute: give the "
            f"compute-only table (ppsim export --to torch writes it)"
        )
    check_device(table, device, costs)
    queue_streams_apart()


def check_device(table: Schedule, device: str, costs: StageCosts | None) -> None:
    """Raise `ConfigError` if a device cannot emulate the costs, or has too few hardware queues.

    Each rank has a stream, and so does each directed pair of ranks with transfers.
    """
    if costs is not None and costs.channel != "ideal":
        raise ConfigError(
            f"channel {costs.channel} cannot be emulated with --partitions: on one device a copy waits for its "
            f"content only (ideal)"
        )
    if device != "cuda":
        return
    if costs is None:
        raise ConfigError(
            "--partitions on a GPU runs emulated passes only: add --emulate-costs C.json, or leave out "
            "--partitions to train real layers with one GPU per rank"
        )
    source, target = transfers_of(table)
    num_edges = len(set(zip(table.rank[source].tolist(), table.rank[target].tolist(), strict=True)))
    if table.num_ranks + num_edges > _NUM_QUEUES:
        raise ConfigError(
            f"--partitions {table.num_ranks}: {table.num_ranks} ranks and {num_edges} directed pairs of ranks with "
            f"transfers need {table.num_ranks + num_edges} streams, which would wait for each other in the "
            f"{_NUM_QUEUES} hardware queues of a GPU (8 ranks fit)"
        )


def queue_streams_apart() -> None:
    """Request all hardware queues of a GPU; only works before CUDA's driver starts."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def run_partitions(config: TrainConfig) -> dict[str, Any]:
    """Run a table with all its ranks in this process, on one device.

    Raises `ConfigError` for costs or a number of ranks that the device cannot emulate, and `RunFailed` with the
    error of the rank that failed first, for a timeout and for Ctrl-C.
    """
    table = read_schedule(config.schedule)
    validate(table)
    build_graph(table)  # a table whose ranks wait for each other would only time out
    costs = emulated_costs(config, table)
    check_device(table, config.device, costs[0] if costs else None)
    torch.set_num_threads(config.num_threads)
    on_gpu = config.device == "cuda"
    device = Streams(table.num_ranks) if on_gpu else SharedDevice(config.num_threads)
    with quick_turns():
        try:
            run = _emulate(config, table, device, costs[1]) if costs else train_threads(config, table, device)
            config.require_finite(run["losses"])
            return run | {"partitions": device.facts()}
        except KeyboardInterrupt:
            raise RunFailed("the run was interrupted by SIGINT; its ranks were stopped") from None


def _emulate(config: TrainConfig, table: Schedule, device: SharedDevice, costs: CostArrays) -> dict[str, Any]:
    stages = {s: SpinningStage(waits, device.spin) for s, waits in enumerate(waits_of(table, costs))}
    executor = Executor(table, stages, device, transfer_s=costs.transfer_s, timeout_s=config.timeout_s)
    steps = []
    with closing(executor):
        for step in range(config.num_warm_up + config.num_steps):
            for stage in stages.values():
                stage.factor = factor_of(config, step)
            steps.append(executor.step())
            print_progress(step, config)
    return empty_result(config, steps)


class SpinningStage:
    """Waits for the given seconds per kind of action and microbatch, times `factor`."""

    def __init__(self, seconds: Mapping[tuple[str, int], float], spin: Callable[[float], None]) -> None:
        self._seconds, self._spin = seconds, spin
        self.factor = 1.0

    def run(self, op: Op, microbatch: int, received: Tensor | None) -> Tensor | None:
        del received
        self._spin(self._seconds[op.name, microbatch] * self.factor)
        return None


class Streams(SharedDevice):
    """Ranks, and directed pairs of ranks with transfers, as streams of one GPU.

    A transfer that takes longer than the next action of its sender delays the next transfer of the pair.
    """

    def __init__(self, num_ranks: int) -> None:
        torch.cuda.init()
        self.where = torch.device("cuda", torch.cuda.current_device())
        self.clock = CudaClock(self.where)
        self._streams: list[Any] = [torch.cuda.Stream(self.where) for _ in range(num_ranks)]
        self._cycles_per_s = _cycles_per_s(self.clock)
        self._edges: dict[Edge, Any] = {}
        self._lock = threading.Lock()

    def facts(self) -> dict[str, Any]:
        return {"name": torch.cuda.get_device_name(self.where), "spin_cycles_per_s": self._cycles_per_s}

    @contextmanager
    def rank(self, rank: int) -> Iterator[None]:
        torch.cuda.set_device(self.where)
        with torch.cuda.stream(self._streams[rank]):
            yield

    def spin(self, seconds: float) -> None:
        if seconds > 0:
            torch.cuda._sleep(round(seconds * self._cycles_per_s))

    def send(self, tensor: Tensor | None, edge: Edge, seconds: float) -> DeviceTransfer:
        """Start a transfer; if `seconds` is 0, the receiver waits only for the sender's action."""
        del tensor
        made = self.clock.now()
        if not seconds:
            return _Transfer(None, made, made)
        with self._lock:
            if edge not in self._edges:
                # Streams of another priority come from another pool of 32, so that no rank uses this stream.
                self._edges[edge] = torch.cuda.Stream(self.where, priority=-1)
        stream = self._edges[edge]
        with torch.cuda.stream(stream):
            stream.wait_event(made)
            begin = self.clock.now()
            self.spin(seconds)
            return _Transfer(None, begin, self.clock.now())

    def finish_step(self, timeout_s: float) -> None:
        """Poll, so that Ctrl-C and the timeout take effect while the device is busy."""
        deadline = time.monotonic() + timeout_s
        while not all(stream.query() for stream in (*self._streams, *self._edges.values())):
            if time.monotonic() > deadline:
                raise timed_out(timeout_s, "the device worked on one step")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Do nothing: no rank waits on the host for the device."""


class _Transfer(DeviceTransfer):
    def _wait(self) -> None:
        torch.cuda.current_stream().wait_event(self._end)


def _cycles_per_s(clock: HostClock) -> float:
    """Return cycles of `torch.cuda._sleep` per second, from a long minus a short sleep, which cancels launch times.

    A GPU's clock rises with work, and falls if the work needs much power, unlike spinning. Therefore the GPU only
    spins until the result no longer changes. (After GEMMs an H100 took seconds to return to its clock rate for
    spinning: spins were up to 24 % too short.)
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
