"""DeepSpeed's JSON, and the YAML or JSON that Megatron-Bridge and NeMo write of a run."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.limits import count_from, shown
from ppsim.base.words import given_of
from ppsim.configs.arguments import Arguments, normalised
from ppsim.configs.megatron import BRIDGE, from_megatron
from ppsim.configs.run_config import Ignored, RunConfig

_SECTIONS = ("model", "train", "dataset", "data", "optimizer", "ddp", "tokenizer", "mixed_precision", "trainer",
             "strategy", "config", "comm_overlap", "dist", "checkpoint", "scheduler", "rng")  # fmt: skip
_RENAMED = {
    "sequence_length": "seq_length",
    "devices": "nproc_per_node",
    "num_nodes": "nnodes",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "add_bias": "add_bias_linear",
    "encoder_seq_length": "seq_length",
}


def from_sections(content: Mapping[str, Any], source: str) -> RunConfig:
    """Return what Megatron-Bridge's or NeMo's configuration says: sections whose fields are Megatron-Core's."""
    flat: dict[str, Any] = {}
    _flatten(content, flat)
    found = from_megatron(Arguments(normalised(flat), source), BRIDGE)
    return replace(found, words={**found.words, "stack": "megatron-bridge"})


def _flatten(content: Mapping[str, Any], flat: dict[str, Any]) -> None:
    for name, value in content.items():
        *sections, field = str(name).split(".")
        if isinstance(value, dict):
            if field in _SECTIONS:
                _flatten(value, flat)
        elif not sections or all(section in _SECTIONS for section in sections):
            flat.setdefault(_RENAMED.get(field, field), value)


def from_deepspeed(content: Mapping[str, Any], source: str) -> RunConfig:
    """Return what a DeepSpeed configuration says: batch, ZeRO and number format, but neither model nor pipeline."""
    arguments = Arguments(content, source)
    micro = arguments.count("train_micro_batch_size_per_gpu", word="micro_batch")
    steps = arguments.count("gradient_accumulation_steps", word="microbatches")
    whole = arguments.count("train_batch_size", word="global_batch")
    zero = _section(content, "zero_optimization", source)
    enabled = {name for name in ("fp16", "bf16") if _section(content, name, source).get("enabled")}
    words = {
        "micro_batch": micro,
        "global_batch": whole,
        "microbatches": None if whole else steps,
        "zero": count_from(zero.get("stage", 0), f"{source}: zero_optimization.stage", most=3),
        "dtype": "bfloat16" if "bf16" in enabled else "float16" if "fp16" in enabled else "float32",
        "overlap_dp": bool(zero.get("overlap_comm", zero.get("stage", 0) == 3)),
    }
    ignored = [
        Ignored(f"zero_optimization.{name}", value, "time and memory")
        for name, value in zero.items()
        if name.startswith("offload") and value
    ]
    return RunConfig(
        "DeepSpeed",
        source,
        given_of(words),
        None,
        f"{source}: DeepSpeed's configuration has no model: give --model",
        arguments.understood,
        tuple(ignored),
    )


def _section(content: Mapping[str, Any], name: str, source: str) -> dict[str, Any]:
    """An object of DeepSpeed's configuration; empty if it is not there."""
    found = content.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        example = '{"stage": 1}' if name == "zero_optimization" else '{"enabled": true}'
        raise ConfigError(f'{source}: {name} must be an object, "{name}": {example}: got {shown(found)}')
    return found
