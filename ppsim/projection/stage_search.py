"""`--plan auto`: layers, recomputation and offloading of each stage, with the shortest simulated iteration.

For given layers per stage, the fastest recomputation within the memory is found without a simulation. A dynamic
program finds the layers per stage with the fastest busiest rank. Then a local search moves single layers and
simulates each plan.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.errors import PpsimError
from ppsim.costs.job import Job
from ppsim.costs.layer_costs import layer_costs_of
from ppsim.costs.ledger import Ledger
from ppsim.costs.stage_cost_set import stages_of_ranks
from ppsim.costs.stage_options import FrontierPoint, StageOptions, plan_of
from ppsim.model.pipeline_stages import Stage, StagePlan, stages_of
from ppsim.model.recompute import Recompute
from ppsim.projection.split_bounds import SimulatedSplit
from ppsim.projection.split_search import SplitSearch
from ppsim.schedule.table import Op, Schedule
from ppsim.simulation.bounds.problem import CAP_ROUNDING

_MOST_TRIALS = 48
"""Maximum number of plans that the local search simulates."""

_LEAST_TRIALS, _MOST_NODES = 8, 400_000
"""For large tables: minimum number of simulated plans, and limit on the nodes of all their event graphs."""

_MOST_UNIFORM, _NEARLY_FITS = 4, 0.15
"""Plans with the same recomputation on all stages: maximum number whose split is searched for, and maximum fraction
by which such a plan exceeds the memory limit before this search.
"""

_MOST_ATTEMPTS = 4
"""Maximum number of attempts for given layers; after each, the limit is lowered by the simulated excess."""

_UNIFORM_SPLITS = ("balanced", "even")


@dataclass(frozen=True)
class StageSearchResult:
    """The fastest plan and, for comparison, the fastest plan with the same recomputation on every stage.

    `uniform` is this recomputation, and `uniform_s` the iteration time of the second plan (None: no such plan
    fits). `busiest_s` is a lower bound of the time of the busiest rank.
    """

    plans: tuple[StagePlan, ...]
    trial: SimulatedSplit
    uniform_s: float | None
    uniform: str
    busiest_s: float | None


Planned: TypeAlias = tuple[tuple[StagePlan, ...], SimulatedSplit]
"""A plan of each stage, and its trial."""

Simulate: TypeAlias = Callable[[Sequence[int] | str, Sequence[StagePlan]], SimulatedSplit]
"""Run the trial of layers per stage (or of a rule for them), with a plan for each stage."""


@dataclass
class StageSearch:
    """One search for a job and a table."""

    ledger: Ledger
    schedule: Schedule
    simulate: Simulate
    limit_bytes: float
    _trials: dict[tuple[Any, ...], SimulatedSplit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        splits = bool(((self.schedule.op == Op.I) | (self.schedule.op == Op.W)).any())
        self.options = StageOptions(self.ledger, splits)
        self.ranks = stages_of_ranks(self.schedule)
        self.in_flight = [_in_flight(self.schedule, rank) for rank in range(self.schedule.num_ranks)]

    @property
    def job(self) -> Job:
        return self.ledger.job

    @property
    def num_stages(self) -> int:
        return self.schedule.num_model_stages

    def best(self) -> StageSearchResult:
        """Return the fastest simulated plan, not slower than any plan with the same recomputation on all stages."""
        uniform = self._best_uniform()
        program = StageProgram(self)
        planned = program.best() if program.applies else None
        starts = [uniform[1].counts, *([planned.counts] if planned else [])]
        start = min((self._planned(counts) for counts in dict.fromkeys(starts)), key=self._rank_of)
        plans, trial = min(self._climb(start), uniform, key=self._rank_of)
        fits = self._rank_of(uniform)[0] <= 0
        return StageSearchResult(
            plans,
            trial,
            uniform[1].seconds if fits else None,
            uniform[0][0].recompute if fits else "",
            planned.seconds if planned else None,
        )

    def _over(self, trial: SimulatedSplit) -> float:
        return float(np.maximum(trial.peak_bytes - self.limit_bytes * CAP_ROUNDING, 0.0).max())

    def _rank_of(self, planned: Planned) -> tuple[float, float]:
        _, trial = planned
        return self._over(trial), trial.seconds

    def _run(self, counts: Sequence[int] | str, plans: Sequence[StagePlan]) -> SimulatedSplit:
        key = counts if isinstance(counts, str) else tuple(counts), tuple(plans)
        if key not in self._trials:
            self._trials[key] = self.simulate(counts, plans)
        return self._trials[key]

    def _best_uniform(self) -> Planned:
        texts = [*self.options.useful_words]
        most = -(-len(self.job.model.layers) // self.num_stages)
        texts += [f"block/{number}" for number in range(1, most)] if "full" in texts else []
        uniform: dict[str, Planned] = {}
        refused: PpsimError | None = None
        for text in texts:
            plans = (StagePlan(text),) * self.num_stages
            for split in _UNIFORM_SPLITS:
                try:
                    planned = plans, self._run(split, plans)
                except PpsimError as error:
                    refused = refused or error
                else:
                    uniform[text] = min(uniform.get(text, planned), planned, key=self._rank_of)
        if refused and not uniform:
            raise refused
        limit = min((trial.seconds for _, trial in uniform.values() if self._over(trial) <= 0), default=np.inf)
        promising = [
            (trial.seconds, text)
            for text, (_, trial) in uniform.items()
            if trial.seconds <= limit and self._over(trial) <= _NEARLY_FITS * self.limit_bytes
        ]
        least = min(uniform, key=lambda text: self._rank_of(uniform[text]))
        texts = [text for _, text in sorted(promising)[:_MOST_UNIFORM]]
        return min((self._with_split(text) for text in dict.fromkeys([*texts, least])), key=self._rank_of)

    def _with_split(self, recompute: Recompute) -> Planned:
        plans = (StagePlan(recompute),) * self.num_stages
        job = replace(self.job, execution=replace(self.job.execution, recompute=recompute), offload_modules="")
        limit = self.limit_bytes if np.isfinite(self.limit_bytes) else None

        def simulated(counts: tuple[int, ...] | None) -> SimulatedSplit:
            return self._run("balanced" if counts is None else counts, plans)

        return plans, SplitSearch(simulated, layer_costs_of(Ledger(job)), limit).best()

    def _planned(self, counts: tuple[int, ...]) -> Planned:
        """Return the fastest recomputation whose simulated peak fits."""
        limits, best = np.full(len(self.ranks), self.limit_bytes), None
        for _ in range(_MOST_ATTEMPTS):
            plans = self.plans_for(counts, limits)
            planned = plans, self._run(counts, plans)
            if best is None or self._rank_of(planned) < self._rank_of(best):
                best = planned
            over = planned[1].peak_bytes - self.limit_bytes * CAP_ROUNDING
            if (over <= 0).all():
                break
            limits -= np.maximum(over, 0.0)
        assert best is not None
        return best

    def plans_for(self, counts: Sequence[int], limits: Floats) -> tuple[StagePlan, ...]:
        stages = stages_of(self.job.model, counts)
        plans: dict[int, StagePlan] = {}
        for rank, stages_of_rank in enumerate(self.ranks):
            _, chosen = self.of_rank(
                [stages[at] for at in stages_of_rank], self.in_flight[rank], float(limits[rank])
            )
            plans.update(zip(stages_of_rank, chosen, strict=True))
        return tuple(plans[at] for at in range(self.num_stages))

    def of_rank(self, stages: Sequence[Stage], in_flight: Floats, limit: float) -> tuple[float, list[StagePlan]]:
        """Return the seconds of F + B of all stages of a rank (infinite if they do not fit), and their plans."""
        best: tuple[float, float, list[FrontierPoint], str] = (np.inf, np.inf, [], "")
        for static, allowed in self.options.transients(stages):
            for offload in self.options.offloads:
                room = limit - static - max(self.options.buffers(stage, offload) for stage in stages)
                choices = [_Choices(self.options, stage, allowed, offload) for stage in stages]
                points, over = _fastest(choices, in_flight, room)
                seconds = sum(point.seconds for point in points)
                best = min(best, (over, seconds, points, offload), key=lambda one: one[:2])
        over, seconds, points, offload = best
        plans = [plan_of(stage.layers, point, offload) for stage, point in zip(stages, points, strict=True)]
        return (seconds if over <= 0 else np.inf), plans

    def _climb(self, best: Planned) -> Planned:
        nodes = best[1].step.timeline.graph.num_nodes
        most = min(_MOST_TRIALS, max(_LEAST_TRIALS, _MOST_NODES // nodes))
        seen = {best[1].counts}
        while len(seen) < most:
            nearby = [
                counts
                for counts in self._neighbours(best[1], is_over=self._rank_of(best)[0] > 0)
                if counts not in seen
            ]
            for counts in nearby[: most - len(seen)]:
                seen.add(counts)
                planned = self._planned(counts)
                if self._rank_of(planned) < self._rank_of(best):
                    best = planned
                    break
            else:
                return best
        return best

    def _neighbours(self, trial: SimulatedSplit, *, is_over: bool) -> Iterator[tuple[int, ...]]:
        """Yield layers per stage with one layer moved, first from the busiest rank to the least busy one.

        If the trial exceeds the memory limit, ranks are sorted by peak memory instead.
        """
        of_rank = trial.peak_bytes if is_over else trial.step.timeline.busy_s
        order = sorted(range(self.num_stages), key=lambda at: -of_rank[self.schedule.stage_to_rank[at]])
        for giving in order:
            for taking in reversed(order):
                if trial.counts[giving] > 1 and giving != taking:
                    counts = list(trial.counts)
                    counts[giving] -= 1
                    counts[taking] += 1
                    yield tuple(counts)


class _Choices:
    def __init__(self, options: StageOptions, stage: Stage, allowed: frozenset[str], offload: str) -> None:
        self.points = options.frontier(stage, allowed, offload)
        self.seconds = np.array([point.seconds for point in self.points])
        self.saved = np.array([point.saved_bytes for point in self.points])
        memory = options.ledger.memory
        for_weight = memory.for_weight(memory.contents([stage]))[0]
        self.kept = np.minimum(self.saved, options.job.allocator_slack * for_weight)


def _fastest(choices: Sequence[_Choices], in_flight: Floats, room: float) -> tuple[list[FrontierPoint], float]:
    """Return the fastest points of a rank's stages within the memory, and the bytes over the limit.

    `in_flight` [moment, stage, 2] counts the microbatches that hold all tensors saved by F, and those that hold the
    tensors that W needs. Bisection finds the lowest common price per byte at which all stages fit.
    """
    used = [
        in_flight[:, at, 0, None] * choice.saved + in_flight[:, at, 1, None] * choice.kept
        for at, choice in enumerate(choices)
    ]  # shape [moment, point] for each stage

    def over(chosen: Sequence[int]) -> float:
        moments = sum(one[:, at] for one, at in zip(used, chosen, strict=True))
        return float(np.max(moments)) - room

    if len(choices) == 1:
        fitting = np.flatnonzero(used[0].max(axis=0) <= room)
        chosen = [int(fitting[0]) if len(fitting) else len(choices[0].points) - 1]
    else:
        weights = [one.max(axis=0) for one in used]

        def at_price(price: float) -> list[int]:
            pairs = zip(choices, weights, strict=True)
            return [int(np.argmin(one.seconds + price * weight)) for one, weight in pairs]

        low, high = 0.0, 1e-6
        chosen = at_price(0.0)
        if over(chosen) > 0:
            for _ in range(60):
                middle = (low + high) / 2
                low, high = (middle, high) if over(at_price(middle)) > 0 else (low, middle)
            chosen = at_price(high)
            if over(chosen) > 0:
                chosen = [len(choice.points) - 1 for choice in choices]
            chosen = _improved(chosen, choices, over)
    return [choice.points[at] for choice, at in zip(choices, chosen, strict=True)], max(0.0, over(chosen))


def _improved(chosen: list[int], choices: Sequence[_Choices], over: Callable[[Sequence[int]], float]) -> list[int]:
    """Switch the stage with the largest gain to a faster point, as long as the rank fits."""
    while True:
        options = []
        for at, choice in enumerate(choices):
            for faster in range(chosen[at]):
                other = [*chosen[:at], faster, *chosen[at + 1 :]]
                if over(other) <= 0:
                    options.append((choice.seconds[faster] - choice.seconds[chosen[at]], other))
                    break
        if not options:
            return chosen
        chosen = min(options)[1]


def _in_flight(schedule: Schedule, rank: int) -> Floats:
    """Return the microbatches in flight at each moment that can be a rank's memory peak, [moments, stages, 2].

    The last axis: microbatches between F and the backward (B or I), microbatches between I and W.
    """
    mine = slice(int(schedule.rank_offsets[rank]), int(schedule.rank_offsets[rank + 1]))
    op, stage = schedule.op[mine], schedule.stage[mine]
    stages = schedule.stages_of(rank)
    moments = np.zeros((len(op), len(stages), 2))
    for at, one in enumerate(stages):
        is_mine = stage == one
        for column, steps in enumerate(({Op.F: 1, Op.B: -1, Op.I: -1}, {Op.I: 1, Op.W: -1})):
            change = sum(step * (op == kind) for kind, step in steps.items())
            moments[:, at, column] = np.cumsum(change * is_mine) / schedule.num_slices
    flat = np.unique(moments.reshape(len(op), -1), axis=0)
    return np.array([row for row in flat if not _is_dominated(row, flat)]).reshape(-1, len(stages), 2)


def _is_dominated(row: Floats, others: Floats) -> bool:
    return bool(((others >= row).all(axis=1) & (others > row).any(axis=1)).any())


@dataclass(frozen=True)
class _Program:
    """Layers per stage, and the seconds of the busiest rank."""

    counts: tuple[int, ...]
    seconds: float


class StageProgram:
    """The layers per stage with the fastest busiest rank: exact, for tables with one stage per rank."""

    def __init__(self, search: StageSearch) -> None:
        self._search = search
        self.applies = (
            all(len(stages_of_rank) == 1 for stages_of_rank in search.ranks) and search.schedule.num_replicas == 1
        )

    def best(self) -> _Program | None:
        search, model = self._search, self._search.job.model
        num_layers, num_stages = len(model.layers), search.num_stages
        seconds = self._seconds(num_layers, num_stages)
        return program(num_layers, num_stages, seconds, search.schedule.num_microbatches)

    def _seconds(self, num_layers: int, num_stages: int) -> Callable[[int, int, int], float]:
        search, model, known = self._search, self._search.job.model, {}
        order = {at: rank for rank, (at,) in enumerate(search.ranks)}
        kinds = [id(layer) for layer in model.layers]

        def seconds(stage: int, first: int, last: int) -> float:
            held = tuple(kinds[first:last])
            rank = order[stage]
            key = held, stage == 0, stage == num_stages - 1, search.in_flight[rank].tobytes()
            if key not in known:
                ends = stage == num_stages - 1
                one = Stage(tuple(model.layers[first:last]), stage == 0, ends, model.mtp if ends else ())
                known[key] = search.of_rank([one], search.in_flight[rank], search.limit_bytes)[0]
            return known[key]

        return seconds


def program(
    num_layers: int, num_stages: int, seconds: Callable[[int, int, int], float], num_microbatches: int = 1
) -> _Program | None:
    """Return the layers per stage that minimise the time of the busiest stage.

    `seconds(stage, first, last)` is for the layers first to last - 1, and must not fall when layers are added.

    >>> program(6, 2, lambda stage, first, last: (last - first) * (1 + stage)).counts
    (4, 2)
    """
    least = np.full((num_stages + 1, num_layers + 1), np.inf)
    boundaries = np.zeros((num_stages + 1, num_layers + 1), dtype=np.int64)
    least[0, 0] = 0.0
    for stage in range(num_stages):
        fewest = int(0 < stage < num_stages - 1 and num_layers >= num_stages - 2)
        for last in range(num_layers + 1) if stage < num_stages - 1 else [num_layers]:
            for first in range(last - fewest, -1, -1):
                if least[stage, first] >= least[stage + 1, last]:
                    continue
                own = seconds(stage, first, last)
                if own >= least[stage + 1, last]:
                    break  # more layers take longer
                least[stage + 1, last], boundaries[stage + 1, last] = max(own, least[stage, first]), first
    if not np.isfinite(least[num_stages, num_layers]):
        return None
    counts, last = [], num_layers
    for stage in range(num_stages, 0, -1):
        counts.append(last - int(boundaries[stage, last]))
        last = int(boundaries[stage, last])
    return _Program(tuple(reversed(counts)), num_microbatches * float(least[num_stages, num_layers]))
