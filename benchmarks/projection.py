"""Time of one projection: warm, in this process, and cold, as a command.

    python benchmarks/projection.py

The job is Llama-3-405B on 128 × 8 H100s at pp 8, vpp 2, 64 microbatches. `new job` estimates every cost again,
`same job` reuses the costs of the previous call; both build the table and simulate the step and its memory. The
report with its bounds, and the other channels, are computed on request only. `compiled`: all kernels are compiled
beforehand.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext

from ppsim.base.numba_jit import every_kernel_compiled
from ppsim.costs.job import Job
from ppsim.machine.cluster_files import load_cluster
from ppsim.model.execution import Execution
from ppsim.model.registry import read_model
from ppsim.parallel.layout import layout_on
from ppsim.projection.plan import Plan
from ppsim.projection.project import project

COMMAND = [
    *(sys.executable, "-m", "ppsim", "project", "--model", "llama3-405b", "--cluster", "dgx-h100", "--gpus", "1024"),
    *("--tp", "8", "--pp", "8", "--vpp", "2", "--global-batch-size", "1024", "--seq-len", "8192"),
]  # fmt: skip


def job() -> Job:
    return Job(
        model=read_model("llama3-405b"),
        model_name="llama3-405b",
        cluster=load_cluster("dgx-h100"),
        layout=layout_on(1024, tp=8, pp=8),
        global_batch=1024,
        sequence_length=8192,
        execution=Execution(sequence_parallel=True, cross_entropy="fused"),
    )


def quickest(work: Callable[[], object], repeats: int = 30) -> tuple[float, float]:
    """Return minimum and median seconds, after one unmeasured call."""
    work()
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds), statistics.median(seconds)


def main() -> None:
    print(f"load {os.getloadavg()[0]:.2f}")
    one = job()
    same = Plan(pp=8, vpp=2, job=one)
    projection = project(same)
    rows: dict[str, Callable[[], object]] = {
        "project, a profile": lambda: project(Plan(pp=8, vpp=2, microbatches=64)),
        "project, same job": lambda: project(same),
        "project, new job": lambda: project(Plan(pp=8, vpp=2, job=job())),
        "… and its report": lambda: project(same).report,
        "answer without advice": lambda: projection.summarise(with_advice=False),
        "answer": lambda: projection.summarise(),
    }
    for engine in ("plain", "compiled"):
        with every_kernel_compiled() if engine == "compiled" else nullcontext():
            for name, work in rows.items():
                if name.startswith("answer") and engine == "plain":
                    continue  # compiles kernels
                least, median = quickest(work, repeats=5 if name == "answer" else 30)
                print(f"{name:24} {engine:8} least {1e3 * least:7.1f} ms, median {1e3 * median:7.1f} ms")
    least, median = quickest(lambda: subprocess.run(COMMAND, check=True, stdout=subprocess.DEVNULL), repeats=5)
    print(f"{'ppsim project, cold':33} least {1e3 * least:7.1f} ms, median {1e3 * median:7.1f} ms")


if __name__ == "__main__":
    main()
