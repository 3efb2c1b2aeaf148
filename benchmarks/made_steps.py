"""Simulated steps with injected faults, and how well `explain` finds them.

`benchmarks/faults.py` prints the detection rates for all of `tables()`; the tests use other draws. Each fault draws
place and size from its own random numbers. Therefore the step without it is otherwise identical, and the difference
of both steps is the true cost.
"""

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ppsim import build
from ppsim.base.arrays import Floats
from ppsim.runs.links import pairs_of
from ppsim.runs.loss_attribution import TimeLoss, attribute_losses
from ppsim.runs.loss_causes import BETWEEN, STAGES_OR_RANKS
from ppsim.runs.run import Run, median_costs
from ppsim.schedule.graph import build_graph
from ppsim.schedule.table import Op, Schedule
from ppsim.simulation.engine import NodeTimes, evaluate

NOISE = 0.01

BLOCKING = "blocking sends and receives"


class Made:
    """Steps of a table whose actions take 20 and 40 ms, with noise, and the injected faults.

    `places` has the place of each fault, as a regular expression of the words of `explain`.
    """

    def __init__(self, table: Schedule, seed: int, num_steps: int = 10) -> None:
        self.table, self.graph, self.seed = table, build_graph(table), seed
        random = np.random.default_rng(seed)
        usual = np.choose(table.op, [0.02, 0.04, 0.02, 0.02])  # F, B, I, W
        self.taken = usual * random.normal(1, NOISE, (num_steps, len(table)))
        self.gap = random.uniform(0, 2e-4, (num_steps, len(table)))
        self.hop = random.uniform(0, 2e-4, (num_steps, self.graph.num_transfers))
        self.between = random.uniform(1e-3, 2e-3, num_steps - 1)
        self.pauses, self.stops = np.zeros((2, num_steps, len(table)))
        self.queues = np.zeros(self.graph.num_transfers, dtype=bool)
        self.is_sent = np.zeros((num_steps, self.graph.num_transfers), dtype=bool)
        self.call_s: float | None = None
        self.places: dict[str, str] = {}

    def put(self, cause: str, times: float = 1.0) -> None:
        """Inject a fault whose size and place do not depend on other faults; `times` scales its size."""
        random = np.random.default_rng([self.seed, list(INJECTED).index(cause)])
        self.places[cause] = INJECTED[cause](self, times * random.uniform(LEAST, MOST), random) or ""

    def stop(self, step: int, entry: int, seconds: float, *, is_sent: bool) -> None:
        """Stop the rank of an action after the action, before or after it sends the result."""
        self.stops[step, entry] += seconds
        self.is_sent[step, self.graph.source == entry] = is_sent

    def run(self) -> Run:
        starts, ends = [], []
        hops = self.hop - self.is_sent * self.stops[:, self.graph.source]  # a result that was sent is not late
        for taken, gap, hop in zip(self.taken + self.pauses + self.stops, self.gap, hops, strict=True):
            times = self._times(taken, gap, hop)
            starts.append(times.start)
            ends.append(times.end)
        start, end = np.stack(starts), np.stack(ends)
        end[:, : len(self.table)] -= self.stops
        costs = median_costs(self.graph, (end - start)[:, : len(self.table)])
        return Run("made", self.graph, costs, start, end, has_own_costs=False, gaps_s=self.between.tolist())

    def _times(self, taken: Floats, gap: Floats, hop: Floats) -> NodeTimes:
        """Evaluate a step again and again, until no message on a link of `queues` is ahead of the one before."""
        waits, queue = np.concatenate([gap, np.zeros(len(hop))]), np.zeros(len(hop))
        pair = pairs_of(self.graph).taken[self.graph.target]
        while True:
            times = evaluate(self.graph, np.concatenate([taken, queue + hop]), waits)
            before, sent = queue.copy(), times.start[len(taken) :]
            for one in np.unique(pair[self.queues]):
                free = -np.inf
                for message in sorted(np.flatnonzero(pair == one), key=lambda message: sent[message]):
                    queue[message] = max(free - sent[message], 0.0)
                    free = sent[message] + queue[message] + hop[message]
            if np.abs(queue - before).max(initial=0.0) < 1e-9:
                return times

    @property
    def period_s(self) -> float:
        """Mean step time plus mean time between steps."""
        return float(self.run().step_times_s.mean() + self.between.mean())


def _slow_rank(made: Made, size: float, random: np.random.Generator) -> str:
    rank = random.integers(made.table.num_ranks)
    made.taken[:, made.table.rank == rank] *= 1 + size
    return f"rank {rank}:"


def _slow_stage(made: Made, size: float, random: np.random.Generator) -> str:
    stage = random.integers(made.table.num_stages)
    made.taken[:, made.table.stage == stage] *= 1 + size
    return f"stage {stage} "


def _late_first_pass(made: Made, size: float, random: np.random.Generator) -> None:
    """The first forward pass of every rank is slow."""
    made.taken[:, made.table.rank_offsets[:-1]] *= 1 + 5 * size


def _slow_hop(made: Made, size: float, random: np.random.Generator) -> None:
    made.hop += 0.02 * size


def _slow_link(made: Made, size: float, random: np.random.Generator) -> str:
    """Both directions between two ranks take 10 to 30 ms longer; with two ranks in total, one direction only."""
    pair = pairs_of(made.graph).taken[made.graph.target]
    ends = pair // made.table.num_ranks, pair % made.table.num_ranks
    chosen = int(random.choice(np.unique(pair)))
    one, other = divmod(chosen, made.table.num_ranks)
    is_slow = pair == chosen
    if made.table.num_ranks > 2:
        is_slow |= (ends[0] == other) & (ends[1] == one)
    made.hop[:, is_slow] += 0.1 * size
    return f"rank {one} → {other}:"


def _queueing_link(made: Made, size: float, random: np.random.Generator) -> str:
    """A link as above that also sends one message after the other."""
    usual, place = made.hop.copy(), _slow_link(made, size, random)
    made.queues |= (made.hop > usual).any(axis=0)
    return place


def _slow_backward(made: Made, size: float, random: np.random.Generator) -> str:
    """The backward passes of one rank take 20 to 60 % longer."""
    rank = random.integers(made.table.num_ranks)
    made.taken[:, (made.table.rank == rank) & (made.table.op != Op.F)] *= 1 + 2 * size
    return f"rank {rank}:"


def _falling_microbatches(made: Made, size: float, random: np.random.Generator) -> None:
    """Microbatches get shorter, or longer, by 40 to 120 % from the first to the last; the total stays the same."""
    part = made.table.microbatch / max(made.table.num_microbatches - 1, 1)
    part = part if random.integers(2) else 1 - part
    made.taken *= (1 + 4 * size * part) / (1 + 2 * size)


def _blocking_hop(made: Made, size: float, random: np.random.Generator) -> None:
    """Sends and receives are Megatron-LM's calls, which block a rank."""
    made.call_s = 0.02 * size
    made.graph = build_graph(made.table, communication="megatron")
    made.hop = made.call_s + random.uniform(0, 2e-4, (len(made.taken), made.graph.num_transfers))


def _gap(made: Made, size: float, random: np.random.Generator) -> None:
    made.gap += 0.02 * size


def _straggling_step(made: Made, size: float, random: np.random.Generator) -> str:
    """All actions of one of ten steps are slow: the mean step grows by a tenth of the slowdown."""
    step = random.integers(len(made.taken))
    made.taken[step] *= 1 + 8 * size
    return f"step {1 + step}: all ranks"


def _pause(made: Made, size: float, random: np.random.Generator) -> str:
    """One action of one step takes 0.4 to 1.2 s longer."""
    step, entry = random.integers(len(made.taken)), random.integers(len(made.table))
    made.pauses[step, entry] = 4 * size
    return f"step {1 + step}: rank {made.table.rank[entry]}, {made.table[entry]}, "


def _pause_between(made: Made, size: float, random: np.random.Generator) -> str:
    """A rank stops for 0.4 to 1.2 s after an action of one step that is not its last, before or after it sends."""
    others = np.setdiff1d(np.arange(len(made.table)), made.table.rank_offsets[1:] - 1)
    step, entry = random.integers(len(made.taken)), int(random.choice(others))
    made.stop(step, entry, 4 * size, is_sent=bool(random.integers(2)))
    return rf"step {1 + step}: rank (\d or )?{made.table.rank[entry]}( or \d)?, "


def _drift(made: Made, size: float, random: np.random.Generator) -> None:
    """All actions slow down linearly along the step."""
    for begin, end in zip(made.table.rank_offsets[:-1], made.table.rank_offsets[1:], strict=True):
        made.taken[:, begin:end] *= 1 + size * np.linspace(0, 1, end - begin)


def _drift_over_steps(made: Made, size: float, random: np.random.Generator) -> str:
    """One rank, or all, slow down by 2 to 6 % per step."""
    rank = random.integers(-1, made.table.num_ranks)
    its = (made.table.rank == rank) | (rank < 0)
    made.taken[:, its] *= 1 + 0.2 * size * np.arange(len(made.taken))[:, None]
    return "all ranks:" if rank < 0 else f"rank {rank}:"


def _uneven_microbatches(made: Made, size: float, random: np.random.Generator) -> None:
    """Every other microbatch is 40 to 120 % longer than the one before; the total stays the same."""
    unit = made.table.microbatch % 2
    made.taken *= np.where(unit == random.integers(2), 1 + 4 * size, 1.0) / (1 + 2 * size)


def _time_between(made: Made, size: float, random: np.random.Generator) -> None:
    made.between += 0.5 * size


INJECTED: dict[str, Callable[[Made, float, np.random.Generator], str | None]] = {
    "slow ranks": _slow_rank,
    "uneven stages": _slow_stage,
    "slow first passes": _late_first_pass,
    "waits for messages": _slow_hop,
    "gaps between passes": _gap,
    BLOCKING: _blocking_hop,
    "straggling steps": _straggling_step,
    "drift over the step": _drift,
    "slow links": _slow_link,
    "pauses in passes": _pause,
    "pauses between passes": _pause_between,
    "drift over steps": _drift_over_steps,
    "uneven microbatches": _uneven_microbatches,
    BETWEEN: _time_between,
    "queueing link": _queueing_link,
    "slow backward": _slow_backward,
    "falling microbatches": _falling_microbatches,
}
_CAUSES = {
    "pauses in passes": "pauses",
    "pauses between passes": "pauses",
    "drift over the step": "drift",
    "drift over steps": "drift",
    "queueing link": "slow links",
    "slow backward": "slow ranks",
    "falling microbatches": "uneven microbatches",
}
"""Names in `explain` of faults with another name here."""
OF_NOISE = {"gaps between passes": "gap", "waits for messages": "hop", BETWEEN: "between"}
"""Faults that every step contains a little of as noise, and the attribute with it."""

LEAST, MOST = 0.1, 0.3
"""The size of a fault, relative to a forward pass. Some faults are a multiple."""

SHAPES = {
    "1f1b": [(2, 1), (4, 1), (8, 1)],
    "zb-h1": [(2, 1), (4, 1), (8, 1)],
    "zbv": [(2, 2), (4, 2), (8, 2)],
    "interleaved-1f1b": [(2, 2), (4, 2), (8, 2), (4, 3)],
}
"""By schedule: ranks and stages per rank."""

LEAST_MICROBATCHES = 8
"""With fewer actions per rank, drift cannot be detected."""


def seed_of_commit() -> int:
    """Return the first eight hexadecimal digits of the commit's hash, so that no draw was seen during development."""
    return int(subprocess.check_output(["git", "rev-parse", "--short=8", "HEAD"], text=True)[:8], 16)


def tables() -> list[Schedule]:
    """Return the tables, each with two microbatches per rank or `LEAST_MICROBATCHES`."""
    return [
        build(name, pp=pp, vpp=vpp, microbatches=max(2 * pp, LEAST_MICROBATCHES))
        for name, shapes in SHAPES.items()
        for pp, vpp in shapes
    ]


def made(table: Schedule, seed: int, causes: Sequence[str], without: str = "") -> Made:
    """Return steps with these faults, optionally without one fault and its part of the noise."""
    steps = Made(table, seed)
    for cause in causes:
        if cause != without:
            steps.put(cause)
    if without in OF_NOISE:
        getattr(steps, OF_NOISE[without])[:] = 0.0
    if without == BLOCKING:  # calls without extra time, because explain gets the time of a call
        steps.put(without, 0.0)
    return steps


_ALIKE = {"drift over the step", "falling microbatches"}
"""Two trends over the step, which can cancel each other."""
_APART = (
    {BLOCKING, "waits for messages"}, {BLOCKING, "slow links"}, {"slow links", "waits for messages"},
    *({cause} for cause in _CAUSES.values()),
)  # fmt: skip
"""Combinations that are not drawn: `explain` distinguishes a slow link from slow messages only by contrast."""


def mixtures_of(table: Schedule) -> list[tuple[str, ...]]:
    causes = [cause for cause in INJECTED if cause != BLOCKING or table.name in ("1f1b", "interleaved-1f1b")]
    pairs = [
        pair
        for pair in combinations(causes, 2)
        if {_CAUSES.get(cause, cause) for cause in pair} not in _APART and set(pair) != _ALIKE
    ]
    return [*((cause,) for cause in causes), *pairs]


def expected(table: Schedule, cause: str) -> str:
    """Return the name of a fault in `explain`: with one stage per rank, slow stages and ranks have one name."""
    cause = _CAUSES.get(cause, cause)
    return STAGES_OR_RANKS if table.vpp == 1 and cause in ("slow ranks", "uneven stages") else cause


@dataclass(frozen=True)
class Draw:
    """The faults of one draw: the true gain without each (by its name in `explain`), and the losses found.

    `places` are the places of the faults; `noise_s` is the largest gain without a kind of noise.
    """

    gains: dict[str, float]
    places: dict[str, str]
    losses: list[TimeLoss]
    noise_s: float

    @property
    def first(self) -> str:
        return self.losses[0].cause if self.losses else ""

    @property
    def is_noise(self) -> bool:
        """Whether the first cause is noise that costs more than all faults."""
        return self.first not in self.gains and self.first in OF_NOISE and self.noise_s > max(self.gains.values())

    @property
    def is_larger_first(self) -> bool:
        return self.first == max(self.gains, key=lambda cause: self.gains[cause])

    @property
    def are_all_named(self) -> bool:
        """Whether the first three causes contain all faults, except faults below `WORTH` of the largest."""
        names = [loss.cause for loss in self.losses[:3]]
        return all(cause in names for cause in self._worth)

    @property
    def errors(self) -> dict[str, float]:
        """Found gain / true gain - 1 of each fault."""
        found = {loss.cause: loss.gain_s for loss in self.losses}
        return {cause: found.get(cause, 0.0) / self.gains[cause] - 1 for cause in self._worth}

    @property
    def are_places_named(self) -> bool:
        details = {loss.cause: loss.detail for loss in self.losses}
        places = [(place, details.get(cause, "")) for cause, place in self.places.items() if cause in self._worth]
        return all(re.search(place, detail) for place, detail in places)

    @property
    def _worth(self) -> list[str]:
        least = WORTH * max(max(self.gains.values()), self.noise_s)
        return [cause for cause, gain in self.gains.items() if gain >= least]


WORTH = 0.1
"""A fault whose gain is below this fraction of the largest need not be listed."""


def draw(table: Schedule, seed: int, causes: Sequence[str]) -> Draw:
    """Return the result of `explain` for steps with these faults, and the truth."""
    steps = made(table, seed, causes)
    whole = steps.period_s
    names = {cause: expected(table, cause) for cause in causes}
    found = [loss for loss in attribute_losses(steps.run(), call_s=steps.call_s).reasons if loss.gain_s > 0]
    if set(names.values()) <= {"slow ranks", "uneven stages"} and STAGES_OR_RANKS in {one.cause for one in found}:
        names = dict.fromkeys(causes, STAGES_OR_RANKS)  # with two ranks they cannot be distinguished
    gains, places = {}, {}
    for name in dict.fromkeys(names.values()):
        its = [cause for cause in causes if names[cause] == name]
        others = [cause for cause in causes if cause not in its]
        less = made(table, seed, causes, its[0]) if len(its) == 1 else made(table, seed, others)
        gains[name] = max(whole - less.period_s, 1e-9)
        places[name] = "" if name == STAGES_OR_RANKS else steps.places[its[0]]
    noise = [whole - made(table, seed, [*causes, one], one).period_s for one in OF_NOISE if one not in causes]
    return Draw(gains, places, found, max(noise, default=0.0))
