"""The answer: budget, sensitivities, interval, stragglers, fit and advice of jobs and of profiles."""

import re
from dataclasses import asdict, replace

import numpy as np
import pytest

from ppsim.base.errors import ConfigError
from ppsim.catalog.build import CATALOG
from ppsim.costs.similar_jobs import features_of
from ppsim.machine.job_similarity import MeasuredJob
from ppsim.projection.loss_breakdown import interval, loss_budget, sensitivities
from ppsim.projection.plan import Plan
from ppsim.projection.project import project, project_all
from ppsim.projection.summary import advise
from ppsim.simulation.simulate import simulate
from tests.projection.jobs import job, on_ideal_links

EXPOSED = {"overlap_grad_reduce": False, "overlap_param_gather": False}


def uniform(microbatches: int = 8) -> Plan:
    """1F1B of equal stages on links that take no time: only layers, spread evenly, cost anything but the ends."""
    one = on_ideal_links(job("llama3-8b", layers=16, pp=4, global_batch=microbatches))
    return Plan(pp=4, job=one, runtime="ideal", split="even")


def test_the_busiest_rank_idles_while_the_others_run_one_microbatch() -> None:
    """1F1B takes Σ(F + B) + (m − 1)·max(F + B): the busiest rank computes m·max, the rest is its bubble."""
    made = project(uniform())
    of_stages = [part.forward.total_s + part.backward.total_s for part in made.stage_cost_set.parts]
    budget = loss_budget(made)
    assert budget["pipeline bubble"] == pytest.approx(sum(of_stages) - max(of_stages))
    assert budget["stage imbalance"] == pytest.approx(8 * (max(of_stages) - sum(of_stages) / 4))
    assert made.iteration_time_s == pytest.approx(made.timeline.step_time_s + sum(made.step.exposed_s.values()))
    assert made.step.exposed_s["optimizer"] > 0


@pytest.mark.slow
def test_the_budget_of_every_schedule_sums_to_its_iteration() -> None:
    one = job("llama3-8b", pp=4, tp=2, dp=2, global_batch=16)
    made = project_all(Plan(pp=4, job=one), sorted(CATALOG)[::2]).projections
    assert len(made) > 6
    for projection in made:
        budget = loss_budget(projection)
        assert sum(budget.values()) == pytest.approx(projection.iteration_time_s), projection.plan.schedule_name
        assert min(budget.values()) >= 0
        assert budget["model FLOPs at peak"] == pytest.approx(
            projection.iteration_time_s * projection.model_flops_utilization, rel=1e-9
        )


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("llama3-8b", {"dtype": "float8"}), ("gpt3-175b", {"attention": "unfused", "layers": 8}),
        ("llama3-8b", {"tp": 16}), ("llama3-8b", {"recompute": "full", "vocab_multiple": 524288}),
        ("deepseek-v3", {"layers": 6, "ep": 2}), ("mixtral-8x7b", {"layers": 8, "ep": 2}),
        ("qwen2.5-0.5b", {}), ("qwen3-vl-4b", {"dtype": "float8"}),
    ],
)  # fmt: skip
def test_ideal_is_mfu_and_what_is_beyond_it_is_apart(name: str, fields: dict[str, object]) -> None:
    """Products in a wider type, masked scores, repeated heads, padding, recomputation: none of it is ideal."""
    one = job(name, pp=2, dp=2, **fields)
    made = project(Plan(pp=2, job=one))
    budget = loss_budget(made)
    assert budget["model FLOPs at peak"] == pytest.approx(
        made.iteration_time_s * made.model_flops_utilization, rel=1e-9
    )
    assert sum(budget.values()) == pytest.approx(made.iteration_time_s)
    is_more = "dtype" in fields or "attention" in fields or "vocab_multiple" in fields or one.layout.tp > 8
    assert (budget.get("non-model FLOPs", 0.0) > 1e-3 * made.iteration_time_s) == is_more


@pytest.mark.parametrize("times", [0.9, 1.2])
def test_a_measured_step_changes_the_losses_and_not_the_ideal(times: float) -> None:
    one = job(pp=2, dp=2)
    run = MeasuredJob(**asdict(features_of(one)), times=times, spread=0.06)
    corrected = one.cluster.with_constants(replace(one.cluster.constants, runs=(run,)))
    before, after = (loss_budget(project(Plan(pp=2, job=of))) for of in (one, replace(one, cluster=corrected)))
    assert sum(after.values()) != pytest.approx(sum(before.values()), rel=0.05)
    assert after["model FLOPs at peak"] == pytest.approx(before["model FLOPs at peak"])


@pytest.mark.parametrize("zero_stage", [0, 1, 3])
@pytest.mark.parametrize("overlaps", [(True, True), (True, False), (False, False)])
def test_the_budget_sums_with_every_way_of_data_parallelism(zero_stage: int, overlaps: tuple[bool, bool]) -> None:
    one = job(
        "llama3-8b", pp=2, dp=16, global_batch=64, sequence_length=1024, overlap_grad_reduce=overlaps[0],
        overlap_param_gather=overlaps[1],
    )  # fmt: skip
    one = replace(one, optimizer=replace(one.optimizer, zero_stage=zero_stage))
    for update in ("synchronised", "post-validated"):
        made = project(Plan(pp=2, job=replace(one, update=update)))
        budget = loss_budget(made)
        assert sum(budget.values()) == pytest.approx(made.iteration_time_s)
        assert budget.get("data parallelism", 0.0) + budget.get("parameter all-gather", 0.0) > 0


@pytest.mark.parametrize(
    "schedule", ["1f1b", pytest.param("zbv", marks=pytest.mark.search), "zb-h1", "interleaved-1f1b"]
)
def test_what_is_idle_sums_to_the_bubble_and_what_rounding_leaves_is_no_term(schedule: str) -> None:
    """One bubble: the step's; its parts have names of their own, and none is a difference of equal sums."""
    vpp = 2 if schedule == "interleaved-1f1b" else None
    for plan in (Plan(pp=4), uniform()):
        made = project(replace(plan, schedule=schedule, vpp=vpp))
        budget, timeline = loss_budget(made), made.timeline
        assert "bubble" not in budget
        idle_parts = ("pipeline bubble", "stage imbalance", "exposed P2P")
        idle = sum(budget.get(name, 0.0) for name in idle_parts)
        assert idle == pytest.approx(timeline.bubble_ratio * timeline.step_time_s, rel=1e-9)
        assert all(
            abs(value) > 1e-12 * made.iteration_time_s
            for name, value in budget.items()
            if name != "model FLOPs at peak"
        )


def test_reductions_and_gathers_are_hidden_by_options_of_their_own() -> None:
    hidden, reduced, neither = (
        project(Plan(pp=2, job=job("llama3-8b", pp=2, dp=16, global_batch=64, **overlaps))).step.exposed_s
        for overlaps in ({}, {"overlap_param_gather": False}, EXPOSED)
    )
    assert hidden["reduce"] == pytest.approx(reduced["reduce"])
    assert neither["reduce"] > 2 * reduced["reduce"]
    assert neither["gather"] == pytest.approx(reduced["gather"])
    assert reduced["gather"] > 2 * hidden["gather"]


def test_sensitivities_are_what_a_percent_off_gives() -> None:
    """Exposed collectives, the optimizer and transfers that take 1 % less shorten the iteration by just that."""
    one = job("llama3-8b", pp=2, dp=16, global_batch=64, **EXPOSED)
    made = project(Plan(pp=2, job=one))
    found = sensitivities(made)
    exposed = made.step.exposed_s
    behind = sum(exposed[kind] for kind in ("gather", "reduce", "share"))
    assert behind > 0.01 * made.iteration_time_s
    assert found["data parallelism"] == pytest.approx(0.01 * behind / made.iteration_time_s)
    assert found["optimizer"] == pytest.approx(
        0.01 * (exposed["norm"] + exposed["optimizer"]) / made.iteration_time_s
    )
    faster = simulate(made.timeline.schedule, made.costs.replace(transfer_s=0.99 * np.array(made.costs.transfer_s)))
    gain = simulate(made.timeline.schedule, made.costs).step_time_s - faster.step_time_s
    assert found["transfers"] == pytest.approx(gain / made.iteration_time_s, abs=1e-12)


def test_a_profiles_budget_sums_too() -> None:
    made = project(Plan(pp=4, vpp=2, action_overhead_s=1e-4, step_overhead_s=0.01))
    budget = loss_budget(made)
    assert sum(budget.values()) == pytest.approx(made.iteration_time_s)
    assert budget["host"] > 0.01


def test_one_percent_of_all_compute_gains_what_compute_is_of_the_iteration() -> None:
    made = project(uniform())
    found = sensitivities(made)
    assert found["compute of all stages"] == pytest.approx(0.01 * made.timeline.step_time_s / made.iteration_time_s)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert all(-1e-12 <= value <= 0.01 for value in found.values())


def test_many_stages_are_weighed_together_against_the_links() -> None:
    """Each of them has little of the step, and links between all of them have some of it."""
    one = project(Plan(pp=10, vpp=3, microbatches=10, transfer_s=0.006))
    answer = one.summarise(with_advice=False)
    of_one = max(value for name, value in answer.gain_per_percent.items() if name.startswith("compute of stage "))
    assert of_one < answer.gain_per_percent["transfers"] < answer.gain_per_percent["compute of all stages"]
    assert answer.bottleneck.startswith("compute of stage ")


def test_the_slowest_stage_is_the_bottleneck() -> None:
    one = on_ideal_links(job("llama3-8b", layers=16, pp=4, global_batch=32))
    answer = project(Plan(pp=4, job=one, split=[3, 3, 7, 3])).summarise(with_advice=False)
    assert answer.bottleneck == "compute of stage 2"


def test_the_interval_holds_the_estimate_and_widens_with_the_spread() -> None:
    made = project(Plan(pp=4, job=job(pp=4)))
    assert interval(made, spread=0.0, jitter=0.0) == pytest.approx((made.iteration_time_s, made.iteration_time_s))
    widths = []
    for spread in (0.01, 0.03, 0.1):
        low, high = interval(made, spread=spread, jitter=0.01)
        assert low < made.iteration_time_s < high
        widths.append(high - low)
    assert widths == sorted(widths)
    assert interval(made, spread=0.1, jitter=0.0, seed=1) == interval(made, spread=0.1, jitter=0.0, seed=1)


def test_jitter_alone_makes_a_step_longer() -> None:
    """A step waits for the latest, so that what differs from action to action does not cancel."""
    made = project(Plan(pp=8, job=job(pp=8)))
    low, high = interval(made, spread=0.0, jitter=0.2)
    assert (low + high) / 2 > made.iteration_time_s


@pytest.mark.parametrize("rank", range(4))
def test_a_straggler_slows_a_step_by_its_factor_at_most(rank: int) -> None:
    one = job(pp=4)
    without = project(Plan(pp=4, job=one)).timeline.step_time_s
    slowed = project(Plan(pp=4, job=one, stragglers=((rank, 1.5),))).timeline.step_time_s
    assert without <= slowed <= 1.5 * without * (1 + 1e-12)
    assert slowed > 1.1 * without


def test_advice_fits_and_gains() -> None:
    made = project(Plan(pp=4, job=job("llama3-8b", tp=2, pp=4, dp=4, global_batch=64)))
    bound = made.plan.memory_bound_bytes
    assert made.timeline.memory.peak_bytes.max() <= bound
    advice = advise(made, project)
    assert advice
    gains = [one.throughput_gain for one in advice]
    assert gains == sorted(gains, reverse=True)
    for one in advice:
        assert one.throughput_gain >= 0.005
        assert one.projection.timeline.memory.peak_bytes.max() <= bound
        assert one.projection.tokens_per_s == pytest.approx(made.tokens_per_s * (1 + one.throughput_gain))
        again = project(one.projection.plan)
        assert again.iteration_time_s == one.projection.iteration_time_s


def test_advice_for_what_does_not_fit_is_what_would() -> None:
    one = job("llama3-8b", pp=2, dp=2, global_batch=8, sequence_length=8192)
    made = project(Plan(pp=2, job=one, split="even"))
    bound = made.plan.memory_bound_bytes
    assert made.timeline.memory.peak_bytes.max() > bound
    answer = made.summarise()
    assert made.verdict.headroom_bytes < 0
    assert answer.advice
    for one in answer.advice:
        assert one.projection.timeline.memory.peak_bytes.max() <= bound
        assert one.effect.startswith("fits, ")


def test_a_model_that_fits_nowhere_says_by_how_much() -> None:
    made = project(Plan(pp=2, job=job("llama3-405b", pp=2, global_batch=8), memory_limit_bytes=80 * 2**30))
    assert re.fullmatch(r"DOES NOT FIT: rank \d needs [\d.]+ TiB, 80.0 GiB usable", str(made.verdict))
    assert re.match(r"rank \d peaks at [\d.]+ TiB > 80.0 GiB at ", made.memory_error)
    assert made.summary.advice == []


def test_two_changes_are_advised_if_no_single_one_makes_a_plan_fit() -> None:
    one = job("llama3-8b", pp=2, dp=8, global_batch=64, micro_batch=2, sequence_length=8192)
    made = project(Plan(pp=2, job=one, memory_limit_bytes=27 * 2**30))
    advice = made.summary.advice
    assert advice
    for each in advice:
        assert each.change.startswith("--recompute full --"), each.change
        assert each.projection.fits


def test_days_are_tokens_by_throughput() -> None:
    made = project(Plan(pp=4, job=job(pp=4)))
    answer = made.summarise(tokens=1e12, with_advice=False)
    assert answer.training_days == pytest.approx(1e12 / made.tokens_per_s / 86400)
    with pytest.raises(ConfigError, match="--tokens must be more than 0: got -1"):
        made.summarise(tokens=-1.0, with_advice=False)


def test_more_overlap_is_never_slower_and_gpus_are_counted_once() -> None:
    one = job("llama3-8b", pp=4, tp=2, dp=2, global_batch=16)
    beside = project(Plan(pp=4, vpp=2, job=one))
    behind = project(Plan(pp=4, vpp=2, job=replace(one, **EXPOSED)))
    assert beside.iteration_time_s < behind.iteration_time_s
    assert beside.num_gpus == 16
    assert beside.tokens_per_s == pytest.approx(16 * 4096 / beside.iteration_time_s)


def test_model_flops_of_sequences_of_many_lengths_are_fewer_with_encoders_too() -> None:
    """Tokens of an image count as tokens: the encoder's FLOPs are no part of attention's square."""
    whole = project(Plan(pp=2, job=job("qwen3-vl-4b", pp=2)))
    short = project(Plan(pp=2, job=job("qwen3-vl-4b", pp=2), lengths=(512, 1024, 2048) * 3))
    flops, all_flops = (one.model_flops_utilization * one.iteration_time_s for one in (short, whole))
    tokens, all_tokens = (one.tokens_per_s * one.iteration_time_s for one in (short, whole))
    assert 0.9 * tokens / all_tokens < flops / all_flops < tokens / all_tokens
    assert min(loss_budget(short).values()) >= 0


def test_a_fused_pair_has_only_exposed_messages_and_launches_beyond_compute() -> None:
    one = job("qwen3-30b-a3b", pp=2, ep=2, dp=2, layers=8, global_batch=16)
    for order in ("dualpipe", "best"):
        overlapped = replace(one, execution=replace(one.execution, overlap_ep=order))
        made, apart = (project(Plan(pp=2, job=of, schedule="dualpipev")) for of in (overlapped, one))
        budget, before = loss_budget(made), loss_budget(apart)
        assert sum(budget.values()) == pytest.approx(made.iteration_time_s)
        assert min(budget.values()) >= 0
        assert budget.get("slow ranks", 0.0) == pytest.approx(before.get("slow ranks", 0.0))
        assert 0 < budget["EP communication"] < before["EP communication"]


@pytest.mark.parametrize("update", ["synchronised", "post-validated"])
@pytest.mark.parametrize("runtime", ["ideal", "torch", "megatron"])
def test_every_cause_of_a_step_is_a_part_and_none_is_negative(update: str, runtime: str) -> None:
    """With the jitter of actions, host times, slow transfers and compute that they slow down."""
    one = job("llama3-8b", pp=4, dp=4, global_batch=32)
    plan = Plan(
        pp=4, job=replace(one, update=update), runtime=runtime, stragglers=((1, 1.3),), overlap_slowdown=0.3,
        action_overhead_s=1e-3, message_overhead_s=1e-3, hop_overhead_s=1e-3, action_spread=0.1, last_pass_s=0.1,
    )  # fmt: skip
    made = project(plan)
    budget = loss_budget(made)
    assert sum(budget.values()) == pytest.approx(made.iteration_time_s)
    assert min(budget.values()) >= 0
    assert {"stage imbalance", "pipeline bubble", "host", "passes that vary", "slow ranks"} <= budget.keys()
    assert (budget.get("slower next to P2P", 0.0) > 0) == (runtime != "megatron")  # its 1F1B overlaps nothing


def test_the_other_channels_wait_for_parameters_too() -> None:
    made = project(Plan(pp=4, job=job(pp=4, dp=32, global_batch=256)))
    assert made.timeline.earliest is not None
    assert made.step_time_by_channel_s[made.costs.channel] == made.timeline.step_time_s
    assert np.isfinite([step for step in made.step_time_by_channel_s.values() if step is not None]).all()
