"""What to change: near alternatives of a plan, each projected."""

from collections.abc import Callable
from dataclasses import replace

from ppsim.projection.changes import projected_changes
from ppsim.projection.plan import Plan
from ppsim.projection.projection import Advice, Projection

_LEAST_GAIN = 0.005
"""Below half a percent nobody changes a plan."""

_MOST_GAINED = 0.02
"""An alternative that is slower than it would have to be by this part is still tried with its split searched for."""


def advise(projection: Projection, project: Callable[[Plan], Projection], *, limit: int = 3) -> list[Advice]:
    """Return the changes that would gain most, best first; none that does not fit or gains under 0.5 %.

    A change must keep the plan's memory limit or, where it has none, that of the job's device, and run where the
    plan itself does. Of a plan that does not keep its limit, the fastest that do are returned, gain or no gain.
    """
    plan = projection.plan
    bound = plan.memory_bound_bytes

    def fits(made: Projection) -> bool:
        return bound is None or bool(made.timeline.memory.peak_bytes.max() <= bound)

    def advice_of(change: str, made: Projection) -> Advice:
        return Advice(change, made, made.tokens_per_s / projection.tokens_per_s - 1)

    def is_better(advice: Advice, least: float) -> bool:
        is_for_runtime = not advice.projection.not_in_runtime or projection.not_in_runtime
        return fits(advice.projection) and (advice.gain >= least or not fits(projection)) and bool(is_for_runtime)

    def first(advice: Advice) -> tuple[float, str]:
        return -advice.gain, advice.change

    # A search for each alternative's split takes long: only the most promising ones get it.
    found = [advice_of(*one) for one in projected_changes(plan, lambda other: project(_without_search(other)))]
    found = sorted((one for one in found if is_better(one, _LEAST_GAIN - _MOST_GAINED)), key=first)
    if plan.how_split == "auto":
        found = [
            advice_of(one.change, project(replace(one.projection.plan, split=plan.split)))
            for one in found[:limit]
        ]
    return sorted((one for one in found if is_better(one, _LEAST_GAIN)), key=first)[:limit]


def _without_search(plan: Plan) -> Plan:
    return replace(plan, split="balanced") if plan.how_split == "auto" else plan
