"""Seconds of what ends a step: gradients summed over replicas, their norm, the optimizer, parameters gathered."""

from dataclasses import dataclass
from typing import Literal

from ppsim.layout.groups import group
from ppsim.layout.layout import Layout
from ppsim.machine import collectives
from ppsim.machine.cluster import Cluster, Device

ADAM_BYTES = 30
"""Of a parameter under mixed precision: gradient, master weight and both moments read, 4 each; the last three and
the 16-bit weight written."""

NORM_BYTES = 4
"""The gradient's norm reads it once."""


def muon_flops(size: int, side: int, *, iterations: int = 5) -> float:
    """Return the FLOPs that make a matrix of `size` entries, one side of which is given, orthogonal.

    Each Newton–Schulz iteration of an m × n matrix, m ≤ n, multiplies it by its transpose, that by itself, and the
    sum by the matrix: 4m²n + 2m³ (Jordan et al. 2024, five iterations).

    >>> muon_flops(6, 3)
    320.0
    """
    short, long = sorted((side, size / side))
    return iterations * (4.0 * short * short * long + 2.0 * short**3)


@dataclass(frozen=True, kw_only=True)
class StepEnd:
    """Seconds after the last backward, none of it hidden; `total_s` is their sum."""

    reduce_s: float
    gather_s: float
    norm_s: float
    optimizer_s: float

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.reduce_s + self.gather_s + self.norm_s + self.optimizer_s


def optimizer_s(device: Device, parameters: float, *, bytes_per_parameter: float = ADAM_BYTES) -> float:
    """Return the seconds of an optimizer step over the parameters that a rank updates.

    Memory traffic at the share of bandwidth that optimizers get, which is far below other kernels': Adam took 93.8
    ms where bandwidth alone says 19.9.
    """
    return parameters * bytes_per_parameter / (device.memory_bytes_per_s * device.efficiency.optimizer)


def step_end(
    cluster: Cluster,
    layout: Layout,
    *,
    parameters: float,
    expert_parameters: float = 0.0,
    sharded: bool = False,
    gradient_bytes: float = 4.0,
    parameter_bytes: float = 2.0,
) -> StepEnd:
    """Return the end of a step for a rank that holds `parameters`, and `expert_parameters` beside them.

    `sharded` (ZeRO 1): gradients are scattered, each replica updates its part and gathers the rest; else
    all-reduced and updated everywhere. Experts are summed over the ranks that hold the same ones.
    """
    held: tuple[tuple[float, Literal["dp-cp", "expert-dp"]], ...] = (
        (parameters, "dp-cp"),
        (expert_parameters, "expert-dp"),
    )
    reduce_s = gather_s = updated = 0.0
    for count, name in held:
        ranks = group(layout, name, cluster.domain_sizes(layout.num_devices))
        if not count:
            continue
        operation: collectives.Operation = "reduce-scatter" if sharded else "all-reduce"
        reduce_s += collectives.seconds(operation, count * gradient_bytes, ranks, cluster)
        if sharded:
            gather_s += collectives.seconds("all-gather", count * parameter_bytes, ranks, cluster)
        updated += count / (ranks.num_ranks if sharded else 1)
    device = cluster.device
    norm_s = updated * NORM_BYTES / (device.memory_bytes_per_s * device.efficiency.memory)
    return StepEnd(reduce_s=reduce_s, gather_s=gather_s, norm_s=norm_s, optimizer_s=optimizer_s(device, updated))
