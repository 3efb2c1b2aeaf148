"""Refinement of the best configurations of a search: options that change the time by a few percent at most.

They are tried for the fastest layouts, and for layouts that need recomputation to fit but may be the fastest with
little recomputation.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal, TypeAlias

from ppsim.base.errors import ConfigError, PpsimError
from ppsim.catalog.build import find
from ppsim.costs.job import Job
from ppsim.model.memory_rows import kept_of_layer
from ppsim.model.recompute import MODULES
from ppsim.parallel.layer_partition import why_no_split
from ppsim.projection.project import project_table
from ppsim.simulation.bounds.problem import is_within
from ppsim.tuning.evaluate import LAST, EvaluationResult, Rank, evaluate, rank_of, simulate, table_at, task_of
from ppsim.tuning.lower_bounds import BoundsCalculator, ConfigurationBounds
from ppsim.tuning.space import PLANNED, Configuration, SearchSpace

Refinement: TypeAlias = Literal["recompute", "vpp", "schedule", "plan"]
REFINEMENTS: tuple[Refinement, ...] = ("recompute", "vpp", "schedule")

_LAYOUTS = 10
"""Number of fastest layouts, and of layouts that need recomputation."""

_OF_LAYOUT = 3
"""Maximum number of configurations for each layout that needs recomputation."""

_MOST = 40
"""Maximum simulations per choice, so that the refinement stays short compared with the search."""

_FITTED_LAYOUTS = 3
_FITTED = ("zbv", "v-half")
"""Schedules fitted to the costs of the stages; v-flex needs the memory limit, which the printed command lacks."""

_MOST_STAGES_PER_RANK = 16

_GAIN_OF_PLAN = 1e-3
"""Minimum relative gain for a row with a plan per stage."""

_PLANNED_LAYOUTS = 3
"""As `_LAYOUTS`, for the search of a plan per stage."""

_CHEAP = ("moe_act", "layernorm", "mla_up_proj")
"""Modules that take little time to recompute; also tried in combination. No trainer supports mlp_act."""

_DEAR = ("core_attn", "mlp", "moe")

_RECOMPUTED = 0.25
"""Maximum share of full recomputation in the time: 1 / (1 + 1 + 2), as a backward pass costs two forward passes."""


class RefineState:
    """State of a refinement; `verdicts` are outcomes by key, `known` configurations by key."""

    def __init__(
        self,
        outlooks: BoundsCalculator,
        space: SearchSpace,
        verdicts: dict[str, EvaluationResult],
        known: dict[str, Configuration],
    ) -> None:
        self.outlooks, self.space, self.verdicts, self.known = outlooks, space, verdicts, known
        self.limit = outlooks.question.memory_limit
        self.best = min(self.rank(one) for one in verdicts.values() if one.status == "fits")

    def rank(self, outcome: EvaluationResult) -> Rank:
        return rank_of(self.limit, outcome.peak_bytes, outcome.iteration_time_s)

    def bound(self, look: ConfigurationBounds) -> Rank:
        return rank_of(self.limit, look.least_bytes, look.bound_s)

    def note(self, one: Configuration, outcome: EvaluationResult) -> None:
        self.known[one.key], self.verdicts[one.key] = one, outcome
        if outcome.status == "fits":
            self.best = min(self.best, self.rank(outcome))

    def look(self, one: Configuration) -> ConfigurationBounds | None:
        """Return the bounds of a configuration, or None if it cannot beat the best or has an outcome."""
        if one.key in self.verdicts:
            return None
        try:
            found = self.outlooks.of(one)
        except ConfigError:
            return None
        is_same = (
            one.split == "even"
            and "auto" in self.space.split
            and found.counts == self.outlooks.counts(replace(one, split="auto"))
        )
        return None if is_same or self.bound(found) >= self.best else found

    def try_all(self, candidates: Iterable[Configuration]) -> None:
        looks = [look for one in dict.fromkeys(candidates) if (look := self.look(one))]
        for look in sorted(looks, key=lambda one: (one.bound_s, one.candidate))[:_MOST]:
            if self.bound(look) < self.best:
                [(_, outcome)] = evaluate([task_of(self.outlooks, look)], front=())
                self.note(look.candidate, outcome)

    def fastest(self, number: int) -> list[Configuration]:
        """Return the best configuration of each of the `number` best layouts."""
        fits = [(self.rank(one), self.known[key]) for key, one in self.verdicts.items() if one.status == "fits"]
        return _first_of_layouts((one for _, one in sorted(fits)), number)


def refine(
    search: RefineState,
    tight: Sequence[Configuration],
    what: Collection[Refinement] = REFINEMENTS,
) -> None:
    """Add the outcomes of better configurations on the best layouts; `tight` is the result of
    `least_recomputed`.
    """
    if "recompute" in what:
        words = _words(search.outlooks.question.job)
        search.try_all(replace(one, recompute=word) for one in tight for word in words)
        for one in tight:
            _try_fewest_layers(search, one, search.limit.usable_bytes)
            if search.limit.safe_bytes < search.limit.usable_bytes:
                _try_fewest_layers(search, one, search.limit.safe_bytes)
    if "vpp" in what:
        search.try_all(other for one in search.fastest(_LAYOUTS) for other in _of_other_stages(search, one))
    if "schedule" in what:
        search.try_all(other for one in search.fastest(_FITTED_LAYOUTS) for other in _of_fitted(search, one))

    if "plan" in what:
        for one in (*search.fastest(_PLANNED_LAYOUTS), *_first_of_layouts(tight, _PLANNED_LAYOUTS)):
            _try_plan(search, one)


def layout_of(one: Configuration) -> tuple[int, ...]:
    return one.tp, one.cp, one.ep, one.dp, one.pp, one.micro_batch, one.zero


def _first_of_layouts(ordered: Iterable[Configuration], number: int) -> list[Configuration]:
    found: dict[tuple[int, ...], Configuration] = {}
    for one in ordered:
        found.setdefault(layout_of(one), one)
        if len(found) == number:
            break
    return list(found.values())


def least_recomputed(
    looks: Iterable[ConfigurationBounds], verdicts: dict[str, EvaluationResult], limit: float
) -> list[Configuration]:
    """Return configurations that do not fit without recomputation but may fit with it, the fastest first.

    The time of each is estimated with just enough recomputation to fit: full_s · (1 - `_RECOMPUTED` · (1 - x)).
    full_s is the lower bound with full recomputation; x is the needed share of the memory that it saves.
    """
    looks = list(looks)
    full = {
        one.candidate.key: one for one in looks if one.candidate.recompute == "full" and one.least_bytes <= limit
    }
    estimated = []
    for one in looks:
        other = full.get(replace(one.candidate, recompute="full").key)
        verdict = verdicts.get(one.candidate.key)
        held = one.least_bytes if verdict is None else max(one.least_bytes, verdict.peak_bytes)
        if other is None or one.candidate.recompute != "none" or held <= limit:
            continue
        part = (held - limit) / (held - other.least_bytes) if held < float("inf") else 1.0
        estimated.append(((1 - _RECOMPUTED * (1 - part)) * other.bound_s, one.candidate))
    found: dict[tuple[int, ...], list[Configuration]] = {}
    for _, tight in sorted(estimated):
        layout = layout_of(tight)
        if len(found) < _LAYOUTS:
            found.setdefault(layout, [])
        if layout in found and len(found[layout]) < _OF_LAYOUT:
            found[layout].append(tight)
    return [one for of_layout in found.values() for one in of_layout]


def _words(job: Job) -> list[str]:
    """Return values of `recompute` by module that change a layer's memory, one for each amount of memory."""

    def kept(word: str) -> tuple[int, ...]:
        settings = replace(job, execution=replace(job.execution, recompute=word)).settings
        return tuple(sum(kept_of_layer(layer, settings).values()) for layer in job.model.kinds)

    found = {kept("none"): "none"}
    together: list[str] = []
    for word in (*_CHEAP, *_DEAR):
        try:
            found.setdefault(kept(word), word)
        except ConfigError:
            continue
        if word in _CHEAP:
            together.append(word)
            joined = "+".join(one for one in MODULES if one in together)
            found.setdefault(kept(joined), joined)
    return list(found.values())[1:]


def _try_fewest_layers(search: RefineState, one: Configuration, limit_bytes: float) -> None:
    """Find the smallest N for which recompute block/N is within the limit, by bisection; N = 0 is not.

    The largest N is full recomputation, which is in the space. If block/N is neither within the limit nor faster
    than the best, a larger N is useless.
    """
    low, high = 0, -(-len(search.outlooks.question.job.model.layers) // (one.pp * one.vpp))
    while high - low > 1:
        middle = (low + high) // 2
        outcome = _simulated(search, replace(one, recompute=f"block/{middle}"))
        if is_within(outcome.peak_bytes, limit_bytes):
            high = middle
        elif (False, outcome.iteration_time_s) < search.best:
            low = middle
        else:
            return


def _simulated(search: RefineState, one: Configuration) -> EvaluationResult:
    """Only simulate, because the bounds do not model the memory of block/N."""
    if known := search.verdicts.get(one.key):
        return known
    plan = search.outlooks.plan_of(one)
    outcome = simulate(plan, table_at(plan))
    search.note(one, outcome)
    return outcome


def _try_plan(search: RefineState, one: Configuration) -> None:
    planned, verdict = replace(one, recompute=PLANNED, split="auto"), search.verdicts.get(one.key)
    if one.pp == 1 or planned.key in search.verdicts:
        return
    plan = search.outlooks.question.plan_of(planned)
    with suppress(PpsimError):  # it does not fit, or its schedule cannot run
        made = project_table(plan, table_at(plan))
        found = EvaluationResult("fits", float(made.timeline.memory.peak_bytes.max()), made.iteration_time_s)
        is_tight, before_s = search.rank(verdict) if verdict and verdict.status == "fits" else LAST
        if made.fits is not False and search.rank(found) < (is_tight, before_s * (1 - _GAIN_OF_PLAN)):
            search.note(planned, found)


def _of_other_stages(search: RefineState, one: Configuration) -> Iterator[Configuration]:
    """The number of stages must divide the layers, or layers + 2, because embedding and head may count."""
    num_layers = len(search.outlooks.question.job.model.layers)
    microbatches = search.outlooks.question.job.global_batch // (one.dp * one.micro_batch)
    for vpp in range(2, _MOST_STAGES_PER_RANK + 1) if one.pp > 1 else ():
        stages = one.pp * vpp
        if (num_layers % stages and (num_layers + 2) % stages) or why_no_split("even", num_layers, stages):
            continue
        for schedule in search.space.patterns:
            if find(schedule).why_not(pp=one.pp, vpp=vpp, microbatches=microbatches) is None:
                for split in search.space.split:
                    yield replace(one, vpp=vpp, schedule=schedule, split=split)


def _of_fitted(search: RefineState, one: Configuration) -> Iterator[Configuration]:
    num_layers = len(search.outlooks.question.job.model.layers)
    microbatches = search.outlooks.question.job.global_batch // (one.dp * one.micro_batch)
    for name in _FITTED if one.pp > 1 else ():
        vpp = find(name).stages_per_rank[0]
        is_possible = find(name).why_not(pp=one.pp, vpp=vpp, microbatches=microbatches) is None
        if is_possible and not why_no_split("even", num_layers, one.pp * vpp):
            yield replace(one, vpp=vpp, schedule=name)
