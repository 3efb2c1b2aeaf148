"""Programs whose configurations ppsim does not read (data/foreign_programs.toml)."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import data_folder, read_toml


@cache
def _programs() -> dict[str, dict[str, Any]]:
    return read_toml(data_folder("trainers/data") / "foreign_programs.toml")


def require_known_program(content: Mapping[str, Any], source: str) -> None:
    """Raise `ConfigError` for a configuration of a program that ppsim does not read."""
    plain = {str(name).replace("-", "_"): section for name, section in content.items()}
    for program, signs in _programs().items():
        if any(all(_has(plain, key.split(".")) for key in marks.split()) for marks in signs.get("keys", ())):
            raise unread(program, source)
    if of_target := program_of([str(content.get("_target_"))]):
        raise unread(of_target, source)


def program_of(command: Sequence[str]) -> str | None:
    """Return the program that ppsim does not read and that one of the words names, None for any other."""
    for program, signs in _programs().items():
        if "command" in signs and any(re.fullmatch(signs["command"], word) for word in command):
            return program
    return None


def unread(program: str, source: str) -> ConfigError:
    return ConfigError(
        f"{source} is a configuration of {program}, which ppsim does not read: give --model and its settings as "
        "options, for example --gpus, --tp, --pp, --micro-batch-size, --global-batch-size and --seq-len"
    )


def _has(content: Any, path: list[str]) -> bool:
    if not path:
        return True
    return isinstance(content, Mapping) and path[0] in content and _has(content[path[0]], path[1:])
