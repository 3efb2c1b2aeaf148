"""Steps made on the event graph, with causes put into them: what `explain` has to find.

`benchmarks/faults.py` prints how often it does, on more shapes; the draws of the tests are others.
"""

from collections.abc import Callable, Sequence

import numpy as np

from ppsim import build
from ppsim.runs.causes import STAGES_OR_RANKS
from ppsim.runs.explained import explained
from ppsim.runs.run import Run, median_costs
from ppsim.schedule.graph import build_graph
from ppsim.schedule.table import Schedule
from ppsim.simulation.engine import evaluate

NOISE = 0.01


class Made:
    """Steps of a table whose passes take 20 and 40 ms, with noise, and what is to be put into them."""

    def __init__(self, table: Schedule, seed: int, num_steps: int = 5) -> None:
        self.table, self.graph, self.random = table, build_graph(table), np.random.default_rng(seed)
        usual = np.choose(table.op, [0.02, 0.04, 0.02, 0.02])  # F, B, I, W
        self.taken = usual * self.random.normal(1, NOISE, (num_steps, len(table)))
        self.gap = self.random.uniform(0, 2e-4, (num_steps, len(table)))
        self.hop = self.random.uniform(0, 2e-4, (num_steps, self.graph.num_transfers))

    def run(self) -> Run:
        starts, ends = [], []
        for taken, gap, hop in zip(self.taken, self.gap, self.hop, strict=True):
            times = evaluate(self.graph, np.concatenate([taken, hop]), np.concatenate([gap, np.zeros(len(hop))]))
            starts.append(times.start)
            ends.append(times.end)
        start, end = np.stack(starts), np.stack(ends)
        costs = median_costs(self.graph, (end - start)[:, : len(self.table)])
        return Run("made", self.graph, costs, start, end, has_own_costs=False)


def slow_rank(made: Made, size: float) -> None:
    made.taken[:, made.table.rank == made.random.integers(made.table.num_ranks)] *= 1 + size


def slow_stage(made: Made, size: float) -> None:
    made.taken[:, made.table.stage == made.random.integers(made.table.num_stages)] *= 1 + size


def late_first_pass(made: Made, size: float) -> None:
    """The first forward of every rank."""
    made.taken[:, made.table.rank_offsets[:-1]] *= 1 + 5 * size


def slow_hop(made: Made, size: float) -> None:
    made.hop += 0.02 * size


def gap(made: Made, size: float) -> None:
    made.gap += 0.02 * size


def straggling_step(made: Made, size: float) -> None:
    """One of five, whose passes take longer: the mean step grows by a fifth of that."""
    made.taken[made.random.integers(len(made.taken))] *= 1 + 4 * size


def drift(made: Made, size: float) -> None:
    """All passes get slower along the step, evenly."""
    for begin, end in zip(made.table.rank_offsets[:-1], made.table.rank_offsets[1:], strict=True):
        made.taken[:, begin:end] *= 1 + size * np.linspace(0, 1, end - begin)


INJECTED: dict[str, Callable[[Made, float], None]] = {
    "slow ranks": slow_rank,
    "uneven stages": slow_stage,
    "slow first passes": late_first_pass,
    "waits for messages": slow_hop,
    "gaps between passes": gap,
    "straggling steps": straggling_step,
    "drift over the step": drift,
}
LEAST, MOST = 0.1, 0.3
"""How large what is put in is, as a part of a forward."""

SHAPES = {
    "1f1b": [(2, 1), (4, 1), (8, 1)],
    "zb-h1": [(2, 1), (4, 1), (8, 1)],
    "zbv": [(2, 2), (4, 2), (8, 2)],
    "interleaved-1f1b": [(2, 2), (4, 2), (8, 2), (4, 3)],
}
"""By schedule: ranks and stages a rank."""

LEAST_MICROBATCHES = 8
"""Fewer passes than that a rank tell no drift."""


def tables() -> list[Schedule]:
    """Each with twice as many microbatches as ranks."""
    return [
        build(name, pp=pp, vpp=vpp, microbatches=max(2 * pp, LEAST_MICROBATCHES))
        for name, shapes in SHAPES.items()
        for pp, vpp in shapes
    ]


def expected(table: Schedule, cause: str) -> str:
    """The name of a cause for a table: of one stage a rank, nobody can tell a slow one from a slow rank."""
    return STAGES_OR_RANKS if table.vpp == 1 and cause in ("slow ranks", "uneven stages") else cause


def are_named(table: Schedule, causes: Sequence[str], reasons: Sequence[str]) -> tuple[bool, bool]:
    """Whether one of the causes is first, and all are of the first three; one name for two that nobody can tell."""
    names = {expected(table, cause) for cause in causes}
    if {"slow ranks", "uneven stages"} <= names and STAGES_OR_RANKS in reasons[:1]:
        names = names - {"slow ranks", "uneven stages"} | {STAGES_OR_RANKS}
    return bool(names & set(reasons[:1])), names <= set(reasons[:3])


def reasons_of(table: Schedule, seed: int, causes: Sequence[str]) -> list[str]:
    made = Made(table, seed)
    for cause in causes:
        INJECTED[cause](made, made.random.uniform(LEAST, MOST))
    return [loss.cause for loss in explained(made.run()).reasons]
