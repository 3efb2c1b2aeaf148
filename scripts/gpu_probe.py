"""Run each path of the CUDA code separately and print a table: the first step of a session on a GPU.

    python scripts/gpu_probe.py FOLDER                          all cases, one per CPU core at a time
    python scripts/gpu_probe.py FOLDER --device cpu moe trace   these cases, without a GPU

A case is a process with a log in FOLDER. A case that fails, or takes longer than --seconds, does not stop the
others. Times are meaningless, because all cases share the device. The exit code is 1 if a case failed.
"""

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ppsim.base.files import to_json, write_atomically

SCRIPTS = Path(__file__).parent
QUICK = ["--repeats", "5", "--warm-up", "1", "--micro-batch-size", "1"]
CUDA_ONLY = ("fp8", "graphs", "moe graphs", "compile")
"""A CPU has no CUDA graphs, and needs minutes to compile and for 8-bit GEMMs."""


def cases(folder: Path, device: str) -> dict[str, list[str]]:
    """Return the command of each case."""

    def profile(name: str, *options: str, model: str = "llama-mini", dtype: str = "bfloat16") -> list[str]:
        what = ["--model", model, "--dtype", dtype, *options]
        return ["-m", "ppsim", "profile", *what, *QUICK, "--device", device, "-o", str(folder / f"{name}.json")]

    no_step = ("--optimizer", "none")
    spins = str(SCRIPTS.parent / "benchmarks" / "partitions.py")
    few = ["--partitions", "2", "--steps", "2", "--num-microbatches", "2"]
    return {
        "llama": profile("llama"),
        "moe": profile("moe", model="moe-mini"),
        "fp8": profile("fp8", *no_step, dtype="fp8"),
        "graphs": profile("graphs", "--cuda-graphs", *no_step),
        "moe graphs": profile("moe-graphs", "--cuda-graphs", *no_step, model="moe-mini"),
        "compile": profile("compile", "--compile", *no_step),
        "cp": profile("cp", "--cp", "2", *no_step),
        "facts": ["-m", "ppsim", "profile", "--suite", "smoke", "--device", device, "-o", str(folder / "smoke")],
        "spins": [spins, *few, "--device", device, "--record", str(folder / "spins.json")],
        "trace": [__file__, str(folder), "--device", device, "--trace"],
    }


def tried(name: str, command: list[str], folder: Path, end: float) -> dict[str, object]:
    """Run a case and return its outcome."""
    begin, log = time.monotonic(), folder / f"{name.replace(' ', '-')}.log"
    with log.open("w", encoding="utf-8") as file:
        try:
            left = max(end - begin, 1.0)
            done = subprocess.run(
                [sys.executable, *command], stdout=file, stderr=subprocess.STDOUT, timeout=left, check=False
            )
            code: int | None = done.returncode
        except subprocess.TimeoutExpired:
            code = None
    lines = [
        line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()
    ]
    outcome = "too long" if code is None else "ok" if code == 0 else f"exit {code}"
    return {
        "case": name, "outcome": outcome, "seconds": round(time.monotonic() - begin, 1), "said": (lines or [""])[-1]
    }  # fmt: skip


def trace(folder: Path, device: str) -> None:
    """Record F, I and W of a layer in ranges named as torch's runtime names them, and read the trace back."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    from ppsim.base.units import seconds
    from ppsim.profiling.layers import build_layer
    from ppsim.profiling.measure import MeasuredModule
    from ppsim.profiling.model_shapes import MODELS
    from ppsim.runs.traces import result_of
    from ppsim.trainers.torch.read_trace import read_trace

    shape = MODELS["llama-mini"]
    layer = build_layer(shape.layer, shape.sequence_length).to(device, torch.bfloat16)
    x = torch.randn(1, shape.sequence_length, shape.layer.hidden_size, device=device, dtype=torch.bfloat16)
    subject, path = MeasuredModule(layer, [x]), folder / "trace.json.gz"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=activities) as profiler:
        for _ in range(4):
            with record_function("PP:0F0"):
                given = subject.next_input()
                output = subject.forward(given)
            grad = subject.grad_of(output)
            with record_function("PP:0I0"):
                groups = subject.backward_input(given, output, grad)
            with record_function("PP:0W0"):
                subject.backward_weight(given, output, grad, groups)
    profiler.export_chrome_trace(str(path))
    read = read_trace(path)
    if device == "cuda" and not read.on_device:
        sys.exit(f"{path} holds no kernels")
    record = result_of([read], num_warm_up=1)["steps"][-1][0]["records"]
    times = ", ".join(f"{line['name']} {seconds(line['end'] - line['calls'][0])}" for line in record)
    print(f"{'kernels' if read.on_device else 'host'}: {times}")


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="CASE")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--seconds", type=float, default=55.0)
    parser.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_intermixed_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.trace:
        trace(arguments.folder, arguments.device)
        return
    there = cases(arguments.folder, arguments.device)
    if unknown := [name for name in arguments.names if name not in there]:
        parser.error(f"unknown case '{unknown[0]}': there are {', '.join(there)}")
    chosen = arguments.names or [name for name in there if arguments.device == "cuda" or name not in CUDA_ONLY]
    end = time.monotonic() + arguments.seconds
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda name: tried(name, there[name], arguments.folder, end), chosen))
    write_atomically(arguments.folder / "probe.json", to_json(found))
    for one in found:
        print(f"{one['case']:<11} {one['outcome']:<9} {one['seconds']:>5} s  {str(one['said'])[:90]}")
    sys.exit(any(one["outcome"] != "ok" for one in found))


if __name__ == "__main__":
    main()
