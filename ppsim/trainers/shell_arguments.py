"""Arguments in text: a shell script that calls a trainer, or the list of them at the head of a training log."""

import re
from typing import Any

from ppsim.trainers.shell_script import Script

_LOGGED = re.compile(r"(?:^|\s)(\w+) \.{3,} (.*)$")


def logged_arguments(text: str) -> dict[str, Any]:
    """Return the arguments that Megatron-LM prints at the head of a log: `name ........ value` a line."""
    found = (_LOGGED.search(line) for line in text.splitlines() if " ..." in line)
    return {match[1]: match[2].strip() for match in found if match}


def flags_of(text: str, source: str) -> dict[str, Any]:
    """Return the options of the commands in a shell script, with the variables that it sets put in.

    An option without a value is True, one that is given twice has its last. Raises `ConfigError` for a script whose
    quotes don't close, and for variables that expand without end.
    """
    options: dict[str, Any] = {}
    for words in Script(text, source).statements():
        options |= _options(words)
    return options


def _options(tokens: list[str]) -> dict[str, Any]:
    """Options with the value behind each; those of modules and of files have several."""
    options: dict[str, Any] = {}
    several: dict[str, list[str]] = {}
    name = None
    for token in tokens:
        if token.startswith("--") and len(token) > 2:
            name, _, value = token.partition("=")
            options[name] = value or True
            several.pop(name, None)
        elif name is None or re.match(r"[&|<>;]|\d>", token):
            name = None
        elif options[name] is True:
            options[name] = token
        elif name.endswith(("-modules", "-scope", "-path", "-layers", "_per_model_part", ".components")):
            several.setdefault(name, [options[name]]).append(token)
    return options | {name: " ".join(values) for name, values in several.items()}
