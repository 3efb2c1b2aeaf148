"""What published runs were projected with, as options: stacks, hidden communication, constants, measured ranks."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import ppsim
from ppsim.base.option_declarations import declared_options
from ppsim.base.units import seconds
from ppsim.costs.dp_and_optimizer import expected_maximum
from ppsim.costs.job import Job
from ppsim.costs.job_description import given_assumptions
from ppsim.errors import ConfigError
from ppsim.machine.cluster import Constant, Constants
from ppsim.machine.cluster_files import load_cluster
from ppsim.model.execution import Execution
from ppsim.model.offloading import OffloadRules
from ppsim.projection.options import PlanOptions, SearchBaseOptions
from ppsim.trainers.stacks import current_stacks, stack_of, stacks

UNNAMED: dict[str, Any] = {"model": "llama3-8b", "gpus": 16, "tp": 4, "pp": 2, "global_batch": 32}
SMALL: dict[str, Any] = UNNAMED | {"stack": "plain"}
SPARSE = SMALL | {"model": "qwen3-30b-a3b", "tp": 1, "ep": 8}
OTHERWISE = {"hidden_tp_forward": "overlap_tp", "hidden_tp_backward": "overlap_tp", "launch_s": "launch_ms",
             "stage_plans": "stage_plan"}  # fmt: skip
NOT_ASKED = {"model_name", "fused_activation", "gradient_placeholders", "weighted_output", "norm_in_gemm", "allocator_slack", "vocab_multiple", "cluster", "layout", "model", "optimizer",
             "execution", "offload_rules", "gpus_assumed", "assumed", "ignored_memory_options", "stack_basis"}  # fmt: skip
"""Of a job: what is made of other words, and what is the trainer's own."""


@pytest.mark.parametrize(
    ("holder", "under"),
    [(Execution, "job.execution"), (Job, "job"), (OffloadRules, "job.offload_rules")],
)
def test_every_field_of_how_a_job_runs_is_an_option(holder: type, under: str) -> None:
    words = declared_options(PlanOptions)
    set_by = {word.option.field for word in words.values()}
    names = {one.name for one in fields(holder)} - NOT_ASKED
    assert {name for name in names if f"{under}.{name}" not in set_by and OTHERWISE.get(name) not in words} == set()


def test_every_stack_is_a_choice_and_says_words_of_studies_with_sources() -> None:
    words = declared_options(PlanOptions)
    for name, stack in stacks().items():
        assert all(line.source for line in stack.lines)
        for line in stack.lines:
            assert line.word in {
                *declared_options(SearchBaseOptions),
                "zero",
                "sequence_parallel",
                "runtime",
                "overlap_p2p",
            }
            made = ppsim.project(**(SPARSE if line.experts else SMALL) | {line.word: line.value})
            assert made.iteration_time_s > 0, (name, words[line.word].flag)


def test_a_stack_captures_graphs_where_its_recipes_do() -> None:
    """With experts on GB200 and GB300, and not beside what forbids them."""
    graphs = [
        ppsim.job(**SPARSE | words | {"stack": "megatron-bridge@none"}).execution.cuda_graphs
        for words in ({"cluster": "gb200-nvl72"}, {"cluster": "dgx-h100"}, {"model": "llama3-8b", "ep": 1},
                      {"cluster": "gb300-nvl72", "recompute": "full"}, {"cluster": "gb300-nvl72", "offload": 0.1},
                      {"cluster": "gb300-nvl72", "cuda_graphs": "attn"})
    ]  # fmt: skip
    assert graphs == ["attn+moe_router+moe_preprocess", "none", "none", "none", "none", "attn"]


@pytest.mark.parametrize("name", stacks())
@pytest.mark.parametrize("dtype", ["bfloat16", "float8", "nvfp4"])
@pytest.mark.parametrize("pp", [1, 4])
def test_a_default_of_a_stack_that_is_typed_changes_no_other(name: str, dtype: str, pp: int) -> None:
    """TorchTitan with --overlap-tp 0, its default, was 14 % faster: asynchronous TP asks for torch.compile."""
    for has_experts in (False, True):
        of_job = {"device": "NVIDIA H100 SXM", "has_experts": has_experts}
        defaults = stack_of(name, {"dtype": dtype, "pp": pp}, **of_job).options
        for word, value in defaults.items():
            typed = stack_of(name, {"dtype": dtype, "pp": pp, word: value}, **of_job).options
            assert {**typed, word: value} == defaults


@pytest.mark.parametrize(("zero", "is_on"), [(0, False), (1, True)])
def test_a_stack_has_8_bit_weights_only_with_a_sharded_optimizer(zero: int, is_on: bool) -> None:
    made = ppsim.job(
        model="llama3-8b", cluster="dgx-b200", gpus=8, zero=zero, dtype="mxfp8", stack="megatron-bridge"
    )
    assert made.optimizer.fp8_param_gather is is_on


def test_a_stack_sets_what_options_leave_open_and_no_more() -> None:
    old = ppsim.job(**UNNAMED, stack="megatron-lm-2021")
    said = (
        old.execution.attention,
        old.execution.dropout,
        old.optimizer.zero_stage,
        old.scatter_gather,
        old.overlap_grad_reduce,
        old.overlap_param_gather,
    )
    assert said == ("unfused", True, 0, True, False, False)
    assert not old.execution.sequence_parallel
    mixed = ppsim.job(**UNNAMED, stack="megatron-lm-2021", attention="fused", zero=1)
    assert (mixed.execution.attention, mixed.optimizer.zero_stage, mixed.execution.dropout) == ("fused", 1, True)
    bridge = ppsim.project(**UNNAMED, stack="megatron-bridge")
    assert bridge.plan.runtime == "megatron"
    assert bridge.assumptions[2].startswith("stack: megatron-bridge: fused attention, no dropout, TP communication")
    assert ppsim.project(**SMALL).assumptions[2].startswith("stack: plain: ")
    assert "assumed        stack megatron-bridge: " in str(bridge)
    assert "stack megatron-bridge: fused" in ppsim.report(bridge, full=True)


def test_a_job_without_a_stack_gets_the_nearest_to_calibration_runs_and_says_so() -> None:
    dense = ppsim.project(**UNNAMED)
    named = ppsim.project(**UNNAMED, stack="megatron-bridge")
    assert dense.plan == named.plan
    assert dense.iteration_time_s == named.iteration_time_s
    basis = dense.plan.job.stack_basis
    assert re.fullmatch(r"default: smallest error on \d+ dense calibration runs on Hopper", basis)
    assert str(dense).splitlines()[2] == f"stack megatron-bridge ({basis})"
    assert dense.assumptions[2].endswith(f"({basis})")
    assert "stack megatron-bridge (default" not in str(named)
    assert "by stack" not in str(named)


def test_times_by_stack_are_those_with_the_stack_named() -> None:
    job = UNNAMED | {"vpp": 3}  # 32 layers on 6 stages: stacks have other layers per stage
    made = ppsim.project(**job)
    times = made.summary.by_stack_s
    assert list(times) == ["megatron-bridge", "plain", "torchtitan"]
    assert list(times.values()) == sorted(times.values())
    assert f"by stack: megatron-bridge {seconds(times['megatron-bridge'])}, plain " in str(made)
    for name, value in times.items():
        assert value == ppsim.project(**job, stack=name).iteration_time_s, name
    assert made.summarise(with_advice=False).by_stack_s == {}
    assert made.summary.to_json()["by_stack_s"] == times


@pytest.mark.parametrize(
    ("words", "basis"),
    [
        ({"cluster": "dgxc-h100"}, "default with cluster dgxc-h100, which was fitted to runs"),
        ({"cluster": "l40s-8", "gpus": 8, "tp": 2}, "default: no calibration runs of dense models on Ada Lovelace"),
        ({"forward_ms": 1.0, "backward_input_ms": 1.0, "backward_weight_ms": 1.0}, "default with --forward-ms"),
    ],
)
def test_measured_and_unknown_machines_stay_plain_and_say_so(words: dict[str, Any], basis: str) -> None:
    made, plain = (ppsim.project(**UNNAMED | words | more) for more in ({}, {"stack": "plain"}))
    assert made.plan == plain.plan
    assert made.plan.job.stack_basis == basis
    assert f"stack plain ({basis})" in str(made)
    assert "by stack" not in str(made)


@pytest.mark.parametrize(("fitted", "stack"), [("", "megatron-bridge"), ('fitted_on = ["runs.csv"]\n', "plain")])
def test_constants_typed_by_hand_leave_the_default_stack(tmp_path: Path, fitted: str, stack: str) -> None:
    cluster = tmp_path / "x.toml"
    text = f'format = "ppsim-cluster/1"\nname = "x"\nbase = "dgx-h100"\n[constants]\n{fitted}'
    cluster.write_text(f"{text}link_efficiency.network = 0.4\n")
    assert ppsim.project(**UNNAMED, cluster=cluster).plan.job.stack == stack


def test_a_fit_and_what_it_calibrates_have_the_stack_of_the_runs(tmp_path: Path) -> None:
    """Before: the error of the fit was that of another stack than that of projections with the fit."""
    runs = tmp_path / "runs.csv"
    header = "model,gpus,tp,pp,global_batch,metric,value"
    runs.write_text(f"{header}\nllama3-8b,16,2,2,64,iteration_s,3.4\n")
    job = {"model": "llama3-8b", "gpus": 16, "tp": 2, "pp": 2, "global_batch": 64}
    found = ppsim.fit(runs)
    before, after = ppsim.project(**job), ppsim.project(**job, cluster=found.cluster)
    assert before.plan.job.stack == after.plan.job.stack == found.constants.stack == "megatron-bridge"
    assert after.plan.job.stack_basis.endswith("which was fitted to runs: the stack of its runs")
    assert found.posterior.before[0] == pytest.approx(before.iteration_time_s / 3.4 - 1)
    assert found.posterior.after[0] == pytest.approx(after.iteration_time_s / 3.4 - 1, abs=0.005)
    ppsim.save(found, tmp_path / "mine.json")
    made = ppsim.project(**job, calibration=tmp_path / "mine.json")
    assert made.plan.job.stack == "megatron-bridge"
    assert made.iteration_time_s == pytest.approx(after.iteration_time_s)
    runs.write_text(f"{header},stack\nllama3-8b,16,2,2,64,iteration_s,3.4,plain\n")
    assert ppsim.fit(runs).constants.stack == "plain"


def test_moe_jobs_get_the_settings_of_the_newest_recipes_and_options_override_them() -> None:
    words = {"model": "deepseek-v3", "gpus": 256, "pp": 4, "vpp": 4, "ep": 64, "global_batch": 2048,
             "cluster": "gb200-nvl72", "dtype": "mxfp8"}  # fmt: skip
    job = ppsim.project(**words).plan.job
    assert job.stack == "megatron-bridge@26.08"
    assert (job.execution.fused_experts, job.execution.cuda_graphs) == (True, "full")
    assert any("--fused-experts" in one and "--cuda-graphs full" in one for one in given_assumptions(job))
    mine = ppsim.project(**words, fused_experts=False).plan.job
    assert (mine.execution.fused_experts, mine.execution.expert_rank_capacity) == (False, None)
    fast, slow = (
        ppsim.project(**words, **more).iteration_time_s for more in ({}, {"stack": "megatron-bridge@none"})
    )
    assert fast < 0.9 * slow


def test_a_recipe_gets_no_settings_of_other_recipes() -> None:
    made = ppsim.project(recipe="deepseek-v3/gb200/mxfp8@26.02")
    assert made.plan.job.stack == "megatron-bridge@none"
    assert not made.plan.job.execution.fused_experts
    assert "stack megatron-bridge: " in str(made)


def test_deepspeeds_pipeline_has_zero_1_and_reduces_behind_the_last_backward() -> None:
    """ZeRO 2 and 3 do not go with its `PipelineEngine`, which sums gradients itself."""
    one = SMALL | {"stack": "deepspeed-2021", "tp": 1}
    alone, piped = ppsim.job(**one | {"pp": 1}), ppsim.job(**one)
    assert (alone.optimizer.zero_stage, alone.overlap_grad_reduce) == (3, True)
    assert (piped.optimizer.zero_stage, piped.overlap_grad_reduce) == (1, False)
    assert not ppsim.project(**one).plan.overlap_p2p


def test_the_defaults_of_torchtitan_depend_on_the_pipeline() -> None:
    one = SMALL | {"stack": "torchtitan", "tp": 1}
    alone, piped = ppsim.job(**one | {"pp": 1}), ppsim.job(**one)
    assert (alone.optimizer.zero_stage, alone.overlap_grad_reduce, alone.fully_shard) == (3, True, True)
    assert (piped.optimizer.zero_stage, piped.overlap_grad_reduce, piped.fully_shard) == (1, False, True)


@pytest.mark.parametrize(
    ("words", "is_longer"),
    [
        ({"overlap_tp": 0.75}, False), ({"overlap_tp": "0,0.5"}, False), ({"attention": "unfused"}, True),
        ({"dropout": True}, True), ({"compute_share": 0.9}, True), ({"compute_share": "bfloat16:1.2"}, False),
        ({"rest": 0.1}, True), ({"launch_ms": 0.5}, True), ({"cross_entropy": "unfused"}, True),
    ],
)  # fmt: skip
def test_each_option_moves_the_iteration_the_way_it_must(words: dict[str, Any], is_longer: bool) -> None:
    usual, other = ppsim.project(**SMALL).iteration_time_s, ppsim.project(**SMALL, **words).iteration_time_s
    assert other != usual
    assert (other > usual) is is_longer
    if "rest" in words:
        assert other == pytest.approx(usual + 0.1)


def test_hidden_parts_scale_what_is_exposed() -> None:
    """What hides of dispatch costs compute 20 of H100's 132 cores."""
    moe = {"model": "mixtral-8x7b", "gpus": 16, "pp": 2, "ep": 8, "global_batch": 32, "stack": "plain"}
    long = {"model": "llama3-8b", "gpus": 8, "pp": 2, "cp": 4, "global_batch": 32, "context": "all-to-all"}
    for words, option, term, gain in (
        (moe, "overlap_ep", "EP", 1 - 20 / 132), (long, "overlap_cp", "CP", 1.0),
    ):  # fmt: skip
        whole, half = (
            ppsim.project(**words, **{option: part}).summary.time_breakdown_s[f"{term} communication"]
            for part in (0.0, 0.5)
        )
        assert half == pytest.approx(whole * (1 - gain / 2))


def test_constants_of_a_cluster_are_the_defaults_of_options() -> None:
    on = {"model": "llama3-8b", "gpus": 8, "pp": 2, "global_batch": 32}
    launched = load_cluster("dgx-a100").with_constants(Constants(launch_s=Constant(value=0.326e-3)))
    by_cluster = ppsim.project(**on, cluster=launched, runtime="megatron")
    assert by_cluster.costs.action_overhead_s == 0.326e-3
    assert by_cluster.costs.hop_overhead_s == by_cluster.costs.message_overhead_s == 0.326e-3
    by_option = ppsim.project(**on, cluster="dgx-a100", runtime="megatron", launch_ms=0.326)
    assert by_option.iteration_time_s == by_cluster.iteration_time_s
    shares = [
        ppsim.project(**on, cluster=name, **share).iteration_time_s
        for name, share in (("dgxc-h100", {}), ("dgx-h100", {"compute_share": 1.02, "stack": "plain"}))
    ]
    assert shares[0] == shares[1]


def test_what_runs_said_of_an_installation_is_in_measured_times_the_slowest_rank_and_what_messages_slow() -> None:
    """Of p ranks whose times vary by σ the slowest takes σ·E[max of p] longer, as long as the pipeline is full."""
    words = {"model": "llama3-8b", "gpus": 8, "pp": 8, "global_batch": 32, "schedule": "zb-1p"}
    words |= {"forward_ms": 10.0, "backward_input_ms": 10.0, "backward_weight_ms": 8.0, "transfer_ms": 0.5}
    machine = load_cluster("dgx-a100")
    none = ppsim.project(**words, cluster=machine)
    varies = ppsim.project(**words, cluster=machine.with_constants(Constants(jitter=Constant(value=0.04))))
    longer = 0.04 * expected_maximum(8) * 32 * 28e-3
    assert varies.iteration_time_s - none.iteration_time_s == pytest.approx(longer)
    assert varies.summary.time_breakdown_s["slow ranks"] == pytest.approx(longer)
    assert sum(varies.summary.time_breakdown_s.values()) == pytest.approx(varies.iteration_time_s)
    parts = {**words, "forward_ms": [10.0] * 8}  # each rank's own: the slowest is among them
    assert ppsim.project(**parts, cluster=varies.plan.job.cluster).iteration_time_s == pytest.approx(
        none.iteration_time_s
    )
    slows = ppsim.project(**words, cluster=machine.with_constants(Constants(overlap_slowdown=Constant(value=0.5))))
    assert slows.costs.overlap_slowdown == 0.5
    assert slows.iteration_time_s > none.iteration_time_s
    assert slows.summary.time_breakdown_s["slower next to P2P"] > 0.9 * (
        slows.iteration_time_s - none.iteration_time_s
    )


def test_tables_are_fitted_to_what_the_update_waits_for() -> None:
    """Zero-bubble paper, 1.5B of 24 microbatches: ZB-2p idles 4.33 % of a rank's span (table 5), its step more."""
    words = {"model": "gpt", "layers": 22, "hidden": 2304, "heads": 24, "seq_len": 1024, "gpus": 8, "pp": 8,
             "micro_batch": 6, "global_batch": 144, "cluster": "dgx-a100", "runtime": "ideal", "schedule": "zb-2p",
             "attention": "unfused", "dropout": True}  # fmt: skip
    words |= {"forward_ms": 18.522, "backward_input_ms": 18.086, "backward_weight_ms": 9.337, "transfer_ms": 0.601}
    work_s = 24 * (18.522 + 18.086 + 9.337) / 1e3
    goes_on, waits = (ppsim.project(**words, update=update) for update in ("post-validated", "synchronised"))
    assert 1 - work_s / goes_on.timeline.span_s <= 0.0433 + 1e-4
    assert goes_on.iteration_time_s == goes_on.timeline.span_s < waits.timeline.span_s
    assert waits.iteration_time_s == waits.timeline.step_time_s <= goes_on.timeline.step_time_s


def test_measured_times_of_a_rank_take_the_place_of_estimates() -> None:
    """1F1B on an ideal network: (m + p − 1)(F + B), however many of a model's stages a rank holds."""
    words = {"model": "gpt", "layers": 24, "hidden": 256, "heads": 4, "seq_len": 128, "gpus": 4, "pp": 4,
             "runtime": "ideal", "global_batch": 8}  # fmt: skip
    times = {"forward_ms": 1.0, "backward_input_ms": 1.5, "backward_weight_ms": 0.5}
    assert ppsim.project(**words, **times).iteration_time_s == pytest.approx(11 * 3e-3)
    looped = ppsim.project(**words, **times, vpp=2)
    assert looped.iteration_time_s == pytest.approx((8 + 3 / 2) * 3e-3)
    assert {type(one.change) for one in looped.summary.advice} <= {str}
    assert all("--schedule " in one.change for one in looped.summary.advice)


def test_measured_times_of_a_rank_take_the_place_of_a_profile_s_and_bytes_too() -> None:
    """1F1B on an ideal network at m = 8, p = 4: (m + p − 1)(F + B); rank 0 keeps 4 microbatches."""
    words = {"pp": 4, "microbatches": 8, "runtime": "ideal"}
    times = {"forward_ms": 1.0, "backward_input_ms": 1.5, "backward_weight_ms": 0.5}
    given, other = (ppsim.project(**words, **times, activation_memory=bytes_) for bytes_ in (2.0**30, 3.0 * 2**30))
    assert given.iteration_time_s == pytest.approx(11 * 3e-3)
    peaks = [made.timeline.memory.peak_activation_bytes for made in (given, other)]
    assert peaks[0].tolist() == [4 * 2.0**30, 3 * 2.0**30, 2 * 2.0**30, 2.0**30]
    assert peaks[1].tolist() == (3 * peaks[0]).tolist()
    looped = ppsim.project(**words, **times, activation_memory="1GiB", vpp=2)
    assert looped.costs.activation_bytes == 2.0**29
    assert looped.iteration_time_s == pytest.approx((8 + 3 / 2) * 3e-3)


def test_measured_times_of_stages_are_divided_among_more_of_them_and_summed_in_fewer() -> None:
    """Eight parts: each a stage at v 2, two a stage at v 1, and each in two halves at v 4."""
    words = {"pp": 4, "microbatches": 8, "runtime": "ideal", "backward_weight_ms": 0.5}
    times = {"forward_ms": [1.0, 2, 3, 4, 5, 6, 7, 8], "backward_input_ms": "8,7,6,5,4,3,2,1",
             "transfer_ms": "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8", "activation_memory": "1KiB,2KiB,3KiB,4KiB,1KiB,1KiB,1KiB,1KiB"}  # fmt: skip
    costs = {vpp: ppsim.project(**words, **times, vpp=vpp).costs for vpp in (1, 2, 4)}
    assert costs[2].forward_s == pytest.approx([0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008])
    assert costs[1].forward_s == pytest.approx([0.003, 0.007, 0.011, 0.015])
    assert costs[1].backward_input_s == pytest.approx([0.015, 0.011, 0.007, 0.003])
    assert costs[4].forward_s[:4] == pytest.approx([0.0005, 0.0005, 0.001, 0.001])
    assert costs[1].transfer_s == pytest.approx([0.0002, 0.0004, 0.0006, 0.0008])
    assert costs[4].transfer_s[:4] == pytest.approx([0.0001, 0.0001, 0.0002, 0.0002])
    assert costs[1].activation_bytes == [3 * 1024, 7 * 1024, 2 * 1024, 2 * 1024]
    assert costs[2].backward_weight_s == 0.00025
    slow = ppsim.project(**words, forward_ms=[1, 1, 3, 1], backward_input_ms=1.0)
    assert (
        slow.timeline.step_time_s
        > ppsim.project(**words, forward_ms=1.5, backward_input_ms=1.0).timeline.step_time_s
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"forward_ms": "1,2,3"}, "--forward-ms has 3 values for 4 stages: give 4 (one per stage)"),
        (
            {"forward_ms": "1,x"},
            "--forward-ms is '1,x': give milliseconds as 12.5, or one per stage as 10,12,12,14",
        ),
        ({"forward_ms": "1,-2"}, "--forward-ms must be 0 or more: got -2"),
        ({"transfer_ms": "1,2,3"}, "--transfer-ms has 3 values for 4 stages"),
        ({"activation_memory": "1GiB,2"}, "the size '2' has no unit: is 2GiB meant?"),
    ],
)
def test_measured_times_that_no_stages_have_are_refused(words: dict[str, Any], sentence: str) -> None:
    times = {"forward_ms": 1.0, "backward_input_ms": 1.0, "backward_weight_ms": 1.0}
    with pytest.raises(ConfigError) as refused:
        ppsim.project(pp=4, microbatches=4, **times | words)
    assert sentence in str(refused.value)


def test_a_hop_of_a_profile_is_one_number() -> None:
    with pytest.raises(ConfigError, match="one behind each stage needs --forward-ms too"):
        ppsim.project(pp=4, microbatches=4, transfer_ms="1,2,3,4")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            {"activation_memory": "2GiB"},
            "--activation-memory is of a rank that was measured: it needs --forward-ms",
        ),
        (
            {"overlap_tp": "0.5,2"},
            "--overlap-tp is '0.5,2': give a part from 0 to 1, or FORWARD,BACKWARD as 0.75,0.5",
        ),
        ({"overlap_ep": 2.0}, "--overlap-ep is a part from 0 to 1: got 2"),
        ({"compute_share": "x"}, "--compute-scale is 'x': give a number, or one a dtype"),
        ({"rest": -1.0}, "--extra-step-time must be 0 or more seconds: got -1"),
        ({"launch_ms": -1.0}, "--launch-ms must be 0 or more: got -1"),
        ({"forward_ms": 1.0}, "--forward-ms needs --backward-input-ms and --backward-weight-ms too"),
        ({"hidden": 64}, "--hidden is for --model gpt: llama3-8b has its own"),
        ({"stack": "nemo"}, "'nemo'"),
        ({"model": "gpt", "hidden": 64}, "--model gpt needs --layers, --heads"),
        ({"model": "gpt", "layers": 4, "hidden": 64, "heads": 5}, "--heads must divide --hidden: got 5 with 64"),
    ],
)
def test_what_has_no_meaning_is_refused_in_a_sentence(words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ppsim.project(**SMALL | words)
    assert sentence in str(refused.value)


def test_a_search_keeps_what_it_was_asked_in_its_command() -> None:
    asked = {
        "stack": "megatron-lm-2021",
        "overlap_tp": "0,0.5",
        "compute_share": "0.9",
        "launch_ms": 0.25,
        "rest": 0.1,
    }
    found = ppsim.tune(
        model="gpt", layers=8, hidden=512, heads=8, vocab=1000, seq_len=512, gpus=2, global_batch=16, tp=[2], pp=[1],
        micro_batch=[8], **asked,
    )  # fmt: skip
    line = found.commands[0] if hasattr(found, "commands") else str(found)
    best = found.best[0]
    words = {"model": "gpt", "layers": 8, "hidden": 512, "heads": 8, "vocab": 1000, "seq_len": 512, "gpus": 2,
             "global_batch": 16, "tp": 2, "pp": 1, "micro_batch": 8, "schedule": best.candidate.schedule,
             "split": best.candidate.split, "recompute": best.candidate.recompute, "vpp": 1}  # fmt: skip
    assert ppsim.project(**words, **asked).iteration_time_s == pytest.approx(best.iteration_time_s, rel=1e-12)
    for part in (
        "--overlap-tp 0,0.5",
        "--launch-ms 0.25",
        "--extra-step-time 0.1",
        "--hidden 512",
        "--stack megatron-lm-2021",
    ):
        assert part in " ".join(line.split())


def test_gradients_of_16_bits_take_half_the_bytes_of_a_reduction() -> None:
    """As Megatron-Bridge's recipes have them; float32's stay, float16's are so anyway."""
    whole, half = (ppsim.job(**SMALL, grad_reduce_in_bf16=mode) for mode in (False, True))
    assert (whole.optimizer.bytes_of_gradient, half.optimizer.bytes_of_gradient) == (4, 2)
    assert ppsim.job(**UNNAMED, stack="megatron-bridge").optimizer.bytes_of_gradient == 2
    assert ppsim.job(**SMALL, dtype="float32", grad_reduce_in_bf16=True).optimizer.bytes_of_gradient == 4
    wide: dict[str, Any] = SMALL | {"gpus": 256, "overlap_dp": False}
    late = [ppsim.project(**wide, grad_reduce_in_bf16=mode).iteration_time_s for mode in (False, True)]
    assert late[1] < late[0]


def test_deterministic_mode_takes_longer_and_fuses_no_cross_entropy() -> None:
    """Without a word more than a switch less: Megatron-LM refuses both."""
    usual, one_order = (
        ppsim.project(**SMALL, cross_entropy="unfused", deterministic_mode=mode).iteration_time_s
        for mode in (False, True)
    )
    assert 1.02 * usual < one_order < 1.3 * usual
    with pytest.raises(ConfigError, match="give --cross-entropy unfused too"):
        ppsim.job(**SMALL, deterministic_mode=True)


def test_a_compiled_cross_entropy_takes_longer_than_a_fused_one() -> None:
    fused, compiled = (
        ppsim.project(**SMALL, cross_entropy=kind).iteration_time_s for kind in ("fused", "compiled")
    )
    assert fused < compiled < 1.1 * fused


def test_megatron_of_2022_hides_half_of_what_its_backward_sums() -> None:
    """Table 4 of Korthikanti et al. 2022: a layer of 22B forward in 7.7 ms, backward in 11.9; 7.2 and 11.8 with
    sequence parallelism."""
    words: dict[str, Any] = {
        "model": "gpt", "layers": 48, "hidden": 6144, "heads": 64, "vocab": 51200, "seq_len": 2048, "dtype": "float16",
        "cluster": "dgx-a100", "gpus": 8, "tp": 8, "pp": 1, "micro_batch": 4, "global_batch": 4,
        "stack": "megatron-lm-2022",
    }  # fmt: skip
    for divided, forward_ms, backward_ms in ((False, 7.7, 11.9), (True, 7.2, 11.8)):
        [layer] = ppsim.job(**words, sequence_parallel=divided).costs.layers().values()
        assert 1e3 * layer.forward.total_s == pytest.approx(forward_ms, rel=0.035)
        assert 1e3 * layer.backward.total_s == pytest.approx(backward_ms, rel=0.035)


def test_automodel_has_fused_kernels_the_dispatcher_of_its_recipes_and_is_no_default() -> None:
    """TransformerEngine fuses what TorchTitan's blocks compute one by one."""
    words: dict[str, Any] = {"model": "gpt-oss-20b", "gpus": 8, "ep": 8, "pp": 1, "global_batch": 64}
    fused, eager = (
        ppsim.project(**words, stack=stack, moe_dispatcher="deepep", zero=2).summary.time_breakdown_s
        for stack in ("automodel", "torchtitan")
    )
    assert fused["memory-bound kernels"] < 0.9 * eager["memory-bound kernels"]
    for cluster, dispatcher in (("dgx-h100", "deepep"), ("gb200-nvl72", "hybridep")):
        job = ppsim.job(**words, cluster=cluster, stack="automodel")
        assert (job.execution.moe_dispatcher, job.execution.compile, job.fully_shard) == (dispatcher, None, True)
        assert "automodel" not in current_stacks(job.cluster.device.generation)


@pytest.mark.parametrize("options", [{"lora": "16"}, {"freeze": "embedding"}])
def test_an_error_about_an_option_of_the_stack_says_how_to_turn_it_off(options: dict[str, str]) -> None:
    with pytest.raises(
        ConfigError, match=r"\(--fully-shard is set by --stack automodel: --no-fully-shard turns it off\)$"
    ):
        ppsim.job(**UNNAMED, **options, stack="automodel")
    with pytest.raises(ConfigError, match=r"leave out one of them$"):
        ppsim.job(**SMALL, **options, fully_shard=True)
    assert not ppsim.job(**UNNAMED, **options, stack="automodel", fully_shard=False).fully_shard
