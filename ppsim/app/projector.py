"""Projections of a state: immediately with the available schedules, later with schedules fitted to the costs.

Another process searches for a schedule that is fitted to the costs. Until then, the latest fitted schedule of the
same shape replaces it, simulated at the new costs and marked. So a slider never waits for a search or a compiler.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

from ppsim.api.project import plan_of_options
from ppsim.app.background_workers import ScheduleOptimiser, ScheduleRequest, Table
from ppsim.app.state import PageState
from ppsim.base.errors import PpsimError
from ppsim.base.lru_cache import LRUCache
from ppsim.catalog.build import every_schedule, find
from ppsim.catalog.entry import ScheduleEntry
from ppsim.plot.plotly_figures import TradeoffPoint
from ppsim.projection.plan import Plan
from ppsim.projection.project import project_all, table_of
from ppsim.projection.projection import Projection
from ppsim.simulation.bounds.for_table import bounds_of

Options = Mapping[str, Any]
Reader = Callable[[Sequence[str]], Options]
"""Parser of the arguments after the command's name."""

STANDING_IN = "table: the last one of this shape, fitted to other costs; the one for these is being searched for"

_ACTIONS, _POINTS = 4_000_000, 20_000
_LOOK_S = 0.05


class _NotYet(PpsimError):
    """No replacement schedule is available."""


@dataclass(frozen=True)
class ProjectorResult:
    """`substitutes` schedules are fitted to other costs; `awaited` schedules have no table yet."""

    state: PageState
    plan: Plan
    projections: Mapping[str, Projection]
    rejected: Mapping[str, str]
    substitutes: frozenset[str]
    awaited: frozenset[str]

    @property
    def baseline(self) -> Projection | None:
        """The pinned projection, else the first one."""
        return self.projections.get(self.state.baseline or "") or next(iter(self.projections.values()), None)

    @property
    def is_final(self) -> bool:
        return not self.substitutes and not self.awaited


@dataclass
class Projector:
    """Caches of plans and fitted schedules by state, and the process that fits schedules."""

    read: Reader
    _plans: LRUCache[Plan] = field(default_factory=lambda: LRUCache(64))
    _fitted: LRUCache[Table] = field(default_factory=lambda: LRUCache(_ACTIONS))
    _last: LRUCache[Table] = field(default_factory=lambda: LRUCache(_ACTIONS))
    _spots: LRUCache[TradeoffPoint] = field(default_factory=lambda: LRUCache(_POINTS))
    _failed: dict[tuple[str, ...], str] = field(default_factory=dict)
    _fitter: ScheduleOptimiser = field(default_factory=ScheduleOptimiser)
    _lock: RLock = field(default_factory=RLock)

    def plan(self, state: PageState) -> Plan:
        """Schedules are left out; raises `PpsimError` like the command line."""
        options = tuple(state.options)
        return self._plans.get(options, size=1, make=lambda: plan_of_options(self.read(options)))

    def answer(self, state: PageState, names: Iterable[str] | None = None) -> ProjectorResult:
        """Do not wait for a search; raises `PpsimError` for errors that affect all schedules."""
        with self._lock:
            return self._answer(state, names)

    def _answer(self, state: PageState, names: Iterable[str] | None) -> ProjectorResult:
        self._collect()
        plan, options = self.plan(state), tuple(state.options)
        projections: dict[str, Projection] = {}
        reasons: dict[str, str] = {}
        substitutes, awaited = set(), set()

        def kept(one: Plan, entry: ScheduleEntry) -> Table:
            if not entry.takes("costs"):
                return table_of(one, entry)
            key = (*options, entry.name)
            if key in self._failed:
                raise _NotYet(self._failed[key])
            if key in self._fitted:
                return self._fitted.get(key, size=0, make=_never)
            if (shape := _shape(one, entry)) in self._last:
                substitutes.add(entry.name)
                return self._last.get(shape, size=0, make=_never)[0], STANDING_IN
            raise _NotYet

        for name in state.schedules if names is None else names:
            try:
                answer = project_all(plan, [name], tables=kept)
            except _NotYet as error:
                if str(error):
                    reasons[name] = str(error)
                else:
                    awaited.add(name)
                continue
            projections |= {projection.plan.schedule_name: projection for projection in answer.projections}
            reasons |= answer.rejected
        # If a replacement schedule does not run, the fitted one may still run.
        awaited |= {name for name in substitutes if name in reasons}
        for name in awaited:
            reasons.pop(name, None)
        return ProjectorResult(
            state, plan, projections, reasons, frozenset(substitutes - awaited), frozenset(awaited)
        )

    def spots(self, state: PageState) -> tuple[list[TradeoffPoint], int]:
        """Return a point for every possible schedule, and the number of schedules still to be fitted.

        Points of schedules fitted to exactly these costs are cached.
        """
        options, missing, found = tuple(state.options), 0, []
        for name in every_schedule():
            key = (*options, name)
            with self._lock:
                if key in self._spots:
                    found.append(self._spots.get(key, size=1, make=_never))
                    continue
                answer = self._answer(state, [name])
                missing += not answer.is_final
                spots = [_spot(name, projection) for projection in answer.projections.values()]
                if spots and answer.is_final:
                    self._spots.get(key, size=1, make=lambda spots=spots: spots[0])  # type: ignore[misc]
                found += spots
        return found, missing

    def search(self, state: PageState, names: Iterable[str]) -> None:
        """The previous queue of schedules is dropped."""
        options = tuple(state.options)
        with self._lock:
            self._collect()
            keys = {(*options, name): name for name in names if find(name).takes("costs")}
            decided = {key for key in keys if key in self._fitted or key in self._failed}
            missing = {key: name for key, name in keys.items() if key not in decided}
            given = self.read(options) if missing else {}
            self._fitter.want([ScheduleRequest(key, given, name) for key, name in missing.items()])

    def wait(self, state: PageState) -> None:
        """Wait until all schedules are fitted: for output files; sliders do not wait."""
        self.search(state, state.schedules)
        while not self.answer(state).is_final:
            time.sleep(_LOOK_S)
            self.search(state, state.schedules)

    def close(self) -> None:
        with self._lock:
            self._fitter.close()

    def _collect(self) -> None:
        for key, optimised in self._fitter.found():
            if isinstance(optimised, str):
                self._failed[key] = optimised
                continue
            size = len(optimised[0])
            self._fitted.get(key, size=size, make=lambda optimised=optimised: optimised)  # type: ignore[misc]
            last = (key[-1], optimised[0].num_ranks, optimised[0].vpp, optimised[0].num_microbatches)
            self._last.forget(last)
            self._last.get(last, size=size, make=lambda optimised=optimised: optimised)  # type: ignore[misc]


def _shape(plan: Plan, entry: ScheduleEntry) -> tuple[str, int, int, int]:
    vpp = entry.stages_per_rank[0] if plan.vpp is None else plan.vpp
    return entry.name, plan.pp, vpp, plan.num_microbatches


def _spot(name: str, projection: Projection) -> TradeoffPoint:
    bounds = bounds_of(projection.timeline.schedule, projection.costs)
    reason = projection.memory_error or projection.runtime_error or ""
    return TradeoffPoint(
        name,
        float(projection.timeline.memory.peak_bytes.max()),
        projection.iteration_time_s,
        bounds.step_s + projection.iteration_time_s - projection.timeline.step_time_s,
        told=reason,
        fits=not projection.is_too_large,
        is_tight=projection.verdict is not None and projection.verdict.is_tight,
        kind="refused" if reason else "possible",
    )


def _never() -> Any:
    raise AssertionError("it was kept a moment ago")
