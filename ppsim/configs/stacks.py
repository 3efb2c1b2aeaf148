"""What a training stack does by default, in the words of `ppsim project`: data/stacks.toml, a source a line."""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import Field

from ppsim.base.boundary import Strict, validated
from ppsim.base.errors import ConfigError
from ppsim.base.files import read_toml


class Line(Strict):
    """One default: the word, its value, and who says so.

    `dtypes` are the number formats in which it holds, `pipelined` whether it does with a pipeline or without; None:
    always.
    """

    word: str
    value: bool | int | float | str
    source: str
    dtypes: list[str] | None = None
    pipelined: bool | None = None

    def holds(self, options: Mapping[str, Any]) -> bool:
        """Whether it does for a job of these options."""
        is_pipelined = (options.get("pp") or 1) > 1 if isinstance(options.get("pp"), int | None) else True
        return (self.dtypes is None or (options.get("dtype") or "bfloat16") in self.dtypes) and (
            self.pipelined in (None, is_pipelined)
        )


class StackDefaults(Strict):
    """What a stack is, and its defaults; what it has no line for is as `ppsim project` has it."""

    title: str
    lines: list[Line] = Field(default_factory=list)


@cache
def stacks() -> dict[str, StackDefaults]:
    """Return the stacks by name."""
    found = read_toml(Path(str(resources.files("ppsim.configs"))) / "data" / "stacks.toml")
    return {name: validated(StackDefaults, data, f"stacks.toml [{name}]") for name, data in found.items()}


def stack_of(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the words that a stack sets for a job of these options; raises `ConfigError` for an unknown one."""
    if name not in stacks():
        raise ConfigError(f"unknown stack '{name}': there are {', '.join(stacks())}")
    return {line.word: line.value for line in stacks()[name].lines if line.holds(options)}
