"""Declared options agree with the fields that they set, and with the settings of one trainer that help omits."""

from functools import reduce

import pytest

from ppsim.model.recompute import MODULES
from ppsim.projection.changes import PLAN_OPTIONS
from ppsim.projection.plan import Plan
from tests.projection.jobs import job

OPTIONS = {name: one.option for name, one in PLAN_OPTIONS.items()}
CHOSEN = {"cluster", "sequence_parallel", "cross_entropy", "moe_dispatcher"}
"""Options whose setting in the job of a test is not the default."""


@pytest.mark.parametrize(
    "name",
    sorted(name for name, one in OPTIONS.items() if one.field and one.default is not None and name not in CHOSEN),
)
def test_the_default_of_an_option_is_that_of_its_field(name: str) -> None:
    option = OPTIONS[name]
    plan = Plan(pp=2, job=job(pp=2))
    if option.field is not None and hasattr(plan, option.field.split(".")[0]):
        assert reduce(getattr, option.field.split("."), plan) == option.default
        assert type(reduce(getattr, option.field.split("."), plan)) is type(option.default)


def test_help_omits_settings_of_single_trainers() -> None:
    assert {name for name, one in OPTIONS.items() if one.is_hidden} == {
        # Megatron-LM's optimizer, gradients and weights
        "gradient_accumulation_fusion", "wgrad_deferral_limit", "weight_cache", "layer_wise", "overlap_grad_reduce",
        "use_layer_wise_param_layout", "outer_dp_sharding_strategy", "overlap_cpu_optimizer_d2h_h2d", "bucket_size",
        "overlap_param_gather", "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16", "scatter_gather",
        "bf16_master_weights_and_grads",
        # layers and experts
        "mtp_use_repeated_layer", "cuda_graph_reuse", "moe_flex_dispatcher_num_sms", "activation_func_fp8_input_store",
        "moe_use_legacy_grouped_gemm", "moe_permute_fusion", "moe_expert_rank_capacity_factor", "moe_paged_stash",
        "min_offloaded_tensor_size", "activation_offload_fraction", "max_inflight_offloads",
        "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "document_length",
        "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
    }  # fmt: skip


def test_a_boolean_can_be_switched_off_unless_it_only_adds() -> None:
    booleans = {name for name, one in PLAN_OPTIONS.items() if bool in one.kinds}
    assert booleans - {name for name, one in OPTIONS.items() if one.has_no} == {
        "mtp_use_repeated_layer", "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
    }  # fmt: skip
    assert {name for name, one in OPTIONS.items() if one.has_no} <= booleans


def test_numbers_of_layers_and_buckets_have_a_least() -> None:
    assert {name: one.least for name, one in OPTIONS.items() if one.least is not None} == {
        "num_layers_at_start_in_bf16": 0, "num_layers_at_end_in_bf16": 0, "mtp_num_layers": 0, "bucket_size": 1,
        "document_length": 1,
        "decoder_first_pipeline_num_layers": 0, "decoder_last_pipeline_num_layers": 0,
    }  # fmt: skip


def test_searches_have_ten_seconds_and_seed_0() -> None:
    assert (OPTIONS["search_time"].default, OPTIONS["seed"].default) == (10.0, 0)
    assert (OPTIONS["gradient_accumulation_steps"].default, OPTIONS["runtime"].default) == (1, "torch")
    assert all(name in OPTIONS["recompute"].help for name in MODULES)
