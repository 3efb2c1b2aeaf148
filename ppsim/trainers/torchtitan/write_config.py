"""Writer of TorchTitan's settings: the inverse of `ppsim.trainers.torchtitan.read_config`."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ppsim.model.architecture import Model
from ppsim.trainers.megatron.write_config import command
from ppsim.trainers.megatron.write_model import without_source
from ppsim.trainers.setting import write_rows
from ppsim.trainers.torchtitan.config_registry import registry
from ppsim.trainers.torchtitan.read_config import model_of
from ppsim.trainers.torchtitan.settings import SETTINGS


def write_torchtitan(options: Mapping[str, Any], choice: Mapping[str, Any], version: str) -> str:
    settings = dict(choice) | settings_of(options, choice, version)
    said = f"# TorchTitan {version}. Add your own data, tokenizer and learning rate."
    if version == "0.2":
        sections = dict.fromkeys(name.rpartition(".")[0] for name in settings)
        lines = [said]
        for section in sections:
            inside = {name.rpartition(".")[2]: value for name, value in settings.items()
                      if name.rpartition(".")[0] == section}  # fmt: skip
            lines += [f"[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in inside.items())]
        return "\n".join(lines)
    mode = settings.pop("activation_checkpoint.mode", None)
    named = [f"--{name} {settings.pop(name)}" for name in ("module", "config") if name in settings]
    flags = [*named, *(_flag(name, value) for name, value in settings.items())]
    return f"{said}\n" + command(options, "-m torchtitan.train", [*flags, f"activation-checkpoint:{mode}"])


def _flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        section, _, field = name.rpartition(".")
        return f"--{name}" if value else f"--{section}.no-{field}"
    parts = value if isinstance(value, list) else [value]
    return f"--{name} {' '.join(','.join(part) if isinstance(part, list) else str(part) for part in parts)}"


def models_of(model: Model, version: str) -> Iterator[dict[str, Any]]:
    """Yield `{}` if no entry of TorchTitan's registry matches.

    >>> from ppsim.model.registry import find_model
    >>> next(models_of(find_model("llama3-70b"), "0.2"))
    {'model.name': 'llama3', 'model.flavor': '70B'}
    """
    is_listed, flavors = False, set()
    for name, module in registry().modules.items():
        for config, entry in module.entries.items():
            flavor = str(entry.get("model.flavor", ""))
            of_entry, _ = model_of(name, flavor, name)
            if of_entry is None or without_source(of_entry) != without_source(model):
                continue
            is_listed = True
            if version != "0.2":
                yield {"module": name, "config": config}
            elif flavor not in flavors:
                flavors.add(flavor)
                yield {"model.name": name, "model.flavor": flavor}
    if not is_listed:
        yield {}


def settings_of(options: Mapping[str, Any], choice: Mapping[str, Any], version: str) -> dict[str, Any]:
    is_registered = "config" in choice
    entry = registry().modules[choice["module"]].entries[choice["config"]] if is_registered else {}
    return write_rows(SETTINGS, {**options, "release": version, "entry": entry})
