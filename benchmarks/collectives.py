"""Bus bandwidths that the link model gives beside those published for NCCL, eight devices of a node.

python benchmarks/collectives.py

A link class has two constants for them, its efficiency and what a switch that adds up gives an all-reduce, found by
least squares from the three rows of its device at 512 MiB; the sizes below show how the model falls off.
"""

from ppsim.base.units import rate, signed_percent, size
from ppsim.base.units import seconds as in_words
from ppsim.layout.groups import group
from ppsim.layout.layout import Layout
from ppsim.machine.collectives import Operation, bus_bytes_per_s, seconds
from ppsim.machine.files import load_cluster

PUBLISHED: dict[str, dict[Operation, float]] = {  # GB/s at 512 MiB
    "dgx-a100": {"all-reduce": 222, "all-gather": 205, "all-to-all": 203},
    "dgx-h100": {"all-reduce": 445, "all-gather": 335, "all-to-all": 315},
    "dgx-b200": {"all-reduce": 704, "all-gather": 617, "all-to-all": 563},
}
SIZES = [2**10, 2**20, 16 * 2**20, 128 * 2**20]


def main() -> None:
    print("| cluster | collective | published, 512 MiB | ours | error | 8 B takes |", end="")
    print("".join(f" {size(num_bytes)} |" for num_bytes in SIZES))
    print("|---|---|--:|--:|--:|--:|" + "--:|" * len(SIZES))
    for name, rows in PUBLISHED.items():
        cluster = load_cluster(name)
        ranks = group(Layout(tp=8), "tp", cluster.domain_sizes(8))
        for operation, published in rows.items():
            ours = bus_bytes_per_s(operation, 512 * 2**20, ranks, cluster)
            print(
                f"| {name} | {operation} | {published} GB/s | {rate(ours)} | {signed_percent(ours / published / 1e9 - 1)} "
                f"| {in_words(seconds(operation, 8, ranks, cluster))} |",
                end="",
            )
            print("".join(f" {rate(bus_bytes_per_s(operation, n, ranks, cluster))} |" for n in SIZES))


if __name__ == "__main__":
    main()
