"""Compare a search on Ray's workers with the same search in this process: `pip install 'ppsim-pipeline[ray]'`.

    python scripts/tune_on_ray.py [ADDRESS]

Starts Ray with two workers on this machine, or uses the cluster at an address (auto, HOST:PORT). Fails unless the
results are equal, and no result is lost when a worker is killed during the search.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

import ppsim
from ppsim.tuning.workers import workers

ASKED = {"model": "gpt2", "gpus": 8, "global_batch": 64}
NUM_CALLS = 20


def double_or_die(flag: Path, number: int) -> int:
    """Return twice the number; the first call kills its own process instead."""
    try:
        flag.touch(exist_ok=False)
    except FileExistsError:
        return 2 * number
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still here")


def main(where: str) -> None:
    """Run both searches, and kill a worker."""
    here, there = (ppsim.tune(**ASKED, **words).to_json() for words in ({}, {"workers": where}))
    print(
        f"{here['counts']['configurations']} configurations here and on {where}:",
        "same" if here == there else "NOT",
    )
    with tempfile.TemporaryDirectory() as folder, workers(where) as those:
        flag = Path(folder, "flag")
        found = those.run(double_or_die, [(flag, number) for number in range(NUM_CALLS)])
        is_whole = flag.exists() and found == [2 * number for number in range(NUM_CALLS)]
    print("a worker killed in the middle:", "nothing lost" if is_whole else "LOST")
    if here != there or not is_whole:
        raise SystemExit(1)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        import ray

        ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    main(f"ray:{sys.argv[1] if len(sys.argv) > 1 else 'auto'}")
