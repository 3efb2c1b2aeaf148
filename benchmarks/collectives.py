"""Compare bandwidths of the link model with measurements of NCCL and DeepEP.

python benchmarks/collectives.py

Measured: the nccl and wideep_deepep tables of aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0; pip download
aiconfigurator-core==0.12.0, systems/data). A link class has few constants, fitted by least squares to the groups
inside a node: efficiency, copy rate, all-to-all rate, gain of an in-switch reduction for an all-reduce of eight
ranks, and two constants of DeepEP's kernels. Transfers between nodes were not fitted. HybridEP: kernels only, from
DeepEP's branch hybrid-ep, docs/README_Hybrid-EP.md, with 16 and 32 SMs. Megatron-Bridge sets 16 or 32.
"""

import math
from dataclasses import dataclass

from ppsim.base.units import rate, signed_percent
from ppsim.base.units import seconds as in_words
from ppsim.machine.cluster_files import load_cluster
from ppsim.machine.collectives import Operation, Routing, bus_bytes_per_s, dispatch_s, distinct_domains, seconds
from ppsim.parallel.groups import RankGroup, group
from ppsim.parallel.layout import Layout

PUBLISHED: dict[str, dict[Operation, tuple[float, float, float]]] = {  # GB/s at 512 MiB among 2, 4 and 8 ranks
    "dgx-a100": {
        "all-reduce": (193, 217, 222),
        "all-gather": (150, 192, 205),
        "reduce-scatter": (167, 203, 213),
        "all-to-all": (164, 195, 203),
    },
    "dgx-h100": {
        "all-reduce": (318, 350, 445),
        "all-gather": (258, 318, 335),
        "reduce-scatter": (249, 310, 336),
        "all-to-all": (280, 288, 315),
    },
    "dgx-b200": {
        "all-reduce": (534, 634, 704),
        "all-gather": (438, 567, 617),
        "reduce-scatter": (412, 552, 613),
        "all-to-all": (331, 488, 563),
    },
}
RANKS = (2, 4, 8)


@dataclass(frozen=True)
class Combine:
    """A measured combine of DeepEP's normal kernels: bfloat16, top 8.

    Sizes of DeepSeek-V3, also between nodes, and of other models.
    """

    cluster: str
    nodes: int
    hidden_size: int
    num_experts: int
    tokens: int
    seconds: float
    num_sms: int = 24

    @property
    def estimated_s(self) -> float:
        routing = Routing(
            tokens=self.tokens,
            token_bytes=2 * self.hidden_size,
            num_experts=self.num_experts,
            experts_per_token=8,
        )
        extents = (8, self.nodes)
        return dispatch_s(
            "deepep", routing, RankGroup("ep", math.prod(extents), extents), load_cluster(self.cluster),
            num_sms=self.num_sms,
        )  # fmt: skip


@dataclass(frozen=True)
class Hybrid:
    """HybridEP on `num_ranks` with eight experts each: 4096 tokens of 7168 in bfloat16, top 8.

    `dispatched` and `combined` are GB/s of all data that a rank receives and returns, its own tokens included.
    """

    cluster: str
    num_ranks: int
    num_sms: int
    dispatched: float
    combined: float

    @property
    def measured_s(self) -> tuple[float, float]:
        """Seconds of a dispatch and of a combine."""
        copies = distinct_domains(self.num_ranks, 8 * self.num_ranks, 8)
        to_dispatch, to_combine = (
            copies * 4096 * 2 * 7168 / (1e9 * one) for one in (self.dispatched, self.combined)
        )
        return to_dispatch, to_combine

    @property
    def estimated_s(self) -> float:
        routing = Routing(tokens=4096, token_bytes=2 * 7168, num_experts=8 * self.num_ranks, experts_per_token=8)
        return dispatch_s(
            "hybridep", routing, RankGroup("ep", self.num_ranks, (self.num_ranks, 1)), load_cluster(self.cluster),
            num_sms=self.num_sms,
        )  # fmt: skip


HYBRIDS = [
    Hybrid("dgx-b200", 8, 16, 734.95, 673.84),
    Hybrid("gb200-nvl72", 8, 16, 750.15, 684.27),
    Hybrid("gb200-nvl72", 8, 32, 764.03, 737.13),
    Hybrid("gb200-nvl72", 16, 16, 661.93, 600.75),
    Hybrid("gb200-nvl72", 16, 32, 706.95, 666.26),
    Hybrid("gb200-nvl72", 24, 16, 637.80, 565.53),
    Hybrid("gb200-nvl72", 24, 32, 665.97, 639.80),
    Hybrid("gb200-nvl72", 32, 16, 629.79, 547.25),
    Hybrid("gb200-nvl72", 32, 32, 642.23, 605.15),
    Hybrid("gb200-nvl72", 36, 16, 612.85, 543.27),
    Hybrid("gb200-nvl72", 36, 32, 632.31, 596.99),
]

COMBINES = [
    Combine("dgx-h100", 1, 7168, 256, 4096, 0.961e-3),
    Combine("dgx-h100", 1, 7168, 256, 16384, 3.565e-3, 20),
    Combine("dgx-h100", 1, 4096, 128, 4096, 0.577e-3),
    Combine("dgx-h100", 1, 4096, 128, 16384, 2.105e-3),
    Combine("dgx-h100", 1, 2048, 128, 4096, 0.316e-3),
    Combine("dgx-h100", 1, 2048, 128, 16384, 1.127e-3),
    Combine("dgx-h100", 2, 7168, 256, 4096, 1.827e-3),
    Combine("dgx-h100", 2, 7168, 256, 16384, 6.611e-3),
    Combine("dgx-h100", 4, 7168, 256, 4096, 3.626e-3),
    Combine("dgx-h100", 4, 7168, 256, 16384, 13.724e-3),
    Combine("dgx-b200", 1, 7168, 256, 4096, 0.756e-3),
    Combine("dgx-b200", 1, 7168, 256, 16384, 2.634e-3),
    Combine("dgx-b200", 1, 4096, 128, 4096, 0.505e-3),
    Combine("dgx-b200", 1, 4096, 128, 16384, 1.758e-3),
    Combine("dgx-b200", 1, 2048, 128, 4096, 0.357e-3),
    Combine("dgx-b200", 1, 2048, 128, 16384, 1.279e-3),
    Combine("dgx-h100", 1, 7168, 256, 16384, 5.239e-3, 12),
    Combine("dgx-h100", 1, 7168, 256, 16384, 3.980e-3, 16),
    Combine("dgx-h100", 1, 4096, 128, 16384, 2.393e-3, 16),
    Combine("dgx-h100", 1, 4096, 128, 16384, 2.149e-3, 20),
    Combine("dgx-b200", 1, 7168, 256, 4096, 1.049e-3, 16),
    Combine("dgx-b200", 1, 7168, 256, 4096, 0.882e-3, 20),
    Combine("dgx-b200", 1, 7168, 256, 16384, 3.777e-3, 16),
    Combine("dgx-b200", 1, 7168, 256, 16384, 3.097e-3, 20),
    Combine("dgx-b200", 1, 4096, 128, 4096, 0.682e-3, 16),
    Combine("dgx-b200", 1, 4096, 128, 4096, 0.576e-3, 20),
    Combine("dgx-b200", 1, 4096, 128, 16384, 2.501e-3, 16),
    Combine("dgx-b200", 1, 4096, 128, 16384, 2.065e-3, 20),
]


def ours(name: str, operation: Operation, ranks: int) -> float:
    """Return the bus bandwidth of `ranks` ranks in a node at 512 MiB, in GB/s."""
    cluster = load_cluster(name)
    among = group(Layout(tp=ranks), "tp", cluster.domain_sizes(8))
    return bus_bytes_per_s(operation, 512 * 2**20, among, cluster) / 1e9


def main() -> None:
    columns = "".join(f" measured, {count} | ours | error |" for count in RANKS)
    print(f"| cluster | collective |{columns} 8 B among 8 |")
    print("|---|---|" + "--:|" * (3 * len(RANKS) + 1))
    for name, rows in PUBLISHED.items():
        cluster = load_cluster(name)
        for operation, measured in rows.items():
            found = [ours(name, operation, count) for count in RANKS]
            cells = "".join(
                f" {rate(1e9 * was)} | {rate(1e9 * now)} | {signed_percent(now / was - 1)} |"
                for was, now in zip(measured, found, strict=True)
            )
            least = seconds(operation, 8, group(Layout(tp=8), "tp", cluster.domain_sizes(8)), cluster)
            print(f"| {name} | {operation} |{cells} {in_words(least)} |")
    print("\n| cluster | nodes | hidden | experts | tokens per rank | SMs | combine measured | ours | error |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for one in COMBINES:
        error = signed_percent(one.estimated_s / one.seconds - 1)
        print(
            f"| {one.cluster} | {one.nodes} | {one.hidden_size} | {one.num_experts} | {one.tokens} | {one.num_sms} "
            f"| {in_words(one.seconds)} | {in_words(one.estimated_s)} | {error} |"
        )
    print("\n| cluster | ranks | SMs | HybridEP's dispatch measured | ours | error | combine measured | error |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for one in HYBRIDS:
        there, back = one.measured_s
        errors = [signed_percent(one.estimated_s / took - 1) for took in (there, back)]
        print(
            f"| {one.cluster} | {one.num_ranks} | {one.num_sms} | {in_words(there)} | {in_words(one.estimated_s)} | {errors[0]} "
            f"| {in_words(back)} | {errors[1]} |"
        )


if __name__ == "__main__":
    main()
