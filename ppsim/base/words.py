"""Options declared once: the words of a TypedDict, each with what there is to say of it beside its type.

A word is a key whose type is `Annotated[type, Option(...)]`. From these come the options of the command line, the
keywords of the verbs, and the command that a search prints. Keys without an `Option` are only Python's.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ForwardRef, Literal, get_args, get_origin

from ppsim.base.errors import ConfigError

NamesOf = Literal["schedule", "model", "cluster", "profile", "recipe"]


@dataclass(frozen=True)
class Option:
    """What is said of a word.

    help
        Its sentence. `{default}` stands for the default; one that is not named there, help pages show behind it,
        where it is `shown`.
    metavar
        What its value looks like on a command line; None for a choice or a flag.
    section, after
        In which section of a help page it is listed, "" for the last, and behind which word there. None: behind
        the one that is declared before it.
    default
        What stands where nothing is given, None where that depends on something else.
    field
        The field that it sets, with dots from a plan on: "job.layout.tp".
    flag
        Its name on the command line where that is not the word's.
    also
        Other names that the command line accepts with the same meaning: Megatron-LM's. Help does not list them.
    least
        The smallest number.
    has_no
        Of what is yes or no: whether the command line has a --no-… for it.
    required
        Whether a command must be given it.
    names
        What it is a name of, where it is one: what a shell completes it with.
    is_hidden
        Whether help pages leave it out: a trainer's configuration sets it, few people type it. The reference has
        it.
    """

    help: str
    metavar: str | None = None
    section: str = ""
    after: str | None = None
    default: Any = None
    shown: bool = False
    field: str | None = None
    flag: str | None = None
    also: tuple[str, ...] = ()
    least: int | None = None
    has_no: bool = False
    required: bool = False
    names: NamesOf | None = None
    is_hidden: bool = False

    @property
    def sentence(self) -> str:
        """The help, with its default."""
        values = self.default if isinstance(self.default, tuple) else (self.default,)
        default = ",".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
        return self.help.replace("{default}", default)


@dataclass(frozen=True)
class Word:
    """A name, the types that its value may have (None is none of them), and what is said of it."""

    name: str
    kinds: tuple[Any, ...]
    option: Option

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return self.option.flag or flag_of(self.name)

    @property
    def also(self) -> tuple[str, ...]:
        """Other names that the command line accepts."""
        own = f"--{self.name.replace('_', '-')}"
        return (*self.option.also, *([own] if self.name in FLAGS else []))

    @property
    def keyword(self) -> str:
        """Its name in Python: the flag with underscores."""
        return self.flag[2:].replace("-", "_")

    @property
    def choices(self) -> list[Any]:
        """All that it can be, none where any text goes."""
        return choices_of(self.kinds)

    @property
    def listed(self) -> Any:
        """What it is a list of, None where it is none, or where a text goes too."""
        found = [get_args(kind)[0] for kind in self.kinds if get_origin(kind) is Sequence]
        return found[0] if found and str not in self.kinds else None

    @property
    def is_mapping(self) -> bool:
        """Whether it is pairs, which a command line repeats."""
        return any(get_origin(kind) is Mapping for kind in self.kinds)


FLAGS = {
    "micro_batch": "--micro-batch-size",
    "microbatches": "--num-microbatches",
    "global_batch": "--global-batch-size",
    "context": "--cp-comm-type",
    "order": "--rank-order",
    "rest": "--extra-step-time",
    "compute_share": "--compute-scale",
    "update": "--optimizer-sync",
    "lengths": "--sequence-lengths",
}
"""Flags of words whose names differ; the word with dashes is accepted too."""


def flag_of(name: str) -> str:
    """Return what a command line calls a word.

    >>> flag_of("micro_batch"), flag_of("seq_len")
    ('--micro-batch-size', '--seq-len')
    """
    return FLAGS.get(name, f"--{name.replace('_', '-')}")


@cache
def words_of(declared: type) -> dict[str, Word]:
    """Return the words of a TypedDict by name, as they are declared."""
    return {
        name: Word(name, kinds_of(get_args(hint)[0]), option)
        for name, hint in declared.__annotations__.items()
        for option in get_args(hint)
        if isinstance(option, Option)
    }


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one; an object of ppsim, named in quotes, is a text to a command line."""
    kinds = get_args(hint) if type(None) in get_args(hint) else (hint,)
    return tuple(str if isinstance(kind, ForwardRef) else kind for kind in kinds if kind is not type(None))


def choices_of(kinds: Sequence[Any]) -> list[Any]:
    """Return all that a value of these types can be, none where any text goes."""
    found = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    return [] if str in kinds else found


def texts_of(word: Word, value: Any) -> list[str]:
    """Return what a command line says for a value of a word: "--tp 8", "--no-dropout"; nothing for None."""
    if value is None:
        return []
    if word.is_mapping:
        return [f"{word.flag} {key}:{number}" for key, number in value.items()]
    if bool in word.kinds:
        off = [f"--no-{word.flag[2:]}"] if word.option.has_no else []
        return [word.flag] if value else off
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    return [f"{word.flag} {shlex.quote(','.join(map(str, value)) if listed else str(value))}"]


def sections_of(words: Iterable[Word]) -> dict[str, list[str]]:
    """Return the names under each section's key, in the order in which a help page lists them."""
    found: dict[str, list[str]] = {}
    last: dict[str, str] = {}
    for word in words:
        names = found.setdefault(word.option.section, [])
        before = word.option.after or last.get(word.option.section)
        names.insert(names.index(before) + 1 if before in names else len(names), word.name)
        last[word.option.section] = word.name
    return found


_MOST_TOKENS = 10**9  # of a sequence


def require_least(name: str, value: float | None, least: int = 1) -> None:
    """Raise `ConfigError` for a word's value below the least that it can be."""
    if value is not None and value < least:
        raise ConfigError(f"{flag_of(name)} must be at least {least}: got {value}")


def require_tokens(name: str, tokens: int | None) -> None:
    """Raise `ConfigError` for a sequence of more tokens than anybody means."""
    if tokens is not None and tokens > _MOST_TOKENS:
        raise ConfigError(f"{flag_of(name)} must be at most {_MOST_TOKENS}: got {tokens}, for one sequence")


def given_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are given: not None."""
    return {name: value for name, value in options.items() if value is not None}


def with_defaults(words: Mapping[str, Word], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, with the default of each word that was not given."""
    return {name: word.option.default for name, word in words.items()} | given_of(options)


def fields_of(words: Mapping[str, Word], options: Mapping[str, Any], under: str = "") -> dict[str, Any]:
    """Return the fields right below `under` that the options set: what was given, and defaults."""
    found = {}
    given = with_defaults(words, options)
    for name, word in words.items():
        above, _, field = (word.option.field or "").rpartition(".")
        if field and above == under and given[name] is not None:
            found[field] = given[name]
    return found


def values_in(words: Mapping[str, Word], holder: Any) -> dict[str, Any]:
    """Return what each word's field is in an object, None where it has none: the inverse of `fields_of`."""
    found = {}
    for name, word in words.items():
        value = holder if word.option.field else None
        for field in (word.option.field or "").split("."):
            value = getattr(value, field, None)
        found[name] = value
    return found
