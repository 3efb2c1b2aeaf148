"""What a training stack does by default, in the words of `ppsim project`: data/stacks.toml, a source a line."""

from collections.abc import Mapping
from dataclasses import field
from functools import cache
from typing import Any

from ppsim.base.boundary import Strict, packaged
from ppsim.base.data import data_folder
from ppsim.base.errors import ConfigError
from ppsim.base.files import read_toml


class Line(Strict):
    """One default: the word, its value, and who says so.

    `dtypes` are the number formats in which it holds, `devices` words of the names of devices on which it does,
    `experts` whether for models with or without, `pipelined` whether with a pipeline or without; None: always.
    `unless` has words whose values forbid it, an empty list: any.
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
        """Whether it does for a job of these options, of a model with experts or none, on such devices."""
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
    """What a stack is, and its defaults; what it has no line for is as in the one that it `extends`, or as `ppsim
    project` has it."""

    title: str
    extends: str | None = None
    lines: list[Line] = field(default_factory=list)


@cache
def stacks() -> dict[str, StackDefaults]:
    """Return the stacks by name."""
    found = read_toml(data_folder("trainers/data") / "stacks.toml")
    return {name: packaged(StackDefaults, data) for name, data in found.items()}


def stack_of(name: str, options: Mapping[str, Any], *, device: str, has_experts: bool) -> dict[str, Any]:
    """Return the words that a stack sets for a job of these options; raises `ConfigError` for an unknown one.

    `device` is the name of the cluster's, `has_experts` is of the model.
    """
    if name not in stacks():
        raise ConfigError(f"unknown stack '{name}': there are {', '.join(stacks())}")
    one = stacks()[name]
    lines = [*(stacks()[one.extends].lines if one.extends else ()), *one.lines]
    return {line.word: line.value for line in lines if line.holds(options, device=device, has_experts=has_experts)}
