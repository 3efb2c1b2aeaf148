"""What the page shows as one value, of which URL, command line and the fields of the form are ways to write it.

A state is words of `ppsim project`, written as on its command line, and how the picture is looked at. Nothing here
knows a browser, and nothing computes.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from urllib.parse import parse_qsl, urlencode

from ppsim.base.errors import ConfigError
from ppsim.base.words import Word, sections_of, words_of
from ppsim.projection.options import PlanOptions
from ppsim.tuning.options import TuneOptions

_WORDS, _TUNED = words_of(PlanOptions), words_of(TuneOptions)
_TUNE = "tune."
"""Before the words of a search in a query, which are others than those of the projection beside it."""

SCHEDULES = ("1f1b", "interleaved-1f1b", "zb-h1")
"""Those compared where nothing is said: what trainers run, and the plainest that splits the backward."""

VIEWS = {
    "tab": ("compare", "tune"), "colour": ("kind", "cause"), "path": ("1", "0"), "panel": ("time", "memory"),
}  # fmt: skip
"""How the picture is looked at, the first of each unless something else is said."""


@dataclass(frozen=True)
class State:
    """What is asked, and how it is looked at.

    `words` are options of `ppsim project` by word, as texts; `more` are further ones as they are typed. `schedules`
    are compared, `baseline` is the one that the others are set against (None: the first). `searched` are options of
    `ppsim tune`, `search_more` further ones.

    >>> state = State.read("pp=8&microbatches=32&schedule=1f1b,zb-h1&baseline=zb-h1")
    >>> state.command
    'ppsim project --pp 8 --num-microbatches 32 --schedule 1f1b,zb-h1'
    >>> State.read(state.query) == state
    True
    """

    words: Mapping[str, str] = field(default_factory=lambda: {"pp": "8", "microbatches": "32"})
    schedules: tuple[str, ...] = SCHEDULES
    baseline: str | None = None
    more: str = ""
    searched: Mapping[str, str] = field(default_factory=dict)
    search_more: str = ""
    views: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, query: str) -> "State":
        """Return the state that a URL's query holds, the first one for none.

        Raises `ConfigError` for what is no word of it.
        """
        given = dict(parse_qsl(query.removeprefix("?"), keep_blank_values=True))
        if not given:
            return cls()
        names = [name.strip() for name in given.pop("schedule", "").split(",") if name.strip()]
        baseline, more = given.pop("baseline", None) or None, given.pop("more", "")
        search_more = given.pop(_TUNE + "more", "")
        views = {name: given.pop(name) for name in VIEWS if name in given}
        for name, value in views.items():
            if value not in VIEWS[name]:
                raise ConfigError(f"{name} is '{value}': choose one of {', '.join(VIEWS[name])}")
        searched = {name: given.pop(name) for name in list(given) if name.startswith(_TUNE)}
        searched = {name.removeprefix(_TUNE): value for name, value in searched.items() if value}
        for words, known in ((given, _WORDS), (searched, _TUNED)):
            if unknown := [name for name in words if name not in known]:
                raise ConfigError(f"there is no '{unknown[0]}' in the state of the page")
        words = {name: value for name, value in given.items() if value}
        views = {name: value for name, value in views.items() if value != VIEWS[name][0]}
        return cls(words, tuple(dict.fromkeys(names)), baseline, more, searched, search_more, views)

    @property
    def query(self) -> str:
        """The state as a URL's query."""
        words = _in_order(_WORDS, self.words)
        searched = {_TUNE + name: value for name, value in _in_order(_TUNED, self.searched).items()}
        also = {"baseline": self.baseline, "more": self.more, **searched, _TUNE + "more": self.search_more}
        words = _in_order(_WORDS, self.words) | {"schedule": ",".join(self.schedules)}
        given = words | {name: value for name, value in (also | dict(self.views)).items() if value}
        return urlencode(given, safe=",:/|*()")

    @cached_property
    def options(self) -> list[str]:
        """What a command line says of the plan, the schedules apart. Raises `ConfigError` for open quotes."""
        return _options(_WORDS, self.words, self.more)

    @property
    def arguments(self) -> list[str]:
        """What follows `ppsim project` on a command line."""
        return [*self.options, *(["--schedule", ",".join(self.schedules)] if self.schedules else [])]

    @property
    def command(self) -> str:
        """The line that projects the same in a terminal."""
        return shlex.join(["ppsim", "project", *self.arguments])

    @property
    def search_arguments(self) -> list[str]:
        """What follows `ppsim tune` on a command line."""
        return _options(_TUNED, self.searched, self.search_more)

    @property
    def search_command(self) -> str:
        """The line that searches the same in a terminal."""
        return shlex.join(["ppsim", "tune", *self.search_arguments])

    def view(self, name: str) -> str:
        """Return how something is looked at, a key of `VIEWS`."""
        return self.views.get(name, VIEWS[name][0])

    def showing(self, arguments: list[str]) -> "State":
        """Return the state with what follows `ppsim project` on a command line in place of its own plan.

        Where that names no schedules, or all, they are those of a page that nothing is said of.
        """
        words: dict[str, str] = {}
        schedules: tuple[str, ...] = ()
        rest: list[str] = []
        flags = {word.flag: word for word in _WORDS.values()}
        given = iter(arguments)
        for text in given:
            word = flags.get(text)
            if word is None or bool in word.kinds or word.is_mapping:
                rest.append(text)
                continue
            value = next(given, "")
            if word.name == "schedule":
                schedules = () if value in ("all", "auto") else tuple(value.split(","))
            else:
                words[word.name] = value
        views = {name: value for name, value in self.views.items() if name != "tab"}
        return replace(
            self, words=words, schedules=schedules or SCHEDULES, baseline=None, more=shlex.join(rest), views=views
        )  # fmt: skip


def field_of(sentence: str) -> str | None:
    """Return the word that a sentence of the command line is about, None where it names none.

    >>> field_of("--vpp must be at least 1: got 0"), field_of("zbv needs vpp 2: got 3"), field_of("no such thing")
    ('vpp', 'vpp', None)
    """
    flags = {called: name for name, word in _WORDS.items() for called in (word.flag[2:], name.replace("_", "-"))}
    # A flag is sure; else a word of its own, of which `pp` stands for much and comes last.
    parts = sentence.replace("'", " ").replace(":", " ").replace(",", " ").replace("=", " ").split()
    for part in parts:
        if part.startswith("--") and part.lstrip("-") in flags:
            return flags[part.lstrip("-")]
    plain = [flags[part] for part in parts if part in flags]
    plain += [_ALSO[part] for part in parts if part in _ALSO]
    return next((name for name in plain if name != "pp"), plain[0] if plain else None)


_ALSO = {"tokens": "seq_len", "devices": "gpus"}


def _in_order(known: Mapping[str, Word], words: Mapping[str, str]) -> dict[str, str]:
    """The words in the order of a help page."""
    listed = [name for names in sections_of(known.values()).values() for name in names]
    return {name: words[name] for name in listed if name in words}


def _options(known: Mapping[str, Word], words: Mapping[str, str], more: str) -> list[str]:
    try:
        typed = shlex.split(more)
    except ValueError as error:
        raise ConfigError(f"cannot read the further options '{more}': {str(error).lower()}") from None
    return [
        *(text for name, value in _in_order(known, words).items() for text in (known[name].flag, value)),
        *typed,
    ]
