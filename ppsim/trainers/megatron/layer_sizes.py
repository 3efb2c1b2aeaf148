"""Megatron-LM's arguments for the fields of a layer's parts, by one table (data/layer_sizes.toml)."""

from functools import cache
from typing import Any

from ppsim.base.files import data_folder, read_toml
from ppsim.trainers.arguments import Arguments


@cache
def _sizes() -> dict[str, dict[str, list[Any]]]:
    """Return the field, and Megatron-LM's default if one applies, by part and argument."""
    return read_toml(data_folder("trainers/data") / "layer_sizes.toml")


def sizes_in(arguments: Arguments, part: type) -> dict[str, Any]:
    """Return the fields of a part. Raises `ConfigError` for a required argument that is missing."""
    return {field: _size(arguments, name, *default) for name, (field, *default) in _sizes()[part.__name__].items()}


def _size(arguments: Arguments, name: str, default: Any = None) -> Any:
    if default == "required":
        return arguments.need(name)
    if isinstance(default, bool):
        return arguments.flag(name)
    return arguments.count(name, default, least=0 if default == 0 else 1)


def sizes_of(part: Any) -> dict[str, Any]:
    """Return the arguments of a part, without those that are off."""
    rows = next(_sizes()[kind.__name__] for kind in type(part).__mro__ if kind.__name__ in _sizes())
    return {name: size for name, (field, *_) in rows.items() if (size := getattr(part, field))}
