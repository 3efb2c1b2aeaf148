"""Uncertainty of a projection on a cluster whose constants were fitted to its own runs."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ppsim.machine.job_similarity import MEASURED_SPREAD, SHARES, correction_of
from ppsim.projection.plan import Plan

if TYPE_CHECKING:
    from ppsim.machine.cluster import Constant

SecondsOf = Callable[[Plan], float]
"""Function that returns the iteration time of a plan."""


def fitted_spread(plan: Plan, seconds: float, seconds_of: SecondsOf, class_spread: float) -> float | None:
    """Return the standard deviation of the logarithm of the iteration time, or None if no run was fitted.

    It combines the variation between runs of the same job, the differences from the fitted runs, and the
    uncertainty of the constants.
    """
    job = plan.job
    if job is None or job.execution.compute_share is not None or not job.cluster.constants.runs:
        return None
    constants, said = job.cluster.constants, correction_of(job.cluster.constants.runs, job.job_features)
    unsure = {name: one for name, one in constants.named.items() if one.sigma and one.value}
    machine = SHARES.machine * class_spread
    if f"compute_share.{job.execution.dtype}" in unsure or any(
        name.startswith("operator_time.") for name in unsure
    ):
        effects = np.array([_effect(plan, seconds, seconds_of, name, one) for name, one in unsure.items()])
        correlation = np.eye(len(unsure))
        places = {name: index for index, name in enumerate(unsure)}
        for pair, number in constants.correlation.items():
            here, there = (places.get(name) for name in pair.split())
            if here is not None and there is not None:
                correlation[here, there] = correlation[there, here] = number
        machine = math.sqrt(max(0.0, float(effects @ correlation @ effects)))
    return math.hypot(MEASURED_SPREAD, said.unknown * class_spread, (1 - said.weight) * machine)


def _effect(plan: Plan, seconds: float, seconds_of: SecondsOf, name: str, one: "Constant") -> float:
    assert plan.job is not None
    assert one.sigma is not None
    cluster = plan.job.cluster
    less = replace(one, value=one.value * math.exp(-one.sigma / one.value))
    moved = cluster.with_constants(cluster.constants.having({name: less}))
    return math.log(seconds_of(replace(plan, job=replace(plan.job, cluster=moved))) / seconds)
