"""Microbatches that differ: by hand, against their one-number forms, and the bounds against every order there is."""

from itertools import pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim import StageCosts, build, simulate
from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.schedule.table import Op, Schedule, backward, backward_input, backward_weight, forward
from ppsim.simulation.bounds.for_table import bounds_of
from ppsim.simulation.cost_files import costs_from, costs_to_json

UNIT = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, activation_bytes=1)


@pytest.mark.parametrize(
    ("factors", "by_hand_s"), [([1, 1, 1], 12), ([1, 1, 3], 24), ([3, 1, 1], 24), ([1, 3, 1], 21)]
)
def test_1f1b_with_one_longer_microbatch_takes_what_it_takes_by_hand(factors, by_hand_s):
    """p = 2, F = 1, B = 2: a longer one is best hidden in the middle, where both ranks are busy."""
    table = build("1f1b", pp=2, microbatches=3)
    assert simulate(table, UNIT.replace(microbatch_factors=factors)).step_time_s == by_hand_s


def test_a_factor_counts_for_seconds_bytes_and_hops_alike_and_a_matrix_says_each_by_itself():
    table, factors = build("zb-h1", pp=2, microbatches=4), np.array([1.0, 2.0, 0.5, 3.0])
    one = UNIT.replace(forward_s=[1, 2], transfer_s=0.25, activation_bytes_kept_for_weight=0.5)
    matrices = {
        name: np.outer(np.broadcast_to(getattr(one, name), 2), factors)
        for name in ("forward_s", "backward_input_s", "backward_weight_s", "activation_bytes",
                     "activation_bytes_kept_for_weight", "transfer_s")
    }  # fmt: skip
    by_factor = simulate(table, one.replace(microbatch_factors=factors))
    by_matrix = simulate(table, one.replace(**matrices))
    assert np.array_equal(by_factor.end, by_matrix.end)
    assert np.array_equal(by_factor.memory.during, by_matrix.memory.during)
    node = int(np.flatnonzero((table.op == Op.F) & (table.stage == 1) & (table.microbatch == 3))[0])
    assert by_factor.end[node] - by_factor.start[node] == pytest.approx(2 * 3)
    assert by_factor.memory.peak_activation_bytes.max() >= 3
    again = costs_from(costs_to_json(one.replace(**matrices)))
    assert np.array_equal(simulate(table, again).end, by_matrix.end)


def test_slices_and_replicas_take_the_factor_of_their_microbatch():
    for name in ("seq1f1b", "chimera"):
        table = build(name, pp=2, microbatches=4)
        costs = UNIT.replace(microbatch_factors=[1, 2, 3, 4])
        lasted = (lambda line: line.end - line.start)(simulate(table, costs))[: len(table)]
        alike = (lambda line: line.end - line.start)(simulate(table, UNIT))[: len(table)]
        assert lasted / alike == pytest.approx(table.microbatch // table.num_slices + 1)


def test_what_does_not_fit_is_said_with_both_numbers():
    table = build("1f1b", pp=2, microbatches=4)
    for costs, sentence in (
        (UNIT.replace(microbatch_factors=[1, 2]), "microbatch_factors has 2 microbatches, but the schedule has 4"),
        (UNIT.replace(forward_s=[[1, 2, 3]]), "forward_s has 3 microbatches, but the schedule has 4"),
        (UNIT.replace(transfer_s=[[1, 1, 1, 1]] * 3), "transfer_s has 3 entries, but the schedule has 2 stages"),
        (
            UNIT.replace(activation_bytes_kept_for_weight=[[0, 0, 2, 0]]),
            "activation_bytes_kept_for_weight is 2 on stage 0, more than the 1 activation_bytes",
        ),
    ):
        with pytest.raises(ConfigError, match="costs do not match the schedule") as error:
            simulate(table, costs)
        assert sentence in str(error.value)
    with pytest.raises(ConfigError, match="fused_s is"):
        UNIT.replace(fused_s=[[1, 2]])
    with pytest.raises(ConfigError, match=r"forward_s\[1\]\[0\]: must be at least 0, got -1"):
        costs_from({"forward_s": [[1.0], [-1.0]], "backward_s": 1.0})


def test_alike_is_the_mean_of_the_times_and_the_most_of_the_bytes():
    costs = UNIT.replace(forward_s=[[1, 2], [3, 4]], microbatch_factors=[1, 3]).with_equal_microbatches()
    assert not costs.differ_by_microbatch
    assert np.asarray(costs.forward_s).tolist() == [3.5, 7.5]
    assert np.asarray(costs.activation_bytes).tolist() == [3.0]


def rows_of(stage, num_microbatches, is_split):
    """Every order of a rank's passes in which none comes before what it needs on its own rank."""
    parts = (forward, backward_input, backward_weight) if is_split else (forward, backward)
    actions = [make(stage, mb) for mb in range(num_microbatches) for make in parts]
    for order in permutations(actions):
        place = {action: at for at, action in enumerate(order)}
        if all(
            place[a(stage, mb)] < place[b(stage, mb)] for mb in range(num_microbatches) for a, b in pairwise(parts)
        ):
            yield list(order)


def tables_of_every_order(is_split):
    for rows in product(*(list(rows_of(stage, 2, is_split)) for stage in range(2))):
        yield Schedule.from_rows(list(rows), stage_to_rank=[0, 1], num_microbatches=2)


EVERY_TABLE = [*tables_of_every_order(False), *list(tables_of_every_order(True))[::7]]


def row(low, high):
    return st.lists(st.integers(low, high).map(float), min_size=2, max_size=2)


@given(st.fixed_dictionaries({
    "forward_s": st.lists(row(1, 9), min_size=2, max_size=2),
    "backward_input_s": st.lists(row(0, 9), min_size=2, max_size=2),
    "backward_weight_s": st.lists(row(0, 9), min_size=2, max_size=2),
    "transfer_s": st.lists(row(0, 3), min_size=2, max_size=2),
    "action_overhead_s": st.sampled_from([0.0, 0.5]),
}))  # fmt: skip
@settings(deadline=None, max_examples=8)
def test_no_order_at_all_undercuts_the_bounds_of_microbatches_that_differ(costs):
    costs = StageCosts(**costs)
    bounds, best_step, best_span = bounds_of(EVERY_TABLE[0], costs), np.inf, np.inf
    for table in EVERY_TABLE:
        try:
            timeline = simulate(table, costs)
        except ScheduleError:
            continue
        best_step, best_span = min(best_step, timeline.step_time_s), min(best_span, timeline.span_s)
    assert bounds.step_s <= best_step + 1e-9
    assert bounds.span_s <= best_span + 1e-9


def test_the_bound_counts_the_work_of_every_microbatch_and_not_so_many_of_the_shortest():
    costs = UNIT.replace(microbatch_factors=[1, 1, 1, 2])
    bounds = bounds_of(build("1f1b", pp=2, microbatches=4), costs)
    assert bounds.step_s == 1 + 3 * (1 + 1 + 1 + 2)  # the first forward reaches rank 1, which then has all its work
    assert bounds.span_s == 3 * (1 + 1 + 1 + 2)


def test_fitted_schedules_are_laid_out_for_the_mean_and_timed_at_each_microbatch():
    from ppsim.catalog.build import find, optimise_entry

    costs = UNIT.replace(microbatch_factors=[1, 2, 3, 1, 2, 3])
    table, note = optimise_entry(find("zb-1p"), costs=costs, pp=3, microbatches=6)
    assert "mean microbatch" in note or "these microbatches" in note
    assert simulate(table, costs).step_time_s >= bounds_of(table, costs).step_s
