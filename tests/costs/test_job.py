"""A job refuses options that contradict each other, and derives its sizes from those that remain."""

from dataclasses import MISSING, fields, replace
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.costs.job import Job
from ppsim.costs.profile import load_profile
from ppsim.model.execution import Execution
from ppsim.model.offloading import OffloadRules
from ppsim.model.optimizer import Optimizer
from ppsim.model.pipeline_stages import StagePlan
from tests.projection.jobs import job


@pytest.mark.parametrize(
    "fields",
    [
        {"micro_batch": 0},
        {"global_batch": 0},
        {"global_batch": 9, "dp": 4},
        {"sequence_length": 0},
        {"sequence_length": 4095, "cp": 2},
        {"rest_s": -1e-9},
        {"rest_s": float("inf")},
        {"launch_s": -1e-9},
        {"launch_s": float("inf")},
        {"wgrad_deferral_limit": -1},
        {"offload": -0.1},
        {"offload": 1.1},
        {"offload": 0.5, "offload_modules": "moe_act"},
        {"num_layers_at_start_in_bf16": -1},
        {"num_layers_at_end_in_bf16": -1},
        {"text_only": True, "image_tokens": "2x576"},
        {"lora": "8", "fully_shard": True, "dp": 2},
        {"fully_shard": True, "optimizer": Optimizer(exp_avg_dtype="bfloat16"), "dp": 2},
    ],
)
def test_options_out_of_range_or_against_each_other_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        job(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"micro_batch": 1, "global_batch": 1},
        {"sequence_length": 1},
        {"rest_s": 0.0, "launch_s": 0.0, "wgrad_deferral_limit": 0},
        {"offload": 1.0},
    ],
)
def test_the_ends_of_a_range_are_allowed(fields: dict[str, Any]) -> None:
    assert isinstance(job(**fields), Job)


def test_the_nearest_batches_are_multiples_of_micro_batch_and_dp() -> None:
    with pytest.raises(ConfigError, match=r"2 · 4: got 20 \(nearest: 16 or 24\)"):
        job(dp=4, micro_batch=2, global_batch=20)
    with pytest.raises(ConfigError, match=r"got 3 \(nearest: 8\)"):
        job(dp=4, micro_batch=2, global_batch=3)


def test_a_step_has_its_microbatches_and_tokens() -> None:
    one = job(tp=2, cp=2, dp=4, pp=2, micro_batch=2, global_batch=48)
    assert (one.num_microbatches, one.tokens_per_step) == (6, 48 * 4096)


@pytest.mark.parametrize(
    ("pp", "limit", "deferred"), [(2, None, 0), (2, 0, 8), (2, 3, 3), (2, 8, 8), (2, 9, 8), (1, 0, 0), (1, 3, 0)]
)
def test_weight_gradients_of_the_head_wait_up_to_a_limit_of_microbatches(
    pp: int, limit: int | None, deferred: int
) -> None:
    assert job(pp=pp, global_batch=8, wgrad_deferral_limit=limit).num_deferred == deferred


@pytest.mark.parametrize(("dtype", "wide"), [("float8", [0, 30, 31]), ("bfloat16", [])])
def test_layers_at_the_ends_have_16_bits_if_others_have_fewer(dtype: str, wide: list[int]) -> None:
    found = job(dtype=dtype, num_layers_at_start_in_bf16=1, num_layers_at_end_in_bf16=2)
    assert [number for number, layer in enumerate(found.model.layers) if layer.in_16_bits] == wide


def test_only_the_trained_weights_of_a_fine_tuning_are_trained() -> None:
    assert all(layer.training is None for layer in job().model.layers)
    assert all(layer.training is not None for layer in job(lora="8").model.layers)


@pytest.mark.parametrize(
    ("zero_stage", "cache", "copies"), [(1, None, "all"), (3, None, 0), (1, "none", 0), (3, "rowwise", 1), (1, "rowwise", 1)]
)  # fmt: skip
def test_narrow_copies_of_weights_are_held_by_the_cache_or_the_zero_stage(
    zero_stage: int, cache: Any, copies: int | str
) -> None:
    found = job(dtype="float8", dp=2, weight_cache=cache, optimizer=Optimizer(zero_stage=zero_stage))
    narrow = found.settings.narrow
    assert narrow is not None
    assert narrow.copies == (found.place.operand_copies if copies == "all" else copies)
    assert job(dp=2).settings.narrow is None


def test_layers_may_be_recomputed_as_in_any_stage_plan_or_as_the_job_says() -> None:
    usual = job(pp=2, recompute="core_attn")
    assert usual.recompute_options_of_layers == ["core_attn"]
    plans = (StagePlan("full"), StagePlan("mlp"), StagePlan("full"))
    assert replace(usual, stage_plans=plans).recompute_options_of_layers == ["full", "mlp"]


def test_a_job_without_options_has_the_defaults_of_the_commands() -> None:
    """As `ppsim project --help` states them: one sequence, overlapped collectives, nothing offloaded or frozen."""
    assert {one.name: one.default for one in fields(Job) if one.default is not MISSING} == {
        "micro_batch": 1, "sequence_length": None, "document_length": None, "profile": None, "bucket_size": None, "overlap_grad_reduce": True,
        "overlap_param_gather": True, "update": "synchronised", "rest_s": 0.0, "allocator_slack": 1.0,
        "vocab_multiple": 128, "scatter_gather": False, "offload": 0.0, "offload_modules": "", "stage_plans": (),
        "cuda_graph_reuse": True, "launch_s": None, "fully_shard": False, "weight_cache": None,
        "num_layers_at_start_in_bf16": 0, "num_layers_at_end_in_bf16": 0, "lora": "", "freeze": "",
        "image_tokens": "", "text_only": False, "gradient_accumulation_fusion": True, "wgrad_deferral_limit": None,
        "stack": "plain", "stack_basis": "", "gpus_assumed": 0, "assumed": (), "ignored_memory_options": (),
    }  # fmt: skip


def test_attention_stays_inside_packed_documents() -> None:
    whole, packed = (job("gpt-oss-20b", document_length=one).model.layers for one in (None, 512))
    assert [layer.attention.keys_per_query(4096) for layer in packed[:2]] == [
        whole[0].attention.keys_per_query(4096), 256,
    ]  # fmt: skip
    hybrid = job("nemotron-h-8b", document_length=512).model.layers
    seen = {layer.attention.keys_per_query(4096) for layer in hybrid if layer.has_mixer and not layer.is_recurrent}
    assert seen == {256}
    with pytest.raises(ConfigError, match="--document-length is known for multi-head"):
        job("deepseek-v3", document_length=512)


def test_rules_of_offloading_go_with_its_modules_alone() -> None:
    rules = OffloadRules(max_inflight_offloads=2)
    assert job(offload_modules="core_attn", offload_rules=rules).offload_rules == rules
    for offloads in ({}, {"offload": 0.5}):
        with pytest.raises(ConfigError):
            job(offload_rules=rules, **offloads)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"micro_batch": 3, "global_batch": 6, "sequence_length": 256, "vocab_multiple": 7, "allocator_slack": 1.25, "cuda_graph_reuse": False}, {
            "micro_batch": 3, "sequence_length": 256, "vocab_multiple": 7, "allocator_slack": 1.25, "cuda_graph_reuse": False,
            "fully_shard": False, "deferred_head": 0, "graphed_microbatches": 1, "workspace_bytes": 3 * 2**25}),
        ({"pp": 2, "global_batch": 24}, {"graphed_microbatches": 24}),
        ({"pp": 1, "global_batch": 24}, {"graphed_microbatches": 1}),
        ({"dp": 2, "fully_shard": True}, {"fully_shard": True}),
        ({"dp": 1, "fully_shard": True}, {"fully_shard": False}),
        ({"execution": Execution(compile=False)}, {"workspace_bytes": 2 * 2**25}),
        ({"model": "mixtral-8x7b"}, {"workspace_bytes": 7 * 2**25}),
    ],
)  # fmt: skip
def test_settings_of_memory_are_those_of_the_job(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    """cuBLAS workspaces of 32 MiB: two of torch, one of TransformerEngine, four for its experts."""
    made = job(fields.pop("model", "llama3-8b"), **{name: fields[name] for name in fields if name != "execution"})
    settings = replace(made, execution=fields.get("execution", made.execution)).settings
    assert {name: getattr(settings, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("fields", "placeholders", "norm_in_gemm"),
    [
        ({}, True, True),
        ({"fully_shard": True, "dp": 2}, False, True),
        ({"profile": load_profile("cpu-gpt-mini")}, True, False),
    ],
)
def test_torchs_layers_have_no_placeholders_or_fused_norms(
    fields: dict[str, Any], *, placeholders: bool, norm_in_gemm: bool
) -> None:
    execution = job(**fields).settings.execution
    assert (execution.gradient_placeholders, execution.norm_in_gemm) == (placeholders, norm_in_gemm)


def test_sizes_up_to_the_sequence_are_allowed() -> None:
    assert job(sequence_length=512, document_length=512).document_length == 512
    with pytest.raises(ConfigError, match="--document-length 513 exceeds the sequence of 512 tokens"):
        job(sequence_length=512, document_length=513)
    assert job("qwen3-vl-8b", sequence_length=512, image_tokens="512").model.encoders[0].tokens == 512
    with pytest.raises(ConfigError, match="images and audio have 513 tokens, more than the sequence of 512"):
        job("qwen3-vl-8b", sequence_length=512, image_tokens="513")


def test_tensor_parallel_ranks_are_needed_for_sequence_parallelism() -> None:
    alone, both = job(), job(tp=2)
    assert not replace(alone, execution=Execution(sequence_parallel=True)).execution.sequence_parallel
    assert replace(both, execution=Execution(sequence_parallel=True)).execution.sequence_parallel


def test_only_torchs_own_optimizer_keeps_float32_moments() -> None:
    narrow = Optimizer(exp_avg_dtype="bfloat16")
    assert job(optimizer=narrow).optimizer == narrow
    both = replace(narrow, master_weights_in_bf16=True)
    assert job(fully_shard=True, dp=2, optimizer=both).optimizer == both
