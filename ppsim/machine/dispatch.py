"""Time to send tokens to their experts and back, by dispatcher.

Each token goes to k of E experts. The experts are spread evenly over the ranks. All sets of k experts are assumed
to be equally likely.
"""

import math
from dataclasses import dataclass

from ppsim.machine import collectives
from ppsim.machine.cluster import Cluster
from ppsim.machine.defaults import DISPATCHER_SMS, Dispatcher
from ppsim.parallel.groups import RankGroup


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Tokens sent by a rank, each to `experts_per_token` of `num_experts`."""

    tokens: float
    token_bytes: float
    num_experts: int
    experts_per_token: int


def distinct_domains(num_domains: int, num_experts: int, experts_per_token: int) -> float:
    """Return the expected number of domains that contain experts of a token.

    The n = `num_domains` domains share the E experts equally. A domain of E/n experts has none of a token's k
    experts with probability C(E − E/n, k) / C(E, k). So the expected number is n (1 − C(E − E/n, k) / C(E, k)).

    >>> distinct_domains(8, 8, 2), round(distinct_domains(4, 256, 8), 3)
    (2.0, 3.614)
    """
    others = num_experts - num_experts // num_domains
    return num_domains * (1 - math.comb(others, experts_per_token) / math.comb(num_experts, experts_per_token))


def dispatch_s(
    dispatcher: Dispatcher, routing: Routing, group: RankGroup, cluster: Cluster, *, num_sms: int | None = None
) -> float:
    """Return the seconds of one direction, to the experts or back. `num_sms` None: the dispatcher's default.

    - deepep, hybridep: each token is sent once to every domain with any of its experts, and there once to every
      rank with any of its experts. The two levels overlap (normal kernels of DeepSeek-AI's DeepEP, or NVIDIA's in
      its branch hybrid-ep).
    - alltoall: once per expert of the token.
    - allgather: to all ranks.
    """
    if group.num_ranks == 1:
        return 0.0
    num_bytes = routing.tokens * routing.token_bytes
    if dispatcher == "allgather":
        return collectives.seconds("all-gather", num_bytes * group.num_ranks, group, cluster)
    if dispatcher == "alltoall":
        return collectives.seconds("all-to-all", num_bytes * routing.experts_per_token, group, cluster)
    corrected = cluster.device.efficiency.operator_time.get("all-to-all", 1.0)
    sms = num_sms or DISPATCHER_SMS[dispatcher]
    return corrected * _deduplicated_s(routing, group, cluster, hybrid=dispatcher == "hybridep", num_sms=sms)


def _deduplicated_s(routing: Routing, group: RankGroup, cluster: Cluster, *, hybrid: bool, num_sms: int) -> float:
    """At each level, 1/extent of the copies need no transfer: the outer level's transfer delivered them."""
    units, latency, longest, launch_s = group.num_ranks, 0.0, 0.0, 0.0
    for extent, tier in zip(group.extents, cluster.tiers, strict=True):
        if extent > 1:
            link = tier.link.among(extent, tier.num_devices)
            copies = distinct_domains(units, routing.num_experts, routing.experts_per_token) * (extent - 1) / extent
            of_a_copy = link.token_copy_s(routing.token_bytes, hybrid=hybrid, num_sms=num_sms)
            longest = max(longest, copies * routing.tokens * of_a_copy)
            latency += (extent - 1) * link.step_s
            launch_s = link.launch_s
        units //= extent
    return launch_s + latency + longest
