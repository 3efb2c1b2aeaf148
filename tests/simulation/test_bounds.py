"""The closed bounds: never above what a table reaches, and equal to it where the papers' schedules are optimal."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim import StageCosts, build, simulate
from ppsim.base.errors import ConfigError
from ppsim.catalog.search.best_table import best_table
from ppsim.schedule.placement import loop, v_shape
from ppsim.simulation.bounds import for_table, lower
from ppsim.simulation.bounds.coupled import coupled_bounds
from ppsim.simulation.bounds.for_table import bounds_of
from ppsim.simulation.bounds.lower import LowerBounds, MemoryUse, knapsack_bound, lower_bounds
from ppsim.simulation.bounds.problem import Problem
from tests.exact import criterion_value_s
from tests.published import read
from tests.schedule.brute_force import best_s
from tests.schedule.problems import problems
from tests.strategies import costs_of, tables

TIGHT = 1e-9
CRITERIA = ("step", "span")
UNIT = {"forward_s": 1, "backward_input_s": 1, "backward_weight_s": 1}


@pytest.mark.parametrize(("cap", "num"), [(1, 9), (2, 5), (4, 3), (8, 2), (9, 1)])
def test_a_rank_idles_in_each_round_trip_of_the_microbatches_that_it_can_hold(cap: int, num: int) -> None:
    """A microbatch goes through four stages and back; others fill the wait, and with all nine nothing is left."""
    problem = Problem.of(stage_to_rank=loop(4, 4), num_microbatches=9, cap=cap, **UNIT)
    trips = lower._Rank(problem, [0]).trips(0)
    assert trips.num == num
    assert (trips.idle_s > 0) is (cap < 4)
    assert num * trips.idle_s <= lower_bounds(problem).step_s - 9 * 3


def test_fused_cells_with_a_cost_of_their_own_leave_no_bound_by_microbatch() -> None:
    """A pair may take less than its parts, here nothing: the bounds are those of chains without the pairs."""
    table = build("dualpipe", pp=4, microbatches=8)
    by_microbatch = np.broadcast_to(np.linspace(1.0, 2.0, 8), (table.num_stages, 8))
    costs = StageCosts(
        **UNIT | {"forward_s": by_microbatch}, fused_s=np.zeros((table.num_stages, table.num_stages))
    )
    bounds = bounds_of(table, costs)
    assert bounds.span_s <= bounds.step_s <= simulate(table, costs).step_time_s
    assert for_table._bounds_by_microbatch(table, costs.resolved_for(table)) == LowerBounds(0.0, 0.0)


@given(st.data(), st.sampled_from(["ideal", "pair"]), st.booleans())
@settings(deadline=None)
def test_no_catalogue_table_undercuts_the_bounds_at_the_memory_it_takes(data, channel, like_torch):
    table = data.draw(tables(max_ranks=4, max_microbatches=8))
    costs = data.draw(costs_of(table, channel=channel, static_bytes=7.0))
    if like_torch:
        costs = costs.with_torch_first_stage(
            num_stages=table.num_stages, num_ranks=table.num_ranks, num_replicas=table.num_replicas
        )
    timeline = simulate(table, costs)
    for limit in (None, float(timeline.memory.peak_bytes.max())):
        bounds = bounds_of(table, costs, memory_limit_bytes=limit)
        assert bounds.step_s <= timeline.step_time_s + TIGHT
        assert bounds.span_s <= timeline.span_s + TIGHT


TINY = [loop(1, 1), loop(2, 2), v_shape(1, 2)]


@given(problems(placements=TINY, max_microbatches=2, may_be_full=True), st.sampled_from(CRITERIA))
@settings(deadline=None, max_examples=40)
def test_no_order_at_all_undercuts_the_bounds_however_backwards_are_split(problem, criterion):
    if problem.num_stages > problem.num_ranks:  # two chunks on one rank: thousands of orders a split
        problem = Problem(**(vars(problem) | {"num_microbatches": 1}))
    best = best_s(problem, criterion, full_backwards=True, microbatch_order=False)
    assert lower_bounds(problem).of(criterion) <= best + TIGHT


@given(problems(), st.floats(1.0, 3.0))
def test_more_memory_never_raises_a_bound(problem, factor):
    more = Problem(**(vars(problem) | {"cap": problem.cap * factor}))
    for criterion in CRITERIA:
        assert lower_bounds(more).of(criterion) <= lower_bounds(problem).of(criterion) + TIGHT


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("costs", [(1, 1, 1, 0), (3, 4, 2, 0), (297, 294, 199, 5), (3, 2.5, 0.7, 0.1)])
def test_zb_h1_is_optimal_within_p_activations_the_bound_is_its_time(p, costs):
    F, I, W, c = costs
    assert F + 2 * c >= W
    for m in (p + 1, 2 * p, 4 * p):
        seconds = {"forward_s": F, "backward_input_s": I, "backward_weight_s": W, "transfer_s": c}
        bounds = lower_bounds(Problem.of(stage_to_rank=loop(p, p), num_microbatches=m, cap=p, **seconds))
        expected = m * (F + I + W) + (p - 1) * (F + I - W + 4 * c)
        assert bounds.span_s == pytest.approx(expected)
        assert bounds.step_s == pytest.approx(expected)
        if 2 * c <= W:  # or transfers are not hidden
            timeline = simulate(build("zb-h1", pp=p, microbatches=m), StageCosts(**seconds, activation_bytes=1))
            assert timeline.step_time_s == pytest.approx(bounds.step_s)


def test_up_to_p_microbatches_the_bound_is_the_way_of_all_down_and_up():
    for p, m in itertools.product((2, 4, 8), (1, 2, 4)):
        bounds = lower_bounds(
            Problem.of(
                stage_to_rank=loop(p, p), num_microbatches=m, forward_s=3, backward_input_s=4, backward_weight_s=2
            )
        )
        if m <= p:  # zero-bubble paper, App. H
            assert bounds.step_s == bounds.span_s == (m + p - 1) * (3 + 4) + 2


def test_in_a_v_of_unit_chunks_the_bound_is_that_of_the_controllable_memory_paper_or_better():
    met = 0
    for p, m, k in itertools.product((2, 3, 4, 6, 8), (6, 8, 16), range(2, 17)):
        if k < 2 * p and k < m:
            bounds = lower_bounds(Problem.of(stage_to_rank=v_shape(p, 2 * p), num_microbatches=m, cap=k, **UNIT))
            paper = 6 * m + 6 * p - 3 * k - 1
            assert bounds.step_s >= paper
            met += bounds.step_s == paper
    assert met > 20


@pytest.mark.parametrize(("p", "least"), [(2, 13), (4, 27), (8, 55)])
def test_with_as_many_microbatches_as_ranks_in_a_v_the_first_rank_waits_for_its_second_chunk(p, least):
    for cap in (p, 2 * p):
        problem = Problem.of(stage_to_rank=v_shape(p, 2 * p), num_microbatches=p, cap=2 * cap, **UNIT)
        bounds = lower_bounds(problem)
        assert bounds.step_s == bounds.span_s == least == 2 * p - 1 + 5 * p
        if p < 8:
            assert criterion_value_s(best_table(problem), problem, "step") == least


def test_where_forwards_of_a_chunk_below_fill_the_way_there_is_no_wait_for_the_chunk_above():
    shape = {"stage_to_rank": v_shape(2, 4), "num_microbatches": 3, **UNIT}
    assert (
        lower_bounds(Problem.of(cap=6, **shape)).step_s == 3 * 6 + 1
    )  # 3 forwards fill the way of 3; the last rank binds


UNLIKE = {
    "stage_to_rank": v_shape(3, 6), "num_microbatches": 3, "forward_s": [4, 2, 4, 8, 1, 5],
    "backward_input_s": [8, 6, 3, 5, 4, 5], "backward_weight_s": [1, 6, 4, 8, 8, 8], "transfer_s": [3, 0, 0, 0, 3],
}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "least", "reached"),
    [
        (UNLIKE, 111, 111),  # ways and work of all ranks
        ({"stage_to_rank": [0, 1], "num_microbatches": 6, "forward_s": 8, "backward_input_s": 4,
          "backward_weight_s": 1, "transfer_s": 2, "cap": 2}, 100, 100),  # and what F wait for in memory
        ({"stage_to_rank": [0, 1], "num_microbatches": 8, "forward_s": 1, "backward_input_s": 4,
          "backward_weight_s": 1, "transfer_s": 2, "cap": 2}, 66, 66),
        ({"stage_to_rank": loop(4, 4), "num_microbatches": 8, "forward_s": 9, "backward_input_s": 9,
          "backward_weight_s": 1, "transfer_s": 3, "cap": 4}, 243, 244),  # and the F that memory leaves for the end
    ],
)  # fmt: skip
def test_the_ranks_waits_for_each_other_are_bounded_to_what_the_search_reaches(
    monkeypatch, arguments, least, reached
):
    problem = Problem.of(**arguments)
    assert lower_bounds(problem).step_s == least
    assert criterion_value_s(best_table(problem), problem, "step") == reached
    monkeypatch.setattr(lower, "coupled_bounds", lambda problem: (0.0, 0.0))
    assert lower_bounds(problem).step_s < least


def test_beyond_some_size_each_rank_is_looked_at_alone():
    assert coupled_bounds(Problem.of(stage_to_rank=v_shape(8, 16), num_microbatches=64, **UNIT)) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("p", "m", "seconds", "cap", "closed", "optimum"),
    [  # optima that `tests.exact.optimal` proved, the last from a bound over neighbouring ranks together
        (3, 6, (3, 4, 2, 0), 3, 159, 171),
        (4, 6, (3, 4, 2, 0), 4, 151, 158), (4, 4, (1, 1, 1, 0), 8, 27, 27), (4, 8, (3, 4, 2, 0), 4, 187, 200),
    ],
)  # fmt: skip
def test_no_bound_of_a_v_is_above_the_optimum_that_the_exact_search_proved(p, m, seconds, cap, closed, optimum):
    names = ("forward_s", "backward_input_s", "backward_weight_s", "transfer_s")
    problem = Problem.of(
        stage_to_rank=v_shape(p, 2 * p), num_microbatches=m, cap=cap, **dict(zip(names, seconds, strict=True))
    )
    assert lower_bounds(problem).step_s == closed <= optimum
    assert criterion_value_s(best_table(problem, is_thorough=True), problem, "step") == optimum


TABLE_9 = {(row["model"], row["microbatches"]): row for row in read("zb_paper.csv")}


@pytest.mark.parametrize("row", read("zb_paper_auto.csv"), ids=lambda row: f"{row['model']}-{row['microbatches']}")
def test_on_the_papers_costs_fitted_tables_are_optimal_at_caps_of_p_and_2p_activations(row):
    profile = TABLE_9[row["model"], row["microbatches"]]
    names = ("forward", "backward_input", "backward_weight", "transfer")
    p, seconds = int(profile["pp"]), {f"{name}_s": float(profile[f"{name}_ms"]) / 1e3 for name in names}
    m = int(row["microbatches"])
    for cap, criterion in itertools.product((p, 2 * p), CRITERIA):
        problem = Problem.of(stage_to_rank=loop(p, p), num_microbatches=m, cap=cap, **seconds)
        bounds = lower_bounds(problem)
        made = simulate(best_table(problem, criterion=criterion), StageCosts(**seconds))
        reached = made.step_time_s if criterion == "step" else made.span_s
        assert reached == pytest.approx(bounds.of(criterion), rel=1e-9)


states = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=4)


@given(states, st.integers(0, 4), st.integers(0, 12))
def test_the_knapsack_is_never_short_and_exact_for_up_to_two_states(drawn, count, capacity):
    chosen = [MemoryUse(float(value), float(size)) for value, size in drawn]
    found = knapsack_bound(chosen, count=count, capacity=float(capacity))
    best = max(
        sum(state.value for state in some)
        for some in itertools.combinations_with_replacement([*chosen, MemoryUse(0.0, 0.0)], count)
        if sum(state.size for state in some) <= capacity
    )
    assert found >= best - TIGHT
    if len(chosen) <= 2:
        assert found == pytest.approx(best)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"cap": 1.5}, r"cap of 1.5 on rank 0 holds no microbatch: one needs 2 there \(smallest cap for all ranks: 2\)"),
        ({"forward_s": [1, 2]}, "forward_s has 2 entries: give one number, or 4"),
        ({"transfer_s": -1}, "transfer_s holds -1; costs are finite and not negative"),
        ({"activation_kept_for_weight": 2}, "activation_kept_for_weight is 2 on stage 0, more than the 1 activation"),
        ({"num_microbatches": 0}, "num_microbatches must be at least 1: got 0"),
        ({"stage_to_rank": [0, 2]}, r"stage_to_rank is \[0, 2\]: every rank from 0 on needs a stage"),
    ],
)  # fmt: skip
def test_wrong_problems_are_refused(changed, sentence):
    arguments = {"stage_to_rank": [0, 1, 1, 0], "num_microbatches": 2, **UNIT}
    with pytest.raises(ConfigError, match=sentence):
        Problem.of(**(arguments | changed))


def test_an_infinite_cap_is_no_cap():
    shape = {"stage_to_rank": v_shape(3, 6), "num_microbatches": 5, **UNIT}
    assert lower_bounds(Problem.of(cap=np.inf, **shape)) == lower_bounds(Problem.of(cap=10, **shape))


@pytest.mark.parametrize(
    ("capacity", "sizes", "reachable"),
    [
        (7.5, [2.0, 4.0, 0.0], 6.0),  # multiples of the smallest
        (7.5, [4.0, 6.0], 6.0),  # multiples of 2
        (7.5, [4.0, 5.0], 7.0),
        (7.5, [0.5, 1.25], 7.5),
        (6.0, [2.0, 6.0], 6.0),
        (1.0, [1.5, 3.0], 0.0),
    ],
)
def test_a_capacity_is_rounded_to_what_sizes_can_reach(capacity, sizes, reachable):
    assert lower._reachable(capacity, sizes) == reachable


def test_the_best_of_two_states_is_that_of_all_counts():
    random = np.random.default_rng(0)
    for _ in range(30):
        small, large = (MemoryUse(*(random.integers(0, 6, 2) + np.array([0, at])).tolist()) for at in (0, 1))
        if large.size == 0:
            continue
        count, capacity = int(random.integers(1, 6)), float(random.integers(0, 20))
        fitting = [
            one * large.value + other * small.value
            for one in range(count + 1)
            for other in range(count + 1 - one)
            if one * large.size + other * small.size <= capacity
        ]
        assert lower._most_of_two(small, large, count, capacity) == max(fitting)


def test_an_envelope_has_the_corners_of_the_hull():
    states = [MemoryUse(value, size) for value, size in ((1.0, 1.0), (3.0, 2.0), (3.5, 3.0), (5.0, 4.0))]
    # From the origin, (3, 2) is steeper than (1, 1); from (3, 2), (5, 4) is steeper than (3.5, 3).
    assert lower._envelope(states) == [states[1], states[3]]
    assert lower._envelope(states[:1]) == states[:1]
    assert lower._slope(MemoryUse(1.0, 1.0), MemoryUse(2.0, 1.0)) == float("inf")
