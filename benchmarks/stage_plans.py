"""`--plan auto` against the best plan with the same recomputation on every stage.

    python benchmarks/stage_plans.py [NAME …]

Prints for each job: the iteration time with the same recomputation on every stage and with a plan per stage, the
difference, the lower bound on the busiest rank (with one stage per rank), and the seconds of the search.
"""

import re
import sys
import time
from typing import Any

import ppsim

JOBS: dict[str, dict[str, Any]] = {
    "llama3-70b H100": {"model": "llama3-70b", "cluster": "dgx-h100", "gpus": 64, "tp": 4, "pp": 4, "micro_batch": 2,
                        "global_batch": 128},
    "llama3-70b H100 vpp 5": {"model": "llama3-70b", "cluster": "dgx-h100", "gpus": 64, "tp": 4, "pp": 4, "vpp": 5,
                              "micro_batch": 2, "global_batch": 128},
    "llama3-70b B200": {"model": "llama3-70b", "cluster": "dgx-b200", "gpus": 64, "tp": 2, "pp": 4, "micro_batch": 2,
                        "global_batch": 128},
    "llama3-405b H100": {"model": "llama3-405b", "cluster": "dgx-h100", "gpus": 1024, "tp": 8, "pp": 16,
                         "global_batch": 512},
    "llama3-405b B200": {"model": "llama3-405b", "cluster": "dgx-b200", "gpus": 512, "tp": 4, "pp": 8, "micro_batch": 2,
                         "global_batch": 1024},
    "deepseek-v3 H100": {"model": "deepseek-v3", "cluster": "dgx-h100", "gpus": 1024, "pp": 16, "ep": 64,
                         "global_batch": 4096},
    "deepseek-v3 B200": {"model": "deepseek-v3", "cluster": "dgx-b200", "gpus": 256, "pp": 8, "ep": 32,
                         "global_batch": 2048},
    "llama2-70b A100": {"model": "llama2-70b", "cluster": "dgx-a100", "gpus": 64, "tp": 4, "pp": 8, "micro_batch": 1,
                        "global_batch": 128, "seq_len": 16384},
    "gpt3-175b A100": {"model": "gpt3-175b", "cluster": "dgx-a100", "gpus": 64, "tp": 8, "pp": 8, "global_batch": 128,
                       "seq_len": 8192},
}  # fmt: skip
"""The last two: the models and GPUs of AdaPipe (Sun et al. 2024, ASPLOS)."""

_LINE = re.compile(
    r"iteration (.+?)(?:; with the same .* stages (.+?) \((.+?)\))?(?:; busiest .* least (.+?) \(.*)?$"
)


def main() -> None:
    print("job                     uniform                        planned    gain   busiest rank   search")
    for name in sys.argv[1:] or JOBS:
        begin = time.perf_counter()
        made = ppsim.project(**JOBS[name], stage_plan="auto")
        took = time.perf_counter() - begin
        [line] = [one for one in made.assumptions if one.startswith("plan: ")]
        _, uniform, text, busiest = _LINE.search(line).groups()  # type: ignore[union-attr]
        fits = "" if made.memory_error is None else ", does not fit"
        gain = f"{100 * (1 - made.iteration_time_s / _seconds(uniform)):5.1f} %" if uniform else "       "
        same = f"{uniform} ({text})" if uniform else "none fits"
        print(f"{name:23} {same:30} {made.iteration_time_s:6.2f} s {gain}  {busiest or '':13} {took:5.1f} s{fits}")


def _seconds(text: str) -> float:
    value, unit = text.split()
    return float(value) * {"s": 1.0, "ms": 1e-3, "min": 60.0}[unit]


if __name__ == "__main__":
    main()
