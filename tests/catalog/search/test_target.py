"""Arrays and scores of a search: stages 0 and 3 of a V are on rank 0, stages 1 and 2 on rank 1."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppsim.catalog.search.pipeline import empty_backlog, empty_table
from ppsim.catalog.search.target import Candidate, SearchTarget, best_of, better
from ppsim.simulation.bounds.lower import lower_bounds
from ppsim.simulation.bounds.problem import Problem

PROBLEM = Problem.of(
    stage_to_rank=[0, 1, 1, 0], num_microbatches=2, forward_s=[1, 2, 3, 5], backward_input_s=[7, 11, 13, 17],
    backward_weight_s=[19, 23, 29, 31], transfer_s=[0.25, 9.0, 0.5], activation=[10, 20, 30, 40],
    activation_kept_for_weight=[4, 5, 6, 7], cap=[70, 100],
)  # fmt: skip
TARGET = SearchTarget(PROBLEM, engine="plain")
SPAN = TARGET.minimising("span")
FIRST_START_S = 1 + 0.25  # of rank 1, after the first forward


def test_stages_are_listed_by_rank() -> None:
    assert TARGET.num_actions == 24
    assert (TARGET.stages.tolist(), TARGET.firsts.tolist()) == ([0, 3, 1, 2], [0, 2, 4])
    assert TARGET.row_offsets.tolist() == [0, 12, 24]
    assert TARGET.per_rank(np.array([1.0, 2.0, 4.0, 8.0])).tolist() == [9, 6]
    assert TARGET.least_cap.tolist() == [50, 50]


def test_a_forward_holds_an_activation_of_which_a_part_stays_from_i_to_w() -> None:
    assert TARGET.memory_changes.tolist() == [10, 20, 30, 40, -6, -15, -24, -33, -4, -5, -6, -7]
    memory = TARGET.memory
    assert (memory.activation.tolist(), memory.kept.tolist()) == ([10, 20, 30, 40], [4, 5, 6, 7])
    assert memory.changes is TARGET.memory_changes
    assert memory.cap == pytest.approx([70, 100])


def test_a_rank_ends_its_work_after_its_first_start_or_counts_from_there() -> None:
    work_s = [2 * (27 + 53), 2 * (36 + 45)]
    assert TARGET.work_s.tolist() == work_s
    assert (TARGET.tolerance_s, SPAN.tolerance_s) == (31e-9, 31e-9)
    assert TARGET.first_start_s.tolist() == [0, FIRST_START_S]
    assert (TARGET.handicap_s.tolist(), SPAN.handicap_s.tolist()) == ([0, 0], [0, FIRST_START_S])
    assert (TARGET.least_s, SPAN.least_s) == (162 + FIRST_START_S, 162)
    assert (TARGET.head_s.tolist(), SPAN.head_s.tolist()) == ([0, 2 + FIRST_START_S], [0, 2])
    bounds = lower_bounds(PROBLEM)
    for target, bound_s in ((TARGET, bounds.of("step")), (SPAN, bounds.of("span"))):
        assert target.bound_s == pytest.approx(bound_s + 31e-9, rel=2e-12)


def test_codes_need_and_feed_those_of_neighbouring_stages_and_wake_other_ranks() -> None:
    """F 0 to 3, I 4 to 7, W 8 to 11."""
    pipeline = TARGET.pipeline
    assert (pipeline.num_microbatches, pipeline.num_stages, pipeline.num_ranks) == (2, 4, 2)
    assert pipeline.stages is TARGET.stages
    assert pipeline.firsts is TARGET.firsts
    assert pipeline.rank_of.tolist() == [0, 1, 1, 0]
    assert pipeline.cost_s.tolist() == [1, 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31]
    assert pipeline.needs.tolist() == [-1, 0, 1, 2, 5, 6, 7, -1, -1, -1, -1, -1]
    assert pipeline.feeds.tolist() == [1, 2, 3, -1, -1, 4, 5, 6, -1, -1, -1, -1]
    assert pipeline.wakes.tolist() == [1, -1, 0, -1, -1, 0, -1, 1, -1, -1, -1, -1]
    assert pipeline.hop_s.tolist() == [0, 0.25, 0, 0.5, 0.25, 0, 0.5, 0, 0, 0, 0, 0]
    assert pipeline.tolerance_s == TARGET.tolerance_s


def test_a_table_begins_empty() -> None:
    table, backlog = empty_table(TARGET.pipeline), empty_backlog(TARGET.pipeline)
    assert [len(column) for column in table] == [24, 2, 2, 16, 12]
    assert table.at.tolist() == [0, 12]
    assert [len(column) for column in backlog] == [8, 2, 2, 2]
    assert not any(column.any() for column in (*table[2:], *backlog))


def test_orders_are_cached_by_placement_times_and_microbatches_but_not_by_memory() -> None:
    def key(**changes: Any) -> bytes:
        return SearchTarget(replace(PROBLEM, **changes)).shape_and_times

    assert key(cap=PROBLEM.cap + 1, activation=2 * PROBLEM.activation) == key()
    others = [
        key(num_microbatches=3), key(stage_to_rank=PROBLEM.stage_to_rank[::-1].copy() ^ 1),
        *(key(**{name: getattr(PROBLEM, name) + 1}) for name in ("forward_s", "input_s", "weight_s", "hop_s")),
    ]  # fmt: skip
    assert len({key(), *others}) == 7


def test_a_kernel_is_run_with_the_pipeline_and_the_size_of_its_visits(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(
        "ppsim.catalog.search.target.run_kernel", lambda kernel, **given: ran.append((kernel, given))
    )
    TARGET.run("kernel", inputs=(1,), outputs=(2,), times=5)
    TARGET.run("kernel")
    pipeline = TARGET.pipeline
    assert ran == [
        ("kernel", {"inputs": (pipeline, 1), "outputs": (2,), "size": 120, "engine": "plain"}),
        ("kernel", {"inputs": (pipeline,), "outputs": (), "size": 24, "engine": "plain"}),
    ]


ORDER = np.array([0, 3, 7, 11, 4, 8] + [0, 3, 7, 11, 4, 8] + [1, 2, 6, 10, 5, 9] * 2, dtype=np.int32)


def test_an_order_is_timed_from_its_inputs_on_unless_it_deadlocks() -> None:
    """Microbatch 0: F 1, hop 0.25, F 2 and F 3, hop 0.5, F 5, I 17; then W 31 on rank 0 beside I 13 and 11 on rank 1."""
    candidate = TARGET.timed(ORDER)
    assert candidate is not None
    first_s = 1 + 0.25 + 5 + 0.5 + 5 + 17 + 31  # the first W on rank 0
    back_s = first_s - 31 + 0.5 + 13 + 29 + 11 + 0.25  # I of stage 0 after I, W and I on rank 1
    second_s = max(first_s, back_s) + 7 + 19 + 1 + 0.25  # the second microbatch comes to rank 1
    again_s = second_s + 5 + 0.5 + 5 + 17
    assert candidate.end_s.tolist() == [
        max(again_s + 31, again_s + 0.5 + 13 + 29 + 11 + 0.25) + 7 + 19, again_s + 0.5 + 13 + 29 + 11 + 23,
    ]  # fmt: skip
    assert candidate.score_s == candidate.end_s.max()
    assert candidate.other_score_s == (candidate.end_s - [0, FIRST_START_S]).max()
    assert Candidate(SPAN, ORDER, candidate.end_s).score_s == candidate.other_score_s
    assert Candidate(SPAN, ORDER, candidate.end_s).other_score_s == candidate.score_s
    backwards = ORDER.copy()
    backwards[[0, 1]] = backwards[[1, 0]]
    assert TARGET.timed(backwards) is None


def test_a_table_has_the_actions_of_its_codes_in_microbatch_order() -> None:
    candidate = Candidate(TARGET, ORDER, np.zeros(2))
    table = candidate.schedule("name")
    assert [" ".join(map(str, row)) for row in table.rows()] == [
        "0F0 3F0 3I0 3W0 0I0 0W0 0F1 3F1 3I1 3W1 0I1 0W1", "1F0 2F0 2I0 2W0 1I0 1W0 1F1 2F1 2I1 2W1 1I1 1W1",
    ]  # fmt: skip
    assert (table.name, table.num_microbatches, table.stage_to_rank.tolist()) == ("name", 2, [0, 1, 1, 0])
    assert TARGET.order_of(table).tolist() == ORDER.tolist()
    assert candidate.passes.tolist() == [0, 3, 7, 4] * 2 + [1, 2, 6, 5] * 2


@pytest.mark.parametrize(("cap", "fits"), [([50, 50], True), ([49.9, 50], False), ([50, 49.9], False)])
def test_an_order_fits_if_no_rank_holds_more_than_its_cap(cap: list[float], fits: bool) -> None:
    target = SearchTarget(replace(PROBLEM, cap=np.array(cap)))
    assert Candidate(target, ORDER, np.zeros(2)).fits is fits


def test_a_candidate_at_the_bound_is_optimal() -> None:
    bound_s = TARGET.bound_s
    assert Candidate(TARGET, ORDER, np.array([0.0, bound_s])).is_optimal
    assert not Candidate(TARGET, ORDER, np.array([bound_s * (1 + 1e-9), 0.0])).is_optimal


@pytest.mark.parametrize(
    ("first", "second", "is_second"),
    [
        ((5.0, 1.0), (4.5, 9.0), True), ((5.0, 1.0), (4.75, 9.0), False), ((5.0, 1.0), (4.75, 0.0), True),
        ((5.0, 9.0), (5.0, 8.5), True), ((5.0, 9.0), (5.0, 8.75), False), ((5.0, 9.0), (5.125, 0.0), False),
    ],
)  # fmt: skip
def test_ties_go_to_the_other_criterion_then_to_the_first(
    first: tuple[float, float], second: tuple[float, float], is_second: bool
) -> None:
    """Scores by both criteria; differences up to 0.25 s are a tie, and the winner of a tie is not slower."""
    candidates: list[Any] = [
        SimpleNamespace(score_s=score_s, other_score_s=other_s, target=SimpleNamespace(tolerance_s=0.25))
        for score_s, other_s in (first, second)
    ]
    assert better(*candidates) is candidates[is_second]
    assert best_of(candidates) is candidates[is_second]


def test_the_tolerance_is_relative_to_the_longest_time() -> None:
    problem = Problem.of(
        stage_to_rank=[0, 1], num_microbatches=2, forward_s=[1 / 8, 1 / 4], backward_input_s=1 / 16, backward_weight_s=0,
        transfer_s=1 / 2,
    )  # fmt: skip
    assert SearchTarget(problem).tolerance_s == 1e-9 / 2
    assert SearchTarget(replace(problem, hop_s=np.zeros(1))).tolerance_s == 1e-9 / 4
