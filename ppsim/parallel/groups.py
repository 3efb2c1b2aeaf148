"""Communication groups of ranks, and the network tiers that they cross."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import distinct
from ppsim.parallel.layout import Layout, _strides

GroupName = Literal["tp", "cp", "ep", "etp", "dp", "pp", "dp-cp", "expert-dp"]


@dataclass(frozen=True)
class RankGroup:
    """A group of ranks of one collective; of several such groups, the one that crosses the most domains.

    `extents` has one entry per network tier, innermost first: mean number of ranks per innermost domain (rounded
    up), then the number of these domains per domain of the next tier, and so on.
    """

    name: str
    num_ranks: int
    extents: tuple[int, ...]

    @property
    def tier(self) -> int:
        """The outermost tier that the group crosses."""
        return max((index for index, extent in enumerate(self.extents) if extent > 1), default=0)

    def instances(self, number: int) -> tuple["RankGroup", "RankGroup"]:
        """Split into `number` parts of neighbouring ranks.

        Returns one part, and the group of the ranks that have the same position in their parts.

        >>> inner, outer = RankGroup("dp", 16, (8, 2)).instances(4)
        >>> inner.extents, outer.extents
        ((4, 1), (2, 2))
        """
        left, inner = self.num_ranks // number, []
        for extent in self.extents:
            inner.append(math.gcd(extent, left))
            left //= inner[-1]
        outer = tuple(whole // part for whole, part in zip(self.extents, inner, strict=True))
        return RankGroup(self.name, math.prod(inner), tuple(inner)), RankGroup(self.name, math.prod(outer), outer)


@lru_cache(maxsize=65536)
def group(layout: Layout, name: GroupName, domain_sizes: tuple[int | None, ...]) -> RankGroup:
    """Return the group with this name on network domains of these sizes (`Cluster.domain_sizes`).

    "dp-cp": ranks with the same weights, except experts. "expert-dp": ranks with the same experts. "etp": ranks
    that share each expert.

    >>> layout = Layout(tp=8, dp=4, pp=2)
    >>> group(layout, "tp", (8, None)).extents, group(layout, "dp", (8, None)).extents
    ((8, 1), (1, 4))
    """
    sizes = layout.expert_sizes if name in ("ep", "etp", "expert-dp") else layout.sizes
    members = {"dp-cp": ("dp", "cp"), "expert-dp": ("dp",), "etp": ("tp",)}.get(name, (name,))
    offsets = _ranks(sizes, members)
    bases = _ranks(sizes, [other for other, _ in sizes if other not in members])
    extents = []
    before = len(offsets)
    for num_devices in domain_sizes:
        if num_devices is None:
            extents.append(before)
            before = 1
            continue
        domains = (distinct(bases % num_devices)[:, None] + offsets[None, :]) // num_devices
        count = max(len(distinct(row)) for row in domains)
        extents.append(-(-before // count))
        before = count
    extents[-1] *= before
    return RankGroup(name, len(offsets), tuple(extents))


def all_devices(layout: Layout, domain_sizes: tuple[int | None, ...]) -> RankGroup:
    """Return the group of all devices.

    >>> all_devices(Layout(tp=8, pp=4), (8, None)).extents
    (8, 4)
    """
    extents, before = [], layout.num_devices
    for num_devices in domain_sizes:
        domains = 1 if num_devices is None else -(-layout.num_devices // num_devices)
        extents.append(-(-before // domains))
        before = domains
    return RankGroup("all", layout.num_devices, tuple(extents))


def hop_tiers(layout: Layout, domain_sizes: tuple[int | None, ...]) -> tuple[int, ...]:
    """Return the slowest network tier between each pipeline rank and the next; after the last comes the first.

    >>> hop_tiers(Layout(tp=2, pp=4), (4, None))
    (0, 1, 0, 1)
    """
    return tuple(tier_between(layout, domain_sizes, index, (index + 1) % layout.pp) for index in range(layout.pp))


@lru_cache(maxsize=65536)
def tier_between(layout: Layout, domain_sizes: tuple[int | None, ...], one: int, other: int) -> int:
    """Return the slowest tier between two pipeline ranks, whose GPUs with equal tp, cp and dp index communicate."""
    stride = _strides(layout.sizes)["pp"]
    bases = _ranks(layout.sizes, [name for name, _ in layout.sizes if name != "pp"])
    here, there = bases + one * stride, bases + other * stride
    for tier, num_devices in enumerate(domain_sizes):
        if num_devices is None or bool(np.all(here // num_devices == there // num_devices)):
            return tier
    return len(domain_sizes) - 1


def _ranks(sizes: tuple[tuple[str, int], ...], names: Iterable[str]) -> NDArray[np.int64]:
    """Ranks with 0 in all coordinates except `names`."""
    strides, counts = _strides(sizes), dict(sizes)
    ranks = np.zeros(1, dtype=np.int64)
    for name in names:
        ranks = (np.arange(counts[name])[:, None] * strides[name] + ranks[None, :]).ravel()
    return ranks
