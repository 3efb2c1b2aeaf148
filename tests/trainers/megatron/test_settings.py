"""The table of Megatron-LM's arguments: each row is needed to read and to write."""

import contextlib
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.base.option_declarations import given_options
from ppsim.model.registry import find_model
from ppsim.trainers.arguments import Arguments
from ppsim.trainers.megatron import settings
from ppsim.trainers.megatron.settings import SETTINGS, read_settings, write_settings
from tests.trainers.test_write_config import OPTIONS_OF_MEGATRON

EXAMPLES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *((options, {"bf16": True} | arguments) for options, arguments in OPTIONS_OF_MEGATRON),
    ({"micro_batch": 2, "global_batch": 64, "seq_len": 4096, "group_size": 4}, {
        "micro_batch_size": 2, "global_batch_size": 64, "seq_length": 4096, "microbatch_group_size_per_vp_stage": 4,
    }),
    ({"pp": 2} | (split := {"decoder_last_pipeline_num_layers": 3, "account_for_embedding_in_pipeline_split": True,
      "account_for_loss_in_pipeline_split": True}), {"pipeline_model_parallel_size": 2} | split),
    ({"pp": 2, "vpp": 2, "overlap_p2p": False}, {
        "pipeline_model_parallel_size": 2, "num_virtual_stages_per_pipeline_rank": 2, "overlap_p2p_comm": False,
    }),
    ({"optimizer": "muon", "layer_wise": True, "use_layer_wise_param_layout": False}, {
        "optimizer": "muon", "use_distributed_optimizer": True, "use_layer_wise_param_layout": False,
    }),
    ({"gradient_accumulation_fusion": False, "activation_func_fp8_input_store": True}, {
        "gradient_accumulation_fusion": False, "activation_func_fp8_input_store": True,
    }),
    ({"zero": 1, "overlap_grad_reduce": True, "overlap_param_gather": True}, {
        "use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True,
    }),
    ({"zero": 3, "outer_dp_sharding_strategy": "optim"}, {
        "use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params", "outer_dp_sharding_strategy": "optim",
    }),
    ({"schedule": "zbv"}, {"patch_primus_pipeline": True, "pp_algorithm": "zbv-formatted"}),
    ({"recompute": "full@0,2"}, {"recompute_granularity": "full", "recompute_layer_ids": "0,2"}),
    ({}, {"world_size": 8, "moe_router_force_load_balancing": True, "scatter_gather_tensors_in_pipeline": False}),
]  # fmt: skip
ONLY_READ = {("gpus",), ("runtime",), ("scatter_gather",), ("expert_imbalance",)}
"""ppsim writes the number of GPUs in the launcher's options, and models the others without advising them."""


def read() -> list[dict[str, Any]]:
    return [
        given_options(read_settings(Arguments({"num_experts": 8} | arguments, "F"), None))
        for _, arguments in EXAMPLES
    ]


def written() -> list[dict[str, Any]]:
    return [write_settings(options, of_primus=True) for options, _ in EXAMPLES]


BEFORE = (read(), written())


@pytest.mark.parametrize("row", range(len(SETTINGS)), ids=lambda row: "+".join(SETTINGS[row].options))
def test_without_a_row_of_the_table_its_options_are_neither_read_nor_written(
    monkeypatch: pytest.MonkeyPatch, row: int
) -> None:
    monkeypatch.setattr(settings, "SETTINGS", SETTINGS[:row] + SETTINGS[row + 1 :])
    with contextlib.suppress(KeyError):  # a later row needs the option
        assert read() != BEFORE[0]
    assert (written() == BEFORE[1]) is (SETTINGS[row].options in ONLY_READ)


def test_settings_of_experts_are_neither_read_nor_written_for_dense_models() -> None:
    experts = {"expert_tensor_parallel_size", "use_transformer_engine_op_fuser"}
    for options, arguments in EXAMPLES:
        whole, dense = (write_settings(options, has_experts=has_experts) for has_experts in (True, False))
        of_experts = {name for name in whole if name.startswith("moe_")} | (experts & whole.keys())
        assert whole.keys() - dense.keys() == of_experts
        read = given_options(read_settings(Arguments({"num_experts": 0} | arguments, "F"), None))
        assert not [name for name in read if name.startswith("moe_") or name in ("etp", "fused_experts")]


@pytest.mark.parametrize(
    ("arguments", "option", "value"),
    [
        ({}, "cross_entropy", "unfused"),
        ({"cross_entropy_loss_fusion": False}, "cross_entropy", "unfused"),
        ({"cross_entropy_loss_fusion": True}, "cross_entropy", "compiled"),
        ({"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "native"}, "cross_entropy", "compiled"),
        ({"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"}, "cross_entropy", "fused"),
        ({}, "order", None),
        ({"use_tp_pp_dp_mapping": False}, "order", None),
        ({"use_tp_pp_dp_mapping": True}, "order", "tp-cp-ep-pp-dp"),
        ({"scatter_gather_tensors_in_pipeline": False}, "scatter_gather", False),
    ],
)
def test_the_last_case_whose_arguments_all_have_their_values_is_read(
    arguments: dict[str, Any], option: str, value: object
) -> None:
    assert read_settings(Arguments(arguments, "F"), None).get(option) == value


@pytest.mark.parametrize(
    ("arguments", "room", "buffer"),
    [
        ({}, None, None),
        ({"moe_paged_stash_buffer_size_factor_cuda": 1.5}, None, None),
        ({"moe_paged_stash": True}, None, 1.1),
        (
            {"moe_paged_stash": True, "moe_paged_stash_buffer_size_factor_cuda": 1.5, "moe_expert_rank_capacity_factor": 2.0},
            2.0,
            1.5,
        ),
    ],
)  # fmt: skip
def test_a_stash_has_its_buffer_only_where_it_is_on(
    arguments: dict[str, Any], room: float | None, buffer: float | None
) -> None:
    given = Arguments({"num_experts": 8, "bf16": True} | arguments, "F")
    found = read_settings(given, None)
    assert (found.get("moe_expert_rank_capacity_factor"), found.get("moe_paged_stash")) == (room, buffer)


def read_one(arguments: dict[str, Any], *, is_partial: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Return the options that differ from a file without arguments, and the further notes."""
    usual, given = (
        Arguments({"num_experts": 8, **values}, "F", is_partial=is_partial) for values in ({}, arguments)
    )
    before, after = (read_settings(values, None) for values in (usual, given))
    return {name: after[name] for name in after if after[name] != before.get(name)}, [
        note for note in given.assumed if note not in usual.assumed
    ]


FULL = {"recompute_granularity": "full"}
SELECTIVE = {"recompute_granularity": "selective"}
FINE = {"fine_grained_activation_offloading": True}
AWARE = {"use_precision_aware_optimizer": True}
IN_16 = "what Megatron-LM has in float32 is taken as bfloat16"
FP8 = {"bf16": True, "fp8": "hybrid"}
READ: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({"tensor_model_parallel_size": 3, "context_parallel_size": 5, "expert_model_parallel_size": 7}, {"tp": 3, "cp": 5, "ep": 7}, []),
    ({"pipeline_model_parallel_size": 6, "micro_batch_size": 4, "seq_length": 96, "ddp_bucket_size": 11}, {
        "pp": 6, "micro_batch": 4, "seq_len": 96, "bucket_size": 11,
    }, []),
    ({"global_batch_size": 48}, {"global_batch": 48, "microbatches": None}, []),
    ({"world_size": 24}, {"gpus": 24}, []),
    ({"nproc_per_node": 8, "nnodes": 3}, {"gpus": 24}, []),
    ({"tensor_model_parallel_size": 4, "expert_tensor_parallel_size": 2}, {"tp": 4, "etp": 2}, []),
    ({"virtual_pipeline_model_parallel_size": 3}, {"vpp": 3}, []),
    ({"num_virtual_stages_per_pipeline_rank": 5, "virtual_pipeline_model_parallel_size": 3}, {"vpp": 5}, []),
    ({"pipeline_model_parallel_layout": "Et|tL"}, {"split": "Et|tL"}, []),
    ({"pipeline_model_parallel_layout": [["E", "t"], ["t", "L"]]}, {"split": "Et|tL"}, []),
    ({"overlap_p2p_comm": True}, {}, []),
    ({"overlap_p2p_comm": False}, {"overlap_p2p": False}, []),
    ({"deterministic_mode": True}, {"deterministic_mode": True}, []),
    ({"gradient_accumulation_fusion": False}, {"gradient_accumulation_fusion": False}, []),
    # schedules of Primus
    ({"patch_primus_pipeline": True}, {}, []),
    ({"patch_primus_pipeline": True, "pp_algorithm": "zero-bubble", "virtual_pipeline_model_parallel_size": 3, "overlap_p2p_comm": False}, {
        "schedule": "zb-h1", "runtime": "torch"}, []),
    *(({"patch_primus_pipeline": True, "pp_algorithm": name}, {"schedule": ours, "runtime": "torch"}, []) for name, ours in (
        ("zero-bubble-heuristic", "zb-auto"), ("zbv-formatted", "zbv"), ("v-half", "v-half"), ("v-min", "v-min"))),
    ({"patch_zero_bubble": True}, {"schedule": "zb-auto", "runtime": "torch"}, []),
    ({"patch_zero_bubble": True, "enable_zero_bubble": False}, {}, []),
    ({"patch_zero_bubble": True, "zero_bubble_v_schedule": True}, {"schedule": "v-half", "runtime": "torch"}, []),
    ({"patch_zero_bubble": True, "zero_bubble_v_schedule": True, "zero_bubble_v_schedule_mem_setup": "min"}, {
        "schedule": "v-min", "runtime": "torch"}, []),
    ({"patch_zero_bubble": True, "zero_bubble_v_schedule": True, "zero_bubble_v_schedule_mem_setup": "zb"}, {
        "schedule": "zbv", "runtime": "torch"}, []),
    ({"patch_zero_bubble": True, "enable_1f1b_v": True}, {"schedule": "1f1b-v", "runtime": "torch"}, []),
    ({"enable_1f1b_v": True, "zero_bubble_v_schedule": True}, {}, []),
    # recomputation
    (FULL, {"recompute": "full"}, []),
    (FULL | {"recompute_method": "block"}, {"recompute": "full"}, []),
    (FULL | {"recompute_num_layers": 3}, {"recompute": "full"}, []),
    (FULL | {"recompute_method": "block", "recompute_num_layers": 3}, {"recompute": "block/3"}, []),
    (FULL | {"recompute_method": "uniform", "recompute_num_layers": 3}, {"recompute": "uniform/3"}, []),
    (FULL | {"recompute_method": "uniform", "recompute_num_layers": 1}, {"recompute": "full"}, []),
    (SELECTIVE, {"recompute": "core_attn"}, []),
    (SELECTIVE | {"recompute_modules": ["mlp", "layernorm"]}, {"recompute": "layernorm+mlp"}, []),
    (SELECTIVE | {"recompute_modules": "mlp frob"}, {"recompute": "mlp"}, ["not recomputed, since unknown: frob"]),
    (FULL | {"recompute_layer_ids": "4,0"}, {"recompute": "full@0,4"}, []),
    (FULL | {"recompute_layer_ids": [4, 3], "num_layers": 4}, {"recompute": "full@3"}, [
        "layers for further tokens (4) are taken not to be recomputed"]),
    (FULL | {"recompute_layer_ids": "5 4", "num_layers": 4}, {"recompute": "none"}, [
        "layers for further tokens (5, 4) are taken not to be recomputed"]),
    (SELECTIVE | {"recompute_layer_ids": "0"}, {"recompute": "core_attn"}, []),
    # number formats
    ({"bf16": True}, {"dtype": "bfloat16"}, []),
    ({"fp16": True}, {"dtype": "float16"}, []),
    (FP8, {"dtype": "float8"}, []),
    (FP8 | {"fp8_recipe": "delayed"}, {"dtype": "float8"}, []),
    (FP8 | {"fp8_recipe": "mxfp8"}, {"dtype": "mxfp8"}, []),
    (FP8 | {"fp8_recipe": "blockwise"}, {"dtype": "float8-block"}, []),
    ({"fp8": "hybrid"}, {"dtype": "float8"}, [f"float8 without bf16: {IN_16}"]),
    ({"fp8": "hybrid", "fp16": True}, {"dtype": "float8"}, []),
    ({"bf16": True, "fp4": "e2m1"}, {"dtype": "nvfp4"}, []),
    ({"bf16": True, "fp4": "e2m1", "fp4_recipe": "mxfp4"}, {"dtype": "mxfp4"}, []),
    ({"bf16": True, "fp4": "mxfp4"}, {"dtype": "mxfp4"}, []),
    ({"fp4": "e2m1"}, {"dtype": "nvfp4"}, [f"nvfp4 without bf16: {IN_16}"]),
    # sharding and the optimizer
    ({"use_distributed_optimizer": True}, {"zero": 1, "overlap_param_gather": False}, []),
    ({"optimizer": "sgd"}, {}, ["optimizer sgd is not known: taken as adam"]),
    ({"optimizer": "muon"}, {"optimizer": "muon"}, []),
    ({"optimizer": "dist_muon"}, {"zero": 1, "optimizer": "muon", "layer_wise": True, "overlap_param_gather": False}, []),
    ({"optimizer": "dist_muon", "use_layer_wise_param_layout": False}, {
        "zero": 1, "optimizer": "muon", "layer_wise": True, "overlap_param_gather": False, "use_layer_wise_param_layout": False,
    }, []),
    ({"optimizer": "muon", "use_layer_wise_param_layout": False}, {"optimizer": "muon"}, []),
    ({"use_megatron_fsdp": True, "use_distributed_optimizer": True}, {"grad_reduce_in_bf16": True}, []),
    ({"use_custom_fsdp": True, "data_parallel_sharding_strategy": "optim"}, {"zero": 1, "overlap_param_gather": False}, []),
    ({"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads"}, {
        "zero": 2, "grad_reduce_in_bf16": True, "overlap_grad_reduce": True, "overlap_param_gather": False}, []),
    ({"use_custom_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params", "outer_dp_sharding_strategy": "optim"}, {
        "zero": 3, "overlap_grad_reduce": True, "overlap_param_gather": True, "outer_dp_sharding_strategy": "optim"}, []),
    ({"data_parallel_sharding_strategy": "optim_grads", "outer_dp_sharding_strategy": "optim"}, {}, []),
    ({"use_torch_fsdp2": True}, {"zero": 3, "fully_shard": True, "overlap_grad_reduce": True, "overlap_param_gather": True}, []),
    ({"use_distributed_optimizer": True, "num_distributed_optimizer_instances": 2}, {
        "zero": 1, "overlap_param_gather": False, "num_distributed_optimizer_instances": 2}, []),
    ({"use_distributed_optimizer": True, "num_distributed_optimizer_instances": 1}, {"zero": 1, "overlap_param_gather": False}, []),
    ({"num_distributed_optimizer_instances": 2}, {}, []),
    ({"overlap_grad_reduce": True, "overlap_param_gather": True}, {"overlap_grad_reduce": True}, []),
    ({"use_tp_pp_dp_mapping": True}, {"order": "tp-cp-ep-pp-dp"}, []),
    # moments, gradients, and main weights
    ({"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}, {}, []),
    (AWARE, AWARE, []),
    (AWARE | {"exp_avg_dtype": "torch.bfloat16", "exp_avg_sq_dtype": "bfloat16"}, AWARE | {"exp_avg_dtype": "bfloat16"}, []),
    (AWARE | {"exp_avg_dtype": "fp8"}, AWARE | {"exp_avg_dtype": "float8"}, ["both moments are taken as fp8, of which one is fp32"]),
    (AWARE | {"exp_avg_sq_dtype": "fp8"}, AWARE, []),
    (AWARE | {"fp8_recipe": "tensorwise"}, {}, []),
    (AWARE | {"fp8_recipe": "tensorwise", "main_params_dtype": "torch.float32"}, {}, []),
    (AWARE | {"fp8_recipe": "tensorwise", "main_params_dtype": "torch.float16"}, AWARE, []),
    (AWARE | {"main_grads_dtype": "torch.bfloat16"}, AWARE | {"grad_reduce_in_bf16": True}, []),
    ({"main_grads_dtype": "bf16"}, {}, []),
    ({"grad_reduce_in_bf16": True}, {"grad_reduce_in_bf16": True}, []),
    ({"grad_reduce_in_bf16": False}, {"grad_reduce_in_bf16": False}, []),
    ({"grad_reduce_in_fp32": True}, {"grad_reduce_in_bf16": False}, []),
    ({"grad_reduce_in_fp32": False}, {"grad_reduce_in_bf16": True}, []),
    ({"accumulate_allreduce_grads_in_fp32": True, "bf16": True}, {"dtype": "bfloat16", "grad_reduce_in_bf16": False}, []),
    ({"accumulate_allreduce_grads_in_fp32": True, "fp16": True}, {"dtype": "float16", "grad_reduce_in_bf16": False}, []),
    ({"grad_reduce_in_bf16": True, "fp16": True}, {"dtype": "float16"}, []),
    ({"use_megatron_fsdp": True, "megatron_fsdp_main_grads_dtype": "torch.float32"}, {"grad_reduce_in_bf16": False}, []),
    ({"use_megatron_fsdp": True, "megatron_fsdp_main_grads_dtype": "fp32"}, {"grad_reduce_in_bf16": False}, []),
    ({"use_megatron_fsdp": True, "megatron_fsdp_main_grads_dtype": "bf16"}, {"grad_reduce_in_bf16": True}, []),
    # the optimizer on the host
    ({"optimizer_cpu_offload": True}, {"optimizer_offload_fraction": 1.0}, []),
    ({"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.25, "overlap_cpu_optimizer_d2h_h2d": True}, {
        "optimizer_offload_fraction": 0.25, "overlap_cpu_optimizer_d2h_h2d": True}, []),
    ({"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0}, {}, []),
    (AWARE | {"optimizer_cpu_offload": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}, {"optimizer_offload_fraction": 1.0}, [
        "both moments are float32, which the optimizer on the host has"]),
    (AWARE | {"optimizer_cpu_offload": True, "exp_avg_dtype": "fp32", "exp_avg_sq_dtype": "fp32"}, {
        "optimizer_offload_fraction": 1.0, "exp_avg_dtype": "float32"}, []),
    ({"wgrad_deferral_limit": 7}, {}, []),
    ({"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": 7}, {"wgrad_deferral_limit": 7}, []),
    ({"defer_embedding_wgrad_compute": True}, {"wgrad_deferral_limit": 0}, []),
    # weights in 8 and 4 bits
    (FP8 | {"fp8_param_gather": True}, {"dtype": "float8", "fp8_param_gather": True}, []),
    (FP8 | {"fp4_param_gather": True}, {"dtype": "float8"}, []),
    ({"bf16": True, "fp8_param_gather": True}, {"dtype": "bfloat16"}, []),
    ({"bf16": True, "fp4": "e2m1", "fp4_param": True}, {"dtype": "nvfp4", "fp8_param_gather": True}, []),
    ({"bf16": True, "fp4": "mxfp4", "fp4_param_gather": True}, {"dtype": "mxfp4", "fp8_param_gather": True}, []),
    (FP8 | {"disable_parameter_transpose_cache": True}, {"dtype": "float8", "weight_cache": "none"}, []),
    (FP8 | {"fp8_weight_transpose_cache": False}, {"dtype": "float8", "weight_cache": "rowwise"}, []),
    (FP8 | {"fp8_param_gather": True, "fp8_weight_transpose_cache": False}, {
        "dtype": "float8", "fp8_param_gather": True, "weight_cache": "rowwise"}, []),
    (FP8 | {"fp8_param_gather": True, "disable_parameter_transpose_cache": True}, {"dtype": "float8", "fp8_param_gather": True}, []),
    (FP8 | {"first_last_layers_bf16": True}, {
        "dtype": "float8", "num_layers_at_start_in_bf16": 1, "num_layers_at_end_in_bf16": 1}, []),
    (FP8 | {"first_last_layers_bf16": True, "num_layers_at_start_in_bf16": 3, "num_layers_at_end_in_bf16": 0}, {
        "dtype": "float8", "num_layers_at_start_in_bf16": 3}, []),
    # kernels
    ({"attention_backend": "flash"}, {"attention": "fused"}, []),
    ({"attention_backend": "AttnBackend.unfused"}, {"attention": "unfused"}, []),
    ({"attention_backend": "local"}, {"attention": "unfused"}, []),
    ({"transformer_impl": "local"}, {"attention": "unfused"}, []),
    ({"transformer_impl": "local", "attention_backend": "flash"}, {"attention": "fused"}, []),
    ({"transformer_impl": "transformer_engine"}, {}, []),
    ({"fp8_dot_product_attention": True}, {"attention": "fused-fp8"}, []),
    ({"fp8_dot_product_attention": True, "attention_backend": "unfused"}, {"attention": "unfused"}, []),
    ({"attention_dropout": 0, "hidden_dropout": 0}, {"dropout": False}, []),
    ({"attention_dropout": 0.0, "hidden_dropout": 0.5}, {}, []),
    ({"attention_dropout": 0, "hidden_dropout": "$DROP"}, {}, []),
    ({"activation_func_fp8_input_store": True}, {"activation_func_fp8_input_store": True}, []),
    ({"activation_func_fp8_input_store": True, "bias_swiglu_fusion": False}, {}, []),
    ({"activation_func_fp8_input_store": True, "bias_activation_fusion": False}, {}, []),
    ({"activation_func_fp8_input_store": True, "bias_swiglu_fusion": False, "use_te_activation_func": True}, {
        "activation_func_fp8_input_store": True}, []),
    # offloading
    (FINE, {}, []),
    (FINE | {"offload_modules": ["mlp_norm", "core_attn"]}, {"offload_modules": "core_attn+mlp_norm"}, []),
    (FINE | {"offload_modules": "core_attn frob"}, {"offload_modules": "core_attn"}, ["not offloaded, since unknown: frob"]),
    (FINE | {"offload_modules": "core_attn", "activation_offload_fraction": 0.75, "min_offloaded_tensor_size": 5,
             "fine_grained_offloading_max_inflight_offloads": 0},
     {"offload_modules": "core_attn", "activation_offload_fraction": 0.75, "min_offloaded_tensor_size": 5, "max_inflight_offloads": 0}, []),
    (FINE | {"offload_modules": "core_attn", "activation_offload_fraction": 1}, {"offload_modules": "core_attn"}, []),
    ({"cpu_offloading_num_layers": 3, "num_layers": 12}, {"offload": 0.25}, []),
    ({"cpu_offloading_num_layers": 15, "num_layers": 12}, {"offload": 1.0}, []),
    ({"cpu_offloading_num_layers": 3, "num_layers": 12, "cpu_offloading_activations": False}, {}, []),
    ({"cpu_offloading_num_layers": 3}, {}, []),
    # communication
    ({"cp_comm_type": "a2a"}, {"context": "all-to-all"}, []),
    ({"cp_comm_type": ["p2p"]}, {}, []),
    ({"cp_comm_type": "p2p a2a"}, {}, ["cp_comm_type a2a+p2p is not known: taken as p2p, the ring"]),
    ({"tp_comm_overlap": True}, {"overlap_tp": "0.5"}, ["tp_comm_overlap: 50 % of TP communication is hidden"]),
    ({"tp_comm_overlap": False}, {"overlap_tp": "0"}, []),
    ({"overlap_moe_expert_parallel_comm": True, "delay_wgrad_compute": True}, {"overlap_ep": "megatron-delay-wgrad"}, []),
    ({"overlap_moe_expert_parallel_comm": False}, {"overlap_ep": 0.0}, []),
    # experts
    ({"moe_token_dispatcher_type": "alltoall_seq"}, {"moe_dispatcher": "alltoall"}, []),
    ({"moe_token_dispatcher_type": "flex"}, {"moe_dispatcher": "deepep"}, []),
    ({"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep", "moe_hybridep_num_sms": 12, "moe_deepep_num_sms": 14}, {
        "moe_dispatcher": "hybridep", "moe_flex_dispatcher_num_sms": 12}, []),
    ({"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_num_sms": 16, "moe_deepep_num_sms": 14}, {
        "moe_dispatcher": "deepep", "moe_flex_dispatcher_num_sms": 16}, []),
    ({"moe_token_dispatcher_type": "alltoall", "moe_flex_dispatcher_num_sms": 16}, {"moe_dispatcher": "alltoall"}, []),
    ({"moe_permute_fusion": True}, {"moe_permute_fusion": None}, []),
    ({"turbo_sync_free_moe_stage": 1}, {"moe_permute_fusion": None}, []),
    ({"moe_expert_capacity_factor": 2}, {"moe_expert_capacity_factor": 2.0}, [
        "experts with fewer tokens than their capacity are taken to be padded to it"]),
    ({"moe_expert_capacity_factor": 0.5, "moe_pad_expert_input_to_capacity": True}, {"moe_expert_capacity_factor": 0.5}, []),
    ({"moe_use_legacy_grouped_gemm": True}, {"moe_use_legacy_grouped_gemm": True}, []),
    ({"use_transformer_engine_op_fuser": True}, {"fused_experts": True}, []),
    ({"moe_router_force_load_balancing": True}, {"expert_imbalance": 1.0}, []),
    # CUDA graphs
    ({"cuda_graph_impl": "none"}, {}, []),
    ({"cuda_graph_modules": ["attn"]}, {}, []),
    ({"cuda_graph_impl": "local"}, {"cuda_graphs": "layer"}, []),
    ({"cuda_graph_impl": "full_iteration"}, {"cuda_graphs": "full"}, []),
    ({"cuda_graph_impl": "local", "cuda_graph_scope": "full_iteration"}, {"cuda_graphs": "full"}, []),
    ({"cuda_graph_impl": "local", "cuda_graph_scope": "full"}, {"cuda_graphs": "layer"}, []),
    ({"enable_cuda_graph": True}, {"cuda_graphs": "layer"}, []),
    ({"external_cuda_graph": True, "cuda_graph_impl": "none", "cuda_graph_scope": "attn mlp"}, {"cuda_graphs": "attn+mlp"}, []),
    ({"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn", "frob"]}, {"cuda_graphs": "attn"}, [
        "not captured, since unknown: frob"]),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "options", "notes"), READ, ids=lambda value: "" if not value else None)
def test_arguments_set_exactly_these_options(
    arguments: dict[str, Any], options: dict[str, Any], notes: list[str]
) -> None:
    assert read_one(arguments) == (options, notes)


@pytest.mark.parametrize(
    ("arguments", "options", "notes"),
    [
        ({"bf16": False}, {"dtype": "float32"}, []),
        ({"fp8": "hybrid"}, {"dtype": "float8"}, []),
        ({"overlap_moe_expert_parallel_comm": False}, {"overlap_ep": 0.0}, []),
        ({"optimizer_cpu_offload": True}, {}, []),
        ({"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.25}, {"optimizer_offload_fraction": 0.25}, []),
        (AWARE, {}, []),
        (AWARE | {"fp8_recipe": "delayed"}, AWARE, []),
        ({"attention_dropout": 0}, {"dropout": True}, [
            "attention_dropout or hidden_dropout is not given: 0.1, Megatron-LM's default"]),
        ({"attention_dropout": 0, "hidden_dropout": 0}, {"dropout": False}, []),
        ({"cpu_offloading_num_layers": 3, "num_layers": 12}, {}, []),
        ({"cpu_offloading_num_layers": 3, "num_layers": 12, "cpu_offloading": True}, {"offload": 0.25}, []),
        ({"tp_comm_overlap": False}, {"overlap_tp": "0,0.67"}, []),
        ({"moe_token_dispatcher_type": "allgather"}, {"moe_dispatcher": "allgather"}, []),
        ({"moe_permute_fusion": False}, {"moe_permute_fusion": False}, []),
        ({"cross_entropy_loss_fusion": False}, {"cross_entropy": "unfused"}, []),
    ],
)  # fmt: skip
def test_a_file_without_megatrons_defaults_leaves_options_to_its_stack(
    arguments: dict[str, Any], options: dict[str, Any], notes: list[str]
) -> None:
    assert read_one(arguments, is_partial=True) == (options, notes)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (AWARE | {"exp_avg_dtype": "int4"}, "F: exp_avg_dtype must be fp32, bf16, fp16, fp8: got int4"),
        (FULL | {"recompute_layer_ids": "a"}, "F: recompute_layer_ids are numbers of layers as 0,3,4: got 'a'"),
        (FULL | {"recompute_layer_ids": "-1"}, "F: recompute_layer_ids are numbers of layers as 0,3,4: got '-1'"),
        (FULL | {"recompute_layer_ids": ","}, "F: recompute_layer_ids are numbers of layers as 0,3,4: got ','"),
        ({"moe_expert_capacity_factor": 0}, "F: moe_expert_capacity_factor must be a number above 0: got 0"),
        ({"moe_expert_capacity_factor": True}, "F: moe_expert_capacity_factor must be a number above 0: got True"),
        ({"moe_expert_capacity_factor": "x"}, "F: moe_expert_capacity_factor must be a number above 0: got 'x'"),
        ({"moe_token_dispatcher_type": "x"}, "F: moe_token_dispatcher_type must be alltoall, .* or flex: got 'x'"),
        ({"moe_flex_dispatcher_backend": "x"}, "F: moe_flex_dispatcher_backend must be .*: got 'x'"),
        ({"recompute_granularity": "x"}, "F: recompute_granularity must be full or selective: got 'x'"),
        ({"optimizer_offload_fraction": 2}, "F: optimizer_offload_fraction must be a number from 0 to 1: got 2"),
        ({"activation_offload_fraction": 2}, "F: activation_offload_fraction must be a number from 0 to 1: got 2"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_one(arguments)


def stages_of(arguments: dict[str, Any], model: str, pp: int) -> tuple[str | None, int | None]:
    given = Arguments({"pipeline_model_parallel_size": pp, **arguments}, "F")
    options = read_settings(given, find_model(model))
    return options["split"], options["vpp"]


EMBEDDING, LOSS = (f"account_for_{end}_in_pipeline_split" for end in ("embedding", "loss"))
EACH = "num_layers_per_virtual_pipeline_stage"


@pytest.mark.parametrize(
    ("arguments", "split", "vpp"),
    [
        ({}, None, None),
        ({EACH: 4}, None, 2),  # 32 layers
        ({EACH: 8}, None, 1),
        ({EACH: 16}, None, None),
        ({EACH: 17, EMBEDDING: True, LOSS: True}, None, None),
        ({EACH: 2, EMBEDDING: True, LOSS: True}, None, 4),
        ({EACH: 4, "pipeline_model_parallel_layout": "Et*32L"}, "Et*32L", None),
    ],
)
def test_layers_per_virtual_stage_give_the_number_of_virtual_stages(
    arguments: dict[str, Any], split: str | None, vpp: int | None
) -> None:
    assert stages_of(arguments, "llama3-8b", 4) == (split, vpp)


def test_ends_that_count_as_layers_make_a_further_virtual_stage() -> None:
    assert stages_of({EACH: 2}, "llama3-8b", 16) == (None, 1)
    assert stages_of({EACH: 1, EMBEDDING: True, LOSS: True}, "llama3-8b", 17) == (None, 2)
    assert stages_of({EACH: 1, EMBEDDING: True}, "llama3-8b", 17) == (None, 1)


def test_stages_of_a_hybrid_are_in_its_pattern() -> None:
    pattern = "M-|M*|-M|M-|-M|-M"
    assert stages_of({"hybrid_layer_pattern": pattern}, "llama3-8b", 2) == ("E" + "|".join(["tt"] * 6) + "L", 3)
    assert stages_of({"hybrid_layer_pattern": pattern}, "llama3-8b", 1)[1] == 6
    assert stages_of({"hybrid_layer_pattern": "M-M*"}, "llama3-8b", 2) == (None, None)


WRITTEN: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"dtype": "float8-block", "weight_cache": "all"}, {"fp8": "e4m3", "fp8_recipe": "blockwise"}),
    ({"pp": 2, "vpp": 1}, {"pipeline_model_parallel_size": 2}),
    ({"pp": 1, "vpp": 3, "split": "EtL"}, {"pipeline_model_parallel_size": 1}),
    ({"pp": 2, "split": "EtL", "account_for_loss_in_pipeline_split": False}, {
        "pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "EtL"}),
    ({"pp": 2, "split": [3, 4]}, {"pipeline_model_parallel_size": 2}),
    ({"decoder_first_pipeline_num_layers": 3, "account_for_loss_in_pipeline_split": True}, {}),
    ({"schedule": "zb-auto"}, {"patch_primus_pipeline": True, "pp_algorithm": "zero-bubble-heuristic"}),
    ({"schedule": "1f1b"}, {}),
    ({"recompute": "uniform/4"}, {
        "recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 4}),
    ({"recompute": "core_attn+mlp_act"}, {}),
    ({"recompute": "full@1,3"}, {"recompute_granularity": "full", "recompute_layer_ids": "1,3"}),
    ({"zero": 1}, {"use_distributed_optimizer": True}),
    ({"zero": 3, "fully_shard": True}, {
        "use_distributed_optimizer": True, "use_torch_fsdp2": True, "no_gradient_accumulation_fusion": True}),
    ({"use_layer_wise_param_layout": False}, {}),
    ({"optimizer": "muon", "use_layer_wise_param_layout": True}, {"optimizer": "muon"}),
    ({"exp_avg_dtype": "float32"}, {}),
    ({"exp_avg_dtype": "bfloat16", "dtype": "mxfp8", "weight_cache": "all"}, {
        "fp8": "e4m3", "fp8_recipe": "mxfp8", "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16", **AWARE}),
    ({"exp_avg_dtype": "float16", **AWARE}, {"exp_avg_dtype": "fp16", "exp_avg_sq_dtype": "fp16", **AWARE}),
    ({"optimizer_offload_fraction": 0.0, "overlap_cpu_optimizer_d2h_h2d": True}, {}),
    ({"optimizer_offload_fraction": 0.5}, {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5, **AWARE}),
    ({"wgrad_deferral_limit": 5}, {"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": 5}),
    ({"zero": 3, "fully_shard": True, "dtype": "float8", "fp8_param_gather": True, "weight_cache": "all"}, {
        "fp8": "hybrid", "use_distributed_optimizer": True, "use_torch_fsdp2": True, "no_gradient_accumulation_fusion": True}),
    ({"dtype": "float8"}, {"fp8": "hybrid"}),
    ({"dtype": "float8", "zero": 3}, {
        "fp8": "hybrid", "use_distributed_optimizer": True, "use_megatron_fsdp": True, "megatron_fsdp_main_grads_dtype": "fp32",
        "data_parallel_sharding_strategy": "optim_grads_params", "disable_parameter_transpose_cache": True}),
    ({"dtype": "mxfp8", "zero": 2, "fp8_param_gather": True}, {
        "fp8": "e4m3", "fp8_recipe": "mxfp8", "use_distributed_optimizer": True, "use_megatron_fsdp": True,
        "data_parallel_sharding_strategy": "optim_grads", "megatron_fsdp_main_grads_dtype": "fp32", "fp8_param_gather": True}),
    ({"dtype": "float8", "fp8_param_gather": True}, {"fp8": "hybrid", "fp8_param_gather": True}),
    ({"dtype": "nvfp4", "fp8_param_gather": True}, {"fp4": "e2m1", "fp4_param_gather": True}),
    ({"dtype": "float8", "num_layers_at_end_in_bf16": 3}, {
        "fp8": "hybrid", "first_last_layers_bf16": True, "num_layers_at_start_in_bf16": 0, "num_layers_at_end_in_bf16": 3}),
    ({"grad_reduce_in_bf16": True}, {"grad_reduce_in_bf16": True}),
    ({"grad_reduce_in_bf16": False}, {}),
    ({"overlap_grad_reduce": True}, {"overlap_grad_reduce": True, "overlap_param_gather": False}),
    ({"attention": "fused"}, {"attention_backend": "auto"}),
    ({"cross_entropy": "fused"}, {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"}),
    ({"offload_modules": "core_attn", "min_offloaded_tensor_size": 5, "offload": 0.5}, {
        "fine_grained_activation_offloading": True, "offload_modules": ["core_attn"], "min_offloaded_tensor_size": 5}),
    ({"activation_offload_fraction": 0.5}, {}),
    ({"context": "ring", "overlap_tp": 0.5}, {"tp_comm_overlap": True}),
    ({"moe_dispatcher": "deepep"}, {
        "moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep", "moe_permute_fusion": True}),
    ({"moe_paged_stash": 1.3}, {"moe_paged_stash": True, "moe_paged_stash_buffer_size_factor_cuda": 1.3}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "arguments"), WRITTEN, ids=lambda value: "" if not value else None)
def test_options_are_written_as_exactly_these_arguments(options: dict[str, Any], arguments: dict[str, Any]) -> None:
    usual = {} if options.get("dtype", "").startswith(("float16", "float32")) else {"bf16": True}
    assert write_settings(options, of_primus=True) == usual | arguments


def test_a_file_without_arguments_has_two_notes() -> None:
    arguments = Arguments({}, "F")
    read_settings(arguments, None)
    assert arguments.assumed == [
        "no global_batch_size: one microbatch a replica, as Megatron-LM takes it",
        "attention_dropout or hidden_dropout is not given: 0.1, Megatron-LM's default",
    ]


@pytest.mark.parametrize(("size", "etp"), [(4, None), (3, 3)])
def test_ranks_of_experts_in_a_complete_file_are_the_others_unless_they_differ(size: int, etp: int | None) -> None:
    sizes = {"num_experts": 8, "tensor_model_parallel_size": 4, "expert_tensor_parallel_size": size}
    assert read_settings(Arguments(sizes, "F", is_complete=True), None)["etp"] == etp
    assert read_settings(Arguments(sizes, "F"), None)["etp"] == size


def test_settings_are_written_for_experts_and_not_for_primus_unless_asked() -> None:
    options = {"schedule": "zbv", "recompute": "full@1", "moe_dispatcher": "alltoall"}
    assert write_settings(options) == {
        "bf16": True, "moe_token_dispatcher_type": "alltoall", "moe_permute_fusion": True,
    }  # fmt: skip
    assert write_settings(options, has_experts=False) == {"bf16": True}
    assert len(write_settings(options, of_primus=True)) == 7


def test_an_older_name_of_the_dispatcher_is_read_without_effect() -> None:
    arguments = Arguments({"num_experts": 8, "moe_enable_deepep": True, "moe_token_dispatcher_type": "flex"}, "F")
    assert given_options(read_settings(arguments, None))["moe_dispatcher"] == "deepep"
    assert "moe_enable_deepep" not in dict(arguments.unread)
