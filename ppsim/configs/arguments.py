"""Megatron-LM's arguments by their names in `args`, whatever text held them, and which of them were read."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.limits import LARGEST, count_from
from ppsim.configs.run_config import Ignored

_RENAMED = {
    "disable_bias_linear": ("add_bias_linear", False),
    "recompute_activations": ("recompute_granularity", "selective"),
    "no_rope_fusion": ("apply_rope_fusion", False),
    "no_overlap_p2p_communication": ("overlap_p2p_comm", False),
    "no_position_embedding": ("add_position_embedding", False),
    "use_rotary_position_embeddings": ("position_embedding_type", "rope"),
    "use_flash_attn": ("attention_backend", "flash"),
}
"""Flags whose name in `args` is another, with the value that they set (megatron/training/arguments.py)."""

_SPELLED = {
    "fp8_format": "fp8",
    "fp4_format": "fp4",
    "microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group_size_per_vp_stage",
    "num_moe_experts": "num_experts",
    "gated_linear_unit": "swiglu",
}
"""Other spellings of names in `args`, with a value each."""


def normalised(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by the names that Megatron-LM's `args` has for them; a flag without a value is True."""
    found: dict[str, Any] = {}
    for option, value in given.items():
        name = option.lstrip("-").replace("-", "_")
        value = _plain(value)
        if name in _RENAMED and value is not False:
            name, value = _RENAMED[name]
        elif name == "share_embeddings_and_output_weights":
            name, value = "untie_embeddings_and_output_weights", not value
        elif name.startswith("no_") and value is True:
            name, value = name[3:], False
        found[_SPELLED.get(name, name)] = value
    return found


def _plain(value: Any) -> Any:
    """A value as Python's own: numbers and words of a command line, a log or YAML."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not isinstance(value, str):
        return value
    text = value.strip()
    words = {"true": True, "false": False, "none": None, "null": None, "": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if -LARGEST < number < LARGEST else text
    return text


class Arguments:
    """Arguments of a run, which remember those that were read.

    `source` is put in front of what is wrong. `asked` are those that the user wrote, where the file has defaults
    too; a file that has them all, and doesn't say which those are, `is_complete`.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        source: str,
        asked: Iterable[str] | None = None,
        *,
        is_complete: bool = False,
    ) -> None:
        self._values, self.source, self._is_complete = values, source, is_complete
        self._asked = set(values if asked is None else asked)
        self._read: dict[str, str] = {}
        self.assumed: list[str] = []

    def get(self, name: str, default: Any = None, *, word: str = "model") -> Any:
        """The value of an argument, or the default where it is not there or None; `word` is what it is read for."""
        self._read[name] = word
        value = self._values.get(name)
        return default if value is None else value

    def flag(self, name: str, *, default: bool = False, word: str = "model") -> bool:
        """Whether a flag is set."""
        value = self.get(name, default, word=word)
        if isinstance(value, str) and value.startswith("$"):  # a flag, and a variable with further options
            return True
        if not isinstance(value, bool | int):
            raise ConfigError(f"{self.source}: {name} must be true or false: got {value!r}")
        return bool(value)

    def count(self, name: str, default: int | None = None, *, word: str = "model", least: int = 1) -> int | None:
        """A whole number of `least` or more, or the default."""
        value = self.get(name, default, word=word)
        if value is None:
            return None
        if isinstance(value, str) and "$" in value:
            raise ConfigError(f"{self.source}: {name} is {value}, which the file does not set")
        return count_from(value, f"{self.source}: {name}", least=least)

    def number(self, name: str, default: int, *, least: int = 1) -> int:
        """A whole number of `least` or more, the default where none is there."""
        value = self.count(name, least=least)
        return default if value is None else value

    def need(self, name: str, *others: str) -> int:
        """A whole number of 1 or more under any of these names; raises `ConfigError` where none is there."""
        for known in (name, *others):
            value = self.count(known)
            if value is not None:
                return value
        raise ConfigError(f"{self.source}: {name} is missing")

    def has(self, name: str) -> bool:
        """Whether an argument is there and neither false nor 0; it counts as read only if so."""
        return bool(self._values.get(name)) and bool(self.get(name))

    def asks(self, name: str) -> bool:
        """Whether the user wrote an argument, and not false."""
        return name in self._asked and bool(self._values.get(name))

    @property
    def ignored_that_matter(self) -> tuple[Ignored, ...]:
        """What was not read and is known to matter."""
        return tuple(ignored for ignored in self.ignored if ignored.matters != "unknown")

    @property
    def understood(self) -> tuple[tuple[str, str], ...]:
        """What the user wrote and was read, with the word it went to."""
        return tuple((name, word) for name, word in self.read if name in self._asked)

    @property
    def read(self) -> tuple[tuple[str, str], ...]:
        """What was read and is there, the file's defaults too."""
        return tuple((name, word) for name, word in self._read.items() if self._values.get(name) is not None)

    @property
    def unread(self) -> list[tuple[str, Any]]:
        """What the user wrote, is not off, and was not read."""
        return [
            (name, value)
            for name, value in self._values.items()
            if name in self._asked and name not in self._read and value
        ]

    @property
    def ignored(self) -> tuple[Ignored, ...]:
        """What the user wrote and was not read, but for what changes nothing and what is off."""
        found = [Ignored(name, value, matters) for name, value in self.unread if (matters := matters_for(name))]
        return tuple(one for one in found if one.matters != "unknown" or not self._is_complete)


_MATTERS = (
    (
        "time and memory",
        r"moe_expert_capacity_factor|moe_pad_expert_input_to_capacity|"
        r"optimizer_cpu_offload|cpu_offloading.*|fine_grained_activation_offloading|offload_modules|fp4.*|"
        r"window_size|softmax_type|distribute_saved_activations|first_last_layers_bf16|"
        r"num_layers_at_(start|end)_in_bf16|use_torch_fsdp2|num_distributed_optimizer_instances|rampup_batch_size|"
        r"hierarchical_context_parallel_sizes|heterogeneous_layers.*|defer_embedding_wgrad_compute",
    ),
    (
        "time",
        r".*cuda_graph.*|tp_comm_.+|overlap_.*|delay_wgrad_compute|moe_token_dispatcher_type|"
        r"moe_flex_dispatcher.*|moe_enable_deepep|.*_fusion|.*_fusion_impl|attention_backend|"
        r"attention_softmax_in_fp32|cp_comm_type|moe_grouped_gemm|moe_shared_expert_overlap|.*turbo.*|"
        r"fp[48]_recipe|moe_router_force_load_balancing|moe_router_dtype|use_.*_op_fuser|communication_method|"
        r"bias_.*_fusion|no_persist_layer_norm|torch_compile.*|apply_query_key_layer_scaling|"
        r"wgrad_deferral_limit|high_priority_stream_groups|ddp_.*|empty_unused_memory_level|compile.*",
    ),
    (
        "memory",
        r"fp8_param_gather|main_(params|grads)_dtype|"
        r"accumulate_allreduce_grads_in_fp32|grad_reduce_in_fp32|megatron_fsdp_.*_dtype|keep_fp8_.*|"
        r"reuse_grad_buf.*",
    ),
    (
        "",
        r"(min_|head_|decoupled_)?lr(_.*)?|.*(log|logger|wandb|tensorboard|mlflow).*|(no_)?(save|load)(_.*)?|"
        r".*ckpt.*|.*checkpoint.*|.*data(set|loader)?(_.*)?|.*dataset.*|.*tokenizer.*|.*vocab.*|merge_file|tiktoken.*|"
        r"(adam|sgd|muon)_.*|weight_decay.*|(start|end)_weight_decay|clip_grad|init_method.*|(train|eval)_.*|"
        r"split|seed|timing_.*|exit_.*|rerun_.*|inference_.*|rl_.*|grpo_.*|langrl.*|rotary_.*|rope_.*|yarn_.*|mscale.*|"
        r"norm_epsilon|layernorm_epsilon|moe_(aux|z)_loss_coeff|moe_router_(load_balancing_type|score_function|"
        r"pre_softmax|topk_scaling_factor|num_groups|group_topk|bias_update_rate)|max_position_embeddings|finetune|"
        r"distributed_(backend|timeout_minutes)|use_mcore_models|manual_gc.*|num_workers|mock_data|calculate_per_token_loss|"
        r"override_opt.*|.*_sink_level|disable_last_saving|eod_mask_loss|reset_.*|create_attention_mask.*|"
        r"auto_continue_train|profile.*|use_pytorch_profiler|disable_.*(wandb|tensorboard|mlflow)|dist_ckpt.*|"
        r"mtp_loss_scaling_factor|(initial_|min_)?loss_scale.*|hysteresis|bert_.*|mask_.*|short_seq_prob|"
        r"async_.*|use_persistent.*|verify_integrity|error_injection.*|.*straggler.*|world_size|rank|local_rank|"
        r"check_.*|use_legacy_models|model_type|trainable|primus.*|exp_name|trust_remote_code|skip_train|"
        r"original_max_position_embeddings|qk_l2_norm|barrier_with_L1_time|hf_path|use_cpu_initialization|"
        r"perform_initialization|retro_.*|dino_.*|biencoder.*|iteration|consumed_.*|params_dtype|kv_lora_rank|"
        r"master_(addr|port)|node_rank|nnodes|nproc_per_node|rdzv_.*|standalone|max_restarts|tee|redirects|"
        r"data_parallel_size|encoder_.*|decoder_.*|.*_seed|test_mode|rotary_base|disable_gloo_process_groups|"
        r"enable_(gloo_process_groups|one_logger|experimental)|te_rng_tracker|mmap_bin_files|logging_level|"
        r"moe_per_layer_logging|spec|v_head_dim|q(k)?_.*|max_tokens_to_oom|fim_.*|prompts?|temperature|top_.*|"
        r"num_tokens_to_generate|output_path|return_log_probs|incoming_requests.*|empty|sample_rate|.*_probs?",
    ),
)
"""Of names in `args`, what they matter for in a step; "" are those that change neither its time nor its memory."""


def matters_for(name: str) -> str:
    """Return what an argument matters for: "time", "memory", "time and memory", "unknown", or "" for nothing."""
    for what, names in _MATTERS:
        if re.fullmatch(names, name):
            return what
    return "unknown"
