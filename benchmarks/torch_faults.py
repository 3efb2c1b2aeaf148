"""Faults injected into a real 4-rank pipeline of torch's own schedules (gloo): does `explain` find them?

    PYTHONPATH=. python benchmarks/torch_faults.py --draws 3 [--only slow_link,pause] [--schedule 1f1b]

Actions sleep for 20 and 40 ms, divided by the number of stages per rank. Each draw has its own place and size. For
each draw, a run without the fault is made in the same processes, directly before it. The true cost is the
difference of the mean periods in wall time. The machine needs free cores, because other load affects both runs.
"""

import argparse
import json
import os
import queue
import random
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.pipelining.schedules as torch_schedules
import torch.multiprocessing as mp
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.profiler import ProfilerActivity, profile

import ppsim
from ppsim.integrations.torch import named_passes

RANKS, MICROBATCHES, STEPS = 4, 8, 10
SECONDS = {"F": 0.02, "B": 0.04}
WAIT_AT = 9
"""A host pause comes before this batch of sends and receives of a step, times the stages per rank."""


@dataclass
class Fault:
    """The faults of a run; the defaults mean no fault. A place is (step, rank, microbatch) or (step, rank)."""

    slow_rank: tuple[int, float] = (-1, 1.0)
    slow_stage: tuple[int, float] = (-1, 1.0)
    link: tuple[int, int] = (-1, -1)
    transit_s: float = 0.0
    block_s: float = 0.0
    pauses: dict[tuple[int, int, int], float] = field(default_factory=dict)
    waits: dict[tuple[int, int], float] = field(default_factory=dict)
    sizes: tuple[float, float] = (1.0, 1.0)
    drift: tuple[int, float] = (-1, 1.0)
    data_s: float = 0.0
    optimizer_s: tuple[int, float] = (-1, 0.0)
    cause: str = ""
    places: tuple[str, ...] = ()


def fault_of(name: str, seed: int, vpp: int) -> tuple[Fault, Fault]:
    dice = random.Random(f"{name} {seed}")
    rank, first = dice.randrange(RANKS), dice.randrange(RANKS - 1)
    size, none = dice.uniform(0.8, 1.2), Fault()
    step, mb = dice.randrange(2, STEPS - 1), dice.randrange(2, MICROBATCHES - 1)
    stage = dice.randrange(RANKS * vpp)
    told = "uneven stages or slow ranks" if vpp == 1 else ""
    link = (first, first + 1)
    pair = (f"rank {first} → {first + 1}:",)
    several = {(2 * r + 2, r, 2 + r): 0.3 * size for r in range(RANKS)}
    found = {
        "none": none,
        "slow_rank": Fault(slow_rank=(rank, 1 + 0.3 * size), cause=told or "slow ranks", places=(f"rank {rank}",)),
        "slow_stage": Fault(
            slow_stage=(stage, 1 + 0.5 * size), cause=told or "uneven stages", places=(f"stage {stage} ",)
        ),
        "slow_link": Fault(link=link, transit_s=0.02 * size, cause="slow links", places=pair),
        "blocking_link": Fault(link=link, block_s=0.015 * size, cause="slow links", places=pair),
        "pause": Fault(
            pauses={(step, rank, mb): 0.3 * size}, cause="pauses in passes",
            places=(f"step {step + 1}: rank {rank}, {rank}F{mb}",),
        ),
        "garbage_collection": Fault(
            pauses=several, cause="pauses in passes", places=tuple(f"step {s + 1}: rank {r}," for s, r, _ in several)
        ),
        "host_pause": Fault(
            waits={(step, rank): 0.3 * size}, cause="pauses between passes",
            places=(f"step {step + 1}: rank {rank},",),
        ),
        "uneven_microbatches": Fault(sizes=(1.0, 1 + 0.6 * size), cause="uneven microbatches"),
        "late_data": Fault(data_s=0.08 * size, cause="time between steps", places=("rank 0 ",)),
        "slow_optimizer": Fault(
            optimizer_s=(RANKS - 1, 0.1 * size), cause="time between steps", places=(f"rank {RANKS - 1} ",)
        ),
        "drift": Fault(drift=(rank, 1 + 0.02 * size), cause="drift over steps", places=(f"rank {rank}:",)),
        "drift_of_all": Fault(drift=(RANKS, 1 + 0.02 * size), cause="drift over steps", places=("all ranks:",)),
    }[name]  # fmt: skip
    mean = sum(found.sizes) / 2
    return found, Fault(sizes=(mean, mean)) if mean != 1 else none


NAMES = (
    "none", "slow_rank", "slow_stage", "slow_link", "blocking_link", "pause", "garbage_collection", "host_pause",
    "uneven_microbatches", "late_data", "slow_optimizer", "drift", "drift_of_all",
)  # fmt: skip


class Now:
    """State of a rank's process, which actions and sends read."""

    fault, step, rank, vpp, batch = Fault(), 0, 0, 1, 0
    delayed: "queue.Queue[tuple[float, Any, Any]]" = queue.Queue()


def sleep_of(kind: str, stage: int, microbatch: int) -> None:
    fault, seconds = Now.fault, SECONDS[kind] / Now.vpp * Now.fault.sizes[microbatch % 2]
    seconds *= fault.slow_rank[1] if fault.slow_rank[0] == Now.rank else 1
    seconds *= fault.slow_stage[1] if fault.slow_stage[0] == stage else 1
    seconds *= fault.drift[1] ** Now.step if fault.drift[0] in (Now.rank, RANKS) else 1
    if kind == "F" and stage < RANKS:
        seconds += fault.pauses.get((Now.step, Now.rank, microbatch), 0.0)
    time.sleep(seconds)


class Slow(torch.autograd.Function):
    """A forward and backward pass that sleep."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, stage: int, microbatch: int) -> Any:
        ctx.place = stage, microbatch
        ctx.save_for_backward(x, weight)
        sleep_of("F", stage, microbatch)
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight = ctx.saved_tensors
        sleep_of("B", *ctx.place)
        return gradient * weight, (gradient * x).sum(0), None, None


class Sleeper(torch.nn.Module):
    """A stage whose actions sleep; it counts its microbatches."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        self.weight, self.stage, self.count = torch.nn.Parameter(torch.ones(64)), stage, 0

    def forward(self, x: torch.Tensor) -> Any:
        self.count += 1
        return Slow.apply(x, self.weight, self.stage, (self.count - 1) % MICROBATCHES)


class Sent:
    """A send that another thread completes."""

    def wait(self, *_: Any) -> bool:
        return True


def send_late() -> None:
    while True:
        due, op, tensor = Now.delayed.get()
        time.sleep(max(due - time.perf_counter(), 0.0))
        dist.isend(tensor, group=op.group, tag=op.tag, group_dst=op.group_peer).wait()


def batch_with_faults(ops: list[Any], desc: Any = None) -> list[Any]:
    """Send and receive as torch does for gloo; sends over the slow link are late or blocking."""
    work: list[Any] = []
    Now.batch += 1
    if Now.batch == WAIT_AT * Now.vpp:
        time.sleep(Now.fault.waits.get((Now.step, Now.rank), 0.0))
    for op in ops:
        if op.op is not dist.isend:
            work.append(op.op(op.tensor, group=op.group, tag=op.tag, group_src=op.group_peer))
            continue
        on_link = {Now.rank, op.group_peer} == set(Now.fault.link)
        if on_link and Now.fault.transit_s:
            Now.delayed.put((time.perf_counter() + Now.fault.transit_s, op, op.tensor.detach().clone()))
            work.append(Sent())
            continue
        if on_link:
            time.sleep(Now.fault.block_s)
        work.append(op.op(op.tensor, group=op.group, tag=op.tag, group_dst=op.group_peer))
    return work


def steps_of(fault: Fault, folder: Path) -> list[float]:
    """Run steps with a fault; return the start times of the steps that `explain` uses, and the final end."""
    Now.fault, Now.step = Fault(), 0
    mine = [Now.rank + RANKS * chunk for chunk in range(Now.vpp)]
    modules = [Sleeper(stage) for stage in mine]
    stages = [
        PipelineStage(module, stage, RANKS * Now.vpp, torch.device("cpu"))
        for module, stage in zip(modules, mine, strict=True)
    ]

    def loss(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (out - target).pow(2).mean()

    schedule: Any = (
        Schedule1F1B(stages[0], MICROBATCHES, loss_fn=loss)
        if Now.vpp == 1
        else ScheduleInterleaved1F1B(stages, MICROBATCHES, loss_fn=loss)
    )
    optimizer = torch.optim.SGD([one.weight for one in modules], lr=1e-9)
    x = torch.ones(MICROBATCHES, 64, requires_grad=True)

    def step() -> float:
        began, Now.batch = time.perf_counter(), 0
        for one in modules:
            one.count = 0  # torch runs an extra forward pass to infer shapes
        time.sleep(Now.fault.data_s if Now.rank == 0 else 0.0)
        target = {"target": torch.zeros(MICROBATCHES, 64)} if Now.rank == RANKS - 1 else {}
        schedule.step(*([x] if Now.rank == 0 else []), **target)
        time.sleep(Now.fault.optimizer_s[1] if Now.fault.optimizer_s[0] == Now.rank else 0.0)
        dist.all_reduce(torch.stack([one.weight.grad.norm() for one in modules]).norm())
        optimizer.step()
        optimizer.zero_grad()
        return began

    step()
    dist.barrier()
    Now.fault = fault
    begins = []
    with profile(activities=[ProfilerActivity.CPU]) as recorded, named_passes(stages if Now.vpp == 1 else []):
        for Now.step in range(STEPS + 1):
            begins.append(step())
        begins.append(time.perf_counter())
    dist.barrier()
    folder.mkdir(parents=True, exist_ok=True)
    recorded.export_chrome_trace(str(folder / f"rank{Now.rank}.json"))
    dist.barrier()
    return begins[1:]


def run(rank: int, draws: list[tuple[str, int]], vpp: int, folder: str, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    Now.rank, Now.vpp = rank, vpp
    threading.Thread(target=send_late, daemon=True).start()
    torch_schedules._batch_p2p = batch_with_faults
    for name, seed in draws:
        fault, without = fault_of(name, seed, vpp)
        means = {}
        for kind, one in (("without", without), ("with", fault)):
            begins = steps_of(one, Path(folder) / f"{name}-{seed}" / kind)
            means[kind] = float(np.diff(begins).mean())
        if rank == 0:
            (Path(folder) / f"{name}-{seed}" / "wall").write_text(json.dumps(means))
            report(Path(folder) / f"{name}-{seed}", name, seed, fault)
        dist.barrier()
    dist.destroy_process_group()


def report(folder: Path, name: str, seed: int, fault: Fault) -> None:
    """Print a row: the true cost, the result of `explain`, and whether cause, place and size are right."""
    wall = json.loads((folder / "wall").read_text())
    true = wall["with"] - wall["without"]
    before, after = (ppsim.explain(folder / kind) for kind in ("without", "with"))
    first = after.reasons[0]
    gain = next((loss.gain_s for loss in after.reasons if loss.cause == fault.cause), 0.0)
    base = next((loss.gain_s for loss in before.reasons if loss.cause == fault.cause), 0.0)
    places = all(place in next((loss.detail for loss in after.reasons if loss.cause == fault.cause), "")
                 for place in fault.places)  # fmt: skip
    print(
        f"| {name} {seed} | {1e3 * true:.0f} | {1e3 * (gain - base):.0f} | {first.cause} | "
        f"{'yes' if first.cause == fault.cause else 'no'} | {'yes' if places else 'no'} | {first.detail} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--only", default=",".join(NAMES), help="names of faults, with commas")
    parser.add_argument("--schedule", choices=["interleaved-1f1b", "1f1b"], default="interleaved-1f1b")
    parser.add_argument("--port", type=int, default=29651)
    arguments = parser.parse_args()
    vpp = 2 if arguments.schedule == "interleaved-1f1b" else 1
    draws = [(name, seed) for name in arguments.only.split(",") for seed in range(arguments.draws)]
    print(
        "| fault | true cost, ms | found, ms | first cause | first | place | where |\n|---|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, args=(draws, vpp, folder, arguments.port), nprocs=RANKS)


if __name__ == "__main__":
    main()
