"""What a class of devices says of an installation before any of its runs was seen, and how sure that is.

Constants are positive, and their logarithms normally distributed around what the cluster has; where that is
nothing, around what is said here.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ppsim.machine.cluster import PLAIN, Cluster
from ppsim.projection.answering import ESTIMATE_SPREAD, spread_of
from ppsim.projection.fitted_spread import MACHINE_SHARE, shares_of
from ppsim.projection.plan import Plan

MOST = 3.0 / MACHINE_SHARE
"""Deviations beyond which a constant of a machine is not taken, three of its class: what is further off has another
cause."""


@dataclass(frozen=True)
class Prior:
    """A constant by its name in `Constants.named`, its median, the standard deviation of its logarithm, and why."""

    name: str
    median: float
    spread: float
    reason: str

    @property
    def is_of_job(self) -> bool:
        """Whether it is what jobs differ by, of which some are far off."""
        return self.name.startswith(SCALE)

    def value(self, deviations: float) -> float:
        """Return the constant so many deviations off the median, of a machine `MOST` at most; shares up to 1."""
        within = deviations if self.is_of_job else max(-MOST, min(MOST, deviations))
        found = self.median * math.exp(self.spread * within)
        return min(found, 1.0) if self.name.startswith("link_efficiency.") else found


_LINK_SPREAD, _LINK_REASON = 0.15, "NCCL's tables are met within 7 %, networks are assumed; jobs share them"
_OVERLAP_SPREAD, _OVERLAP_REASON = 0.25, "stacks say that a half to seven eighths are hidden"
_OF_PLAIN = {
    "kernel_s": (0.35, "classes have 2 to 20 µs"),
    "launch_s": (1.2, "a kernel's launch takes that; the zero-bubble paper's 0.33 ms are three deviations more"),
    "routing_host_s": (0.5, "2 to 6 ms a layer were seen"),
    "jitter": (0.5, "0.015 and 0.038 came out for two models on one machine"),
}
_REST_SPREAD, _REST_MEDIAN = 1.2, 0.01

SCALE = "job_scale."
"""What the name of a constant of a job's starts with; behind it the job as `Job.alike` names it."""

REST = "rest"
"""What the name of a job's own constant starts with; a number behind a dot says which job's it is."""


def priors_of(cluster: Cluster, plans: Sequence[Plan]) -> list[Prior]:
    """Return the constants of a cluster on which the steps of plans may depend, each around what the cluster has.

    A spread is that of an earlier fit where the cluster has one, else `MACHINE_SHARE` of what the class says, which
    is what runs differ by for any reason. Constants that are 0 in the cluster's class are not a question of how
    large they are, and are left out; `launch_s`, which no class has, is around its `host_s`.
    """
    known = {
        name: one.sigma / one.value for name, one in cluster.constants.named.items() if one.sigma and one.value
    }
    return [
        Prior(name, median, known.get(name, MACHINE_SHARE * spread), "an earlier fit" if name in known else reason)
        for name, median, spread, reason in _candidates(cluster, plans)
        if median > 0
    ]


def scales_of(cluster: Cluster, plans: Sequence[Plan]) -> list[Prior]:
    """Return what jobs like those of plans take beyond the constants of the machine: two a job, by `Job.alike`."""
    found: dict[str, Prior] = {}
    earlier = cluster.constants.job_scale
    for plan in plans:
        assert plan.job is not None
        shares = shares_of(plan.job)
        whose = ("models", "ways to cut layers")
        for name, share, of in zip(plan.job.alike, (shares.of_model, shares.of_cut), whose, strict=True):
            one = earlier.get(name)
            if one and one.sigma:
                found[SCALE + name] = Prior(SCALE + name, one.value, one.sigma / one.value, "an earlier fit")
            else:
                spread = share * spread_of(plan)
                found[SCALE + name] = Prior(SCALE + name, 1.0, spread, f"what {of} of the class differ by")
    return list(found.values())


def rest_of(job: int, plans: Sequence[Plan], shortest_s: float) -> Prior:
    """Return what steps of a job take that nothing else covers: around what its words say, else 1 % of a step."""
    told = max((plan.job.rest_s for plan in plans if plan.job), default=0.0)
    median = told or _REST_MEDIAN * shortest_s
    return Prior(f"{REST}.{job}", median, _REST_SPREAD, "around --rest where it is given, else 1 % of a step")


def _candidates(cluster: Cluster, plans: Sequence[Plan]) -> Iterator[tuple[str, float, float, str]]:
    """Name, median, spread and reason of each."""
    constants, gets = cluster.constants, cluster.device.efficiency
    for dtype in dict.fromkeys(plan.job.execution.dtype for plan in plans if plan.job):
        known = constants.compute_share.get(dtype)
        by_table = gets.in_situ is not None and dtype in gets.in_situ.factors
        spread = gets.in_situ.sigma if gets.in_situ and by_table else ESTIMATE_SPREAD
        reason = "the class's in-situ factor" if by_table else "what estimates from data sheets are off by"
        yield f"compute_share.{dtype}", known.value if known else 1.0, spread, reason
    for tier in cluster.tiers:
        yield f"link_efficiency.{tier.name}", tier.link.efficiency, _LINK_SPREAD, _LINK_REASON
    for kind in ("tp", "ep"):
        known = constants.overlap.get(kind)
        yield f"overlap.{kind}", known.value if known else 1.0, _OVERLAP_SPREAD, _OVERLAP_REASON
    for name in PLAIN:
        own = getattr(constants, name)
        of_class = gets.host_s if name == "launch_s" else getattr(gets, name)
        yield name, own.value if own else of_class, *_OF_PLAIN[name]
