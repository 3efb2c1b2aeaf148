"""How often `explain` names a fault first that was put into steps: real ones of torch's runtime, and simulated ones.

    PYTHONPATH=. python benchmarks/faults.py simulated --draws 100   every cause and pair of causes, 13 tables
    PYTHONPATH=. python benchmarks/faults.py real --draws 5          ranks that wait for what costs say, two tables

Of two causes the one is to be first that costs more: that alone makes the mean step longer, all else the same. Which
of two is mended first is then the better choice as well: what a step gains without the one is more than without the
other just when the one alone costs more. So it is of the noise, whose gaps may cost more than a slow stage that the
schedule hides: such draws are counted by themselves. In how many draws it is first, one of the two is, and both are
of the first three, by table and in all.

Simulated passes take 20 and 40 ms, ± 1 %, and what is put in is 10 to 30 % of a forward. Real ones wait for 10 ms,
and are given 40 to 80 %: hosts that are busy with other things disturb them. Where two causes cannot be told apart
(a slow rank and a slow stage of one stage a rank) the name of both counts.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

import ppsim
from benchmarks.made_steps import INJECTED, costs_of, mixtures_of, named, noise_is_first, reasons_of, tables
from ppsim.base.files import to_json
from ppsim.runs.explained import explained
from ppsim.runs.recorded import measured_of
from ppsim.runs.run import Run
from ppsim.runtime.config import MODELS, TrainConfig
from ppsim.runtime.launch import launch_all
from ppsim.schedule.grammar import format_table
from ppsim.simulation.cost_files import costs_from

PASS_S, STEPS = 0.01, 5
LEAST, MOST = 0.4, 0.8
"""How large what is put into real steps is, as a part of a forward."""

PASSES = ("forward_s", "backward_input_s", "backward_weight_s")
REAL = ("slow ranks", "uneven stages", "slow first passes", "waits for messages", "straggling steps")


@dataclass(frozen=True)
class Found:
    """What `explain` named in draws of some causes on a table, and what each of them cost in each draw.

    `noise` counts draws in which it named the gaps or hops of the noise, which cost more than what was put in.
    """

    table: ppsim.Schedule
    causes: tuple[str, ...]
    costs: list[dict[str, float]]
    reasons: list[list[str]]
    noise: int = 0

    @property
    def shape(self) -> str:
        """The table in words."""
        return f"{self.table.name}, {self.table.num_ranks} ranks × {self.table.vpp}"

    @property
    def counts(self) -> list[int]:
        """How often the larger is first, one of them is, and all are of the first three; then `noise`."""
        each = [named(self.table, *draw) for draw in zip(self.costs, self.reasons, strict=True)]
        return [*(sum(column) for column in zip(*each, strict=True)), self.noise]

    def __str__(self) -> str:
        larger, one, every, noise = self.counts
        others = dict(Counter(reasons[0] for reasons in self.reasons if reasons))
        return (
            f"{self.shape} | {' + '.join(self.causes)} | larger first {larger}, one first {one}, all of three "
            f"{every} of {len(self.reasons)}, the noise first, which costs more, {noise} | {others}"
        )


def real_tables() -> list[ppsim.Schedule]:
    """One stage a rank, and two."""
    return [ppsim.build("1f1b", pp=2, microbatches=8), ppsim.build("interleaved-1f1b", pp=2, vpp=3, microbatches=4)]


def words_of(table: ppsim.Schedule, causes: Sequence[str], seed: int) -> dict[str, Any]:
    """Return a costs file's words with the causes in it, and `straggling_steps` where one is among them."""
    num_stages = table.num_stages
    seconds = np.full(num_stages, PASS_S)
    words: dict[str, Any] = {}
    for cause in causes:
        random = np.random.default_rng([seed, REAL.index(cause)])
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


def mean_step_s(table: ppsim.Schedule, words: Mapping[str, Any]) -> float:
    """Return what such steps take on average, by the simulator."""
    costs = {name: value for name, value in words.items() if name != "straggling_steps"}
    more = sum(factor - 1 for _, factor in words["straggling_steps"])
    return ppsim.simulate(table, costs_from(costs)).step_time_s * (1 + more / STEPS)


def real_costs(table: ppsim.Schedule, causes: Sequence[str], seed: int) -> dict[str, float]:
    """Return by what each cause alone makes the mean step longer."""
    without = mean_step_s(table, words_of(table, [], seed))
    return {cause: mean_step_s(table, words_of(table, [cause], seed)) - without for cause in causes}


def real(num_draws: int, first_seed: int) -> list[Found]:
    """Explain real steps with each cause in them, and with each pair."""
    found = []
    for table in real_tables():
        for causes in [(one,) for one in REAL] + list(combinations(REAL, 2)):
            seeds = range(first_seed, first_seed + num_draws)
            runs = real_runs([(table, words_of(table, causes, seed)) for seed in seeds])
            reasons = [[loss.cause for loss in explained(run).reasons] for run in runs]
            found.append(Found(table, causes, [real_costs(table, causes, seed) for seed in seeds], reasons))
            print(found[-1], flush=True)
    return found


def simulated(num_draws: int, first_seed: int, wanted: str) -> list[Found]:
    """The same of simulated steps, on tables of several schedules and shapes; only with the cause wanted, if any."""
    found = []
    for table in tables():
        for causes in mixtures_of(table):
            if wanted not in ("", *causes):
                continue
            seeds = range(first_seed, first_seed + num_draws)
            costs = [costs_of(table, seed, causes) for seed in seeds]
            reasons = [reasons_of(table, seed, causes) for seed in seeds]
            noise = sum(noise_is_first(table, *draw) for draw in zip(seeds, costs, reasons, strict=True))
            found.append(Found(table, causes, costs, reasons, noise))
            print(found[-1], flush=True)
    return found


def print_all(found: Sequence[Found]) -> None:
    """Print what was found of each cause and pair on all tables together, and on the table with the fewest."""
    columns = ["the larger first", "one of them first", "all of the first three", "the noise, which costs more"]
    print("\n|", " | ".join(["put in", "draws", *columns, "fewest first"]), "|")
    print("|---" * (len(columns) + 3) + "|")
    for causes in dict.fromkeys(one.causes for one in found):
        those = [one for one in found if one.causes == causes]
        draws = sum(len(one.reasons) for one in those)
        sums = np.sum([one.counts for one in those], axis=0)
        fewest = min(those, key=lambda one: one.counts[0])
        parts = " | ".join(f"{100 * count / draws:.2f} %" for count in sums)
        least = f"{fewest.counts[0]} of {len(fewest.reasons)}: {fewest.shape}"
        print(f"| {' + '.join(causes)} | {draws} | {parts} | {least} |")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["real", "simulated"])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--seed", type=int, default=10_000)
    parser.add_argument(
        "--cause", choices=list(INJECTED), default="", help="of simulated ones, those with it alone"
    )
    arguments = parser.parse_args()
    if arguments.kind == "real":
        print_all(real(arguments.draws, arguments.seed))
    else:
        print_all(simulated(arguments.draws, arguments.seed, arguments.cause))


if __name__ == "__main__":
    main()
