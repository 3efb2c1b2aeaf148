"""What a trainer has options for is written as these, and needs no comment."""

from typing import Any

import pytest

import ppsim
from ppsim.base.errors import CannotRun
from ppsim.errors import ConfigError
from ppsim.model.registry import find_model
from ppsim.trainers.megatron.settings import write_settings
from ppsim.trainers.megatron.write_config import job_arguments, megatron_arguments
from ppsim.trainers.megatron.write_model import model_arguments
from ppsim.trainers.primus.write_config import write_primus
from ppsim.trainers.torchtitan.write_config import models_of, settings_of

RUN: dict[str, Any] = {
    "model": "llama3-8b",
    "gpus": 32,
    "tp": 2,
    "pp": 4,
    "global_batch": 64,
    "micro_batch": 1,
    "stack": "plain",
}


def written(trainer: Any, **words: Any) -> list[str]:
    """Return the lines of a trainer's configuration, without the signs that a line goes on."""
    made = ppsim.project(**(RUN | ({"cross_entropy": "compiled"} if trainer == "megatron" else {}) | words))
    return [line.removesuffix("\\").strip() for line in ppsim.trainer_options(made, trainer).splitlines()]


def comments(lines: list[str]) -> list[str]:
    return [line.removeprefix("# not expressible: ") for line in lines if line.startswith("# not expressible")]


def test_megatron_has_an_argument_for_each_of_these_options() -> None:
    lines = written(
        "megatron", runtime="megatron", vpp=2, group_size=8, cp=2, recompute="core_attn+layernorm",
        dtype="mxfp8", cluster="dgx-b200", attention="unfused", dropout=True, cross_entropy="unfused",
        deterministic_mode=True, context="all-to-all", overlap_p2p=False, optimizer="muon",
        layer_wise=True, order="tp-cp-ep-pp-dp", exp_avg_dtype="bfloat16", grad_reduce_in_bf16=True, cuda_graphs="attn+mlp",
        decoder_first_pipeline_num_layers=6, decoder_last_pipeline_num_layers=6,
    )  # fmt: skip
    assert comments(lines) == ["--cluster dgx-b200"]
    for line in (
        "torchrun --nproc-per-node 8 --nnodes 4 pretrain_gpt.py", "--num-layers 32", "--optimizer muon",
        "--no-overlap-p2p-communication", "--use-tp-pp-dp-mapping", "--decoder-first-pipeline-num-layers 6",
        "--microbatch-group-size-per-virtual-pipeline-stage 8", "--recompute-modules core_attn layernorm",
        "--num-virtual-stages-per-pipeline-rank 2", "--fp8-format e4m3", "--fp8-recipe mxfp8", "--cp-comm-type a2a",
    ):  # fmt: skip
        assert line in lines


def test_megatron_is_given_no_option_that_it_does_not_have() -> None:
    lines = written("megatron", runtime="megatron", model="gpt2", tp=1, pp=2, recompute="core_attn+mlp_act")
    assert comments(lines) == ["--recompute core_attn+mlp_act"]
    assert "--position-embedding-type learned_absolute" in lines
    assert not [line for line in lines if line.startswith(("--recompute", "--add-position"))]


def test_primus_runs_its_own_schedules_and_names_no_gpus() -> None:
    lines = written("primus", schedule="v-half", stack="primus", runtime="torch")
    assert comments(lines) == ["--gpus 32"]
    assert {"patch_primus_pipeline: true", "pp_algorithm: v-half", "hidden_size: 4096"} <= set(lines)
    assert comments(written("megatron", schedule="zb-h1", runtime="megatron")) == ["--schedule zb-h1"]


@pytest.mark.parametrize(
    ("trainer", "dtype", "loss"), [("torchtitan", "bfloat16", None), ("torchtitan@0.2", "float8-row", "compiled")]
)
def test_torchtitan_has_a_setting_for_each_of_its_defaults(trainer: str, dtype: str, loss: str | None) -> None:
    lines = written(
        trainer, stack="torchtitan", cross_entropy=loss, schedule="zbv-fixed", recompute="full", overlap_tp=0.5, compile=True,
        dtype=dtype, gradient_accumulation_steps=2, split=[3, 4, 4, 4, 4, 5, 4, 4],
    )  # fmt: skip
    assert comments(lines) == []
    assert any(line.replace('"', "").replace(" =", "").endswith("local_batch_size 8") for line in lines)
    assert any("layers.2" in line and "layers.31" in line for line in lines)


def test_float8_of_torchtitan_is_a_comment_where_only_its_registry_says_it() -> None:
    lines = written("torchtitan", stack="torchtitan", dtype="float8", compile=True)
    assert comments(lines) == ["--dtype float8"]
    assert lines[1].startswith("# TorchTitan 0.3.")


def test_the_main_branch_of_torchtitan_counts_batches_in_tokens() -> None:
    lines = written("torchtitan@main", stack="torchtitan", micro_batch=2, seq_len=4096, cuda_graphs="none")
    assert comments(lines) == []
    assert {
        "--training.max_context_length 4096", "--training.num_tokens_per_microbatch_per_dp_rank 8192",
        "--training.num_tokens_per_train_step 262144", "--parallelism.num_pp_microbatches 8",
    } <= set(lines)  # fmt: skip
    older = ("seq_len", "local_batch_size", "global_batch_size", "microbatch_size")
    assert not [line for line in lines if line.split()[0].endswith(older)]
    alone = written("torchtitan@main", stack="torchtitan", pp=1, tp=8, micro_batch=2, seq_len=4096)
    assert not [line for line in alone if "num_pp_microbatches" in line]


def test_a_model_that_a_trainer_does_not_have_is_a_comment() -> None:
    assert "--model llama2-7b" in comments(written("torchtitan", model="llama2-7b", stack="torchtitan"))
    assert "--model llama4-scout" in comments(written("megatron", model="llama4-scout", runtime="megatron"))


def test_a_plan_without_a_model_and_an_unknown_trainer_are_refused() -> None:
    with pytest.raises(ConfigError, match="a trainer's configuration has a model: give --model"):
        ppsim.trainer_options(ppsim.project(pp=2), "megatron")
    for unknown in ("nemo", "torchtitan@0.1"):
        with pytest.raises(ConfigError, match=f"unknown trainer '{unknown}': there are .*torchtitan@0.3"):
            written(unknown)


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ({"dtype": "float8", "fp8_param_gather": True}, {"--fp8-param-gather"}),
        ({"dtype": "nvfp4", "fp8_param_gather": True}, {"--fp4-param-gather"}),
        (
            {"dtype": "mxfp8", "fp8_param_gather": True},
            {"--fp8-param-gather", "--reuse-grad-buf-for-mxfp8-param-ag"},
        ),
        ({"dtype": "mxfp8", "fp8_param_gather": True, "zero": 3, "pp": 1}, {"--fp8-param-gather"}),
        ({"dtype": "float8", "num_layers_at_end_in_bf16": 4}, {"--first-last-layers-bf16"}),
        ({"dtype": "float8", "zero": 3, "pp": 1, "weight_cache": "all"}, set()),
        ({"zero": 3, "pp": 1, "fully_shard": True, "gradient_accumulation_fusion": False}, {"--use-torch-fsdp2"}),
    ],
)
def test_megatron_has_flags_for_weights_in_8_bits_and_for_fsdp2(words: dict, flags: set[str]) -> None:
    lines = written("megatron", runtime="megatron", cluster="dgx-b200", **words)
    assert comments(lines) == ["--cluster dgx-b200"]
    named = ("gather", "cache", "param-ag", "fsdp2", "layers-bf16")
    assert {line for line in lines if line.endswith(named) and "overlap" not in line} == flags


@pytest.mark.parametrize("has_layout", [True, False])
def test_megatron_has_flags_for_a_layer_wise_optimizer(has_layout: bool) -> None:
    words = {"optimizer": "muon", "layer_wise": True, "use_layer_wise_param_layout": has_layout}
    lines = written("megatron", runtime="megatron", **words)
    assert {"--optimizer muon", "--use-distributed-optimizer"} <= set(lines)
    assert ("--no-use-layer-wise-param-layout" in lines) is not has_layout
    assert comments(lines) == []


def test_primus_has_a_setting_for_one_copy_of_the_weights() -> None:
    lines = written("primus", stack="primus", runtime="megatron", dtype="float8", weight_cache="rowwise")
    assert comments(lines) == ["--gpus 32"]
    assert "no_fp8_weight_transpose_cache: true" in lines


@pytest.mark.parametrize(
    ("words", "options", "left"),
    [
        ({}, ["--overlap-grad-reduce", "--overlap-param-gather"], []),
        ({"overlap_dp": False}, [], []),
        ({"overlap_param_gather": False}, ["--overlap-grad-reduce"], []),
        ({"overlap_grad_reduce": False}, [], ["--overlap-param-gather"]),  # refused by Megatron-LM
        ({"zero": 0}, ["--overlap-grad-reduce"], []),
    ],
)
def test_each_overlap_of_data_parallelism_is_written_by_its_name(
    words: dict[str, Any], options: list[str], left: list[str]
) -> None:
    lines = written("megatron", runtime="megatron", **words)
    assert [line for line in lines if line.startswith(("--overlap-grad", "--overlap-param"))] == options
    assert comments(lines) == left


@pytest.mark.parametrize(
    ("layers", "vpp", "is_layout"), [(32, None, False), (34, None, True), (36, 2, True), (32, 2, False)]
)
def test_stages_of_different_sizes_are_a_layout(layers: int, vpp: int | None, is_layout: bool) -> None:
    """Megatron-LM refuses layers that its pipeline stages do not divide, unless a layout is given."""
    lines = written("megatron", runtime="megatron", layers=layers, vpp=vpp)
    assert any(line.startswith("--pipeline-model-parallel-layout") for line in lines) == is_layout
    assert comments(lines) == []


@pytest.mark.parametrize(("vpp", "bars"), [(None, 0), (2, 3)])
def test_virtual_stages_of_a_hybrid_are_in_its_pattern(vpp: int | None, bars: int) -> None:
    """Megatron-LM refuses --num-virtual-stages-per-pipeline-rank next to --hybrid-layer-pattern."""
    lines = written("megatron", runtime="megatron", model="nemotron-h-8b", pp=2, vpp=vpp)
    pattern = next(line for line in lines if line.startswith("--hybrid-layer-pattern"))
    assert pattern.count("|") == bars
    assert not any(line.startswith("--num-virtual") for line in lines)
    assert comments(lines) == []


NO_WORDS = {"bf16": True}
OPTIONS_OF_MEGATRON: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"tp": 2, "cp": 4, "ep": 8, "etp": 1, "gpus": 64}, {
        "tensor_model_parallel_size": 2, "context_parallel_size": 4, "expert_model_parallel_size": 8,
        "expert_tensor_parallel_size": 1,
    }),
    ({"pp": 2, "vpp": 3, "overlap_p2p": False}, {
        "pipeline_model_parallel_size": 2, "num_virtual_stages_per_pipeline_rank": 3,
        "no_overlap_p2p_communication": True,
    }),
    ({"pp": 2, "overlap_p2p": False}, {"pipeline_model_parallel_size": 2}),
    ({"pp": 2, "vpp": 2, "split": "Et|t|t|tL"}, {
        "pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Et|t|t|tL",
    }),
    ({"pp": 2, "decoder_first_pipeline_num_layers": 3, "split": "Ettt|ttL"}, {
        "pipeline_model_parallel_size": 2, "decoder_first_pipeline_num_layers": 3,
    }),
    ({"recompute": "full"}, {
        "recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1,
    }),
    ({"recompute": "block/3"}, {
        "recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 3,
    }),
    ({"recompute": "core_attn+mlp"}, {
        "recompute_granularity": "selective", "recompute_modules": ["core_attn", "mlp"],
    }),
    ({"recompute": "mlp_act"}, {}),
    ({"dtype": "float16"}, {"bf16": False, "fp16": True, "accumulate_allreduce_grads_in_fp32": False}),
    ({"dtype": "float16", "grad_reduce_in_bf16": False}, {
        "bf16": False, "fp16": True, "accumulate_allreduce_grads_in_fp32": True,
    }),
    ({"dtype": "float32"}, {"bf16": False}),
    ({"dtype": "float8", "weight_cache": "all"}, {"fp8": "hybrid"}),
    ({"dtype": "nvfp4", "weight_cache": "none"}, {"fp4": "e2m1", "disable_parameter_transpose_cache": True}),
    ({"dtype": "mxfp8", "fp8_param_gather": True, "zero": 1}, {
        "fp8": "e4m3", "fp8_recipe": "mxfp8", "use_distributed_optimizer": True, "fp8_param_gather": True,
        "reuse_grad_buf_for_mxfp8_param_ag": True,
    }),
    ({"zero": 0}, {"use_distributed_optimizer": False}),
    ({"zero": 2}, {
        "use_distributed_optimizer": True, "use_megatron_fsdp": True,
        "data_parallel_sharding_strategy": "optim_grads", "megatron_fsdp_main_grads_dtype": "fp32",
    }),
    ({"zero": 3, "grad_reduce_in_bf16": True}, {
        "use_distributed_optimizer": True, "use_megatron_fsdp": True,
        "data_parallel_sharding_strategy": "optim_grads_params", "grad_reduce_in_bf16": True,
    }),
    ({"zero": 2, "fully_shard": True}, {
        "use_distributed_optimizer": True, "use_torch_fsdp2": False, "no_gradient_accumulation_fusion": True,
    }),
    ({"optimizer": "muon"}, {"optimizer": "muon"}),
    ({"order": "tp-cp-ep-pp-dp"}, {"use_tp_pp_dp_mapping": True}),
    ({"exp_avg_dtype": "float8", "dtype": "bfloat16"}, {
        "exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "fp8", "use_precision_aware_optimizer": True,
        "fp8_recipe": "tensorwise",
    }),
    ({"use_precision_aware_optimizer": True}, {"use_precision_aware_optimizer": True}),
    ({"use_precision_aware_optimizer": True, "dtype": "mxfp8", "weight_cache": "all"}, {
        "fp8": "e4m3", "fp8_recipe": "mxfp8", "use_precision_aware_optimizer": True, "main_params_dtype": "fp16",
    }),
    ({"sequence_parallel": False}, {"sequence_parallel": False}),
    ({"optimizer_offload_fraction": 0.5, "overlap_cpu_optimizer_d2h_h2d": True}, {
        "optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5, "use_precision_aware_optimizer": True,
        "overlap_cpu_optimizer_d2h_h2d": True,
    }),
    ({"num_distributed_optimizer_instances": 1, "outer_dp_sharding_strategy": "no_shard"}, {}),
    ({"num_distributed_optimizer_instances": 2, "outer_dp_sharding_strategy": "optim"}, {
        "num_distributed_optimizer_instances": 2, "outer_dp_sharding_strategy": "optim",
    }),
    ({"bucket_size": 1000}, {"ddp_bucket_size": 1000}),
    ({"wgrad_deferral_limit": 0}, {"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": 0}),
    ({"gradient_accumulation_fusion": False}, {"no_gradient_accumulation_fusion": True}),
    ({"dtype": "float8", "weight_cache": "all", "num_layers_at_start_in_bf16": 2}, {
        "fp8": "hybrid", "first_last_layers_bf16": True, "num_layers_at_start_in_bf16": 2,
        "num_layers_at_end_in_bf16": 0,
    }),
    ({"attention": "fused-fp8", "dropout": True, "cross_entropy": "compiled"}, {
        "attention_backend": "auto", "fp8_dot_product_attention": True, "attention_dropout": 0.1,
        "hidden_dropout": 0.1, "cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "native",
    }),
    ({"attention": "unfused", "dropout": False, "cross_entropy": "unfused", "deterministic_mode": True}, {
        "attention_backend": "unfused", "attention_dropout": 0.0, "hidden_dropout": 0.0,
        "cross_entropy_loss_fusion": False, "deterministic_mode": True,
    }),
    ({"offload_modules": "core_attn+mlp_norm", "max_inflight_offloads": 0, "activation_offload_fraction": 0.5}, {
        "fine_grained_activation_offloading": True, "offload_modules": ["core_attn", "mlp_norm"],
        "fine_grained_offloading_max_inflight_offloads": 0, "activation_offload_fraction": 0.5,
    }),
    ({"context": "all-to-all", "overlap_tp": "0,0.67"}, {"cp_comm_type": "a2a"}),
    ({"overlap_tp": "0,0", "overlap_ep": "megatron"}, {"overlap_moe_expert_parallel_comm": True}),
    ({"overlap_tp": "0.5,0", "overlap_ep": "0.5"}, {"tp_comm_overlap": True}),
    ({"overlap_ep": "megatron-delay-wgrad"}, {
        "overlap_moe_expert_parallel_comm": True, "delay_wgrad_compute": True,
    }),
    ({"moe_dispatcher": "alltoall", "moe_permute_fusion": False}, {"moe_token_dispatcher_type": "alltoall"}),
    ({"moe_dispatcher": "hybridep", "moe_flex_dispatcher_num_sms": 16}, {
        "moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep", "moe_hybridep_num_sms": 16,
        "moe_permute_fusion": True,
    }),
    ({"moe_expert_capacity_factor": 1.5, "moe_use_legacy_grouped_gemm": True, "fused_experts": True}, {
        "moe_expert_capacity_factor": 1.5, "moe_pad_expert_input_to_capacity": True,
        "moe_use_legacy_grouped_gemm": True, "use_transformer_engine_op_fuser": True,
    }),
    ({"moe_expert_rank_capacity_factor": 2.0, "moe_paged_stash": 1.2}, {
        "moe_expert_rank_capacity_factor": 2.0, "moe_paged_stash": True,
        "moe_paged_stash_buffer_size_factor_cuda": 1.2,
    }),
    ({"cuda_graphs": "none"}, {}),
    ({"cuda_graphs": "layer"}, {"cuda_graph_impl": "transformer_engine"}),
    ({"cuda_graphs": "attn+mlp"}, {
        "cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn", "mlp"],
    }),
    ({"cuda_graphs": "full"}, {"cuda_graph_impl": "full_iteration"}),
]  # fmt: skip


def test_options_are_exactly_these_arguments_of_megatron() -> None:
    for words, arguments in OPTIONS_OF_MEGATRON:
        assert write_settings(words) == NO_WORDS | arguments, words


def test_both_overlaps_of_data_parallelism_need_the_reduction() -> None:
    for reduces, gathers, zero, expected in (
        (True, True, 1, (True, True)), (True, True, 0, (True, False)), (False, True, 1, (False, False)),
        (True, False, 1, (True, False)),
    ):  # fmt: skip
        found = write_settings({"overlap_grad_reduce": reduces, "overlap_param_gather": gathers, "zero": zero})
        assert (found["overlap_grad_reduce"], found["overlap_param_gather"]) == expected


def test_a_dense_model_has_no_arguments_of_experts_and_equal_stages_no_layout() -> None:
    llama, words = find_model("llama3-8b"), {"seq_len": 8192, "pp": 2, "etp": 1, "moe_dispatcher": "alltoall"}
    sizes = {
        "num_layers": 32, "hidden_size": 4096, "disable_bias_linear": True, "normalization": "RMSNorm",
        "vocab_size": 128256, "position_embedding_type": "rope", "max_position_embeddings": 8192,
        "untie_embeddings_and_output_weights": True, "num_attention_heads": 32, "kv_channels": 128,
        "group_query_attention": True, "num_query_groups": 8, "swiglu": True, "ffn_hidden_size": 14336,
        "seq_length": 8192, "pipeline_model_parallel_size": 2, "bf16": True,
    }  # fmt: skip
    assert job_arguments({**words, "split": [16, 16]}, llama, "LAYOUT") == sizes
    layout = {"pipeline_model_parallel_layout": "LAYOUT"}
    assert job_arguments({**words, "split": [15, 17]}, llama, "LAYOUT") == sizes | layout
    assert job_arguments({**words, "split": [16, 16], "runtime": "torch"}, llama, "LAYOUT") == sizes | layout


def test_an_experiment_of_primus_has_these_lines() -> None:
    words = {"seq_len": 1024, "schedule": "zb-h1", "recompute": "full@0,2", "weight_cache": "rowwise"}
    text = write_primus(words, find_model("gpt2"), "")
    head, found = text.split("    overrides:\n")
    assert head == (
        "# Primus, Megatron-LM. Save it in a checkout of Primus, and add your own data, tokenizer and learning rate.\n"
        "work_group: ${PRIMUS_TEAM:amd}\nuser_name: ${PRIMUS_USER:root}\nexp_name: ${PRIMUS_EXP_NAME:pretrain}\n"
        "workspace: ${PRIMUS_WORKSPACE:./output}\nmodules:\n  pre_trainer:\n    framework: megatron\n"
        "    config: pre_trainer.yaml\n    model: language_model.yaml\n"
    )
    assert [line.strip() for line in found.splitlines()][-7:] == [
        "seq_length: 1024", "bf16: true", "patch_primus_pipeline: true", "pp_algorithm: zero-bubble",
        "recompute_granularity: full", 'recompute_layer_ids: "0,2"', "no_fp8_weight_transpose_cache: true",
    ]  # fmt: skip
    assert "pp_algorithm" not in write_primus(words | {"schedule": "1f1b"}, find_model("gpt2"), "")


TITAN: dict[str, Any] = {
    "gpus": 16, "tp": 2, "cp": 2, "micro_batch": 1, "global_batch": 64, "dtype": "bfloat16", "recompute": "none",
}  # fmt: skip
SETTINGS_OF_TITAN = {
    "parallelism.tensor_parallel_degree": 2, "parallelism.context_parallel_degree": 2,
    "parallelism.data_parallel_shard_degree": 1, "parallelism.data_parallel_replicate_degree": 4,
    "training.local_batch_size": 1, "training.global_batch_size": 64, "activation_checkpoint.mode": "none",
}  # fmt: skip
STAGED = {
    "parallelism.pipeline_parallel_degree": 2, "parallelism.pipeline_parallel_microbatch_size": 1,
    "parallelism.data_parallel_shard_degree": 2, "parallelism.data_parallel_replicate_degree": 1,
    "training.local_batch_size": 32,
}  # fmt: skip
SHARDED = {"parallelism.data_parallel_shard_degree": 4, "parallelism.data_parallel_replicate_degree": 1}
OPTIONS_OF_TITAN: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("0.3", {}, {}),
    ("0.3", {"zero": 2}, SHARDED | {"parallelism.fsdp_reshard_after_forward": "never"}),
    ("0.3", {"zero": 3}, SHARDED),
    ("0.3", {"zero": 3, "num_distributed_optimizer_instances": 2}, {
        "parallelism.data_parallel_shard_degree": 2, "parallelism.data_parallel_replicate_degree": 2,
    }),
    ("0.3", {"zero": 3, "gpus": 4}, {
        "parallelism.data_parallel_shard_degree": -1, "parallelism.data_parallel_replicate_degree": 1,
    }),
    ("0.3", {"pp": 2}, STAGED | {"parallelism.pipeline_parallel_schedule": "1F1B"}),
    ("0.3", {"pp": 2, "vpp": 2, "zero": 3, "gradient_accumulation_steps": 4, "split": [0, 1, 2, 0]}, STAGED | {
        "parallelism.pipeline_parallel_schedule": "Interleaved1F1B", "training.local_batch_size": 8,
        "parallelism.fsdp_reshard_after_forward": "always",
        "parallelism.module_fqns_per_model_part": [
            ["tok_embeddings"], ["layers.0"], ["layers.1", "layers.2"], ["norm", "lm_head"],
        ],
    }),
    ("0.2", {"pp": 2, "split": [1, 1], "zero": 0}, STAGED | {
        "parallelism.pipeline_parallel_schedule": "1F1B", "parallelism.data_parallel_shard_degree": 1,
        "parallelism.data_parallel_replicate_degree": 2,
        "parallelism.module_fqns_per_model_part": [["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]],
    }),
    ("0.3", {"compile": True, "overlap_tp": "0.5,0.5"}, {
        "compile.enable": True, "compile.enable_async_tensor_parallel": True,
    }),
    ("0.2", {"compile": True, "overlap_tp": "0.5,0.5"}, {
        "compile.enable": True, "parallelism.enable_async_tensor_parallel": True,
    }),
    ("0.2", {"overlap_tp": "0.5,0.5", "etp": 2}, {}),
    ("0.2", {"ep": 2, "etp": 2}, {
        "parallelism.expert_parallel_degree": 2, "parallelism.expert_tensor_parallel_degree": 2,
    }),
    ("0.2", {"dtype": "float8-row"}, {
        "model.converters": ["float8"], "quantize.linear.float8.recipe_name": "rowwise",
    }),
    ("0.2", {"dtype": "float8", "fp8_param_gather": True}, {
        "model.converters": ["float8"], "quantize.linear.float8.enable_fsdp_float8_all_gather": True,
    }),
    ("0.2", {"dtype": "mxfp8"}, {"model.converters": ["mx"]}),
    ("0.2", {"recompute": "full/2"}, {
        "activation_checkpoint.mode": "selective", "activation_checkpoint.selective_ac_option": "2",
    }),
    ("0.2", {"recompute": "selective-op"}, {
        "activation_checkpoint.mode": "selective", "activation_checkpoint.selective_ac_option": "op",
    }),
    ("0.3", {"recompute": "selective-op"}, {"activation_checkpoint.mode": "selective"}),
    ("0.3", {"recompute": "full"}, {"activation_checkpoint.mode": "full"}),
]  # fmt: skip


def test_options_are_exactly_these_settings_of_torchtitan() -> None:
    for version, words, settings in OPTIONS_OF_TITAN:
        assert settings_of(TITAN | words, {}, version) == SETTINGS_OF_TITAN | settings, (version, words)


def test_entries_of_torchtitan_are_a_flavor_or_a_module_and_a_config() -> None:
    assert list(models_of(find_model("llama3-70b"), "0.2")) == [{"model.name": "llama3", "model.flavor": "70B"}]
    assert {"module": "llama3", "config": "llama3_8b"} in list(models_of(find_model("llama3-8b"), "0.3"))
    assert {} not in list(models_of(find_model("llama3-8b"), "0.3"))
    assert list(models_of(find_model("gpt2"), "0.3")) == [{}]


GROUPED = {
    "disable_bias_linear": True, "normalization": "RMSNorm", "position_embedding_type": "rope",
    "max_position_embeddings": 4096, "untie_embeddings_and_output_weights": True, "kv_channels": 128,
    "group_query_attention": True, "num_query_groups": 4, "swiglu": True,
}  # fmt: skip
MODELS = {
    "qwen2.5-7b": GROUPED | {
        "num_layers": 28, "hidden_size": 3584, "vocab_size": 152064, "num_attention_heads": 28,
        "add_qkv_bias": True, "ffn_hidden_size": 18944,
    },
    "qwen3-30b-a3b": GROUPED | {
        "num_layers": 48, "hidden_size": 2048, "vocab_size": 151936, "num_attention_heads": 32,
        "qk_layernorm": True, "ffn_hidden_size": 768, "num_experts": 128, "moe_ffn_hidden_size": 768,
        "moe_router_topk": 8, "moe_grouped_gemm": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_exactly_these_arguments_of_megatron(name: str) -> None:
    assert model_arguments(find_model(name), 4096) == MODELS[name]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("gpt-oss-20b", {"quick_geglu": True, "glu_linear_offset": 1.0, "activation_func_clamp_value": 7.0}),
        ("minimax-m2.5", {"num_experts": 256, "qk_layernorm": True}),
        ("kimi-linear-48b-a3b", {"experimental_attention_variant": "gated_delta_net"}),
        ("mamba2-1.3b", {"num_attention_heads": 64, "kv_channels": 64}),
        ("glm-4.7-flash", {"num_attention_heads": 20, "kv_channels": 256}),
        ("gpt3-2.7b", {"max_position_embeddings": 4096}),
        ("granite-4.0-h-micro", {"num_layers": 80}),
    ],
)
def test_the_nearest_model_of_megatron_has_layers_of_the_same_kinds(name: str, arguments: dict[str, Any]) -> None:
    found = model_arguments(find_model(name), 4096)
    assert found is not None
    assert arguments.items() <= found.items()


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "lfm2-350m", "falcon-h1-0.5b", "flux.1-dev"])
def test_a_model_with_layers_that_megatron_does_not_have_is_refused(name: str) -> None:
    assert model_arguments(find_model(name), 4096) is None
    with pytest.raises(CannotRun, match="it lacks layers of this model"):
        megatron_arguments({"seq_len": 4096}, find_model(name), "")


def test_a_layer_with_a_mamba_mixer_and_an_mlp_is_two_letters_of_a_stage() -> None:
    model = find_model("granite-4.0-h-micro").with_layers(8)
    found = job_arguments({"seq_len": 4096, "pp": 2, "vpp": 2, "split": [2, 2, 1, 3]}, model, "")
    assert found["hybrid_layer_pattern"] == "M-M-|M-M-|M-|*-M-M-"


def test_fractions_of_tp_communication_do_not_count_on_one_rank() -> None:
    lines = written("megatron", stack="megatron-bridge", tp=1, runtime="megatron")
    assert comments(lines) == ["--stack megatron-bridge"]
    assert "--tp-comm-overlap" not in lines
