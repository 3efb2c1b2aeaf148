"""Defaults of training stacks as options of `ppsim project` (data/stacks.toml, with a source per line)."""

from collections.abc import Mapping
from dataclasses import field
from functools import cache
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.file_schema import Strict, packaged
from ppsim.base.files import read_toml
from ppsim.base.package_data import data_folder


class Line(Strict):
    """One default: the option `word`, its value and the source.

    The default holds if all set conditions hold: `dtypes` lists number formats, `devices` lists words in the device
    name, `experts` requires a model with (True) or without (False) experts, `pipelined` a run with or without a
    pipeline. None means no condition. `unless` maps options to values that cancel the default; an empty list means
    any value.
    """

    word: str
    value: bool | int | float | str
    source: str
    dtypes: list[str] | None = None
    pipelined: bool | None = None
    devices: list[str] | None = None
    experts: bool | None = None
    unless: dict[str, list[str]] = field(default_factory=dict)

    def holds(self, options: Mapping[str, Any], *, device: str, has_experts: bool) -> bool:
        """Return whether the default applies to a job."""
        if self.devices is not None and not any(name in device.split() for name in self.devices):
            return False
        if self.experts not in (None, has_experts):
            return False
        for word, values in self.unless.items():
            if (given := options.get(word)) is not None and (not values or given in values):
                return False
        is_pipelined = (options.get("pp") or 1) > 1 if isinstance(options.get("pp"), int | None) else True
        return (self.dtypes is None or (options.get("dtype") or "bfloat16") in self.dtypes) and (
            self.pipelined in (None, is_pipelined)
        )


class StackDefaults(Strict):
    """Title and defaults of a stack; for other options, `extends` names the stack that applies."""

    title: str
    extends: str | None = None
    lines: list[Line] = field(default_factory=list)


@cache
def stacks() -> dict[str, StackDefaults]:
    """Return the stacks by name."""
    found = read_toml(data_folder("trainers/data") / "stacks.toml")
    return {name: packaged(StackDefaults, data) for name, data in found.items()}


def stack_of(name: str, options: Mapping[str, Any], *, device: str, has_experts: bool) -> dict[str, Any]:
    """Return the options that a stack sets for a job; raises `ConfigError` for an unknown stack.

    `device` is the device name of the cluster, `has_experts` describes the model.
    """
    if name not in stacks():
        raise ConfigError(f"unknown stack '{name}': there are {', '.join(stacks())}")
    one = stacks()[name]
    lines = [*(stacks()[one.extends].lines if one.extends else ()), *one.lines]
    return {line.word: line.value for line in lines if line.holds(options, device=device, has_experts=has_experts)}
