"""Prior distributions of a cluster's constants, from the GPU type.

Logarithms of constants are normally distributed around the cluster's values or, for values that the cluster lacks,
around the values here.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ppsim.machine.cluster import PLAIN, Cluster
from ppsim.machine.job_similarity import SHARES
from ppsim.projection.plan import Plan
from ppsim.projection.summary import ESTIMATE_SPREAD

MOST = 3.0 / SHARES.machine
"""Maximum prior deviations of a constant: 3 spreads of its GPU type. Larger deviations have other causes."""


@dataclass(frozen=True)
class Prior:
    """`name` is as in `Constants.named`, `spread` is the standard deviation of the logarithm."""

    name: str
    median: float
    spread: float
    reason: str

    def value(self, deviations: float) -> float:
        """Deviations are limited to `MOST`, and link efficiencies to 1."""
        found = self.median * math.exp(self.spread * max(-MOST, min(MOST, deviations)))
        return min(found, 1.0) if self.name.startswith("link_efficiency.") else found


_LINK_SPREAD, _LINK_REASON = (
    0.15,
    "in a node within 7 % of published NCCL bandwidths; assumed between nodes, where jobs share links",
)
_OVERLAP_SPREAD, _OVERLAP_REASON = 0.25, "frameworks hide a half to seven eighths of this communication"
_OF_PLAIN = {
    "kernel_s": (0.35, "2 to 20 µs, depending on the GPU type"),
    "launch_s": (1.2, "time of a kernel launch; up to some tenths of a millisecond with loops in Python"),
    "routing_host_s": (0.5, "measured values: 2 to 6 ms per layer"),
    "jitter": (0.5, "fitted values of two models on one cluster: 0.015 and 0.038"),
    "overlap_slowdown": (0.3, "known within a seventh for the cluster of the zero-bubble paper"),
}
_REST_SPREAD, _REST_MEDIAN = 1.2, 0.01

REST = "rest"
"""Name of the extra step time of a job, followed by a dot and the job's number."""


def priors_of(cluster: Cluster, plans: Sequence[Plan]) -> list[Prior]:
    """Return the priors of the cluster's constants; the spread is from an earlier fit if the cluster has one.

    Otherwise the spread is `SHARES.machine` times the spread of the GPU type, because the latter also contains
    differences between jobs. GPU types have no `launch_s`; the median of `launch_s` is their `host_s`.
    """
    known = {
        name: one.sigma / one.value for name, one in cluster.constants.named.items() if one.sigma and one.value
    }
    return [
        Prior(name, median, known.get(name, SHARES.machine * spread), "an earlier fit" if name in known else reason)
        for name, median, spread, reason in _candidates(cluster, plans)
        if median > 0
    ]


def rest_of(job: int, plans: Sequence[Plan], shortest_s: float) -> Prior:
    """The median is the option of the jobs (`--extra-step-time`), else 1 % of the shortest step."""
    told = max((plan.job.rest_s for plan in plans if plan.job), default=0.0)
    median = told or _REST_MEDIAN * shortest_s
    return Prior(f"{REST}.{job}", median, _REST_SPREAD, "--extra-step-time if given, else 1 % of a step")


def _candidates(cluster: Cluster, plans: Sequence[Plan]) -> Iterator[tuple[str, float, float, str]]:
    constants, gets = cluster.constants, cluster.device.efficiency
    for dtype in dict.fromkeys(plan.job.execution.dtype for plan in plans if plan.job):
        known = constants.compute_share.get(dtype)
        by_table = gets.in_situ is not None and dtype in gets.in_situ.factors
        spread = gets.in_situ.sigma if gets.in_situ and by_table else ESTIMATE_SPREAD
        reason = "factor of the GPU type for training steps" if by_table else "error of estimates from data sheets"
        yield f"compute_share.{dtype}", known.value if known else 1.0, spread, reason
    for tier in cluster.tiers:
        yield f"link_efficiency.{tier.name}", tier.link.efficiency, _LINK_SPREAD, _LINK_REASON
    for kind in ("tp", "ep"):
        known = constants.overlap.get(kind)
        yield f"overlap.{kind}", known.value if known else 1.0, _OVERLAP_SPREAD, _OVERLAP_REASON
    for name in PLAIN:
        own = getattr(constants, name)
        of_class = gets.host_s if name == "launch_s" else getattr(gets, name, 0.0)
        yield name, own.value if own else of_class, *_OF_PLAIN[name]
