"""How long the cost-aware generators take, in one run, against the published heuristic's own part of it.

    python benchmarks/generators.py

Warm: numba is imported and has compiled (it caches on disk).
"""

import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from ppsim.schedule.zero_bubble_auto import zb_auto, zb_heuristic

SIZES = ((8, 32), (64, 256), (64, 1024))


def timed(work: Callable[[], Any], *, repeats: int = 3) -> float:
    """Return the median seconds that the work takes, after one unmeasured time."""
    work()
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def uneven(p: int) -> dict[str, Any]:
    """Stages that differ by up to a third, with a transfer of 2 %."""
    spread = np.random.default_rng(0).uniform(0.85, 1.15, (3, p))
    return {
        "forward_s": 0.297 * spread[0], "backward_input_s": 0.294 * spread[1],
        "backward_weight_s": 0.199 * spread[2], "transfer_s": 0.005,
    }  # fmt: skip


def main() -> None:
    print(
        f"Python {platform.python_version()}, numpy {np.__version__}, numba {numba.__version__}, {platform.machine()}\n"
    )
    print("| table | heuristic (8 runs) | zb_auto by span | zb_auto by step |")
    print("|---|--:|--:|--:|")
    for p, m in SIZES:
        for caps in (1, 2):
            arguments = {"num_ranks": p, "num_microbatches": m, "cap": caps * p, "engine": "compiled", **uneven(p)}
            seconds = [
                timed(lambda arguments=arguments: zb_heuristic(**arguments)),
                *(
                    timed(
                        lambda arguments=arguments, criterion=criterion: zb_auto(**arguments, criterion=criterion)
                    )
                    for criterion in ("span", "step")
                ),
            ]
            print(
                f"| p={p} m={m}, cap {caps}p | " + " | ".join(f"{1e3 * value:,.1f} ms" for value in seconds) + " |"
            )


if __name__ == "__main__":
    main()
