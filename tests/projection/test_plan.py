"""A projection: throughput, utilization, bubbles and memory follow from the step and the profile."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ppsim.base.errors import ConfigError, Deadlock
from ppsim.base.units import size
from ppsim.catalog.build import CATALOG
from ppsim.costs.cost_sources import RankCosts
from ppsim.costs.profile import load_profile
from ppsim.parallel.layer_partition import MegatronSplit, why_no_split
from ppsim.projection.plan import RUNTIMES, Plan, memory_limit_of
from ppsim.projection.project import project, project_all
from ppsim.schedule.graph import CHANNELS
from ppsim.schedule.table import Op
from ppsim.simulation.bounds.problem import CAP_ROUNDING
from tests.cli.running import ppsim
from tests.costs.profiles import example, profile, profiles, scaled
from tests.projection.jobs import job
from tests.strategies import shapes

TIGHT = 1e-9


@st.composite
def plans(draw, **fixed):
    """A random plan that its schedule and its number of layers allow."""
    entry = CATALOG[draw(st.sampled_from(sorted(CATALOG)))]
    shape = draw(shapes(entry, max_ranks=5, max_microbatches=8, most_stages=3))
    data = draw(profiles())
    num_layers = max(data["model"]["num_layers"], shape["pp"] * shape["vpp"] // entry.num_replicas - 2)
    drawn = {
        **shape, "schedule": entry.name,
        "profile": profile(data), "num_layers": num_layers, "split": draw(st.sampled_from(["auto", "even"])),
        "runtime": draw(st.sampled_from(sorted(RUNTIMES))),
        "action_overhead_s": draw(st.sampled_from([0.0, 0.25])), "hop_overhead_s": draw(st.sampled_from([0.0, 0.5])),
    }  # fmt: skip
    return Plan(**(drawn | fixed)), data


@settings(max_examples=12)
@given(plans())
def test_throughput_is_tokens_of_the_step_over_its_time(drawn):
    plan, _ = drawn
    made = project(plan)
    tokens = plan.num_microbatches * 2 * 16  # micro-batch 2, sequence length 16
    assert made.tokens_per_s == pytest.approx(tokens / made.timeline.step_time_s)
    assert made.to_json()["tokens_per_s_per_gpu"] == pytest.approx(made.tokens_per_s / plan.pp)


@settings(max_examples=12)
@given(plans())
def test_utilization_is_three_forwards_of_flops_over_what_the_gpus_could_do(drawn):
    plan, data = drawn
    made = project(plan)
    embedding, layer, head = (part["forward_flops"] for part in data["measurements"])
    forward = embedding + plan.num_layers * layer + head
    possible = made.timeline.step_time_s * plan.pp * 1e12
    assert made.model_flops_utilization == pytest.approx(3 * forward * plan.num_microbatches / possible)
    assert made.peak_flops_per_s == 1e12


@settings(max_examples=12)
@given(plans())
def test_a_step_is_never_shorter_than_the_work_of_its_busiest_rank_or_the_bound(drawn):
    plan, _ = drawn
    made = project(plan)
    step, schedule = made.timeline.step_time_s, made.timeline.schedule
    costs = made.costs.resolved_for(schedule)
    # DualPipe and DualPipeV split some backwards and not others; the other schedules all or none.
    num_passed = (
        np.bincount(schedule.stage[schedule.op == Op.F], minlength=schedule.num_stages) / schedule.num_slices
    )
    num_full = np.bincount(schedule.stage[schedule.op == Op.B], minlength=schedule.num_stages) / schedule.num_slices
    num_split = num_passed - num_full
    assert (
        plan.schedule in ("dualpipe", "dualpipev")
        or (num_full == 0).all() == CATALOG[plan.schedule].splits_backward
    )
    backward = num_full * costs.backward_s + num_split * (costs.backward_input_s + costs.backward_weight_s)
    work = [(num_passed * costs.forward_s + backward)[schedule.stages_of(rank)].sum() for rank in range(plan.pp)]
    assert made.timeline.busy_s == pytest.approx(np.array(work))
    assert step >= max(work) - TIGHT
    assert made.report["lower_bound_s"] <= step + TIGHT
    assert 0.0 <= made.report["span_bubble_ratio"] <= made.report["bubble_ratio"] + TIGHT
    assert made.report["bubble_ratio"] <= 1.0


@pytest.mark.search
@settings(max_examples=12)
@given(plans(action_overhead_s=0.0, hop_overhead_s=0.0), st.sampled_from([0.5, 4.0]))
def test_a_slower_device_takes_longer_by_its_factor_and_idles_the_same(drawn, factor):
    plan, data = drawn
    one = project(plan)
    other = project(plan, profile=profile(scaled(data, factor)))
    assert other.split == one.split
    assert other.timeline.step_time_s == pytest.approx(one.timeline.step_time_s * factor)
    assert other.tokens_per_s == pytest.approx(one.tokens_per_s / factor)
    assert other.model_flops_utilization == pytest.approx(one.model_flops_utilization / factor)
    assert other.timeline.bubble_ratio == pytest.approx(one.timeline.bubble_ratio, abs=1e-9)
    for channel, step in one.step_time_by_channel_s.items():
        assert other.step_time_by_channel_s[channel] == pytest.approx(step * factor)


@settings(max_examples=12)
@given(plans())
def test_the_other_channels_include_the_one_assumed_and_none_beats_the_ideal(drawn):
    plan, _ = drawn
    made = project(plan)
    assert list(made.step_time_by_channel_s) == list(CHANNELS)
    if made.costs.communication == "overlap":  # without calls that block a rank
        assert made.step_time_by_channel_s[RUNTIMES[plan.runtime][0]] == made.timeline.step_time_s
    assert all(
        step >= made.step_time_by_channel_s["ideal"] - TIGHT for step in made.step_time_by_channel_s.values()
    )


def test_channels_are_compared_without_the_calls_that_block():
    """Megatron-LM's calls have no queues. A channel that shares fewer queues is then never slower."""
    for pp, layers in ((3, 30), (4, 32)):
        made = project(pp=pp, runtime="megatron", num_layers=layers, split="even")
        steps = made.step_time_by_channel_s
        assert steps["ideal"] <= steps["edge"] <= steps["pair"] <= steps["rank"]
        assert steps["edge"] <= steps["direction"] <= steps["rank"]
        assert steps == project(pp=pp, channel="edge", num_layers=layers, split="even").step_time_by_channel_s


BOUNDS = ("lower_bound_s", "span_lower_bound_s", "memory_limit_bytes")  # they mind the memory limit


@st.composite
def plans_of_one_table(draw):
    """Plans whose table another limit leaves as it is; of those that it changes see tests/catalog/test_tables.py."""
    plan, _ = draw(plans())
    assume(not CATALOG[plan.schedule].takes("memory_limit_bytes"))
    return plan


@settings(max_examples=12)
@given(plans_of_one_table())
def test_a_plan_fits_at_its_peak(plan):
    plan = replace(plan, split=project(plan).split)  # a limit may make "auto" choose another one
    made = project(plan)
    limited = project(plan, memory_limit_bytes=float(made.timeline.memory.peak_bytes.max())).report
    assert {key: value for key, value in limited.items() if key not in BOUNDS} == {
        key: value for key, value in made.report.items() if key not in BOUNDS
    }
    for key, reached in (("lower_bound_s", "step_time_s"), ("span_lower_bound_s", "span_s")):
        assert made.report[key] <= limited[key] + TIGHT
        assert limited[key] <= limited[reached] + TIGHT


@settings(max_examples=12)
@given(plans_of_one_table(), st.floats(0.0, 0.999))
def test_a_plan_does_not_fit_below_its_peak(plan, factor):
    plan = replace(
        plan, split="even" if plan.layer_split_rule == "auto" else plan.split
    )  # "auto" finds one that fits
    made = project(plan)
    peak = float(made.timeline.memory.peak_bytes.max())
    assume(peak > 0)
    rank = int(made.timeline.memory.peak_bytes.argmax())
    limited = project(plan, memory_limit_bytes=peak * factor)
    assert limited.fits is False
    assert limited.verdict.rank == rank
    assert limited.verdict.headroom_bytes == peak * factor - peak
    at = made.report["ranks"][rank]["peak_at"]
    assert limited.memory_error.startswith(f"rank {rank} peaks at ")
    assert f" at {at} " in limited.memory_error
    for key in BOUNDS[:2]:
        assert limited.report[key] == made.report[key], "bounds within memory are for tables that keep it"


# --- by hand ---


def test_1f1b_on_equal_stages_takes_m_plus_p_minus_1_times_f_plus_b():
    """The default profile on 8 ranks: 30 layers, embedding and head are 32 equal units, 4 a rank."""
    default = load_profile("zb-a100-6.2b")
    layer = default.find("layer", default.shapes[0])
    unit = layer.forward_s.median + layer.backward_input_s.median + layer.backward_weight_s.median
    made = project(pp=8, microbatches=32, runtime="ideal", transfer_s=0.0)
    assert made.split == [3, 4, 4, 4, 4, 4, 4, 3]
    assert made.timeline.step_time_s == pytest.approx((32 + 8 - 1) * 4 * unit, rel=1e-12)


def test_utilization_of_the_default_profile_by_hand():
    """FLOPs of a GPT layer's forward: 24·s·b·h² + 4·s²·b·h (arXiv 2104.04473, appendix); A100: 312 TFLOP/s."""
    made = project(pp=8, vpp=2, microbatches=32)
    h, s, b, num_layers, m = 4096, 1024, 3, 30, 32
    model_flops = 3 * m * num_layers * (24 * s * b * h**2 + 4 * s**2 * b * h)
    expected = model_flops / (made.timeline.step_time_s * 8 * 312e12)
    assert made.model_flops_utilization == pytest.approx(expected, rel=1e-12)
    assert 0.4 < expected < 0.6


def test_memory_of_1f1b_by_hand():
    """Rank r holds min(p − r, m) microbatches and 16 bytes a parameter."""
    made = project(pp=4, microbatches=8, profile=profile(), split="even", num_layers=8)
    activation = np.array([2 * 400 + 100, 800, 800, 2 * 400 + 800])
    static = 16 * np.array([2 * 200 + 1000, 400, 400, 2 * 200 + 500])
    assert made.timeline.memory.peak_bytes == pytest.approx([4, 3, 2, 1] * activation + static)


def test_without_a_peak_for_the_dtype_there_is_no_utilization():
    data = example()
    data["provenance"]["device"]["peak_flops_per_s"] = {"fp8": 1e12}
    made = project(pp=2, profile=profile(data))
    assert made.model_flops_utilization is None
    assert made.to_json()["peak_flops_per_s"] is None


def test_costs_of_nothing_are_refused_and_not_divided_by():
    with pytest.raises(ConfigError, match="a step takes 0 s at the costs of profile example"):
        project(pp=2, profile=profile(scaled(example(), 0.0)))


def test_throughput_counts_microbatches_and_not_their_slices():
    """At equal costs seq1f1b of one slice is 1F1B; more slices do more steps' worth of actions, not of tokens."""
    whole = project(pp=4, microbatches=8, schedule="1f1b", runtime="ideal", transfer_s=0.0)
    for num_slices in (1, 2, 4):
        made = project(
            pp=4, microbatches=8, schedule="seq1f1b", num_slices=num_slices, runtime="ideal", transfer_s=0.0
        )
        assert made.tokens_per_s * made.timeline.step_time_s == pytest.approx(8 * 3 * 1024)
        assert made.timeline.busy_s == pytest.approx(whole.timeline.busy_s)
        ratio = made.model_flops_utilization / whole.model_flops_utilization
        assert ratio == pytest.approx(whole.timeline.step_time_s / made.timeline.step_time_s)
    assert len(made.timeline.schedule) == 4 * len(whole.timeline.schedule)


def test_replicas_hold_twice_the_weights_and_are_said_to_need_another_runtime():
    one = project(pp=4, microbatches=8, schedule="1f1b", split="even")
    two = project(pp=4, microbatches=8, schedule="dualpipe", split="even")
    assert two.split == one.split
    assert two.timeline.costs.static_bytes.sum() == 2 * one.timeline.costs.static_bytes.sum()
    assert two.timeline.busy_s.sum() == pytest.approx(one.timeline.busy_s.sum())
    assert one.runtime_error is None
    assert two.runtime_error == "it holds one chain of stages, this table has 2 replicas of the model"
    assert project(pp=4, microbatches=8, schedule="dualpipe", runtime="ideal").runtime_error is None
    said = " ".join(two.assumptions)
    for words in (
        "torch cannot run this table as it stands",
        "fused pairs: one part after",
        "summing the replicas' gradients",
    ):
        assert words in said


def test_advice_for_what_does_not_fit_are_options_to_type_that_make_it_fit():
    words = ["project", "--pp", 4, "--schedule", "gpipe", "--memory-limit", "60GiB"]
    made = project(pp=4, schedule="gpipe", memory_limit_bytes=60 * 2.0**30)
    advice = made.summary.advice
    assert len(advice) == 3
    for one in advice:
        assert one.change.startswith("--schedule ")
        typed = ppsim(*words, *one.change.split(), "--json").stdout
        assert json.loads(typed)["fits"]
        assert one.effect.startswith(f"fits, {size(one.projection.verdict.headroom_bytes)} free, ")


def test_a_sequence_too_short_for_its_slices_is_a_reason():
    plan = Plan(pp=2, microbatches=4, profile=profile(), num_slices=17)
    assert project_all(plan, ["seq1f1b", "1f1b"]).rejected == {
        "seq1f1b": "16 tokens are too few for 17 slices of equal time"
    }
    with pytest.raises(ConfigError, match="16 tokens are too few for 17 slices of equal time"):
        project(plan, schedule="seq1f1b")


# --- defaults and runtimes ---


def test_the_defaults_are_1f1b_or_interleaved_and_four_microbatches_a_rank():
    assert project(pp=3).timeline.schedule.name == "1f1b"
    assert project(pp=3, vpp=1).timeline.schedule.name == "1f1b"
    made = project(pp=3, vpp=2)
    assert made.timeline.schedule.name == "interleaved-1f1b"
    assert made.timeline.schedule.num_microbatches == 12
    assert "microbatches: 12 (4 per rank; --num-microbatches sets it)" in made.assumptions
    assert made.assumptions[0].startswith("costs: profile zb-a100-6.2b (published, measured on NVIDIA A100")


@pytest.mark.parametrize(("runtime", "channel"), [("torch", "pair"), ("megatron", "edge"), ("ideal", "ideal")])
def test_a_runtime_brings_its_channel(runtime, channel):
    made = project(pp=4, vpp=2, runtime=runtime)
    assert made.costs.channel == channel
    assert any(
        line.startswith(f"runtime: {runtime} (") and f"channel {channel}" in line for line in made.assumptions
    )
    assert project(pp=4, vpp=2, runtime=runtime, channel="rank").costs.channel == "rank"


@pytest.mark.parametrize("name", ["zb-h1", "zbv-fixed"])
def test_on_torch_the_first_stage_does_its_whole_backward_in_w(name):
    on_torch, ideal = (project(pp=2, schedule=name, runtime=runtime).costs for runtime in ("torch", "ideal"))
    assert on_torch.backward_input_s[0] == 0.0
    assert on_torch.backward_weight_s[0] == pytest.approx(ideal.backward_input_s[0] + ideal.backward_weight_s[0])
    assert on_torch.backward_input_s[1:] == pytest.approx(ideal.backward_input_s[1:])


def test_overheads_make_a_step_longer_and_are_said():
    plain, fitted = project(pp=2), project(pp=2, action_overhead_s=0.001, hop_overhead_s=0.002)
    assert fitted.timeline.step_time_s > plain.timeline.step_time_s
    assert "overheads: 1.00 ms per action, 2.00 ms per P2P transfer" in fitted.assumptions
    assert any(line.startswith("overheads: none") for line in plain.assumptions)


def test_what_lies_between_two_steps_lowers_throughput_and_leaves_the_step():
    plain, fitted = project(pp=2), project(pp=2, step_overhead_s=0.5)
    step = plain.timeline.step_time_s
    assert fitted.timeline.step_time_s == step
    assert fitted.report["iteration_time_s"] == step + 0.5
    assert fitted.tokens_per_s == pytest.approx(plain.tokens_per_s * step / (step + 0.5))
    assert fitted.model_flops_utilization == pytest.approx(plain.model_flops_utilization * step / (step + 0.5))
    assert any(line.startswith("between steps: 500 ms") for line in fitted.assumptions)
    assert plain.report["iteration_time_s"] == step


def test_a_calibrated_bandwidth_replaces_the_transfers_of_the_profile():
    made = project(pp=2, bandwidth_bytes_per_s=1e9)
    assert made.costs.transfer_s == pytest.approx(24 * 2**20 / 1e9)  # the profile's: 535 µs for 24 MiB
    assert any("24.0 MiB at 1.00 GB/s, calibrated" in line for line in made.assumptions)
    assert project(pp=2, bandwidth_bytes_per_s=1e9, transfer_s=0.25).costs.transfer_s == 0.25


def test_compute_beside_transfers_takes_longer_and_that_is_said():
    plain, slowed = (project(pp=4, transfer_s=0.01, overlap_slowdown=slowdown) for slowdown in (0.0, 0.2))
    assert slowed.timeline.step_time_s > plain.timeline.step_time_s
    assert (slowed.timeline.busy_s > plain.timeline.busy_s).all()
    assert slowed.report["lower_bound_s"] == plain.report["lower_bound_s"]
    assert "compute next to a P2P transfer takes 20.00 % longer" in slowed.assumptions


def test_a_channel_that_hangs_the_table_is_an_error_where_assumed_and_none_beside():
    with pytest.raises(Deadlock, match="is queued after"):
        project(pp=4, schedule="zbv-fixed", receives="ordered")
    made = project(pp=4, schedule="zbv-fixed", receives="ordered", channel="edge")
    assert made.step_time_by_channel_s["edge"] == made.timeline.step_time_s
    assert made.step_time_by_channel_s["pair"] is None


def test_on_megatron_stages_hold_what_megatron_puts_there_and_on_torch_what_balances():
    """Four layers on two ranks: head and multi-token prediction move them away, unless Megatron-LM splits."""
    one = job("deepseek-v3", layers=4, pp=2, dp=2, ep=2, global_batch=8)
    torch, megatron, asked = (
        project(Plan(pp=2, job=one, **how))
        for how in ({}, {"runtime": "megatron"}, {"runtime": "megatron", "split": "auto"})
    )
    assert (torch.split, megatron.split, asked.split) == ([4, 0], [2, 2], [4, 0])
    assert "split 2×2 (Megatron-LM's rule: even)" in megatron.assumptions[1]
    profiled = project(Plan(pp=8, runtime="megatron"))
    assert profiled.split == [3, 4, 4, 4, 4, 4, 4, 3]
    assert any(
        "even; Megatron-LM needs --pipeline-model-parallel-layout for it" in line for line in profiled.assumptions
    )
    counted = project(Plan(pp=8, runtime="megatron", split=MegatronSplit(counts_embedding=True, counts_loss=True)))
    assert counted.split == profiled.split
    assert any("embedding and loss counted as layers" in line for line in counted.assumptions)


def test_a_plan_can_be_changed_on_the_way():
    assert project(Plan(pp=2), vpp=2).timeline.schedule.vpp == 2


# --- all schedules ---


@pytest.mark.slow
@settings(max_examples=3)
@given(plans(), st.floats(0.3, 1.2))
def test_all_schedules_are_sorted_and_each_is_either_projected_or_explained(drawn, factor):
    plan, _ = drawn
    limit = factor * float(project(plan).timeline.memory.peak_bytes.max())
    comparison = project_all(replace(plan, schedule=None, vpp=None, memory_limit_bytes=limit))
    places = [
        (comparison.is_elsewhere(made), made.fits is False, bool(made.runtime_error), made.iteration_time_s)
        for made in comparison.projections
    ]
    assert places == sorted(places)
    names = [made.plan.schedule_name for made in comparison.projections]
    assert sorted([*names, *comparison.rejected]) == sorted(CATALOG)
    for made in comparison.projections:
        assert made.fits == (made.timeline.memory.peak_bytes.max() <= limit * CAP_ROUNDING)
        assert made.plan.vpp == CATALOG[made.plan.schedule_name].stages_per_rank[0]
    for name, reason in comparison.rejected.items():
        entry, vpp = CATALOG[name], CATALOG[name].stages_per_rank[0]
        assert reason in (
            entry.why_not(pp=plan.pp, vpp=vpp, microbatches=plan.microbatches),
            why_no_split(plan.layer_split_rule, plan.num_layers, plan.pp * vpp),
        )


QUICK = ["1f1b", "gpipe", "zb-h1", "zb-h2", "interleaved-1f1b", "zbv-fixed", "v-half-fixed", "dualpipe", "seq1f1b"]


@pytest.fixture
def few_schedules(monkeypatch):
    monkeypatch.setattr("ppsim.projection.project.every_schedule", lambda: {name: CATALOG[name] for name in QUICK})


@pytest.mark.usefixtures("few_schedules")
def test_schedules_of_the_plans_trainer_come_first_unless_schedules_are_named():
    plan = Plan(pp=4, microbatches=8, runtime="megatron", memory_limit_bytes=45 * 2**30)
    own = ["interleaved-1f1b", "1f1b"]
    found = project_all(plan)
    assert [made.plan.schedule_name for made in found.projections[:2]] == own
    assert [found.is_elsewhere(made) for made in found.projections] == [False] * 2 + [True] * (len(QUICK) - 2)
    assert " ".join(str(found).split()).startswith(
        "DOES NOT FIT: rank 0 needs 45.3 GiB, 45.0 GiB usable (1f1b; the others of Megatron-LM need more; "
        "v-half-fixed fits, with torch or primus)"
    )
    alike = project_all(plan, QUICK)
    assert alike.projections[0].plan.schedule_name == "v-half-fixed"
    assert not any(map(alike.is_elsewhere, alike.projections))


@pytest.mark.usefixtures("few_schedules")
def test_schedules_of_other_trainers_than_the_named_one_are_one_line():
    plan = Plan(pp=4, microbatches=8, runtime="megatron", memory_limit_bytes=80 * 2**30, names_trainer=True)
    text = str(project_all(plan))
    assert re.search(r"with torch or primus: zbv-fixed -[\d.]+ % \(--schedule any ranks all\)", text)
    assert "zb-h1" not in text
    assert "zb-h1" in str(project_all(replace(plan, names_trainer=False)))


@pytest.mark.slow
@settings(max_examples=12)
@given(plans(), st.floats(0.3, 1.5))
def test_no_list_ranks_a_plan_that_does_not_fit_above_one_that_fits(drawn, factor):
    plan, _ = drawn
    limit = factor * float(project(plan, split="even").timeline.memory.peak_bytes.max())
    assume(limit > 0)
    found = project_all(replace(plan, schedule=None, vpp=None, split="even", memory_limit_bytes=limit), QUICK)
    assume(found.projections)
    fits = [bool((made.timeline.memory.peak_bytes <= limit * CAP_ROUNDING).all()) for made in found.projections]
    assert fits == sorted(fits, reverse=True)
    assert found.to_frame()["fits"].tolist() == fits
    lines = [line.split() for line in str(found).splitlines()]
    listed = [line[0] for line in lines if line and line[0].rstrip("*!") in QUICK]
    assert ["!" not in name for name in listed] == fits
    assert str(found).startswith("DOES NOT FIT: ") == (not any(fits))


def test_a_list_goes_by_the_whole_iteration_and_what_runs_and_fits_comes_first():
    """dualpipe is the fastest and does not run; zb-2p is faster than 1f1b and does not fit."""
    names = ["dualpipe", "zb-2p", "1f1b", "zbv-fixed"]
    by_table = job("llama3-8b", pp=4, dp=32, global_batch=512, sequence_length=8192)
    device = by_table.cluster.device
    by_sheet = replace(device, efficiency=replace(device.efficiency, in_situ=None))
    one = replace(by_table, cluster=replace(by_table.cluster, device=by_sheet))
    comparison = project_all(Plan(pp=4, job=one, split="balanced"), names)
    found = {made.plan.schedule_name: made for made in comparison.projections}
    assert list(found) == ["zbv-fixed", "1f1b", "dualpipe", "zb-2p"]
    assert found["dualpipe"].timeline.step_time_s < found["zbv-fixed"].timeline.step_time_s
    assert max(found, key=lambda name: found[name].tokens_per_s) == "dualpipe"
    assert found["zb-2p"].tokens_per_s > found["1f1b"].tokens_per_s
    assert "peaks at" in found["zb-2p"].memory_error
    assert "replicas" in found["dualpipe"].runtime_error
    assert all(found[name].memory_error is None is found[name].runtime_error for name in ("zbv-fixed", "1f1b"))
    lines = [line.split() for line in str(comparison).splitlines()]
    begin = next(number for number, line in enumerate(lines) if line[:1] == ["schedule"]) + 1
    best, *others = lines[begin : begin + 4]
    assert [best[0], *(other[0] for other in others)] == ["zbv-fixed", "1f1b", "dualpipe*", "zb-2p!"]
    for line, made in zip([best, *others], comparison.projections, strict=True):
        ratio = made.iteration_time_s / found["zbv-fixed"].iteration_time_s - 1
        assert f"{100 * ratio:+.2f}" in line
    said = " ".join(str(comparison).split())
    assert "! does not fit: a rank needs more than the 74.2 GiB usable." in said


def test_a_search_keeps_to_the_memory_of_the_device_and_is_nearly_as_fast():
    """Without a limit, v-flex takes 89 GiB and 0.1 % less time."""
    one = job("llama3-8b", pp=4, dp=32, global_batch=256, sequence_length=8192)
    plan = Plan(pp=4, job=one, split="balanced", schedule="v-flex")
    within, free = project(plan), project(replace(plan, memory_limit_bytes=1e15))
    assert within.fits
    assert free.timeline.memory.peak_bytes.max() > memory_limit_of(one).usable_bytes
    assert within.iteration_time_s == pytest.approx(free.iteration_time_s, rel=2e-3)


def test_a_search_for_which_no_table_fits_is_made_without_a_limit_and_says_so():
    made = project(pp=4, microbatches=8, schedule="v-flex", memory_limit_bytes=10 * 2.0**30)
    assert made.fits is False
    assert any("without a memory limit, because rank " in line for line in made.assumptions)


@pytest.mark.usefixtures("few_schedules")
def test_a_schedule_in_the_comparison_is_projected_as_on_its_own():
    for made in project_all(Plan(pp=4, microbatches=8)).projections:
        alone = project(pp=4, microbatches=8, schedule=made.plan.schedule_name, vpp=made.plan.vpp)
        assert made.to_json() == alone.to_json()


def test_what_a_schedule_forbids_is_a_reason():
    comparison = project_all(Plan(pp=4, vpp=3, microbatches=8))
    looped = {name for name, entry in CATALOG.items() if entry.stages_per_rank[1] is None and entry.stages_by == 1}
    assert {made.plan.schedule_name for made in comparison.projections} == looped
    assert comparison.rejected["zbv-fixed"] == "zbv-fixed needs exactly 2 stages per rank: got vpp=3 (nearest: 2)"
    assert comparison.rejected["1f1b"] == "1f1b needs exactly 1 stage per rank: got vpp=3 (nearest: 1)"


def test_no_stages_a_rank_are_not_taken_for_the_default():
    assert project_all(Plan(pp=4, vpp=0)).projections == []


def test_a_given_split_is_for_the_schedules_with_as_many_stages():
    comparison = project_all(Plan(pp=4, split=[7, 8, 8, 7]))
    one_stage = {name for name, entry in CATALOG.items() if entry.stages_per_rank[0] == entry.num_replicas}
    assert {made.plan.schedule_name for made in comparison.projections} == one_stage >= {"gpipe", "1f1b", "zb-h2"}
    assert comparison.rejected["zbv-fixed"] == "the split has 4 entries, but there are 8 stages"


def test_too_few_layers_for_a_schedules_stages_are_a_reason():
    comparison = project_all(Plan(pp=8, num_layers=8))
    assert comparison.rejected["zbv-fixed"] == "8 layers are too few for 16 stages: some would hold nothing"
    assert "1f1b" in {made.plan.schedule_name for made in comparison.projections}


def test_a_wrong_profile_or_a_wrong_sum_is_an_error_and_no_reason():
    with pytest.raises(ConfigError, match="the split has 31 layers in all"):
        project_all(Plan(pp=4, split=[7, 8, 8, 8]))
    without_head = profile(example(measurements=example()["measurements"][:2]))
    with pytest.raises(ConfigError, match="profile example has no head"):
        project_all(Plan(pp=2, profile=without_head))


def test_a_plan_and_a_search_for_one_ask_the_same_of_a_device() -> None:
    import ppsim

    found = ppsim.tune(
        model="gpt2", stack="plain", gpus=2, global_batch=2, pp=[2], tp=[1], cp=[1], vpp=[1], micro_batch=[1], schedule=["1f1b"],
        recompute=["none"], split=["even"], top=1,
    )  # fmt: skip
    plan = ppsim.project(model="gpt2", stack="plain", gpus=2, pp=2).plan
    assert plan.memory_bound_bytes == found.question.memory_bound_bytes
    assert plan.memory_bound_bytes == plan.job.cluster.device.memory_bytes - 5 * 2**30
    assert " of 74.2 GiB (rank 0)\n" in str(ppsim.project(plan))


def test_layouts_and_ranks_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ConfigError, match="the job's layout has pp 2: got pp 4"):
        Plan(pp=4, job=job(pp=2))
    for rank in (-1, 2):
        with pytest.raises(ConfigError, match=f"one of the ranks 0 to 1: got {rank}"):
            Plan(pp=2, stragglers=((rank, 1.5),))
    for factor in (0.99, float("inf")):
        with pytest.raises(ConfigError, match="takes at least 1 × as long"):
            Plan(pp=2, stragglers=((1, factor),))
    assert Plan(pp=2, stragglers=((1, 1.0),)).stragglers == ((1, 1.0),)


def test_a_searched_plan_needs_a_model_and_no_layers() -> None:
    with pytest.raises(ConfigError, match="--plan auto needs a model"):
        Plan(pp=2, searches_stages=True)
    with pytest.raises(ConfigError, match="leave out --split"):
        Plan(pp=2, job=job(pp=2), searches_stages=True, split="even")
    with pytest.raises(ConfigError, match="leave out --sequence-lengths"):
        Plan(pp=2, job=job(pp=2), searches_stages=True, lengths=(1024,))
    assert Plan(pp=2, job=job(pp=2), searches_stages=True, split="auto").split == "auto"


@pytest.mark.parametrize(
    ("fields", "name", "microbatches"),
    [
        ({"pp": 3}, "1f1b", 12),
        ({"pp": 3, "vpp": 1}, "1f1b", 12),
        ({"pp": 3, "vpp": 2}, "interleaved-1f1b", 12),
        ({"pp": 3, "vpp": 2, "schedule": "zbv-fixed", "microbatches": 5}, "zbv-fixed", 5),
    ],
)
def test_schedule_and_microbatches_have_defaults(fields: dict, name: str, microbatches: int) -> None:
    plan = Plan(**fields)
    assert (plan.schedule_name, plan.num_microbatches) == (name, microbatches)


def test_a_job_has_its_own_microbatches() -> None:
    assert Plan(pp=2, job=job(pp=2, dp=2, global_batch=24)).num_microbatches == 12


@pytest.mark.parametrize(
    ("fields", "communication"),
    [
        ({"runtime": "megatron"}, "megatron"),
        ({"runtime": "megatron", "vpp": 2}, "megatron"),
        ({"runtime": "megatron", "overlap_p2p": False}, "megatron-no-overlap"),
        ({"runtime": "megatron", "channel": "pair"}, "overlap"),
        ({"runtime": "megatron", "schedule": "zb-h1"}, "overlap"),
        ({"runtime": "megatron", "pp": 1}, "overlap"),
        ({"runtime": "torch"}, "overlap"),
    ],
)
def test_megatrons_calls_block_on_its_runtime(fields: dict, communication: str) -> None:
    assert Plan(**({"pp": 2} | fields)).communication == communication


def test_rounds_divide_the_microbatches() -> None:
    assert Plan(pp=2, microbatches=12, gradient_accumulation_steps=3).round_microbatches == 4
    with pytest.raises(ConfigError, match=r"does not divide the 12 microbatches .*\(nearest: 4\)"):
        _ = Plan(pp=2, microbatches=12, gradient_accumulation_steps=5).round_microbatches
    with pytest.raises(ConfigError, match=r"\(nearest: 12\)"):
        _ = Plan(pp=2, microbatches=12, gradient_accumulation_steps=50).round_microbatches
    with pytest.raises(ConfigError, match="must be at least 1: got 0"):
        _ = Plan(pp=2, gradient_accumulation_steps=0).round_microbatches
    with pytest.raises(ConfigError, match="Megatron-LM runs all 12 microbatches"):
        _ = Plan(pp=2, microbatches=12, gradient_accumulation_steps=2, runtime="megatron").round_microbatches
    assert Plan(pp=2, microbatches=12, runtime="megatron").round_microbatches == 12


def test_a_limit_is_given_or_of_the_device() -> None:
    assert Plan(pp=2).memory_bound_bytes == (80 - 5) * 2**30, "of the A100 of the default profile"
    own = job(pp=2)
    assert Plan(pp=2, job=own).memory_bound_bytes == own.cluster.device.memory_bytes - 5 * 2**30
    assert Plan(pp=2, memory_limit_bytes=1e9).memory_bound_bytes == 1e9
    assert Plan(pp=2, measured=RankCosts(1.0, 1.0, 1.0)).memory_limit is None


def test_memory_is_known_with_a_model_or_measured_bytes() -> None:
    times, more = RankCosts(1.0, 1.0, 1.0), RankCosts(1.0, 1.0, 1.0, activation_bytes=1.0)
    assert [Plan(pp=2, measured=one).knows_memory for one in (None, times, more)] == [True, False, True]
    assert [Plan(pp=2, measured=one).has_model for one in (None, times, more)] == [True, False, False]
    assert Plan(pp=2, measured=times, profile=load_profile("zb-a100-6.2b")).has_model
    with pytest.raises(ConfigError, match="times given by hand have no layers"):
        _ = Plan(pp=2, measured=times).modelled_source


def test_variation_is_measured_or_given() -> None:
    assert Plan(pp=2).variation is None, "quartiles of a published profile may not be of actions"
    assert Plan(pp=2, action_spread=0.1).variation == 0.1
    assert Plan(pp=2, action_spread=0.1, pass_factors=(0.9, 1.1)).variation == (0.9, 1.1)
    assert Plan(pp=2, profile=profile(example())).variation is not None
    assert Plan(pp=2, profile=profile(example()), action_spread=0.0).variation == 0.0


def test_the_split_of_a_runtime_is_its_own() -> None:
    assert Plan(pp=2).layer_split_rule == "auto"
    assert Plan(pp=2, runtime="megatron").layer_split_rule == MegatronSplit()
    assert Plan(pp=2, runtime="megatron", split="even").layer_split_rule == "even"
    assert [Plan(pp=2).criterion, Plan(pp=2, job=job(pp=2)).criterion] == ["step", "step"]
    assert Plan(pp=2, job=replace(job(pp=2), update="post-validated")).criterion == "span"


def test_a_plan_without_stages_per_rank_has_the_fewest_of_its_schedule() -> None:
    assert [Plan(pp=2, vpp=3).stages_per_rank, Plan(pp=2, schedule="zbv").stages_per_rank] == [3, 2]
    assert [Plan(pp=2, schedule="auto", vpp=vpp).stages_per_rank for vpp in (None, 2)] == [1, 2]


def test_memory_is_fragmented_by_experts_and_graphs() -> None:
    dense, experts = job(), job("mixtral-8x7b", ep=2, dp=2)
    assert memory_limit_of(experts) != memory_limit_of(dense)
    assert "experts" in str(memory_limit_of(experts))
    assert "experts" not in str(memory_limit_of(dense))


def test_a_schedule_has_the_name_of_the_catalogue() -> None:
    names = ("ZB_H1", "1F1B", "ScheduleZBVZeroBubble", "auto", None)
    assert [Plan(pp=2, schedule=name).schedule for name in names] == ["zb-h1", "1f1b", "zbv-fixed", "auto", None]
