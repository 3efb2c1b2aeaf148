"""How far off a projection may be on a cluster whose constants were fitted to runs of its own."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ppsim.machine.cluster import Constant
from ppsim.projection.plan import Plan
from ppsim.projection.projection import Projection
from ppsim.schedule.table import Schedule

IterationOf = Callable[[Plan, Schedule], tuple[float, float]]
"""A plan and a table → seconds of an iteration, and bytes."""


def fitted_spread(projection: Projection, iteration_of: IterationOf) -> float | None:
    """Return the standard deviation of the logarithm of an iteration, None where no run told the job's rates.

    What rows were off by after the fit, and beside it what the constants' own uncertainties do to this very step:
    each is moved by its standard deviation, and the effects add as they hang together by the fit's correlation.
    """
    job = projection.plan.job
    if job is None or job.execution.compute_share is not None:
        return None
    constants, dtype = job.cluster.constants, job.execution.dtype
    share = constants.compute_share.get(dtype)
    if constants.residual is None or share is None or share.sigma is None:
        return None
    unsure = {name: one for name, one in constants.named.items() if one.sigma and one.value}
    effects = np.array([_effect(projection, iteration_of, name, one) for name, one in unsure.items()])
    correlation = np.eye(len(unsure))
    places = {name: index for index, name in enumerate(unsure)}
    for pair, number in constants.correlation.items():
        one, other = (places.get(name) for name in pair.split())
        if one is not None and other is not None:
            correlation[one, other] = correlation[other, one] = number
    return math.sqrt(constants.residual**2 + max(0.0, float(effects @ correlation @ effects)))


def _effect(projection: Projection, iteration_of: IterationOf, name: str, one: Constant) -> float:
    """What the logarithm of the iteration gains where a constant is a standard deviation less."""
    plan = projection.plan
    assert plan.job is not None
    assert one.sigma is not None
    cluster = plan.job.cluster
    less = replace(one, value=one.value * math.exp(-one.sigma / one.value))
    moved = cluster.with_constants(cluster.constants.having({name: less}))
    seconds, _ = iteration_of(replace(plan, job=replace(plan.job, cluster=moved)), projection.timeline.schedule)
    return math.log(seconds / projection.iteration_s)
