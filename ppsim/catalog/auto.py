"""Search for the best table for given costs within a time limit (`ppsim build auto`).

The search moves actions on an ideal network, where one evaluation takes microseconds. Every accepted table is
simulated with the actual costs and channels.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from ppsim.base.errors import ConfigError, DoesNotFit, ScheduleError
from ppsim.base.limits import require_memory
from ppsim.base.numba_jit import TimeIsUp, time_limit, working_clock
from ppsim.base.units import percent
from ppsim.catalog.build import ScheduleEntry, build, every_schedule, optimise_entry, require_shape
from ppsim.catalog.cost_optimised import memory_cap
from ppsim.catalog.search.best_table import SearchTimeout, join_backwards, tables_without_end
from ppsim.catalog.search.target import SearchTarget
from ppsim.schedule.placement import STYLES
from ppsim.schedule.table import Schedule
from ppsim.simulation.bounds.for_table import bounds_of, problem_of
from ppsim.simulation.bounds.problem import Criterion, is_within
from ppsim.simulation.simulate import simulate
from ppsim.simulation.stage_costs import StageCosts

Progress: TypeAlias = Callable[[float, float], None]
"""Callback with the best value so far and the bound, both in seconds, after every round or better table."""

_TOLERANCE = 1e-9
_MOST_WHATEVER_THE_TIME = 30_000  # actions; trying all patterns takes some 0.1 s


@dataclass(frozen=True, eq=False)
class OptimisedSchedule:
    """The best table found, its time by `criterion`, and a lower bound for all tables on the searched placements.

    `started_from` is the best schedule of the catalogue, or "list scheduling" if none fits.
    """

    schedule: Schedule
    criterion: Criterion
    value_s: float
    bound_s: float
    started_from: str
    start_s: float
    placement: str

    @property
    def gap(self) -> float:
        return max(self.value_s / self.bound_s - 1, 0.0) if self.bound_s > 0 else 0.0

    @property
    def is_optimal(self) -> bool:
        return _meets(self.value_s, self.bound_s)

    @property
    def proof(self) -> str:
        return "optimal" if self.is_optimal else f"at most {percent(self.gap)} above the best possible"


def _meets(value_s: float, bound_s: float) -> bool:
    return value_s <= bound_s * (1 + _TOLERANCE)


def optimise(
    *,
    pp: int,
    vpp: int = 1,
    microbatches: int,
    costs: StageCosts | Callable[[str], StageCosts],
    memory_limit_bytes: float | None = None,
    placement: str | None = None,
    criterion: Criterion = "step",
    time_limit_s: float = 10.0,
    max_rounds: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> OptimisedSchedule:
    """Return the best table found within `time_limit_s` for one placement, or for the better of "loop" and "v".

    `costs` may be a function of the placement's name. `memory_limit_bytes` is per rank, static bytes included.

    1. Evaluate the published patterns (up to 30,000 actions, regardless of the time limit), then the schedules that
       `build` optimises for costs, each for up to half of the remaining time.
    2. Search from the best table, for `max_rounds` rounds per placement or until it meets the lower bound.

    Kernel compilation does not count. A seed fixes the sequence of tables; the time limit decides how many are
    reached, unless `max_rounds` ends the search first.

    Raises `DoesNotFit` if no table is within the memory limit, and `ConfigError` for invalid arguments and for a
    memory limit with costs without bytes.

    >>> costs = StageCosts(forward_s=[1, 2], backward_input_s=1, backward_weight_s=1)
    >>> found = optimise(pp=2, microbatches=4, costs=costs)
    >>> found.value_s, found.is_optimal
    (17.0, True)
    """
    _require(pp=pp, vpp=vpp, microbatches=microbatches, placement=placement)
    _require_limits(time_limit_s, max_rounds=max_rounds or 0, seed=seed)
    styles = [placement] if placement else ["loop"] if vpp == 1 else list(STYLES)
    end = working_clock() + time_limit_s
    searches, reasons = [], []
    for number, style in enumerate(styles):
        try:
            search = _Search(
                STYLES[style](pp, pp * vpp), microbatches, costs(style) if callable(costs) else costs,
                memory_limit_bytes, criterion,
            )  # fmt: skip
        except DoesNotFit as error:
            reasons.append(error)
            continue
        searches.append((search, style))
        if any(_meets(other.value_s, search.bound_s) for other, _ in searches):
            continue
        now = working_clock()
        until = now + (end - now) / (len(styles) - number)
        search.begin(until)
        if not search.is_over and working_clock() < until:
            search.run(until, max_rounds, seed, progress)
    if not searches:
        raise reasons[0]
    best, style = min(searches, key=lambda search: search[0].value_s)
    start = min((search for search, _ in searches), key=lambda search: search.start_s)
    if best.best is None:
        raise DoesNotFit("no table was found that keeps the memory limit and runs on these channels")
    return OptimisedSchedule(
        schedule=best.best.named("auto"),
        criterion=criterion,
        value_s=best.value_s,
        bound_s=min(search.bound_s for search, _ in searches),
        started_from=start.started_from,
        start_s=start.start_s,
        placement=style,
    )


def _require_limits(time_limit_s: float, **counts: int) -> None:
    if not time_limit_s >= 0:
        raise ConfigError(f"the time limit must be 0 s or more: got {time_limit_s:g}")
    for name, value in counts.items():
        if value < 0:
            raise ConfigError(f"{name} must be 0 or more: got {value}")


def _require(*, pp: int, vpp: int, microbatches: int, placement: str | None) -> None:
    require_shape(pp=pp, microbatches=microbatches)
    if vpp < 1:
        raise ConfigError(f"vpp must be at least 1: got {vpp}")
    if placement is not None and placement not in STYLES:
        raise ConfigError(f"placement is '{placement}'; choose one of {', '.join(STYLES)}")
    require_memory(3 * pp * vpp * microbatches)


class _Search:
    """Search on one placement."""

    def __init__(
        self,
        stage_to_rank: list[int],
        num_microbatches: int,
        costs: StageCosts,
        memory_limit_bytes: float | None,
        criterion: Criterion,
    ) -> None:
        self.stage_to_rank, self.num_microbatches = stage_to_rank, num_microbatches
        self.costs, self.memory_limit_bytes = costs, memory_limit_bytes
        num_stages, num_ranks = len(stage_to_rank), max(stage_to_rank) + 1
        costs.require_parts("tables with I and W")
        arrays = costs.resolved(num_stages=num_stages, num_ranks=num_ranks)
        if memory_limit_bytes is not None:
            if not np.any(arrays.activation_bytes):
                raise ConfigError("a memory limit needs costs with activation_bytes: these have none")
            memory_cap(memory_limit_bytes, stage_to_rank, arrays)  # raises if one microbatch does not fit
        problem = problem_of(stage_to_rank, num_microbatches, costs, memory_limit_bytes=memory_limit_bytes)
        self.target = SearchTarget(problem, criterion)
        outline = Schedule.outline(stage_to_rank, num_microbatches=num_microbatches)
        self.bound_s = bounds_of(outline, costs, memory_limit_bytes=memory_limit_bytes).of(criterion)
        self.is_joining_worth_it = problem.backward_s < problem.input_s + problem.weight_s  # one entry per stage
        self.best: Schedule | None = None
        self.value_s = self.start_s = np.inf
        self.started_from = "list scheduling"

    @property
    def is_over(self) -> bool:
        return _meets(self.value_s, self.bound_s)

    def begin(self, until: float) -> None:
        """Take the best schedule of the catalogue; skip slow ones if the time is over and a table fits."""
        for name, table in self._catalogue(until):
            if self._take(table):
                self.started_from, self.start_s = name, self.value_s

    def _catalogue(self, until: float) -> Iterator[tuple[str, Schedule]]:
        num_ranks = self.target.problem.num_ranks
        shape: dict[str, Any] = {
            "pp": num_ranks, "vpp": len(self.stage_to_rank) // num_ranks, "microbatches": self.num_microbatches,
        }  # fmt: skip
        entries = sorted(
            every_schedule().values(),
            key=lambda entry: (entry.takes("costs"), not entry.takes("memory_limit_bytes")),
        )  # of the cost-optimised ones, those that use the memory limit first: closest to the searched problem
        for entry in entries:
            if entry.num_replicas > 1 or entry.takes("num_slices") or entry.why_not(**shape):
                continue
            if STYLES[entry.placement](num_ranks, len(self.stage_to_rank)) != self.stage_to_rank:
                continue
            is_late = self.best is not None and working_clock() >= until  # continue until one table fits
            is_slow = entry.takes("costs") or self.target.num_actions > _MOST_WHATEVER_THE_TIME
            if (entry.takes("costs") and self.is_over) or (is_slow and is_late):
                return
            limit = self.memory_limit_bytes if entry.takes("memory_limit_bytes") else None
            try:
                if entry.takes("costs"):
                    tables = self._fits(entry, until, **shape, memory_limit_bytes=limit)
                else:
                    tables = [build(entry, **shape, memory_limit_bytes=limit)]
            except DoesNotFit:
                continue
            for table in tables:
                if table.stage_to_rank.tolist() == self.stage_to_rank:
                    yield entry.name, table

    def _fits(self, entry: ScheduleEntry, until: float, **options: Any) -> list[Schedule]:
        """Return a cost-optimised schedule; after half of the remaining time, return the best tables so far."""
        seconds = (until - working_clock()) / 2 if self.best is not None else np.inf
        try:
            with time_limit(seconds):
                criterion = self.target.criterion
                return [
                    optimise_entry(entry, **options, costs=self.costs, criterion=criterion, is_thorough=True)[0]
                ]
        except SearchTimeout as end:
            return end.tables
        except TimeIsUp:
            return []

    def _take(self, table: Schedule) -> bool:
        try:
            timeline = simulate(table, self.costs)
        except ScheduleError:  # deadlock on these channels
            return False
        if not is_within(float(timeline.memory.peak_bytes.max()), self.memory_limit_bytes):
            return False
        value_s = timeline.step_time_s if self.target.criterion == "step" else timeline.span_s
        if value_s >= self.value_s * (1 - _TOLERANCE):
            return False
        self.best, self.value_s = table, value_s
        return True

    def _take_split_or_joined(self, table: Schedule) -> None:
        """Also try full backwards on the stages where these are faster.

        A third variant has full backwards only on stage 0, whose input gradient no stage needs.
        """
        self._take(table)
        if self.is_joining_worth_it.any():
            self._take(join_backwards(table, self.is_joining_worth_it))
            self._take(join_backwards(table, self.is_joining_worth_it & (np.arange(table.num_stages) == 0)))

    def run(self, until: float, max_rounds: int | None, seed: int, progress: Progress | None) -> None:
        previous = None
        rounds = islice(tables_without_end(self.target, start=self.best, seed=seed), max_rounds)
        while True:
            try:
                with time_limit(until - working_clock() if self.best is not None else np.inf):
                    candidate = next(rounds)
            except (TimeIsUp, StopIteration):
                return
            if candidate is not previous:
                previous = candidate
                self._take_split_or_joined(candidate.schedule("auto"))
                if self.start_s == np.inf:
                    self.start_s = self.value_s
            if progress:
                progress(self.value_s, self.bound_s)
            if self.is_over or working_clock() > until:
                return
