"""The exact search: the optimum of every case that can be enumerated, published optima, and honest claims."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim import StageCosts, build, check, simulate
from ppsim.base.errors import ConfigError
from ppsim.schedule.placement import loop, v_shape
from ppsim.simulation.bounds.for_table import problem_of
from ppsim.simulation.bounds.lower import lower_bounds
from ppsim.simulation.bounds.problem import Problem
from tests import exact
from tests.exact import criterion_value_s, fits, optimal
from tests.schedule.brute_force import best_s
from tests.schedule.problems import problems, whole

TIGHT = 1e-9
CRITERIA = ("step", "span")
UNIT = {"forward_s": 1, "backward_input_s": 1, "backward_weight_s": 1}
TINY = [loop(1, 1), loop(2, 2), v_shape(1, 2)]


@given(problems(placements=TINY, max_microbatches=3, seconds=whole), st.sampled_from(CRITERIA))
@settings(deadline=None, max_examples=25)
def test_the_optimum_is_the_best_of_all_orders(problem, criterion):
    if problem.num_stages > problem.num_ranks:
        problem = replace(problem, num_microbatches=min(problem.num_microbatches, 2))
    best = optimal(problem, criterion=criterion, num_workers=1)
    assert best.is_optimal
    assert best.value_s == pytest.approx(best_s(problem, criterion, full_backwards=False, microbatch_order=True))


@given(problems(placements=TINY, max_microbatches=2, may_be_full=True), st.sampled_from(CRITERIA), st.booleans())
@settings(deadline=None, max_examples=25)
def test_microbatch_order_loses_nothing_with_one_chunk_or_two(problem, criterion, full_backwards):
    if problem.num_stages > problem.num_ranks:
        problem, full_backwards = replace(problem, num_microbatches=1), False
    orders = [
        best_s(problem, criterion, full_backwards=full_backwards, microbatch_order=kept) for kept in (True, False)
    ]
    assert orders[0] == pytest.approx(orders[1])


@given(problems(), st.sampled_from(CRITERIA))
@settings(deadline=None, max_examples=25)
def test_no_optimum_found_without_the_bounds_undercuts_them(problem, criterion):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact._Clock, "least", lambda *_: 0)
        best = optimal(problem, criterion=criterion, time_limit_s=2, num_workers=1)
    assert lower_bounds(problem).of(criterion) <= best.value_s + TIGHT
    assert best.bound_s <= best.value_s + TIGHT
    assert check(best.schedule).errors == []
    assert fits(best.schedule, problem)


@pytest.mark.parametrize(
    ("p", "m", "k", "optimum"),
    [(2, 4, 3, 27), (3, 6, 3, 52), (3, 6, 4, 41), pytest.param(4, 8, 4, 59, marks=pytest.mark.search)],
)
def test_optima_of_a_v_of_unit_chunks_within_k_of_them(p, m, k, optimum):
    best = optimal(Problem.of(stage_to_rank=v_shape(p, 2 * p), num_microbatches=m, cap=k, **UNIT))
    assert best.is_optimal
    assert best.value_s == best.bound_s == optimum
    costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, activation_bytes=1)
    timeline = simulate(best.schedule, costs)
    assert timeline.step_time_s == optimum
    assert timeline.memory.peak_activation_bytes.max() <= k


def test_a_span_of_256_actions_is_proved():
    seconds = {"forward_s": 113, "backward_input_s": 112, "backward_weight_s": 81, "transfer_s": 4}
    hint = build("zb-2p", pp=8, microbatches=16, costs=StageCosts(**seconds))
    best = optimal(
        Problem.of(stage_to_rank=loop(8, 8), num_microbatches=16, cap=16, **seconds),
        criterion="span", hint=hint, time_limit_s=60,
    )  # fmt: skip
    assert best.value_s == best.bound_s == 5312


@given(problems(placements=[loop(3, 3), v_shape(2, 4)], max_microbatches=4), st.sampled_from(CRITERIA))
@settings(deadline=None, max_examples=15)
def test_the_value_is_the_simulators(problem, criterion):
    best = optimal(problem, criterion=criterion, time_limit_s=2, num_workers=2)
    costs = StageCosts(
        forward_s=problem.forward_s - problem.overhead_s,
        backward_input_s=problem.input_s - problem.overhead_s,
        backward_weight_s=problem.weight_s - problem.overhead_s,
        activation_bytes=problem.activation,
        activation_bytes_kept_for_weight=problem.kept,
        transfer_s=np.append(problem.hop_s, 0.0),
        action_overhead_s=problem.overhead_s,
    )
    timeline = simulate(best.schedule, costs)
    assert best.value_s == pytest.approx(timeline.step_time_s if criterion == "step" else timeline.span_s)
    assert (timeline.memory.peak_activation_bytes <= problem.cap).all()


def test_costs_that_have_no_common_unit_are_rounded_down_and_the_gap_is_told():
    problem = Problem.of(
        stage_to_rank=loop(3, 3), num_microbatches=5, forward_s=[1 / 3, 0.3, 0.4], backward_input_s=2**-0.5,
        backward_weight_s=0.1, activation=1 / 3, cap=2 / 3,
    )  # fmt: skip
    best = optimal(problem, num_workers=1)
    assert best.is_optimal
    assert best.tick_s > 0
    assert 0 <= best.gap <= 1e-5
    assert best.bound_s <= best.value_s


def test_without_time_the_hint_comes_back_with_the_closed_bound():
    costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, transfer_s=0.1, activation_bytes=1)
    hint = build("zbv", pp=4, microbatches=12)
    problem = problem_of(hint.stage_to_rank, 12, costs)
    told = []
    best = optimal(problem, hint=hint, time_limit_s=1e-9, progress=lambda *pair: told.append(pair))
    assert best.value_s == pytest.approx(simulate(hint, costs).step_time_s)
    assert best.bound_s == pytest.approx(lower_bounds(problem).step_s)
    assert best.schedule == hint or best.value_s < criterion_value_s(hint, problem, "step")


def test_progress_is_told_and_ends_at_the_optimum():
    told = []
    problem = Problem.of(stage_to_rank=v_shape(3, 6), num_microbatches=4, cap=4, **UNIT)
    best = optimal(problem, progress=lambda value, bound: told.append((value, bound)), num_workers=1)
    assert told[-1][0] == best.value_s
    assert all(bound <= value for value, bound in told)


def test_a_known_bound_is_used_where_the_closed_one_is_lower():
    problem = Problem.of(stage_to_rank=v_shape(3, 6), num_microbatches=6, cap=3, **UNIT)
    assert lower_bounds(problem).step_s < 52
    best = optimal(problem, lower_bound_s=52.0, time_limit_s=10)
    assert best.value_s == best.bound_s == 52


def test_one_worker_and_one_seed_give_one_table():
    problem = Problem.of(stage_to_rank=v_shape(2, 4), num_microbatches=4, cap=4, **UNIT)
    tables = [optimal(problem, seed=3, num_workers=1).schedule for _ in range(2)]
    assert tables[0] == tables[1]


def test_a_hint_of_another_shape_and_an_impossible_bound_are_refused():
    problem = Problem.of(stage_to_rank=loop(2, 2), num_microbatches=4, **UNIT)
    with pytest.raises(ConfigError, match=r"the hint has 5 microbatches and stages on ranks \[0, 1\]"):
        optimal(problem, hint=build("zb-h1", pp=2, microbatches=5))
    with pytest.raises(ConfigError, match="lower_bound_s is 99, but zb-h1 takes 13"):
        optimal(problem, hint=build("zb-h1", pp=2, microbatches=4), lower_bound_s=99.0)
