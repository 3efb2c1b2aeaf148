"""Linear lower bounds from a simulated split on the iteration time and bytes of other splits.

Weights of time are seconds per second of F + B of a stage's layers; weights of bytes are per layer. Time and bytes
are convex in the number of layers, so a tangent at the simulated split is a lower bound.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.costs.stage_cost_set import LayerCosts, StageCostSet
from ppsim.schedule.table import NONE, Op
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.step import StepActivity, TrainingStep


@dataclass(frozen=True)
class SimulatedSplit:
    """A simulated split, its costs without variation of actions, and its iteration time."""

    counts: tuple[int, ...]
    stage_cost_set: StageCostSet
    costs: StageCosts
    step: TrainingStep
    seconds: float

    @property
    def peak_bytes(self) -> Floats:
        return self.step.timeline.memory.peak_bytes


def rank_bounds(trial: SimulatedSplit, layer: LayerCosts) -> tuple[Floats, tuple[int, ...], Floats]:
    """Return the bounds by compute: weights [ranks, stages], the trial's split, and compute time of each rank."""
    schedule = trial.step.timeline.schedule
    shape = schedule.num_ranks, schedule.num_model_stages
    cells = np.ravel_multi_index((schedule.rank, schedule.model_stage[schedule.stage]), shape)
    passes_s = slopes(trial, layer)[schedule.op, schedule.stage] / schedule.num_slices
    weights = np.bincount(cells, weights=passes_s, minlength=shape[0] * shape[1]).reshape(shape)
    return weights / _mean(layer), trial.counts, trial.step.timeline.busy_s


def path_weights(trial: SimulatedSplit, layer: LayerCosts) -> Floats:
    timeline, around = trial.step.timeline, trial.stage_cost_set.step_costs
    schedule, blocker = timeline.schedule, timeline.blocker.tolist()
    slope = slopes(trial, layer)
    rank, node, added_s = _end(trial, layer, slope)
    path = [node]
    while blocker[node] != NONE:
        node = blocker[node]
        path.append(node)
    if around.update == "synchronised":
        rank = int(np.argmax(np.broadcast_to(around.optimizer_s, schedule.num_ranks)))
    added_s[schedule.stage_to_rank == rank] += layer.optimizer_s
    actions = np.array(path)[np.array(path) < timeline.num_actions]
    passes = np.zeros((len(slope), schedule.num_stages))
    np.add.at(passes, (schedule.op[actions], schedule.stage[actions]), 1.0 / schedule.num_slices)
    added_s += (passes * slope).sum(axis=0)
    of_model = np.bincount(schedule.model_stage, weights=added_s, minlength=schedule.num_model_stages)
    return np.asarray(of_model * (1 + around.straggling) / _mean(layer), dtype=np.float64)


def byte_weights(trial: SimulatedSplit, layer: LayerCosts) -> Floats:
    """Return the bytes that one more layer on a stage adds to the peak of a rank, as a matrix [ranks, stages]."""
    timeline = trial.step.timeline
    schedule, peak_at = timeline.schedule, timeline.memory.peak_at
    in_flight = np.zeros((schedule.num_ranks, schedule.num_stages))
    change = np.array([1.0, -1.0, 0.0, -1.0])[schedule.op] / schedule.num_slices
    for rank, begin in enumerate(schedule.rank_offsets[:-1].tolist()):
        until_peak = slice(begin, int(peak_at[rank]) + 1)
        in_flight[rank] = np.bincount(
            schedule.stage[until_peak], weights=change[until_peak], minlength=schedule.num_stages
        )
    holds = schedule.stage_to_rank == np.arange(schedule.num_ranks)[:, None]
    weights = np.maximum(in_flight, 0.0) * layer.activation_bytes + holds * layer.static_bytes
    return np.stack(
        [np.bincount(schedule.model_stage, weights=row, minlength=schedule.num_model_stages) for row in weights]
    )


def slopes(trial: SimulatedSplit, layer: LayerCosts) -> Floats:
    """Return the seconds that one more layer adds to F, B, I and W of each stage, of shape [4, stages].

    The time of stages that wait for data-parallel collectives grows with the collectives, not with the compute.
    """
    schedule, costs = trial.step.timeline.schedule, trial.step.timeline.costs
    seconds = np.repeat(layer.passes_s[:, None], schedule.num_stages, axis=1)
    if trial.stage_cost_set.parts and not np.array_equal(layer.passes_s, layer.exposed_s):
        parts = [trial.stage_cost_set.parts[stage] for stage in schedule.model_stage.tolist()]
        exposed_s = np.array([
            [one.dp_s for one in (part.forward, part.backward, part.backward_input, part.backward_weight)]
            for part in parts
        ]).T  # fmt: skip
        seconds = np.where(exposed_s > 0, layer.exposed_s[:, None], seconds)
        seconds[Op.B] = seconds[Op.I] + seconds[Op.W]
    without_input = (costs.backward_input_s == 0) & (costs.backward_weight_s > 0)  # torch's first stage
    seconds[Op.W, without_input], seconds[Op.I, without_input] = seconds[Op.B, without_input], 0.0
    return seconds


def _mean(layer: LayerCosts) -> float:
    return float(layer.work_s.mean()) or 1.0


def _end(trial: SimulatedSplit, layer: LayerCosts, slope: Floats) -> tuple[int, int, Floats]:
    """Return the rank that ends last, the action that this end waits for, and a number per stage.

    The number is the seconds that one more layer on this stage adds after this action.
    """
    timeline, around = trial.step.timeline, trial.stage_cost_set.step_costs
    schedule, ends = timeline.schedule, timeline.rank_end_s.copy()
    reduces = [piece for piece in trial.step.pieces if piece.kind == "reduce"]
    for piece in reduces:
        ends[piece.rank] = max(ends[piece.rank], piece.end_s)
    rank, added_s = _shared(trial, ends)
    row = slice(int(schedule.rank_offsets[rank]), int(schedule.rank_offsets[rank + 1]))
    last = row.start + int(timeline.end[row].argmax())
    own = [piece for piece in reduces if piece.rank == rank]
    if not own or own[-1].end_s <= timeline.rank_end_s[rank]:
        return rank, last, added_s
    chain = _chain(own)
    for piece in chain:
        added_s[piece.stage] += layer.reduce_s
    if not around.overlap_reduce:
        return rank, last, added_s
    of_stage = (schedule.stage[row] == chain[0].stage) & (schedule.op[row] != Op.F)
    node = row.start + int(np.where(of_stage, timeline.end[row], -np.inf).argmax())
    pass_s, grows_s = (
        float(timeline.end[node] - timeline.start[node]),
        float(slope[schedule.op[node], chain[0].stage]),
    )
    took_s = chain[0].end_s - chain[0].start_s
    added_s[chain[0].stage] -= _hidden(trial, chain[0].stage, took_s, layer.reduce_s, pass_s, grows_s)
    return rank, node, added_s


def _shared(trial: SimulatedSplit, reduced: Floats) -> tuple[int, Floats]:
    """Return the rank whose gradients end the iteration, and a number per stage.

    The number is the seconds that one more layer on this stage adds to reductions over model replicas.
    """
    timeline, around = trial.step.timeline, trial.stage_cost_set.step_costs
    schedule, ends = timeline.schedule, reduced.copy()
    num_stages, rank_of = schedule.num_model_stages, schedule.stage_to_rank
    stages = [stage for stage in range(num_stages) if len(set(rank_of[stage::num_stages].tolist())) > 1]
    others = len(around.sharing) - len(stages)  # groups of tied embeddings come first
    seconds = np.array([group.seconds for group in around.sharing[others:]])
    layers = np.array(trial.counts)[stages]
    per_layer = float((seconds[layers > 0] / layers[layers > 0]).min(initial=np.inf)) if len(seconds) else 0.0
    origin, added = np.arange(schedule.num_ranks), np.zeros((schedule.num_ranks, schedule.num_stages))
    for index, group in enumerate(around.sharing):
        ranks = np.array(group.ranks)
        last = ranks[ends[ranks].argmax()]
        ends[ranks], origin[ranks], added[ranks] = ends[last] + group.seconds, origin[last], added[last].copy()
        if index >= others and np.isfinite(per_layer):
            added[ranks, stages[index - others]] += per_layer
    if around.update != "synchronised":
        ends = ends + around.optimizer_s - timeline.rank_begin_s
    rank = int(ends.argmax())
    return int(origin[rank]), added[rank]


def _chain(pieces: list[StepActivity]) -> list[StepActivity]:
    first = len(pieces) - 1
    for before, after in reversed(list(pairwise(pieces))):
        if after.start_s > before.end_s:
            break
        first -= 1
    return pieces[first:]


def _hidden(
    trial: SimulatedSplit, stage: int, took_s: float, grows_s: float, pass_s: float, pass_grows_s: float
) -> float:
    """Return the seconds that one more layer adds to the hidden part of a collective (all buckets but one)."""
    buckets = np.broadcast_to(trial.stage_cost_set.step_costs.num_buckets, trial.step.timeline.schedule.num_stages)[
        stage
    ]
    hidden = 1 - 1 / max(float(buckets), 1.0)
    return hidden * (pass_grows_s if pass_s < took_s else grows_s)
