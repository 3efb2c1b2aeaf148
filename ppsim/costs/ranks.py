"""Which device is which rank, and which links the groups of a parallel layout cross.

Devices are numbered domain by domain: device r is in domain r // n of a tier of n devices. An order such as
"tp-cp-ep-dp-pp" (Megatron-LM's notation) says which coordinate of a rank changes fastest: the first. Experts are
spread over ranks of the same tensor part: ep takes the place of cp and of the part of dp that it divides, as
Megatron-LM's expert groups do.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ppsim.errors import ConfigError

DEFAULT_ORDER = "tp-cp-ep-dp-pp"
GroupName = Literal["tp", "cp", "ep", "dp", "pp", "dp-cp", "expert-dp"]

_NAMES = ("tp", "cp", "ep", "dp", "pp")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How ranks divide a model and its data: tp · cp · dp · pp devices, experts over ep of each dp · cp.

    Raises `ConfigError` naming the value and the nearest legal one for a size below 1, an ep that does not divide
    dp · cp, and an order that is none.

    >>> Layout(tp=2, pp=4, dp=3).num_devices
    24
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    order: str = DEFAULT_ORDER

    def __post_init__(self) -> None:
        for name in _NAMES:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1: got {getattr(self, name)}")
        require_devices(self.num_devices)
        if sorted(self.order.split("-")) != sorted(_NAMES):
            raise ConfigError(
                f"an order names tp, cp, ep, dp and pp once each: got '{self.order}' (the usual is {DEFAULT_ORDER})"
            )
        if (self.dp * self.cp) % self.ep:
            near = _nearest(self.ep, _divisors(self.dp * self.cp))
            raise ConfigError(
                f"ep must divide dp · cp: got ep {self.ep} with dp {self.dp} and cp {self.cp} (nearest: {near})"
            )
        if self.ep > 1 and _strides(self.expert_sizes)["pp"] != _strides(self.sizes)["pp"]:
            raise ConfigError(
                f"with the order {self.order} the stages of ep {self.ep} lie on other ranks than those of dp "
                f"{self.dp} and cp {self.cp}; pp outermost ({DEFAULT_ORDER}) always goes"
            )

    @property
    def num_devices(self) -> int:
        """tp · cp · dp · pp."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """The coordinates of a rank, fastest first; experts have none of their own."""
        return tuple((name, getattr(self, name)) for name in self.order.split("-") if name != "ep")

    @property
    def expert_sizes(self) -> tuple[tuple[str, int], ...]:
        """The coordinates as experts see them: ep and what is left of dp · cp, no cp."""
        sizes = {"tp": self.tp, "ep": self.ep, "dp": self.dp * self.cp // self.ep, "pp": self.pp}
        return tuple((name, sizes[name]) for name in self.order.split("-") if name != "cp")


MOST_DEVICES = 1_000_000


def require_devices(num_devices: int) -> None:
    """Raise `ConfigError` for no device, and for more than one cluster has."""
    if num_devices < 1:
        raise ConfigError(f"there must be at least 1 device: got {num_devices}")
    if num_devices > MOST_DEVICES:
        raise ConfigError(f"there must be at most {MOST_DEVICES:,} devices: got {num_devices}")


def layout_on(
    num_devices: int,
    *,
    tp: int = 1,
    cp: int = 1,
    ep: int = 1,
    pp: int = 1,
    dp: int | None = None,
    order: str = DEFAULT_ORDER,
) -> Layout:
    """Return the layout that fills `num_devices`; `dp` is what remains where it is not given.

    Raises `ConfigError` naming the product and the nearest legal value where tp · cp · dp · pp is another number.

    >>> layout_on(64, tp=8, pp=4).dp
    2
    """
    require_devices(num_devices)
    model = Layout(tp=tp, cp=cp, pp=pp, order=order).num_devices
    shape = f"tp {tp} · cp {cp} · pp {pp} = {model}"
    if num_devices % model:
        rest = model // pp
        legal = [size for size in _divisors(num_devices) if num_devices % (rest * size) == 0]
        near = f"pp {_nearest(pp, legal)}" if legal else f"{_multiples(model, num_devices)} devices"
        raise ConfigError(f"{shape} does not divide {num_devices} devices (nearest: {near})")
    fitting = num_devices // model
    if dp is not None and dp != fitting:
        raise ConfigError(
            f"{shape} with dp {dp} takes {model * dp} devices, but there are {num_devices} (nearest: dp {fitting})"
        )
    return Layout(tp=tp, cp=cp, ep=ep, dp=fitting, pp=pp, order=order)


@dataclass(frozen=True)
class Group:
    """The ranks of one collective as its worst placed group lies.

    `extents` has an entry a tier, from the inside: how many ranks share an innermost domain (the fewest that do),
    then how many such domains share one of the next tier, and so on. `tier` is the outermost that it crosses.
    """

    name: str
    num_ranks: int
    extents: tuple[int, ...]

    @property
    def tier(self) -> int:
        """The index of the tier whose link connects the whole group."""
        return max((index for index, extent in enumerate(self.extents) if extent > 1), default=0)


@lru_cache(maxsize=65536)
def group(layout: Layout, name: GroupName, domain_sizes: tuple[int | None, ...]) -> Group:
    """Return how the groups of a name lie on domains of these sizes (`Cluster.domain_sizes`).

    "dp-cp" are the ranks that hold the same weights, "expert-dp" those that hold the same experts.

    >>> layout = Layout(tp=8, dp=4, pp=2)
    >>> group(layout, "tp", (8, None)).extents, group(layout, "dp", (8, None)).extents
    ((8, 1), (1, 4))
    """
    sizes = layout.expert_sizes if name in ("ep", "expert-dp") else layout.sizes
    members = {"dp-cp": ("dp", "cp"), "expert-dp": ("dp",)}.get(name, (name,))
    offsets = _ranks(sizes, members)
    bases = _ranks(sizes, [other for other, _ in sizes if other not in members])
    extents = []
    before = len(offsets)
    for num_devices in domain_sizes:
        if num_devices is None:
            extents.append(before)
            before = 1
            continue
        domains = (np.unique(bases % num_devices)[:, None] + offsets[None, :]) // num_devices
        count = max(len(np.unique(row)) for row in domains)
        extents.append(-(-before // count))
        before = count
    extents[-1] *= before
    return Group(name, len(offsets), tuple(extents))


def all_devices(layout: Layout, domain_sizes: tuple[int | None, ...]) -> Group:
    """Return the group of every device of a layout.

    >>> all_devices(Layout(tp=8, pp=4), (8, None)).extents
    (8, 4)
    """
    extents, before = [], layout.num_devices
    for num_devices in domain_sizes:
        domains = 1 if num_devices is None else -(-layout.num_devices // num_devices)
        extents.append(-(-before // domains))
        before = domains
    return Group("all", layout.num_devices, tuple(extents))


def hop_tiers(layout: Layout, domain_sizes: tuple[int | None, ...]) -> tuple[int, ...]:
    """Return the tier that each hop of the pipeline crosses, at its worst: entry i between ranks i and i + 1.

    The last entry is the way from the last rank back to the first, which interleaved schedules take.

    >>> hop_tiers(Layout(tp=2, pp=4), (4, None))
    (0, 1, 0, 1)
    """
    return tuple(tier_between(layout, domain_sizes, index, (index + 1) % layout.pp) for index in range(layout.pp))


@lru_cache(maxsize=65536)
def tier_between(layout: Layout, domain_sizes: tuple[int | None, ...], one: int, other: int) -> int:
    """Return the tier that messages between two pipeline ranks cross, at their worst."""
    stride = _strides(layout.sizes)["pp"]
    bases = _ranks(layout.sizes, [name for name, _ in layout.sizes if name != "pp"])
    here, there = bases + one * stride, bases + other * stride
    for tier, num_devices in enumerate(domain_sizes):
        if num_devices is None or bool(np.all(here // num_devices == there // num_devices)):
            return tier
    return len(domain_sizes) - 1


def _ranks(sizes: tuple[tuple[str, int], ...], names: Iterable[str]) -> NDArray[np.int64]:
    """The ranks of which all coordinates but those named are 0."""
    strides, counts = _strides(sizes), dict(sizes)
    ranks = np.zeros(1, dtype=np.int64)
    for name in names:
        ranks = (np.arange(counts[name])[:, None] * strides[name] + ranks[None, :]).ravel()
    return ranks


def _strides(sizes: tuple[tuple[str, int], ...]) -> dict[str, int]:
    strides, stride = {}, 1
    for name, size in sizes:
        strides[name] = stride
        stride *= size
    return strides


def _divisors(number: int) -> list[int]:
    small = [value for value in range(1, math.isqrt(number) + 1) if number % value == 0]
    return sorted({*small, *(number // value for value in small)})


def _nearest(value: int, legal: list[int]) -> str:
    """The legal values on both sides.

    >>> _nearest(6, [1, 2, 4, 8])
    '4 or 8'
    """
    below, above = [x for x in legal if x < value], [x for x in legal if x > value]
    return " or ".join(str(x) for x in (*below[-1:], *above[:1]))


def _multiples(of: int, near: int) -> str:
    below = near // of * of
    return " or ".join(str(value) for value in (below, below + of) if value)
