"""Writer of Primus experiments: the inverse of `read_config`."""

from collections.abc import Mapping
from typing import Any

from ppsim.model.architecture import Model
from ppsim.trainers.megatron.write_config import as_entries, job_arguments

_EXPERIMENT = (
    "# Primus, Megatron-LM. Save it in a checkout of Primus, and add your own data, tokenizer and learning rate.",
    "work_group: ${PRIMUS_TEAM:amd}",
    "user_name: ${PRIMUS_USER:root}",
    "exp_name: ${PRIMUS_EXP_NAME:pretrain}",
    "workspace: ${PRIMUS_WORKSPACE:./output}",
    "modules:",
    "  pre_trainer:",
    "    framework: megatron",
    "    config: pre_trainer.yaml",
    "    model: language_model.yaml",
    "    overrides:",
)


def write_primus(options: Mapping[str, Any], model: Model, layout: str) -> str:
    lines = as_entries(job_arguments(options, model, layout, of_primus=True))
    if options.get("weight_cache") == "rowwise":
        lines.append("no_fp8_weight_transpose_cache: true")
    return "\n".join([*_EXPERIMENT, *(f"      {line}" for line in lines)])
