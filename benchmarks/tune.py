"""Time of `ppsim tune` for Llama-3-405B on 1,024 GPUs, and the part of the space that it simulates.

    python benchmarks/tune.py [PROCESSES]    2, or processes:2

Prints configurations, seconds, configurations per second, and the CPU time of this process, for a space of more
than 10,000 different configurations.
"""

import sys
import time

from ppsim.costs.job import Job
from ppsim.machine.cluster_files import load_cluster
from ppsim.model.execution import Execution
from ppsim.model.registry import read_model
from ppsim.parallel.layout import Layout
from ppsim.tuning.search import tune
from ppsim.tuning.space import SearchProblem, space_for


def main(processes: int) -> None:
    cluster = load_cluster("dgx-h100")
    job = Job(
        model=read_model("llama3-405b"), model_name="llama3-405b", cluster=cluster, layout=Layout(), global_batch=512,
        sequence_length=8192, execution=Execution(cross_entropy="fused"),
    )  # fmt: skip
    question = SearchProblem(job=job, num_gpus=1024, memory_limit_bytes=0.95 * cluster.device.memory_bytes)
    space = space_for(question, vpp=range(1, 9))
    begin, cpu = time.perf_counter(), time.process_time()
    found = tune(question, space, processes=processes)
    took, cpu = time.perf_counter() - begin, time.process_time() - cpu
    best, number = found.best[0], found.counts["configurations"]
    print(f"{number} configurations in {took:.1f} s by {processes} processes: {number / took:.0f} a second")
    print(f"{cpu:.2f} s of CPU in the process that asks, {1e6 * cpu / number:.0f} µs a configuration")
    print(found.counts)
    print(f"best: {best.candidate.key}, {best.iteration_time_s:.3f} s, MFU {100 * found.utilization(best):.2f} %")


if __name__ == "__main__":
    main(int(sys.argv[1].removeprefix("processes:")) if len(sys.argv) > 1 else 2)
