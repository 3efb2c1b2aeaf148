"""What to change: near alternatives of a plan, each projected."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from ppsim.parallel.layer_partition import without_search
from ppsim.projection.changes import projected_changes, projected_with_checkpoints
from ppsim.projection.plan import Plan
from ppsim.projection.projection import Advice, Projection

_LEAST_GAIN = 0.005
"""Below half a percent nobody changes a plan."""


def advise(projection: Projection, project: Callable[[Plan], Projection], *, limit: int = 3) -> list[Advice]:
    """Return the changes that gain most throughput, best first: all fit in memory and gain at least 0.5 %.

    A change must run wherever the plan itself does. If the plan does not fit, these are the fastest changes that
    make it fit, whatever they gain: single ones or, if there are none, full recomputation together with another.
    """
    plan, is_too_large = projection.plan, projection.fits is False

    def balanced(other: Plan) -> Projection:
        return project(replace(other, split=without_search(other.how_split)))

    found = _useful(projection, projected_changes(plan, balanced, is_too_large=is_too_large))
    if is_too_large and not found:
        found = _useful(projection, projected_with_checkpoints(plan, balanced))
    return found[:limit]


def _useful(projection: Projection, changes: Iterable[tuple[str, Projection]]) -> list[Advice]:
    """The changes to recommend, fastest first."""
    found, is_too_large = [], projection.fits is False
    for change, made in changes:
        if made.fits is False or (made.not_in_runtime and not projection.not_in_runtime):
            continue
        if made.tokens_per_s is None or projection.tokens_per_s is None:  # without a model: the same microbatches
            gain = projection.iteration_time_s / made.iteration_time_s - 1
        else:
            gain = made.tokens_per_s / projection.tokens_per_s - 1
        if gain >= _LEAST_GAIN or is_too_large:
            found.append(Advice(change, made, gain, makes_it_fit=is_too_large))
    return sorted(found, key=lambda advice: (-advice.gain, advice.change))
