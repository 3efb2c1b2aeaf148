"""Refinement of the best configurations of a search: options that change the time by a few percent at most.

They are tried for the fastest layouts, and for layouts that need recomputation to fit but may be the fastest with
little recomputation.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from ppsim.base.errors import ConfigError, PpsimError
from ppsim.catalog.build import find
from ppsim.parallel.layer_partition import why_no_split
from ppsim.projection.changes import changes, recomputed_modules
from ppsim.projection.project import project_table
from ppsim.simulation.bounds.problem import CAP_ROUNDING, is_within
from ppsim.tuning.evaluate import (
    LAST,
    EvaluationResult,
    Rank,
    evaluate,
    exact_peak_bytes,
    rank_of,
    table_at,
    task_of,
)
from ppsim.tuning.lower_bounds import BoundsCalculator, ConfigurationBounds
from ppsim.tuning.space import PLANNED, Configuration, SearchSpace

Refinement: TypeAlias = Literal["recompute", "vpp", "schedule", "switches", "split", "plan"]
REFINEMENTS: tuple[Refinement, ...] = ("recompute", "vpp", "schedule", "switches", "split")

_LAYOUTS = 10
"""Number of best layouts, and of fastest layouts, on which other numbers of stages are tried."""

_OF_LAYOUT = 3
"""Maximum number of configurations for each layout that needs recomputation."""

_MOST = 40
"""Maximum simulations per choice, so that the refinement stays short compared with the search."""

_FITTED_LAYOUTS = 3
_FITTED = ("zbv", "v-half")
"""Schedules fitted to the costs of the stages; v-flex is between them in memory, and tried where one is best."""

_MOST_ACTIONS = 1_000
"""Number of actions up to which v-flex is tried, because its search takes up to 1 s."""

_SWITCHED_LAYOUTS, _MOST_SWITCHES = 3, 12
"""Number of best layouts whose options are switched, and maximum number of switches in succession."""

_WIDE, _LEAST_DESCENT = 16, 1e-3
"""Number of layouts on which the bounds choose the switched options, and minimum relative gain of a bound."""

_SAVING_LAYOUTS, _MOST_TOO_LARGE = 8, 400
"""Number of layouts that do not fit, on which options that save memory are tried; number that are compared."""

_MOST_STAGES_PER_RANK = 16

_GAIN_OF_PLAN = 1e-3
"""Minimum relative gain for a row with a plan per stage."""

_PLANNED_LAYOUTS = 3
"""As `_LAYOUTS`, for the search of a plan per stage; also the number of layouts that need recomputation."""

_RECOMPUTED = 0.25
"""Maximum share of full recomputation in the time: 1 / (1 + 1 + 2), as a backward pass costs two forward passes."""


class RefineState:
    """State of a refinement; `verdicts` are outcomes by key, `known` configurations by key.

    `best_s`: seconds of the fastest configuration that fits, and of the fastest that fits at least tightly, first
    of those that the trainer runs, then of all.
    """

    def __init__(
        self,
        outlooks: BoundsCalculator,
        space: SearchSpace,
        verdicts: dict[str, EvaluationResult],
        known: dict[str, Configuration],
    ) -> None:
        self.outlooks, self.space, self.verdicts, self.known = outlooks, space, verdicts, known
        self.limit = outlooks.question.memory_limit
        self.best_s = [[float("inf")] * 2 for _ in range(2)]
        for key, outcome in verdicts.items():
            self._note_seconds(known[key], outcome)

    def rank(self, candidate: Configuration, outcome: EvaluationResult) -> Rank:
        return rank_of(self.outlooks.question, candidate, outcome.peak_bytes, outcome.iteration_time_s)

    def may_win(self, look: ConfigurationBounds) -> bool:
        question = self.outlooks.question
        is_elsewhere, is_tight, bound_s = rank_of(question, look.candidate, look.least_bytes, look.bound_s)
        return bound_s < self.best_s[is_elsewhere][is_tight]

    def note(self, candidate: Configuration, outcome: EvaluationResult) -> None:
        self.known[candidate.key], self.verdicts[candidate.key] = candidate, outcome
        self._note_seconds(candidate, outcome)

    def _note_seconds(self, candidate: Configuration, outcome: EvaluationResult) -> None:
        if outcome.status == "fits":
            is_elsewhere, is_tight, seconds = self.rank(candidate, outcome)
            for bests in self.best_s[is_elsewhere:]:
                bests[is_tight:] = [min(best_s, seconds) for best_s in bests[is_tight:]]

    def look(self, candidate: Configuration) -> ConfigurationBounds | None:
        """Return the bounds of a configuration, or None if it cannot beat the best or has an outcome."""
        if candidate.key in self.verdicts or not self.space.allows(candidate):
            return None
        try:
            bounds = self.outlooks.of(candidate)
        except ConfigError:
            return None
        is_same = (
            candidate.split == "even"
            and "auto" in self.space.split
            and bounds.counts == self.outlooks.counts(replace(candidate, split="auto"))
        )
        return bounds if self.may_win(bounds) and not is_same else None

    def try_all(self, candidates: Iterable[Configuration]) -> None:
        looks = [look for candidate in dict.fromkeys(candidates) if (look := self.look(candidate))]
        for look in sorted(looks, key=lambda one: (one.bound_s, one.candidate))[:_MOST]:
            if self.may_win(look):
                with suppress(ConfigError):  # the cluster lacks a fact that a switched option needs
                    [(_, outcome)] = evaluate([task_of(self.outlooks, look)], front=())
                    self.note(look.candidate, outcome)

    def fastest(self, number: int, *, switched: bool = False, searched: bool = False) -> list[Configuration]:
        """Return the best configuration of each of the `number` best layouts, and of each of the fastest.

        Only with `switched` and `searched`, configurations with switched options and searched splits count. So a
        search that resumes tries the same as before.
        """
        fitting = [key for key, outcome in self.verdicts.items() if outcome.status == "fits"]
        done = [
            (self.known[key], self.verdicts[key])
            for key in fitting
            if (switched or not self.known[key].switched) and (searched or self.known[key].split != "searched")
        ]
        fits = [(self.rank(one, outcome), one) for one, outcome in done]
        orders = sorted(fits), sorted(fits, key=lambda fit: (fit[0][-1], fit[1]))
        return list(dict.fromkeys(candidate for order in orders for candidate in _first_of_layouts(order, number)))


def refine(
    search: RefineState, looks: Sequence[ConfigurationBounds], what: Collection[Refinement] = REFINEMENTS
) -> None:
    """Add the outcomes of better configurations on the best layouts; `looks` are the bounds of the space."""
    start = [search.space.start] if search.space.start else []
    search.try_all(start)
    limits = dict.fromkeys((search.limit.safe_bytes, search.limit.usable_bytes))
    tight = {limit: least_recomputed(looks, search.verdicts, CAP_ROUNDING * limit) for limit in limits}
    if "recompute" in what:
        modules = recomputed_modules(search.outlooks.question.job)
        for limit_bytes, recomputed in tight.items():
            level = limit_bytes > search.limit.safe_bytes
            for bound_s, one in recomputed:
                if bound_s < search.best_s[search.outlooks.question.is_elsewhere(one)][level]:
                    search.try_all(replace(one, recompute=word) for word in modules)
                    search.try_all(_with_fewest_layers(search, one, limit_bytes))
    if "vpp" in what:
        search.try_all(other for one in search.fastest(_LAYOUTS) for other in _of_other_stages(search, one))
    if "schedule" in what:
        search.try_all(other for one in search.fastest(_FITTED_LAYOUTS) for other in _of_fitted(search, one))
        fitted = (layout for layout in search.fastest(_FITTED_LAYOUTS) if layout.schedule in _FITTED)
        quick = [
            layout
            for layout in fitted
            if 3 * layout.pp * layout.vpp * _microbatches(search, layout) <= _MOST_ACTIONS
        ]
        search.try_all(replace(layout, schedule="v-flex") for layout in quick)
    if "switches" in what:
        tight_ones = [layout for recomputed in tight.values() for _, layout in recomputed[:_SAVING_LAYOUTS]]
        ordered = sorted((look.bound_s, look.candidate) for look in looks if look.bound_s < float("inf"))
        wide = dict.fromkeys([*search.fastest(_WIDE), *_first_of_layouts(ordered, _WIDE)])
        search.try_all(other for layout in wide for other in _descent(search, layout))
        too_large = tight_ones or _fastest_too_large(search, looks)
        fit_tightly = [layout for layout in search.fastest(_SAVING_LAYOUTS) if _fits_tightly(search, layout)]
        _switch(search, start, [*too_large, *fit_tightly])
    if "split" in what:
        best = search.fastest(_SWITCHED_LAYOUTS, switched=True)
        search.try_all(replace(start, split="searched") for start in best if start.pp > 1)
    if "plan" in what:
        recomputed = next(filter(None, tight.values()), [])
        for one in (
            *search.fastest(_PLANNED_LAYOUTS, switched=True, searched=True),
            *_first_of_layouts(recomputed, _PLANNED_LAYOUTS),
        ):
            _try_plan(search, one)


def _descent(search: RefineState, start: Configuration) -> Iterator[Configuration]:
    """Switch the option with the lowest bound, as long as it falls: two switches may gain where one does not.

    Sizes stay, because they are in the ranges.
    """
    bound_s = search.outlooks.of(start).bound_s
    while True:
        looks = [look for other in _switched(search, start) if (look := _bounds(search, start, other))]
        least_s, best = min(((look.bound_s, look.candidate) for look in looks), default=(float("inf"), start))
        if not least_s < bound_s * (1 - _LEAST_DESCENT):
            return
        bound_s, start = least_s, best
        yield start


def _bounds(search: RefineState, start: Configuration, other: Configuration) -> ConfigurationBounds | None:
    if layout_of(start)[:-1] != layout_of(other)[:-1] or start.switched == other.switched:
        return None
    with suppress(ConfigError):
        return search.outlooks.of(other) if search.space.allows(other) else None
    return None


def _fastest_too_large(search: RefineState, looks: Sequence[ConfigurationBounds]) -> list[Configuration]:
    """Return layouts that do not fit, the fastest first; if nothing fits, those that need least memory."""
    fits = any(outcome.status == "fits" for outcome in search.verdicts.values())
    limit = search.limit.usable_bytes * CAP_ROUNDING
    too_large = [look for look in looks if look.least_bytes > limit or _is_too_large(search, look)]
    nearest = sorted(too_large, key=lambda look: (look.least_bytes, look.candidate))[:_MOST_TOO_LARGE]
    ordered = [
        (search.outlooks.of(look.candidate, is_limited=False).bound_s if fits else look.least_bytes, look.candidate)
        for look in nearest
    ]
    return _first_of_layouts(sorted(ordered), _SAVING_LAYOUTS)


def _fits_tightly(search: RefineState, layout: Configuration) -> bool:
    return search.rank(layout, search.verdicts[layout.key])[1]


def _is_too_large(search: RefineState, look: ConfigurationBounds) -> bool:
    outcome = search.verdicts.get(look.candidate.key)
    return outcome is not None and outcome.status == "does not fit"


def _switch(search: RefineState, new: list[Configuration], too_large: Sequence[Configuration]) -> None:
    """Switch single options of the best configurations, as long as this gains.

    `new` are switched first, `too_large` get switches that save memory.
    """
    search.try_all(other for start in too_large for other in _switched(search, start, saving=True))
    tried: set[Configuration] = set()
    for _ in range(_MOST_SWITCHES):
        best = search.fastest(_SWITCHED_LAYOUTS, switched=True)
        new = [start for start in dict.fromkeys([*new, *best]) if start not in tried]
        if not new:
            break
        tried.update(new)
        search.try_all(other for start in new for other in _switched(search, start))


def _switched(search: RefineState, start: Configuration, *, saving: bool = False) -> Iterator[Configuration]:
    own = search.outlooks.question.own_settings(start)
    for change in changes(search.outlooks.plan_of(start), saving=saving):
        yield start.changed(change, own)


def layout_of(candidate: Configuration) -> tuple[int, ...]:
    return (
        candidate.tp,
        candidate.cp,
        candidate.ep,
        candidate.dp,
        candidate.pp,
        candidate.micro_batch,
        candidate.zero,
    )


def _first_of_layouts(ordered: Iterable[tuple[Any, Configuration]], number: int) -> list[Configuration]:
    by_layout: dict[tuple[int, ...], Configuration] = {}
    for _, one in ordered:
        by_layout.setdefault(layout_of(one), one)
        if len(by_layout) == number:
            break
    return list(by_layout.values())


def least_recomputed(
    looks: Iterable[ConfigurationBounds], verdicts: dict[str, EvaluationResult], limit: float
) -> list[tuple[float, Configuration]]:
    """Return lower bounds of seconds, and configurations that fit only with recomputation, the fastest first.

    The time of each is estimated with just enough recomputation to fit: full_s · (1 - `_RECOMPUTED` · (1 - x)).
    full_s is the lower bound with full recomputation; x is the needed share of the memory that it saves. Modules
    can save this memory in less time, but not in less than full_s · (1 - `_RECOMPUTED`).
    """
    looks = list(looks)
    full = {
        look.candidate.key: look
        for look in looks
        if look.candidate.recompute == "full" and look.least_bytes <= limit
    }
    estimated = []
    for look in looks:
        other = full.get(replace(look.candidate, recompute="full").key)
        verdict = verdicts.get(look.candidate.key)
        held = look.least_bytes if verdict is None else max(look.least_bytes, verdict.peak_bytes)
        if other is None or look.candidate.recompute != "none" or held <= limit:
            continue
        part = (held - limit) / (held - other.least_bytes) if held < float("inf") else 1.0
        estimated_s = (1 - _RECOMPUTED * (1 - part)) * other.bound_s
        estimated.append((estimated_s, look.candidate, (1 - _RECOMPUTED) * other.bound_s))
    number, least = Counter[tuple[int, ...]](), []
    for _, tight, bound_s in sorted(estimated):
        layout = layout_of(tight)
        number[layout] += 1
        if number[layout] <= _OF_LAYOUT:
            least.append((bound_s, tight))
    return least


def _with_fewest_layers(
    search: RefineState, candidate: Configuration, limit_bytes: float
) -> Iterator[Configuration]:
    """Yield block/N with the smallest N within the limit, by bisection of its peak memory.

    The largest N is full recomputation, which is in the space.
    """

    def fits(number: int) -> bool:
        look = search.outlooks.of(replace(candidate, recompute=f"block/{number}"))
        is_possible = is_within(look.least_bytes, limit_bytes)
        return is_possible and is_within(exact_peak_bytes(task_of(search.outlooks, look)), limit_bytes)

    numbers = range(1, -(-len(search.outlooks.question.job.model.layers) // (candidate.pp * candidate.vpp)))
    for number in numbers[bisect_left(numbers, True, key=fits) :][:1]:
        yield replace(candidate, recompute=f"block/{number}")


def _try_plan(search: RefineState, candidate: Configuration) -> None:
    planned, verdict = replace(candidate, recompute=PLANNED, split="auto"), search.verdicts.get(candidate.key)
    if candidate.pp == 1 or planned.key in search.verdicts:
        return
    plan = search.outlooks.question.plan_of(planned)
    with suppress(PpsimError):  # it does not fit, or its schedule cannot run
        projected = project_table(plan, table_at(plan))
        outcome = EvaluationResult(
            "fits", float(projected.timeline.memory.peak_bytes.max()), projected.iteration_time_s
        )
        *level, before_s = search.rank(candidate, verdict) if verdict and verdict.status == "fits" else LAST
        if projected.fits is not False and search.rank(candidate, outcome) < (
            *level,
            before_s * (1 - _GAIN_OF_PLAN),
        ):
            search.note(planned, outcome)


def _microbatches(search: RefineState, layout: Configuration) -> int:
    return search.outlooks.question.job.global_batch // (layout.dp * layout.micro_batch)


def _of_other_stages(search: RefineState, candidate: Configuration) -> Iterator[Configuration]:
    """The number of stages must divide the layers, or layers + 2, because embedding and head may count."""
    num_layers = len(search.outlooks.question.job.model.layers)
    microbatches = _microbatches(search, candidate)
    for vpp in range(2, _MOST_STAGES_PER_RANK + 1) if candidate.pp > 1 else ():
        stages = candidate.pp * vpp
        if (num_layers % stages and (num_layers + 2) % stages) or why_no_split("even", num_layers, stages):
            continue
        for schedule in search.space.patterns:
            if find(schedule).why_not(pp=candidate.pp, vpp=vpp, microbatches=microbatches) is None:
                for split in search.space.split:
                    yield replace(candidate, vpp=vpp, schedule=schedule, split=split)


def _of_fitted(search: RefineState, candidate: Configuration) -> Iterator[Configuration]:
    num_layers = len(search.outlooks.question.job.model.layers)
    microbatches = _microbatches(search, candidate)
    for name in _FITTED if candidate.pp > 1 else ():
        vpp = find(name).stages_per_rank[0]
        is_possible = find(name).why_not(pp=candidate.pp, vpp=vpp, microbatches=microbatches) is None
        if is_possible and not why_no_split("even", num_layers, candidate.pp * vpp):
            yield replace(candidate, vpp=vpp, schedule=name)
