"""Lower bounds from interactions of ranks (docs/notes/bounds.md, section 7).

A *head* is a lower bound on the time from the first start to the start of an action, a *tail* on the time from its
end to the last end.
"""

from collections.abc import Sequence
from math import ceil
from typing import TypeAlias

import numpy as np

from ppsim.base.arrays import distinct
from ppsim.simulation.bounds.problem import Problem

Job: TypeAlias = tuple[float, float]
"""Head or tail of an action, and its duration."""

Table: TypeAlias = list[list[list[Job]]]
"""Jobs of all microbatches so far, per kind (F, I, W) and stage."""

_F, _I, _W = range(3)
_NEVER = -np.inf  # head of an action that may run before the first start, or tail after the last end
_ROUNDING = 1e-9  # tolerance for rounded counts and amounts

MOST_COUPLED = 128  # largest microbatches × stages, for the step time and the span of the first stage's rank
MOST_SPANS = 64  # the same for the spans of all ranks


def coupled_bounds(problem: Problem) -> tuple[float, float]:
    """Return lower bounds on step time and span in seconds, or 0 if the problem is too large.

    The bounds include the host time before the first start (`Problem.overhead_s`). For any set of actions
    of one rank, the smallest head, the sum of durations and the smallest tail add up to a lower bound (Jackson
    1955; Carlier, EJOR 11, 1982). A head or tail follows from the path of the microbatch, the order of actions on
    the rank, or the memory that must be freed.
    """
    size = problem.num_stages * problem.num_microbatches
    if size > MOST_COUPLED:
        return 0.0, 0.0
    coupled = _Coupled(problem.with_cheapest_backwards())
    start = coupled.heads(0)
    ranks = range(problem.num_ranks) if size <= MOST_SPANS else [int(problem.stage_to_rank[0])]
    spans = []
    for rank in ranks:
        first = problem.stages_of[rank][0]
        heads = coupled.heads(first) if first else start
        spans.append(coupled.longest_s(heads, coupled.tails(rank)))
    return coupled.longest_s(start, coupled.tails(None)), max(spans)


class _Coupled:
    def __init__(self, problem: Problem) -> None:
        self.problem, self.count = problem, problem.num_microbatches
        self.seconds = [a.tolist() for a in (problem.forward_s, problem.input_s, problem.weight_s)]
        self.hop_s: list[float] = [*problem.hop_s.tolist(), 0.0]
        self.activation: list[float] = problem.activation.tolist()
        self.kept: list[float] = problem.kept.tolist()
        self.chunk_of = {stage: (some, u) for some in problem.stages_of for u, stage in enumerate(some)}
        self.last = problem.num_stages - 1

    def heads(self, first: int) -> Table:
        """Return the minimum seconds from the start of the first F of stage `first` to the start of every action.

        The heads of F of earlier stages are `_NEVER`, because these may start before.
        """
        heads = self._empty()
        for number in range(self.count):
            for stage in range(self.last + 1):
                head = self._head_of_forward(heads, stage, number, first) if stage >= first else _NEVER
                self._add(heads, _F, stage, head)
            for stage in reversed(range(self.last + 1)):
                self._add(heads, _I, stage, self._head_of_backward(heads, stage, number))
                self._add(heads, _W, stage, max(_end_s(heads[_I][stage]), _end_s(heads[_W][stage])))
        return heads

    def _add(self, table: Table, op: int, stage: int, time_s: float) -> None:
        table[op][stage].append((time_s, self.seconds[op][stage]))

    def tails(self, rank: int | None) -> Table:
        """Return the minimum seconds from every end to the last end of a rank (None: of all ranks).

        Microbatches are in reverse order.
        """
        tails = self._empty()
        for later in range(self.count):
            for stage in range(self.last + 1):
                is_asked = rank is None or self.problem.stage_to_rank[stage] == rank
                self._add(tails, _W, stage, later * self.seconds[_W][stage] if is_asked else _NEVER)
                self._add(tails, _I, stage, self._tail_of_backward(tails, stage, later))
            for stage in reversed(range(self.last + 1)):
                self._add(tails, _F, stage, self._tail_of_forward(tails, stage))
        return tails

    def longest_s(self, heads: Table, tails: Table) -> float:
        longest = 0.0
        for stages in self.problem.stages_of:
            head, seconds = np.array([job for op in heads for stage in stages for job in op[stage]]).T
            tail, _ = np.array([job for op in tails for stage in stages for job in reversed(op[stage])]).T
            latest = np.argsort(-head, kind="stable")
            head, seconds, tail = head[latest], seconds[latest], tail[latest]
            least = distinct(tail[tail > _NEVER])[:, None]
            sums = head + np.cumsum(np.where(tail >= least, seconds, 0.0), axis=1) + least
            longest = max(longest, float(sums.max(where=tail >= least, initial=0.0)))
        return longest

    def _empty(self) -> Table:
        return [[[] for _ in self.chunk_of] for _ in self.seconds]

    def _head_of_forward(self, heads: Table, stage: int, number: int, first: int) -> float:
        stages, u = self.chunk_of[stage]
        below = stages[: u + 1]
        arrival_s = _end_s(heads[_F][stage - 1]) + self.hop_s[stage - 1] if stage > first else 0.0
        before, lacking = _jobs(heads[_F], below), self._lacking(below, number + 1)
        if lacking > 0:
            inputs, weights = (_jobs(heads[op], stages) for op in (_I, _W))
            before += self._freeing(inputs, stages, number, lacking, of=_I)
            before += self._freeing(weights, stages, number, lacking, of=_W)
            arrival_s = max(arrival_s, self._until_freed_s(heads, stages, lacking))
        return max(arrival_s, _one_after_another_s(before))

    def _head_of_backward(self, heads: Table, stage: int, number: int) -> float:
        stages, u = self.chunk_of[stage]
        above = heads[_I][stage + 1] if stage < self.last else heads[_F][stage]
        arrival_s = _end_s(above) + self.hop_s[stage]
        before = _jobs(heads[_F], stages) + _jobs(heads[_I], stages[u:])
        lacking = self._lacking(stages, number + 1)
        if lacking > 0:  # the I that free this amount may be in `before`
            weights = [job for j in stages for job in heads[_W][j][:number]]
            before += self._freeing(weights, stages, number, lacking, of=_W)
        return max(arrival_s, _one_after_another_s(before), 0.0)

    def _tail_of_backward(self, tails: Table, stage: int, later: int) -> float:
        stages, u = self.chunk_of[stage]
        below = stages[: u + 1]
        arrival_s = _end_s(tails[_I][stage - 1]) + self.hop_s[stage - 1] if stage > 0 else _NEVER
        after, lacking = _jobs(tails[_W], below) + _jobs(tails[_I], below), self._lacking(below, later + 1)
        if lacking > 0:
            sizes = [(_end_s([job]), self.activation[j]) for j in below for job in tails[_F][j]]
            arrival_s = max(arrival_s, _until_s(sizes, lacking))
            after += _fewest(_jobs(tails[_F], below), lacking, max(self.activation[j] for j in below))
        return max(arrival_s, _one_after_another_s(after))

    def _tail_of_forward(self, tails: Table, stage: int) -> float:
        stages, u = self.chunk_of[stage]
        above = tails[_F][stage + 1] if stage < self.last else tails[_I][stage]
        arrival_s = _end_s(above) + self.hop_s[stage]
        after = _jobs(tails[_F], stages[u:]) + _jobs(tails[_I], stages) + _jobs(tails[_W], stages)
        return max(arrival_s, _one_after_another_s(after))

    def _lacking(self, stages: Sequence[int], count: int) -> float:
        """Memory of `count` microbatches beyond the rank's cap."""
        held = count * sum(self.activation[stage] for stage in stages)
        return held - float(self.problem.cap[self.problem.stage_to_rank[stages[0]]])

    def _freeing(self, jobs: list[Job], stages: Sequence[int], count: int, lacking: float, *, of: int) -> list[Job]:
        """Return the fewest I or W that free the missing memory."""
        if of == _I:
            return _fewest(jobs, lacking, max(self.activation[stage] for stage in stages))
        by_inputs = count * sum(self.activation[stage] - self.kept[stage] for stage in stages)
        return _fewest(jobs, lacking - by_inputs, max(self.kept[stage] for stage in stages))

    def _until_freed_s(self, heads: Table, stages: Sequence[int], lacking: float) -> float:
        freed = []
        for stage in stages:
            kept, part = self.kept[stage], self.activation[stage] - self.kept[stage]
            freed += [(_end_s([job]), part) for job in heads[_I][stage]]
            freed += [(_end_s([job]), kept) for job in heads[_W][stage]]
        return _until_s(freed, lacking)


def _end_s(jobs: Sequence[Job]) -> float:
    return sum(jobs[-1]) if jobs else _NEVER


def _jobs(of_stages: list[list[Job]], stages: Sequence[int]) -> list[Job]:
    return [job for stage in stages for job in of_stages[stage]]


def _one_after_another_s(jobs: list[Job]) -> float:
    end = _NEVER
    for head, seconds in sorted(jobs):
        end = (head if head > end else end) + seconds
    return end


def _fewest(jobs: list[Job], amount: float, size: float) -> list[Job]:
    """Return the fewest jobs of at most `size` that sum to `amount`: smallest heads, all of shortest duration."""
    if amount <= 0 or size <= 0 or not jobs:
        return []
    shortest = min(seconds for _, seconds in jobs)
    return [(time, shortest) for time, _ in sorted(jobs)[: ceil(amount / size - _ROUNDING)]]


def _until_s(jobs: list[tuple[float, float]], amount: float) -> float:
    """Return the earliest time at which (time, size) pairs sum to `amount`."""
    time = _NEVER
    for time, size in sorted(jobs):  # noqa: B007
        amount -= size
        if amount <= _ROUNDING * size:
            break
    return time
