"""Run 1F1B on two ranks (gloo), with the spans of Megatron-LM, written by the console exporter of the SDK.

    python megatron_spans.py FOLDER

Passes, work between steps and one garbage collection within step 3 sleep. An evaluation and a checkpoint follow
step 4.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

ORDER = ("F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3")
ITERATIONS, FORWARD_S, BACKWARD_S = 6, 0.01, 0.02


def run(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{folder}/meeting")
    resource = {"dl.rank": rank, "dl.world_size": 2, "dl.pipeline_parallel.size": 2, "host.name": "host"}
    with (folder / f"rank{rank}.json").open("w") as out:
        provider = TracerProvider(resource=Resource(resource))
        provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=out)))
        train(rank, provider.get_tracer("nemo.lens"))
        provider.shutdown()
    dist.destroy_process_group()


def train(rank: int, tracer: Any) -> None:
    tensor, sent = torch.zeros(64), []

    def spend(name: str, seconds: float) -> None:
        with tracer.start_as_current_span(f"megatron.{name}"):
            time.sleep(seconds)

    def step(kind: str) -> None:
        name = "forward" if kind == "F" else "backward"
        if (kind == "F") == (rank == 1):
            with tracer.start_as_current_span(f"megatron.p2p.recv_{name}"):
                dist.recv(torch.empty(64), src=1 - rank)
        spend(f"microbatch.{name}", FORWARD_S if kind == "F" else BACKWARD_S)
        if (kind == "F") == (rank == 0):
            sent.append(dist.isend(tensor, dst=1 - rank))

    for iteration in range(1, ITERATIONS + 1):
        with tracer.start_as_current_span("megatron.train.iteration", attributes={"megatron.iteration": iteration}):
            for action in ORDER[rank].split():
                if (rank, iteration, action) == (0, 3, "F3"):
                    spend("train.gc_collect", 0.3)
                step(action[0])
            with tracer.start_as_current_span("megatron.grad_sync.finish"):
                dist.all_reduce(tensor)
            spend("train.iteration.optimizer", 0.05)
        if iteration == 4:
            with tracer.start_as_current_span("megatron.evaluate"):
                step("F")
                step("F")
            spend("checkpoint.exposed_save", 0.4)
        for work in sent:
            work.wait()
        sent.clear()


if __name__ == "__main__":
    torch.multiprocessing.spawn(run, (Path(sys.argv[1]),), nprocs=2)
