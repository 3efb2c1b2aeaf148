"""Reader of the YAML or JSON that Megatron-Bridge and NeMo write for a run."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ppsim.trainers.arguments import Arguments, megatron_names
from ppsim.trainers.megatron.read_config import BRIDGE, from_megatron
from ppsim.trainers.option_relevance import effect_of
from ppsim.trainers.run_config import IgnoredOption, RunConfig

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
    flat: dict[str, Any] = {}
    others: dict[str, Any] = {}
    _flatten(content, flat, others)
    found = from_megatron(Arguments(megatron_names(flat), source), BRIDGE)
    sections = tuple(
        IgnoredOption(name, value, matters) for name, value in others.items() if (matters := effect_of(name))
    )
    return replace(
        found, options={**found.options, "stack": "megatron-bridge"}, ignored=(*found.ignored, *sections)
    )


def _flatten(content: Mapping[str, Any], flat: dict[str, Any], others: dict[str, Any]) -> None:
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
