"""Output files of `-o PATH`: the suffix selects the format, and files are written atomically."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ppsim.base.errors import ConfigError
from ppsim.base.files import require_writable, write_atomically

Say = Callable[[str], None]
Formats: TypeAlias = Mapping[str, tuple[str, Callable[[Any], str | bytes]]]
"""By suffix: (description of the file or "", function that makes its content)."""


def ignore_message(message: str) -> None:
    """The default for calls from Python."""


def suffix_of(path: str, suffixes: Iterable[str]) -> str:
    """Raises `ConfigError` if no suffix matches or the path is not writable."""
    for suffix in sorted(suffixes, key=len, reverse=True):
        if path.endswith(suffix):
            break
    else:
        raise ConfigError(
            f"cannot tell what to write to {path or repr(path)}: give it one of {', '.join(suffixes)}"
        )
    require_writable(path)
    return suffix


def write(paths: Sequence[str], formats: Formats, what: Any, *, announce: Say = ignore_message) -> None:
    for path in paths:
        name, make = formats[suffix_of(path, formats)]
        write_atomically(path, make(what))
        announce(f"wrote {path}" + (f" ({name})" if name else ""))
