"""Type the command of every row that `ppsim tune --full` prints: it must fit, and take the row's seconds and bytes.

    python scripts/check_tune.py [FIRST [LAST]]    the jobs to check, from 0 to 29; default: all

The jobs are drawn with a fixed seed over dense and MoE models, clusters, stacks and options. A search takes up to a
minute. Exit code 1 if a row does not fit or has other numbers than its command.
"""

import random
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from ppsim.api.project import plan_of_options
from ppsim.api.tune import search_of
from ppsim.base.errors import PpsimError
from ppsim.cli.project import project as project_command
from ppsim.cli.tune import tune as tune_command
from ppsim.projection.project import project
from ppsim.results.tuning import MOST_OF_FRONT
from ppsim.tuning.command_line import command_of
from ppsim.tuning.search import TuneResult

_SEED, _JOBS = 50, 30
_MODELS = {
    "llama3-8b": [8, 16, 64], "llama3-70b": [64, 256], "gpt3-175b": [128], "qwen3-4b": [8, 16],
    "mixtral-8x7b": [16, 32], "mixtral-8x22b": [128], "qwen3-30b-a3b": [16, 32], "gpt-oss-20b": [16],
    "deepseek-v2-lite": [16],
}  # fmt: skip
_CLUSTERS = ("dgx-h100", "dgx-a100", "dgx-b200", "mi300x-8")
_STACKS = (
    "",
    "--stack plain",
    "--stack torchtitan",
    "--stack megatron-bridge",
    "--stack primus",
)
_OPTIONS = (
    "", "", "", "--recompute full", "--zero 3", "--split even", "--optimizer muon", "--memory-limit 60GiB",
    "--dtype float8", "--no-overlap-dp", "--runtime megatron", "--plan auto", "--pp 2,4 --recompute none",
)  # fmt: skip


@dataclass(frozen=True)
class RowCheck:
    """A row of a search (seconds, bytes) and the projection of its command."""

    command: str
    row: tuple[float, float]
    projected: tuple[float, float]
    fits: bool

    @property
    def difference(self) -> float:
        """Largest relative difference."""
        return max(abs(one / other - 1) for one, other in zip(self.row, self.projected, strict=True))

    @property
    def is_right(self) -> bool:
        return self.fits and self.difference <= 1e-9


def jobs() -> list[str]:
    """Return the options of `ppsim tune` of each job, the same in every run."""
    drawn = random.Random(_SEED)
    found = []
    for _ in range(_JOBS):
        model = drawn.choice(list(_MODELS))
        gpus = drawn.choice(_MODELS[model])
        batch, length = gpus * drawn.choice([1, 2, 4]), drawn.choice([2048, 4096, 8192])
        job = f"--model {model} --gpus {gpus} --global-batch-size {batch} --seq-len {length}"
        found.append(
            " ".join([job, f"--cluster {drawn.choice(_CLUSTERS)}", drawn.choice(_STACKS), drawn.choice(_OPTIONS)])
        )
    return found


def checks_of(found: TuneResult) -> Iterator[RowCheck]:
    """Yield the check of each printed row."""
    for one in dict.fromkeys([*found.best, *found.pareto[:MOST_OF_FRONT]]):
        command = command_of(found, one)
        options = project_command.make_context("project", shlex.split(command)[2:]).params
        made = project(plan_of_options(options | {"run_config": None}))
        projected = made.iteration_time_s, float(made.timeline.memory.peak_bytes.max())
        yield RowCheck(command, (one.iteration_time_s, one.peak_bytes), projected, made.fits is not False)


def search(words: str) -> TuneResult:
    """Run `ppsim tune` with these options."""
    options = tune_command.make_context("tune", shlex.split(words)).params
    return search_of(options | {"run_config": None})()


def main() -> None:
    first, last = (*map(int, sys.argv[1:3]), _JOBS - 1)[:2] if len(sys.argv) > 1 else (0, _JOBS - 1)
    checks: list[RowCheck] = []
    for number, words in list(enumerate(jobs()))[first : last + 1]:
        try:
            of_job = list(checks_of(search(words)))
        except PpsimError as error:
            print(f"{number}: {words}\n   {str(error)[:100]}", flush=True)
            continue
        wrong = [one for one in of_job if not one.is_right]
        print(f"{number}: {words}\n   {len(of_job)} rows, {len(wrong)} wrong", flush=True)
        for one in wrong:
            fits = "fits" if one.fits else "DOES NOT FIT"
            ratios = [projected / row - 1 for row, projected in zip(one.row, one.projected, strict=True)]
            print(f"   {fits}, seconds {ratios[0]:+.2e}, bytes {ratios[1]:+.2e}: {one.command}", flush=True)
        checks += of_job
    misfits, different = sum(not one.fits for one in checks), sum(one.difference > 1e-9 for one in checks)
    print(f"{len(checks)} rows: {misfits} do not fit, {different} differ from their command")
    sys.exit(bool(misfits or different))


if __name__ == "__main__":
    main()
