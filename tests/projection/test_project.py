"""Iteration, overheads and assumptions of plans with times by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppsim import StageCosts, build
from ppsim.base.errors import ConfigError, DoesNotFit, PpsimError, ScheduleError
from ppsim.catalog.build import find
from ppsim.costs.cost_sources import RankCosts, RunCosts
from ppsim.projection import project as project_module
from ppsim.projection.plan import Plan
from ppsim.projection.project import (
    assembled_of,
    communication_of,
    iteration_of,
    outcome_of,
    peaks_of,
    project,
    project_all,
    seconds_per_launch,
    table_of,
)
from ppsim.projection.projection import FROM_RUN
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


def test_stages_are_judged_by_the_plan_the_layers_and_the_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(project_module, "why_no_split", lambda *given: asked.append(given))
    monkeypatch.setattr(
        project_module, "why_no_slices", lambda *given, **more: asked.append((*given, more)) or "no"
    )
    source = SimpleNamespace(num_layers=11, sequence_length=512, hidden_size=96)
    plan: Any = SimpleNamespace(
        has_model=True, modelled_source=source, job=SimpleNamespace(stage_plans=(1, 2, 3)), layer_split_rule="even"
    )
    assert project_module._why_no_stages(plan, 4) == "the plan of --plan has 3 stages: got 4"
    assert project_module._why_no_stages(plan, 3, num_slices=5) == "no"
    assert asked == [("even", 11, 3), (512, 5, {"hidden_size": 96})]
    plan.job = None
    assert project_module._why_no_stages(plan, 4) == "no"
    assert asked[3] == (512, 1, {"hidden_size": 96})
    plan.has_model = False
    assert project_module._why_no_stages(plan, 4) is None


def test_a_refusal_without_a_model_names_what_is_projected() -> None:
    def said(**fields: Any) -> str:
        source = SimpleNamespace(name=fields.pop("name", "profile x"))
        plan: Any = SimpleNamespace(**{"job": None, "has_model": True, "source": source} | fields)
        return project_module._without_model(plan)

    assert said() == "; no --model was given, so profile x is projected"
    default = f"profile {project_module.DEFAULT}"
    assert said(name=default) == f"; no --model was given, so {default} (the default) is projected"
    assert said(job=3) == said(has_model=False) == ""


def test_a_search_that_no_table_fits_is_repeated_without_a_limit() -> None:
    plan: Any = SimpleNamespace(memory_bound_bytes=7.0)
    limits: list[float | None] = []

    def search(limit: float | None) -> str:
        limits.append(limit)
        if limit == 7.0:
            raise DoesNotFit("it is too large")
        return "table"

    found = project_module._within_memory(plan, search)
    assert found == ("table", "; without a memory limit, because it is too large")
    assert limits == [7.0, None]
    assert project_module._within_memory(plan, str) == ("7.0", "")


def test_launches_and_calls_of_a_plan_are_added_to_its_costs() -> None:
    own = job(pp=2, launch_s=0.5)
    schedule = build("1f1b", pp=2, microbatches=4)
    costs = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    plan = Plan(
        pp=2, microbatches=4, job=own, action_overhead_s=1.0, hop_overhead_s=2.0, message_overhead_s=3.0,
        step_overhead_s=4.0, first_pass_s=5.0, last_pass_s=6.0, overlap_slowdown=0.25,
    )  # fmt: skip
    found = project_module._for_runtime(plan, schedule, costs)
    assert (found.action_overhead_s, found.hop_overhead_s, found.message_overhead_s) == (1.5, 2.5, 3.5)
    assert (found.step_overhead_s, found.first_pass_s, found.last_pass_s) == (4.0, 5.0, 6.0)
    assert (found.overlap_slowdown, found.receives) == (0.25, plan.receives)
    for runtime, slow_links, channel in (
        ("torch", None, "pair"),
        ("torch", np.zeros((1, 5)), "edge"),
        ("ideal", None, "ideal"),
    ):
        linked = costs.replace(slow_links=slow_links)
        made = project_module._for_runtime(replace(plan, runtime=runtime), schedule, linked)
        assert made.channel == channel
    slow = project_module._for_runtime(replace(plan, stragglers=((1, 3.0),)), schedule, costs)
    assert np.broadcast_to(slow.forward_s, 2).tolist() == [1.0, 3.0]


def test_the_slowdown_next_to_messages_is_the_clusters_constant() -> None:
    constant = SimpleNamespace(value=0.125)
    for given, slowdown in ((constant, 0.125), (None, 0.0)):
        cluster = SimpleNamespace(constants=SimpleNamespace(overlap_slowdown=given))
        assert project_module._slowdown(SimpleNamespace(cluster=cluster)) == slowdown  # type: ignore[arg-type]
    assert project_module._slowdown(None) == 0.0


def test_communication_is_that_of_megatrons_loop_if_it_can_run_the_table() -> None:
    blocking = by_hand(runtime="megatron").plan
    assert blocking.communication != "overlap"
    table = build("1f1b", pp=2, microbatches=4)
    assert communication_of(blocking, table) == blocking.communication
    assert communication_of(blocking, build("zb-h1", pp=2, microbatches=4)) == "overlap"
    assert communication_of(by_hand().plan, table) == "overlap"


def test_a_search_for_splits_needs_stages_and_a_model() -> None:
    for stages, measured, is_searched in ((2, None, True), (1, None, False), (2, MEASURED, False)):
        plan, schedule = SimpleNamespace(measured=measured), SimpleNamespace(num_model_stages=stages)
        assert project_module._is_searched(plan, schedule) == is_searched  # type: ignore[arg-type]


def test_slow_ranks_of_a_recorded_run_are_named_with_the_time_without_them() -> None:
    table = build("1f1b", pp=2, microbatches=4)
    recorded = RunCosts(
        forward_s=(1.0, 1.0), backward_input_s=(1.0, 1.0), backward_weight_s=(1.0, 1.0), table=table, source="run.json",
        splits_backward=False, knows_gaps=True, slow_ranks=((1, 2.0, 2.0),), note="a note",
    )  # fmt: skip
    plan = Plan(pp=2, microbatches=4, measured=recorded, runtime="ideal")
    note, fault = project_module._faults_of_run(plan, table)
    assert note == f"{FROM_RUN}a note"
    assert fault == (
        f"{FROM_RUN}1. slow ranks 1 (forward × 2.00, backward × 2.00); if healthy: 15.0 s (--without 1)"
    )
    wide = build("1f1b", pp=4, microbatches=4)
    assert list(project_module._faults_of_run(plan, wide))[1:] == [
        f"{FROM_RUN}left out, because it has 2 ranks: slow ranks 1 (forward × 2.00, backward × 2.00)"
    ]
    assert list(project_module._faults_of_run(by_hand().plan, table)) == []


def test_orders_of_microbatches_of_other_lengths_are_compared_with_the_one_that_was_drawn() -> None:
    plan = Plan(pp=2, job=job(tp=2, pp=2, layers=4), lengths=(4096, 1024, 512, 256, 128))
    (line,) = [one for one in project(plan).assumptions if one.startswith("order: ")]
    assert line.startswith("order: as drawn; of the step's time, shortest microbatch first ")
    assert [", longest first " in line, "packed evenly" in line, "equal microbatches " in line] == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    "function", [project_module.project, project_module.project_all, project_module.outcome_of]
)
def test_a_plan_that_needs_too_much_memory_of_this_machine_is_refused_first(
    function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two actions per stage, microbatch and slice."""
    asked: list[Any] = []

    def refuse(number: int, *, bytes_each: int) -> None:
        asked.append((number, bytes_each))
        raise ConfigError("too large")

    monkeypatch.setattr(project_module, "require_memory", refuse)
    for fields, number in (({}, 2 * 3 * 5), ({"vpp": 2}, 2 * 3 * 2 * 5), ({"num_slices": 7}, 2 * 3 * 5 * 7)):
        with pytest.raises(ConfigError, match=r"^too large$"):
            function(Plan(pp=3, microbatches=5, measured=MEASURED, **fields))
        assert asked.pop() == (number, project_module.BYTES_PROJECTED)


def test_only_schedules_with_groups_have_the_groups_of_the_plan() -> None:
    plan = Plan(pp=2, vpp=2, microbatches=8, group_size=4, measured=MEASURED)
    found = project_all(plan, ["interleaved-1f1b", "1f1b-v"])
    groups = {one.plan.schedule_name: one.plan.group_size for one in found.projections}
    assert groups == {"interleaved-1f1b": 4, "1f1b-v": None}


def test_a_schedule_that_deadlocks_has_the_first_line_as_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(plan: Plan, table: Any, *, note: str | None) -> Any:
        raise ScheduleError(f"deadlock of {plan.schedule_name}\n  rank 0: 0F0")

    monkeypatch.setattr(project_module, "project_table", stuck)
    found = project_all(Plan(pp=2, microbatches=4, measured=MEASURED), ["1f1b", "gpipe"])
    assert (found.projections, found.rejected) == ([], {name: f"deadlock of {name}" for name in ("1f1b", "gpipe")})


def test_a_search_for_a_table_needs_a_layer_per_stage() -> None:
    plan = Plan(pp=2, vpp=99, microbatches=4, schedule="auto")
    with pytest.raises(ConfigError, match=r"; no --model was given, so profile .* \(the default\) is projected$"):
        project_module._costs_on(plan, "loop", 99)
