"""Error message for a model that fits in no configuration."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ppsim.base.errors import ConfigError
from ppsim.base.units import size
from ppsim.simulation.bounds.problem import CAP_ROUNDING
from ppsim.tuning.evaluate import exact_peak_bytes, task_of
from ppsim.tuning.lower_bounds import BoundsCalculator, ConfigurationBounds
from ppsim.tuning.space import SearchProblem, SearchSpace, configurations, space_for

_MOST_DOUBLINGS = 7


def infeasible_message(
    question: SearchProblem, space: SearchSpace, outlooks: BoundsCalculator, bounds: Sequence[ConfigurationBounds]
) -> str:
    """Name the smallest configuration, the missing bytes, and changes that would fit."""
    nearest, peak = _smallest(outlooks, bounds)
    limit = question.memory_bound_bytes
    one = nearest.candidate
    where = (
        f"tp {one.tp}, cp {one.cp}, pp {one.pp}, vpp {one.vpp}, micro-batch {one.micro_batch}, recompute "
        f"{one.recompute}, {one.schedule}"
    )
    return (
        f"{question.job.model_name} does not fit on {question.num_gpus} GPUs: the smallest configuration ({where}) "
        f"needs {size(peak)} per GPU, {size(peak - limit)} more than the limit of {size(limit)}; "
        f"{_what_would_fit(question, space)}"
    )


def _smallest(
    outlooks: BoundsCalculator, bounds: Iterable[ConfigurationBounds], enough: float = 0.0
) -> tuple[ConfigurationBounds, float]:
    """Return the smallest configuration and its peak in bytes; stop at a peak of at most `enough`."""
    in_order = sorted(bounds, key=lambda one: (one.least_bytes, one.candidate))
    best, least = in_order[0], float("inf")
    for one in in_order:
        if one.least_bytes >= least or least <= enough:
            break
        peak = exact_peak_bytes(task_of(outlooks, one))
        if peak < least:
            best, least = one, peak
    return best, least


def _what_would_fit(question: SearchProblem, space: SearchSpace) -> str:
    if "full" not in space.recompute and _fits(question, replace(space, recompute=("full",))):
        return "--recompute full would fit"
    for doublings in range(1, _MOST_DOUBLINGS + 1):
        more = replace(question, num_gpus=question.num_gpus * 2**doublings)
        wide = space_for(more)
        if _fits(more, replace(space, pp=wide.pp, dp=None)):
            return f"{more.num_gpus} GPUs would fit"
    return f"neither recomputation nor up to {question.num_gpus * 2**_MOST_DOUBLINGS} GPUs would fit"


def _fits(question: SearchProblem, space: SearchSpace) -> bool:
    limit = question.memory_bound_bytes * CAP_ROUNDING
    outlooks = BoundsCalculator(question)
    try:
        possible = configurations(question, space)
    except ConfigError:
        return False
    looks = [one for one in map(outlooks.of, possible) if one.least_bytes <= limit]
    return bool(looks) and _smallest(outlooks, looks, limit)[1] <= limit
