"""List scheduling by urgency, and rescheduling by the urgencies of an existing table."""

from collections.abc import Iterator

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.catalog.search import table_kernels as kernels
from ppsim.catalog.search.list_kernels import ListPriorities, list_schedule
from ppsim.catalog.search.pipeline import empty_table
from ppsim.catalog.search.target import Candidate, SearchTarget, better

_PACES = (1.0, 1.25, 1.5, 2.0, 3.0, np.inf)  # microbatches in flight, relative to those that cover a round trip
_FEW_PACES, _MANY_ACTIONS = (1.0, 2.0), 200_000


def list_schedules(target: SearchTarget) -> Iterator[Candidate]:
    """Priorities are I, F, W; on one rank, later stages go first, because they free memory sooner."""
    problem = target.problem
    m, num_stages = problem.num_microbatches, problem.num_stages
    both = problem.forward_s + problem.input_s
    hops = np.concatenate((problem.hop_s, [0.0]))
    round_trip_s = np.cumsum((both + 2 * hops)[::-1])[::-1]
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
