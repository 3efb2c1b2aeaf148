"""Each cause of a measured step removes its own waits and leaves those of other causes."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.made_steps import Made
from ppsim import Op, build
from ppsim.runs import loss_causes
from ppsim.runs.links import SlowPairs, input_times, links_of
from ppsim.runs.loss_attribution import attribute_losses
from ppsim.runs.loss_causes import ActionSpeeds, cause_removals
from ppsim.runs.pauses import MOST_PLACES
from ppsim.runs.step_factors import StepFactors
from ppsim.runs.step_replay import MeasuredSteps, steps_of
from ppsim.schedule.graph import build_graph
from tests.defaults import number_defaults


def test_gaps_between_passes_leave_the_wait_for_which_a_slow_link_blocks_the_rank() -> None:
    made = Made(build("1f1b", pp=2, microbatches=4), seed=1, num_steps=3)
    run, actions = made.run(), len(made.table)
    start, end = run.start[:, :actions], run.end[:, :actions]
    usual = links_of(made.graph, start, *input_times(made.graph, end)[:2])
    steps = steps_of(made.graph, start, end, usual)
    blocked = 5
    block_s = np.where(np.arange(actions) == blocked, 0.005, 0.0)
    steps = replace(steps, after_own=np.full_like(steps.after_own, 1e-4) + block_s)
    paces = ActionSpeeds(made.table, StepFactors(made.table, steps.taken, float(run.step_times_s.mean())))
    excess = SlowPairs(np.zeros((1, actions)), block_s, {"rank 0 → 1": (0.0, 0.005, 0.0)})
    causes = {one.cause: one for one in cause_removals(paces, steps, start, excess, usual)}
    left = causes["gaps between passes"].without_others(steps).after_own
    assert (left[:, blocked] == 0.005).all()
    assert (np.delete(left, blocked, axis=1) == 0.0).all()


@pytest.mark.parametrize(
    ("slow", "words"), [((1.5, 1.5), "+50.00 %"), ((1.0, 1.5), "forward +0.00 %, backward +50.00 %")]
)
def test_a_rank_that_is_slow_in_one_pass_only_is_a_slow_rank(slow: tuple[float, float], words: str) -> None:
    table = build("zbv", pp=3, microbatches=4)
    usual = np.where(table.op == Op.F, 2.0, 1.0)
    factors = np.where(table.rank == 1, np.where(table.op == Op.F, *slow), 1.0)
    paces = ActionSpeeds(table, StepFactors(table, np.stack([usual * factors] * 3), 50.0))
    expected = [[1.0, factor, 1.0] for factor in slow]
    assert paces.of_ranks == pytest.approx(np.array(expected))
    none = np.zeros((3, len(table)))
    steps = MeasuredSteps(paces.factors.taken, none, none)
    links = links_of(build_graph(table), none, none, none)
    removals = cause_removals(paces, steps, none, SlowPairs(none, none[0], {}), links)
    slow_ranks = removals[-2]
    assert (slow_ranks.cause, slow_ranks.detail) == ("slow ranks", f"rank 1: {words}")
    assert slow_ranks.without(steps).taken == pytest.approx(np.stack([usual] * 3)), (
        "nothing is left for uneven stages"
    )


@pytest.mark.parametrize(
    ("stage_factors", "slow"),
    [
        ([1.0, 1.0, 1.5, 1.1], [1.0, 1.0, 1.5, 1.0]),  # the last stage may have the head
        ([1.0, 1.0, 1.04, 1.0], [1.0, 1.0, 1.0, 1.0]),
        ([1.1, 1.2, 1.3, 1.4], [1.0, 1.0, 1.0, 1.0]),  # no usual time
    ],
)
def test_with_one_stage_per_rank_an_inner_rank_beyond_the_usual_time_is_slow(
    stage_factors: list[float], slow: list[float]
) -> None:
    table = build("1f1b", pp=4, microbatches=4)
    taken = np.broadcast_to(np.array(stage_factors)[table.stage], (3, len(table)))
    paces = ActionSpeeds(table, StepFactors(table, taken, 50.0))
    assert paces.slow_ranks == pytest.approx(np.array([slow, slow]))


def test_two_ranks_have_no_inner_rank() -> None:
    table = build("1f1b", pp=2, microbatches=4)
    taken = np.broadcast_to(np.where(table.rank == 1, 2.0, 1.0), (3, len(table)))
    assert (ActionSpeeds(table, StepFactors(table, taken, 50.0)).slow_ranks == 1).all()


def speeds(name: str, seconds: dict[Op, list[float]], **shape: int) -> ActionSpeeds:
    """Speeds of three equal steps whose actions take `seconds` by kind and stage."""
    table = build(name, **shape)
    taken = np.array([seconds[Op(op)][stage] for op, stage in zip(table.op, table.stage, strict=True)])
    return ActionSpeeds(table, StepFactors(table, np.stack([taken] * 3), 50.0))


def test_the_typical_stage_is_the_lower_median() -> None:
    paces = speeds("1f1b", {Op.F: [1.0, 2.0, 3.0, 8.0], Op.B: [4.0, 7.0, 6.0, 5.0]}, pp=4, microbatches=4)
    assert paces.typical == pytest.approx({Op.F: 2.0, Op.B: 5.0})
    assert paces.whole_s == pytest.approx([5.0, 9.0, 9.0, 13.0])
    assert (paces.backward_s, paces.all_weight, paces.is_told, paces.most_are_slow) == ({}, set(), False, False)
    assert paces.even == pytest.approx(np.where(paces.schedule.op == Op.F, 2.0, 5.0))


def test_a_first_stage_with_its_whole_backward_in_w_keeps_that() -> None:
    seconds = {Op.F: [1.0, 1.0, 1.0], Op.I: [0.1, 3.0, 2.0], Op.W: [5.9, 1.0, 2.0]}
    paces = speeds("zb-h1", seconds, pp=3, microbatches=6)
    assert paces.backward_s == pytest.approx({0: 6.0, 1: 4.0, 2: 4.0})
    assert paces.all_weight == {0}
    assert paces.typical == pytest.approx({Op.F: 1.0, Op.I: 0.625 * 4, Op.W: 0.375 * 4}), "I: median of 3/4 and 2/4"
    by_kind = {
        (op, stage): time
        for op, stage, time in zip(paces.schedule.op, paces.schedule.stage, paces.even, strict=True)
    }
    assert (by_kind[Op.I, 0], by_kind[Op.W, 0]) == pytest.approx((0.1, 4 - 0.1))
    assert (by_kind[Op.I, 1], by_kind[Op.W, 2]) == pytest.approx((2.5, 1.5))


def test_an_input_gradient_of_a_tenth_of_the_longest_is_not_empty() -> None:
    seconds = {Op.F: [1.0] * 3, Op.I: [0.31, 3.0, 3.0], Op.W: [1.0] * 3}
    assert speeds("zb-h1", seconds, pp=3, microbatches=6).all_weight == set()


@pytest.mark.parametrize(
    ("forwards", "are_slow", "is_told"),
    [
        ([1.0, 1.0, 1.0, 1.0], False, True),
        ([1.0, 1.5, 1.0, 1.5], False, True),  # the lower median is a fast stage
        ([1.0, 1.5, 1.5, 1.5], True, False),  # a slow rank and a stage: one of each, either way
        ([1.5, 1.0, 1.5, 1.5], True, False),
        ([1.0, 3.0, 2.0, 3.0], True, True),  # rank 1 is slow relative to the fastest and to the median stage
        ([1.0, 1.02, 1.03, 1.03], False, True),
    ],
)
def test_most_stages_of_two_ranks_are_slow(forwards: list[float], are_slow: bool, is_told: bool) -> None:
    seconds = {Op.F: forwards, Op.B: [2 * one for one in forwards]}
    paces = speeds("interleaved-1f1b", seconds, pp=2, vpp=2, microbatches=4)
    assert (paces.most_are_slow, paces.is_told) == (are_slow, is_told)
    base = paces.of_base
    assert sorted({stage for _, stage in base}) == ([0, 1, 2, 3] if not are_slow else [forwards.index(1.0)])


def test_without_a_reference_no_rank_of_several_stages_is_slow() -> None:
    forwards = [1.0, 1.5, 1.5, 1.5]
    paces = speeds("interleaved-1f1b", {Op.F: forwards, Op.B: forwards}, pp=2, vpp=2, microbatches=4)
    assert (paces.slow_ranks == 1).all()
    assert paces.of_ranks == pytest.approx(np.array([[1.0, 1.5]] * 2))


def of_steps(slow: list[list[float]]) -> str:
    return loss_causes._slow_steps(np.array(slow), 3)


def test_slow_steps_are_named_by_number_and_rank() -> None:
    assert of_steps([[1.0, 1.0], [1.2, 1.2], [1.0, 1.5]]) == "step 4: all ranks +20.00 %; step 5: rank 1 +50.00 %"
    assert of_steps([[1.0, 1.0]]) == ""


def test_of_many_slow_steps_the_slowest_are_named_in_order() -> None:
    text = of_steps([[1.1, 1.0], [1.2, 1.0], [1.3, 1.0], [1.4, 1.0], [1.5, 1.0], [1.6, 1.0]])
    named = [part.partition(":")[0] for part in text.split("; ") if part.startswith("step")]
    assert named == [f"step {3 + step}" for step in range(6 - MOST_PLACES, 6)]


def test_the_worst_of_each_kind_is_described() -> None:
    table = build("1f1b", pp=2, microbatches=2)
    excess = np.zeros(len(table))
    assert loss_causes._worst_pass(table, excess) == ""
    excess[3] = 0.25
    assert loss_causes._worst_pass(table, excess) == f"most: {table[3]} on rank {table.rank[3]}, 250 ms longer"
    assert loss_causes._median_wait(np.array([0.0, 0.1, -1.0, 0.3]), "gap", {}) == "200 ms per gap (median of 2)"
    assert loss_causes._median_wait(np.zeros(2), "gap", {}) == ""
    paces = speeds("1f1b", {Op.F: [1.0, 2.0], Op.B: [2.0, 2.5]}, pp=2, microbatches=2)
    assert (
        loss_causes._worst_stage(paces)
        == "stage 1 on rank 1: 4.50 s per microbatch, +50.00 % over the median stage"
    )


def test_a_rank_is_described_by_passes_that_differ() -> None:
    of_ranks = [[1.0, 1.2], [1.0, 1.22]]
    assert loss_causes._worst_rank(np.array(of_ranks)) == "rank 1: +22.00 %", "3 % more or less are equal"
    assert (
        loss_causes._worst_rank(np.array([[1.0, 1.0], [1.1, 1.0]])) == "rank 0: forward +0.00 %, backward +10.00 %"
    )
    assert loss_causes._worst_rank(np.ones((2, 3))) == ""


def removals(hop_s: float, own_s: float, variation_s: float) -> tuple[MeasuredSteps, dict[str, MeasuredSteps]]:
    """Return even steps with equal waits, and these without each cause."""
    paces = speeds("1f1b", {Op.F: [1.0, 1.0], Op.B: [2.0, 2.0]}, pp=2, microbatches=4)
    num_steps, actions = paces.factors.taken.shape
    full = np.ones((num_steps, actions))
    steps = MeasuredSteps(paces.factors.taken, hop_s * full, own_s * full)
    none = np.zeros_like(full)
    links = links_of(build_graph(paces.schedule), none, none, none)
    slow = SlowPairs(0.25 * full[:1], 0.125 * full[0], {})
    causes = cause_removals(paces, steps, none, slow, links, variation_s=variation_s)
    return steps, {one.cause: one.without(steps) for one in causes}


def test_each_cause_is_removed_from_its_own_waits() -> None:
    steps, without = removals(hop_s=0.5, own_s=0.5, variation_s=0.0625)
    slow = without["slow links"]
    assert (np.unique(slow.hop), np.unique(slow.after_own)) == ([0.25], [0.375])
    waits = without["waits for messages"]
    assert (np.unique(waits.hop), np.unique(waits.after_own)) == ([0.0], [0.5])
    between = without["gaps between passes"]
    assert (np.unique(between.hop), np.unique(between.after_own)) == ([0.5], [0.0625])
    varied = without["passes that vary"]
    assert (np.unique(varied.hop), np.unique(varied.after_own)) == ([0.5], [0.4375])
    assert all(np.array_equal(one.taken, steps.taken) for one in (slow, waits, between, varied))


def test_no_wait_gets_negative() -> None:
    _, without = removals(hop_s=0.125, own_s=0.03125, variation_s=0.0625)
    assert (np.unique(without["slow links"].hop), np.unique(without["slow links"].after_own)) == ([0.0], [0.0])
    assert np.unique(without["passes that vary"].after_own) == [0.0]
    assert np.unique(without["gaps between passes"].after_own) == [0.03125]


@pytest.mark.parametrize(("cause", "what"), [("waits for messages", "message"), ("gaps between passes", "gap")])
def test_a_wait_has_the_names_of_the_work_that_was_recorded_in_most_waits(cause: str, what: str) -> None:
    steps = Made(build("1f1b", pp=2, microbatches=8), seed=1)
    steps.put(cause)
    run, shape = steps.run(), steps.taken.shape
    rare = np.zeros(shape)
    rare[0] = 1.0
    run = replace(run, work_s={"receive": np.full(shape, 0.004), "checkpoint": rare})
    detail = next(loss.detail for loss in attribute_losses(run).losses if loss.cause == cause)
    assert re.fullmatch(rf"[\d.]+ .s per {what} \(median of \d+\) \(receive 4.00 ms\)", detail)


PAIR = build("1f1b", pp=2, microbatches=2)
"""Actions 0F0 0F1 0B0 0B1 on rank 0, and 1F0 1B0 1F1 1B1 on rank 1."""


def paces_with(**fields: Any) -> Any:
    """Return usual times of 1 s per F and 2 s per B in three steps, without any cause."""
    ones, usual = np.ones((3, 8)), np.where(PAIR.op == Op.F, 1.0, 2.0)
    factors = {
        "firsts": np.zeros((3, 8), dtype=bool), "expected": usual * ones, "without_pauses": usual * ones,
        "slow_steps": np.ones((3, 2)), "drift": np.ones((3, 2)), "drift_in_step": np.ones(8), "sizes": ones,
        "pauses": 0 * ones, "usual": usual, "taken": usual * ones, "drift_of_ranks": np.ones((3, 2)),
        "drift_of_all": np.ones((3, 1)),
    }  # fmt: skip
    given = {
        "schedule": PAIR, "typical": {Op.F: 1.0, Op.B: 2.0}, "even": usual, "of_ranks": np.ones((2, 2)), "is_told": True,
        "whole_s": np.array([3.0, 3.0]),
    }  # fmt: skip
    own = {name: value for name, value in fields.items() if name in given}
    factors |= {name: value for name, value in fields.items() if name not in given}
    return SimpleNamespace(**given | own, factors=SimpleNamespace(**factors))


def steps_with(taken: Any, own: float = 0.0) -> MeasuredSteps:
    taken = np.array(taken) * np.ones((3, 8))
    return MeasuredSteps(taken, np.zeros((3, 8)), np.full((3, 8), own))


def test_a_cause_within_actions_leaves_their_pauses_if_it_is_removed_alone() -> None:
    steps = steps_with(7.0, own=0.5)
    removal = loss_causes._of_passes("c", lambda taken: taken / 2, "d", SimpleNamespace(pauses=3.0))  # type: ignore[arg-type]
    assert (removal.cause, removal.detail) == ("c", "d")
    assert (removal.without(steps).taken == 3.5).all()
    assert (removal.without_others(steps).taken == 3 + (7 - 3) / 2).all()
    assert (removal.without(steps).after_own == 0.5).all()
    plain = loss_causes._of_passes("c", lambda taken: taken / 2, "d")
    assert (plain.without_others(steps).taken == 3.5).all()


def test_the_device_waits_for_launches_in_the_median_part_of_each_action() -> None:
    """A fourth of the F and a half of the B of rank 0 in most steps; an action of 0 s has no part."""
    waits = np.zeros((3, 8))
    waits[:2, :4] = [0.25, 0.25, 1.0, 1.0]
    waits[2] = 9.0
    removal = loss_causes.launches_removal(paces_with(), waits)
    taken = removal.without(steps_with(4.0)).taken
    assert taken[0].tolist() == [3.0, 3.0, 2.0, 2.0, 4.0, 4.0, 4.0, 4.0]
    assert removal.detail == "device idle: 12.50 % of F, 25.00 % of B"
    always = loss_causes.launches_removal(paces_with(), np.full((3, 8), 9.0))
    assert (always.without(steps_with(4.0)).taken == 0).all(), "a share of one at most"
    none = loss_causes.launches_removal(paces_with(taken=np.zeros((3, 8))), waits)
    assert (none.without(steps_with(4.0)).taken == 4).all()


def test_first_passes_straggling_steps_drift_and_sizes_are_removed_from_their_actions() -> None:
    firsts = np.zeros((3, 8), dtype=bool)
    firsts[:, 4] = True
    late = np.where(PAIR.op == Op.F, 1.0, 2.0) * np.ones((3, 8))
    late[:, 4] += [0.5, 1.0, 1.5]
    [first] = loss_causes._of_factors(paces_with(firsts=firsts, without_pauses=late), 4)
    assert (first.cause, first.detail) == ("slow first passes", "most: 1F0 on rank 1, 1.00 s longer")
    assert first.without(steps_with(3.0)).taken[0].tolist() == [3, 3, 3, 3, 1, 3, 3, 3]
    assert first.without(steps_with(0.5)).taken[0].tolist() == [0.5] * 8
    slow = np.array([[1.0, 1.0], [1.0, 1.25], [2.0, 2.5]])
    drift, in_step = np.array([[1.0, 1.0], [1.25, 1.0], [1.5, 1.0]]), np.where(np.arange(8) == 7, 2.0, 1.0)
    sizes = np.where(PAIR.microbatch == 1, 1.5, 0.5) * np.ones((3, 8))
    made = paces_with(
        slow_steps=slow, drift=drift, drift_in_step=in_step, sizes=sizes, drift_of_ranks=drift,
        drift_of_all=np.array([[1.0], [1.0], [1.25]]),
    )  # fmt: skip
    none, steps, drifts, uneven = loss_causes._of_factors(made, 4)
    assert none.detail == ""
    assert (steps.cause, steps.detail) == (
        "straggling steps",
        "step 5: rank 1 +25.00 %; step 6: all ranks +150.00 %",
    )
    assert steps.without(steps_with(6.0)).taken[:, [0, 4]].tolist() == [[6.0, 6.0], [6.0, 4.8], [3.0, 2.4]]
    assert drifts.cause == "drift"
    assert drifts.detail == (
        "rank 0: +50.00 % from the first step to the last, rank 1: +100.00 % from its first pass to its last, "
        "all ranks: +25.00 % from the first step to the last"
    )
    assert drifts.without(steps_with(6.0)).taken[:, [0, 4, 7]].tolist() == [
        [6.0, 6.0, 3.0],
        [4.8, 6.0, 3.0],
        [4.0, 6.0, 3.0],
    ]
    assert (uneven.cause, uneven.detail) == ("uneven microbatches", "from 0.50 to 1.50 times the mean")
    assert uneven.without(steps_with(6.0)).taken[0, :2].tolist() == [12.0, 4.0]


def test_passes_that_vary_become_usual_ones_or_alone_the_expected_ones_with_their_pauses() -> None:
    firsts = np.zeros((3, 8), dtype=bool)
    firsts[:, 4] = True
    expected, without = np.full((3, 8), 3.0), np.full((3, 8), 3.0)
    without[:, 4], without[:, 2] = 9.0, [3.5, 4.0, 4.5]
    made = paces_with(firsts=firsts, expected=expected, without_pauses=without, pauses=np.full((3, 8), 0.25))
    removal = loss_causes._variation(made, 0.0)
    assert (removal.cause, removal.detail) == ("passes that vary", "most: 0B0 on rank 0, 1.00 s longer")
    steps = steps_with(5.0, own=0.5)
    assert removal.without(steps).taken[0].tolist() == made.factors.usual.tolist()
    assert removal.without_others(steps).taken[0].tolist() == [3.25] * 4 + [9.25] + [3.25] * 3
    assert (removal.without(steps).after_own == 0.5).all()
    waiting = loss_causes._variation(made, 0.375)
    assert waiting.detail == "375 ms before a pass"
    assert (waiting.without(steps).after_own == 0.125).all()
    assert (waiting.without_others(steps_with(5.0, own=0.25)).after_own == 0.0).all()


def test_slow_ranks_are_removed_before_uneven_stages_if_they_are_distinguished() -> None:
    usual = np.array([1.5, 1.5, 4.0, 4.0, 1.0, 2.5, 1.0, 0.0])
    even = np.where(PAIR.op == Op.F, 1.0, 2.0)
    made = paces_with(
        usual=usual, even=even, of_ranks=np.array([[1.5, 1.0], [2.0, 1.0]]), whole_s=np.array([5.5, 3.5])
    )
    ranks, stages = loss_causes._of_stages(made)
    assert (ranks.cause, ranks.detail) == ("slow ranks", "rank 0: forward +50.00 %, backward +100.00 %")
    assert ranks.without(steps_with(6.0)).taken[0].tolist() == [4.0, 4.0, 3.0, 3.0, 6.0, 6.0, 6.0, 6.0]
    assert stages.cause == "uneven stages"
    assert stages.detail == "stage 0 on rank 0: 5.50 s per microbatch, +57.14 % over the median stage"
    assert stages.without(steps_with(usual)).taken[0].tolist() == [1.5, 1.5, 4.0, 4.0, 1.0, 2.0, 1.0, 2.0]
    made.is_told = False
    [alone] = loss_causes._of_stages(made)
    assert alone.cause == loss_causes.STAGES_OR_RANKS
    assert alone.without(steps_with(usual)).taken[0].tolist() == even.tolist()
    nothing = paces_with(whole_s=np.array([0.0, 3.5]))
    assert (
        loss_causes._worst_stage(nothing) == "stage 1 on rank 1: 3.50 s per microbatch, all over the median stage"
    )


def test_gaps_and_waits_are_described_by_their_medians_without_pauses_and_slow_links() -> None:
    made = Made(PAIR, seed=1, num_steps=3)
    run, actions = made.run(), len(PAIR)
    start, end = run.start[:, :actions], run.end[:, :actions]
    usual = links_of(made.graph, start, *input_times(made.graph, end)[:2])
    own = np.zeros((3, 8))
    own[:, 1], own[:, 2] = 0.004, 0.006
    steps = replace(steps_of(made.graph, start, end, usual), after_own=own)
    paces = ActionSpeeds(PAIR, StepFactors(PAIR, steps.taken, float(run.step_times_s.mean())))
    block_s = np.where(np.arange(actions) == 2, 0.001, 0.0)
    excess = SlowPairs(np.zeros((1, actions)), block_s, {"rank 0 → 1": (0.0, 0.001, 0.0)})
    causes = {one.cause: one for one in cause_removals(paces, steps, start, excess, usual, variation_s=0.003)}
    gaps = causes["gaps between passes"]
    assert gaps.detail.startswith("1.50 ms per gap (median of 6)")
    assert gaps.without(steps).after_own[0, :3] == pytest.approx([0.0, 0.003, 0.003])
    assert gaps.without_others(steps).after_own[0, :3] == pytest.approx([0.0, 0.003, 0.004])


def test_limits_of_slow_ranks_and_stages() -> None:
    assert [getattr(loss_causes, name) for name in ("_ALIKE", "_CLEARLY", "_NOTHING")] == [0.03, 0.05, 0.1]


def test_numbers_that_callers_may_leave_out() -> None:
    assert number_defaults(loss_causes) == {
        "cause_removals": {"first_step": 1, "variation_s": 0.0},
        "work_in_words": {"most": 4},
    }
