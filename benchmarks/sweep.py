"""Speed, memory and restarts of `ppsim sweep`.

    python benchmarks/sweep.py jobs N FILE.jsonl [--seed S]     N jobs: recipes on clusters with their number formats
    python benchmarks/sweep.py time FILE.jsonl [ARGUMENTS]      CPU seconds, seconds and memory of one sweep
    python benchmarks/sweep.py workers FILE.jsonl               one process, --jobs 2, and local Dask and Ray clusters
    python benchmarks/sweep.py kill FILE.jsonl [--times 10] [--seed S]   killed at random moments: the same bytes

`workers` starts two workers of each kind, lets them run the first jobs once, and then times the sweep. Dask's and
Ray's schedulers share the cores with the workers.
"""

import argparse
import json
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Event, Thread

import psutil

from ppsim.machine.cluster_files import load_cluster, packaged_clusters
from ppsim.trainers.read_recipe import read_recipe
from ppsim.trainers.recipe_table import recipes

_WARM_JOBS = 200


def write_jobs(number: int, path: Path, seed: int) -> None:
    """Draw pairs of a recipe and a cluster whose device has the recipe's number format."""
    formats = {name: load_cluster(name).device.peak_flops_per_s for name in packaged_clusters()}
    dtypes = {recipe.name: read_recipe(recipe.name).options.get("dtype", "bfloat16") for recipe in recipes()}
    pairs = [
        {"recipe": recipe, "cluster": cluster}
        for recipe, dtype in dtypes.items()
        for cluster, peaks in formats.items()
        if dtype.split("-")[0] in peaks
    ]
    drawn = random.Random(seed).sample(pairs, min(number, len(pairs)))
    path.write_text("".join(f"{json.dumps(job)}\n" for job in drawn))
    print(f"{len(drawn)} of {len(pairs)} pairs of {len(dtypes)} recipes and {len(formats)} clusters")


def swept(jobs: Path, *arguments: str, output: Path) -> tuple[float, float, float]:
    """Return seconds, CPU seconds with ended children, and the maximum MB of a process, of one sweep."""
    command = [sys.executable, "-m", "ppsim", "sweep", str(jobs), "-o", str(output), "--restart", *arguments]
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began_s, cpu_s, after.ru_maxrss / 1024


def time_sweep(jobs: Path, arguments: list[str]) -> None:
    """Print the figures of one sweep."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "results.csv")
        seconds, cpu_s, megabytes = swept(jobs, *arguments, output=output)
        number = len(jobs.read_text().splitlines())
        failed = sum(not line.endswith(",") for line in output.read_text().splitlines()[1:])
    print(
        f"{number} jobs, {failed} with an error: {seconds:.1f} s, {cpu_s:.1f} CPU s, {1e3 * cpu_s / number:.1f} ms CPU "
        f"a job, {megabytes:.0f} MB"
    )


@contextmanager
def dask_cluster() -> Iterator[list[str]]:
    """A scheduler and two workers of one thread."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "scheduler.json")
        dask = [sys.executable, "-m", "dask"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        commands = [
            ["scheduler", "--scheduler-file", str(file), "--no-dashboard", "--port", "0"],
            *[["worker", "--scheduler-file", str(file), "--nthreads", "1", "--no-dashboard", "--no-nanny"]] * 2,
        ]
        processes = [subprocess.Popen([*dask, *command], cwd=folder, **quiet) for command in commands]
        try:
            while not file.exists():
                time.sleep(0.1)
            time.sleep(5)
            yield ["--backend", "dask", "--scheduler", str(file)]
        finally:
            for process in processes[::-1]:
                process.terminate()
                process.wait()


@contextmanager
def ray_cluster() -> Iterator[list[str]]:
    """Two nodes of one CPU on this machine."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    try:
        yield ["--backend", "ray", "--address", cluster.address]
    finally:
        cluster.shutdown()


@contextmanager
def watched_cpu() -> Iterator[Callable[[], tuple[float, float]]]:
    """Yield a function that returns the CPU seconds of the processes below this one since then, and of its workers.

    Processes that end are counted to their last sample, of two a second.
    """
    seconds: dict[int, float] = {}
    workers: set[int] = set()
    ended = Event()

    def sample() -> None:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                times = process.cpu_times()
                seconds[process.pid] = times.user + times.system
                if any(word in " ".join(process.cmdline()) for word in _WORKERS):
                    workers.add(process.pid)

    def watch() -> None:
        while not ended.wait(0.5):
            sample()

    sample()
    before = dict(seconds)
    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: tuple(
            sum(seconds[pid] - before.get(pid, 0.0) for pid in pids) for pids in (list(seconds), list(workers))
        )
    finally:
        ended.set()
        thread.join()


_WORKERS = ("popen_loky", "dask worker", "ray::_Actor")


def time_workers(jobs: Path) -> None:
    """Compare one process with two workers of each kind."""
    with tempfile.TemporaryDirectory() as folder:
        output, warm = Path(folder, "results.csv"), Path(folder, "warm.jsonl")
        warm.write_text("".join(f"{line}\n" for line in jobs.read_text().splitlines()[:_WARM_JOBS]))
        swept(warm, output=output)
        alone_s, alone_cpu_s, _ = swept(jobs, output=output)
        print(f"one process: {alone_s:.1f} s, {alone_cpu_s:.1f} CPU s", flush=True)
        expected = output.read_bytes()
        for name, cluster in (
            ("--jobs 2, its start included", lambda: nullcontext(["--jobs", "2"])), ("Dask", dask_cluster), ("Ray", ray_cluster),
        ):  # fmt: skip
            began_s = time.perf_counter()
            with cluster() as arguments:
                started_s = time.perf_counter() - began_s
                swept(warm, *arguments, output=output)
                with watched_cpu() as cpu:
                    seconds, _, _ = swept(jobs, *arguments, output=output)
                    cpu_s, of_workers_s = cpu()
                is_same = output.read_bytes() == expected
            print(
                f"{name} (start {started_s:.1f} s): {seconds:.1f} s ({alone_s / seconds:.2f} × one process), {cpu_s:.1f} "
                f"CPU s ({cpu_s / alone_cpu_s:.2f} ×), {100 * of_workers_s / cpu_s:.1f} % in workers, "
                f"{'the same bytes' if is_same else 'OTHER BYTES'}", flush=True,
            )  # fmt: skip


def kill(jobs: Path, times: int, seed: int) -> None:
    """Kill a sweep at random moments of its usual time until it ends, and compare its bytes."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        whole, output = Path(folder, "whole.csv"), Path(folder, "killed.csv")
        seconds, _, _ = swept(jobs, output=whole)
        command = [sys.executable, "-m", "ppsim", "sweep", str(jobs), "-o", str(output)]
        kept = []
        for _ in range(times):
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            time.sleep(draw.uniform(0, seconds / 4))
            process.send_signal(signal.SIGKILL)
            process.wait()
            partial = Path(f"{output}.partial.jsonl")
            kept.append(len(partial.read_text().splitlines()) if partial.exists() else 0)
        subprocess.run(command, check=True)
        is_same = output.read_bytes() == whole.read_bytes()
        left = Path(f"{output}.partial.jsonl").exists()
    print(
        f"killed {times} times, rows kept then {kept}: {'the same bytes' if is_same and not left else 'NOT the same'}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["jobs", "time", "workers", "kill"])
    parser.add_argument("arguments", nargs="*")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given, further = parser.parse_known_args()
    if given.what == "jobs":
        write_jobs(int(given.arguments[0]), Path(given.arguments[1]), given.seed)
    elif given.what == "time":
        time_sweep(Path(given.arguments[0]), [*given.arguments[1:], *further])
    elif given.what == "workers":
        time_workers(Path(given.arguments[0]))
    else:
        kill(Path(given.arguments[0]), given.times, given.seed)
