"""Process of one pipeline rank in `ppsim train`, started by `ppsim.runtime.launch`."""

import json
import os
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import FileStore, Store  # type: ignore[attr-defined]
from torch.distributed.pipelining import PipelineStage
from torch.distributed.rendezvous import rendezvous

from ppsim.base.errors import ConfigError
from ppsim.base.files import to_json, write_atomically
from ppsim.runtime import emulate
from ppsim.runtime.clock import HostClock, RecordedRange, clock_of
from ppsim.runtime.live_bytes import AllocatedPeak, LiveBytes, keep_freed_memory
from ppsim.runtime.torch_private import require_torch, schedule_runtime, schedules
from ppsim.runtime.train_config import ONCE, GPTShape, TrainConfig, TurnLimits, turns_of, word_of
from ppsim.runtime.trained import RunModel, model_of
from ppsim.runtime.verify import Differences, differences
from ppsim.schedule.check import validate
from ppsim.schedule.grammar import read_schedule
from ppsim.schedule.table import Schedule
from ppsim.trainers.torch.read_trace import WAIT_MARK

_ONE_CHUNK = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")


BeforeCall = Callable[[Any, str, int], None]


class StepRecorder:
    """Records the ranges of one step of this rank, with hooks into torch's runtime.

    The runtime wraps each action in ``record_function("PP:3F0")``, waits for a receive inside it, and then calls
    the stage. An action starts when the stage is called, after the wait.

    `mark_trace` also keeps torch's own ranges, for a running torch.profiler.
    """

    def __init__(self, clock: HostClock, *, mark_trace: bool = False) -> None:
        self.clock, self.mark_trace = clock, mark_trace
        self.ranges: list[RecordedRange] = []

    @property
    def current(self) -> RecordedRange | None:
        return self.ranges[-1] if self.ranges and self.ranges[-1].end is None else None

    @contextmanager
    def installed(self, stages: list[Any], before_call: BeforeCall) -> Iterator[None]:
        """Record within the block, and run `before_call(stage, kind, microbatch)` before each call of a stage.

        The kind is "F", "B", "I" or "W".
        """
        recorder = self

        class Hook:
            """Replaces torch.profiler.record_function in the runtime."""

            def __init__(self, name: str) -> None:
                self._name = name.removeprefix("PP:")
                self._mark = real_record(name) if recorder.mark_trace else nullcontext()

            def __enter__(self) -> None:
                recorder.ranges.append(RecordedRange(self._name, recorder.clock.now()))
                self._mark.__enter__()

            def __exit__(self, *_: object) -> None:
                self._mark.__exit__(None, None, None)
                recorder.ranges[-1].end = recorder.clock.now()

        real_record, real_wait = schedules.record_function, schedules._wait_batch_p2p

        def wait(work: Any) -> None:
            begin = recorder.clock.now()
            with real_record(WAIT_MARK) if recorder.mark_trace else nullcontext():
                real_wait(work)
            if recorder.current is not None:
                recorder.current.waits.append((begin, recorder.clock.now()))

        schedules.record_function, schedules._wait_batch_p2p = Hook, wait
        for stage in stages:
            for name in _ONE_CHUNK:
                setattr(stage, name, self._called(stage, name, getattr(stage, name), before_call))
        try:
            yield
        finally:
            schedules.record_function, schedules._wait_batch_p2p = real_record, real_wait
            for stage in stages:
                for name in _ONE_CHUNK:
                    delattr(stage, name)

    def _called(self, stage: Any, name: str, real: Any, before_call: BeforeCall) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            assert self.current is not None
            self.current.calls.append(self.clock.now())
            full = kwargs.get("full_backward", True)
            running = {"forward_one_chunk": "F", "backward_weight_one_chunk": "W"}.get(name, "B" if full else "I")
            before_call(stage, running, args[0])
            return real(*args, **kwargs)

        return call

    def seconds(self, moment: Any) -> float:
        self.clock.wait(moment)
        return self.clock.seconds(moment)

    def take_step(self) -> list[dict[str, Any]]:
        records = [item.record(self.seconds) for item in self.ranges]
        self.ranges = []
        return records


class ReferenceWork:
    """F of one microbatch on each stage of a rank, then B on each stage.

    B adds to the gradients; torch's random state and the modules' buffers stay unchanged. `work` is a text that is
    equal for equal work.
    """

    def __init__(self, config: TrainConfig, model: RunModel, stages: Mapping[int, nn.Module]) -> None:
        shape, last = config.model, len(config.layers_per_stage) - 1
        if isinstance(shape, GPTShape):
            of = f"{shape.hidden_size}, {shape.num_heads} heads, {shape.vocab_size} words"
            of += f", {config.micro_batch} × {shape.sequence_length} tokens"
        else:
            of = f"{shape.module}, micro-batch {config.micro_batch}"
        self.work = (
            f"stages of {of}, {config.dtype}, {config.num_ranks} ranks at once, --threads {config.num_threads}"
        )
        if config.recompute != "none":
            self.work += f", recompute {config.recompute}"
        self._loss = model.loss
        tokens, targets = model.batch(0, 1)
        with torch.random.fork_rng(devices=[]):
            self._stages = [
                (
                    module,
                    tokens if stage == 0 else torch.randn_like(model.boundary(stage)).requires_grad_(),
                    targets if stage == last else torch.randn_like(model.boundary(stage + 1)),
                    stage == last,
                )
                for stage, module in stages.items()
            ]

    def seconds(self) -> float:
        buffers = [(buffer, buffer.clone()) for module, *_ in self._stages for buffer in module.buffers()]
        with torch.random.fork_rng(devices=[]):
            begin = time.perf_counter()
            outputs: list[Tensor] = []
            for module, given, wanted, has_loss in self._stages:
                output = module(given)
                outputs.append(self._loss(output, wanted) if has_loss else output)
            for output, (_, _, wanted, has_loss) in zip(outputs, self._stages, strict=True):
                output.backward(None if has_loss else wanted)
            taken = time.perf_counter() - begin
        for buffer, before in buffers:
            buffer.copy_(before)
        return taken


def run_all(
    configs: Sequence[TrainConfig],
    store: Store | None = None,
    turns: TurnLimits = ONCE,
    watch: Callable[[int], None] = lambda done: None,
) -> list[dict[str, Any]] | None:
    """Return the results on rank 0, None elsewhere; there is one result per run and turn.

    The ranks meet in `store`, or else in torchrun's store. Device and timeout are the first run's, because the runs
    share their processes. After an error, connections stay open until the process ends.
    """
    require_torch()
    tables = [read_schedule(config.schedule) for config in configs]
    for table in tables:
        validate(table)
    first = configs[0]
    sys.setswitchinterval(1e-4)  # the threads of emulated channels must not wait the default 5 ms for their turn
    device = torch.device("cpu")
    if first.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = timedelta(seconds=first.timeout_s)
    store = store or next(rendezvous("env://", timeout=timeout))[0]
    store.set_timeout(timeout)
    backend = "nccl" if first.device == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timeout, store=store, rank=rank, world_size=num_ranks)
    results: list[dict[str, Any]] = []
    kept: dict[int, _Rank] = {}
    begin, done, goes_on = time.monotonic(), 0, True
    while goes_on:
        for run, (config, table) in enumerate(zip(configs, tables, strict=True)):
            if num_ranks != table.num_ranks:
                raise ConfigError(
                    f"{config.schedule} has {table.num_ranks} ranks, but {num_ranks} processes were started"
                )
            torch.set_num_threads(config.num_threads)
            keep_freed_memory()
            one = kept.pop(run, None) or _Rank(config, table, rank, device)
            name = f"turn {done} run {run} rank"
            # As text, because torch's own gathering of objects unpickles data from its sockets.
            store.set(f"{name} {rank}", json.dumps(one.train()))
            if rank == 0:
                everyone = [json.loads(store.get(f"{name} {other}")) for other in range(num_ranks)]
                results.append(_result(table, config, everyone))
            if turns.most > 1:
                kept[run] = one
            del one
        done += 1
        if rank == 0:
            watch(done)
            store.set(f"turn {done}", str(int(turns.go_on(done, time.monotonic() - begin))))
        goes_on = bool(int(store.get(f"turn {done}")))
    dist.destroy_process_group()
    return results if rank == 0 else None


class _Rank:
    def __init__(self, config: TrainConfig, table: Schedule, rank: int, device: torch.device) -> None:
        self.config, self.table, self.rank, self.device = config, table, rank, device
        self.costs = emulate.emulated_costs(config, table)
        self.model: RunModel = emulate.EmulatedModel(table, self.costs[1]) if self.costs else model_of(config)
        modules = self.model.stages(table.stages_of(rank))
        self.stages = [self._stage(stage, modules[stage]) for stage in table.stages_of(rank)]
        self.live_bytes = LiveBytes(stage.submod for stage in self.stages)
        self.recorder = StepRecorder(clock_of(device), mark_trace=config.trace is not None)
        self.runtime = schedule_runtime(
            self.stages, table.num_microbatches, self.model.loss, defer_receives=config.receives == "deferred"
        )
        self.runtime._load_csv(
            config.schedule, format="compute_comms" if table.has_communication else "compute_only"
        )
        self.parameters = [parameter for stage in self.stages for parameter in stage.submod.parameters()]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=config.learning_rate)
        own = {stage.stage_index: stage.submod for stage in self.stages}
        knows_pace = device.type == "cpu" and not self.costs and config.trace is None
        self.reference = ReferenceWork(config, self.model, own) if knows_pace else None
        self.num_done = 0

    def _stage(self, stage: int, module: torch.nn.Module) -> Any:
        # With example tensors the runtime needs no extra forward to infer the shapes.
        example_in = self.model.boundary(stage).to(self.device).requires_grad_(stage > 0)
        example_out = self.model.boundary(stage + 1).to(self.device).requires_grad_(True)
        return PipelineStage(
            module.to(self.device), stage, self.table.num_stages, self.device,
            input_args=example_in, output_args=example_out,
        )  # fmt: skip

    def train(self) -> dict[str, Any]:
        config, reference = self.config, self.reference
        network: emulate.EmulatedNetwork | None = None
        num_warm_up = 0 if self.num_done else config.num_warm_up
        out: dict[str, Any] = {"losses": [], "steps": [], "optimizer_s": [], "differences": None, "memory": None}
        out |= {"host": platform.node(), "num_warm_up": num_warm_up, "reference_s": []}
        out["reference_work"] = reference.work if reference else ""

        def tell_pace() -> None:
            if reference is not None:  # on all ranks at once, like their actions
                dist.barrier()
                out["reference_s"].append(reference.seconds())

        with ExitStack() as stack:
            if self.costs and (self.costs[1].transfer_s > 0).any():
                network = emulate.EmulatedNetwork(
                    self.costs[1], self.costs[0].channel, self.rank, self._current_name
                )
                stack.callback(setattr, schedules, "_batch_p2p", schedules._batch_p2p)
                schedules._batch_p2p = network.issue
                stack.callback(network.close)
            stack.enter_context(self.recorder.installed(self.stages, self._tell_stage))
            if config.trace is not None:
                stack.enter_context(_traced(Path(config.trace) / f"rank{self.rank}.json.gz"))
            for step in range(self.num_done, self.num_done + num_warm_up + config.num_steps):
                inputs, targets = (
                    part.to(self.device) for part in self.model.batch(step, self.table.num_microbatches)
                )
                losses: list[torch.Tensor] = []
                for stage in self.stages if self.costs else ():
                    stage.submod.factor = emulate.factor_of(config, step)
                tell_pace()
                self.optimizer.zero_grad()
                dist.barrier()
                self.recorder.clock.zero()
                counts = step == config.num_warm_up - 1 and not self.costs  # counting takes time
                allocated = AllocatedPeak(self.device, self.parameters)
                with self.live_bytes.counting() if counts else nullcontext():
                    self._run_step(inputs, targets, losses)
                out["steps"].append(
                    {
                        "records": self.recorder.take_step(),
                        "transfers": dict(network.transfers) if network else {},
                    }
                )
                if counts:
                    out["memory"] = self.live_bytes.peak(self.rank, allocated.bytes())
                if config.verify and step == 0:
                    out["differences"] = self._differences(inputs, targets, losses)
                if not self.costs:
                    out["optimizer_s"].append(self._update())
                out["losses"].append(statistics.fmean(map(float, losses)) if losses else None)
                if self.rank == 0:
                    of = config.num_warm_up + config.num_steps
                    print(f"step {step + 1} of {of}", file=sys.stderr, flush=True)
            tell_pace()
        self.num_done += num_warm_up + config.num_steps
        return out

    def _update(self) -> float:
        begin = self.recorder.clock.now()
        self.optimizer.step()
        end = self.recorder.clock.now()
        return self.recorder.seconds(end) - self.recorder.seconds(begin)

    def _run_step(self, inputs: torch.Tensor, targets: torch.Tensor, losses: list[torch.Tensor]) -> None:
        held = {stage.stage_index for stage in self.stages}
        arguments = (inputs,) if 0 in held else ()
        last = {"target": targets, "losses": losses} if self.table.num_stages - 1 in held else {}
        self.runtime.step(*arguments, return_outputs=False, **last)

    def _differences(
        self, inputs: torch.Tensor, targets: torch.Tensor, losses: list[torch.Tensor]
    ) -> Differences | None:
        if self.costs:
            return None
        gradients = {
            stage.stage_index: [parameter.grad for parameter in stage.submod.parameters()] for stage in self.stages
        }
        return differences(self.config, self.table, inputs, targets, losses, gradients)

    def _current_name(self) -> str:
        assert self.recorder.current is not None
        return self.recorder.current.name

    def _tell_stage(self, stage: Any, running: str, microbatch: int) -> None:
        self.live_bytes.action = self._current_name()
        if isinstance(stage.submod, emulate.EmulatedStage):
            stage.submod.running = running, microbatch


@contextmanager
def _traced(path: Path) -> Iterator[None]:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        yield
    profiler.export_chrome_trace(str(path))


def _result(table: Schedule, config: TrainConfig, everyone: list[dict[str, Any]]) -> dict[str, Any]:
    last_rank = int(table.stage_to_rank[-1])
    config.require_finite(everyone[last_rank]["losses"])
    found = [rank["differences"] for rank in everyone if rank["differences"]]
    return {
        "torch": torch.__version__,
        "hosts": sorted({rank["host"] for rank in everyone}),
        "losses": everyone[last_rank]["losses"],
        "num_warm_up": everyone[0]["num_warm_up"],
        "memory": {"ranks": [rank["memory"] for rank in everyone]}
        if all(rank["memory"] for rank in everyone)
        else None,
        "reference_work": everyone[0]["reference_work"],
        "reference_layers": config.layers_per_stage,
        "reference_s": [list(times) for times in zip(*(rank["reference_s"] for rank in everyone), strict=True)],
        "optimizer_s": [max(times) for times in zip(*(rank["optimizer_s"] for rank in everyone), strict=True)],
        "steps": [[rank["steps"][step] for rank in everyone] for step in range(len(everyone[0]["steps"]))],
        "differences": {
            "loss": max(one["loss"] for one in found),
            "gradient": max(one["gradient"] for one in found),
            "num_parameters": sum(one["num_parameters"] for one in found),
        }
        if found
        else None,
    }


def main(folder: Path) -> None:
    """Run the configurations of a launcher's folder, and report the result or the error."""
    rank, word = int(os.environ["RANK"]), None
    try:
        content = json.loads((folder / "configs.json").read_text())
        configs, turns = (
            [TrainConfig.from_dict(item) for item in content["configs"]],
            TurnLimits(**content["turns"]),
        )
        store = FileStore(str(folder / "store"), configs[0].num_ranks)
        results = run_all(configs, store, turns, lambda done: write_atomically(turns_of(folder), str(done)))
        if results is not None:
            write_atomically(folder / "results.json", to_json(results))
    except BaseException as error:
        word = {"kind": type(error).__name__, "message": str(error), "callstack": traceback.format_exc()}
    write_atomically(word_of(folder, rank), to_json(word))
