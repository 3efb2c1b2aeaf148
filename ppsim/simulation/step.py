"""A training step around its pipeline: parameters gathered before, gradients reduced behind, optimizer, the rest.

A rank has one more stream, for the collectives of data parallelism. It gathers the parameters of the rank's stages
in the order of their first forwards, and reduces the gradients of each stage once its last backward is done; both
run beside compute. Nothing of it is fed back to the pipeline but the gathering, which holds forwards back.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from ppsim.base.arrays import Floats, Numbers
from ppsim.base.errors import ConfigError
from ppsim.schedule.rounds import one_round
from ppsim.schedule.table import Op, Schedule
from ppsim.simulation.run import simulate
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.step_costs import Sharing, StepCosts
from ppsim.simulation.timeline import Timeline

Kind = Literal["gather", "reduce", "share", "norm", "optimizer", "hidden", "exposed"]


@dataclass(frozen=True)
class Piece:
    """One thing that a rank does beside the pipeline; `stage` −1 where it is for all of the rank's.

    Of the messages of experts, `hidden` and `exposed` ones, `told` says more.
    """

    rank: int
    kind: Kind
    stage: int
    start_s: float
    end_s: float
    told: str = ""


@dataclass(frozen=True, eq=False)
class Step:
    """One step: the pipeline's timeline, in which 0 is the start of the step, and everything around it.

    `time_s` is from one step to the next: of synchronised ranks from the start to the last end, of post-validated
    ones the longest of any rank, since none waits for another there. `exposed_s` divides what the step is longer
    than its pipeline (of that rank) among the kinds, in the order in which they follow each other.
    """

    timeline: Timeline
    pieces: list[Piece]
    time_s: float
    exposed_s: dict[str, float]


def simulate_step(schedule: Schedule, costs: StageCosts, around: StepCosts) -> Step:
    """Return the timeline of a step with everything around its pipeline; raises as `simulate` does.

    >>> from ppsim import build
    >>> table = build("1f1b", pp=2, microbatches=4)
    >>> costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
    >>> step = simulate_step(table, costs, StepCosts(reduce_s=2, optimizer_s=1))
    >>> step.timeline.step_time_s, step.time_s, step.exposed_s["reduce"]
    (15.0, 18.0, 2.0)
    """
    num_ranks = schedule.num_ranks
    optimizer_s = _entries("optimizer_s", around.optimizer_s, num_ranks, "rank")
    pieces: list[Piece] = []
    timeline, ready, reduced = _pipeline(schedule, costs, around, pieces)
    waits_for_all = around.update == "synchronised"
    shared = _shared(reduced, around.sharing, pieces)
    begin = float(shared.max())
    normed = np.full(num_ranks, begin + around.norm_s) if waits_for_all else shared
    if waits_for_all and around.norm_s:
        pieces += [Piece(rank, "norm", -1, begin, begin + around.norm_s) for rank in range(num_ranks)]
    updated = normed + optimizer_s
    for rank in np.flatnonzero(optimizer_s).tolist():
        pieces.append(Piece(rank, "optimizer", -1, float(normed[rank]), float(updated[rank])))

    # A pipeline's time is from its first start, the host's work before that left out.
    origin = min(timeline.begin_s, costs.action_overhead_s) if ready.any() else timeline.begin_s
    begins = np.full(num_ranks, origin) if waits_for_all else _begins(timeline, ready, costs.action_overhead_s)
    last = int(np.argmax(updated - begins))
    exposed_s = {
        "gather": float((timeline.begin_s if waits_for_all else timeline.rank_begin_s[last]) - begins[last])
    }
    moments = (timeline.rank_end_s, reduced, shared, normed, updated)
    ends = [float(of_rank.max() if waits_for_all else of_rank[last]) for of_rank in moments]
    for name, (before, now) in zip(("reduce", "share", "norm", "optimizer"), pairwise(ends), strict=True):
        exposed_s[name] = now - before
    exposed_s["rest"] = around.rest_s
    exposed_s["stragglers"] = around.straggling * timeline.step_time_s
    exposed_s["slow rank"] = around.slow_rank * float(timeline.busy_s.max())
    beside_s = around.rest_s + exposed_s["stragglers"] + exposed_s["slow rank"]
    return Step(timeline, pieces, ends[-1] - float(begins[last]) + beside_s, exposed_s)


def _pipeline(
    schedule: Schedule, costs: StageCosts, around: StepCosts, pieces: list[Piece]
) -> tuple[Timeline, Floats, Floats]:
    """The timeline with the collectives of data parallelism, when each stage's parameters suffice for its first
    forward, and when each rank has reduced its gradients. In every round both are done again."""
    gather_s = _entries("gather_s", around.gather_s, schedule.num_stages, "stage")
    reduce_s = _entries("reduce_s", around.reduce_s, schedule.num_stages, "stage")
    buckets = np.maximum(_entries("num_buckets", around.num_buckets, schedule.num_stages, "stage"), 1.0)
    ready = np.zeros(schedule.num_stages)
    if gather_s.any():
        forward_s = costs.resolved_for(schedule).forward_s
        ready = _gathered(schedule, gather_s, buckets, forward_s, pieces, overlap=around.overlap)
    gathers = list(pieces)
    timeline = simulate(schedule, costs, ready_s=ready if ready.any() else None)
    reduced = timeline.rank_end_s
    if gathers or reduce_s.any():
        for number in range(schedule.num_rounds):
            if number:
                pieces += [_shifted(piece, float(reduced[piece.rank])) for piece in gathers]
            reduced = _reduced(timeline, reduce_s, buckets, pieces, overlap=around.overlap, number=number)
    return timeline, ready, reduced


def _shifted(piece: Piece, seconds: float) -> Piece:
    return replace(piece, start_s=piece.start_s + seconds, end_s=piece.end_s + seconds)


def between_rounds_s(schedule: Schedule, costs: StageCosts, around: StepCosts) -> float:
    """Return how long a rank that begins a round waits after its own last action of the round before.

    Every round reduces its gradients and gathers its parameters again: torch's pipeline runtime ends each `step()`
    with REDUCE_GRAD and RESHARD, and a rank's compute waits for its reduction (FSDP2, `finalize_backward`). A rank
    can begin its next round once it has reduced and gathered. The rounds are alike, so they follow each other at
    the pace of the rank that takes longest from the start of its gather to the end of its reduction; the ranks that
    begin a round are delayed to that pace, and the others follow by their messages.

    >>> from ppsim import build
    >>> from ppsim.schedule.rounds import in_rounds
    >>> table = in_rounds(build("1f1b", pp=2, microbatches=4), 2)
    >>> costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
    >>> between_rounds_s(table, costs, StepCosts(gather_s=1, reduce_s=2))
    3.0
    """
    if schedule.num_rounds == 1 or not (np.any(around.gather_s) or np.any(around.reduce_s)):
        return 0.0
    table, alike = one_round(schedule), costs.alike()
    timeline, ready, reduced = _pipeline(table, alike, around, [])
    first = schedule.model_stage[schedule.stage[schedule.rank_offsets[:-1]]] == 0  # ranks that begin a round
    pace_s = float((reduced - _begins(timeline, ready, costs.action_overhead_s)).max())
    if pace_s <= timeline.span_s:
        return 0.0
    return pace_s - float((timeline.rank_end_s - timeline.rank_begin_s)[first].max())


def _gathered(
    schedule: Schedule, gather_s: Floats, buckets: Floats, forward_s: Floats, pieces: list[Piece], *, overlap: bool
) -> Floats:
    """When each stage's parameters suffice for its first forward, if all ranks start to gather at 0."""
    ready = np.zeros(schedule.num_stages)
    for rank in range(schedule.num_ranks):
        moment = 0.0
        for stage in _by_first_forward(schedule, rank):
            pieces.append(Piece(rank, "gather", stage, moment, moment + gather_s[stage]))
            moment = pieces[-1].end_s
            # with the first part there a forward starts, and needs the last one for its own last part only
            ready[stage] = moment - min(gather_s[stage], forward_s[stage]) * (1 - 1 / buckets[stage])
        if not overlap:
            ready[schedule.stages_of(rank)] = moment
    return ready


def _shared(reduced: Floats, sharing: tuple[Sharing, ...], pieces: list[Piece]) -> Floats:
    """When each rank has all that it sums with other ranks of the pipeline, from when it has `reduced` its own."""
    shared = reduced.copy()
    for group in sharing:
        ranks = list(group.ranks)
        begin = float(shared[ranks].max())
        pieces += [Piece(rank, "share", -1, begin, begin + group.seconds) for rank in ranks]
        shared[ranks] = begin + group.seconds
    return shared


def _entries(name: str, values: Numbers, length: int, unit: str) -> Floats:
    if type(values) is float and 0 <= values < np.inf:  # nearly always, and ten times as fast
        return np.full(length, values)
    array = np.atleast_1d(np.array(values, dtype=np.float64))
    if len(array) not in (1, length):
        raise ConfigError(f"{name} has {len(array)} entries, but the schedule has {length} {unit}s")
    is_right = (array >= 0) & (array < np.inf)
    if not is_right.all():
        raise ConfigError(f"{name} holds {array[~is_right][0]:g}; times are not negative")
    return array if len(array) == length else np.repeat(array, length)


def _by_first_forward(schedule: Schedule, rank: int) -> list[int]:
    """The stages of a rank in the order in which it needs them."""
    mine = slice(int(schedule.rank_offsets[rank]), int(schedule.rank_offsets[rank + 1]))
    stages = schedule.stage[mine][schedule.op[mine] == Op.F]
    return list(dict.fromkeys(stages.tolist()))


def _reduced(
    timeline: Timeline, reduce_s: Floats, buckets: Floats, pieces: list[Piece], *, overlap: bool, number: int
) -> Floats:
    """When each rank has reduced the gradients of a round's stages, taken in the order in which they are done.

    A stage's k buckets are done one after the other in its last backward of d seconds: of their reductions, R/k
    each, the first starts d/k into it at the earliest, and the last ends R/k behind it.
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
                pieces.append(Piece(rank, "reduce", stage, begin, moment))
        done[rank] = max(float(done[rank]), moment)
    return done


def _begins(timeline: Timeline, ready: Floats, host_s: float) -> Floats:
    """When each rank must start to gather, at the latest, for each of its first forwards to run when it does.

    `ready` is when each stage's parameters suffice if all ranks start at 0; the host's `host_s` before a rank's
    first action is no part of its time.
    """
    schedule, is_forward = timeline.schedule, timeline.schedule.op == Op.F
    first = np.full(schedule.num_stages, np.inf)
    np.minimum.at(first, schedule.stage[is_forward], timeline.start[: timeline.num_actions][is_forward])
    begins = timeline.rank_begin_s.copy()
    np.minimum.at(begins, schedule.stage_to_rank, np.where(ready > 0, first - ready + host_s, np.inf))
    return begins
