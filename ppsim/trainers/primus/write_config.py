"""Writer of Primus experiments: the inverse of `read_config`."""

from collections.abc import Mapping
from typing import Any

from ppsim.model.architecture import Model
from ppsim.model.recompute import layer_ids
from ppsim.trainers.megatron.read_config import ALGORITHMS
from ppsim.trainers.megatron.write_config import as_entries, job_arguments

_NATIVE = ("1f1b", "interleaved-1f1b")
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


def write_primus(words: Mapping[str, Any], model: Model, layout: str) -> str:
    arguments, schedule = job_arguments(words, model, layout), words.get("schedule")
    if schedule is not None and schedule not in _NATIVE:
        arguments |= _pipeline_of(schedule)
    if ids := layer_ids(words.get("recompute", "none")):
        arguments |= {"recompute_granularity": "full", "recompute_layer_ids": ",".join(map(str, ids))}
    lines = as_entries(arguments)
    if words.get("weight_cache") == "rowwise":
        lines.append("no_fp8_weight_transpose_cache: true")
    return "\n".join([*_EXPERIMENT, *(f"      {line}" for line in lines)])


def _pipeline_of(schedule: str) -> dict[str, Any]:
    names = {name: algorithm for algorithm, name in ALGORITHMS.items()}
    if schedule not in names:
        return {}
    return {"patch_primus_pipeline": True, "pp_algorithm": names[schedule]}
