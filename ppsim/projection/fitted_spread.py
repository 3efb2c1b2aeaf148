"""How far off a projection may be on a cluster whose constants were fitted to runs of its own."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ppsim.projection.plan import Plan

if TYPE_CHECKING:
    from ppsim.costs.job import Job
    from ppsim.machine.cluster import Constant

SecondsOf = Callable[[Plan], float]
"""A plan → the seconds of an iteration of it."""


@dataclass(frozen=True)
class Shares:
    """What of the spread of a class belongs to what, each the ratio of two standard deviations.

    `of_model`: what all runs of a model in a dtype have in common; `of_cut`: what those have whose layers are cut
    in one way as well (`Job.alike`).
    """

    of_model: float
    of_cut: float

    def unknown(self, job: "Job", known: Collection[str]) -> float:
        """Return what is left of the class's spread for a job where runs said what its names `known` take."""
        shares = zip(job.alike, (self.of_model, self.of_cut), strict=True)
        return math.hypot(*(share for name, share in shares if name not in known))


DENSE_SHARES, EXPERTS_SHARES = Shares(0.23, 0.70), Shares(0.48, 0.59)
"""Most probable for the rows of `ppsim validate` marked fit (`python benchmarks/fit_shares.py`)."""

MACHINE_SHARE = 0.37
"""What of its class's spread a constant of the machine has among installations; from the same rows."""


def shares_of(job: "Job") -> Shares:
    """Return the shares of dense models, or of those with experts."""
    return EXPERTS_SHARES if any(layer.is_moe for layer in job.model.kinds) else DENSE_SHARES


def fitted_spread(plan: Plan, seconds: float, seconds_of: SecondsOf, class_spread: float) -> float | None:
    """Return the standard deviation of the logarithm of an iteration, None where no run told the job's rates.

    What one run of a job differs by from the next, what the constants' own uncertainties do to this very step, and
    what jobs like this one may be off by of which there was no run, a share of `class_spread`. Each constant is
    moved by its standard deviation, and the effects add as they hang together by the fit's correlation.
    """
    job = plan.job
    if job is None or job.execution.compute_share is not None:
        return None
    constants, dtype = job.cluster.constants, job.execution.dtype
    share = constants.compute_share.get(dtype)
    known = [name for name in job.alike if (one := constants.job_scale.get(name)) and one.sigma is not None]
    if constants.residual is None or not (known or (share and share.sigma is not None)):
        return None
    unsure = {
        name: one
        for name, one in constants.named.items()
        if one.sigma and one.value and (name.partition(".")[2] in job.alike or not name.startswith("job_scale."))
    }
    effects = np.array([_effect(plan, seconds, seconds_of, name, one) for name, one in unsure.items()])
    correlation = np.eye(len(unsure))
    places = {name: index for index, name in enumerate(unsure)}
    for pair, number in constants.correlation.items():
        here, there = (places.get(name) for name in pair.split())
        if here is not None and there is not None:
            correlation[here, there] = correlation[there, here] = number
    unknown = shares_of(job).unknown(job, known) * class_spread
    return math.sqrt(constants.residual**2 + unknown**2 + max(0.0, float(effects @ correlation @ effects)))


def _effect(plan: Plan, seconds: float, seconds_of: SecondsOf, name: str, one: "Constant") -> float:
    """What the logarithm of the iteration gains where a constant is a standard deviation less."""
    assert plan.job is not None
    assert one.sigma is not None
    cluster = plan.job.cluster
    less = replace(one, value=one.value * math.exp(-one.sigma / one.value))
    moved = cluster.with_constants(cluster.constants.having({name: less}))
    return math.log(seconds_of(replace(plan, job=replace(plan.job, cluster=moved))) / seconds)
