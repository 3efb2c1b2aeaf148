"""A job refuses options that contradict each other, and derives its sizes from those that remain."""

from dataclasses import MISSING, fields, replace
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.costs.job import Job
from ppsim.model.offloading import OffloadRules
from ppsim.model.optimizer import Optimizer
from ppsim.model.pipeline_stages import StagePlan
from tests.defaults import field_defaults
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


def test_a_job_without_further_options_has_these() -> None:
    assert field_defaults(Job) == {
        "micro_batch": 1, "overlap_grad_reduce": True, "overlap_param_gather": True, "update": "synchronised", "rest_s": 0.0,
        "allocator_slack": 1.0, "vocab_multiple": 128, "scatter_gather": False, "offload": 0.0, "cuda_graph_reuse": True,
        "fully_shard": False, "num_layers_at_start_in_bf16": 0, "num_layers_at_end_in_bf16": 0, "text_only": False,
        "gradient_accumulation_fusion": True, "stack": "plain", "gpus_assumed": 0,
    }  # fmt: skip
