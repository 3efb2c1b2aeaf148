"""Adapters to trainers, one package per trainer: configurations, schedules and recordings.

Modules with the same job have the same name in every package. Configurations of Primus, Megatron-Bridge and NeMo
are first converted to Megatron-LM's arguments (`arguments.py`).
"""

from dataclasses import dataclass
from typing import Literal

ConfigTarget = Literal[
    "megatron", "megatron@0.16", "primus", "torchtitan", "torchtitan@0.2", "torchtitan@0.3", "torchtitan@main",
    "automodel",
]  # fmt: skip


@dataclass(frozen=True)
class Trainer:
    """Formats of one trainer that ppsim reads and writes; an empty string means none."""

    name: str
    config: str = ""
    to_config: tuple[ConfigTarget, ...] = ()
    export: str = ""
    writer: str = ""
    recording: str = ""


_HERE = "ppsim.trainers"
TRAINERS = (
    Trainer(
        "torch.distributed.pipelining",
        export="torch", writer=f"{_HERE}.torch.write_schedule:torch_csv",
        recording="traces of torch.profiler (.json, .json.gz)",
    ),
    Trainer(
        "Megatron-LM",
        config="Megatron-LM arguments (a shell script, model_config.yaml, the head of a log)",
        to_config=("megatron", "megatron@0.16"),
        export="megatron", writer=f"{_HERE}.megatron.write_schedule:megatron_arguments",
        recording="logs and OpenTelemetry spans of Megatron-LM",
    ),
    Trainer(
        "Primus",
        config="a Primus experiment",
        to_config=("primus",),
        export="primus", writer=f"{_HERE}.primus.write_schedule:primus_table",
        recording="folders of Primus' dump_pp_data",
    ),
    Trainer(
        "TorchTitan",
        config="TorchTitan TOML or flags",
        to_config=("torchtitan", "torchtitan@0.2", "torchtitan@0.3", "torchtitan@main"),
        export="torchtitan",
    ),
    Trainer("Megatron-Bridge and NeMo", config="Megatron-Bridge or NeMo YAML"),
    Trainer("NeMo AutoModel", config="a NeMo AutoModel recipe", to_config=("automodel",)),
    Trainer("FlagScale", config="FlagScale YAML"),
    Trainer("slime", config="a slime script"),
    Trainer(
        "DeepSpeed",
        config="DeepSpeed JSON",
        export="deepspeed", writer=f"{_HERE}.deepspeed.write_schedule:deepspeed_instructions",
    ),
    Trainer(
        "TransformerEngine",
        export="transformer-engine", writer=f"{_HERE}.transformer_engine.write_schedule:graph_order",
    ),
)  # fmt: skip
"""All trainers: the source for help, error messages and the table of the README."""


def export_targets() -> tuple[str, ...]:
    return (*(trainer.export for trainer in TRAINERS if trainer.export), "torch-comms", "json")


def title_of(export: str) -> str:
    """Return the name of a trainer by its name in `ppsim export --to`."""
    return next(trainer.name for trainer in TRAINERS if trainer.export == export)


def configurations() -> str:
    return ", ".join([*(trainer.config for trainer in TRAINERS if trainer.config), "a Hugging Face config.json"])


def recordings() -> str:
    return ", ".join(trainer.recording for trainer in TRAINERS if trainer.recording)
