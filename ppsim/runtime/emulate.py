"""Emulated compute: the order and communication of a table are real, and actions wait for given times."""

import queue
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ppsim.base.errors import RunFailed
from ppsim.runtime.train_config import TrainConfig
from ppsim.schedule.grammar import parse_cell
from ppsim.schedule.graph import build_graph
from ppsim.schedule.option_types import Channel
from ppsim.schedule.table import Action, Op, Schedule
from ppsim.simulation.cost_arrays import CostArrays
from ppsim.simulation.cost_files import read_costs
from ppsim.simulation.simulate import durations_s
from ppsim.simulation.stage_costs import StageCosts


class JobThread(threading.Thread):
    """A thread that starts at once. Unlike executors of the standard library, it does not keep a process alive."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self.start()

    def put(self, job: Callable[[], Any]) -> "Future[Any]":
        future: Future[Any] = Future()
        self._jobs.put((job, future))
        return future

    def run(self) -> None:
        while (given := self._jobs.get()) is not None:
            job, future = given
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)
            del given, job, future  # release their objects while waiting for the next job

    def end(self, timeout_s: float = 0.0) -> None:
        """End the thread after the queued jobs."""
        self._jobs.put(None)
        self.join(timeout_s)


SPIN_S = 3e-4
"""A sleep overshoots by up to this, so that the last part of a wait is spun."""

PAYLOAD = (1, 8)
"""Shape of an emulated activation; its first number is the time at which it was sent."""


def wait_for(seconds: float) -> None:
    end = time.perf_counter() + seconds
    if seconds > SPIN_S:
        time.sleep(seconds - SPIN_S)
    while time.perf_counter() < end:
        pass


Waits = dict[tuple[str, int], float]
"""Seconds of a stage's actions; keys are the kind ("F", "B", "I" or "W") and the microbatch."""


class EmulatedStage(nn.Module):
    """Takes the given seconds for F, B, I and W, through the autograd graph that torch's runtime splits.

    The caller sets `running`, because a node of the graph cannot know its action. I runs the input's node, W the
    weight's node, B both.
    """

    def __init__(self, seconds: Waits, *, is_first: bool) -> None:
        super().__init__()
        # The first stage's input has no gradient. This parameter, like an embedding, makes autograd run the input's
        # node.
        self.embedding = nn.Parameter(torch.zeros(PAYLOAD[1], dtype=torch.float64)) if is_first else None
        self.weight = nn.Parameter(torch.zeros(PAYLOAD[1], dtype=torch.float64))
        self.seconds = seconds
        self.running = ("F", 0)
        self.factor = 1.0

    def wait(self) -> None:
        wait_for(self.seconds[self.running] * self.factor)

    def forward(self, x: Tensor) -> Tensor:
        self.wait()
        node: Any = _Node.apply
        if self.embedding is not None:
            x = x + self.embedding
        output: Tensor = node(x, self, "BI") + node(self.weight, self, "W")
        return output


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, stage: EmulatedStage, passes: str) -> Tensor:
        ctx.stage, ctx.passes = stage, passes
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        if ctx.stage.running[0] in ctx.passes:
            ctx.stage.wait()
        return grad, None, None


def emulated_costs(config: TrainConfig, table: Schedule) -> tuple[StageCosts, CostArrays] | None:
    """Return the costs to emulate, by torch's rule for stage 0 (W is the whole backward); None for real layers."""
    if config.emulate_costs is None:
        return None
    counts = {"num_stages": table.num_stages, "num_ranks": table.num_ranks}
    costs = read_costs(config.emulate_costs).with_torch_first_stage(**counts)
    return costs, costs.resolved(**counts)


def waits_of(table: Schedule, costs: CostArrays) -> list[Waits]:
    compute = table.compute_only()
    waits: list[Waits] = [{} for _ in range(table.num_stages)]
    durations = durations_s(build_graph(compute), costs)
    for entry in range(len(compute)):
        op, stage, microbatch = compute[entry]
        waits[stage][op.name, microbatch] = float(durations[entry])
    return waits


def factor_of(config: TrainConfig, step: int) -> float:
    """Return the factor of a step's action times; `step` also counts the warm-up steps."""
    return dict(config.straggling_steps).get(step - config.num_warm_up, 1.0)


class EmulatedModel:
    """Stages that wait, a `ppsim.runtime.trained.RunModel`."""

    def __init__(self, table: Schedule, costs: CostArrays) -> None:
        self._waits = waits_of(table, costs)

    def stages(self, wanted: Collection[int]) -> dict[int, nn.Module]:
        return {stage: EmulatedStage(self._waits[stage], is_first=stage == 0) for stage in wanted}

    def boundary(self, stage: int) -> Tensor:
        del stage
        return torch.zeros(PAYLOAD, dtype=torch.float64)

    def batch(self, step: int, num_microbatches: int) -> tuple[Tensor, Tensor]:
        del step
        nothing = torch.zeros(num_microbatches, PAYLOAD[1], dtype=torch.float64)
        return nothing, nothing

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        return ((output - targets) ** 2).mean()


class EmulatedNetwork:
    """Replaces the runtime's sends and receives, and makes each take its given time.

    On an "ideal" channel a message arrives its transfer time after it was sent. On other channels, a thread per
    queue of this rank performs the transfers in order, and each starts when the peer has reached it too, as NCCL
    does with the operations of one communicator.
    """

    def __init__(self, costs: CostArrays, channel: Channel, rank: int, current: Callable[[], str]) -> None:
        self._hop_s = costs.transfer_s
        self._channel = channel
        self._rank = rank
        self._current = current
        self._queues: dict[Any, JobThread] = {}
        self.transfers: dict[str, tuple[float, float]] = {}

    def issue(self, operations: list[Any], desc: str | None = None) -> list[Any]:
        del desc
        return [self._issue(operation) for operation in operations]

    def close(self) -> None:
        for channel in self._queues.values():
            channel.end()

    def _issue(self, operation: Any) -> Any:
        action = parse_cell(self._current())
        assert isinstance(action, Action)
        is_send = action.op in (Op.SEND_F, Op.SEND_B)
        towards_later = action.op in (Op.SEND_F, Op.RECV_B)
        seconds = float(self._hop_s[action.stage if towards_later else action.stage - 1])
        name = "" if is_send else str(action.matching_send)
        if self._channel == "ideal":
            return self._issue_ideal(operation, is_send, seconds, name)
        key = self._queue_key(operation.group_peer, is_send, forward=action.op in (Op.SEND_F, Op.RECV_F))
        if key not in self._queues:
            self._queues[key] = JobThread(f"transfers {key}")
        return _Transfer(self._queues[key].put(lambda: self._carry_out(operation, seconds, name)))

    def _queue_key(self, peer: int, is_send: bool, *, forward: bool) -> Any:
        return {
            "rank": "all",
            "pair": peer,
            "edge": (self._rank, peer) if is_send else (peer, self._rank),
            "direction": forward,
        }[self._channel]

    def _carry_out(self, operation: Any, seconds: float, name: str) -> None:
        _post(operation).wait()
        begin = time.perf_counter()
        wait_for(seconds)
        if name:
            self.transfers[name] = (begin, time.perf_counter())

    def _issue_ideal(self, operation: Any, is_send: bool, seconds: float, name: str) -> Any:
        if is_send:
            operation.tensor.detach().view(-1)[0] = time.perf_counter()
            return _post(operation)
        return _Arrival(self, _post(operation), operation.tensor, seconds, name)


class _Arrival:
    def __init__(self, network: EmulatedNetwork, work: Any, tensor: Tensor, seconds: float, name: str) -> None:
        self._network, self._work, self._tensor, self._seconds, self._name = network, work, tensor, seconds, name

    def wait(self) -> None:
        self._work.wait()
        sent = float(self._tensor.detach().view(-1)[0])
        wait_for(sent + self._seconds - time.perf_counter())
        self._network.transfers[self._name] = (sent, sent + self._seconds)


class _Transfer:
    def __init__(self, carried_out: "Future[None]") -> None:
        self._carried_out = carried_out

    def wait(self) -> None:
        if (error := self._carried_out.exception()) is not None:
            raise RunFailed(f"a transfer failed: {error}") from error


def _post(operation: Any) -> Any:
    if operation.op is dist.isend:
        return dist.isend(
            operation.tensor, group=operation.group, group_dst=operation.group_peer, tag=operation.tag
        )
    return dist.irecv(operation.tensor, group=operation.group, group_src=operation.group_peer, tag=operation.tag)
