"""Limits on users' files, used by all readers: size, depth, expansion and numbers; and on the size of tables.

YAML anchors, shell variables and gzip have a limit on the expanded size. A schedule table must fit in the free
memory of this machine.
"""

import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.units import size

CONFIG_BYTES = 2**20
"""Maximum bytes of a configuration. The largest known, a printed Megatron-LM configuration, has 0.1 MB."""

DATA_BYTES = 2 * 2**30
"""Maximum bytes of a schedule, timeline or recording. A timeline of 1 million actions has 0.1 GB."""

MOST_UNPACKED = 100
"""Maximum unpacked bytes per byte of a gzip file. Traces of torch.profiler have 10 to 30."""

MOST_VALUES = 200_000
"""Maximum values in a YAML file, with aliases expanded."""

DEEPEST = 64
"""Maximum nesting of lists and tables. Configurations and files of ppsim have up to 10 levels."""

LONGEST_NAME = 200
"""Maximum characters in the name of a model, a cluster or a schedule."""

MOST_LAYERS = 10_000
"""Maximum layers of a model. The search for splits is quadratic in the layers."""

LARGEST = 10**30
"""Largest integer in a file; its products with other numbers are still finite floats."""

LARGEST_COUNT = 10**15
"""Largest count or number of bytes."""


def integer_if_equal(value: Any) -> Any:
    """Convert a float with an integer value.

    >>> integer_if_equal(8.5e10), integer_if_equal(0.5), integer_if_equal("8")
    (85000000000, 0.5, '8')
    """
    return int(value) if isinstance(value, float) and value.is_integer() else value


def count_from(value: Any, key: str, *, least: int = 0, most: int = LARGEST_COUNT) -> int:
    """Convert a number to an integer; the `ConfigError` names `key`.

    >>> count_from(4.0, "config.json: num_layers")
    4
    """
    number = integer_if_equal(value)
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise ConfigError(f"{key} must be a whole number of {least} or more: got {short_text(value)}")
    if number > most:
        raise ConfigError(f"{key} must be at most {most:,}: got {short_text(value)}")
    return number


def number_from(value: Any, key: str, *, least: float = -float(LARGEST), most: float = float(LARGEST)) -> float:
    """Convert a number (or its text) to a finite float; the `ConfigError` names `key`.

    >>> number_from("0.5", "train.log, line 3: elapsed time")
    0.5
    """
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not least <= number <= most:
        between = f"from {least:g} to {most:g}" if math.isfinite(number) or number == math.inf else ""
        raise ConfigError(f"{key} must be a number{f' {between}' * bool(between)}: got {short_text(value)}")
    return number


def short_text(value: Any) -> str:
    """Return a value as text for an error message, at most 60 characters.

    >>> short_text(10**400)
    'a number of 401 digits'
    """
    if type(value) is int and abs(value) > LARGEST:
        return f"a number of {math.floor(value.bit_length() * math.log10(2)) + 1} digits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer longer than Python prints, or lists nested too deeply
        return f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "…"


def check_tree(tree: Any, source: str) -> None:
    """Raise `ConfigError` for content nested too deeply or an integer beyond ±`LARGEST`."""
    level: list[tuple[Any, str]] = [(tree, "")]
    for _ in range(DEEPEST):
        below: list[tuple[Any, str]] = []
        for one, path in level:
            _check_values(one, path, source, below)
        if not below:
            return
        level = below
    raise ConfigError(f"{source} has lists or tables more than {DEEPEST} levels deep")


def _check_values(one: Any, path: str, source: str, below: list[tuple[Any, str]]) -> None:
    """Append (nested list or table, path) pairs to `below`."""
    is_table = isinstance(one, dict)
    values: Iterable[Any] = one.values() if is_table else one if isinstance(one, list) else [one]
    kinds = set(map(type, values))
    if kinds.isdisjoint(_LOOKED_AT):
        return
    of: Callable[[Any], str] = (lambda key: f"{path}.{key}") if is_table else lambda key: f"{path}[{key}]"
    for key, value in one.items() if is_table else enumerate(values):
        if type(value) is int and not -LARGEST < value < LARGEST:
            name = (of(key) if one is not value else "").lstrip(".")
            raise ConfigError(f"{source}: {name or 'the whole'} is {short_text(value)}: numbers may have 30")
        if type(value) in (list, dict) and value is not one:
            below.append((value, of(key)))


_LOOKED_AT = frozenset({int, list, dict})


def check_events(events: Iterable[Any], source: str) -> None:
    """Raise `ConfigError` for YAML that is nested too deeply, too large with aliases expanded, or not plain data.

    `events` come from PyYAML's parser before aliases are expanded.
    """
    sizes: list[int] = [0]  # number of values in each open list or table, outermost first
    anchors: list[str | None] = []
    size_of: dict[str, int | None] = {}  # number of values by anchor; None while it is open
    for event in events:
        kind = type(event).__name__
        if kind == "AliasEvent":
            size = size_of.get(event.anchor, 0)  # the loader rejects an alias without an anchor
            if size is None:
                raise ConfigError(f"{source} refers to itself: the anchor &{event.anchor} contains *{event.anchor}")
            sizes[-1] += size
        elif kind == "ScalarEvent":
            _check_scalar(event, source)
            sizes[-1] += 1
            if event.anchor is not None:
                size_of[event.anchor] = 1
        elif kind in ("SequenceStartEvent", "MappingStartEvent"):
            _check_tag(event, source)
            sizes.append(1)
            anchors.append(event.anchor)
            if event.anchor is not None:
                size_of[event.anchor] = None
            if len(sizes) > DEEPEST:
                raise ConfigError(f"{source} has lists or tables more than {DEEPEST} levels deep")
        elif kind in ("SequenceEndEvent", "MappingEndEvent"):
            size, anchor = sizes.pop(), anchors.pop()
            sizes[-1] += size
            if anchor is not None:
                size_of[anchor] = size
        if sizes[-1] > MOST_VALUES:
            raise ConfigError(f"{source} has more than {MOST_VALUES:,} values, with its aliases expanded")


_LONGEST_NUMBER = 400
_PLAIN_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map")}


def _check_scalar(event: Any, source: str) -> None:
    _check_tag(event, source)
    text = event.value
    if len(text) > _LONGEST_NUMBER and not set(text) - set("0123456789abcdefxoABCDEF_.:+-"):
        raise ConfigError(f"{source} has a number of {len(text)} characters in line {event.start_mark.line + 1}")


def _check_tag(event: Any, source: str) -> None:
    if event.tag not in (None, "!", *_PLAIN_TAGS):
        line = event.start_mark.line + 1
        raise ConfigError(
            f"{source} has the tag {event.tag} in line {line}: only plain lists, tables and values are read"
        )


BYTES_BUILT = 160
"""Bytes per action while a table is built, measured for tables of 400,000 to 1,200,000 actions."""

BYTES_PROJECTED = 4_800
"""Bytes per action while a plan is projected and explained, measured for the same tables."""

_MEMORY = Path("/proc/meminfo")
_ALWAYS_FREE = 2**24
"""Requests up to 16 MiB are always allowed: Python and numpy need more themselves."""


def require_memory(num_actions: int, *, bytes_each: int = BYTES_BUILT) -> None:
    needed = num_actions * bytes_each
    if needed > _ALWAYS_FREE and needed > (free := free_bytes()):
        raise ConfigError(
            f"{num_actions:,} actions (two or three for each stage and microbatch) need about {size(needed)}, and "
            f"{size(free)} of memory are free on this machine, enough for {free // bytes_each:,}"
        )


def free_bytes() -> int:
    """Return all physical memory if the system does not report the available memory."""
    try:
        text = _MEMORY.read_text(encoding="ascii")
        return int(text.partition("MemAvailable:")[2].split()[0]) * 1024
    except (OSError, IndexError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
