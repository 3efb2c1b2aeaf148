"""State of the page as one value, convertible from and to URL, command line and form fields."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from urllib.parse import parse_qsl, urlencode

from ppsim.base.errors import ConfigError
from ppsim.base.option_declarations import OptionDeclaration, declared_options, options_by_section
from ppsim.projection.options import PlanOptions
from ppsim.tuning.options import TuneOptions

_WORDS, _TUNED = declared_options(PlanOptions), declared_options(TuneOptions)
_TUNE = "tune."
"""Prefix of the search's options in a query, to distinguish them from the projection's options."""

SCHEDULES = ("1f1b", "interleaved-1f1b", "zb-h1")
"""Default comparison: the usual schedules of trainers, and the simplest with a split backward pass."""

VIEWS = {
    "tab": ("compare", "tune"), "colour": ("kind", "cause"), "path": ("1", "0"), "panel": ("time", "memory"),
}  # fmt: skip


@dataclass(frozen=True)
class PageState:
    """Options and view settings.

    - `words`: options of `ppsim project` by name, as texts; `more`: further options as typed.
    - `baseline`: the reference of the comparison (None: the first schedule).
    - `searched`: options of `ppsim tune`; `search_more`: further ones.

    >>> state = PageState.read("pp=8&microbatches=32&schedule=1f1b,zb-h1&baseline=zb-h1")
    >>> state.command
    'ppsim project --pp 8 --num-microbatches 32 --schedule 1f1b,zb-h1'
    >>> PageState.read(state.query) == state
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
    def read(cls, query: str) -> "PageState":
        """Return the default state for an empty query; raises `ConfigError` for unknown names."""
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
        for settings, declarations in ((given, _WORDS), (searched, _TUNED)):
            if unknown := [name for name in settings if name not in declarations]:
                raise ConfigError(f"there is no '{unknown[0]}' in the state of the page")
        settings = {name: value for name, value in given.items() if value}
        views = {name: value for name, value in views.items() if value != VIEWS[name][0]}
        return cls(settings, tuple(dict.fromkeys(names)), baseline, more, searched, search_more, views)

    @property
    def query(self) -> str:
        settings = _in_order(_WORDS, self.words)
        searched = {_TUNE + name: value for name, value in _in_order(_TUNED, self.searched).items()}
        also = {"baseline": self.baseline, "more": self.more, **searched, _TUNE + "more": self.search_more}
        settings = _in_order(_WORDS, self.words) | {"schedule": ",".join(self.schedules)}
        given = settings | {name: value for name, value in (also | dict(self.views)).items() if value}
        return urlencode(given, safe=",:/|*()")

    @cached_property
    def options(self) -> list[str]:
        """Schedules are left out; raises `ConfigError` for unbalanced quotes."""
        return _options(_WORDS, self.words, self.more)

    @property
    def arguments(self) -> list[str]:
        return [*self.options, *(["--schedule", ",".join(self.schedules)] if self.schedules else [])]

    @property
    def command(self) -> str:
        return shlex.join(["ppsim", "project", *self.arguments])

    @property
    def search_arguments(self) -> list[str]:
        return _options(_TUNED, self.searched, self.search_more)

    @property
    def search_command(self) -> str:
        return shlex.join(["ppsim", "tune", *self.search_arguments])

    def view(self, name: str) -> str:
        return self.views.get(name, VIEWS[name][0])

    def showing(self, arguments: list[str]) -> "PageState":
        """Replace the plan by arguments of `ppsim project`.

        If the arguments name no schedules, or all, the default schedules are compared.
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
                schedules = () if value in ("all", "any", "auto") else tuple(value.split(","))
            else:
                words[word.name] = value
        views = {name: value for name, value in self.views.items() if name != "tab"}
        return replace(
            self, words=words, schedules=schedules or SCHEDULES, baseline=None, more=shlex.join(rest), views=views
        )  # fmt: skip


def field_of(sentence: str) -> str | None:
    """Return the option that an error message is about, None if it names none.

    >>> field_of("--vpp must be at least 1: got 0"), field_of("zbv needs vpp 2: got 3"), field_of("no such thing")
    ('vpp', 'vpp', None)
    """
    flags = {called: name for name, word in _WORDS.items() for called in (word.flag[2:], name.replace("_", "-"))}
    # Prefer a flag, then an option's name. `pp` appears in many messages, so it comes last.
    parts = sentence.replace("'", " ").replace(":", " ").replace(",", " ").replace("=", " ").split()
    for part in parts:
        if part.startswith("--") and part.lstrip("-") in flags:
            return flags[part.lstrip("-")]
    plain = [flags[part] for part in parts if part in flags]
    plain += [_ALSO[part] for part in parts if part in _ALSO]
    return next((name for name in plain if name != "pp"), plain[0] if plain else None)


_ALSO = {"tokens": "seq_len", "devices": "gpus"}


def _in_order(declarations: Mapping[str, OptionDeclaration], settings: Mapping[str, str]) -> dict[str, str]:
    listed = [name for names in options_by_section(declarations.values()).values() for name in names]
    return {name: settings[name] for name in listed if name in settings}


def _options(declarations: Mapping[str, OptionDeclaration], settings: Mapping[str, str], more: str) -> list[str]:
    try:
        typed = shlex.split(more)
    except ValueError as error:
        raise ConfigError(f"cannot read the further options '{more}': {str(error).lower()}") from None
    return [
        *(
            text
            for name, value in _in_order(declarations, settings).items()
            for text in (declarations[name].flag, value)
        ),
        *typed,
    ]
