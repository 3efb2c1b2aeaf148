"""Programs whose configurations ppsim does not read, known by keys of their files and by names of commands."""

import re
from collections.abc import Mapping
from typing import Any

from ppsim.base.errors import ConfigError

_KEYS = {
    "nanotron": ("parallelism.pp_engine", "tokens.micro_batch_size"),
    "llm-foundry": ("device_train_microbatch_size", "max_seq_len"),
    "OLMo": ("device_train_microbatch_size", "global_train_batch_size"),
    "GPT-NeoX": ("pipe_parallel_size", "model_parallel_size"),
    "verl": ("actor_rollout_ref",),
    "NeMo-RL": ("policy.megatron_cfg", "policy.train_global_batch_size"),
    "LLaMA-Factory": ("finetuning_type", "model_name_or_path"),
    "ms-swift": ("train_type", "tuner_type"),
    "axolotl": ("base_model", "datasets"),
    "MaxText": ("ici_fsdp_parallelism", "per_device_batch_size"),
    "torchtune": ("model._component_",),
    "LitGPT": ("train.lr_warmup_steps", "litdata"),
    "Hugging Face accelerate": ("distributed_type",),
    "Hugging Face TRL": ("per_device_train_batch_size",),
}
"""Keys of which one marks a file of the program; the first program with one is named."""

_PROGRAMS = {
    "verl": r"verl\.",
    "ms-swift": r"swift$|megatron$",
    "LLaMA-Factory": r"llamafactory-cli$",
    "axolotl": r"axolotl",
    "MaxText": r"MaxText",
    "nanotron": r"run_train\.py$",
    "llm-foundry": r"composer$",
    "GPT-NeoX": r"deepy\.py$",
    "NeMo-RL": r"run_(grpo|sft|dpo)\w*\.py$",
}


def require_known_program(content: Mapping[str, Any], source: str) -> None:
    """Raise `ConfigError` for a configuration of a program that ppsim does not read."""
    plain = {str(name).replace("-", "_"): value for name, value in content.items()}
    for program, keys in _KEYS.items():
        if any(_has(plain, key.split(".")) for key in keys):
            raise unread(program, source)


def program_of(words: tuple[str, ...]) -> str | None:
    """Return the program that ppsim does not read and that a command starts, None for any other."""
    return next((name for name, sign in _PROGRAMS.items() if any(re.search(sign, word) for word in words)), None)


def unread(program: str, source: str) -> ConfigError:
    return ConfigError(
        f"{source} is a configuration of {program}, which ppsim does not read: give --model and its settings as "
        "options, for example --gpus, --tp, --pp, --micro-batch-size, --global-batch-size and --seq-len"
    )


def _has(content: Any, path: list[str]) -> bool:
    if not path:
        return True
    return isinstance(content, Mapping) and path[0] in content and _has(content[path[0]], path[1:])
