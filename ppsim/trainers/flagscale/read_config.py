"""Reader of FlagScale's YAML: Megatron-LM's arguments in sections (FlagOpen/FlagScale at da4935ec)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import read_yaml
from ppsim.trainers.arguments import Arguments, megatron_names
from ppsim.trainers.megatron.read_config import from_megatron
from ppsim.trainers.option_relevance import config_values
from ppsim.trainers.run_config import RunConfig


def claims(content: Mapping[str, Any]) -> bool:
    sections = [content.get(name) for name in ("system", "model")]
    return all(isinstance(section, dict) for section in sections) or isinstance(content.get("experiment"), dict)


def from_flagscale(content: Mapping[str, Any], path: Path) -> RunConfig:
    """An experiment names its training file by `defaults: [train: NAME]`, and its GPUs by `experiment.runner`.

    Raises `ConfigError` for heterogeneous training, and for experiments that do not train with Megatron-LM.
    """
    experiment = content.get("experiment")
    if not isinstance(experiment, dict):
        return _from_arguments(content, {}, path)
    task = experiment.get("task") or {}
    if task.get("type") != "train" or task.get("backend", "megatron") != "megatron":
        raise ConfigError(
            f"{path}: task {task.get('type')} by {task.get('backend')} is not known, only train by megatron"
        )
    names = [
        default["train"]
        for default in content.get("defaults", [])
        if isinstance(default, dict) and "train" in default
    ]
    if not names:
        raise ConfigError(f"{path}: defaults name no training file (train: NAME)")
    training = read_yaml(path.parent / "train" / f"{names[0]}.yaml")
    runner = experiment.get("runner") or {}
    launch = {name: runner[name] for name in ("nnodes", "nproc_per_node") if name in runner}
    return _from_arguments(training, launch, path)


def _from_arguments(content: Mapping[str, Any], launch: Mapping[str, Any], path: Path) -> RunConfig:
    sections = {name: content.get(name) or {} for name in ("system", "model", "data")}
    flat = dict(launch) | {path.rpartition(".")[2]: value for path, value in config_values(sections)}
    if "enable_hetero" in flat or "hetero" in content.get("system", {}):
        raise ConfigError(f"{path}: heterogeneous training (hetero) is not known, only equal ranks")
    if (multiple := flat.get("multiple_of")) and flat.get("ffn_hidden_size") is None:
        width = int(flat["hidden_size"] * 4 * 2 / 3) * (flat.get("hidden_dim_multiplier") or 1)
        flat["ffn_hidden_size"] = multiple * -(-int(width) // multiple)
    for name in ("multiple_of", "hidden_dim_multiplier"):
        flat.pop(name, None)
    return from_megatron(Arguments(megatron_names(flat), str(path)), "FlagScale")
