"""Time of collectives: launch, steps, and bytes over the links that a group crosses.

Sizes are bytes as in NCCL's tests: the buffer of an all-reduce, the result of an all-gather, the input of a
reduce-scatter, and the bytes that each rank sends in an all-to-all (including its own part). The bus bandwidth over
R ranks is bytes / seconds times 2 (R - 1) / R for an all-reduce and (R - 1) / R for the others (NCCL tests,
doc/PERFORMANCE.md).
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from ppsim.base.user_defaults import DISPATCHER_SMS, Dispatcher
from ppsim.machine.cluster import Cluster, Link
from ppsim.parallel.groups import RankGroup

Operation = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all"]
Algorithm = Literal["ring", "tree", "hierarchical", "direct"]


@dataclass(frozen=True)
class Collective:
    """Seconds of a collective, the fastest algorithm, and the link that limits the bandwidth."""

    seconds: float
    algorithm: Algorithm
    link: str


def collective(operation: Operation, num_bytes: float, group: RankGroup, cluster: Cluster) -> Collective:
    """Return the fastest algorithm for a group on a cluster.

    - ring: pipelined, R - 1 steps, twice for an all-reduce. The slowest link limits the bandwidth; between domains,
      the adapters of all of the group's ranks in a domain work in parallel.
    - tree (all-reduce): each byte goes up and down once, 2 log2 R steps.
    - hierarchical: a reduce-scatter inside the domains, the collective of the parts between domains, an all-gather
      inside; each with the formula of Thakur et al. 2005.
    - direct (all-to-all): pairwise messages, inside and between domains at the same time.
    """
    levels = [
        (extent, tier.link.among(extent, tier.num_devices))
        for extent, tier in zip(group.extents, cluster.tiers, strict=True)
        if extent > 1
    ]
    if not levels:
        return Collective(0.0, "direct", cluster.tiers[0].link.name)
    fastest = min(_candidates(operation, num_bytes, levels), key=lambda candidate: candidate.seconds)
    whole_s = fastest.seconds + levels[0][1].copied_s(num_bytes / group.num_ranks)
    return replace(fastest, seconds=cluster.device.efficiency.operator_time.get(operation, 1.0) * whole_s)


def seconds(operation: Operation, num_bytes: float, group: RankGroup, cluster: Cluster) -> float:
    return collective(operation, num_bytes, group, cluster).seconds


def bus_bytes_per_s(operation: Operation, num_bytes: float, group: RankGroup, cluster: Cluster) -> float:
    """The bus bandwidth is independent of the number of ranks if a link is fully used."""
    ranks = group.num_ranks
    factor = (2 if operation == "all-reduce" else 1) * (ranks - 1) / ranks
    return factor * num_bytes / seconds(operation, num_bytes, group, cluster)


def point_to_point_s(num_bytes: float, link: Link) -> float:
    return link.launch_s + link.step_s + num_bytes / link.achieved_bytes_per_s


_Levels = list[tuple[int, Link]]

_LARGEST_RING = 4
"""Maximum number of ranks for which NCCL uses rings instead of in-switch reduction in a large all-reduce."""


def _candidates(operation: Operation, num_bytes: float, levels: _Levels) -> list[Collective]:
    if operation == "all-to-all":
        return [_all_to_all(num_bytes, levels)]
    candidates = [_ring(operation, num_bytes, levels)]
    if operation == "all-reduce":
        candidates.append(_tree(num_bytes, levels))
    if len(levels) > 1:
        candidates.append(_hierarchical(operation, num_bytes, levels))
    return candidates


def _slowest(levels: _Levels) -> tuple[float, Link]:
    side_by_side, rates = 1, []
    for extent, link in levels:
        rates.append((side_by_side * link.achieved_bytes_per_s, link))
        side_by_side *= extent
    return min(rates, key=lambda rate: rate[0])


def _gain(levels: _Levels) -> float:
    """In-switch reduction needs one switch that connects the whole group of more than four ranks.

    Public NCCL measurements show it among eight H100 or B200, but not among two or four.
    """
    return levels[0][1].reduction_gain if len(levels) == 1 and levels[0][0] > _LARGEST_RING else 1.0


def _num_ranks(levels: _Levels) -> int:
    return math.prod(extent for extent, _ in levels)


def _steps(levels: _Levels, counts: list[int]) -> float:
    return sum(count * link.step_s for count, (_, link) in zip(counts, levels, strict=True))


def _ring(operation: Operation, num_bytes: float, levels: _Levels) -> Collective:
    rate, slowest = _slowest(levels)
    ranks, rounds = _num_ranks(levels), 2 if operation == "all-reduce" else 1
    gain = _gain(levels) if operation == "all-reduce" else 1.0
    # A ring leaves each domain once, so (number of domains − 1) of its R − 1 steps cross a tier.
    crossing = [_num_ranks(levels[index:]) - 1 for index in range(len(levels))] + [0]
    counts = [crossing[index] - crossing[index + 1] for index in range(len(levels))]
    latency = levels[-1][1].launch_s + rounds * _steps(levels, counts)
    return Collective(latency + rounds * (ranks - 1) / ranks * num_bytes / (rate * gain), "ring", slowest.name)


def _tree(num_bytes: float, levels: _Levels) -> Collective:
    rate, slowest = _slowest(levels)
    counts = [2 * math.ceil(math.log2(extent)) for extent, _ in levels]
    latency = levels[-1][1].launch_s + _steps(levels, counts)
    return Collective(latency + 2 * num_bytes / rate, "tree", slowest.name)


def _hierarchical(operation: Operation, num_bytes: float, levels: _Levels) -> Collective:
    (inside, link), outer = levels[0], levels[1:]
    phases = 2 if operation == "all-reduce" else 1
    within = phases * ((inside - 1) * link.step_s + (inside - 1) / inside * num_bytes / link.achieved_bytes_per_s)
    between = min(_candidates(operation, num_bytes / inside, outer), key=lambda candidate: candidate.seconds)
    return Collective(link.launch_s + within + between.seconds, "hierarchical", between.link)


def _all_to_all(num_bytes: float, levels: _Levels) -> Collective:
    ranks, latency, reached = _num_ranks(levels), 0.0, 1
    slowest, longest = levels[0][1], 0.0
    for extent, link in levels:
        peers = reached * (extent - 1)
        reached *= extent
        latency += peers * link.step_s
        rate = link.achieved_bytes_per_s * link.exchange_share
        if (transfer := peers / ranks * num_bytes / rate) > longest:
            slowest, longest = link, transfer
    return Collective(levels[-1][1].launch_s + latency + longest, "direct", slowest.name)


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Tokens sent by a rank, each to `experts_per_token` of `num_experts`.

    The experts are spread evenly over the ranks. All sets of `experts_per_token` experts are assumed to be equally
    likely.
    """

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
        return seconds("all-gather", num_bytes * group.num_ranks, group, cluster)
    if dispatcher == "alltoall":
        return seconds("all-to-all", num_bytes * routing.experts_per_token, group, cluster)
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
