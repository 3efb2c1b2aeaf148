"""How often `explain` names a fault first that was put into steps: real ones of torch's runtime, and simulated ones.

    PYTHONPATH=. python benchmarks/faults.py simulated --draws 100   every cause and pair of causes, 13 tables
    PYTHONPATH=. python benchmarks/faults.py real --draws 5          ranks that wait for what costs say, two tables

Simulated passes take 20 and 40 ms, ± 1 %, and what is put in is 10 to 30 % of a forward. Real ones wait for 10 ms,
and are given 40 to 80 %: hosts that are busy with other things disturb them. Where two causes cannot be told apart
(a slow rank and a slow stage of one stage a rank) the name of both counts.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

import ppsim
from ppsim.base.files import to_json
from ppsim.runs.explained import explained
from ppsim.runs.recorded import measured_of
from ppsim.runs.run import Run
from ppsim.runtime.config import MODELS, TrainConfig
from ppsim.runtime.launch import launch_all
from ppsim.schedule.grammar import format_table
from ppsim.simulation.cost_schema import costs_from
from tests.runs.made import INJECTED, are_named, reasons_of, tables

PASS_S, STEPS = 0.01, 5
LEAST, MOST = 0.4, 0.8
"""How large what is put into real steps is, as a part of a forward."""

PASSES = ("forward_s", "backward_input_s", "backward_weight_s")
REAL = ("slow ranks", "uneven stages", "slow first passes", "waits for messages", "straggling steps")


def real_tables() -> list[ppsim.Schedule]:
    """One stage a rank, and two."""
    return [ppsim.build("1f1b", pp=2, microbatches=8), ppsim.build("interleaved-1f1b", pp=2, vpp=3, microbatches=4)]


def words_of(table: ppsim.Schedule, causes: Sequence[str], random: np.random.Generator) -> dict[str, Any]:
    """Return a costs file's words with the causes in it, and `straggling_steps` where one is among them."""
    num_stages = table.num_stages
    seconds = np.full(num_stages, PASS_S)
    words: dict[str, Any] = {}
    for cause in causes:
        size = float(random.uniform(LEAST, MOST))
        if cause == "slow ranks":
            seconds[table.stage_to_rank == random.integers(table.num_ranks)] *= 1 + size
        elif cause == "uneven stages":
            seconds[random.integers(num_stages)] *= 1 + size
        elif cause == "slow first passes":
            words["first_pass_s"] = 5 * size * PASS_S
        elif cause == "waits for messages":
            words |= {"transfer_s": size * PASS_S, "channel": "ideal"}
        else:
            words["straggling_steps"] = ((int(random.integers(STEPS)), 1 + 4 * size),)
    return {"straggling_steps": ()} | words | {name: seconds.tolist() for name in PASSES}


def real_runs(draws: Sequence[tuple[ppsim.Schedule, dict[str, Any]]]) -> list[Run]:
    """Run tables of as many ranks at their costs, one after the other in the same processes."""
    with tempfile.TemporaryDirectory() as folder:
        configs, given = [], []
        for number, (table, words) in enumerate(draws):
            costs = {name: value for name, value in words.items() if name != "straggling_steps"}
            paths = [Path(folder) / f"{number}{suffix}" for suffix in (".csv", ".json")]
            for path, text in zip(paths, (format_table(table), to_json(costs)), strict=True):
                path.write_text(text)
            given.append(costs_from(costs))
            configs.append(
                TrainConfig(
                    schedule=str(paths[0]), num_ranks=table.num_ranks, model=MODELS["nano"], num_steps=STEPS,
                    layers_per_stage=[0] * table.num_stages, emulate_costs=str(paths[1]),
                    straggling_steps=words["straggling_steps"],
                )
            )  # fmt: skip
        results = launch_all(configs, quiet=True)
    return [
        measured_of(result, table, costs).run
        for result, (table, _), costs in zip(results, draws, given, strict=True)
    ]


def named(run: Run) -> list[str]:
    """Return the reasons that `explain` names."""
    return [loss.cause for loss in explained(run).reasons]


def real(num_draws: int, first_seed: int) -> None:
    """Print how often each cause, and one of each pair, is named first in real steps."""
    for table in real_tables():
        for causes in [(one,) for one in REAL] + list(combinations(REAL, 2)):
            draws = [
                (table, words_of(table, causes, np.random.default_rng(first_seed + number)))
                for number in range(num_draws)
            ]
            _print(table, causes, [named(run) for run in real_runs(draws)])


def simulated(num_draws: int, first_seed: int) -> None:
    """Print the same of simulated steps, on tables of several schedules and shapes."""
    for table in tables():
        for causes in [(one,) for one in INJECTED] + list(combinations(INJECTED, 2)):
            seeds = range(first_seed, first_seed + num_draws)
            _print(table, causes, [reasons_of(table, seed, causes) for seed in seeds])


def _print(table: ppsim.Schedule, causes: Sequence[str], found: Sequence[Sequence[str]]) -> None:
    """How often one of the causes is first, all are of the first three, and what is first."""
    first, every = np.sum([are_named(table, causes, reasons) for reasons in found], axis=0)
    others = dict(Counter(reasons[0] for reasons in found if reasons))
    shape = f"{table.name}, {table.num_ranks} ranks × {table.vpp}"
    print(
        f"{shape} | {' + '.join(causes)} | first {first}, all of three {every} of {len(found)} | {others}",
        flush=True,
    )


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["real", "simulated"])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--seed", type=int, default=10_000)
    arguments = parser.parse_args()
    (real if arguments.kind == "real" else simulated)(arguments.draws, arguments.seed)


if __name__ == "__main__":
    main()
