"""`-o PATH`: the suffix decides what is written, and nothing half-written is left behind."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from ppsim.base.errors import ConfigError
from ppsim.base.files import check_place, write_whole


def suffix_of(path: str, suffixes: Iterable[str]) -> str:
    """Return which of `suffixes` decides; raises `ConfigError` for a path without, or with no place to write."""
    for suffix in sorted(suffixes, key=len, reverse=True):
        if path.endswith(suffix):
            break
    else:
        raise ConfigError(f"cannot tell what to write to {path}: give it one of {', '.join(suffixes)}")
    check_place(path)
    return suffix


def write(
    paths: Sequence[str],
    suffixes: Mapping[str, str],
    content: Callable[[str], str | bytes],
    *,
    announce: Callable[[str], None],
) -> None:
    """Write each path, whole or not at all: what `content` makes of its suffix, announced as in `suffixes`."""
    for path in paths:
        suffix = suffix_of(path, suffixes)
        write_whole(path, content(suffix))
        announce(f"wrote {path} ({suffixes[suffix]})")
