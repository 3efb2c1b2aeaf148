"""Training with all ranks as threads of this process on the CPU."""

import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward, stage_backward_input, stage_backward_weight

from ppsim.runtime.executor import Executor, SharedDevice, StageRunner
from ppsim.runtime.live_bytes import LiveBytes
from ppsim.runtime.torch_private import attention_in
from ppsim.runtime.train_config import TrainConfig
from ppsim.runtime.trained import model_of
from ppsim.runtime.verify import differences
from ppsim.schedule.table import Op, Schedule


def train_threads(config: TrainConfig, table: Schedule, device: SharedDevice) -> dict[str, Any]:
    """Return a result like a run with one process per rank.

    Before torch 2.13 the split backward gives wrong gradients for a weight that a stage uses twice. No stage of
    ppsim's models has such a weight, and `verify` checks the gradients. Raises `RunFailed` like `Executor.step`.
    """
    num_stages, num_microbatches = table.num_stages, table.num_microbatches
    model = model_of(config)
    modules = list(model.stages(range(num_stages)).values())
    stages = [
        ModelStage(module, is_first=stage == 0, loss=model.loss if stage == num_stages - 1 else None)
        for stage, module in enumerate(modules)
    ]
    by_index: dict[int, StageRunner] = dict(enumerate(stages))
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=config.learning_rate)
    result = empty_result(config, [])
    first = model.batch(0, num_microbatches)[0][: config.micro_batch]
    result["attention"] = attention_in(lambda: modules[0](first))
    with closing(
        Executor(table, by_index, device, transfer_s=np.zeros(num_stages), timeout_s=config.timeout_s)
    ) as executor:
        for step in range(config.num_warm_up + config.num_steps):
            inputs, targets = model.batch(step, num_microbatches)
            for stage in stages:
                stage.begin_step(list(inputs.chunk(num_microbatches)), list(targets.chunk(num_microbatches)))
            optimizer.zero_grad()
            if step == config.num_warm_up - 1:  # counting takes time, so that it is not done in a recorded step
                result["memory"] = _count(executor, modules, result["steps"])
            else:
                result["steps"].append(executor.step())
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(num_microbatches)
            losses = [stages[-1].losses[microbatch] for microbatch in range(num_microbatches)]
            if config.verify and step == 0:
                gradients = {
                    index: [one.grad for one in module.parameters()] for index, module in enumerate(modules)
                }
                result["differences"] = differences(config, table, inputs, targets, losses, gradients)
            begin = time.perf_counter()
            optimizer.step()
            result["optimizer_s"].append(time.perf_counter() - begin)
            result["losses"].append(statistics.fmean(map(float, losses)))
            print_progress(step, config)
    return result


def _count(executor: Executor, modules: Sequence[nn.Module], steps: list[Any]) -> dict[str, Any]:
    table = executor.table
    counters = [LiveBytes(modules[stage] for stage in table.stages_of(rank)) for rank in range(table.num_ranks)]
    steps.append(executor.step(counters))
    return {"ranks": [counter.peak(rank) for rank, counter in enumerate(counters)]}


def print_progress(step: int, config: TrainConfig) -> None:
    print(f"step {step + 1} of {config.num_warm_up + config.num_steps}", file=sys.stderr, flush=True)


def empty_result(config: TrainConfig, steps: list[Any]) -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "hosts": [platform.node()],
        "losses": [],
        "num_warm_up": config.num_warm_up,
        "optimizer_s": [],
        "steps": steps,
        "differences": None,
        "memory": None,
        "attention": None,
    }


class ModelStage:
    """Layers of a model; `loss` is the loss function of the last stage, None elsewhere.

    On the first stage I does nothing and W is the whole backward, as in torch's runtime. The caller divides the
    gradients by the number of microbatches at the end of the step.
    """

    def __init__(
        self, module: nn.Module, *, is_first: bool, loss: Callable[[Tensor, Tensor], Tensor] | None
    ) -> None:
        self.module, self._is_first, self._loss = module, is_first, loss
        self._inputs: list[Tensor] = []
        self._targets: list[Tensor] = []
        self._forwarded: dict[int, tuple[Tensor, Tensor]] = {}
        self._split: dict[int, Any] = {}
        self.losses: dict[int, Tensor] = {}

    def begin_step(self, inputs: list[Tensor], targets: list[Tensor]) -> None:
        self._inputs, self._targets, self.losses = inputs, targets, {}

    def run(self, op: Op, microbatch: int, received: Tensor | None) -> Tensor | None:
        """`received` is the activation of the previous stage or the gradient of the next."""
        if op is Op.F:
            return self._forward(microbatch, received)
        if op is Op.B:
            x, output = self._forwarded.pop(microbatch)
            return stage_backward(output, received, (x,))[0]
        if op is Op.I:
            return self._backward_input(microbatch, received)
        self._backward_weight(microbatch)
        return None

    def _forward(self, microbatch: int, received: Tensor | None) -> Tensor | None:
        x = self._inputs[microbatch] if received is None else received.requires_grad_()
        output: Tensor = self.module(x)
        if self._loss is not None:
            output = self._loss(output, self._targets[microbatch])
            self.losses[microbatch] = output.detach()
        self._forwarded[microbatch] = x, output
        return None if self._loss is not None else output.detach()

    def _backward_input(self, microbatch: int, grad: Tensor | None) -> Tensor | None:
        x, output = self._forwarded.pop(microbatch)
        if self._is_first:
            self._split[microbatch] = x, output, grad
            return None
        grads = None if grad is None else [grad]
        (grad_of_x,), groups = stage_backward_input([output], grads, [x], self.module.parameters())
        self._split[microbatch] = groups
        return grad_of_x

    def _backward_weight(self, microbatch: int) -> None:
        if self._is_first:
            x, output, grad = self._split.pop(microbatch)
            stage_backward(output, grad, (x,))
        else:
            stage_backward_weight(self.module.parameters(), self._split.pop(microbatch))
