"""Names as people write them: which of those that there are is meant, and what to say of one that is none."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping


def plain(name: str) -> str:
    """Return a name without capitals, blanks, dashes and underscores, which make no difference.

    >>> plain("Interleaved_1F1B") == plain("interleaved-1f1b")
    True
    """
    return re.sub(r"[\s_-]+", "", name.lower())


NUMBER_FORMATS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64", "fp8": "float8"}
"""Of short names of number formats, the ones that torch has."""


class Names:
    """The names of one kind of thing, and other words for some of them (`also`, from the word to the name).

    `kind` is what sentences call it, `plain_of` takes from a name what makes no difference. `listed_by` is the
    command that lists the names: if there are many, sentences about an unknown name have the three nearest ones.

    >>> names = Names("schedule", ["1f1b", "zb-h1"], also={"dapple": "1f1b"})
    >>> names.find("ZB_H1"), names.find("DAPPLE"), names.find("zb-h9")
    ('zb-h1', '1f1b', None)
    >>> names.unknown("zb-h9")
    "unknown schedule 'zb-h9': did you mean zb-h1?"
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
        words = dict(also or {}) | {name: name for name in self._names}
        self._by_plain = {plain_of(word): name for word, name in words.items()}

    def find(self, name: str) -> str | None:
        """Return the name that is meant, or None where there is no such."""
        return name if name in self._names else self._by_plain.get(self._plain_of(name))

    def unknown(self, name: str) -> str:
        """Return the sentence about a name that there is not: the close matches, or all that there are."""
        return f"unknown {self._kind} '{name}': {self.hint(name)}"

    def nearest(self, name: str, number: int = 3) -> list[str]:
        """Return the names that are most like it."""
        near = difflib.get_close_matches(self._plain_of(name), self._by_plain, n=len(self._by_plain), cutoff=0)
        return list(dict.fromkeys(self._by_plain[one] for one in near))[:number]

    def hint(self, name: str) -> str:
        """Return the end of such a sentence."""
        close = difflib.get_close_matches(self._plain_of(name), self._by_plain, n=3, cutoff=_CLOSE)
        found = dict.fromkeys(self._by_plain[one] for one in close)
        if found:
            return f"did you mean {' or '.join(found)}?"
        if self._listed_by and len(self._names) > _FEW:
            nearest = ", ".join(self.nearest(name))
            return f"the nearest of {len(self._names)} names are {nearest}; {self._listed_by} lists all"
        return f"there are {', '.join(self._names)}"


_CLOSE = 0.5
"""How alike a name is to one that is meant, of 1."""

_FEW = 30
"""Names that a sentence may list."""
