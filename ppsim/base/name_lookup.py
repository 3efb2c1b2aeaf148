"""Lookup of names in users' spelling, and messages for unknown names."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping

from ppsim.base.errors import ConfigError


def plain(name: str) -> str:
    """Remove case, blanks, dashes and underscores.

    >>> plain("Interleaved_1F1B") == plain("interleaved-1f1b")
    True
    """
    return re.sub(r"[\s_-]+", "", name.lower())


NUMBER_FORMATS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64", "fp8": "float8"}
"""torch's names of number formats, by short name."""


class NameLookup:
    """The names of one kind of thing, with aliases (`also`: alias → name).

    `plain_of` normalises names. `listed_by` is the command that lists all names.

    >>> names = NameLookup("schedule", ["1f1b", "zb-h1"], also={"dapple": "1f1b"})
    >>> names.find("ZB_H1"), names.find("DAPPLE"), names.find("zb-h9")
    ('zb-h1', '1f1b', None)
    >>> names.unknown("zb-h9")
    "unknown schedule 'zb-h9': did you mean zb-h1?"
    >>> NameLookup("cluster", ["dgx-h100", "r100-nvl8"]).hint("r100")
    'did you mean r100-nvl8 or dgx-h100?'
    """

    def __init__(
        self,
        kind: str,
        names: Iterable[str],
        *,
        also: Mapping[str, str] | None = None,
        plain_of: Callable[[str], str] = plain,
        listed_by: str = "",
    ) -> None:
        self._listed_by = listed_by
        self._kind, self._plain_of, self._names = kind, plain_of, tuple(names)
        also_named = dict(also or {}) | {name: name for name in self._names}
        self._by_plain = {plain_of(word): name for word, name in also_named.items()}

    def find(self, name: str) -> str | None:
        return name if name in self._names else self._by_plain.get(self._plain_of(name))

    def unknown(self, name: str) -> str:
        return f"unknown {self._kind} '{name}': {self.hint(name)}"

    def nearest(self, name: str, number: int = 3) -> list[str]:
        near = difflib.get_close_matches(self._plain_of(name), self._by_plain, n=len(self._by_plain), cutoff=0)
        return list(dict.fromkeys(self._by_plain[one] for one in near))[:number]

    def hint(self, name: str) -> str:
        """Names that begin with the given one come first."""
        asked = self._plain_of(name)
        begun = [one for one in self._by_plain if asked and one.startswith(asked)]
        close = difflib.get_close_matches(asked, self._by_plain, n=_MOST_SUGGESTED, cutoff=_CLOSE)
        near = list(dict.fromkeys(self._by_plain[one] for one in [*begun, *close]))[:_MOST_SUGGESTED]
        if near:
            return f"did you mean {' or '.join(near)}?"
        if self._listed_by and len(self._names) > _FEW:
            nearest = ", ".join(self.nearest(name))
            return f"the nearest of {len(self._names)} names are {nearest}; {self._listed_by} lists all"
        return f"there are {', '.join(self._names)}"


_CLOSE = 0.5
"""Minimum similarity (0 to 1) of a suggested name."""

_MOST_SUGGESTED = 3
"""Maximum number of suggested names."""

_FEW = 30
"""Maximum number of names in a message."""


def joined_modules(
    field: str,
    text: str,
    modules: Iterable[str],
    *,
    words: str,
    also: Mapping[str, str] | None = None,
    near: Iterable[str] = (),
) -> str:
    """Return the modules that a text names, in the order of `modules`.

    `also`: further names of modules. `words`, `near`: other options, which an error mentions.
    """
    allowed = list(modules)
    named = [(also or {}).get(module.strip(), module.strip()) for module in text.split("+")]
    for module in named:
        if module not in allowed:
            hint = NameLookup("module", [*allowed, *near], plain_of=str).hint(module)
            raise ConfigError(f"{field} must be {words} or modules joined by +: got '{text}' ({hint})")
    return "+".join(module for module in allowed if module in named)
