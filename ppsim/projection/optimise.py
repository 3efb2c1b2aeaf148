"""The best table that a time-boxed search finds for given costs: what `ppsim build auto` prints.

It begins with the best that the catalogue has for the placement and the memory, and is never worse than it: every
table is judged by the simulator at the costs as they are, channels included. The search itself moves passes on an
ideal network (`ppsim.schedule.fitting`), where one timing takes microseconds.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypedDict

import numpy as np

from ppsim.costs.stages import StageCosts
from ppsim.errors import ConfigError, DoesNotFit, ScheduleError
from ppsim.schedule.bounds import lower_bounds
from ppsim.schedule.catalog import build, every_schedule
from ppsim.schedule.cost_aware import memory_cap
from ppsim.schedule.exact import optimal
from ppsim.schedule.fitting.search import tables_without_end
from ppsim.schedule.fitting.target import Target
from ppsim.schedule.placement import STYLES
from ppsim.schedule.problem import Criterion, Problem
from ppsim.schedule.table import Op, Schedule
from ppsim.simulation.bounds import problem_of
from ppsim.simulation.run import simulate

MOST_TO_PROVE = 800
"""Actions up to which the exact search has a chance to end."""

_TOLERANCE = 1e-9

Progress: TypeAlias = Callable[[float, float], None]
"""Called with the seconds of the best table and of the bound, after every round."""


@dataclass(frozen=True, eq=False)
class Optimised:
    """The best table found, its criterion in seconds, where the search began, and what no table undercuts."""

    schedule: Schedule
    criterion: Criterion
    value_s: float
    bound_s: float
    started_from: str
    start_s: float
    placement: str

    @property
    def gap(self) -> float:
        """How much longer the table takes than the bound, as a part of the bound."""
        return max(self.value_s / self.bound_s - 1, 0.0) if self.bound_s > 0 else 0.0

    @property
    def is_optimal(self) -> bool:
        """Whether the bound is met."""
        return self.value_s <= self.bound_s * (1 + _TOLERANCE)


def placements_for(vpp: int) -> list[str]:
    """Return the names of the placements to choose from: one stage a rank has one."""
    return ["loop"] if vpp == 1 else list(STYLES)


def optimise(
    *,
    pp: int,
    vpp: int = 1,
    microbatches: int,
    costs: StageCosts,
    memory_limit_bytes: float | None = None,
    placement: str | None = None,
    criterion: Criterion = "step",
    time_limit_s: float = 10.0,
    seed: int = 0,
    prove: bool = False,
    progress: Progress | None = None,
) -> Optimised:
    """Return the best table found within `time_limit_s` for one placement, or for each and then the best of them.

    `memory_limit_bytes` is a rank's, static bytes included. The search stops early where the lower bound is met.
    One seed gives one sequence of tables; how far it gets is up to the time. `prove` hands what is left of the
    gap to an exact solver (extra `optimise`), for up to `MOST_TO_PROVE` actions and as long again.

    Raises `DoesNotFit` where no table keeps the limit, `ConfigError` for a time limit below 0, an unknown
    placement, and for `prove` on more actions.

    >>> costs = StageCosts(forward_s=[1, 2], backward_input_s=1, backward_weight_s=1)
    >>> found = optimise(pp=2, microbatches=4, costs=costs)
    >>> found.value_s, found.is_optimal
    (17.0, True)
    """
    if not time_limit_s >= 0:
        raise ConfigError(f"the time limit must be 0 s or more: got {time_limit_s:g}")
    if placement is not None and placement not in STYLES:
        raise ConfigError(f"placement is '{placement}'; choose one of {', '.join(STYLES)}")
    num_actions = 3 * pp * vpp * microbatches
    if prove and num_actions > MOST_TO_PROVE:
        raise ConfigError(
            f"a proof is for up to {MOST_TO_PROVE} actions: {pp * vpp} stages and {microbatches} microbatches have "
            f"{num_actions} (nearest: {MOST_TO_PROVE // (3 * pp * vpp)} microbatches)"
        )
    styles = [placement] if placement else placements_for(vpp)
    results, reasons = [], []
    for style in styles:
        try:
            search = _Search(style, pp, vpp, microbatches, costs, memory_limit_bytes, criterion, seed)
        except DoesNotFit as error:
            reasons.append(error)
            continue
        results.append(search.run(time_limit_s / len(styles), prove, progress))
    if not results:
        raise reasons[0]
    return min(results, key=lambda result: result.value_s)


class _Shape(TypedDict):
    pp: int
    vpp: int
    microbatches: int


class _Search:
    """One placement: the best table so far, by the simulator, and the searches that look for better ones."""

    def __init__(
        self,
        style: str,
        pp: int,
        vpp: int,
        microbatches: int,
        costs: StageCosts,
        memory_limit_bytes: float | None,
        criterion: Criterion,
        seed: int,
    ) -> None:
        self.style, self.costs, self.criterion, self.seed = style, costs, criterion, seed
        self.memory_limit_bytes = memory_limit_bytes
        self.stage_to_rank = STYLES[style](pp, pp * vpp)
        self.shape: _Shape = {"pp": pp, "vpp": vpp, "microbatches": microbatches}
        if memory_limit_bytes is not None:
            arrays = costs.resolved(num_stages=pp * vpp, num_ranks=pp)
            memory_cap(memory_limit_bytes, self.stage_to_rank, arrays)  # raises where it holds no microbatch
        self.best: Schedule | None = None
        self.value_s = np.inf
        self.started_from = ""
        for name, table in self._catalogue():
            if self._offer(table):
                self.started_from = name
        self.start_s = self.value_s

    def _catalogue(self) -> Iterator[tuple[str, Schedule]]:
        for entry in every_schedule().values():
            if entry.num_replicas > 1 or entry.takes("num_slices") or entry.why_not(**self.shape):
                continue
            try:
                table = build(
                    entry,
                    **self.shape,
                    costs=self.costs if entry.takes("costs") else None,
                    memory_limit_bytes=self.memory_limit_bytes if entry.takes("memory_limit_bytes") else None,
                )
            except DoesNotFit:
                continue
            if table.stage_to_rank.tolist() == self.stage_to_rank:
                yield entry.name, table

    def _offer(self, table: Schedule) -> bool:
        """Take a table that keeps the limit and is better than the best so far."""
        try:
            timeline = simulate(table, self.costs)
        except ScheduleError:  # the channels deadlock
            return False
        limit = self.memory_limit_bytes
        if limit is not None and timeline.memory.peak_bytes.max() > limit:
            return False
        value_s = timeline.step_time_s if self.criterion == "step" else timeline.span_s
        if value_s >= self.value_s * (1 - _TOLERANCE):
            return False
        self.best, self.value_s = table, value_s
        return True

    def run(self, time_limit_s: float, prove: bool, progress: Progress | None) -> Optimised:
        """Search until the time is over or the bound is met."""
        end = time.monotonic() + time_limit_s
        problem = problem_of(
            self.stage_to_rank, self.shape["microbatches"], self.costs, memory_limit_bytes=self.memory_limit_bytes
        )
        target = Target(problem, self.criterion)
        bound_s = lower_bounds(problem).of(self.criterion)
        for candidate in tables_without_end(target, seed=self.seed) if time_limit_s > 0 else ():
            if candidate:
                table = candidate.schedule("auto")
                if self._offer(table) and not self.started_from:
                    self.started_from, self.start_s = "list scheduling", self.value_s
            if progress:
                progress(self.value_s, bound_s)
            if self.value_s <= bound_s * (1 + _TOLERANCE) or time.monotonic() > end:
                break
        if prove and self.value_s > bound_s * (1 + _TOLERANCE):
            bound_s = max(bound_s, self._proved(problem, time_limit_s, progress))
        if self.best is None:
            raise DoesNotFit("no table was found that keeps the memory limit and runs on these channels")
        return Optimised(
            schedule=self.best.named("auto"),
            criterion=self.criterion,
            value_s=self.value_s,
            bound_s=bound_s,
            started_from=self.started_from,
            start_s=self.start_s,
            placement=self.style,
        )

    def _proved(self, problem: Problem, time_limit_s: float, progress: Progress | None) -> float:
        """Return the exact solver's bound, and offer its table.

        It splits every backward: where a full one is cheaper than I and W, its bound says nothing and is 0.
        """
        found = optimal(
            problem, criterion=self.criterion, hint=self._hint(), time_limit_s=time_limit_s, seed=self.seed,
            progress=progress,
        )  # fmt: skip
        self._offer(found.schedule)
        is_split_best = np.all(problem.backward_s >= problem.input_s + problem.weight_s)
        return found.bound_s if is_split_best else 0.0

    def _hint(self) -> Schedule | None:
        return self.best if self.best is not None and not np.any(self.best.op == Op.B) else None
