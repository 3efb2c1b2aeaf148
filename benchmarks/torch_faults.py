"""Faults injected into a real pipeline of torch's own schedules (gloo): does `explain` find them?

    PYTHONPATH=. python benchmarks/torch_faults.py --draws 3 [--only slow_link,pause] [--schedule 1f1b] [--ranks 2]
    PYTHONPATH=. python benchmarks/torch_faults.py --only none,slow_rank,slow_link,queueing_link --project

Actions sleep for 20 and 40 ms, divided by the number of stages per rank. Each draw has its own place and size, by a
seed from the hash of the commit. For each draw, a run without the fault is made in the same processes, directly
before it. The true cost is the difference of the mean periods in wall time. With `--project`, the fault runs in all
three schedules, and each recording is projected to the two others (`ppsim project --run`). A draw counts if its fault
costs 5 % of the step or more. It is noise if the first cause costs more, also without the fault. The machine needs
free cores, because other load affects both runs. Steps have real-time priority if the system permits it.
"""

import argparse
import os
import queue
import random
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.pipelining.schedules as torch_schedules
import torch.multiprocessing as mp
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B, ScheduleZBVZeroBubble
from torch.profiler import ProfilerActivity, profile

import ppsim
from benchmarks.made_steps import seed_of_commit
from ppsim.integrations.torch import named_passes

MICROBATCHES, STEPS = 8, 10
SECONDS = 0.02
"""Time of a forward pass, an input gradient or a weight gradient of a rank's stages."""
SCHEDULES: dict[str, tuple[Any, int]] = {
    "1f1b": (Schedule1F1B, 1), "interleaved-1f1b": (ScheduleInterleaved1F1B, 2),
    "zbv-fixed": (ScheduleZBVZeroBubble, 2),
}  # fmt: skip
"""torch's class of each schedule, and its number of stages per rank."""
ALL = -2
"""A rank number that stands for all ranks."""
WAIT_AT = 9
"""A host pause comes before this batch of sends and receives of a step, times the stages per rank."""


@dataclass
class Fault:
    """The faults of a run; the defaults mean no fault. A place is (step, rank, microbatch) or (step, rank)."""

    slow_rank: tuple[int, float] = (-1, 1.0)
    slow_stage: tuple[int, float] = (-1, 1.0)
    link: tuple[int, int] = (-1, -1)
    transit_s: float = 0.0
    queue_s: float = 0.0
    block_s: float = 0.0
    pauses: dict[tuple[int, int, int], float] = field(default_factory=dict)
    waits: dict[tuple[int, int], float] = field(default_factory=dict)
    waits_after_send: bool = False
    slow_backward: tuple[int, float] = (-1, 1.0)
    sizes: tuple[float, ...] = (1.0,)
    drift: tuple[int, float] = (-1, 1.0)
    data_s: float = 0.0
    optimizer_s: tuple[int, float] = (-1, 0.0)
    cause: str = ""
    places: tuple[str, ...] = ()


def fault_of(name: str, seed: int, vpp: int, ranks: int) -> tuple[Fault, Fault]:
    dice = random.Random(f"{name} {seed}")
    rank, first = dice.randrange(ranks), dice.randrange(ranks - 1)
    size, none = dice.uniform(0.8, 1.2), Fault()
    step, mb = dice.randrange(2, STEPS - 1), dice.randrange(2, MICROBATCHES - 1)
    stage = dice.randrange(ranks * vpp)
    falling = tuple(1 + 0.5 * size * (1 - 2 * one / (MICROBATCHES - 1)) for one in range(MICROBATCHES))
    told = "uneven stages or slow ranks" if vpp == 1 else ""
    link = (first, first + 1)
    pair = (f"rank {first} → {first + 1}:",)
    several = {(2 * r + 2, r, 2 + r): 0.3 * size for r in range(ranks)}
    found = {
        "none": none,
        "slow_rank": Fault(slow_rank=(rank, 1 + 0.3 * size), cause=told or "slow ranks", places=(f"rank {rank}",)),
        "slow_stage": Fault(
            slow_stage=(stage, 1 + 0.5 * size), cause=told or "uneven stages", places=(f"stage {stage} ",)
        ),
        "slow_link": Fault(link=link, transit_s=0.02 * size, cause="slow links", places=pair),
        "queueing_link": Fault(link=link, queue_s=0.04 * size, cause="slow links", places=pair),
        "slow_backward": Fault(
            slow_backward=(rank, 1 + 0.5 * size), cause=told or "slow ranks", places=(f"rank {rank}",)
        ),
        "blocking_link": Fault(link=link, block_s=0.015 * size, cause="slow links", places=pair),
        "pause": Fault(
            pauses={(step, rank, mb): 0.3 * size}, cause="pauses",
            places=(f"step {step + 1}: rank {rank}, {rank}F{mb}",),
        ),
        "garbage_collection": Fault(
            pauses=several, cause="pauses", places=tuple(f"step {s + 1}: rank {r}," for s, r, _ in several)
        ),
        "host_pause": Fault(
            waits={(step, rank): 0.3 * size}, cause="pauses",
            places=(rf"step {step + 1}: rank (\d or )?{rank}( or \d)?,",),
        ),
        "host_pause_after_send": Fault(
            waits={(step, rank): 0.3 * size}, waits_after_send=True, cause="pauses",
            places=(rf"step {step + 1}: rank (\d or )?{rank}( or \d)?,",),
        ),
        "uneven_microbatches": Fault(sizes=(1.0, 1 + 0.6 * size), cause="uneven microbatches"),
        "falling_microbatches": Fault(sizes=falling, cause="uneven microbatches"),
        "rising_microbatches": Fault(sizes=falling[::-1], cause="uneven microbatches"),
        "late_data": Fault(data_s=0.08 * size, cause="time between steps", places=("rank 0 ",)),
        "slow_optimizer": Fault(
            optimizer_s=(ranks - 1, 0.1 * size), cause="time between steps", places=(f"rank {ranks - 1} ",)
        ),
        "drift": Fault(drift=(rank, 1 + 0.02 * size), cause="drift", places=(f"rank {rank}:",)),
        "drift_of_all": Fault(drift=(ALL, 1 + 0.02 * size), cause="drift", places=("all ranks:",)),
    }[name]  # fmt: skip
    mean = sum(found.sizes) / len(found.sizes)
    return found, Fault(sizes=(mean,)) if len(found.sizes) > 1 else none


NAMES = (
    "none", "slow_rank", "slow_stage", "slow_backward", "slow_link", "queueing_link", "blocking_link", "pause",
    "garbage_collection", "host_pause", "host_pause_after_send", "uneven_microbatches", "falling_microbatches",
    "rising_microbatches", "late_data", "slow_optimizer", "drift", "drift_of_all",
)  # fmt: skip


class Now:
    """State of a rank's process, which actions and sends read."""

    fault, step, rank, ranks, schedule, batch, link_is_free = Fault(), 0, 0, 4, "1f1b", 0, 0.0
    vpp = 1
    delayed: "queue.Queue[tuple[float, Any, Any]]" = queue.Queue()


def sleep_of(kind: str, stage: int, microbatch: int) -> None:
    fault, seconds = Now.fault, SECONDS / Now.vpp * Now.fault.sizes[microbatch % len(Now.fault.sizes)]
    seconds *= fault.slow_rank[1] if fault.slow_rank[0] == Now.rank else 1
    seconds *= fault.slow_stage[1] if fault.slow_stage[0] == stage else 1
    seconds *= fault.slow_backward[1] if kind != "F" and fault.slow_backward[0] == Now.rank else 1
    seconds *= fault.drift[1] ** Now.step if fault.drift[0] in (Now.rank, ALL) else 1
    if kind == "F" and stage < Now.ranks:
        seconds += fault.pauses.get((Now.step, Now.rank, microbatch), 0.0)
    time.sleep(seconds)


class Slow(torch.autograd.Function):
    """An identity whose forward and backward passes sleep."""

    @staticmethod
    def forward(ctx: Any, x: Any, stage: int, microbatch: int, kinds: tuple[str, str]) -> Any:
        ctx.place, ctx.kind = (stage, microbatch), kinds[1]
        if kinds[0]:
            sleep_of(kinds[0], stage, microbatch)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        sleep_of(ctx.kind, *ctx.place)
        return gradient, None, None, None


class Sleeper(torch.nn.Module):
    """A stage whose actions sleep; it counts its microbatches."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        self.weight, self.stage, self.count = torch.nn.Parameter(torch.ones(64)), stage, 0

    def forward(self, x: torch.Tensor) -> Any:
        self.count += 1
        place = self.stage, (self.count - 1) % MICROBATCHES
        return Slow.apply(x, *place, ("F", "I")) * Slow.apply(self.weight, *place, ("", "W"))


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
    pause_s = Now.fault.waits.get((Now.step, Now.rank), 0.0) if Now.batch == WAIT_AT * Now.vpp else 0.0
    time.sleep(0.0 if Now.fault.waits_after_send else pause_s)
    for op in ops:
        if op.op is not dist.isend:
            work.append(op.op(op.tensor, group=op.group, tag=op.tag, group_src=op.group_peer))
            continue
        on_link = {Now.rank, op.group_peer} == set(Now.fault.link)
        if on_link and (Now.fault.transit_s or Now.fault.queue_s):
            Now.link_is_free = max(time.perf_counter(), Now.link_is_free) + Now.fault.queue_s
            due = Now.link_is_free if Now.fault.queue_s else time.perf_counter() + Now.fault.transit_s
            Now.delayed.put((due, op, op.tensor.detach().clone()))
            work.append(Sent())
            continue
        if on_link:
            time.sleep(Now.fault.block_s)
        work.append(op.op(op.tensor, group=op.group, tag=op.tag, group_dst=op.group_peer))
    time.sleep(pause_s if Now.fault.waits_after_send else 0.0)
    return work


@contextmanager
def real_time_priority() -> Iterator[None]:
    """Give all threads of the process real-time priority, because steps mostly sleep."""

    def set_policy(policy: int, priority: int) -> None:
        for thread in Path("/proc/self/task").iterdir():
            with suppress(PermissionError, ProcessLookupError):
                os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))

    set_policy(os.SCHED_RR, 3)
    try:
        yield
    finally:
        set_policy(os.SCHED_OTHER, 0)


def steps_of(fault: Fault, folder: Path) -> list[float]:
    """Run steps with a fault; return the start times of the steps that `explain` uses, and the final end."""
    Now.fault, Now.step = Fault(), 0
    num_stages = Now.ranks * Now.vpp
    mine = [Now.rank, Now.rank + Now.ranks][: Now.vpp]
    if Now.schedule == "zbv-fixed":
        mine[1] = num_stages - 1 - Now.rank
    modules = [Sleeper(stage) for stage in mine]
    stages = [
        PipelineStage(module, stage, num_stages, torch.device("cpu"))
        for module, stage in zip(modules, mine, strict=True)
    ]

    def loss(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (out - target).pow(2).mean()

    schedule = SCHEDULES[Now.schedule][0](stages[0] if Now.vpp == 1 else stages, MICROBATCHES, loss_fn=loss)
    optimizer = torch.optim.SGD([one.weight for one in modules], lr=1e-9)
    x = torch.ones(MICROBATCHES, 64, requires_grad=True)

    def step() -> float:
        began, Now.batch = time.perf_counter(), 0
        for one in modules:
            one.count = 0  # torch runs an extra forward pass to infer shapes
        time.sleep(Now.fault.data_s if Now.rank == 0 else 0.0)
        target = {"target": torch.zeros(MICROBATCHES, 64)} if num_stages - 1 in mine else {}
        schedule.step(*([x] if Now.rank == 0 else []), **target)
        time.sleep(Now.fault.optimizer_s[1] if Now.fault.optimizer_s[0] == Now.rank else 0.0)
        dist.all_reduce(torch.stack([one.weight.grad.norm() for one in modules]).norm())
        optimizer.step()
        optimizer.zero_grad()
        return began

    step()
    dist.barrier()
    Now.fault = fault
    begins, named = [], named_passes(stages if Now.vpp == 1 else [])
    with real_time_priority(), profile(activities=[ProfilerActivity.CPU]) as recorded, named:
        for Now.step in range(STEPS + 1):
            begins.append(step())
        begins.append(time.perf_counter())
    dist.barrier()
    folder.mkdir(parents=True, exist_ok=True)
    recorded.export_chrome_trace(str(folder / f"rank{Now.rank}.json"))
    dist.barrier()
    return begins[1:]


WORTH = 0.05


def run(
    rank: int, ranks: int, draws: list[tuple[str, int]], schedule: str, project: bool, folder: str, port: int
) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    Now.rank, Now.ranks = rank, ranks
    threading.Thread(target=send_late, daemon=True).start()
    torch_schedules._batch_p2p = batch_with_faults
    counts: Counter[str] = Counter()
    for name, seed in draws:
        fault, without = fault_of(name, seed, SCHEDULES[schedule][1], ranks)
        means, of_draw = {}, Path(folder) / f"{name}-{seed}"
        runs = {other: (fault, other) for other in SCHEDULES}
        for kind, (faults, Now.schedule) in (
            runs if project else {"without": (without, schedule), "with": (fault, schedule)}
        ).items():
            Now.vpp = SCHEDULES[Now.schedule][1]
            means[kind] = float(np.diff(steps_of(faults, of_draw / kind)).mean())
        if rank == 0:
            counts.update(report_projections(of_draw) if project else report(of_draw, name, seed, fault, means))
        dist.barrier()
    if rank == 0:
        print(dict(counts))
    dist.destroy_process_group()


def report_projections(folder: Path) -> list[str]:
    """Print the step of each schedule, measured and projected from the recordings of the others."""
    counts = []
    recordings: dict[str, Any] = {name: ppsim.read(folder / name) for name in SCHEDULES}
    for (name, recording), (other, measured) in permutations(recordings.items(), 2):
        projected = ppsim.project(run=folder / name, schedule=other, vpp=SCHEDULES[other][1])
        step_s = float(np.median(measured.step_times_s))
        error = projected.timeline.step_time_s / step_s - 1
        noise = [float(np.ptp(run.step_times_s) / np.median(run.step_times_s)) for run in (recording, measured)]
        stays = "; ".join(line for line in projected.assumptions if line.startswith("from the run"))
        print(f"| {folder.name} | {name} → {other} | {1e3 * step_s:.0f} | {1e3 * projected.timeline.step_time_s:.0f} | "
              f"{100 * error:+.1f} % | {100 * max(noise):.0f} % | {stays} |", flush=True)  # fmt: skip
        counts += ["projections", *(["within 5 %"] if abs(error) <= 0.05 else [])]
    return counts


def report(folder: Path, name: str, seed: int, fault: Fault, means: dict[str, float]) -> list[str]:
    """Print a row: the true cost, the result of `explain`, and whether cause, place and size are right."""
    true = means["with"] - means["without"]
    before, after = (ppsim.explain(folder / kind) for kind in ("without", "with"))
    first = after.reasons[0]
    of_two_ranks = {"waits for messages", *["gaps between passes"] * bool(fault.block_s)}
    accepted = {fault.cause} | (of_two_ranks if fault.cause == "slow links" and Now.ranks == 2 else set())
    gains = [sum(loss.gain_s for loss in found.reasons if loss.cause in accepted) for found in (after, before)]
    detail = "; ".join(loss.detail for loss in after.reasons if loss.cause in accepted)
    is_first, is_sized = first.cause in accepted, abs((gains[0] - gains[1]) / true - 1) <= 0.2
    is_placed = Now.ranks == 2 or all(re.search(place, detail) for place in fault.places)
    is_noise = (
        not is_first and next((loss.gain_s for loss in before.reasons if loss.cause == first.cause), 0.0) > true
    )
    kind = "small" if not fault.cause or true < WORTH * after.period_s else "noise" if is_noise else "counted"
    words = [word for word, holds in (("first", is_first), ("place", is_placed), ("size", is_sized)) if holds]
    print(f"| {name} {seed} | {1e3 * true:.0f} | {1e3 * (gains[0] - gains[1]):.0f} | {first.cause} | {kind} | "
          f"{', '.join(words)} | {first.detail} |", flush=True)  # fmt: skip
    return [
        kind,
        *(f"{kind}: {word}" for word in words),
        *([f"{kind}: first and place"] if is_first and is_placed else []),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--only", default=",".join(NAMES), help="names of faults, with commas")
    parser.add_argument("--schedule", choices=list(SCHEDULES), default="interleaved-1f1b")
    parser.add_argument("--ranks", type=int, choices=[2, 4], default=4)
    parser.add_argument("--project", action="store_true", help="compare with projections of the other schedules")
    parser.add_argument("--seed", type=int, default=seed_of_commit())
    parser.add_argument("--port", type=int, default=29651)
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    draws = [(name, arguments.seed + number) for name in names for number in range(arguments.draws)]
    header = ["fault", "true cost, ms", "found, ms", "first cause", "counted", "right", "where"]
    if arguments.project:
        header = ["fault", "projected", "measured, ms", "projected, ms", "error", "range of steps", "kept faults"]
    print("|", " | ".join(header), "|")
    print("|---" * len(header) + "|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(
            run, nprocs=arguments.ranks,
            args=(arguments.ranks, draws, arguments.schedule, arguments.project, folder, arguments.port),
        )  # fmt: skip


if __name__ == "__main__":
    main()
