"""`-o PATH`: the suffix decides what is written, and nothing half-written is left behind."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ppsim.base.errors import ConfigError
from ppsim.base.files import check_place, write_whole

Say = Callable[[str], None]
Formats: TypeAlias = Mapping[str, tuple[str, Callable[[Any], str | bytes]]]
"""By suffix: what a file is, "" where that needs no word, and what makes its content."""


def silent(message: str) -> None:
    """Say nothing: files that a program asks for are no news to it."""


def suffix_of(path: str, suffixes: Iterable[str]) -> str:
    """Return which of `suffixes` decides; raises `ConfigError` for a path without, or with no place to write."""
    for suffix in sorted(suffixes, key=len, reverse=True):
        if path.endswith(suffix):
            break
    else:
        raise ConfigError(
            f"cannot tell what to write to {path or repr(path)}: give it one of {', '.join(suffixes)}"
        )
    check_place(path)
    return suffix


def write(paths: Sequence[str], formats: Formats, what: Any, *, announce: Say = silent) -> None:
    """Write each path, whole or not at all: what its format makes of `what`, announced as what it is."""
    for path in paths:
        name, make = formats[suffix_of(path, formats)]
        write_whole(path, make(what))
        announce(f"wrote {path}" + (f" ({name})" if name else ""))
