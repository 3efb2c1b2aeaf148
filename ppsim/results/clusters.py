"""Terminal output for clusters."""

from collections.abc import Sequence

from ppsim.base.units import count, percent, rate, seconds, size
from ppsim.machine.cluster import Cluster, Constant, Link, Tier
from ppsim.results.text_layout import Page, TableLines, bold, facts


def print_clusters(clusters: Sequence[Cluster]) -> None:
    """Link bandwidths go from the innermost to the outermost tier."""
    rows = [
        {
            "cluster": cluster.name,
            "device": cluster.device.name.split(" (")[0],
            "bfloat16": _peak(cluster, "bfloat16"),
            "memory": size(cluster.device.memory_bytes),
            "bandwidth": rate(cluster.device.memory_bytes_per_s),
            "links, GB/s": ", ".join(
                f"{_devices_of(tier)}: {tier.link.bytes_per_s / 1e9:g}" for tier in cluster.tiers
            ),
        }
        for cluster in clusters
    ]
    out = Page()
    out.add(TableLines.of(rows, left=2, spare=["bandwidth", "memory"]))
    out.add("", "bfloat16: dense peak. links: devices per domain: rate per device. ppsim clusters NAME: sources.")


def _devices_of(tier: Tier) -> str:
    usable = f"{tier.usable_devices} of " if tier.usable_devices else ""
    return f"{usable}{tier.num_devices or 'all'}"


def print_cluster(cluster: Cluster) -> None:
    device, gets = cluster.device, cluster.device.efficiency
    devices = "unlimited" if cluster.num_devices is None else str(cluster.num_devices)
    base = [("base", cluster.base)] if cluster.base else []
    out = Page()
    _add_section(out, cluster.name, cluster.title, [*base, ("source", cluster.source), ("devices", devices)])
    of_device = [
        ("dense peak", ", ".join(f"{name} {_peak(cluster, name)}" for name in device.peak_flops_per_s)),
        ("memory", f"{size(device.memory_bytes)} at {rate(device.memory_bytes_per_s)}"),
        ("cores", str(device.num_cores)),
        ("source", device.source),
    ]
    of_runs = [
        ("GEMMs", ", ".join(f"{name} {percent(share)}" for name, share in gets.matmul.items())),
        ("attention", f"{percent(gets.attention_forward)} forward, {percent(gets.attention_backward)} backward"),
        ("memory", f"{percent(gets.memory)}, optimizer {percent(gets.optimizer)}"),
        ("kernels", f"{seconds(gets.kernel_s)} GPU gap per kernel, {seconds(gets.host_s)} host time per launch"),
        ("source", gets.source),
    ]
    out.add("")
    _add_section(out, "device", device.name, of_device)
    out.add("")
    _add_section(out, "calibration", f"GPU type {device.efficiency_class}", of_runs)
    if constants := cluster.constants.named:
        out.add("")
        fitted_on = ", ".join(cluster.constants.fitted_on)
        _add_section(
            out, "constants", f"fitted on {fitted_on}" if fitted_on else "given in the file",
            [(name, _constant(name, one)) for name, one in constants.items()],
        )  # fmt: skip
    for tier in cluster.tiers:
        out.add("")
        _add_section(out, tier.name, f"{_devices_of(tier)} devices by {tier.link.name}", _link_facts(tier.link))


def _constant(name: str, one: Constant) -> str:
    shown = seconds if name.endswith("_s") else "{:g}".format
    spread = "" if one.sigma is None else f" ± {shown(one.sigma)}"
    return f"{shown(one.value)}{spread}" + (f"; {one.source}" if one.source else "")


def _add_section(out: Page, name: str, title: str, rows: Sequence[tuple[str, str]]) -> None:
    out.add(f"{bold(name)}   {title}")
    out.add(facts(rows))


def _link_facts(link: Link) -> list[tuple[str, str]]:
    gain = (
        f"; all-reduce {link.reduction_gain:g} × this rate (reduction in the switch)"
        if link.reduction_gain > 1
        else ""
    )
    return [
        ("line rate", f"{rate(link.bytes_per_s)} per device, one direction"),
        ("efficiency", f"{percent(link.efficiency)} of the line rate{gain}"),
        *([("copies", rate(link.copy_bytes_per_s))] if link.copy_bytes_per_s else []),
        ("latency", f"{seconds(link.launch_s)} per message, plus {seconds(link.step_s)} per step of a collective"),
        ("source", link.source),
    ]


def _peak(cluster: Cluster, dtype: str) -> str:
    peak = cluster.device.peak_flops_per_s.get(dtype)
    return "–" if peak is None else f"{count(peak)}FLOP/s"
