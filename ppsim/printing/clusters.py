"""What a terminal shows of clusters."""

from collections.abc import Sequence

from ppsim.base.units import count, percent, rate, seconds, size
from ppsim.machine.cluster import Cluster, Link, Tier
from ppsim.printing.page import Columns, Page, facts


def print_clusters(clusters: Sequence[Cluster]) -> None:
    """Print one line a cluster: its device's rates, and the links from the inside outwards."""
    out = Page()
    out.add(
        Columns(
            ["cluster", "device", "bfloat16", "memory", "bandwidth", "links, GB/s"],
            [
                [
                    cluster.name,
                    cluster.device.name.split(" (")[0],
                    _peak(cluster, "bfloat16"),
                    size(cluster.device.memory_bytes),
                    rate(cluster.device.memory_bytes_per_s),
                    ", ".join(f"{_devices_of(tier)}: {tier.link.bytes_per_s / 1e9:g}" for tier in cluster.tiers),
                ]
                for cluster in clusters
            ],
            left=2,
            spare=["bandwidth", "memory"],
        )
    )
    out.add()
    out.add("bfloat16: dense peak. links: devices of a domain, and what one device sends. NAME gives sources.")


def _devices_of(tier: Tier) -> str:
    usable = f"{tier.usable_devices} of " if tier.usable_devices else ""
    return f"{usable}{tier.num_devices or 'all'}"


def print_cluster(cluster: Cluster) -> None:
    """Print a cluster in full: device, constants of its class, tiers; each with its source."""
    device, constants = cluster.device, cluster.device.efficiency
    attention = constants.attention_forward, constants.attention_backward
    out = Page()
    out.add(f"[bold]{cluster.name}[/bold]   {cluster.title}")
    out.add(
        facts(
            [
                ("source", cluster.source),
                ("devices", "as many as wanted" if cluster.num_devices is None else str(cluster.num_devices)),
            ]
        ),
        markup=False,
    )
    out.add()
    out.add(f"[bold]device[/bold]   {device.name}")
    out.add(
        facts(
            [
                ("dense peak", ", ".join(f"{name} {_peak(cluster, name)}" for name in device.peak_flops_per_s)),
                ("memory", f"{size(device.memory_bytes)} at {rate(device.memory_bytes_per_s)}"),
                ("cores", str(device.num_cores)),
                ("source", device.source),
            ]
        ),
        markup=False,
    )
    out.add()
    out.add(f"[bold]what runs get of it[/bold]   class {device.efficiency_class}")
    out.add(
        facts(
            [
                ("products", ", ".join(f"{name} {percent(share)}" for name, share in constants.matmul.items())),
                ("attention", f"{percent(attention[0])} forward, {percent(attention[1])} backward"),
                ("memory", f"{percent(constants.memory)}, optimizer {percent(constants.optimizer)}"),
                (
                    "kernels",
                    f"{seconds(constants.kernel_s)} between, {seconds(constants.host_s)} to launch",
                ),
                ("source", constants.source),
            ]
        ),
        markup=False,
    )
    for tier in cluster.tiers:
        out.add()
        out.add(f"[bold]{tier.name}[/bold]   {_devices_of(tier)} devices by {tier.link.name}")
        out.add(facts(_link(tier.link)), markup=False)


def _link(link: Link) -> list[tuple[str, str]]:
    gain = f", {link.reduction_gain:g} times that in an all-reduce" if link.reduction_gain > 1 else ""
    return [
        ("line rate", f"{rate(link.bytes_per_s)} a device, one direction"),
        ("of it", f"{percent(link.efficiency)}{gain}"),
        ("latency", f"{seconds(link.launch_s)} a launch, {seconds(link.step_s)} a step"),
        ("source", link.source),
    ]


def _peak(cluster: Cluster, dtype: str) -> str:
    peak = cluster.device.peak_flops_per_s.get(dtype)
    return "–" if peak is None else f"{count(peak)}FLOP/s"
