"""DeepSpeed's JSON, and the YAML or JSON that Megatron-Bridge and NeMo write of a run."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.limits import shown
from ppsim.base.words import given_of
from ppsim.configs.arguments import Arguments, normalised
from ppsim.configs.matters import leaves_of, matters_for
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
    others: dict[str, Any] = {}
    _flatten(content, flat, others)
    found = from_megatron(Arguments(normalised(flat), source), BRIDGE)
    sections = tuple(
        Ignored(name, value, matters) for name, value in others.items() if (matters := matters_for(name))
    )
    return replace(found, words={**found.words, "stack": "megatron-bridge"}, ignored=(*found.ignored, *sections))


def _flatten(content: Mapping[str, Any], flat: dict[str, Any], others: dict[str, Any]) -> None:
    """Put the fields of the sections that are read into `flat`, and the sections that are not into `others`."""
    for name, value in content.items():
        *sections, field = str(name).split(".")
        if isinstance(value, dict):
            if field in _SECTIONS:
                _flatten(value, flat, others)
            elif any(value.values()):
                others[str(name)] = value
        elif not sections or all(section in _SECTIONS for section in sections):
            flat.setdefault(_RENAMED.get(field, field), value)
        elif value:
            others[str(name)] = value


_AUTO = {
    "train_micro_batch_size_per_gpu": ("micro_batch", "--micro-batch"),
    "train_batch_size": ("global_batch", "--global-batch"),
    "gradient_accumulation_steps": ("microbatches", "--microbatches or --global-batch"),
    "bf16.enabled": ("dtype", "--dtype"),
    "fp16.enabled": ("dtype", "--dtype"),
}
"""Options that may be "auto", with the word of each and the option of ppsim that sets it instead."""


def from_deepspeed(content: Mapping[str, Any], source: str) -> RunConfig:
    """Return what a DeepSpeed configuration says: batch, ZeRO and number format, but neither model nor pipeline.

    "auto" is left to the program that starts the run, and to an option here.
    """
    for name in ("zero_optimization", "bf16", "fp16"):
        _require_object(content, name, source)
    given = dict(leaves_of(content))
    arguments = Arguments({name: value for name, value in given.items() if value != "auto"}, source)
    micro = arguments.count("train_micro_batch_size_per_gpu", word="micro_batch")
    steps = arguments.count("gradient_accumulation_steps", word="microbatches")
    whole = arguments.count("train_batch_size", word="global_batch")
    zero = arguments.count("zero_optimization.stage", 0, word="zero", least=0)
    enabled = {name for name in ("fp16", "bf16") if arguments.flag(f"{name}.enabled", word="dtype")}
    words = {
        "micro_batch": micro,
        "global_batch": whole,
        "microbatches": None if whole else steps,
        "zero": zero,
        "dtype": "bfloat16" if "bf16" in enabled else "float16" if "fp16" in enabled else "float32",
        "overlap_dp": arguments.flag("zero_optimization.overlap_comm", default=zero == 3, word="overlap_dp"),
    }
    autos = {name: word for name, word in _AUTO.items() if given.get(name) == "auto"}
    if "train_batch_size" in autos:
        autos.pop("gradient_accumulation_steps", None)
    if enabled or "bf16.enabled" in autos:
        autos.pop("fp16.enabled", None)
    if "dtype" in (word for word, _ in autos.values()):
        words["dtype"] = "bfloat16" if enabled else None
    return RunConfig(
        "DeepSpeed",
        source,
        given_of(words),
        None,
        f"{source}: DeepSpeed's configuration has no model: give --model",
        arguments.understood,
        arguments.ignored,
        needed={word: (name, option) for name, (word, option) in autos.items() if words[word] is None},
    )


def _require_object(content: Mapping[str, Any], name: str, source: str) -> None:
    """Raise `ConfigError` for a setting that must be an object and is none."""
    found = content.get(name)
    if found is not None and not isinstance(found, dict):
        example = '{"stage": 1}' if name == "zero_optimization" else '{"enabled": true}'
        raise ConfigError(f'{source}: {name} must be an object, "{name}": {example}: got {shown(found)}')
