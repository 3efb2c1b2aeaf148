"""What cells say when they are pointed at."""

import numpy as np
import pytest
from hypothesis import given

from ppsim import StageCosts, build, simulate
from ppsim.plot.hover import Hover
from ppsim.plot.lanes import compute_lanes, transfer_lanes
from ppsim.plot.scale import time_scale
from ppsim.schedule.rounds import repeat_rounds
from ppsim.simulation.idle_causes import gaps, idle_by_cause_s
from tests.strategies import tables_and_costs


def hover_of(name="1f1b", pp=4, microbatches=8, **costs):
    given = {"forward_s": 1e-3, "backward_input_s": 1e-3, "backward_weight_s": 1e-3}
    timeline = simulate(build(name, pp=pp, microbatches=microbatches), StageCosts(**(given | costs)))
    return timeline, Hover(timeline, time_scale(timeline.step_time_s))


def lines_of_rank(rank, **options):
    timeline, hover = hover_of(**options)
    return hover.lines_of(compute_lanes(timeline)[rank])


def test_an_action_of_1f1b_says_when_where_and_what_it_waited_for():
    lines = lines_of_rank(2, activation_bytes=2.0**30, static_bytes=2.0**31)
    assert lines[1] == (
        "2F0",
        "2.00000 to 3.00000 ms (1.00 ms)",
        "stage 2, chunk 0, microbatch 0",
        "waited for 1F0 on rank 1; holds 3.00 GiB",
    )


def test_a_stage_of_a_replica_and_a_slice_of_a_microbatch_are_named():
    places = [lines[2] for lines in lines_of_rank(0, name="chimera") if lines[0] in ("0F0", "7F4")]
    assert places == [
        "stage 0 (stage 0 of chain 0), chunk 0, microbatch 0",
        "stage 7 (stage 3 of chain 1), chunk 1, microbatch 4",
    ]
    assert lines_of_rank(0, name="seq1f1b")[5][2] == "stage 0, chunk 0, microbatch 1, slice 1"


def test_the_first_action_waited_for_nothing():
    assert lines_of_rank(0)[0][3] == "waited for nothing"


def test_an_idle_cell_of_the_warm_up_says_that_the_pipeline_has_not_reached_the_rank():
    assert lines_of_rank(2)[0] == (
        "idle",
        "0.00000 to 2.00000 ms (2.00 ms)",
        "pipeline not reached yet: 2F0 waits for 1F0 on rank 1",
        "2.00 ms warm-up",
    )


def test_an_idle_cell_divides_its_wait_into_compute_and_communication():
    assert lines_of_rank(0, transfer_s=0.25e-3)[4] == (
        "idle",
        "4.00000 to 11.50000 ms (7.50 ms)",
        "0B0 waits for 1B0 on rank 1",
        "7.25 ms warm-up, 250 µs exposed communication",
    )


def test_an_idle_cell_of_one_cause_says_of_how_much_it_is_a_part():
    """With the causes apart, a wait of 7.5 ms is a cell of 7.25 ms and one of 0.25 ms, and both say so."""
    timeline, hover = hover_of(transfer_s=0.25e-3)
    lines = hover.lines_of(compute_lanes(timeline, by_cause=True)[0])[4:6]
    assert [line[1] for line in lines] == ["4.00000 to 11.25000 ms (7.25 ms)", "11.25000 to 11.50000 ms (250 µs)"]
    assert {line[3] for line in lines} == {"of 7.50 ms idle: 7.25 ms warm-up, 250 µs exposed communication"}
    assert lines_of_rank(0)[4][3] == "6.00 ms warm-up", "a wait for one cause is not divided"


def test_host_time_is_no_waiting():
    lines = lines_of_rank(1, action_overhead_s=0.5e-3)
    assert lines[0][3] == "1.00 ms warm-up, 500 µs overhead"
    assert lines[2][2:] == ("host time before 1F1", "500 µs overhead")


def test_the_idle_cell_behind_a_ranks_last_action_waits_for_the_step():
    assert lines_of_rank(3)[-1][2:] == ("done: rank 3 waits for the step to end", "6.00 ms cool-down")


def test_a_transfer_names_both_ends():
    timeline, hover = hover_of(transfer_s=0.25e-3)
    lane = transfer_lanes(timeline)[0]
    idle, transfer = hover.lines_of(lane)[:2]
    assert idle == ("nothing under way", "0.00000 to 1.00000 ms (1.00 ms)", "", "")
    assert transfer == ("0F0 to rank 1", "1.00000 to 1.25000 ms (250 µs)", "for 1F0", "waited for 0F0 on rank 0")


def test_an_action_held_up_by_another_ranks_transfer_names_that_transfer():
    timeline, hover = hover_of(pp=2, microbatches=4, transfer_s=3e-3, communication="blocking")
    named = {hover.blocker_of(node) for node in range(timeline.num_actions)}
    assert any(name.startswith("the transfer of ") for name in named)


@given(tables_and_costs())
def test_causes_are_those_of_the_report(table_and_costs):
    timeline = simulate(*table_and_costs)
    hover, waits = Hover(timeline, time_scale(1.0)), gaps(timeline)
    reported = idle_by_cause_s(timeline)
    behind = timeline.begin_s + timeline.step_time_s - timeline.rank_end_s
    for cause in ("warm_up", "waiting_compute", "cool_down"):
        mine = np.array(hover.causes) == cause
        by_rank = np.bincount(
            timeline.schedule.rank[mine], waits.compute_s[mine], minlength=timeline.schedule.num_ranks
        )
        expected = reported[cause] - (behind if cause == "cool_down" else 0.0)
        assert by_rank == pytest.approx(expected, abs=1e-6)


@given(tables_and_costs())
def test_every_cell_has_four_lines(table_and_costs):
    timeline = simulate(*table_and_costs)
    hover = Hover(timeline, time_scale(timeline.step_time_s))
    for lane in [*compute_lanes(timeline), *transfer_lanes(timeline)]:
        lines = hover.lines_of(lane)
        assert len(lines) == len(lane.node)
        assert all(len(each) == 4 and each[0] and each[1] for each in lines)


def lines_on_rank_0_of_two(name="1f1b", **costs):
    timeline, hover = hover_of(name, pp=2, microbatches=4, transfer_s=3e-3, **costs)
    by_cause = costs.get("communication") == "blocking"
    return hover.lines_of(compute_lanes(timeline, by_cause=by_cause)[0])


def test_every_cell_of_a_rank_whose_calls_block_says_what_it_waits_for():
    """F takes 1 ms, B 2 ms, and a transfer 3 ms, in which both ranks wait."""
    lines = lines_on_rank_0_of_two(communication="blocking")[:8]
    assert [(name, times.partition(" ms ")[0]) for name, times, *_ in lines] == [
        ("0F0", "0.00000 to 1.00000"), ("idle: exposed communication", "1.00000 to 4.00000"),
        ("0F1", "4.00000 to 5.00000"), ("idle: warm-up", "5.00000 to 10.00000"),
        ("idle: exposed communication", "10.00000 to 13.00000"), ("0B0", "13.00000 to 15.00000"),
        ("0F2", "15.00000 to 16.00000"), ("idle: waiting for compute", "16.00000 to 21.00000"),
    ]  # fmt: skip
    own, both = "the transfer of 0F0 to rank 1", "of 8.00 ms idle: 5.00 ms warm-up, 3.00 ms exposed communication"
    place = "stage 0, chunk 0, microbatch"
    assert [of for *_, of, _ in lines] == [
        f"{place} 0", f"0F1 waits for {own}", f"{place} 1", "0B0 waits for 1B0 on rank 1",
        "0B0 waits for 1B0 on rank 1", f"{place} 0", f"{place} 2", "0B1 waits for 1B1 on rank 1",
    ]  # fmt: skip
    assert [last for *_, last in lines] == [
        "waited for nothing", "3.00 ms exposed communication", f"waited for {own}", both, both,
        "waited for 1B0 on rank 1", "waited for 0B0 on rank 0", both.replace("warm-up", "waiting for compute"),
    ]  # fmt: skip


def test_a_transfer_that_is_ready_before_its_queue_is_free_says_for_how_long():
    """With one queue per rank, chunk 1 of rank 0 waits for the transfers of chunk 0."""
    lines = [line for line in lines_on_rank_0_of_two("interleaved-1f1b", channel="rank") if line[0] == "idle"]
    assert [line[3] for line in lines[:6]] == [
        "3.00 ms warm-up, 3.00 ms exposed communication",
        "3.00 ms warm-up, 3.00 ms exposed communication",
        "4.00 ms warm-up, 4.00 ms exposed communication (1.00 ms of it queued)",
        "6.00 ms exposed communication (3.00 ms of it queued)",
        "4.00 ms exposed communication (1.00 ms of it queued)",
        "5.00 ms exposed communication (2.00 ms of it queued)",
    ]
    timeline, hover = hover_of("interleaved-1f1b", 2, 4, transfer_s=3e-3, channel="rank")
    transfers = [line for line in hover.lines_of(transfer_lanes(timeline)[0]) if line[2]]
    assert [(line[0], line[2], line[3]) for line in transfers[:4]] == [
        ("0F0 to rank 1", "for 1F0", "waited for 0F0 on rank 0"),
        ("0F1 to rank 1", "for 1F1", "waited for the transfer of 1F0 to rank 0"),
        ("2F0 to rank 1", "for 3F0", "waited for the transfer of 1F1 to rank 0"),
        ("2F1 to rank 1", "for 3F1", "waited for 3F0 on rank 1"),
    ]


def test_an_action_of_a_later_round_names_it_and_one_without_bytes_holds_none():
    costs = StageCosts(forward_s=1e-3, backward_input_s=1e-3, backward_weight_s=1e-3)
    timeline = simulate(repeat_rounds(build("1f1b", pp=2, microbatches=3), 2), costs)
    lines = Hover(timeline, time_scale(timeline.step_time_s)).lines_of(compute_lanes(timeline)[1])
    named = [line[2:] for line in lines if line[0] in ("1F2", "1F3")]
    assert named == [
        ("stage 1, chunk 0, microbatch 2, round 0", "waited for 1B1 on rank 1"),
        ("stage 1, chunk 0, microbatch 3, round 1", "waited for 0F3 on rank 0"),
    ]


def test_causes_below_a_thousandth_of_a_wait_are_left_out():
    for transfer_s, is_said in ((3e-6, True), (1e-6, False)):
        split = lines_of_rank(2, transfer_s=transfer_s)[0][3]
        assert ("exposed communication" in split) == is_said, "of a wait of 2 ms"
