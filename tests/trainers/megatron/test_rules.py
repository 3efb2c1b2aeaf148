"""Each rule of Megatron-LM for combinations of arguments: what is added or left out, and what is refused."""

from typing import Any

import pytest

import ppsim
from ppsim.errors import ConfigError
from ppsim.trainers.megatron.rules import ADJUSTMENTS, REFUSALS, accepted_arguments

MOE: dict[str, Any] = {"num_experts": 8, "disable_bias_linear": True, "moe_grouped_gemm": True}
PIPELINE = {"pipeline_model_parallel_size": 4}
ADJUSTED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"use_megatron_fsdp": True}, {"ckpt_format": "fsdp_dtensor"}),
    (
        {"use_torch_fsdp2": True, "untie_embeddings_and_output_weights": True, "use_distributed_optimizer": True},
        {"no_gradient_accumulation_fusion": True, "use_distributed_optimizer": None},
    ),
    (MOE | {"moe_router_enable_expert_bias": True}, {"moe_router_score_function": "sigmoid"}),
    (MOE | {"moe_router_topk": 1}, {"moe_router_pre_softmax": True}),
    (
        MOE | {"moe_flex_dispatcher_backend": "deepep", "moe_pad_expert_input_to_capacity": True},
        {"moe_pad_expert_input_to_capacity": None},
    ),
    ({"cuda_graph_impl": "full_iteration"}, {"no_check_for_nan_in_loss_and_grad": True}),
    ({"cross_entropy_fusion_impl": "te"}, {"cross_entropy_fusion_impl": "native"}),
    ({"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": 0},
     {"defer_embedding_wgrad_compute": None, "wgrad_deferral_limit": None}),
    (PIPELINE | {"defer_embedding_wgrad_compute": True, "no_gradient_accumulation_fusion": True},
     {"defer_embedding_wgrad_compute": None}),
    ({"fp8": "hybrid", "first_last_layers_bf16": True}, {"fp8_recipe": "tensorwise"}),
    ({"fp8": "hybrid", "recompute_modules": ["layernorm"]}, {"fp8_recipe": "tensorwise"}),
    ({"mtp_num_layers": 1, "position_embedding_type": "yarn", "rotary_scaling_factor": 4},
     {"position_embedding_type": "rope", "rotary_scaling_factor": None}),
    ({"experimental_attention_variant": "dsa", "context_parallel_size": 2}, {"cp_comm_type": "allgather"}),
    ({"expert_model_parallel_size": 2, "moe_expert_capacity_factor": 1.5},
     {"expert_model_parallel_size": None, "moe_expert_capacity_factor": None}),
    ({"recompute_modules": ["mla_up_proj", "mlp"]}, {"recompute_modules": ["mlp"]}),
    ({"recompute_granularity": "selective", "recompute_modules": ["moe_act"]},
     {"recompute_granularity": None, "recompute_modules": None}),
    ({"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn", "moe_router"]},
     {"cuda_graph_modules": ["attn"]}),
    (MOE | {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["mlp"]},
     {"cuda_graph_impl": None, "cuda_graph_modules": None}),
    ({"fp8_dot_product_attention": True}, {"fp8_dot_product_attention": None}),
]  # fmt: skip
OF_OLD_RELEASE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"cross_entropy_fusion_impl": "te"}, {}),
    ({"optimizer": "muon", "overlap_grad_reduce": True, "use_distributed_optimizer": True},
     {"optimizer": "dist_muon", "overlap_grad_reduce": None, "use_distributed_optimizer": None}),
    (PIPELINE | {"hybrid_layer_pattern": "M-|M-|M*|M-", "num_layers": 8},
     {"hybrid_layer_pattern": None, "hybrid_override_pattern": "M-M-M*M-"}),
    ({"cuda_graph_impl": "full_iteration"},
     {"cuda_graph_impl": "local", "cuda_graph_scope": ["full_iteration"], "no_check_for_nan_in_loss_and_grad": True}),
    (MOE | {"cuda_graph_impl": "full_iteration", "expert_model_parallel_size": 2},
     {"cuda_graph_impl": "local", "cuda_graph_scope": ["full_iteration"], "no_check_for_nan_in_loss_and_grad": True,
      "moe_pad_experts_for_cuda_graph_inference": True}),
    ({"position_embedding_type": "yarn", "rotary_scaling_factor": 4},
     {"position_embedding_type": "rope", "rotary_scaling_factor": None}),
    ({"use_transformer_engine_op_fuser": True}, {"use_transformer_engine_op_fuser": None}),
]  # fmt: skip
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tp_comm_overlap": True}, "--sequence-parallel or --overlap-tp 0"),
    ({"tp_comm_overlap": True, "sequence_parallel": True, "deterministic_mode": True}, "give --overlap-tp 0"),
    ({"use_megatron_fsdp": True, "optimizer": "muon"}, "--zero 1 or --optimizer adam"),
    (MOE | {"use_torch_fsdp2": True, "expert_model_parallel_size": 2}, "--ep 1 or --no-fully-shard"),
    ({"use_torch_fsdp2": True}, "an output layer of its own: give --no-fully-shard"),
    (
        {"use_torch_fsdp2": True, "untie_embeddings_and_output_weights": True, "fp16": True},
        "give --dtype bfloat16",
    ),
    (MOE | {"disable_bias_linear": None, "tensor_model_parallel_size": 2}, "give --etp 1"),
    ({"num_attention_heads": 6, "tensor_model_parallel_size": 4}, "--tp must divide"),
    (
        {"optimizer_cpu_offload": True, "fp8_param_gather": True, "fp8": "e4m3", "fp8_recipe": "mxfp8"},
        "give --no-fp8-param-gather",
    ),
    (
        {"cuda_graph_impl": "transformer_engine", "recompute_granularity": "full"},
        "give --cuda-graphs full or none",
    ),
    (
        MOE | {"cuda_graph_modules": ["moe_router"], "recompute_modules": ["moe"]},
        "leave out moe_router or moe",
    ),
    ({"cuda_graph_impl": "full_iteration", "offload_modules": ["core_attn"]}, "give --max-inflight-offloads"),
    (
        {"pipeline_model_parallel_size": 2, "no_overlap_p2p_communication": True},
        "leave out --no-overlap-p2p-communication",
    ),
    ({"fp8_param_gather": True, "use_distributed_optimizer": False}, "give --zero 1 or --no-fp8-param-gather"),
]
REFUSED_BY_OLD_RELEASE: list[tuple[dict[str, Any], str]] = [
    (PIPELINE | {"hybrid_layer_pattern": "M|-|M*|M", "num_layers": 5}, "give a --pp that divides"),
    (MOE | {"overlap_moe_expert_parallel_comm": True, "mtp_num_layers": 1}, "give --mtp-num-layers 0"),
    (
        MOE
        | PIPELINE
        | {"overlap_moe_expert_parallel_comm": True, "hybrid_layer_pattern": "M-M*", "num_layers": 4},
        "give --overlap-ep 0",
    ),
]


@pytest.mark.parametrize(
    ("arguments", "changes", "release"),
    [*((*row, "") for row in ADJUSTED), *((*row, "0.16") for row in OF_OLD_RELEASE)],
)
def test_arguments_become_the_ones_that_megatron_lm_accepts(
    arguments: dict[str, Any], changes: dict[str, Any], release: str
) -> None:
    expected = {name: value for name, value in (arguments | changes).items() if value is not None}
    assert accepted_arguments(arguments, release) == expected


@pytest.mark.parametrize(
    ("arguments", "fix", "release"),
    [*((*row, "") for row in REFUSED), *((*row, "0.16") for row in REFUSED_BY_OLD_RELEASE)],
)
def test_what_megatron_lm_cannot_run_has_a_reason_and_a_fix(
    arguments: dict[str, Any], fix: str, release: str
) -> None:
    with pytest.raises(ConfigError, match=f"^Megatron-LM cannot run this: .*{fix}"):
        accepted_arguments(arguments, release)
    if release:
        accepted_arguments(arguments)


def test_each_rule_has_a_case() -> None:
    assert len(REFUSALS) == len(REFUSED) + len(REFUSED_BY_OLD_RELEASE)
    assert len(ADJUSTMENTS) <= len(ADJUSTED) + len(OF_OLD_RELEASE)


WRITTEN: list[tuple[dict[str, Any], set[str], set[str]]] = [
    (
        {"model": "gpt-oss-20b", "tp": 2, "etp": 1},
        {"--quick-geglu", "--softmax-type learnable", "--expert-tensor-parallel-size 1"},
        {"--swiglu"},
    ),
    (
        {"model": "deepseek-v3", "pp": 8, "ep": 8, "gpus": 64},
        {"--moe-router-score-function sigmoid", "--cross-entropy-fusion-impl native", "--kv-channels 128"},
        {"--tp-comm-overlap", "--sequence-parallel"},
    ),
    (
        {"model": "llama3-8b", "gpus": 16, "zero": 3, "stack": "plain"},
        {"--use-megatron-fsdp", "--ckpt-format fsdp_dtensor"},
        {"--tp-comm-overlap"},
    ),
    ({"model": "llama3-8b", "gpus": 16, "zero": 0}, {"--overlap-grad-reduce"}, {"--overlap-param-gather"}),
    (
        {"model": "gpt3-2.7b", "seq_len": 4096, "cuda_graphs": "full"},
        {"--max-position-embeddings 4096", "--no-check-for-nan-in-loss-and-grad"},
        {"--cuda-graph-modules"},
    ),
    ({"model": "nemotron-h-8b", "pp": 2, "vpp": 2}, {"--is-hybrid-model"}, {"--num-virtual-stages"}),
]


@pytest.mark.parametrize(("words", "lines", "absent"), WRITTEN)
def test_a_written_command_has_these_arguments(words: dict[str, Any], lines: set[str], absent: set[str]) -> None:
    text = ppsim.trainer_options(ppsim.project(**words), "megatron")
    found = {line.removesuffix("\\").strip() for line in text.splitlines()}
    assert lines <= found
    assert not [line for line in found if line.startswith(tuple(absent))]
