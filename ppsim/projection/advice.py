"""What to change: near alternatives of a plan, each projected."""

from collections.abc import Callable
from dataclasses import replace

from ppsim.layout.split import without_search
from ppsim.projection.changes import projected_changes
from ppsim.projection.plan import Plan
from ppsim.projection.projection import Advice, Projection

_LEAST_GAIN = 0.005
"""Below half a percent nobody changes a plan."""


def advise(projection: Projection, project: Callable[[Plan], Projection], *, limit: int = 3) -> list[Advice]:
    """Return the changes that would gain most, best first; none that does not fit or gains under 0.5 %.

    A change must keep the plan's memory limit or, where it has none, that of the job's device, and run where the
    plan itself does. Of a plan that does not keep its limit, the fastest that do are returned, gain or no gain.
    """
    plan, found = projection.plan, []
    bound = plan.memory_bound_bytes
    fits = bound is None or projection.timeline.memory.peak_bytes.max() <= bound
    for change, made in projected_changes(
        plan, lambda other: project(replace(other, split=without_search(other.how_split)))
    ):
        if bound is not None and made.timeline.memory.peak_bytes.max() > bound:
            continue
        if made.tokens_per_s is None or projection.tokens_per_s is None:  # without a model: the same microbatches
            gain = projection.iteration_s / made.iteration_s - 1
        else:
            gain = made.tokens_per_s / projection.tokens_per_s - 1
        is_for_runtime = not made.not_in_runtime or projection.not_in_runtime
        if (gain >= _LEAST_GAIN or not fits) and is_for_runtime:
            found.append(Advice(change, made, gain))
    return sorted(found, key=lambda advice: (-advice.gain, advice.change))[:limit]
