"""Lower bounds on step time and span of any schedule; docs/notes/bounds.md has the proofs, with the same names."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import gcd, inf
from typing import NamedTuple

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.schedule.table import Op
from ppsim.simulation.bounds.coupled import coupled_bounds
from ppsim.simulation.bounds.problem import Criterion, Problem


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


@dataclass(frozen=True)
class LowerBounds:
    """Lower bounds in seconds for every schedule of a problem."""

    step_s: float
    span_s: float

    def of(self, criterion: Criterion) -> float:
        return self.step_s if criterion == "step" else self.span_s


def lower_bounds(problem: Problem) -> LowerBounds:
    """Return lower bounds in seconds for every table of the problem, up to rounding of sums of floats.

    Source for equal stages and activations freed by W: zero-bubble paper, arXiv 2401.10241, App. B (the idle time
    before the first backward); arXiv 2405.15362 (in a V, also the idle time after the last forward).

    >>> unit = {"forward_s": 1, "backward_input_s": 1, "backward_weight_s": 1}
    >>> lower_bounds(Problem.of(stage_to_rank=[0, 1, 2, 3], num_microbatches=8, cap=4, **unit))
    LowerBounds(step_s=27.0, span_s=27.0)
    """
    problem = problem.with_cheapest_backwards()
    ranks = [_Rank(problem, stages).bounds_s() for stages in problem.stages_of]
    steps, spans = zip(*ranks, coupled_bounds(problem), strict=True)
    return LowerBounds(step_s=max(steps) - problem.overhead_s, span_s=max(spans) - problem.overhead_s)


class _Rank:
    """Lower bounds on the end of one rank, and of the ranks with an earlier first stage, from its actions.

    docs/notes/bounds.md, sections 4 to 6, explains the methods.
    """

    def __init__(self, problem: Problem, stages: list[int]) -> None:
        self.problem, self.stages = problem, stages
        self.count = problem.num_microbatches
        self.first = stages[0]
        self.up_s = float(problem.up_s[self.first])
        self.capacity = float(problem.cap[problem.stage_to_rank[self.first]])
        self.forward_s = problem.forward_s[stages]
        self.backward_s = problem.split_s[stages]
        self.weight_s = problem.weight_s[stages]
        self.activation = problem.activation[stages]
        self.kept = problem.kept[stages]
        self.held = np.cumsum(self.activation)  # memory of a microbatch before its backward on the chunk
        self.forward_above_s = _above(self.forward_s)
        self.backward_above_s = _above(self.backward_s)
        self.work_s = self.count * float(self.forward_s.sum() + self.backward_s.sum())

    def bounds_s(self) -> tuple[float, float]:
        chunks = range(len(self.stages))
        first_idle = [
            max(self.idle_before_first_backward_s(chunk), self.idle_before_first_forward_s(chunk))
            for chunk in chunks
        ]
        trips = [self.trips(chunk) for chunk in chunks]
        idle = max(*first_idle, *(trip.num * trip.idle_s for trip in trips))
        own_end = self.work_s + idle

        last_backward = [0.0, *self.turns_s()]  # lower bounds on the start of the rank's last backward
        for chunk, trip in zip(chunks, trips, strict=True):
            before = self.work_s - self.left_at_last_forward_s(chunk)
            apart = [first_idle[first] for first in chunks if self.are_apart(first, chunk)]
            before += max([*apart, (trip.num - 1) * trip.idle_s])
            last_backward.append(before + float(self.problem.down_s[self.stages[chunk]] + self.up_s))
        as_late = own_end - self.weights_left_s() - float(self.problem.input_s[self.first])

        head = float(self.problem.reach_s[self.first])
        step, span = head + own_end, own_end
        for stage in (stages[0] for stages in self.problem.stages_of if stages[0] <= self.first):
            start = max(last_backward) if stage == self.first else max(*last_backward, as_late)
            end = start + float(self.problem.up_s[stage] - self.up_s + self.problem.split_s[stage])
            step = max(step, head + end)
            span = max(span, head - float(self.problem.reach_s[stage]) + end)
        return step, span

    def idle_before_first_forward_s(self, chunk: int) -> float:
        trip_s = self.problem.down_s[self.first] - self.problem.down_s[self.stages[chunk]]
        values = np.cumsum(self.forward_s[:chunk])
        states = [MemoryUse(*state) for state in zip(values.tolist(), self.held.tolist(), strict=False)]
        return max(0.0, float(trip_s) - knapsack_bound(states, count=self.count, capacity=self.capacity))

    def idle_before_first_backward_s(self, chunk: int) -> float:
        """Idle time before the start of a chunk's first backward (zero-bubble paper, App. B)."""
        trip_s = self.problem.down_s[self.first] + self.problem.up_s[self.stages[chunk]]
        return max(0.0, float(trip_s) - self._most_begun(chunk, self.count, self.capacity))

    def trips(self, chunk: int) -> "_Trips":
        in_flight = _times(self.capacity, self.held[chunk])
        if in_flight >= self.count:
            return _Trips(1, 0.0)
        trip_s = self.problem.down_s[self.stages[chunk]] + self.problem.up_s[self.stages[chunk]]
        own_s = float(self.forward_s[chunk] + self.forward_above_s[chunk] + self.backward_above_s[chunk])
        others = self._most_begun(chunk, self.count - 1, self.capacity - float(self.held[chunk]))
        others += self._most_left(self.backward_s, chunk, whole_s=self._left_s(chunk))
        idle = float(trip_s) - own_s - others
        return _Trips(-int(-self.count // in_flight), max(0.0, idle))

    def _most_begun(self, chunk: int, count: int, capacity: float) -> float:
        """Return the maximum seconds of work on `count` microbatches before the first backward on the chunk."""
        values = np.cumsum(self.forward_s[: chunk + 1])
        values[chunk] += self.forward_above_s[chunk] + self.backward_above_s[chunk]
        states = [MemoryUse(*state) for state in zip(values.tolist(), self.held.tolist(), strict=False)]
        return knapsack_bound(states, count=count, capacity=capacity)

    def left_at_last_forward_s(self, chunk: int) -> float:
        """The most work that can be left when a chunk's last forward starts, this forward included."""
        whole_s = self._left_s(chunk)
        return float(self.forward_s[chunk]) + whole_s + self._most_left(self.backward_s, chunk, whole_s=whole_s)

    def _left_s(self, chunk: int) -> float:
        return float(self.forward_above_s[chunk] + self.backward_s.sum())

    def weights_left_s(self) -> float:
        """The most time that the remaining W can take when the rank's last I ends."""
        whole_s = float(self.weight_s.sum())
        return whole_s + self._most_left(self.weight_s, len(self.stages) - 1, whole_s=whole_s)

    def _most_left(self, values_s: Floats, chunk: int, *, whole_s: float) -> float:
        """The most work that the other microbatches can have left when a chunk's last forward starts.

        Before its backward on the chunk, a microbatch has `whole_s` left. Afterwards it has left the values of the
        chunks below its last backward, and any W of the other chunks whose kept memory it still holds.
        """
        count, room = self.count - 1, self.capacity - float(self.held[chunk])
        chunks = range(len(self.stages))
        few = len(chunks) <= _MOST_COMBINED
        states = [MemoryUse(whole_s, float(self.held[chunk]))]
        for below in range(chunk + 1):
            back = MemoryUse(float(values_s[:below].sum()), float(self.activation[:below].sum()))
            behind = [MemoryUse(float(self.weight_s[j]), float(self.kept[j])) for j in chunks[below:]]
            for size in range(len(behind) + 1 if few else 1):
                states += [_together([back, *some]) for some in combinations(behind, size)]
        if not few:  # as if each W belonged to a different microbatch
            states += [MemoryUse(float(w), float(k)) for w, k in zip(self.weight_s, self.kept, strict=True)]
        parts = 1 if few else len(chunks) + 1
        return min(knapsack_bound(states, count=count * parts, capacity=room), count * whole_s)

    def are_apart(self, first: int, last: int) -> bool:
        """True if the first backward of chunk `first` must start before the last forward of chunk `last`."""
        return bool(self.capacity < self.count * self.held[min(first, last)])

    def turns_s(self) -> Iterator[float]:
        """Yield lower bounds on the start of the rank's last backward by Little's law.

        Memory limits the number of microbatches at once, and each stays for a minimum time.
        """
        down, up = self.problem.down_s, self.problem.up_s
        for turn in in_flight_limits(self.activation, self.kept, self.capacity):
            if turn.in_flight >= self.count:
                continue
            start, back = self.stages[turn.forward], self.stages[turn.backward]
            last = self.problem.input_s if turn.until is Op.I else self.problem.split_s
            num_turns = int((self.count - 1) // turn.in_flight)
            seconds = num_turns * float(down[start] + up[back] + last[back])
            seconds += (self.count - 1 - num_turns * turn.in_flight) * float(self.forward_s[turn.forward])
            yield float(down[self.first]) + seconds + self.up_s


class _Trips(NamedTuple):
    num: int
    idle_s: float


class InFlightLimit(NamedTuple):
    """Limit on the number of microbatches of a rank between a forward and the end of an I or W.

    `forward` and `backward` are indices of the rank's stages.
    """

    forward: int
    until: Op
    backward: int
    in_flight: float


def in_flight_limits(activation: Floats, kept_for_weight: Floats, capacity: float) -> Iterator[InFlightLimit]:
    held = np.cumsum(activation)
    for forward in range(len(held)):
        room = capacity - held[forward]
        for backward in range(forward + 1):
            yield InFlightLimit(forward, Op.I, backward, 1 + _times(room, held[backward]))
            yield InFlightLimit(forward, Op.W, backward, 1 + _times(room, kept_for_weight[backward]))


def _above(values: Floats) -> Floats:
    sums: Floats = values.sum() - np.cumsum(values)
    return sums


def _together(states: Sequence[MemoryUse]) -> MemoryUse:
    return MemoryUse(sum(state.value for state in states), sum(state.size for state in states))


def _times(capacity: float, size: float) -> float:
    return capacity // size if size > 0 and capacity < np.inf else np.inf


_MOST_COMBINED = 4  # chunks up to which all combinations of postponed W are tried
