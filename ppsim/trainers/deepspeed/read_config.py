"""Reader of DeepSpeed's JSON configuration."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.limits import short_text
from ppsim.trainers.arguments import Arguments
from ppsim.trainers.option_relevance import config_values
from ppsim.trainers.run_config import RunConfig

_AUTO = {
    "train_micro_batch_size_per_gpu": ("micro_batch", "--micro-batch-size"),
    "train_batch_size": ("global_batch", "--global-batch-size"),
    "gradient_accumulation_steps": ("microbatches", "--num-microbatches or --global-batch-size"),
    "bf16.enabled": ("dtype", "--dtype"),
    "fp16.enabled": ("dtype", "--dtype"),
}
"""Settings that may be "auto", each with the option of ppsim that sets it instead (name, flags)."""


def claims(content: Mapping[str, Any]) -> bool:
    return bool({"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"} & content.keys())


def from_deepspeed(content: Mapping[str, Any], path: Path) -> RunConfig:
    """The launching program decides "auto"; ppsim takes the value from an option instead."""
    source = str(path)
    if "bf16" not in content and "bfloat16" in content:  # the older name (runtime/precision_config.py)
        content = {"bf16" if name == "bfloat16" else name: value for name, value in content.items()}
    for name in ("zero_optimization", "bf16", "fp16"):
        _require_object(content, name, source)
    given = {name: value for name, value in config_values(content) if not _is_of_no_device(content, name)}
    arguments = Arguments({name: value for name, value in given.items() if value != "auto"}, source)
    micro = arguments.count("train_micro_batch_size_per_gpu", word="micro_batch")
    steps = arguments.count("gradient_accumulation_steps", word="microbatches")
    global_batch = arguments.count("train_batch_size", word="global_batch")
    zero = arguments.count("zero_optimization.stage", 0, word="zero", least=0)
    enabled = {name for name in ("fp16", "bf16") if arguments.flag(f"{name}.enabled", word="dtype")}
    accumulated = str(arguments.get("data_types.grad_accum_dtype", word="grad_reduce_in_bf16"))
    in_bf16, states = "bf16_master_weights_and_grads", "bf16_optimizer_states"
    has_states = arguments.flag(f"bf16.{states}", word="exp_avg_dtype")
    # ZeRO 1 and 2 gather the parameters at the end of `step` (runtime/zero/stage_1_and_2.py).
    overlaps = arguments.flag("zero_optimization.overlap_comm", default=zero == 3, word="overlap_grad_reduce")
    options = {
        in_bf16: arguments.flag(f"bf16.{in_bf16}", word=in_bf16) or None,
        "exp_avg_dtype": "bfloat16" if has_states else None,
        "micro_batch": micro,
        "global_batch": global_batch,
        "microbatches": None if global_batch else steps,
        "zero": zero,
        "dtype": "bfloat16" if "bf16" in enabled else "float16" if "fp16" in enabled else "float32",
        "overlap_grad_reduce": overlaps,
        "overlap_param_gather": (overlaps and zero == 3) if zero else None,
    }
    autos = {name: word for name, word in _AUTO.items() if given.get(name) == "auto"}
    if "train_batch_size" in autos:
        autos.pop("gradient_accumulation_steps", None)
    if enabled or "bf16.enabled" in autos:
        autos.pop("fp16.enabled", None)
    if "dtype" in (word for word, _ in autos.values()):
        options["dtype"] = "bfloat16" if enabled else None
    if options["dtype"] != "float32":  # by default, gradients have the dtype of weights (runtime/engine.py)
        options["grad_reduce_in_bf16"] = accumulated.removeprefix("torch.") not in ("fp32", "float32")
    arguments.needed |= {
        word: (f'{name} is "auto", which the program that starts the run sets', option)
        for name, (word, option) in autos.items()
        if options[word] is None
    }
    reason = f"{source}: DeepSpeed's configuration has no model: give --model"
    return arguments.config("DeepSpeed", options, None, reason)


def _is_of_no_device(content: Mapping[str, Any], path: str) -> bool:
    """Return whether an option is in a section that offloads to the device "none", DeepSpeed's default."""
    section, _, name = path.removeprefix("zero_optimization.").partition(".")
    zero = content.get("zero_optimization") or {}
    return bool(name) and section.startswith("offload_") and zero[section].get("device") in (None, "none")


def _require_object(content: Mapping[str, Any], name: str, source: str) -> None:
    section = content.get(name)
    if section is not None and not isinstance(section, dict):
        example = '{"stage": 1}' if name == "zero_optimization" else '{"enabled": true}'
        raise ConfigError(f'{source}: {name} must be an object, "{name}": {example}: got {short_text(section)}')
