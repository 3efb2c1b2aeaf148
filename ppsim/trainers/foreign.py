"""Programs whose configurations ppsim does not read, known by keys of their files and by names of commands."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ppsim.base.errors import ConfigError

_KEYS = {
    "nanotron": ("parallelism.pp_engine", "tokens.micro_batch_size"),
    "OLMo": ("model.max_sequence_length", "model.mlp_ratio"),
    "llm-foundry": ("device_train_microbatch_size", "max_seq_len", "icl_tasks", "eval_gauntlet",
        "integrations image"),
    "GPT-NeoX": ("pipe_parallel_size", "model_parallel_size", "train_data_paths", "attention_config",
        "text_gen_type", "checkpoint_validation_with_forward_pass", "data_impl"),
    "verl": ("actor_rollout_ref", "train_files", "data.train_files", "rollout_n", "ppo_mini_batch_size",
        "reward_manager", "use_reward_loop", "ulysses_sequence_parallel_size", "ray_kwargs",
        "log_prob_use_dynamic_bsz", "nccl_timeout"),
    "NeMo-RL": ("policy.megatron_cfg", "policy.dtensor_cfg", "policy.model_name", "policy.generation", "grpo",
        "policy.train_global_batch_size", "policy.max_total_sequence_length", "cluster.gpus_per_node",
        "cluster.num_nodes", "data_plane"),
    "LLaMA-Factory": ("finetuning_type", "model_name_or_path template", "model_name_or_path stage",
        "model_class model", "peft_config model"),
    "ms-swift": ("train_type", "tuner_type", "rlhf_type", "load_data_args", "sampler_engine"),
    "axolotl": ("base_model datasets", "base_model micro_batch_size", "base_model sequence_len"),
    "MaxText": ("ici_fsdp_parallelism", "per_device_batch_size", "base_config", "base_emb_dim",
        "base_num_decoder_layers", "logical_axis_rules"),
    "ROLL": ("actor_train", "rollout_batch_size prompt_length"),
    "torchtune": ("model._component_", "policy_model._component_"),
    "SkyPilot": ("resources run",),
    "Megatron-Bridge's model cards": ("verification_index",),
    "LitGPT": ("train.lr_warmup_steps", "litdata"),
    "Hugging Face accelerate": ("distributed_type",),
    "Hugging Face TRL": ("per_device_train_batch_size", "model_name_or_path"),
}  # fmt: skip
"""Keys that mark a program's files; several in one string mark one together. The first such program is named."""

_PROGRAMS = {
    "verl": r"verl\..*",
    "ms-swift": r"swift|megatron|swift\.cli\..*|.*/swift/cli/\w+\.py",
    "LLaMA-Factory": r"llamafactory-cli|.*/llamafactory/\w+\.py",
    "axolotl": r"axolotl(\..*)?",
    "MaxText": r"(?i:maxtext)\..*|.*/(?i:maxtext)/.*\.py",
    "nanotron": r".*run_train\.py",
    "llm-foundry": r"composer",
    "GPT-NeoX": r".*deepy\.py",
    "NeMo-RL": r".*run_(grpo|sft|dpo)\w*\.py",
    "torchtune": r"tune",
    "LitGPT": r"litgpt",
    "OpenRLHF": r"openrlhf\..*",
}
"""Names of the programs' commands."""


def require_known_program(content: Mapping[str, Any], source: str) -> None:
    """Raise `ConfigError` for a configuration of a program that ppsim does not read."""
    plain = {str(name).replace("-", "_"): section for name, section in content.items()}
    for program, keys in _KEYS.items():
        if any(all(_has(plain, key.split(".")) for key in marks.split()) for marks in keys):
            raise unread(program, source)
    if of_target := program_of([str(content.get("_target_"))]):
        raise unread(of_target, source)


def program_of(command: Sequence[str]) -> str | None:
    """Return the program that ppsim does not read and that one of the words names, None for any other."""
    return next(
        (name for name, sign in _PROGRAMS.items() if any(re.fullmatch(sign, word) for word in command)), None
    )


def unread(program: str, source: str) -> ConfigError:
    return ConfigError(
        f"{source} is a configuration of {program}, which ppsim does not read: give --model and its settings as "
        "options, for example --gpus, --tp, --pp, --micro-batch-size, --global-batch-size and --seq-len"
    )


def _has(content: Any, path: list[str]) -> bool:
    if not path:
        return True
    return isinstance(content, Mapping) and path[0] in content and _has(content[path[0]], path[1:])
