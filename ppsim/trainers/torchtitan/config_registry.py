"""TorchTitan's config registry: the options that `--module M --config C` sets (release 0.3 and later).

scripts/make_torchtitan_registry.py writes data/torchtitan.toml from one release. An installed TorchTitan is not
used, because importing its registry imports torch and every model.
"""

from dataclasses import field
from difflib import get_close_matches
from functools import cache
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.file_schema import FileSchema, load_packaged
from ppsim.base.files import data_folder, read_toml


class Module(FileSchema):
    """The registry entries of one model and their file; `refused`: why no entry can be projected."""

    source: str
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    trains_on_images: bool = False
    refused: str = ""


class Registry(FileSchema):
    """The modules of one release of TorchTitan."""

    version: str
    modules: dict[str, Module]


@cache
def registry() -> Registry:
    """Return the packaged registry.

    >>> registry().version
    '0.3.0'
    >>> registry().modules["llama3"].entries["llama3_70b"]["parallelism.tensor_parallel_degree"]
    8
    """
    return load_packaged(Registry, read_toml(data_folder("trainers/data") / "torchtitan.toml"))


def registered(name: str, config: str, source: str) -> tuple[dict[str, Any], list[str]]:
    """Return the options of a registry entry, and sentences about the settings that it makes."""
    table, short = registry(), name.removeprefix("torchtitan.models.").removesuffix(".config_registry")
    module = table.modules.get(short)
    release = f"torchtitan {table.version}"
    if module is None:
        modules = ", ".join(one for one, its in table.modules.items() if not its.refused)
        raise ConfigError(
            f"{source}: --module {name} is not in the registry of {release}, whose modules are {modules}: give its "
            "settings as options in place of --module and --config, and --model"
        )
    if module.refused:
        raise ConfigError(f"{source}: --module {name} is {module.refused}, and ppsim projects language models only")
    entry = module.entries.get(config)
    if entry is None:
        near = get_close_matches(config, module.entries, n=3, cutoff=0.5) or list(module.entries)
        raise ConfigError(
            f"{source}: --config {config} is not in {module.source} of {release}: there are {', '.join(near)}"
        )
    values = ", ".join(f"{option} {_shown(value)}" for option, value in entry.items())
    said = [f"--config {config} ({module.source} of {release}) sets {values}"]
    if module.trains_on_images:
        said.append(f"module {short} can train on images: the language model alone is projected")
    return dict(entry), said


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "+".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
