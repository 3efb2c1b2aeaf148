"""Type the command of every row that `ppsim tune --full` prints, and single changes of the best row.

    python scripts/check_tune.py [--seed N] [FIRST [LAST]]    the jobs to check, from 0 to 29; default: all

A row's command must fit, and take the row's seconds and bytes. A change of one option of the space, typed into
`ppsim project`, may not be more than 0.5 % faster than the best row and fit. The jobs are drawn over dense and MoE
models, clusters, stacks and options. A search takes up to a minute. Exit code 1 if a row or a best is wrong.
"""

import random
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from numbered_jobs import chosen, numbers_parser

from ppsim.api.project import plan_of_options
from ppsim.api.tune import search_of
from ppsim.base.errors import PpsimError
from ppsim.cli.project import project as project_command
from ppsim.cli.tune import tune as tune_command
from ppsim.projection.changes import change_text, changes
from ppsim.projection.plan import Plan
from ppsim.projection.project import project
from ppsim.results.tuning import MOST_OF_FRONT
from ppsim.tuning.command_line import command_of
from ppsim.tuning.search import TuneResult

_SEED, _JOBS, _MOST_GAIN = 50, 30, 0.005
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


def jobs(seed: int = _SEED) -> list[str]:
    """Return the options of `ppsim tune` of each job, the same in every run."""
    drawn = random.Random(seed)
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
        command = command_of(found.question, one.candidate)
        made = project(typed(command))
        projected = made.iteration_time_s, float(made.timeline.memory.peak_bytes.max())
        yield RowCheck(command, (one.iteration_time_s, one.peak_bytes), projected, made.fits is not False)


def typed(command: str) -> Plan:
    """Return the plan of a command of `ppsim project`."""
    options = project_command.make_context("project", shlex.split(command)[2:]).params
    return plan_of_options(options | {"run_config": None})


def better_changes(found: TuneResult) -> Iterator[tuple[float, str]]:
    """Yield the gain and the command of each change of one option that is faster than the best row."""
    best, kept = found.best[0], found.space
    command, own = command_of(found.question, best.candidate), found.question.own_settings(best.candidate)
    for change in changes(typed(command), saving=True):
        candidate = best.candidate.changed(change, own)
        is_elsewhere = found.question.is_elsewhere(candidate) and not found.question.is_elsewhere(best.candidate)
        if is_elsewhere or not kept.allows(candidate):
            continue
        other = f"{command} {change_text(change)}"
        if {"schedule", "pp", "vpp"} & change.keys():
            other = re.sub(r"--split [\d,]+", "--split auto", other)
        with suppress(PpsimError):
            made = project(typed(other))
            gain = best.iteration_time_s / made.iteration_time_s - 1
            is_tighter = best.verdict == "fits" and made.verdict.word != "fits"
            if not made.is_too_large and not is_tighter and gain > _MOST_GAIN:
                yield gain, other


def search(words: str) -> TuneResult:
    """Run `ppsim tune` with these options."""
    options = tune_command.make_context("tune", shlex.split(words)).params
    return search_of(options | {"run_config": None})()


def main() -> None:
    given = numbers_parser(__doc__, _SEED).parse_args()
    checks: list[RowCheck] = []
    gains: list[float] = []
    for number, words in list(enumerate(jobs(given.seed)))[chosen(given, _JOBS)]:
        try:
            found = search(words)
            of_job = list(checks_of(found))
        except PpsimError as error:
            print(f"{number}: {words}\n   {str(error)[:100]}", flush=True)
            continue
        wrong = [one for one in of_job if not one.is_right]
        print(f"{number}: {words}\n   {len(of_job)} rows, {len(wrong)} wrong", flush=True)
        for one in wrong:
            fits = "fits" if one.fits else "DOES NOT FIT"
            ratios = [projected / row - 1 for row, projected in zip(one.row, one.projected, strict=True)]
            print(f"   {fits}, seconds {ratios[0]:+.2e}, bytes {ratios[1]:+.2e}: {one.command}", flush=True)
        for gain, command in sorted(better_changes(found), reverse=True):
            print(f"   {100 * gain:+.2f} %: {command}", flush=True)
            gains.append(gain)
        checks += of_job
    misfits, different = sum(not one.fits for one in checks), sum(one.difference > 1e-9 for one in checks)
    print(f"{len(checks)} rows: {misfits} do not fit, {different} differ from their command")
    print(f"{len(gains)} changes of one option gain more than {100 * _MOST_GAIN:g} %")
    sys.exit(bool(misfits or different or gains))


if __name__ == "__main__":
    main()
