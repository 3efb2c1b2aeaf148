"""Steps of a run whose times were chosen by hand."""

from dataclasses import replace

import numpy as np
import pytest

from ppsim import StageCosts, build, simulate
from ppsim.runs import run as run_module
from ppsim.runs.run import (
    ReferenceSpeed,
    Run,
    gaps_between,
    median_costs,
    pass_medians,
    table_in_words,
    unslowed_costs,
)
from ppsim.schedule.table import Op
from tests.defaults import number_defaults

COSTS = StageCosts(forward_s=[1.0, 2.0], backward_input_s=3.0, backward_weight_s=[1.0, 2.0], transfer_s=0.5)
TIMELINE = simulate(build("1f1b", pp=2, microbatches=2), COSTS)
GRAPH = TIMELINE.graph
ACTIONS = GRAPH.num_actions
SPLIT = simulate(build("zb-h1", pp=2, microbatches=2), COSTS).graph


def ran(*begins: float, factors: tuple[float, ...] = (), **others) -> Run:
    """Return a run with a step at each of `begins`, longer by its factor."""
    steps = zip(begins, factors or (1.0,) * len(begins), strict=True)
    start, end = zip(
        *((begin + by * TIMELINE.start, begin + by * TIMELINE.end) for begin, by in steps), strict=True
    )
    return Run("r", GRAPH, COSTS, np.stack(start), np.stack(end), **others)


def test_steps_take_from_the_first_start_to_the_last_end() -> None:
    run = ran(5.0, 105.0, factors=(1.0, 2.0))
    assert run.step_times_s == pytest.approx([TIMELINE.step_time_s, 2 * TIMELINE.step_time_s])
    assert gaps_between(GRAPH, run.start, run.end) == pytest.approx([100 - TIMELINE.step_time_s])


def test_a_fingerprint_is_of_the_last_step_from_the_start_of_each_rank() -> None:
    run = ran(5.0, 105.0)
    assert run.fingerprint == ran(105.0).fingerprint == ran(7.0).fingerprint
    ranks = np.append(GRAPH.schedule.rank, GRAPH.schedule.rank[GRAPH.source])
    shifted = replace(run, start=run.start + 0.25 * ranks, end=run.end + 0.25 * ranks)
    assert shifted.fingerprint == run.fingerprint  # another clock
    for wrong in (
        replace(run, start=run.start * 1.001),
        replace(run, end=run.end + 2e-9),
        ran(5.0, factors=(2.0,)),
    ):
        assert wrong.fingerprint != run.fingerprint
    assert replace(run, end=run.end + 1e-10).fingerprint == run.fingerprint


def test_a_run_at_another_pace_is_scaled_from_each_step_s_start() -> None:
    run = ran(5.0, 105.0, reference_s=[[1.0, 3.0], [2.0, 6.0]])
    assert ran(5.0).at_pace([9.0]).start == pytest.approx(ran(5.0).start)  # no pace is known
    faster = run.at_pace([0.5, 1.5])
    assert faster.step_times_s == pytest.approx([TIMELINE.step_time_s / 2, TIMELINE.step_time_s / 4])
    assert faster.start.min(axis=1) == pytest.approx([5.0, 105.0])
    assert faster.reference_s == [[0.5, 1.5]] * 2
    assert faster.costs is COSTS
    own = replace(run, has_own_costs=False).at_pace([0.5, 1.5])
    assert own.costs.forward_s == pytest.approx([0.375, 0.75])  # the median of a half and a quarter


def test_every_second_step_is_left() -> None:
    run = ran(
        0.0,
        50.0,
        100.0,
        gaps_s=[1.0, 2.0],
        work_s={"w": np.zeros((3, ACTIONS))},
        launch_wait_s=np.ones((3, ACTIONS)),
    )
    for first, begins in ((0, [0.0, 100.0]), (1, [50.0])):
        half = run.steps_from(first)
        assert half.start.min(axis=1) == pytest.approx(begins)
        assert half.end.max(axis=1) == pytest.approx([begin + TIMELINE.step_time_s for begin in begins])
        assert (half.gaps_s, half.work_s, half.launch_wait_s) == ((), {}, None)


def test_bytes_of_a_message_are_those_of_its_slice() -> None:
    sliced = simulate(build("seq1f1b", pp=2, microbatches=2), COSTS).graph
    number = sliced.schedule.num_slices
    run = Run("r", sliced, COSTS, np.zeros((1, 1)), np.zeros((1, 1)), message_bytes=96.0)
    assert run.bytes_of_transfers == pytest.approx([96.0 / number] * len(sliced.source))
    assert replace(run, message_bytes=None).bytes_of_transfers is None
    assert ran(0.0, message_bytes=96.0).bytes_of_transfers == pytest.approx([96.0] * len(GRAPH.source))


def test_a_reference_has_the_layers_of_a_rank_and_the_ends() -> None:
    speed = ReferenceSpeed("w", 2.0, (0.5, 0.25))
    assert speed.ranks_s(GRAPH.schedule, [3, 4]) == [6.5, 8.25]
    v_shape = build("zbv-fixed", pp=2, microbatches=4, vpp=2)
    assert speed.ranks_s(v_shape, [1, 2, 3, 4]) == [2 + 8 + 0.75, 4 + 6]


def test_medians_are_of_each_kind_and_stage() -> None:
    table = GRAPH.schedule
    durations = np.where(table.op == Op.F, 1.0, 5.0) + 10.0 * table.stage + np.array([[0.0], [0.5], [4.0]])
    assert pass_medians(table, durations) == {
        (Op.F, 0): 1.5,
        (Op.F, 1): 11.5,
        (Op.B, 0): 5.5,
        (Op.B, 1): 15.5,
    }
    costs = median_costs(GRAPH, durations)
    assert (list(costs.forward_s), list(costs.backward_s)) == ([1.5, 11.5], [5.5, 15.5])
    kept = median_costs(GRAPH, durations, COSTS)
    assert kept.transfer_s == 0.5
    assert list(kept.forward_s) == [1.5, 11.5]


def test_split_backwards_have_both_forms() -> None:
    table = SPLIT.schedule
    seconds = {Op.F: 1.0, Op.I: 2.0, Op.W: 4.0, Op.B: 7.0}
    durations = np.array([[seconds[Op(op)] for op in table.op]])
    costs = median_costs(SPLIT, durations)
    assert list(costs.forward_s) == [1.0, 1.0]
    assert list(costs.backward_input_s) == [2.0, 2.0]
    assert list(costs.backward_weight_s) == [4.0, 4.0]


def test_costs_without_slowing_transfers_are_shorter_where_they_overlap() -> None:
    run = ran(5.0)
    assert run.alone(0.0) == pytest.approx(run.end[:, :ACTIONS] - run.start[:, :ACTIONS])
    shorter = run.alone(1.0) / run.alone(0.0)
    assert np.all((shorter <= 1.0) & (shorter >= 0.5))
    assert list(unslowed_costs(run, 0.0).forward_s) == pytest.approx([1.0, 2.0])


def test_a_table_in_words_has_its_name_or_none() -> None:
    assert table_in_words(GRAPH.schedule) == f"{GRAPH.schedule.name}, 2 ranks, 2 stages, 2 microbatches"
    assert table_in_words(replace(GRAPH.schedule, name="")).startswith("a table, 2 ranks")


@pytest.mark.parametrize(
    ("full", "halves", "expected"),
    [
        ([4.0, 6.0], None, {"backward_s": [4.0, 6.0], "backward_input_s": None, "backward_weight_s": None}),
        (None, [(1.0, 3.0), (2.0, 5.0)], {"backward_s": None, "backward_input_s": [1.0, 2.0], "backward_weight_s": [3.0, 5.0]}),
        (
            [4.0, None], [None, (2.0, 5.0)],
            {"backward_s": [4.0, 7.0], "backward_input_s": [4.0, 2.0], "backward_weight_s": [0.0, 5.0]},
        ),
        (
            [4.0, 6.0], [(1.0, 2.0), (3.0, 5.0)],
            {"backward_s": [4.0, 6.0], "backward_input_s": [1.0, 3.0], "backward_weight_s": [2.0, 5.0]},
        ),
    ],
)  # fmt: skip
def test_a_form_of_the_backward_that_a_stage_lacks_is_made_of_the_other(
    full, halves, expected, monkeypatch
) -> None:
    medians = {(Op.F, 0): 1.5, (Op.F, 1): 2.5}
    for stage in (0, 1):
        if full and full[stage]:
            medians[Op.B, stage] = full[stage]
        if halves and halves[stage]:
            medians[Op.I, stage], medians[Op.W, stage] = halves[stage]
    monkeypatch.setattr("ppsim.runs.run.pass_medians", lambda schedule, durations: medians)
    for given in (None, COSTS):
        costs = median_costs(GRAPH, np.zeros((1, ACTIONS)), given)
        assert list(costs.forward_s) == [1.5, 2.5]
        found = {name: getattr(costs, name) for name in expected}
        assert {name: value and list(value) for name, value in found.items()} == expected
    assert median_costs(GRAPH, np.zeros((1, ACTIONS)), COSTS).transfer_s == 0.5


def test_numbers_that_callers_may_leave_out() -> None:
    assert number_defaults(run_module) == {"Run": {"has_own_costs": True, "knows_transfers": False}}
