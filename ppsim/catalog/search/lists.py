"""List scheduling by urgency, and rescheduling by the urgencies of an existing table."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.catalog.search import table_kernels as kernels
from ppsim.catalog.search.pipeline import NOTHING, MemoryCaps, Pipeline, SearchTable, empty_table
from ppsim.catalog.search.table_kernels import append_action, input_arrival_s
from ppsim.catalog.search.target import Candidate, SearchTarget, better

NEVER = 1e300


class ListPriorities(NamedTuple):
    """Priorities of a list schedule."""

    urgency: Floats
    """One number per node; the smallest goes first."""
    in_flight: Floats
    """Maximum number of forwards of a stage that still wait for their I."""
    patient: bool
    """Wait for a more urgent action instead of running an available one."""


class AvailableActions(NamedTuple):
    """Forwards and input gradients that are available to a free rank; `NEVER` if there are none."""

    code: int
    """Most urgent action that has arrived and fits, or `NOTHING`."""
    begin_s: float
    urgency: float
    first_to_come_s: float
    """Earliest arrival among the actions that are known to arrive later."""
    urgency_to_come: float
    """Urgency of the most urgent action that is known to arrive later."""
    comes_s: float
    """Arrival of this most urgent later action."""
    urgency_blocked: float
    """Urgency of the most urgent forward that has arrived but lacks memory."""


def list_schedule(
    pipeline: Pipeline,
    memory: MemoryCaps,
    wishes: ListPriorities,
    table: SearchTable,
    decide_s: Floats,
    free_bytes: Floats,
) -> None:
    """Let ranks choose actions in the order of time; `decide_s` is the time of each rank's next choice.

    A patient rank waits if a more urgent action will arrive before the chosen action would end, and would
    otherwise start too late.
    """
    while True:
        rank = _first_to_decide(decide_s)
        time_s = decide_s[rank]
        if time_s >= NEVER:
            break
        _set_room(pipeline, memory, table, rank, free_bytes)
        view = _view(pipeline, memory, wishes, table, rank, time_s, free_bytes)
        code = _decision(pipeline, wishes, table, rank, time_s, view)
        if code == NOTHING:
            decide_s[rank] = view.first_to_come_s  # or until a neighbour sends something
            continue
        append_action(pipeline, table, rank, code, view.begin_s if code == view.code else time_s)
        decide_s[rank] = table.now_s[rank]
        other = pipeline.wakes[code]
        if other >= 0:
            decide_s[other] = min(decide_s[other], max(table.now_s[other], time_s))


def _first_to_decide(decide_s: Floats) -> int:
    first = 0
    for rank in range(1, len(decide_s)):
        if decide_s[rank] < decide_s[first]:
            first = rank
    return first


def _set_room(pipeline: Pipeline, memory: MemoryCaps, table: SearchTable, rank: int, room: Floats) -> None:
    """Compute the memory that a forward of each stage may take.

    After the forward, each later stage of the rank must still have room for one activation. Then the oldest
    microbatch can always continue, so that no order of choices deadlocks.
    """
    num_stages, first, behind = pipeline.num_stages, pipeline.firsts[rank], pipeline.firsts[rank + 1]
    left = memory.cap[rank]
    for k in range(first, behind):
        stage = pipeline.stages[k]
        num_f, num_i = table.done[stage], table.done[num_stages + stage]
        num_w = table.done[2 * num_stages + stage]
        room[k] = (num_f - num_i) * memory.activation[stage] + (num_i - num_w) * memory.kept[stage]  # held so far
        left -= room[k]
    least_left = NEVER
    for k in range(behind - 1, first - 1, -1):
        least_left = min(least_left, left)
        left += room[k] - memory.activation[pipeline.stages[k]]
        room[k] = least_left


def _view(
    pipeline: Pipeline,
    memory: MemoryCaps,
    wishes: ListPriorities,
    table: SearchTable,
    rank: int,
    time_s: float,
    room: Floats,
) -> AvailableActions:
    m, num_stages, done = pipeline.num_microbatches, pipeline.num_stages, table.done
    chosen, begin_s, most_urgent = NOTHING, time_s, NEVER
    first_to_come_s, urgency_to_come, comes_s = NEVER, NEVER, NEVER
    urgency_blocked = NEVER
    for k in range(pipeline.firsts[rank], pipeline.firsts[rank + 1]):
        stage = pipeline.stages[k]
        for code in (num_stages + stage, stage):  # ties: I before F, then the lower stage
            is_forward = code == stage
            num_f = done[stage]
            if is_forward and (num_f >= m or num_f - done[num_stages + stage] >= wishes.in_flight[stage]):
                continue
            arrives_s = input_arrival_s(pipeline, table, code)
            if arrives_s < 0:
                continue
            ready_s = max(time_s, arrives_s)
            urgency = wishes.urgency[code * m + done[code]]
            if is_forward and memory.activation[stage] > room[k]:
                if ready_s <= time_s:
                    urgency_blocked = min(urgency_blocked, urgency)
            elif ready_s <= time_s + pipeline.tolerance_s:
                if urgency < most_urgent:
                    chosen, begin_s, most_urgent = code, ready_s, urgency
            else:
                first_to_come_s = min(first_to_come_s, ready_s)
                if urgency < urgency_to_come:
                    urgency_to_come, comes_s = urgency, ready_s
    return AvailableActions(
        chosen, begin_s, most_urgent, first_to_come_s, urgency_to_come, comes_s, urgency_blocked
    )


def _decision(
    pipeline: Pipeline, wishes: ListPriorities, table: SearchTable, rank: int, time_s: float, view: AvailableActions
) -> int:
    num_stages, done = pipeline.num_stages, table.done
    chosen, most_urgent = view.code, view.urgency
    for k in range(pipeline.firsts[rank], pipeline.firsts[rank + 1]):
        code = 2 * num_stages + pipeline.stages[k]
        if done[code] < done[code - num_stages]:
            urgency = wishes.urgency[code * pipeline.num_microbatches + done[code]]
            urgency = min(urgency, view.urgency_blocked)  # as urgent as a forward that needs its memory
            if urgency < most_urgent:
                chosen, most_urgent = code, urgency
    if wishes.patient and chosen != NOTHING:
        ends_s = time_s + pipeline.cost_s[chosen] - pipeline.tolerance_s
        # Urgencies of patient ranks are latest starts: a latest start before `ends_s` would be missed.
        if view.comes_s < ends_s and view.urgency_to_come < min(most_urgent, ends_s):
            return NOTHING
    return chosen


_PACES = (1.0, 1.25, 1.5, 2.0, 3.0, np.inf)  # microbatches in flight, relative to those that cover a round trip
_FEW_PACES, _MANY_ACTIONS = (1.0, 2.0), 200_000


def list_schedules(target: SearchTarget) -> Iterator[Candidate]:
    """Priorities are I, F, W; on one rank, later stages go first, because they free memory sooner."""
    problem = target.problem
    m, num_stages = problem.num_microbatches, problem.num_stages
    passes_s = problem.forward_s + problem.input_s
    hops = np.concatenate((problem.hop_s, [0.0]))
    round_trip_s = np.cumsum((passes_s + 2 * hops)[::-1])[::-1]
    cycle_s = max(float(target.work_s.max()) / m, 1e-300)
    kinds, stages = np.repeat([-2.0, -3.0, -1.0], num_stages), np.tile(np.arange(num_stages), 3)
    urgency = np.repeat(kinds - stages / (2 * num_stages), m)
    for pace in _PACES if target.num_actions <= _MANY_ACTIONS else _FEW_PACES:
        in_flight = np.ceil(pace * np.maximum(round_trip_s / cycle_s, 1.0) - 1e-9)
        for patient in (False, True):
            yield list_scheduled(target, urgency, in_flight, patient=patient)


def list_scheduled(target: SearchTarget, urgency: Floats, in_flight: Floats, *, patient: bool) -> Candidate:
    """`urgency` is per node, `in_flight` per stage."""
    table, num_ranks = empty_table(target.pipeline), target.problem.num_ranks
    target.run(
        list_schedule,
        inputs=(target.memory, ListPriorities(urgency, in_flight, patient)),
        outputs=(table, np.zeros(num_ranks), np.zeros(target.problem.num_stages)),
        times=num_ranks,
    )
    assert (table.done == target.problem.num_microbatches).all()
    return Candidate(target, table.order, table.now_s)


def rescheduled(candidate: Candidate, *, patient: bool) -> Candidate:
    """The urgency of an action is its latest start at the candidate's own score ("justification" in project
    scheduling).
    """
    target, problem = candidate.target, candidate.target.problem
    latest_s, undone = np.zeros(target.num_actions), np.full(3 * problem.num_stages, problem.num_microbatches)
    deadline_s, last_places = target.handicap_s + candidate.score_s, target.row_offsets[1:] - 1
    target.run(
        kernels.latest_starts,
        inputs=(candidate.order,),
        outputs=(last_places, deadline_s, latest_s, undone),
    )
    assert not undone.any()
    return list_scheduled(target, latest_s, np.full(problem.num_stages, np.inf), patient=patient)


def improve_by_rescheduling(best: Candidate, *, num_rounds: int) -> Candidate:
    for patient in (False, True):
        current = best
        for _ in range(num_rounds):
            if best.is_optimal:
                return best
            current = rescheduled(current, patient=patient)
            best = better(best, current)
    return best
