"""Layout of parallel ranks on devices, numbered domain by domain.

As in Megatron-LM, expert layers have their own coordinates: etp · ep · (replicas of an expert) = tp · cp · dp. If
etp < tp, ranks of one tensor-parallel group hold different experts.
"""

import math
from dataclasses import dataclass

from ppsim.base.errors import ConfigError
from ppsim.parallel.sizes import ParallelSizes, require_positive

DEFAULT_ORDER = "tp-cp-ep-dp-pp"

_NAMES = ("tp", "cp", "ep", "dp", "pp")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Parallel sizes of tp · cp · dp · pp GPUs; the experts of a layer are divided among `ep` ranks.

    `order` lists the coordinates of a rank, the fastest-changing first (Megatron-LM's notation). `etp` ranks share
    one expert (Megatron-LM's expert tensor parallelism; None: tp). Raises `ConfigError` with the nearest valid
    value for an invalid size or order.

    >>> Layout(tp=2, pp=4, dp=3).num_devices
    24
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    order: str = DEFAULT_ORDER
    etp: int | None = None

    def __post_init__(self) -> None:
        require_positive(self, *_NAMES, "etp")
        require_devices(self.num_devices)
        if sorted(self.order.split("-")) != sorted(_NAMES):
            raise ConfigError(
                f"an order names tp, cp, ep, dp and pp once each: got '{self.order}' (the usual is {DEFAULT_ORDER})"
            )
        if self.etp is not None:
            if (self.tp * self.cp * self.dp) % (self.ep * self.etp):
                raise ConfigError(
                    f"ep · etp must divide tp · cp · dp: got ep {self.ep} and etp {self.etp} with tp {self.tp}, "
                    f"cp {self.cp} and dp {self.dp}"
                )
        elif (self.dp * self.cp) % self.ep:
            near = _nearest(self.ep, _divisors(self.dp * self.cp))
            raise ConfigError(
                f"ep must divide dp · cp: got ep {self.ep} with dp {self.dp} and cp {self.cp} (nearest: {near})"
            )
        has_own_groups = self.ep > 1 or self.expert_tp != self.tp
        if has_own_groups and _strides(self.expert_sizes)["pp"] != _strides(self.sizes)["pp"]:
            raise ConfigError(
                f"with the order {self.order} the stages of ep {self.ep} lie on other ranks than those of dp "
                f"{self.dp} and cp {self.cp}; pp outermost ({DEFAULT_ORDER}) always goes"
            )

    @property
    def expert_tp(self) -> int:
        return self.tp if self.etp is None else self.etp

    @property
    def num_devices(self) -> int:
        return self.tp * self.cp * self.dp * self.pp

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """Names and sizes of a rank's coordinates, the fastest-changing first, without ep."""
        return tuple((name, getattr(self, name)) for name in self.order.split("-") if name != "ep")

    @property
    def expert_sizes(self) -> tuple[tuple[str, int], ...]:
        """Like `sizes` for expert layers: tp is etp, dp is the number of expert replicas, and there is no cp."""
        replicas = self.tp * self.dp * self.cp // (self.ep * self.expert_tp)
        sizes = {"tp": self.expert_tp, "ep": self.ep, "dp": replicas, "pp": self.pp}
        return tuple((name, sizes[name]) for name in self.order.split("-") if name != "cp")

    def why_single_expert_ranks(self, ep: int, *, biased: bool) -> str:
        """Return why each expert must be on one tensor-parallel rank (etp 1), "" if it need not.

        `biased`: whether experts have biases.

        >>> Layout(tp=2, dp=32).why_single_expert_ranks(64, biased=False)
        'ep 64 does not divide dp 32 · cp 1, so experts are spread over the tp 2 ranks too'
        """
        replicas = self.cp * self.dp
        if self.tp == 1 or ep < 1 or self.tp * replicas % ep:
            return ""
        if replicas % ep:
            sizes = f"ep {ep} does not divide dp {self.dp} · cp {self.cp}"
            return f"{sizes}, so experts are spread over the tp {self.tp} ranks too"
        return "Megatron-LM does not divide experts with biases" if biased else ""

    def cut(self, *, sequence_parallel: bool) -> ParallelSizes:
        return ParallelSizes(
            tp=self.tp, cp=self.cp, dp=self.dp, ep=self.ep, etp=self.etp, sequence_parallel=sequence_parallel
        )


MOST_DEVICES = 1_000_000


def require_devices(num_devices: int) -> None:
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
    etp: int | None = None,
) -> Layout:
    """Return the layout that fills `num_devices`.

    Raises `ConfigError` with the nearest valid value if tp · cp · dp · pp is another number.

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
    return Layout(tp=tp, cp=cp, ep=ep, dp=fitting, pp=pp, order=order, etp=etp)


def fewest_replicas(*, tp: int = 1, cp: int = 1, ep: int = 1, etp: int | None = None) -> int:
    """Return the smallest dp that allows this ep.

    >>> fewest_replicas(cp=2, ep=8), fewest_replicas(tp=4, ep=8, etp=2)
    (4, 4)
    """
    ranks, parts = (cp, ep) if etp is None else (cp * tp, ep * etp)
    return math.lcm(ranks, parts) // ranks


def assumed_devices(
    *,
    tp: int | None = None,
    cp: int | None = None,
    ep: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    etp: int | None = None,
    multiple: int = 1,
) -> str:
    """Return a sentence about the assumed number of devices; `multiple`: GPUs that a launcher starts by default.

    >>> assumed_devices(tp=2, pp=4)
    'no number of GPUs is given: 8 assumed, the fewest for tp 2 · pp 4 (set --gpus)'
    >>> assumed_devices()
    'no number of GPUs is given: 1 assumed, the fewest possible (set --gpus)'
    >>> assumed_devices(pp=3, multiple=8)
    "no number of GPUs is given: 24 assumed, the fewest for pp 3 in multiples of its launcher's 8 (set --gpus)"
    """
    tp, cp, ep, pp = tp or 1, cp or 1, ep or 1, pp or 1
    dp = dp or assumed_replicas(tp=tp, cp=cp, ep=ep, pp=pp, etp=etp, multiple=multiple)
    sizes = [("tp", tp), ("cp", cp), ("ep", ep), ("pp", pp)]
    shape = " · ".join(f"{name} {size}" for name, size in sizes if size > 1)
    number = tp * cp * dp * pp
    fewest = f"the fewest for {shape}" if shape else "the fewest possible"
    if multiple > 1:
        in_multiples = f"{fewest} in multiples of its launcher's {multiple}"
        fewest = "its launcher's default" if number == multiple else in_multiples
    return f"no number of GPUs is given: {number} assumed, {fewest} (set --gpus)"


def assumed_replicas(
    *, tp: int = 1, cp: int = 1, ep: int = 1, pp: int = 1, etp: int | None = None, multiple: int = 1
) -> int:
    """Return the smallest dp that allows this ep, on a number of devices that is a multiple of `multiple`."""
    ranks, fewest = tp * cp * pp, fewest_replicas(tp=tp, cp=cp, ep=ep, etp=etp)
    return math.lcm(ranks * fewest, multiple) // ranks


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
    """Return the nearest valid values below and above.

    >>> _nearest(6, [1, 2, 4, 8])
    '4 or 8'
    """
    below, above = [x for x in legal if x < value], [x for x in legal if x > value]
    return " or ".join(str(x) for x in (*below[-1:], *above[:1]))


def _multiples(of: int, near: int) -> str:
    below = near // of * of
    return " or ".join(str(value) for value in (below, below + of) if value)
