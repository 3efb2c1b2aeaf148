"""Accumulation rounds of a plan: time, memory, communication, budget, and what is said of them."""

from dataclasses import replace
from itertools import pairwise

import pytest

import ppsim
from ppsim.api.project import plan_of_keywords
from ppsim.errors import ConfigError
from ppsim.projection.loss_breakdown import sensitivities
from ppsim.projection.project import project
from ppsim.projection.projection import Projection
from ppsim.runs.timeline_file import read_timeline
from ppsim.schedule.rounds import repeat_rounds
from ppsim.simulation.simulate import simulate_graph
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.step import StepCosts, between_rounds_s, simulate_step
from tests.projection.by_hand import free

UNIT = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, activation_bytes=1.0)
JOB = {"model": "llama3-8b", "gpus": 16, "pp": 4, "tp": 2, "stack": "torchtitan", "micro_batch": 1}


@pytest.mark.parametrize(("p", "m", "rounds"), [(4, 64, 8), (4, 64, 1), (2, 12, 3), (8, 32, 4), (4, 8, 8)])
def test_1f1b_takes_rounds_times_the_time_of_a_round_with_its_bubble(p: int, m: int, rounds: int) -> None:
    made = project(plan_of_keywords({
        "pp": p, "microbatches": m, "gradient_accumulation_steps": rounds, "forward_ms": 10, "backward_input_ms": 8,
        "backward_weight_ms": 6, "runtime": "ideal",
    }))  # fmt: skip
    assert made.timeline.step_time_s == pytest.approx(rounds * (m / rounds + p - 1) * (10 + 14) / 1e3)


def test_a_rank_does_not_wait_for_the_slowest_between_rounds() -> None:
    table = ppsim.build("zbv", pp=4, microbatches=8)
    one = ppsim.simulate(table, UNIT)
    three = ppsim.simulate(repeat_rounds(table, 3), UNIT)
    assert 2 * one.span_s + one.step_time_s <= three.step_time_s < 3 * one.step_time_s


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_activations_drain_with_every_round(name: str) -> None:
    table = ppsim.build(name, pp=4, microbatches=8)
    in_one = ppsim.simulate(table, UNIT).memory.peak_activation_bytes
    in_four = ppsim.simulate(repeat_rounds(table, 4), UNIT).memory.peak_activation_bytes
    assert in_one.tolist() == in_four.tolist()


@pytest.mark.parametrize("overlap", [True, False])
def test_every_round_reduces_its_gradients_and_gathers_its_parameters(overlap: bool) -> None:
    around = StepCosts(gather_s=1.0, reduce_s=2.0, overlap_gather=overlap, overlap_reduce=overlap)
    table = ppsim.build("1f1b", pp=4, microbatches=8)
    one = simulate_step(table, UNIT, around)
    step = repeat_rounds(table, 3)
    costs = UNIT.replace(between_rounds_s=between_rounds_s(step, UNIT, around))
    three = simulate_step(step, costs, around)
    assert three.time_s == pytest.approx(3 * one.time_s)
    for kind in ("gather", "reduce"):
        assert sum(piece.kind == kind for piece in three.pieces) == 3 * 4
    of_rank = sorted((piece.start_s, piece.end_s) for piece in three.pieces if piece.rank == 0)
    assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(of_rank))


def test_rounds_are_as_slow_as_the_rank_that_takes_longest_to_reduce() -> None:
    around = StepCosts(reduce_s=[0.0, 0.0, 0.0, 20.0])
    table = ppsim.build("1f1b", pp=4, microbatches=8)
    step = repeat_rounds(table, 2)
    costs = UNIT.replace(between_rounds_s=between_rounds_s(step, UNIT, around))
    made = simulate_step(step, costs, around)
    # rank 3 computes from 3 to 27 and reduces to 47; its second round cannot begin earlier
    begins = made.timeline.start[step.rank_offsets[3] + 16]
    assert begins == pytest.approx(47.0)


def test_without_collectives_rounds_follow_at_once() -> None:
    step = repeat_rounds(ppsim.build("zbv", pp=4, microbatches=8), 2)
    assert between_rounds_s(step, UNIT, StepCosts(optimizer_s=3.0, norm_s=1.0)) == 0


def rounds_of(count: int, **options: object) -> Projection:
    return ppsim.project(**JOB, split="even", global_batch=64, gradient_accumulation_steps=count, **options)  # type: ignore[arg-type]


def test_a_pipeline_reduces_once_per_round_in_a_job_too() -> None:
    reductions = [sum(piece.kind == "reduce" for piece in rounds_of(count).step.pieces) for count in (1, 4)]
    assert reductions == [4, 16]


def test_the_budget_sums_to_the_iteration_and_has_the_drains_and_the_collectives() -> None:
    one, four = rounds_of(1), rounds_of(4)
    budgets = [made.summarise(with_advice=False).time_breakdown_s for made in (one, four)]
    for made, budget in zip((one, four), budgets, strict=True):
        assert sum(budget.values()) == pytest.approx(made.iteration_time_s)
    assert budgets[1]["pipeline bubble"] == pytest.approx(4 * budgets[0]["pipeline bubble"], rel=0.1)
    around = [budget["data parallelism"] for budget in budgets]
    assert around[1] == pytest.approx(4 * around[0], rel=0.1)
    assert budgets[0]["model FLOPs at peak"] == pytest.approx(budgets[1]["model FLOPs at peak"])


def test_idle_time_of_a_drain_is_warm_up_and_cool_down_of_each_round() -> None:
    one, four = (made.report["ranks"][2]["idle_by_cause_s"] for made in (rounds_of(1), rounds_of(4)))
    drains = [idle["warm_up"] + idle["cool_down"] for idle in (one, four)]
    assert drains[1] == pytest.approx(4 * drains[0], rel=0.05)
    assert four["waiting_compute"] <= one["waiting_compute"] + 1e-9


def test_the_wait_between_rounds_is_exposed_communication_and_no_host_time() -> None:
    one, four = (made.report["ranks"][0]["idle_by_cause_s"] for made in (rounds_of(1), rounds_of(4)))
    longer = four["exposed_communication"] - one["exposed_communication"]
    assert longer == pytest.approx(3 * rounds_of(4).costs.between_rounds_s, rel=0.01)
    assert four["overhead"] == one["overhead"] == 0


def test_zero_3_reduces_behind_every_pass_and_rounds_add_only_the_drains() -> None:
    made = rounds_of(4, zero=3)
    assert made.costs.between_rounds_s == 0


def test_without_a_pipeline_rounds_change_reductions_only() -> None:
    words = {
        "model": "llama3-8b",
        "stack": "plain",
        "gpus": 8,
        "pp": 1,
        "tp": 4,
        "global_batch": 8,
        "micro_batch": 1,
        "zero": 0,
    }
    once, every = (ppsim.project(**words, gradient_accumulation_steps=count) for count in (1, 4))
    assert every.timeline.busy_s == pytest.approx(once.timeline.busy_s)
    assert sum(piece.kind == "reduce" for piece in every.step.pieces) == 4
    assert every.iteration_time_s > once.iteration_time_s


def test_the_report_says_rounds_in_text_json_and_pictures(tmp_path) -> None:  # type: ignore[no-untyped-def]
    made = rounds_of(4)
    assert "pp 4 · 1f1b · 4 rounds of 8 microbatches" in str(made)
    found = made.to_json()
    assert (found["gradient_accumulation_steps"], found["microbatches"]) == (4, 32)
    assert rounds_of(1).to_json()["gradient_accumulation_steps"] == 1
    for suffix in ("html", "svg", "json", "csv"):
        ppsim.save(made, tmp_path / f"rounds.{suffix}")
    assert "4 rounds of 8 microbatches" in (tmp_path / "rounds.svg").read_text()
    assert read_timeline(tmp_path / "rounds.json")[0].schedule == made.timeline.schedule
    # a runtime executes the table of one round in each of its calls
    assert ppsim.read_schedule(tmp_path / "rounds.csv").num_microbatches == 8


def test_the_timeline_has_the_rows_of_every_round() -> None:
    made = rounds_of(4)
    frame = made.timeline.to_frame()
    of_rank = frame[(frame["rank"] == 0) & frame["kind"].isin(["F", "B"])]
    assert of_rank["microbatch"].max() == 31
    last_of_first = of_rank[of_rank["microbatch"] < 8]["end_s"].max()
    first_of_second = of_rank[of_rank["microbatch"] >= 8]["start_s"].min()
    assert first_of_second >= last_of_first + made.costs.between_rounds_s - 1e-12


def test_a_larger_local_batch_is_advised() -> None:
    changes = [one.change for one in rounds_of(8).summary.advice]
    assert "--gradient-accumulation-steps 1" in changes


@pytest.mark.parametrize("schedule", ["zbv-fixed", "zb-auto", "interleaved-1f1b", "gpipe"])
def test_schedules_are_built_for_one_round(schedule: str) -> None:
    made = ppsim.project(pp=4, microbatches=32, schedule=schedule, gradient_accumulation_steps=4)
    assert (made.timeline.schedule.num_rounds, made.timeline.schedule.num_microbatches) == (4, 32)


def test_schedules_are_compared_and_searched_for_by_rounds() -> None:
    found = ppsim.project_all(pp=4, microbatches=32, gradient_accumulation_steps=4, schedules=["1f1b", "dualpipe"])
    assert {one.timeline.schedule.num_rounds for one in found.projections} == {4}
    searched = ppsim.project(pp=2, microbatches=8, schedule="auto", search_time=0.1, gradient_accumulation_steps=2)
    assert searched.timeline.schedule.num_rounds == 2


def test_sequences_of_different_lengths_are_drawn_for_all_rounds() -> None:
    lengths = [1000, 4000, 2000, 8000] * 4
    made = ppsim.project(**JOB, global_batch=32, gradient_accumulation_steps=2, lengths=lengths)  # type: ignore[arg-type]
    assert made.timeline.schedule.num_rounds == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gradient_accumulation_steps": 7}, "7 does not divide the 64 microbatches per step .*nearest: 8"),
        ({"gradient_accumulation_steps": 0}, "must be at least 1: got 0"),
        (
            {"gradient_accumulation_steps": 8, "runtime": "megatron"},
            "Megatron-LM runs all 64 microbatches .* one pipe",
        ),
    ],
)
def test_rounds_that_cannot_be_are_refused_in_a_sentence(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ppsim.project(pp=4, microbatches=64, **options)  # type: ignore[arg-type]


def test_a_plan_with_rounds_can_be_changed_field_by_field() -> None:
    plan = replace(rounds_of(4).plan, gradient_accumulation_steps=2)
    assert project(plan).timeline.schedule.num_rounds == 2


def test_the_time_between_rounds_is_a_part_of_data_parallelism_in_sensitivities() -> None:
    """A hundredth of two times of 3 s between three rounds, on a path without other waits."""
    made = free(runtime="ideal", microbatches=12, gradient_accumulation_steps=3)
    costs = made.costs.replace(between_rounds_s=3.0)
    timeline = simulate_graph(made.timeline.graph, costs)
    assert timeline.step_time_s == made.timeline.step_time_s + 2 * 3.0
    slower = replace(made, costs=costs, step=replace(made.step, timeline=timeline))
    assert sensitivities(slower)["data parallelism"] == pytest.approx(0.01 * 6.0 / made.iteration_time_s)
