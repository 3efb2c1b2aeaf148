"""Number of GPUs that fits a plan, if its own number was assumed."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from ppsim.base.errors import PpsimError
from ppsim.projection.plan import AUTO, Plan

_MOST_DOUBLINGS = 7


def enough_gpus(plan: Plan, peaks_of: Callable[[Plan], list[float]]) -> int | None:
    """Return the first doubling of the plan's GPUs that fits; None if no doubling fits, or none saves memory."""
    if plan.job is None or plan.on_gpus is None or plan.memory_limit is None:
        return None
    schedule = None if plan.schedule == AUTO else plan.schedule  # a search takes seconds, and keeps to the memory
    peaks: list[float] = []
    for doublings in range(1, _MOST_DOUBLINGS + 1):
        number: int = plan.job.layout.num_devices * 2**doublings
        with suppress(PpsimError):  # the batch or the cluster has no such number
            other = plan.on_gpus(number)
            rounds = other.gradient_accumulation_steps
            on_more = replace(plan, job=other.job, gradient_accumulation_steps=rounds, schedule=schedule)
            peak = max(peaks_of(on_more))
            if plan.memory_limit.holds(peak):
                return number
            if peaks and peak >= peaks[-1]:
                return None
            peaks.append(peak)
    return None
