"""Bounds for a table: equal to the simulated time of some tables, and paths and work by hand."""

from typing import Any

import pytest

from ppsim import StageCosts, build, simulate
from ppsim.simulation.bounds.for_table import _bounds_by_microbatch, _bounds_of_chains, bounds_of, problem_of
from ppsim.simulation.bounds.lower import LowerBounds

TIGHT: list[tuple[str, int, int, dict[str, Any], bool]] = [
    ("chimera", 2, 2, {
        "forward_s": [3, 2], "backward_input_s": [8, 9], "backward_weight_s": [5, 3], "backward_s": [2, 9], "transfer_s": 1}, False),
    ("chimera", 2, 2, {
        "forward_s": [7, 1], "backward_input_s": [7, 6], "backward_weight_s": [8, 1], "backward_s": [2, 4],
        "hop_overhead_s": 0.5, "fused_s": 14}, False),
    ("chimera", 2, 2, {"forward_s": [8, 4], "backward_input_s": [4, 9], "backward_weight_s": [7, 3]}, True),
    ("zb-h1", 2, 2, {
        "forward_s": [4, 6], "backward_input_s": [6, 3], "backward_weight_s": [5, 7], "backward_s": [9, 13],
        "hop_overhead_s": 0.5, "microbatch_factors": [2, 3]}, False),
    ("gpipe", 3, 2, {
        "forward_s": [2, 4, 6], "backward_input_s": [6, 6, 9], "backward_weight_s": [4, 6, 2], "backward_s": [4, 5, 6],
        "transfer_s": 1, "microbatch_factors": [1, 1]}, True),
    ("1f1b", 1, 2, {
        "forward_s": 2, "backward_input_s": 8, "backward_weight_s": 8, "action_overhead_s": 0.25, "hop_overhead_s": 0.5,
        "microbatch_factors": [1, 2]}, True),
]  # fmt: skip


@pytest.mark.parametrize(("name", "pp", "microbatches", "seconds", "of_span"), TIGHT)
def test_these_tables_are_optimal(
    name: str, pp: int, microbatches: int, seconds: dict[str, Any], *, of_span: bool
) -> None:
    table, costs = build(name, pp=pp, microbatches=microbatches), StageCosts(**seconds)
    bounds, timeline = bounds_of(table, costs), simulate(table, costs)
    assert bounds.step_s == pytest.approx(timeline.step_time_s, rel=1e-12)
    if of_span:
        assert bounds.span_s == pytest.approx(timeline.span_s, rel=1e-12)


def sliced(microbatches: int, weight_s: list[float], **further: Any) -> LowerBounds:
    table = build("seq1f1b", pp=2, microbatches=microbatches, num_slices=2)
    costs = StageCosts(
        forward_s=[4, 6], backward_input_s=[6, 10], backward_weight_s=weight_s, transfer_s=3, hop_overhead_s=0.125,
        action_overhead_s=0.25, **further,
    )  # fmt: skip
    return _bounds_of_chains(table, costs.resolved_for(table))


HOP = 1.5 + 0.125
REACH = 2.25 + HOP


def test_paths_and_work_of_two_slices() -> None:
    """A slice takes half the time, and 0.25 s of the host before each of its actions."""
    way = REACH + 6.5 + 10.5 + 4.25 + HOP  # W of the first stage is half of 8 s with its I
    assert sliced(1, [2, 4]) == LowerBounds(way - 0.25, 6.5 + 14.5 - 0.25)
    assert sliced(3, [2, 4]) == LowerBounds(REACH + 3 * 21 - 0.25, 3 * 21 - 0.25)
    to_input = REACH + 3 * (6.5 + 10.5) + 4.25 + HOP  # of rank 1, whose W take 1 s
    assert sliced(3, [2, 1]) == LowerBounds(to_input - 0.25, 3 * (6.5 + 11.5) - 0.25)
    assert sliced(5, [40, 1]) == LowerBounds(5 * (4.5 + 46.5) - 0.25, 5 * 51 - 0.25)


def test_a_cheaper_unsplit_backward_counts_for_work_and_for_the_way() -> None:
    """B takes 7 s instead of 8 on the first stage, and 9 instead of 14 on the last: I end no earlier than 9 s."""
    way = REACH + 6.5 + 9.5 + 3.75 + HOP
    assert sliced(1, [2, 4], backward_s=[7, 9]) == LowerBounds(way - 0.25, 6.5 + 9.5 - 0.25)
    # If B is more expensive, a split backward has one action more per slice.
    found = sliced(1, [2, 4], backward_s=[70, 90])
    assert found.span_s == 6.5 + 14 + 2 * 0.25 + 2 * 0.25 - 0.25
    assert found.step_s == REACH + 6.5 + 10.5 + 4.5 + HOP - 0.25


@pytest.mark.parametrize(
    ("transfer_s", "full_s", "step_s", "span_s"),
    [
        # Work of rank 1: 3.25 + 9.25 + 5.25 + 14.25, after the way of the first microbatch.
        (2, None, 1.25 + 2.5 + 32, 32),
        # The second microbatch: F of 2.25 and 5.25, I of 11.25, B of 7.25.
        (20, None, 7.5 + 2 * 20.5 + 11.25 + 7.25, 32),
        # B of 3 s, I and W of 7 s with two host times, B of 8 s and of 9 s.
        (2, [[3, 20], [8, 9]], 1.25 + 2.5 + 3.25 + 8.25 + 5.25 + 9.25, 26),
        (20, [[3, 20], [8, 9]], 7.5 + 2 * 20.5 + 9.25 + 7.5, 26),
    ],
)
def test_each_microbatch_has_its_own_way_and_work(
    transfer_s: float, full_s: list[list[float]] | None, step_s: float, span_s: float
) -> None:
    table = build("zb-h1", pp=2, microbatches=2)
    costs = StageCosts(
        forward_s=[[1, 2], [3, 5]], backward_input_s=[[4, 6], [7, 11]], backward_weight_s=[[1, 1], [2, 3]],
        backward_s=full_s, transfer_s=transfer_s, hop_overhead_s=0.5, action_overhead_s=0.25,
    )  # fmt: skip
    found = _bounds_by_microbatch(table, costs.resolved_for(table))
    assert (found.step_s, found.span_s) == pytest.approx((step_s - 0.25, span_s - 0.25))


def test_slices_and_replicas_have_the_work_of_their_own_microbatches() -> None:
    table = build("seq1f1b", pp=2, microbatches=2, num_slices=2)
    costs = StageCosts(
        forward_s=[[1, 2], [3, 5]], backward_input_s=[[4, 6], [7, 11]], backward_weight_s=[[1, 1], [2, 3]],
        transfer_s=90, action_overhead_s=0.25,
    )  # fmt: skip
    work = 3 + 9 + 5 + 14 + 2 * 4 * 0.25 - 0.25
    assert _bounds_by_microbatch(table, costs.resolved_for(table)) == LowerBounds(work, work)
    chimera = build("chimera", pp=2, microbatches=2)  # a microbatch on each of two replicas
    found = _bounds_by_microbatch(chimera, costs.replace(action_overhead_s=0.0).resolved_for(chimera))
    assert found == LowerBounds(25.0, 25.0)  # rank 0: 1 + 5 + 5 + 14, rank 1: 3 + 9 + 2 + 7


def test_a_memory_limit_leaves_what_is_not_static_to_activations() -> None:
    costs = StageCosts(
        forward_s=1, backward_input_s=1, backward_weight_s=1, activation_bytes=1, static_bytes=[3, 40]
    )
    problem = problem_of([0, 1, 0], 5, costs, memory_limit_bytes=50)
    assert problem.cap == pytest.approx([47, 10])
    assert (problem.num_ranks, problem.num_microbatches, problem.stages_of) == (2, 5, [[0, 2], [1]])
    assert problem_of([0, 1], 5, costs).cap.tolist() == [float("inf")] * 2
