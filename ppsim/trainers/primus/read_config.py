"""Reader of Primus' experiments: YAML that names a module file and a model file of a trainer, and overrides both.

Files extend others and read `${NAME:default}` from the environment. Module and model files come from the Primus
checkout around the experiment: the first folder above it with `primus/configs`. Outside a checkout, only
pre_trainer.yaml with language_model.yaml are known (data/primus.toml).
"""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from os.path import isfile
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import data_folder, read_toml, read_yaml
from ppsim.base.limits import short_text
from ppsim.trainers.arguments import Arguments, megatron_names
from ppsim.trainers.megatron.read_config import from_megatron
from ppsim.trainers.run_config import RunConfig
from ppsim.trainers.torchtitan.read_config import from_torchtitan

_VARIABLE = re.compile(r"\$\{(\w+)(?::([^}]{0,4096}))?\}")
_DEEPEST = 16
LAUNCHER_GPUS = 8
"""Primus starts one node of 8 GPUs by default (examples/run_pretrain.sh at 0121ab7d: NNODES, GPUS_PER_NODE)."""
_OF_EXPERIMENTS = ("modules", "work_group", "user_name", "exp_name", "workspace", "platform")


def from_primus(content: Mapping[str, Any], path: Path) -> RunConfig:
    content = _extended(content, path, path)
    modules = content.get("modules")
    module = next(iter(modules.values())) if isinstance(modules, dict) and modules else None
    if not isinstance(module, dict) or not isinstance(module.get("framework"), str):
        raise ConfigError(f"{path}: modules must name a trainer with its framework, config, model and overrides")
    framework = module["framework"]
    base, model = _named_files(path, framework, str(module.get("config")), str(module.get("model")))
    outside = {name: value for name, value in content.items() if name not in _OF_EXPERIMENTS}
    overrides = module.get("overrides") or {}
    if not isinstance(overrides, dict):
        raise ConfigError(f"{path}: overrides must be a table of options: got {short_text(overrides)}")
    overrides = _merged(overrides, outside)
    note = (f"overrides without modules, taken for its trainer: {', '.join(outside)}",) if outside else ()
    if framework == "torchtitan":
        tree = _merged(_merged(base, model), overrides)
        config = from_torchtitan(tree, str(path), "Primus, TorchTitan", overrides)
        return replace(config, notes=(*note, *config.notes))
    if framework not in ("megatron", "megatron_bridge"):
        raise ConfigError(f"{path}: framework '{framework}' is not known, only megatron and torchtitan")
    if str(module.get("model")).startswith("diffusion/"):
        raise ConfigError(f"{path}: a diffusion model is not known, only decoders as GPT")
    if framework == "megatron_bridge":
        raise ConfigError(
            f"{path}: its model is a recipe of Megatron-Bridge ({model.get('recipe')}), which is code: give the "
            "YAML that the run writes"
        )
    asked = megatron_names(overrides)
    arguments = Arguments(megatron_names({**base, **model, **overrides}), str(path), asked)
    config = from_megatron(arguments, "Primus, Megatron-LM")
    return _of_primus(config, note)


def from_arguments(overrides: Mapping[str, Any], source: str) -> RunConfig:
    """Primus' own defaults for Megatron-LM (data/primus.toml) apply to arguments that are not given."""
    asked = megatron_names(overrides)
    config = from_megatron(
        Arguments({**megatron_names(_defaults()), **asked}, source, asked), "Primus, Megatron-LM"
    )
    return _of_primus(config)


def _of_primus(config: RunConfig, notes: tuple[str, ...] = ()) -> RunConfig:
    return replace(
        config, options={**config.options, "stack": "primus"}, notes=(*notes, *config.notes),
        launcher_gpus=LAUNCHER_GPUS,
    )  # fmt: skip


def _defaults() -> dict[str, Any]:
    defaults: dict[str, Any] = read_toml(data_folder("trainers/data") / "primus.toml")["defaults"]
    return defaults


def _named_files(path: Path, framework: str, module: str, model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    for folder in path.resolve().parents:
        if (configs := folder / "primus" / "configs").is_dir():
            return (
                _file(configs / "modules" / framework / module, path),
                _file(configs / "models" / framework / model, path),
            )
    if (framework, module, model) == ("megatron", "pre_trainer.yaml", "language_model.yaml"):
        return _defaults(), {}
    raise ConfigError(
        f"{path} names files of Primus: no folder above it has primus/configs (put it into a checkout of Primus)"
    )


def _file(path: Path, source: Path, depth: int = 0) -> dict[str, Any]:
    if not isfile(path):
        raise ConfigError(f"{source} names {path.name}, which is not in {path.parent}")
    if depth > _DEEPEST:
        raise ConfigError(f"{path} extends itself")
    content = read_yaml(path) or {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must be a table of options: got {short_text(content)}")
    return _extended(content, path, source, depth)


def _extended(content: Mapping[str, Any], path: Path, source: Path, depth: int = 0) -> dict[str, Any]:
    own, merged = _resolved(dict(content)), dict[str, Any]()
    for word in ("extends", "bases", "includes"):
        others = own.pop(word, None) or ()
        if not isinstance(others, str | list | tuple):
            raise ConfigError(f"{path}: {word} must be a list of files: got {short_text(others)}")
        for other in [others] if isinstance(others, str) else others:
            merged = _merged(merged, _file(path.parent / str(other), source, depth + 1))
    return _merged(merged, own)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        are_sections = isinstance(merged.get(name), dict) and isinstance(value, dict)
        merged[name] = _merged(merged[name], value) if are_sections else value
    return merged


def _resolved(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _resolved(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_resolved(inner) for inner in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    return _VARIABLE.sub(
        lambda config: os.environ.get(config[1], config[0] if config[2] is None else config[2]), value
    )
