"""Steps made on the event graph, with causes put into them: what `explain` has to find.

`benchmarks/faults.py` prints how often it does, on all of `tables()`; the draws of the tests are others. Each cause
draws where it is and how large from numbers of its own, so that a step without it is the same step otherwise: what
it costs is the difference of the two.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np

from ppsim import build
from ppsim.runs.causes import STAGES_OR_RANKS
from ppsim.runs.explained import explained
from ppsim.runs.run import Run, median_costs
from ppsim.schedule.graph import build_graph
from ppsim.schedule.table import Schedule
from ppsim.simulation.engine import evaluate

NOISE = 0.01

BLOCKING = "blocking sends and receives"


class Made:
    """Steps of a table whose passes take 20 and 40 ms, with noise, and what is to be put into them."""

    def __init__(self, table: Schedule, seed: int, num_steps: int = 5) -> None:
        self.table, self.graph, self.seed = table, build_graph(table), seed
        random = np.random.default_rng(seed)
        usual = np.choose(table.op, [0.02, 0.04, 0.02, 0.02])  # F, B, I, W
        self.taken = usual * random.normal(1, NOISE, (num_steps, len(table)))
        self.gap = random.uniform(0, 2e-4, (num_steps, len(table)))
        self.hop = random.uniform(0, 2e-4, (num_steps, self.graph.num_transfers))
        self.call_s: float | None = None

    def put(self, cause: str, times: float = 1.0) -> None:
        """Put a cause in, of a size and at a place that are the same whatever else is; `times` as large."""
        random = np.random.default_rng([self.seed, list(INJECTED).index(cause)])
        INJECTED[cause](self, times * random.uniform(LEAST, MOST), random)

    def run(self) -> Run:
        """Return the steps as a measured run."""
        starts, ends = [], []
        for taken, gap, hop in zip(self.taken, self.gap, self.hop, strict=True):
            times = evaluate(self.graph, np.concatenate([taken, hop]), np.concatenate([gap, np.zeros(len(hop))]))
            starts.append(times.start)
            ends.append(times.end)
        start, end = np.stack(starts), np.stack(ends)
        costs = median_costs(self.graph, (end - start)[:, : len(self.table)])
        return Run("made", self.graph, costs, start, end, has_own_costs=False)


def _slow_rank(made: Made, size: float, random: np.random.Generator) -> None:
    made.taken[:, made.table.rank == random.integers(made.table.num_ranks)] *= 1 + size


def _slow_stage(made: Made, size: float, random: np.random.Generator) -> None:
    made.taken[:, made.table.stage == random.integers(made.table.num_stages)] *= 1 + size


def _late_first_pass(made: Made, size: float, random: np.random.Generator) -> None:
    """The first forward of every rank."""
    made.taken[:, made.table.rank_offsets[:-1]] *= 1 + 5 * size


def _slow_hop(made: Made, size: float, random: np.random.Generator) -> None:
    made.hop += 0.02 * size


def _blocking_hop(made: Made, size: float, random: np.random.Generator) -> None:
    """Sends and receives are Megatron-LM's calls, at which a rank stands still."""
    made.call_s = 0.02 * size
    made.graph = build_graph(made.table, communication="megatron")
    made.hop = made.call_s + random.uniform(0, 2e-4, (len(made.taken), made.graph.num_transfers))


def _gap(made: Made, size: float, random: np.random.Generator) -> None:
    made.gap += 0.02 * size


def _straggling_step(made: Made, size: float, random: np.random.Generator) -> None:
    """One of five, whose passes take longer: the mean step grows by a fifth of that."""
    made.taken[random.integers(len(made.taken))] *= 1 + 4 * size


def _drift(made: Made, size: float, random: np.random.Generator) -> None:
    """All passes get slower along the step, evenly."""
    for begin, end in zip(made.table.rank_offsets[:-1], made.table.rank_offsets[1:], strict=True):
        made.taken[:, begin:end] *= 1 + size * np.linspace(0, 1, end - begin)


INJECTED: dict[str, Callable[[Made, float, np.random.Generator], None]] = {
    "slow ranks": _slow_rank,
    "uneven stages": _slow_stage,
    "slow first passes": _late_first_pass,
    "waits for messages": _slow_hop,
    "gaps between passes": _gap,
    BLOCKING: _blocking_hop,
    "straggling steps": _straggling_step,
    "drift over the step": _drift,
}
OF_NOISE = {"gaps between passes": "gap", "waits for messages": "hop"}
"""Causes of which the noise of every step has some, and where."""

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


def made(table: Schedule, seed: int, causes: Sequence[str]) -> Made:
    """Return steps with these causes in them."""
    steps = Made(table, seed)
    for cause in causes:
        steps.put(cause)
    return steps


def mixtures_of(table: Schedule) -> list[tuple[str, ...]]:
    """Return each cause and pair that a table can have: one kind of hops, and blocking ones where Megatron-LM runs it."""
    causes = [cause for cause in INJECTED if cause != BLOCKING or table.name in ("1f1b", "interleaved-1f1b")]
    pairs = [pair for pair in combinations(causes, 2) if not {BLOCKING, "waits for messages"} <= set(pair)]
    return [*((cause,) for cause in causes), *pairs]


def reasons_of(table: Schedule, seed: int, causes: Sequence[str]) -> list[str]:
    """Return the reasons that `explain` names for such steps."""
    steps = made(table, seed, causes)
    return [loss.cause for loss in explained(steps.run(), call_s=steps.call_s).reasons]


def costs_of(table: Schedule, seed: int, causes: Sequence[str]) -> dict[str, float]:
    """Return by what each cause alone makes the mean step longer, in seconds.

    Steps without it have none of it: no gaps or hops at all where it is those.
    """
    return {cause: _mean_s(made(table, seed, [cause])) - _without_s(table, seed, cause) for cause in causes}


def noise_is_first(table: Schedule, seed: int, costs: Mapping[str, float], reasons: Sequence[str]) -> bool:
    """Whether what is named first are the noise's own gaps or hops, which cost more than all that was put in."""
    first = reasons[0]
    if first in costs or first not in OF_NOISE:
        return False
    return _mean_s(Made(table, seed)) - _without_s(table, seed, first) > max(costs.values())


def _mean_s(steps: Made) -> float:
    return float(steps.run().step_times_s.mean())


def _without_s(table: Schedule, seed: int, cause: str) -> float:
    """The mean step without a cause, nor any of it in the noise."""
    steps = Made(table, seed)
    if cause in OF_NOISE:
        getattr(steps, OF_NOISE[cause])[:] = 0.0
    if cause == BLOCKING:  # calls that take but the noise, which is not what explain is told of them
        steps.put(cause, 0.0)
    return _mean_s(steps)


def expected(table: Schedule, cause: str) -> str:
    """The name of a cause for a table: of one stage a rank, nobody can tell a slow one from a slow rank."""
    return STAGES_OR_RANKS if table.vpp == 1 and cause in ("slow ranks", "uneven stages") else cause


def named(table: Schedule, costs: Mapping[str, float], reasons: Sequence[str]) -> tuple[bool, bool, bool]:
    """Whether the cause that costs most is first, one of them is, and all are of the first three.

    Where a slow rank and a slow stage cannot be told apart, the one name stands for both.
    """
    names = {cause: expected(table, cause) for cause in costs}
    if set(names.values()) >= {"slow ranks", "uneven stages"} and STAGES_OR_RANKS in reasons[:1]:
        names |= dict.fromkeys(("slow ranks", "uneven stages"), STAGES_OR_RANKS)
    first, largest, every = set(reasons[:1]), max(costs, key=lambda cause: costs[cause]), set(names.values())
    return names[largest] in first, bool(every & first), every <= set(reasons[:3])
