"""Run commands with several hash seeds, and list the commands whose output depends on the seed.

    python scripts/check_hash_seeds.py [SEEDS]    number of seeds, default 8

Python draws the order of sets of names anew in every process (PYTHONHASHSEED). A sum of floats in this order has
other last bits in every process, and these decide between equally good results of a search. One process per seed
runs all commands. Exit code 1 if an output depends on the seed.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_RUN = _ROOT / "tests/runs/data/primus_pp8_1f1b"
_JOB = "--model llama3-8b --gpus 16 --cluster dgx-a100 --global-batch-size 64"
COMMANDS = (
    f"project {_JOB} --tp 2 --cp 2 --pp 2 --vpp 4 --recompute full --split auto --json",
    f"tune {_JOB} --vpp 4 --recompute full --split auto --json",
    f"project {_JOB} --pp 4 --split auto --schedule all --json",
    "project --model mixtral-8x7b --gpus 32 --pp 4 --ep 4 --tp 2 --global-batch-size 64 --plan auto --json",
    f"explain {_RUN} --full",
    "project --model deepseek-v2-lite --gpus 16 --pp 2 --vpp 2 --ep 4 --tp 2 --global-batch-size 64 "
    "--recompute moe_act+mla_up_proj --dtype float8 --allow-oom --to-config megatron",
)
_IN_ONE_PROCESS = """
import sys
from click.testing import CliRunner
from ppsim.cli import main
for command in sys.argv[1:]:
    result = CliRunner().invoke(main, command.split(), prog_name="ppsim")
    print(f"exit {result.exit_code}", result.stdout, sep="\\n", end="\\0")
"""


def outputs(commands: tuple[str, ...], seed: int) -> list[str]:
    """Return the exit code and the standard output of each command."""
    run = subprocess.run(
        [sys.executable, "-c", _IN_ONE_PROCESS, *commands],
        env={**os.environ, "PYTHONHASHSEED": str(seed)}, cwd=_ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return run.stdout.split("\0")[:-1]


def different(commands: tuple[str, ...], seeds: Iterable[int]) -> list[str]:
    """Return the commands whose output depends on the seed."""
    found = [outputs(commands, seed) for seed in seeds]
    return [command for command, *texts in zip(commands, *found, strict=True) if len(set(texts)) > 1]


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    wrong = different(COMMANDS, range(seeds))
    for command in wrong:
        print(f"depends on the hash seed: ppsim {command}")
    print(f"{len(COMMANDS)} commands, {seeds} hash seeds: {len(wrong)} depend on the seed")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
