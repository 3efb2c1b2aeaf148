"""A training step: parameter all-gather, pipeline, gradient reduction, optimizer and the rest.

Data-parallel collectives have their own stream. Only the all-gather affects the pipeline: it delays forwards.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from ppsim.base.arrays import Floats, Numbers
from ppsim.base.errors import ConfigError
from ppsim.schedule.option_types import Update
from ppsim.schedule.rounds import one_round
from ppsim.schedule.table import Op, Schedule
from ppsim.simulation.simulate import simulate
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.timeline import Timeline


@dataclass(frozen=True)
class SharedGradients:
    """Gradients that several pipeline ranks sum: of tied embeddings, conditional embedders, replicated stages."""

    ranks: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True, eq=False)
class StepCosts:
    """Costs of a step outside its pipeline, in seconds.

    gather_s, reduce_s
        Per stage: all-gather of parameters before the first forward, and all-reduce or reduce-scatter of gradients
        after the last backward, over the data-parallel ranks.
    num_buckets
        Per stage: number of equal buckets of both collectives, or 1 / the exposed fraction of unequal ones. A
        gradient bucket is reduced when its part of the last backward is done; a forward starts when the first
        parameter bucket is gathered.
    overlap_gather, overlap_reduce
        False: a rank gathers everything before its first action, or reduces everything after its last.
    deferred_s
        Per rank: deferred weight gradients, computed after the rank's last action. Their reduction takes no time.
    deferred_ideal_s
        Their model FLOPs at the device's peak, mean over ranks.
    sharing
        Gradient sums among pipeline ranks, in this order.
    norm_s
        Gradient norm: all ranks wait for each other, then take this long.
    update
        "synchronised": the optimizer waits for the norm of all ranks. "post-validated" (Qi et al. 2024, §4): a rank
        updates when its own gradients are complete; the norm is checked later.
    rest_s
        Remaining host time per step.
    straggling
        Expected extra time of the slowest data-parallel rank, as a fraction of the pipeline's time.
    slow_rank
        Extra time of the slowest pipeline rank, as a fraction of its busy time.
    """

    gather_s: Numbers = 0.0
    reduce_s: Numbers = 0.0
    num_buckets: Numbers = 1.0
    overlap_gather: bool = True
    overlap_reduce: bool = True
    deferred_s: Numbers = 0.0
    deferred_ideal_s: float = 0.0
    sharing: tuple[SharedGradients, ...] = ()
    norm_s: float = 0.0
    optimizer_s: Numbers = 0.0
    update: Update = "synchronised"
    rest_s: float = 0.0
    straggling: float = 0.0
    slow_rank: float = 0.0

    def scaled(self, times: float) -> "StepCosts":
        """`rest_s`, `straggling` and `slow_rank` do not change."""
        return replace(
            self,
            gather_s=np.multiply(self.gather_s, times),
            reduce_s=np.multiply(self.reduce_s, times),
            deferred_s=np.multiply(self.deferred_s, times),
            sharing=tuple(replace(one, seconds=times * one.seconds) for one in self.sharing),
            norm_s=times * self.norm_s,
            optimizer_s=np.multiply(self.optimizer_s, times),
        )


Kind = Literal["gather", "deferred", "reduce", "share", "norm", "optimizer", "hidden", "exposed"]


@dataclass(frozen=True)
class StepActivity:
    """One activity of a rank outside the pipeline; `stage` is −1 if it concerns all stages of the rank.

    `told` contains details of "hidden" and "exposed" expert-parallel messages.
    """

    rank: int
    kind: Kind
    stage: int
    start_s: float
    end_s: float
    told: str = ""


@dataclass(frozen=True, eq=False)
class TrainingStep:
    """The pipeline's timeline, in which 0 is the start of the step, and everything around it.

    `time_s` is the time from one step to the next (on the slowest rank if the optimizer waits for no other rank).
    `exposed_s` divides the part of `time_s` outside the pipeline by cause; `exposed_by_rank_s` are the same causes
    of each rank's own time, without the waits of a synchronised optimizer.
    """

    timeline: Timeline
    pieces: list[StepActivity]
    time_s: float
    exposed_s: dict[str, float]
    exposed_by_rank_s: dict[str, Floats]


def simulate_step(schedule: Schedule, costs: StageCosts, step_costs: StepCosts) -> TrainingStep:
    """Return a step with everything around its pipeline; raises the errors of `simulate`.

    >>> from ppsim import build
    >>> table = build("1f1b", pp=2, microbatches=4)
    >>> costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
    >>> step = simulate_step(table, costs, StepCosts(reduce_s=2, optimizer_s=1))
    >>> step.timeline.step_time_s, step.time_s, step.exposed_s["reduce"]
    (15.0, 18.0, 2.0)
    """
    num_ranks = schedule.num_ranks
    optimizer_s = _entries("optimizer_s", step_costs.optimizer_s, num_ranks, "rank")
    pieces: list[StepActivity] = []
    timeline, ready, reduced = _pipeline(schedule, costs, step_costs, pieces)
    computed = timeline.rank_end_s + _entries("deferred_s", step_costs.deferred_s, num_ranks, "rank")
    for rank in np.flatnonzero(computed > timeline.rank_end_s).tolist():
        end_s = float(timeline.rank_end_s[rank])
        pieces.append(StepActivity(rank, "deferred", -1, end_s, float(computed[rank])))
    reduced = np.maximum(computed, reduced)
    waits_for_all = step_costs.update == "synchronised"
    shared = _shared(reduced, step_costs.sharing, pieces)
    begin = float(shared.max())
    normed = np.full(num_ranks, begin + step_costs.norm_s) if waits_for_all else shared
    if waits_for_all and step_costs.norm_s:
        pieces += [StepActivity(rank, "norm", -1, begin, begin + step_costs.norm_s) for rank in range(num_ranks)]
    updated = normed + optimizer_s
    for rank in np.flatnonzero(optimizer_s).tolist():
        pieces.append(StepActivity(rank, "optimizer", -1, float(normed[rank]), float(updated[rank])))

    # The pipeline's time starts at its first action, without the host time before it.
    origin = min(timeline.begin_s, costs.action_overhead_s) if ready.any() else timeline.begin_s
    begins = np.full(num_ranks, origin) if waits_for_all else _begins(timeline, ready, costs.action_overhead_s)
    last = int(np.argmax(updated - begins))
    by_rank_s = {"gather": timeline.rank_begin_s - begins}
    exposed_s = {
        "gather": timeline.begin_s - float(begins[last]) if waits_for_all else float(by_rank_s["gather"][last])
    }
    moments = (timeline.rank_end_s, computed, reduced, shared, normed, updated)
    ends = [float(of_rank.max() if waits_for_all else of_rank[last]) for of_rank in moments]
    names = "deferred", "reduce", "share", "norm", "optimizer"
    by_rank_s |= {name: now - before for name, (before, now) in zip(names, pairwise(moments), strict=True)}
    for name, (before, now) in zip(names, pairwise(ends), strict=True):
        if name != "deferred" or now > before:
            exposed_s[name] = now - before
    exposed_s["rest"] = step_costs.rest_s
    exposed_s["stragglers"] = step_costs.straggling * timeline.step_time_s
    exposed_s["slow rank"] = step_costs.slow_rank * float(timeline.busy_s.max())
    beside_s = step_costs.rest_s + exposed_s["stragglers"] + exposed_s["slow rank"]
    return TrainingStep(timeline, pieces, ends[-1] - float(begins[last]) + beside_s, exposed_s, by_rank_s)


def _pipeline(
    schedule: Schedule, costs: StageCosts, around: StepCosts, pieces: list[StepActivity]
) -> tuple[Timeline, Floats, Floats]:
    """Return the timeline, the earliest start of each stage's first forward, and each rank's end of reduction."""
    gather_s = _entries("gather_s", around.gather_s, schedule.num_stages, "stage")
    reduce_s = _entries("reduce_s", around.reduce_s, schedule.num_stages, "stage")
    buckets = np.maximum(_entries("num_buckets", around.num_buckets, schedule.num_stages, "stage"), 1.0)
    ready = np.zeros(schedule.num_stages)
    if gather_s.any():
        forward_s = costs.resolved_for(schedule).forward_s
        ready = _gathered(schedule, gather_s, buckets, forward_s, pieces, overlap=around.overlap_gather)
    gathers = list(pieces)
    timeline = simulate(schedule, costs, ready_s=ready if ready.any() else None)
    reduced = timeline.rank_end_s
    if gathers or reduce_s.any():
        for number in range(schedule.num_rounds):
            if number:
                for piece in gathers:
                    begin_s = float(reduced[piece.rank])
                    pieces.append(replace(piece, start_s=piece.start_s + begin_s, end_s=piece.end_s + begin_s))
            reduced = _reduced(timeline, reduce_s, buckets, pieces, overlap=around.overlap_reduce, number=number)
    return timeline, ready, reduced


def between_rounds_s(schedule: Schedule, costs: StageCosts, step_costs: StepCosts) -> float:
    """Return the idle time between rounds of a rank that starts with the first stage; other ranks wait for inputs.

    Every round gathers and reduces again: torch's pipeline runtime ends each `step()` with REDUCE_GRAD and RESHARD,
    and a rank's compute waits for its reduction (FSDP2, `finalize_backward`).

    >>> from ppsim import build
    >>> from ppsim.schedule.rounds import repeat_rounds
    >>> table = repeat_rounds(build("1f1b", pp=2, microbatches=4), 2)
    >>> costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
    >>> between_rounds_s(table, costs, StepCosts(gather_s=1, reduce_s=2))
    3.0
    """
    if schedule.num_rounds == 1 or not (np.any(step_costs.gather_s) or np.any(step_costs.reduce_s)):
        return 0.0
    table, alike = one_round(schedule), costs.with_equal_microbatches()
    timeline, ready, reduced = _pipeline(table, alike, step_costs, [])
    first = schedule.model_stage[schedule.stage[schedule.rank_offsets[:-1]]] == 0  # ranks that start a round
    pace_s = float((reduced - _begins(timeline, ready, costs.action_overhead_s)).max())
    if pace_s <= timeline.span_s:
        return 0.0
    return pace_s - float((timeline.rank_end_s - timeline.rank_begin_s)[first].max())


def _gathered(
    schedule: Schedule,
    gather_s: Floats,
    buckets: Floats,
    forward_s: Floats,
    pieces: list[StepActivity],
    *,
    overlap: bool,
) -> Floats:
    """Return the earliest start of each stage's first forward if all ranks start to gather at 0."""
    ready = np.zeros(schedule.num_stages)
    for rank in range(schedule.num_ranks):
        moment = 0.0
        for stage in _by_first_forward(schedule, rank):
            pieces.append(StepActivity(rank, "gather", stage, moment, moment + gather_s[stage]))
            moment = pieces[-1].end_s
            # a forward starts with the first bucket, and needs the last bucket only for its own last part
            ready[stage] = moment - min(gather_s[stage], forward_s[stage]) * (1 - 1 / buckets[stage])
        if not overlap:
            ready[schedule.stages_of(rank)] = moment
    return ready


def _shared(reduced: Floats, sharing: tuple[SharedGradients, ...], pieces: list[StepActivity]) -> Floats:
    shared = reduced.copy()
    for group in sharing:
        ranks = list(group.ranks)
        begin = float(shared[ranks].max())
        pieces += [StepActivity(rank, "share", -1, begin, begin + group.seconds) for rank in ranks]
        shared[ranks] = begin + group.seconds
    return shared


def _entries(name: str, values: Numbers, length: int, unit: str) -> Floats:
    if type(values) is float and 0 <= values < np.inf:  # the usual case, ten times faster
        return np.full(length, values)
    array = np.atleast_1d(np.array(values, dtype=np.float64))
    if len(array) not in (1, length):
        raise ConfigError(f"{name} has {len(array)} entries, but the schedule has {length} {unit}s")
    is_right = (array >= 0) & (array < np.inf)
    if not is_right.all():
        raise ConfigError(f"{name} holds {array[~is_right][0]:g}; times are not negative")
    return array if len(array) == length else np.repeat(array, length)


def _by_first_forward(schedule: Schedule, rank: int) -> list[int]:
    row = slice(int(schedule.rank_offsets[rank]), int(schedule.rank_offsets[rank + 1]))
    stages = schedule.stage[row][schedule.op[row] == Op.F]
    return list(dict.fromkeys(stages.tolist()))


def _reduced(
    timeline: Timeline, reduce_s: Floats, buckets: Floats, pieces: list[StepActivity], *, overlap: bool, number: int
) -> Floats:
    """Return when each rank has reduced the gradients of a round.

    The k gradient buckets of a stage become complete one after another during its last backward of d seconds. The
    first reduction can start d/k into this backward, and the last one (R/k seconds, R: `reduce_s`) starts after
    this backward.
    """
    schedule = timeline.schedule
    actions = slice(0, timeline.num_actions)
    is_backward, done = schedule.op != Op.F, timeline.rank_end_s.copy()
    if schedule.num_rounds > 1:
        is_backward &= schedule.round_of_unit[schedule.microbatch] == number
        done = np.zeros(schedule.num_ranks)
        np.maximum.at(done, schedule.rank[is_backward], timeline.end[actions][is_backward])
    if not reduce_s.any():
        return done
    last_end = np.zeros(schedule.num_stages)
    np.maximum.at(last_end, schedule.stage[is_backward], timeline.end[actions][is_backward])
    is_last = is_backward & (timeline.end[actions] == last_end[schedule.stage])
    lasted = np.zeros(schedule.num_stages)
    lasted[schedule.stage[is_last]] = (timeline.end - timeline.start)[actions][is_last]
    for rank in range(schedule.num_ranks):
        moment = 0.0 if overlap else float(done[rank])
        for stage in sorted(schedule.stages_of(rank), key=lambda stage: (last_end[stage], stage)):
            hidden = (1 - 1 / buckets[stage]) * min(lasted[stage], reduce_s[stage]) if overlap else 0.0
            begin = max(moment, float(last_end[stage] - hidden))
            moment = begin + reduce_s[stage]
            if reduce_s[stage]:
                pieces.append(StepActivity(rank, "reduce", stage, begin, moment))
        done[rank] = max(float(done[rank]), moment)
    return done


def _begins(timeline: Timeline, ready: Floats, host_s: float) -> Floats:
    """Return the latest time at which each rank may start to gather without delaying its first forwards."""
    schedule, is_forward = timeline.schedule, timeline.schedule.op == Op.F
    first = np.full(schedule.num_stages, np.inf)
    np.minimum.at(first, schedule.stage[is_forward], timeline.start[: timeline.num_actions][is_forward])
    begins = timeline.rank_begin_s.copy()
    np.minimum.at(begins, schedule.stage_to_rank, np.where(ready > 0, first - ready + host_s, np.inf))
    return begins
