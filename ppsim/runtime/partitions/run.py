"""Training with all ranks on one device: same configuration and same form of result as with a process a rank."""

import platform
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np
import torch
from torch import nn

from ppsim.base.errors import RunFailed
from ppsim.runtime.attention import attention_in
from ppsim.runtime.config import TrainConfig
from ppsim.runtime.emulate import emulated_costs, factor_of, waits_of
from ppsim.runtime.live_bytes import AllocatedPeak, LiveBytes
from ppsim.runtime.partitions.check import check_emulated, check_streams
from ppsim.runtime.partitions.cuda import open_device
from ppsim.runtime.partitions.device import SharedDevice, quick_turns
from ppsim.runtime.partitions.executor import Executor
from ppsim.runtime.partitions.stages import ModelStage, SpinningStage, StageRunner
from ppsim.runtime.trained import model_of
from ppsim.runtime.verify import differences
from ppsim.schedule.check import validate
from ppsim.schedule.grammar import read_schedule
from ppsim.schedule.graph import build_graph
from ppsim.schedule.table import Schedule
from ppsim.simulation.cost_arrays import CostArrays


def run_partitions(config: TrainConfig) -> dict[str, Any]:
    """Run a table with all its ranks in this process, in partitions of one device; return the run's result.

    Any torch will do that has the three functions of the split backward: torch's runtime is not used. (Before
    2.13 they give wrong gradients for a weight that a stage uses twice; no stage here does, and `verify` looks.)

    Raises `ConfigError` for a device that cannot be cut so, `RunFailed` with the error of the rank that failed
    first, for a time-out and for Ctrl-C; all ranks are stopped by then.
    """
    table = read_schedule(config.schedule)
    validate(table)
    build_graph(table)  # a table whose ranks wait for each other would only time out
    check_streams(table, config.device)
    costs = emulated_costs(config, table)
    if costs is not None:
        check_emulated(costs[0])
    torch.set_num_threads(config.num_threads)
    device = open_device(config.device, table.num_ranks, spinning=costs is not None, num_threads=config.num_threads)
    with closing(device), quick_turns():
        try:
            run = _train(config, table, device) if costs is None else _emulate(config, table, device, costs[1])
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
            _tell(step, config)
    return _result(config, steps, losses=[])


def _train(config: TrainConfig, table: Schedule, device: SharedDevice) -> dict[str, Any]:
    num_stages, num_microbatches = table.num_stages, table.num_microbatches
    model = model_of(config)
    modules = [module.to(device.where) for module in model.stages(range(num_stages)).values()]
    stages = [
        ModelStage(module, is_first=stage == 0, loss=model.loss if stage == num_stages - 1 else None)
        for stage, module in enumerate(modules)
    ]
    by_index: dict[int, StageRunner] = dict(enumerate(stages))
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=config.learning_rate)
    result = _result(config, [], losses=[])
    first = model.batch(0, num_microbatches)[0][: config.micro_batch].to(device.where)
    result["attention"] = attention_in(lambda: modules[0](first))
    with closing(
        Executor(table, by_index, device, transfer_s=np.zeros(num_stages), timeout_s=config.timeout_s)
    ) as executor:
        for step in range(config.num_warm_up + config.num_steps):
            inputs, targets = (part.to(device.where) for part in model.batch(step, num_microbatches))
            for stage in stages:
                stage.begin_step(list(inputs.chunk(num_microbatches)), list(targets.chunk(num_microbatches)))
            optimizer.zero_grad()
            if step == config.num_warm_up - 1:  # counting takes time that a recorded step has not
                result["memory"] = _count(executor, modules, parameters, result["steps"])
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
            result["optimizer_s"].append(device.clock.done() - begin)
            result["losses"].append(statistics.fmean(map(float, losses)))
            _tell(step, config)
    return result


def _count(
    executor: Executor, modules: Sequence[nn.Module], parameters: Sequence[nn.Parameter], steps: list[Any]
) -> dict[str, Any]:
    """Run a step as the next of `steps`, and return the most bytes that each rank, and the device, held in it."""
    table = executor.table
    counters = [LiveBytes(modules[stage] for stage in table.stages_of(rank)) for rank in range(table.num_ranks)]
    allocated = AllocatedPeak(executor.device.where, parameters)
    steps.append(executor.step(counters))
    return {
        "ranks": [counter.peak(rank) for rank, counter in enumerate(counters)],
        "device_peak_bytes": allocated.bytes(),
    }


def _tell(step: int, config: TrainConfig) -> None:
    print(f"step {step + 1} of {config.num_warm_up + config.num_steps}", file=sys.stderr, flush=True)


def _result(config: TrainConfig, steps: list[Any], *, losses: list[float]) -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "hosts": [platform.node()],
        "losses": losses,
        "num_warm_up": config.num_warm_up,
        "optimizer_s": [],
        "steps": steps,
        "differences": None,
        "memory": None,
        "attention": None,
    }
