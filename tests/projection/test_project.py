"""Iteration, overheads and assumptions of plans with times by hand."""

from dataclasses import replace
from typing import Any

import pytest

from ppsim.base.errors import ConfigError, PpsimError
from ppsim.catalog.build import find
from ppsim.costs.cost_sources import RankCosts
from ppsim.projection.plan import Plan
from ppsim.projection.project import (
    assembled_of,
    iteration_of,
    outcome_of,
    peaks_of,
    project,
    project_all,
    seconds_per_launch,
    table_of,
)
from tests.projection.by_hand import MEASURED, by_hand, free
from tests.projection.jobs import job

NO_OVERHEADS = "overheads: none (fit them with ppsim calibrate, give them with --calibration)"
LEFT_OUT = "not in the step time: data-parallel communication, optimizer, gradient norm"


def test_an_ideal_1f1b_step_has_a_forward_and_a_backward_more_than_its_compute() -> None:
    made = free(runtime="ideal")
    assert made.iteration_time_s == made.timeline.step_time_s == (4 + 1) * 3
    assert (made.tokens_per_s, made.model_flops_utilization, made.peak_flops_per_s) == (None, None, None)
    assert free(runtime="ideal", step_overhead_s=2.0).iteration_time_s == 17
    assert free(runtime="ideal", gradient_accumulation_steps=2).iteration_time_s == 2 * (2 + 1) * 3


def test_other_functions_have_the_same_time_and_memory() -> None:
    made = free(step_overhead_s=2.0)
    expected = (17.0, 0.0)
    assert iteration_of(made.plan, made.timeline.schedule) == outcome_of(made.plan) == expected
    assert peaks_of(made.plan) == [0.0, 0.0]
    table, found = assembled_of(made.plan)
    assert (table, found.costs.forward_s) == (made.timeline.schedule, 1.0)
    with pytest.raises(ConfigError, match="give --schedule"):
        assembled_of(Plan(pp=2, microbatches=4, measured=MEASURED, schedule="auto"))


def test_given_activations_are_those_of_the_forwards_in_flight() -> None:
    costs = RankCosts(1.0, 1.0, 1.0, activation_bytes=100.0)
    made = by_hand(measured=costs)
    assert peaks_of(made.plan) == [200.0, 100.0]
    assert outcome_of(made.plan)[1] == 200.0


def test_overheads_of_a_plan_are_its_costs() -> None:
    given = {
        "action_overhead_s": 0.5, "hop_overhead_s": 0.125, "message_overhead_s": 0.25, "step_overhead_s": 2.0,
        "first_pass_s": 1.0, "last_pass_s": 3.0, "overlap_slowdown": 0.25,
    }  # fmt: skip
    made = by_hand(**given)
    assert {name: getattr(made.costs, name) for name in given} == given
    assert made.assumptions[-6:] == [
        "overheads: 500 ms per action, 125 ms per P2P transfer",
        "the first action of each rank takes 1.00 s longer",
        "the last action of the first stage's rank takes 3.00 s longer",
        "compute next to a P2P transfer takes 25.00 % longer",
        "between steps: 2.00 s, as calibrated; part of iteration time, throughput and MFU",
        "not in the step time: data-parallel communication",
    ]


def test_one_overhead_is_enough_to_name_both() -> None:
    line = "overheads: 0 s per action, 125 ms per P2P transfer"
    assert line in by_hand(hop_overhead_s=0.125).assumptions
    assert NO_OVERHEADS not in by_hand(action_overhead_s=0.125).assumptions


@pytest.mark.parametrize(
    ("fields", "channel", "lines"),
    [
        ({}, "pair", [NO_OVERHEADS, LEFT_OUT]),
        ({"runtime": "ideal"}, "ideal", [NO_OVERHEADS, LEFT_OUT]),
        ({"runtime": "megatron"}, "edge", [NO_OVERHEADS, LEFT_OUT]),
        ({"runtime": "megatron", "channel": "rank"}, "rank", [NO_OVERHEADS, LEFT_OUT]),
        ({"stragglers": ((1, 1.25),)}, "pair", ["rank 1 computes 1.25 × as long", NO_OVERHEADS, LEFT_OUT]),
        (
            {"action_spread": 0.1},
            "pair",
            [
                "actions vary by 10.00 % (1 σ), as measured: their waits are in the step time",
                NO_OVERHEADS,
                LEFT_OUT,
            ],
        ),
        (
            {"schedule": "dualpipe", "runtime": "ideal"},
            "ideal",
            [
                "fused pairs: one part after the other, no gain; the profile has no cost of a pair",
                NO_OVERHEADS,
                "not in the step time: data-parallel communication, summing the replicas' gradients, optimizer, "
                "gradient norm",
            ],
        ),
    ],
)
def test_assumptions_follow_from_the_plan(fields: dict[str, Any], channel: str, lines: list[str]) -> None:
    made = by_hand(**fields)
    assert made.costs.channel == channel
    runtime = next(index for index, line in enumerate(made.assumptions) if line.startswith("runtime: "))
    assert made.assumptions[runtime].endswith(f"channel {channel}, receives torch")
    assert made.assumptions[:2] == [
        "costs: measured of a rank",
        "no --model: throughput, MFU and memory are not known",
    ]
    assert made.assumptions[runtime + 1 :] == lines


def test_a_table_that_torch_cannot_run_is_an_assumption_of_its_runtime() -> None:
    line = "torch cannot run this table as it stands"
    assert [one for one in by_hand(schedule="dualpipe").assumptions if one.startswith(line)]
    assert not [one for one in by_hand(schedule="dualpipe", runtime="ideal").assumptions if line in one]


def test_microbatches_that_were_not_given_are_an_assumption() -> None:
    line = "microbatches: 8 (4 per rank; --num-microbatches sets it)"
    assert line in by_hand(microbatches=None).assumptions
    assert line not in by_hand(microbatches=8).assumptions


def test_slow_ranks_multiply_all_their_stages() -> None:
    made = by_hand(schedule="interleaved-1f1b", vpp=2, stragglers=((1, 2.0),))
    assert list(made.costs.forward_s) == [0.5, 1.0, 0.5, 1.0]


def test_a_step_of_no_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="a step takes 0 s at the costs of times given by hand"):
        by_hand(measured=RankCosts(0.0, 0.0, 0.0))


def test_schedules_are_ranked_by_time_and_others_have_reasons() -> None:
    plan = Plan(pp=2, microbatches=4, measured=RankCosts(1.0, 1.0, 1.0), runtime="ideal")
    names: list[str] = []
    found = project_all(plan, ["1f1b", "zb-h1", "interleaved-1f1b", "dualpipev"], announce=names.append)
    assert names == ["1f1b", "zb-h1", "interleaved-1f1b", "dualpipev"]
    times = [one.iteration_time_s for one in found.projections]
    assert times == sorted(times)
    assert {one.plan.schedule_name: one.plan.vpp for one in found.projections}["interleaved-1f1b"] == 2
    odd = project_all(Plan(pp=2, microbatches=3, measured=MEASURED), ["1f1b", "dualpipe"])
    assert [one.plan.schedule_name for one in odd.projections] == ["1f1b"]
    assert list(odd.rejected) == ["dualpipe"]


def test_auto_has_no_groups_and_slices() -> None:
    for field in ("group_size", "num_slices"):
        with pytest.raises(ConfigError, match="group size and slices are for schedules by name"):
            project(Plan(pp=2, microbatches=4, measured=MEASURED, schedule="auto", **{field: 2}))


def test_a_table_has_all_rounds() -> None:
    table, note = table_of(
        Plan(pp=2, microbatches=4, gradient_accumulation_steps=2, measured=MEASURED), find("1f1b")
    )
    assert (table.num_microbatches, table.num_rounds, note) == (4, 2, None)


def test_launches_of_a_schedule_take_the_option_the_constant_or_nothing_in_a_full_graph() -> None:
    usual = job(pp=2)
    constant = usual.cluster.constants.launch_s
    assert seconds_per_launch(usual) == (constant.value if constant else 0.0)
    assert seconds_per_launch(job(pp=2, launch_s=0.0)) == 0.0
    assert seconds_per_launch(job(pp=2, launch_s=1e-5)) == 1e-5
    without = replace(usual.cluster, constants=replace(usual.cluster.constants, launch_s=None))
    assert seconds_per_launch(replace(usual, cluster=without)) == 0.0


@pytest.mark.parametrize(("pp", "error"), [(2, "why not"), (3, "an even number of ranks")])
def test_a_possible_table_is_refused_for_its_stages_and_another_for_its_shape(
    pp: int, error: str, monkeypatch
) -> None:
    asked = []
    monkeypatch.setattr(
        "ppsim.projection.project._why_no_stages", lambda plan, stages: asked.append(stages) or "why not"
    )
    with pytest.raises(PpsimError, match=error):
        table_of(Plan(pp=pp, microbatches=4, schedule="dualpipe"), find("dualpipe"))
    assert asked == ([2] if pp == 2 else []), "of two replicas"
