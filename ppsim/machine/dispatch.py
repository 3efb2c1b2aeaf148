"""Seconds in which tokens go to their experts and come back, by how a dispatcher sends them.

Of T tokens on each of R ranks, each of h elements and for k of E experts, which are spread over the ranks evenly.
Routing is taken to be uniform: every set of k experts is as likely as any other.
"""

import math
from dataclasses import dataclass

from ppsim.machine import collectives
from ppsim.machine.choices import Dispatcher
from ppsim.machine.cluster import Cluster
from ppsim.parallel.groups import Group


@dataclass(frozen=True, kw_only=True)
class Routing:
    """What a rank sends: `tokens` of `token_bytes` each, for `experts_per_token` of `num_experts`."""

    tokens: float
    token_bytes: float
    num_experts: int
    experts_per_token: int


def distinct_domains(num_domains: int, num_experts: int, experts_per_token: int) -> float:
    """Return in how many of `num_domains`, which hold the experts in equal parts, a token's experts are expected.

    A domain of E/n experts has none of a token's k with the probability C(E − E/n, k) / C(E, k), so that
    n (1 − C(E − E/n, k) / C(E, k)) have some.

    >>> distinct_domains(8, 8, 2), round(distinct_domains(4, 256, 8), 3)
    (2.0, 3.614)
    """
    others = num_experts - num_experts // num_domains
    return num_domains * (1 - math.comb(others, experts_per_token) / math.comb(num_experts, experts_per_token))


def dispatch_s(dispatcher: Dispatcher, routing: Routing, group: Group, cluster: Cluster) -> float:
    """Return the seconds of one way, to the experts or back; that of a group of one is none.

    deepep, hybridep: a token goes once to each domain in which it has an expert, and from there once to each rank
    that has one, both at a time (DeepSeek-AI, DeepEP, its normal kernels, or NVIDIA's in its branch hybrid-ep).
    alltoall: once for each of its experts. allgather: to all ranks, whatever its experts are.
    """
    if group.num_ranks == 1:
        return 0.0
    num_bytes = routing.tokens * routing.token_bytes
    if dispatcher == "allgather":
        return collectives.seconds("all-gather", num_bytes * group.num_ranks, group, cluster)
    if dispatcher == "alltoall":
        return collectives.seconds("all-to-all", num_bytes * routing.experts_per_token, group, cluster)
    return _deduplicated_s(routing, group, cluster, hybrid=dispatcher == "hybridep")


def _deduplicated_s(routing: Routing, group: Group, cluster: Cluster, *, hybrid: bool) -> float:
    """Of the copies that reach the units of a level one in `extent` was there already: its first stop."""
    units, latency, longest, launch_s = group.num_ranks, 0.0, 0.0, 0.0
    for extent, tier in zip(group.extents, cluster.tiers, strict=True):
        if extent > 1:
            link = tier.link.among(extent, tier.num_devices)
            copies = distinct_domains(units, routing.num_experts, routing.experts_per_token) * (extent - 1) / extent
            of_a_copy = link.token_copy_s(routing.token_bytes, hybrid=hybrid)
            longest = max(longest, copies * routing.tokens * of_a_copy)
            latency += (extent - 1) * link.step_s
            launch_s = link.launch_s
        units //= extent
    return launch_s + latency + longest
