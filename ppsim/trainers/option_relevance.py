"""Effects of trainers' options on time and memory, judged by name; and options that ppsim refuses."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.limits import LONGEST_NAME

_CHANGES = (
    (
        "time and memory",
        r"moe_expert_capacity_factor|moe_pad_expert_input_to_capacity|moe_token_drop_policy|"
        r"optimizer_cpu_offload|cpu_offloading.*|delta_offload_bytes_across_pp_ranks|fp4.*|"
        r"window_size|softmax_type|distribute_saved_activations|first_last_layers_bf16|checkpoint_activations|"
        r"num_layers_at_(start|end)_in_bf16|use_torch_fsdp2|rampup_batch_size|"
        r"outer_dp_sharding_strategy|recompute_layer_ids|recompute_num_layers|"
        r"hierarchical_context_parallel_sizes|heterogeneous_layers.*|"
        # TorchTitan
        r"parallelism\.fsdp_reshard_after_forward|"
        r"optimizer\.(name|type)|training\.enable_cpu_offload|training\.dtype|training\.mixed_precision_.*|"
        r"activation_checkpoint\..*|(quantize|float8|mx)\.(?!.*precompute).*|"
        r".*turbo.*(fp8|float8|fp4).*|.*use_moe_fp8|"
        # DeepSpeed
        r"zero_optimization\.(offload_.*|zero_hpz_partition_size|mics_.*|cpu_offload.*|zero_quantized_.*)|"
        r"activation_checkpointing\..*|tensor_parallel\..*|sparse_attention.*|compression_training.*",
    ),
    (
        "time",
        r".*cuda_graph.*|tp_comm_.+|overlap_.*|delay_wgrad_compute|moe_token_dispatcher_type|"
        r"moe_flex_dispatcher.*|moe_enable_deepep|.*_fusion|.*_fusion_impl|attention_backend|"
        r"attention_softmax_in_fp32|cp_comm_type|moe_shared_expert_overlap|.*turbo.*|"
        r"fp8_recipe|moe_router_force_load_balancing|moe_router_dtype|use_.*_op_fuser|communication_method|"
        r"no_persist_layer_norm|torch_compile.*|apply_query_key_layer_scaling|moe_(deepep|hybridep)_num_sms|"
        r"high_priority_stream_groups|ddp_.*|empty_unused_memory_level|compile.*|"
        r"moe_use_fused_router_with_aux_score|"
        # TorchTitan
        r"parallelism\..*|training\.enable_.*|.*\.precompute_.*|debug\..*|optimizer\.implementation|"
        # DeepSpeed
        r"zero_optimization\.(.*bucket_size|.*overlap_comm|contiguous_gradients|reduce_scatter|"
        r"allgather_partitions|round_robin_gradients|stage3_.*|sub_group_size)|communication_data_type",
    ),
    (
        "memory",
        r"fp8_param_gather|main_(params|grads)_dtype|"
        r"accumulate_allreduce_grads_in_fp32|grad_reduce_in_fp32|megatron_fsdp_.*_dtype|keep_fp8_.*|"
        r"reuse_grad_buf.*|optimizer\.early_step_in_backward|data_types\..*",
    ),
)
"""Patterns for whole names of options; TorchTitan's and DeepSpeed's names include the section."""

_INERT = re.compile(
    r"(min_|head_|decoupled_)?lr(_.*)?|lr_scheduler\..*|log_.*|.*_log(_.*)?|.*logger.*|logging_.*|timing_.*|"
    r"log\..*|.*(wandb|tensorboard|mlflow).*|metrics\..*|.*tb_folder|profil(e|ing)([._].*)?|.*profiler.*|"
    r"(no_)?(save|load)(_.*)?|disable_last_saving|.*ckpt.*|checkpoint\..*|pretrained_checkpoint|"
    r"use_checkpoint_opt_param_scheduler|dist_checkpointing.*|"
    r"(.*_)?data(_(path|dir|cache|cache_path|args_path|files?|seed))?|.*dataset.*|dataloader_type|mock_data|"
    r"training\.(dataset.*|mock_data|steps|seed|max_norm|gc_freq|deterministic|dump_folder)|"
    r".*tokenizer.*|.*vocab.*|merge_file|tiktoken.*|"
    r"(adam|sgd|muon)_.*|optimizer\.(params\..*|lr|eps|beta1|beta2|weight_decay)|(start_|end_)?weight_decay.*|clip_grad|"
    r"init_method.*|(train|eval|val)_(iters|samples|interval|steps)|max_steps|"
    r"limit_val_batches|val_check_interval|split|(.*_)?seed|exit_.*|rerun_.*|"
    r"inference_.*|rl_.*|grpo_.*|langrl.*|rotary_.*|rope_.*|yarn_.*|mscale.*|fim_.*|"
    r"norm_epsilon|layernorm_epsilon|finetune|distributed_(backend|timeout_minutes)|use_mcore_models|manual_gc.*|"
    r"num_workers|calculate_per_token_loss|override_opt.*|.*_sink_level|eod_mask_loss|reset_position_ids|"
    r"auto_continue_train|disable_.*(wandb|tensorboard|mlflow)|(initial_|min_)?loss_scale|hysteresis|"
    r"short_seq_prob|async_(save|strategy|mode)|use_persistent.*|verify_integrity|error_injection.*|"
    r".*straggler.*|world_size|rank|local_rank|check_.*|use_legacy_models|model_type|trainable|exp_name|"
    r"primus_.*|trust_remote_code|skip_train|barrier_with_L1_time|hf_path|use_cpu_initialization|"
    r"perform_initialization|retro_.*|dino_.*|biencoder.*|bert_.*|iteration|consumed_.*|params_dtype|"
    r"master_(addr|port)|node_rank|nnodes|nproc_per_node|rdzv_.*|standalone|max_restarts|tee|redirects|"
    r"data_parallel_size|test_mode|disable_gloo_process_groups|"
    r"enable_(gloo_process_groups|one_logger|experimental)|te_rng_tracker|mmap_bin_files|"
    r"max_tokens_to_oom|prompts?|temperature|top_[kpn](_.*)?|num_tokens_to_generate|output_path|"
    r"return_log_probs|incoming_requests.*|empty|sample_rate|.*_probs?|job\..*|experimental\..*|"
    # DeepSpeed
    r"(fp16|bf16|amp)\..*|gradient_clipping|steps_per_print|wall_clock_breakdown|scheduler(\..*)?|"
    r"(monitor|csv_monitor|flops_profiler|comms_logger|tensorboard|wandb|aio|elasticity)(\..*)?|"
    r"zero_allow_untested_optimizer|zero_force_ds_cpu_optimizer|dump_state|prescale_gradients|"
    r"gradient_predivide_factor|zero_optimization\.(stage|elastic_checkpoint|load_from_fp32_weights)"
)
"""Names of options that change neither the time nor the memory of a step, unless they match `_SUSPECT`."""

_SUSPECT = re.compile(
    r"lora|peft|adapter|freez|frozen|trainable_|vision|image|img|patch|video|audio|speech|sound|modal|encoder|"
    r"decoder|distill|teacher|student|draft|spars|quant|prun|low_rank|expert|moe|capacity|router|attention|attn|"
    r"window|sinks?$|sink_(?!level)|recompute|activation|offload|fp4|fp6|fp8|int8|mxfp|fsdp|hsdp|shard|zero_|compile|fuse|fusion|"
    r"parallel|overlap|pipeline|mtp|mamba|ssm|layer|block|chunk|ffn|mlp|hidden|head|embed|kv_|qk_|pack|"
    r"sequence|seq_len|grad_accum|accumulat|buffer|_dim$|_size$"
)

_KNOWN_INERT = frozenset({
    "activation_checkpoint.selective_ac_option", "adam_beta1", "apply_layernorm_1p", "attention_dropout",
    "bert_embedder_type", "bert_no_binary_head", "biencoder_projection_dim", "biencoder_shared_query_context_model",
    "check_weight_hash_across_dp_replicas_interval", "ckpt_assume_constant_structure",
    "ckpt_fully_parallel_load", "ckpt_fully_parallel_save", "create_attention_mask_in_dataloader",
    "data_parallel_sharding_strategy", "data_parallel_size", "data_sharding", "dataloader_seq_length",
    "decoder_seq_length", "dino_freeze_last_layer", "dino_head_hidden_size", "dino_local_img_size",
    "dino_norm_last_layer", "dino_teacher_temp", "dino_warmup_teacher_temp",
    "dino_warmup_teacher_temp_epochs", "dist_ckpt_optim_fully_reshardable", "encoder_seq_length",
    "fp8_amax_compute_algo", "fp8_amax_history_len", "fp8_interval", "fp8_margin", "glu_linear_offset",
    "grpo_group_size", "head_lr_mult", "is_hybrid_model", "kv_channels", "kv_lora_rank",
    "language_model_checkpoint", "layernorm_epsilon",
    "log_batch_size_to_tensorboard", "log_world_size_to_tensorboard", "loss_scale_window", "lr_mult_router",
    "make_vocab_size_divisible_by", "max_position_embeddings", "moe_aux_loss_coeff", "moe_per_layer_logging",
    "moe_router_bias_update_rate", "moe_router_group_topk", "moe_router_load_balancing_type",
    "moe_router_num_groups", "moe_router_pre_softmax", "moe_router_score_function",
    "moe_router_topk_scaling_factor", "moe_z_loss_coeff", "mscale_all_dim", "mtp_loss_scaling_factor",
    "optimizer.params.freeze_step", "optimizer.params.var_freeze_step",
    "original_max_position_embeddings", "q_lora_rank", "qk_head_dim", "qk_layernorm", "qk_pos_emb_head_dim",
    "reset_attention_mask", "retro_chunk_length", "tensorboard_queue_size", "v_head_dim", "vocab_size",
    "world_size", "yarn_original_max_position_embeddings",
})  # fmt: skip
"""Options that were looked up one by one (megatron/training/arguments.py): no effect, or none in addition to the
options that ppsim reads.
"""

DEFAULTS: dict[str, Any] = {
    "gtp_weight_remat_size": 1, "expert_gtp_weight_remat_size": 1, "tp_comm_bulk_wgrad": True,
    "tp_comm_bulk_dgrad": True, "tp_comm_overlap_ag": True, "tp_comm_overlap_rs": True, "tp_comm_split_ag": True,
    "tp_comm_split_rs": True, "tp_comm_bootstrap_backend": "nccl", "batch_p2p_comm": True,
    "batch_p2p_sync": True, "softmax_type": "vanilla", "qk_clip_alpha": 0.5, "qk_clip_threshold": 100,
    "dsa_indexer_topk_freq": 1, "dsa_indexer_rotate_activation": True, "dsa_indexer_scoring_relu": True,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "mup_width_mult": 1.0, "mup_embedding_mult": 1.0,
    "mup_output_mult": 1.0, "mup_attn_scale_power": 1.0, "fp8_wgrad": True,
    "num_layers_at_start_in_bf16": 1, "num_layers_at_end_in_bf16": 1, "kitchen_attention_backend": "sdpa",
    "fp4_recipe": "nvfp4", "moe_layer_freq": 1, "moe_router_topk": 2, "moe_token_dispatcher_type": "allgather",
    "moe_flex_dispatcher_backend": "deepep", "moe_token_drop_policy": "probs",
    "moe_hybridep_num_sms_preprocessing": 108, "moe_dispatch_fwd_dtype": "bf16", "moe_combine_bwd_dtype": "bf16",
    "cuda_graph_use_single_mempool": True, "cuda_graph_warmup_steps": 3, "mhc_num_residual_streams": 4,
    "mhc_sinkhorn_iterations": 20, "mhc_init_gating_factor": 0.01, "clone_scatter_output_in_embedding": True,
    "batch_invariant_backend": "te_native", "mamba_state_dim": 128, "mamba_head_dim": 64, "mamba_num_groups": 8,
    "gdp_num_householder": 3, "gdp_num_chunk_states_to_recompute": 2, "mlp_chunks_for_prefill": 1,
    "mlp_chunks_for_training": 1, "moe_paged_stash_page_size": 64,
    "moe_paged_stash_buffer_size_factor_cuda": 1.1, "beta_fast": 32, "beta_slow": 1, "megatron_fsdp_version": 1,
    "gradient_reduce_div_fusion": True, "fsdp_all_gather_in_start_param_sync": True,
    "store_param_remainders": True, "decoupled_weight_decay": True, "lion_beta1": 0.95, "lion_beta2": 0.98,
    "soap_shampoo_beta": 0.95, "soap_use_kl_shampoo": True, "adaptive_muon_moment2_method": "adamuon",
    "adaptive_muon_beta2": 0.95, "adaptive_muon_eps": 1e-08, "pin_cpu_grads": True, "pin_cpu_params": True,
}  # fmt: skip
"""Defaults of Megatron-Core (its configuration classes at d98e8a64), which a printed configuration states too."""

_GENERATION = re.compile(r"inference_.*|rl_.*|retro_.*|checkpoint\..*|profiling\..*|metrics\..*|lr_scheduler\..*")
"""Parts that do not belong to the training step, whatever the names of their options suggest."""


def effect_of(name: str) -> str:
    """Return "time", "memory", "time and memory", "unknown", or "" for none.

    >>> effect_of("optimizer_cpu_offload"), effect_of("adam_beta1"), effect_of("encoder_layers_frozen")
    ('time and memory', '', 'unknown')
    """
    if len(name) > LONGEST_NAME:
        return "unknown"
    if name in _KNOWN_INERT or _GENERATION.fullmatch(name):
        return ""
    for what, names in _CHANGES:
        if re.fullmatch(names, name):
            return what
    return "" if _INERT.fullmatch(name) and not _SUSPECT.search(name) else "unknown"


_ADAPTER = re.compile(r"(?:^|_)(?:q?lora|dora|peft)(?:_|$)", re.IGNORECASE)
_FROZEN = re.compile(r"(?:^|_)(?:un)?(?:freez\w*|frozen)(?:_|$)", re.IGNORECASE)
_OTHERS = re.compile(r"(?:.*_)?(?:q|k|v|kv|o|qk|qkv)_lora(?:_.*)?|dino_.*", re.IGNORECASE)
"""Names that look like adapters or frozen weights, but are not: low-rank projections of latent attention, and
`dino_freeze_last_layer`, which is in Megatron-LM's logs by default.
"""

_SECTIONS_OF_WEIGHTS = ("model", "config", "modules", "overrides", "train", "training", "trainer", "MODEL_ARGS")
"""Sections with adapters or frozen weights. Elsewhere, the word has another meaning: `optimizer.params.freeze_step`
of 1-bit Adam, or the contents of a table.
"""

_SWITCH = re.compile(r"(?:(?:use_|enable_)?(?:lora|peft)_?)?(?:enabled?|scheme|type|method|rank|r|dim|_target_)?")
"""Switches of adapters: if one is off, the other options of the adapter have no effect."""

_OFF = ("", "none", "null", "false", "no", "off", "0", "full", "[]")


def require_full_training(options: Mapping[str, Any], source: str) -> None:
    """Raise `ConfigError` for adapters (LoRA) or frozen weights, at the top or in a section for weights.

    >>> require_full_training({"q_lora_rank": 1536, "peft": {"peft_scheme": None, "lora_tuning": {"dim": 32}}}, "F")
    >>> try:
    ...     require_full_training({"overrides": {"lora": {"enabled": True, "dim": 32}}}, "F")
    ... except ConfigError as error:
    ...     print(error)
    F: overrides.lora.enabled true trains only some of the weights, which is not read here: remove it, and give \
--lora RANK or --freeze MODULES
    """
    adapters: dict[str, list[tuple[str, Any]]] = {}
    for path, value in config_values(options):
        parts = path.split(".")
        first = _place(parts, _ADAPTER)
        if _place(parts, _FROZEN) is not None and _is_on(value):
            raise _partial(source, path, value)
        if first is not None:
            adapters.setdefault(".".join(parts[:first]), []).append((path, value))
        elif parts[-1] == "converters" and "lora" in str(value).lower():  # TorchTitan
            raise _partial(source, path, value)
    for found in adapters.values():
        switches = [one for one in found if _SWITCH.fullmatch(one[0].rpartition(".")[2])]
        on = [one for one in (*switches, *found) if _is_on(one[1])]
        if on and all(_is_on(value) for _, value in switches):
            raise _partial(source, *on[0])


_SIZE = re.compile(
    r"(?:.*_)?(?:tp|pp|cp|ep|dp|sp)(?:_size|_degree)?|.*parallel(?:_\w+)?_(?:size|degree)|autotp_size"
)


def require_no_sizes(unread: Mapping[str, Any], source: str) -> None:
    """Raise `ConfigError` for a parallel size above 1 among options that are not read."""
    for path, size in config_values(unread):
        is_size = isinstance(size, int) and not isinstance(size, bool) and size > 1
        if is_size and _SIZE.fullmatch(path.rpartition(".")[2]):
            raise ConfigError(
                f"{source}: {path} {size} is a parallel size that is not read here: remove it, and give --tp, "
                "--pp, --cp or --ep"
            )


def _place(parts: Sequence[str], pattern: re.Pattern[str]) -> int | None:
    """Return the index of the first part that matches, or None if its section is not one for weights."""
    found = (at for at, part in enumerate(parts) if pattern.search(part) and not _OTHERS.fullmatch(part))
    first = next(found, None)
    return None if first and parts[0] not in _SECTIONS_OF_WEIGHTS else first


def config_values(options: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value that is not a section, with its path through the sections.

    >>> list(config_values({"zero": {"stage": 1}, "steps": 2}))
    [('zero.stage', 1), ('steps', 2)]
    """
    for name, value in options.items():
        path = above + str(name).lstrip("-").replace("-", "_")
        if isinstance(value, dict):
            yield from config_values(value, f"{path}.")
        else:
            yield path, value


def _is_on(value: Any) -> bool:
    return value.strip().lower() not in _OFF if isinstance(value, str) else bool(value)


def _partial(source: str, path: str, value: Any) -> ConfigError:
    shown = str(value).lower() if isinstance(value, bool) else value
    return ConfigError(
        f"{source}: {path} {shown} trains only some of the weights, which is not read here: remove it, and give "
        "--lora RANK or --freeze MODULES"
    )
