"""`--split auto`: the layers per stage with the shortest iteration, by a local search over simulated splits.

Each simulated split gives a lower bound on the iteration of every other split: its critical path, at the other
split's costs. A path is a linear function of the layers per stage, and so is the work of each rank. The search moves
layers one at a time while the largest of these bounds falls, simulates the split where it stops, and adds the critical
path of that split to the bounds. It ends when no move is left that may be faster, or after a fixed number of simulations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ppsim.base.arrays import Floats, Numbers
from ppsim.costs.assembled import Assembled
from ppsim.layout.balance import Functions, Ints, moved, possible_moves
from ppsim.layout.split import even_split
from ppsim.schedule.table import NONE, Op
from ppsim.simulation.bounds.problem import CAP_ROUNDING
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.step import Step

_MOST_TRIALS = 16
"""Splits that are simulated at most."""

_LEAST_TRIALS, _MOST_NODES = 3, 100_000
"""Fewer are simulated of a large table, as many as have so many nodes of the event graph together."""

_GAIN = 2e-4
"""A split is simulated if its bound says that it may be faster by more than this part of the iteration."""

_MARGIN = 5e-3
"""Bounds of jobs whose costs are not quite linear in the layers may be off by this part."""

_MOST_MOVES = 256
"""Moves that are weighed against all bounds, those that lower the largest one most."""


@dataclass(frozen=True)
class Trial:
    """A simulated split, its costs without what passes vary by, and the seconds of its iteration."""

    counts: tuple[int, ...]
    assembled: Assembled
    costs: StageCosts
    step: Step
    seconds: float

    @property
    def peak_bytes(self) -> Floats:
        """The peak of each rank."""
        return self.step.timeline.memory.peak_bytes


class SplitSearch:
    """One search: `simulate` makes the trial of a split, or of the balanced one if it is given None."""

    def __init__(
        self,
        simulate: Callable[[tuple[int, ...] | None], Trial],
        layer_seconds: Sequence[float],
        limit_bytes: float | None,
    ) -> None:
        self._simulate, self._limit = simulate, np.inf if limit_bytes is None else limit_bytes * CAP_ROUNDING
        start = simulate(None)
        num_stages = len(start.counts)
        self._trials: dict[tuple[int, ...], Trial] = {}
        self._mean_layer_s = float(np.mean(layer_seconds))
        self._seconds = Functions(layer_seconds, num_stages)
        self._bytes = Functions([1.0] * len(layer_seconds), num_stages)
        most = _MOST_NODES // start.step.timeline.graph.num_nodes
        self._most_trials = min(_MOST_TRIALS, max(_LEAST_TRIALS, most))
        self._seconds.add(*_rank_bounds(start))
        self._add(start)

    def best(self) -> Trial:
        """Return the best split found, never a slower one than the even split unless only it fits."""
        self._find_room()
        self._go_down()
        even = tuple(even_split(sum(self._best.counts), len(self._best.counts)))
        if even not in self._trials and not self._is_slower(even):
            self._try(even)
            self._go_down()
        return self._best

    @property
    def _best(self) -> Trial:
        """Of those that fit, or of all if none fits, the fastest; of equals the most even."""
        fitting = [one for one in self._trials.values() if one.peak_bytes.max() <= self._limit]
        best_s = min(one.seconds for one in fitting or self._trials.values())
        equal = [one for one in fitting or self._trials.values() if one.seconds <= best_s * (1 + 1e-9)]
        return min(equal, key=lambda one: (sum(count**2 for count in one.counts), one.seconds, one.counts))

    def _is_slower(self, counts: tuple[int, ...]) -> bool:
        """Whether the bounds say for sure that a split is slower than the best."""
        return bool(self._seconds.values(counts).max() > self._best.seconds * (1 + _MARGIN))

    def _try(self, counts: tuple[int, ...]) -> None:
        self._add(self._simulate(counts))

    def _add(self, trial: Trial) -> None:
        self._trials[trial.counts] = trial
        weights = _path_weights(trial, self._mean_layer_s)
        self._seconds.add(weights[None, :], trial.counts, np.array([trial.seconds]))
        if np.isfinite(self._limit):
            self._bytes.add(_byte_weights(trial), trial.counts, trial.peak_bytes)

    def _find_room(self) -> None:
        """Simulate splits whose fullest rank holds less until one fits, if any may fit."""
        while self._best.peak_bytes.max() > self._limit and len(self._trials) < self._most_trials:
            least = min(self._trials.values(), key=lambda one: float(one.peak_bytes.max()))
            counts, bytes_ = self._descend(self._bytes, least.counts, enough=self._limit)
            if bytes_ > self._limit or counts in self._trials:
                return
            self._try(counts)

    def _go_down(self) -> None:
        """Simulate splits that may be faster than the best, starting from the best."""
        while len(self._trials) < self._most_trials:
            counts, bound_s = self._descend(self._seconds, self._best.counts)
            if bound_s > self._best.seconds * (1 - _GAIN) or counts in self._trials:
                return
            self._try(counts)

    def _descend(
        self, functions: Functions, counts: tuple[int, ...], *, enough: float = -np.inf
    ) -> tuple[tuple[int, ...], float]:
        """Move layers while that lowers the largest of the functions; return the split and that largest value."""
        keeps_limit = functions is self._seconds and self._best.peak_bytes.max() <= self._limit
        values = functions.values(counts)
        while values.max() > enough:
            giving, taking = possible_moves(counts)
            of_largest = functions.changes(counts, giving, taking, [int(values.argmax())])[0]
            chosen = np.argsort(of_largest, kind="stable")[:_MOST_MOVES]
            chosen = chosen[of_largest[chosen] < 0]
            giving, taking = giving[chosen], taking[chosen]
            if keeps_limit and len(self._bytes):
                held = self._bytes.values(counts)[:, None] + self._bytes.changes(counts, giving, taking)
                giving, taking = (one[held.max(axis=0) <= self._limit] for one in (giving, taking))
            if not len(giving):
                break
            after = (values[:, None] + functions.changes(counts, giving, taking)).max(axis=0)
            best = int(after.argmin())
            if after[best] >= values.max() * (1 - 1e-9):
                break
            counts = moved(counts, int(giving[best]), int(taking[best]))
            values = functions.values(counts)
        return counts, float(values.max())


def _rank_bounds(trial: Trial) -> tuple[Floats, tuple[int, ...], Floats]:
    """Weights and values of the bounds by each rank's work: filling, all its actions, draining.

    A weight is in times of F + B of a stage. The values are those of the trial.
    """
    timeline, step = trial.step.timeline, trial.step
    schedule, costs = timeline.schedule, timeline.costs
    num_ranks, num_stages = schedule.num_ranks, schedule.num_model_stages
    forward_s, work_s = costs.forward_s[:num_stages], (costs.forward_s + costs.backward_s)[:num_stages]
    part = np.divide(forward_s, work_s, out=np.zeros(num_stages), where=work_s > 0)
    is_forward = schedule.op == Op.F
    place = schedule.rank[is_forward] * num_stages + schedule.model_stage[schedule.stage[is_forward]]
    weights = np.bincount(place, minlength=num_ranks * num_stages).reshape(num_ranks, num_stages)
    weights = weights / schedule.num_slices
    first = (weights > 0).argmax(axis=1)
    ways = (np.arange(num_stages) < first[:, None]) * (part if schedule.splits_backward else 1.0)
    if schedule.num_replicas > 1:
        ways = np.zeros_like(ways)
    around_s = trial.seconds - timeline.step_time_s
    around_s -= sum(step.exposed_s[name] for name in ("gather", "reduce", "share"))
    values = timeline.busy_s + ways @ work_s + max(0.0, around_s)
    return weights + ways, trial.counts, values


def _path_weights(trial: Trial, mean_layer_s: float) -> Floats:
    """The weight of each stage on the critical path of an iteration, in times of its F + B."""
    timeline, around = trial.step.timeline, trial.assembled.around
    schedule, costs = timeline.schedule, timeline.costs
    num_stages = schedule.num_stages
    weights = np.zeros(num_stages)
    rank, node, reduced = _last_node(trial)
    layers = np.array(trial.counts)[schedule.model_stage]
    weights[reduced] += _per_layer(around.reduce_s, layers)
    slowest = int(np.argmax(np.broadcast_to(around.optimizer_s, schedule.num_ranks)))
    rank = slowest if around.update == "synchronised" else rank
    of_ranks = np.bincount(schedule.stage_to_rank, weights=layers, minlength=schedule.num_ranks)
    weights[schedule.stage_to_rank == rank] += _per_layer(around.optimizer_s, of_ranks)
    weights /= mean_layer_s

    passes = np.zeros((4, num_stages))
    blocker, num_actions = timeline.blocker.tolist(), timeline.num_actions
    path = []
    while node != NONE:
        if node < num_actions:
            path.append(node)
        node = blocker[node]
    np.add.at(passes, (schedule.op[path], schedule.stage[path]), 1.0 / schedule.num_slices)
    work_s = costs.forward_s + costs.backward_s
    seconds = [costs.forward_s, costs.backward_s, costs.backward_input_s, costs.backward_weight_s]
    on_path = (passes * seconds).sum(axis=0)
    weights += np.divide(on_path, work_s, out=np.zeros(num_stages), where=work_s > 0)
    of_model = np.bincount(schedule.model_stage, weights=weights, minlength=schedule.num_model_stages)
    found: Floats = of_model * (1 + around.straggling)
    return found


def _last_node(trial: Trial) -> tuple[int, int, list[int]]:
    """The rank that ends an iteration, the last action before its end, and the stages reduced behind that action."""
    timeline, step = trial.step.timeline, trial.step
    schedule, ends = timeline.schedule, timeline.rank_end_s.copy()
    reduces = [piece for piece in step.pieces if piece.kind == "reduce"]
    for piece in reduces:
        ends[piece.rank] = max(ends[piece.rank], piece.end_s)
    if trial.assembled.around.update != "synchronised":
        ends = ends + trial.assembled.around.optimizer_s - timeline.rank_begin_s
    rank = int(ends.argmax())
    mine = slice(int(schedule.rank_offsets[rank]), int(schedule.rank_offsets[rank + 1]))
    own = [piece for piece in reduces if piece.rank == rank]
    if not own or own[-1].end_s <= timeline.rank_end_s[rank]:
        return rank, mine.start + int(timeline.end[mine].argmax()), []
    chain = [own[-1]]
    for before, after in reversed(list(pairwise(own))):
        if after.start_s > before.end_s:
            break
        chain.append(before)
    of_stage = (schedule.stage[mine] == chain[-1].stage) & (schedule.op[mine] != Op.F)
    last = int(np.where(of_stage, timeline.end[mine], -np.inf).argmax())
    return rank, mine.start + last, [piece.stage for piece in chain]


def _per_layer(values: Numbers, layers: Floats | Ints) -> float:
    """What one more layer adds to a value of stages or ranks: of a stage without embedding and head, its share."""
    values = np.broadcast_to(values, len(layers))
    shares = values[layers > 0] / layers[layers > 0]
    return float(shares.min(initial=np.inf)) if len(shares) else 0.0


def _byte_weights(trial: Trial) -> Floats:
    """What one more layer of each stage adds to the peak of each rank, in the shape [ranks, stages of the model]."""
    timeline = trial.step.timeline
    schedule, costs, peak_at = timeline.schedule, timeline.costs, timeline.memory.peak_at
    layers = np.array(trial.counts)[schedule.model_stage]
    in_flight = np.zeros((schedule.num_ranks, schedule.num_stages))
    change = np.array([1.0, -1.0, 0.0, -1.0])[schedule.op] / schedule.num_slices
    for rank, (begin, end) in enumerate(pairwise(schedule.rank_offsets.tolist())):
        mine = slice(begin, int(min(peak_at[rank] + 1, end)))
        in_flight[rank] = np.bincount(schedule.stage[mine], weights=change[mine], minlength=schedule.num_stages)
    of_ranks = np.bincount(schedule.stage_to_rank, weights=layers, minlength=schedule.num_ranks)
    weights = np.maximum(in_flight, 0.0) * _per_layer(costs.activation_bytes, layers)
    holds = schedule.stage_to_rank == np.arange(schedule.num_ranks)[:, None]
    weights += holds * _per_layer(costs.static_bytes, of_ranks)
    found: Floats = np.stack(
        [np.bincount(schedule.model_stage, weights=row, minlength=schedule.num_model_stages) for row in weights]
    )
    return found
