"""Compare the first row of `ppsim tune` with the best of a larger space, for 20 jobs drawn with a fixed seed.

    python scripts/tune_space.py [FIRST [LAST]]    the jobs to compare, from 0 to 19; default: all

The larger space has every number of stages per rank up to 12, recomputation by module, and every second or fourth
layer recomputed. On up to 8 pipeline ranks it has zbv, a schedule fitted to the costs. Its search takes up to 2
minutes per job. Each line has the time of the larger space's best relative to the first row of the default search:
a negative number means that the default search missed a faster configuration.
"""

import random
import sys
import time
from typing import Any

import ppsim
from ppsim.base.errors import DoesNotFit, PpsimError

_SEED, _JOBS = 30, 20
_MODELS = {
    "llama2-7b": [8, 16], "llama3-8b": [8, 16, 32], "llama2-13b": [16, 32], "llama3-70b": [32, 64, 128],
    "mixtral-8x7b": [16, 32, 64], "qwen3-30b-a3b": [16, 32], "qwen2.5-32b": [32, 64], "gpt3-175b": [128],
}  # fmt: skip
_WORDS = ("moe_act", "mlp", "layernorm+moe_act")


def jobs() -> list[dict[str, Any]]:
    """Return the jobs, the same in every run."""
    drawn = random.Random(_SEED)
    found: list[dict[str, Any]] = []
    for _ in range(_JOBS):
        name = drawn.choice(list(_MODELS))
        gpus = drawn.choice(_MODELS[name])
        cluster = drawn.choice(["dgx-h100", "dgx-h100", "dgx-a100", "dgx-b200"])
        found.append(
            {"model": name, "gpus": gpus, "cluster": cluster, "global_batch": gpus * drawn.choice([1, 2, 4, 8]),
             "seq_len": drawn.choice([4096, 8192])}
        )  # fmt: skip
    return found


def larger(job: dict[str, Any], micro_batch: int) -> list[ppsim.TuneResult]:
    """Return searches of the larger space."""
    words = [word for word in _WORDS if _is_possible(job, word)]
    every = {"vpp": range(1, 13), "recompute": ["none", "full", "full/2", "full/4", *words]}
    fitted = {
        "vpp": [2], "pp": [2, 4, 8], "schedule": ["zbv"], "recompute": ["none"], "split": ["auto"],
        "micro_batch": [micro_batch],
    }  # fmt: skip
    found = []
    for ranges in (every, fitted):
        try:
            found.append(ppsim.tune(**job, **ranges))
        except PpsimError as error:
            print(f"   {str(error)[:100]}")
    return found


def _is_possible(job: dict[str, Any], word: str) -> bool:
    try:
        ppsim.job(model=job["model"], cluster=job["cluster"], pp=1, recompute=word)
    except PpsimError:
        return False
    return True


def main(first: int = 0, last: int = _JOBS - 1) -> None:
    """Print a line per job, and the worst."""
    worst = 0.0
    for number, job in list(enumerate(jobs()))[first : last + 1]:
        begin = time.perf_counter()
        try:
            default = ppsim.tune(**job).best[0]
        except DoesNotFit:
            print(f"{number:2} {' '.join(map(str, job.values()))}: does not fit", flush=True)
            continue
        took = time.perf_counter() - begin
        best = min(
            (one.best[0] for one in larger(job, default.candidate.micro_batch)),
            key=lambda one: one.iteration_time_s,
        )
        change = 100 * (best.iteration_time_s / default.iteration_time_s - 1)
        worst = min(worst, change)
        took_larger = time.perf_counter() - begin - took
        print(
            f"{number:2} {' '.join(map(str, job.values()))}: {change:+.2f} % ({took:.0f} s, {took_larger:.0f} s)\n"
            f"   default {default.candidate.key}\n   larger  {best.candidate.key}",
            flush=True,
        )
    print(f"worst: {worst:+.2f} %")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
