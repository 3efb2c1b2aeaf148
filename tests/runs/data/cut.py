"""Cuts a trace of HolisticTraceAnalysis' test data to what the reader relies on: python cut.py FROM.json.gz TO.json.gz.

Of every range it keeps the first and last work on the device that was launched in it, all of NCCL's, and each 25th.
"""

import gzip
import json
import sys
from pathlib import Path

HEADERS = ("schemaVersion", "distributedInfo", "displayTimeUnit", "baseTimeNanoseconds")
ARGS = (
    "correlation",
    "stream",
    "Collective name",
    "In msg nelems",
    "Out msg nelems",
    "Group size",
    "dtype",
    "External id",
)
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def cut(trace):
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    named = [event for event in events if event["name"].startswith(("## ", "ProfilerStep"))]
    launches = {
        e["args"]["correlation"]: e for e in events if e.get("cat") == "cuda_runtime" and "correlation" in e["args"]
    }
    work = [e for e in events if e.get("cat") in ON_DEVICE]
    kept = [e for e in work if "nccl" in e["name"].lower()] + work[::25]
    for at in named:
        inside = [e for e in work if at["ts"] <= launches[e["args"]["correlation"]]["ts"] <= at["ts"] + at["dur"]]
        ours = [e for e in inside if "nccl" not in e["name"].lower()]
        if ours:
            kept += [min(ours, key=lambda e: e["ts"]), max(ours, key=lambda e: e["ts"] + e["dur"])]
    numbers = {e["args"]["correlation"] for e in kept}
    wanted = [e for e in work if e["args"]["correlation"] in numbers]
    wanted += [launches[number] for number in numbers] + named
    wanted += [e for e in events if e["name"] == "record_param_comms"]
    wanted += [e for e in events if e.get("cat") == "cuda_runtime" and e["name"] != "cudaLaunchKernel"][::200]
    wanted += [e for e in events if e["name"].startswith("autograd::engine::evaluate_function")][::50]
    unique = {(e["name"], e["ts"], e["tid"], e.get("cat")): e for e in wanted}
    cut_events = [
        {key: e[key] for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur")}
        | {"args": {key: value for key, value in e.get("args", {}).items() if key in ARGS}}
        for e in sorted(unique.values(), key=lambda e: e["ts"])
    ]
    return {key: trace[key] for key in HEADERS if key in trace} | {"traceEvents": cut_events}


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    with gzip.open(source) as file:
        made = cut(json.load(file))
    target.write_bytes(gzip.compress(json.dumps(made).encode(), mtime=0))
