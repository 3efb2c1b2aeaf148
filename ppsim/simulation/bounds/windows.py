"""Lower bound from neighbouring ranks: the optimum if only these are busy and all other ranks only delay.

Dynamic programming over tables that grow action by action (docs/notes/bounds.md, section 7).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats, Ints32, Ints64
from ppsim.schedule.table import Op
from ppsim.simulation.bounds.problem import Criterion, Problem

_BITS = 36  # bits for the duration of a microbatch's path in ticks: few enough that sums are exact
_MOST_TABLES, _MOST_AT_ONCE = 400_000, 4_000  # tables per search, and per number of actions
_MOST_COMPARED = 24  # tables with the same actions to compare with
_MOST_SEARCHED = 8  # microbatches; the times of further ones are extrapolated from the last ones
_MOST_TURNS = 4  # largest period of the steady state in microbatches
_ENDLESS = 2**30  # microbatches, beyond any search


def window_bound(problem: Problem, criterion: Criterion, *, time_limit_s: float = np.inf) -> float:
    """Return the largest bound in seconds of any window of neighbouring ranks; 0 if no search ends.

    >>> unit = {"forward_s": 1, "backward_input_s": 1, "backward_weight_s": 1}
    >>> window_bound(Problem.of(stage_to_rank=[0, 1, 1, 0], num_microbatches=2, cap=3, **unit), "step")
    15.0
    """
    problem, until = problem.with_cheapest_backwards(), perf_counter() + time_limit_s

    def least_s(first: int, last: int) -> float:
        try:
            return _Window(problem, range(first, last + 1), criterion, until=until).least_s(
                problem.num_microbatches
            )
        except _TooManyTablesError:
            return 0.0

    found = {(rank, rank): least_s(rank, rank) for rank in range(problem.num_ranks)}
    more = found
    while any(more.values()):
        first, last = max(more, key=lambda window: more[window])
        wider = {(max(first - 1, 0), last), (first, min(last + 1, problem.num_ranks - 1))}
        more = {window: least_s(*window) for window in sorted(wider - found.keys())}
        found |= more
    return max(0.0, max(found.values()) - problem.overhead_s)


class _TooManyTablesError(Exception):
    """Raised if a window has too many tables or the time is over."""


@dataclass(frozen=True, eq=False)
class _Tables:
    """Partial tables: number of runs per action [tables, actions], and times [tables, columns].

    Columns of `ticks`: the end of each rank; the end of the ranks before the window; the time at which each waiting
    microbatch can continue (`_Window.waiting`). -inf: not set.
    """

    runs: Ints32
    ticks: Floats

    def __getitem__(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> "_Tables":
        return _Tables(self.runs[chosen], self.ticks[chosen])

    @cached_property
    def numbers(self) -> Ints64:
        """Key that is equal for tables with the same actions."""
        apart = -np.diff(self.runs, axis=1)
        digits = apart - apart.min(initial=0)
        base = int(max(digits.max(initial=0), self.runs.max())) + 1
        if base ** self.runs.shape[1] >= 2**63:
            raise _TooManyTablesError
        numbers: Ints64 = np.column_stack((self.runs[:, 0], digits)) @ base ** np.arange(self.runs.shape[1])
        return numbers

    def best(self) -> "_Tables":
        """Remove tables that are nowhere earlier than another table with the same actions.

        Each table is compared with `_MOST_COMPARED` others, so some such tables may remain.
        """
        same, ticks = self.numbers, self.ticks
        kept = np.lexsort((np.where(ticks > -np.inf, ticks, 0.0).sum(axis=1), same))
        for apart in range(1, _MOST_COMPARED + 1):
            one, other = kept[:-apart], kept[apart:]
            asked = np.flatnonzero(same[one] == same[other])
            is_later = (ticks[one[asked]] <= ticks[other[asked]]).all(axis=1)
            kept = np.delete(kept, asked[is_later] + apart)
        return self[kept]

    def later_by(self, earlier: "_Tables", turn: int) -> float:
        """Return the most ticks by which every table is later, in all columns, than some table of `earlier`.

        Tables of `earlier` have run `turn` fewer microbatches.
        """
        everything = _Tables(np.concatenate((self.runs - turn, earlier.runs)), np.zeros((0, 0)))
        mine, others = np.split(everything.numbers, [len(self.runs)])
        least = np.inf
        for actions in np.unique(mine):
            before, now = earlier.ticks[others == actions], self.ticks[mine == actions]
            if not len(before):
                return -np.inf
            is_set = (now > -np.inf).any(axis=0) | (before > -np.inf).any(axis=0)
            apart = now[:, None, is_set] - before[None, :, is_set]
            least = min(least, float(apart.min(axis=2).max(axis=1).min()))
        return least


class _Window:
    """Consecutive ranks and their actions: F and I in the order of a microbatch, then W."""

    def __init__(self, problem: Problem, ranks: range, criterion: Criterion, *, until: float) -> None:
        self.until = until
        stages = [stage for stage, rank in enumerate(problem.stage_to_rank) if rank in ranks]
        self.num_ranks, self.first = len(ranks), stages[0]
        self.way = [(Op.F, stage) for stage in stages] + [(Op.I, stage) for stage in reversed(stages)]
        self.actions = self.way + [(Op.W, stage) for stage in stages]
        self.rank = [int(problem.stage_to_rank[stage]) - ranks.start for _, stage in self.actions]
        self.cap = problem.cap[ranks.start : ranks.stop]
        self.before = [
            self.way.index((Op.I, stage)) if op is Op.W else index - 1
            for index, (op, stage) in enumerate(self.actions)
        ]
        self.seconds_of = {Op.F: problem.forward_s, Op.I: problem.input_s, Op.W: problem.weight_s}
        back_s = problem.down_s[0] + problem.up_s  # earliest start of I, as `reach_s` is for F
        at_s = {
            (op, stage): float(begin_s[stage])
            for op, begin_s in ((Op.F, problem.reach_s), (Op.I, back_s))
            for stage in range(problem.num_stages)
        }
        longest_s = max(back_s[0] + problem.input_s[0], *problem.weight_s)
        self.tick_s = max(float(np.ldexp(1.0, np.frexp(longest_s or 1.0)[1] - _BITS)), np.finfo(float).tiny)
        self.duration = [self._ticks(self.seconds_of[op][stage]) for op, stage in self.actions]
        self.delay = [
            self._ticks(at_s[then] - at_s[now] - self.seconds_of[now[0]][now[1]])
            for now, then in pairwise(self.way)
        ]
        freed = {Op.F: -problem.activation, Op.I: problem.activation - problem.kept, Op.W: problem.kept}
        self.takes = np.array([-freed[op][stage] for op, stage in self.actions])
        self._set_ends(problem, criterion, at_s)

    def _ticks(self, seconds: float) -> float:
        """Convert to ticks, rounded down so that the bound holds."""
        return float(max(seconds, 0.0) / self.tick_s // 1)

    def _set_ends(self, problem: Problem, criterion: Criterion, at_s: dict[tuple[Op, int], float]) -> None:
        """Set the time before the window (`head_s`) and the time after its last I on earlier ranks (`back`).

        With "span", `back` also includes the time from the first F of a rank before the window to the first F of
        the window. `ends` are the ranks of the window whose last action counts.
        """
        of_span = criterion == "span"
        self.head_s = 0.0 if of_span else at_s[Op.F, self.first]
        self.ends = [self.rank[0]] if of_span else list(range(self.num_ranks))
        back_s = at_s[Op.I, self.first] + problem.input_s[self.first]
        self.back = -np.inf
        for stage in (stages[0] for stages in problem.stages_of if stages[0] < self.first):
            left_s = at_s[Op.I, stage] + problem.split_s[stage] - back_s
            left_s += (at_s[Op.F, self.first] - at_s[Op.F, stage]) if of_span else 0.0
            self.back = max(self.back, self._ticks(left_s))

    @cached_property
    def waiting(self) -> dict[int, slice]:
        """Columns of `ticks` for microbatches between two actions, if the second does not follow immediately."""
        columns, begin = {}, self.num_ranks + 1
        for action, delay in enumerate(self.delay):
            if delay > 0 or self.rank[action] != self.rank[action + 1]:
                columns[action] = slice(begin, begin + int(min(self._most_waiting(action), _MOST_SEARCHED)))
                begin = columns[action].stop
        return columns

    def _most_waiting(self, action: int) -> float:
        """Return how many microbatches fit in memory if each has just run `action`, and W after every earlier I."""
        been = self.way[: action + 1]
        held = np.zeros(self.num_ranks)
        for before, (op, stage) in enumerate(been):
            if op is Op.F and (Op.I, stage) not in been:
                held[self.rank[before]] += self.takes[before]
        return float(np.min(self.cap[held > 0] / held[held > 0], initial=np.inf))

    def least_s(self, count: int) -> float:
        """Return the minimum seconds of a table; a lower bound if not all microbatches are searched."""
        if count <= _MOST_SEARCHED:
            return self._least_s(count)
        if any(self._most_waiting(action) >= _MOST_SEARCHED + 1 for action in self.waiting):
            raise _TooManyTablesError
        size = len(self.actions)
        layers = list(islice(self._layers(_ENDLESS), 0, (_MOST_SEARCHED + 1) * size + 1, size))
        turns = range(1, _MOST_TURNS + 1)
        each, turn = max((layers[-1].later_by(layers[-1 - turn], turn) / turn, turn) for turn in turns)
        searched = count - -(-(count - _MOST_SEARCHED) // turn) * turn
        return self._least_s(searched) + max(each, 0.0) * (count - searched) * self.tick_s

    def _least_s(self, count: int) -> float:
        *_, last = self._layers(count)
        ends = np.concatenate((last.ticks[:, self.ends], last.ticks[:, self.num_ranks, None]), axis=1)
        return self.head_s + float(ends.max(axis=1).min()) * self.tick_s

    def _layers(self, count: int) -> Iterator[_Tables]:
        num_columns = max([self.num_ranks + 1, *(columns.stop for columns in self.waiting.values())])
        tables = _Tables(np.zeros((1, len(self.actions)), dtype=np.int32), np.full((1, num_columns), -np.inf))
        tables.ticks[:, : self.num_ranks] = 0.0
        num_left = _MOST_TABLES
        for _ in range(count * len(self.actions)):
            yield tables
            parts = [self._after(tables, action, count) for action in range(len(self.actions))]
            tables = _Tables(
                np.concatenate([part.runs for part in parts]), np.concatenate([part.ticks for part in parts])
            ).best()
            num_left -= len(tables.runs)
            if num_left < 0 or len(tables.runs) > _MOST_AT_ONCE or perf_counter() > self.until:
                raise _TooManyTablesError
        yield tables

    def _after(self, tables: _Tables, action: int, count: int) -> _Tables:
        """Run an action at its earliest start in all tables that can run it next."""
        runs, rank, before = tables.runs, self.rank[action], self.before[action]
        can = runs[:, action] < (runs[:, before] if before >= 0 else count)
        if self.actions[action][0] is Op.F:
            held = runs @ np.where(np.equal(self.rank, rank), self.takes, 0.0)
            can &= held + self.takes[action] <= self.cap[rank]
        tables = tables[can]
        runs, ticks = tables.runs, tables.ticks
        begin = ticks[:, rank]
        if action < len(self.way) and before in self.waiting:
            column = self.waiting[before]
            begin = np.maximum(begin, ticks[:, column.start])
            ticks[:, column] = np.roll(ticks[:, column], -1, axis=1)
            ticks[:, column.stop - 1] = -np.inf
        end = begin + self.duration[action]
        ticks[:, rank] = end
        if action in self.waiting:
            place = self.waiting[action].start + runs[:, action] - runs[:, action + 1]
            ticks[np.arange(len(ticks)), place] = end + self.delay[action]
        if action == len(self.way) - 1:
            ticks[:, self.num_ranks] = end + self.back
        runs[:, action] += 1
        for behind, column in self.waiting.items():  # no microbatch continues before its rank is free
            if self.rank[behind + 1] == rank:
                is_set = ticks[:, column] > -np.inf
                ticks[:, column] = np.where(is_set, np.maximum(ticks[:, column], end[:, None]), -np.inf)
        return tables
