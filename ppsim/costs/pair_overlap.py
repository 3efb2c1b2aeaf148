"""Seconds of a forward and a backward that run together, with expert-parallel messages overlapped with compute.

Two streams, compute and messages, each run their operations in a fixed order. Compute slows down while a message
holds SMs. The orders are:

- ``dualpipe`` (DeepSeek-AI 2024, arXiv 2412.19437, figure 4): the compute of one microbatch runs during the
  messages of the other.
- ``megatron`` (Megatron-Core, core/models/common/model_chunk_schedule_plan.py, d98e8a64): the same order, but the
  weight gradients belong to the backward, and its messages wait for them.
- ``megatron-delay-wgrad``: Megatron-Core with ``--delay-wgrad-compute``: as ``dualpipe``.
- ``best``: the fastest order, the same for every pair of layers.

Layers are paired in execution order: the first layer of the forward's stage with the last layer of the backward's
stage, and so on. The remaining layers run alone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from typing import Literal, TypeAlias

from ppsim.model.execution import Order


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of one layer, for F, I and W: `before` its experts (attention, norms, router) and in its `experts`.

    The dispatch takes `exchange_s`, and so does the combine. The MLP of a dense layer counts as experts. `launches`
    is the host time for the kernels of F and of B in a pair, `waits` the exposed part if they run alone.
    """

    before: tuple[float, float, float]
    experts: tuple[float, float, float]
    exchange_s: float = 0.0
    launches: tuple[float, float] = (0.0, 0.0)
    waits: tuple[float, float] = (0.0, 0.0)

    @property
    def forward_s(self) -> float:
        return self.before[0] + self.experts[0] + 2 * self.exchange_s + self.waits[0]

    @property
    def backward_s(self) -> float:
        return sum(self.before[1:]) + sum(self.experts[1:]) + 2 * self.exchange_s + self.waits[1]


Operation: TypeAlias = Literal[
    "before F", "before I", "before W", "experts F", "experts I", "experts W",
    "dispatch F", "combine F", "combine B", "dispatch B",
]  # fmt: skip
"""An operation of a pair of layers. The backward starts with the gradient of the combine."""

Sequences: TypeAlias = tuple[tuple[Operation, ...], tuple[Operation, ...]]
"""Operations of one pair of layers, on the compute stream and on the message stream."""

_COMPUTE: tuple[Operation, ...] = ("before F", "experts I", "experts W", "experts F", "before I", "before W")
_MESSAGES: tuple[Operation, ...] = ("combine B", "dispatch F", "dispatch B", "combine F")
_INPUTS: dict[Operation, tuple[Operation, int]] = {
    "dispatch F": ("before F", 0), "experts F": ("dispatch F", 0), "combine F": ("experts F", 0),
    "experts I": ("combine B", 0), "dispatch B": ("experts I", 0), "before I": ("dispatch B", 0),
    "experts W": ("experts I", 0), "before W": ("before I", 0),
    "before F": ("combine F", 1), "combine B": ("before I", 1),
}  # fmt: skip
"""Input of each operation, and its pair of layers: the same (0) or the previous one (1)."""

_WHOLE_BACKWARD: dict[Operation, tuple[Operation, int]] = {
    "dispatch B": ("experts W", 0),
    "combine B": ("before W", 1),
}
"""Inputs of backward messages if I and W are one action: W, which follows I."""


@dataclass(frozen=True)
class PairMessage:
    """All or part of a message of a pair: hidden by the compute operations `next_to`, exposed if there are none.

    Times are seconds from the start of the layers; `layer` is an index in the stage.
    """

    operation: Operation
    layer: int
    start_s: float
    end_s: float
    next_to: tuple[str, ...] = ()


@dataclass(frozen=True)
class StageBytes:
    """Activation bytes of a stage: all (`whole`) and the part saved `before` the experts."""

    whole: float
    before: float
    num_layers: int


def pair_bytes(forward: StageBytes, backward: StageBytes) -> float:
    """Return the peak of activations that a pair holds in addition to those held before it.

    In each pair of layers the forward allocates before its experts, the backward frees its experts' activations,
    the forward allocates its experts', and the backward frees the rest.
    """
    num_pairs = min(forward.num_layers, backward.num_layers)
    if not num_pairs:
        return forward.whole
    of_forward, of_backward = forward.whole / forward.num_layers, backward.whole / backward.num_layers
    before = forward.before / forward.num_layers
    experts_later = of_forward - (of_backward - backward.before / backward.num_layers)
    peak = max(before, experts_later)
    return max(peak, (num_pairs - 1) * (of_forward - of_backward) + peak, forward.whole - backward.whole)


def pair_s(
    forward: Sequence[LayerTimes], backward: Sequence[LayerTimes], order: Order, *, slowdown: float = 0.0
) -> float:
    """`slowdown` is the fraction by which compute is slower during a message."""
    return _pair_s(tuple(forward), tuple(reversed(backward)), order, slowdown)


@lru_cache(maxsize=4096)
def _pair_s(
    forward: tuple[LayerTimes, ...], backward: tuple[LayerTimes, ...], order: Order, slowdown: float
) -> float:
    pairs = tuple(zip(forward, backward, strict=False))
    left_s = sum(one.forward_s for one in forward[len(pairs) :])
    left_s += sum(one.backward_s for one in backward[len(pairs) :])
    if not pairs:
        return left_s
    alone_s = sum(one.forward_s + other.backward_s for one, other in pairs)
    launches_s = _launches_s(pairs)
    if order == "best":
        together_s = min(_run(pairs, one, slowdown) for one in _best_orders(pairs[:_TRIED], slowdown))
        return left_s + min(max(together_s, launches_s), alone_s)
    inputs = _INPUTS | _WHOLE_BACKWARD if order == "megatron" else _INPUTS
    together_s = _run(pairs, (_COMPUTE, _MESSAGES), slowdown, inputs)
    return left_s + max(together_s, launches_s)


def pair_messages(
    forward: Sequence[LayerTimes], backward: Sequence[LayerTimes], order: Order, *, slowdown: float = 0.0
) -> list[PairMessage]:
    """If one of the two passes is empty, the other runs alone. Layers that run alone follow the pairs."""
    pairs = tuple(zip(forward, reversed(backward), strict=False))
    parts: list[tuple[float, float, tuple[int, Operation], str]] = []
    now = 0.0
    if pairs:
        orders = _best_orders(pairs[:_TRIED], slowdown) if order == "best" else [(_COMPUTE, _MESSAGES)]
        inputs = _INPUTS | _WHOLE_BACKWARD if order == "megatron" else _INPUTS
        fastest = min(orders, key=lambda one: _run(pairs, one, slowdown, inputs))
        together_s = _run(pairs, fastest, slowdown, inputs, parts)
        now = max(together_s, _launches_s(pairs))
        if now > together_s > 0:  # stretch all times to the host's launch time
            late = now / together_s
            parts = [(late * begin, late * end, message, compute) for begin, end, message, compute in parts]
    messages: list[PairMessage] = []
    for start, end, (number, operation), compute in parts:
        layer = number if operation.endswith("F") else len(backward) - 1 - number
        last = messages[-1] if messages else None
        if last and (last.operation, last.layer) == (operation, layer) and bool(last.next_to) == bool(compute):
            next_to = last.next_to if compute in last.next_to or not compute else (*last.next_to, compute)
            messages[-1] = replace(last, end_s=end, next_to=next_to)
        else:
            messages.append(PairMessage(operation, layer, start, end, (compute,) if compute else ()))
    for index in range(len(backward) - 1 - len(pairs), -1, -1):
        one = backward[index]
        dispatched_s = now + one.exchange_s + sum(one.experts[1:])
        messages += _alone(one, index, now, dispatched_s, "combine B", "dispatch B")
        now += one.backward_s
    for index in range(len(pairs), len(forward)):
        one = forward[index]
        dispatched_s = now + one.before[0]
        combined_s = dispatched_s + one.exchange_s + one.experts[0]
        messages += _alone(one, index, dispatched_s, combined_s, "dispatch F", "combine F")
        now += one.forward_s
    return messages


def _launches_s(pairs: Sequence[tuple[LayerTimes, LayerTimes]]) -> float:
    return sum(one.launches[0] + other.launches[1] for one, other in pairs)


def _alone(
    layer: LayerTimes, index: int, first_s: float, second_s: float, first: Operation, second: Operation
) -> list[PairMessage]:
    if not layer.exchange_s:
        return []
    return [
        PairMessage(name, index, start_s, start_s + layer.exchange_s)
        for name, start_s in ((first, first_s), (second, second_s))
    ]


_TRIED, _KEPT = 3, 8
"""Number of pairs of layers on which all orders are tried, and of orders that are then tried on all layers."""


def _best_orders(pairs: Sequence[tuple[LayerTimes, LayerTimes]], slowdown: float) -> list[Sequences]:
    orders = sorted(_orders(), key=lambda order: _run(pairs, order, slowdown))
    return orders[:_KEPT]


@lru_cache(maxsize=1)
def _orders() -> tuple[Sequences, ...]:
    return tuple(
        (compute, messages)
        for compute in _in_order(
            _COMPUTE,
            (
                ("experts I", "experts W"),
                ("experts I", "before I"),
                ("before I", "before W"),
                ("before F", "experts F"),
            ),
        )
        for messages in _in_order(_MESSAGES, (("dispatch F", "combine F"), ("combine B", "dispatch B")))
    )


def _in_order(
    operations: Iterable[Operation], pairs: Sequence[tuple[Operation, Operation]]
) -> Iterator[tuple[Operation, ...]]:
    for order in permutations(operations):
        if all(order.index(first) < order.index(second) for first, second in pairs):
            yield order


def _run(
    pairs: Sequence[tuple[LayerTimes, LayerTimes]],
    order: Sequences,
    slowdown: float,
    inputs: Mapping[Operation, tuple[Operation, int]] = _INPUTS,
    parts: list[tuple[float, float, tuple[int, Operation], str]] | None = None,
) -> float:
    """Seconds of successive pairs of layers; infinite if the streams deadlock.

    Fills `parts` with the begin, end and name of each message, and the concurrent compute.
    """
    queues = [[(number, one) for number in range(len(pairs)) for one in stream] for stream in order]
    seconds = [_seconds_of(*pair) for pair in pairs]
    done: set[tuple[int, Operation]] = set()
    heads, remaining, now = [0, 0], [0.0, 0.0], 0.0

    def may_start(number: int, operation: Operation) -> bool:
        before, distance = inputs[operation]
        return number < distance or (number - distance, before) in done

    running = [False, False]
    while any(heads[stream] < len(queues[stream]) for stream in (0, 1)):
        for stream in (0, 1):
            if not running[stream] and heads[stream] < len(queues[stream]):
                number, one = queues[stream][heads[stream]]
                if may_start(number, one):
                    running[stream], remaining[stream] = True, seconds[number][one]
        if not any(running):
            return float("inf")
        rate = 1 - slowdown if running[0] and running[1] else 1.0
        lasts = [remaining[0] / rate, remaining[1]]
        step = min(lasts[stream] for stream in (0, 1) if running[stream])
        if parts is not None and running[1] and step:
            compute = queues[0][heads[0]][1] if running[0] else ""
            parts.append((now, now + step, queues[1][heads[1]], compute))
        now += step
        for stream in (0, 1):
            if not running[stream]:
                continue
            remaining[stream] -= step * (rate if stream == 0 else 1.0)
            if lasts[stream] <= step:
                number, one = queues[stream][heads[stream]]
                done.add((number, one))
                running[stream], heads[stream] = False, heads[stream] + 1
    return now


def _seconds_of(forward: LayerTimes, backward: LayerTimes) -> dict[Operation, float]:
    return {
        "before F": forward.before[0], "experts F": forward.experts[0],
        "before I": backward.before[1], "before W": backward.before[2],
        "experts I": backward.experts[1], "experts W": backward.experts[2],
        "dispatch F": forward.exchange_s, "combine F": forward.exchange_s,
        "combine B": backward.exchange_s, "dispatch B": backward.exchange_s,
    }  # fmt: skip
