"""Upper bound on the work of the microbatches in a rank's memory, as a knapsack problem."""

from collections.abc import Sequence
from math import gcd, inf
from typing import NamedTuple


class MemoryUse(NamedTuple):
    """Contribution of one microbatch while it holds `size` of the memory."""

    value: float
    size: float


def knapsack_bound(states: Sequence[MemoryUse], *, count: int, capacity: float) -> float:
    """Return an upper bound on the contribution of `count` microbatches, each in at most one of the states.

    A state is useful if its value is larger than the value of every smaller state. The bound is exact for up to two
    useful states; more states are used fractionally (docs/notes/bounds.md, section 8).

    >>> knapsack_bound([MemoryUse(3.0, 1.0)], count=8, capacity=2.5)
    6.0
    """
    states = _worthwhile(states)
    if not states or count == 0:
        return 0.0
    best = states[-1]
    if best.size * count <= capacity:
        return best.value * count
    if len(states) == 1:
        return best.value * (capacity // best.size)
    if len(states) == 2:
        return _most_of_two(states[0], best, count, capacity)
    capacity = _reachable(capacity, [state.size for state in states])
    total, previous = 0.0, MemoryUse(0.0, 0.0)
    for state in _envelope(states):  # each microbatch moves up the envelope, steepest steps first
        step = MemoryUse(state.value - previous.value, state.size - previous.size)
        if step.size * count > capacity:
            return total + step.value * capacity / step.size
        total, capacity, previous = total + step.value * count, capacity - step.size * count, state
    return total


def _worthwhile(states: Sequence[MemoryUse]) -> list[MemoryUse]:
    kept: list[MemoryUse] = []
    for state in sorted(states, key=lambda state: (state.size, -state.value)):
        if state.value > (kept[-1].value if kept else 0.0):
            kept.append(state)
    return kept


def _most_of_two(small: MemoryUse, large: MemoryUse, count: int, capacity: float) -> float:
    total = 0.0
    for num_large in range(min(count, int(capacity // large.size)) + 1):
        left = capacity - num_large * large.size
        num_small = count - num_large if small.size == 0 else min(count - num_large, int(left // small.size))
        total = max(total, num_large * large.value + num_small * small.value)
    return total


def _envelope(states: Sequence[MemoryUse]) -> list[MemoryUse]:
    """Return the corners of the concave hull of the states and the origin, by size."""
    corners = [MemoryUse(0.0, 0.0)]
    for state in states:
        while len(corners) > 1 and _slope(corners[-2], corners[-1]) <= _slope(corners[-2], state):
            corners.pop()
        corners.append(state)
    return corners[1:]


def _slope(one: MemoryUse, other: MemoryUse) -> float:
    size = other.size - one.size
    return (other.value - one.value) / size if size else inf


def _reachable(capacity: float, sizes: Sequence[float]) -> float:
    """Round the capacity down to a multiple of the common divisor of all sizes, if there is one."""
    smallest = min(size for size in sizes if size > 0)
    parts = [size / smallest for size in sizes]
    if all(part == int(part) for part in parts):
        return capacity // smallest * smallest
    if all(size == int(size) for size in sizes):
        unit = gcd(*map(int, sizes))
        return float(capacity // unit * unit)
    return capacity
