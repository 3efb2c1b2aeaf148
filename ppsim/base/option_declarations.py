"""Options declared once, as keys of a TypedDict with the type `Annotated[type, Option(...)]`.

Keys without an `Option` exist in Python only.
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
    """Properties of an option.

    help
        Help text, in which `{default}` is replaced by the default. If `shown`, the default is appended instead.
    metavar
        Placeholder of the value on the command line; None for a choice or a flag.
    section, after
        Section of the help page ("": the last), and the option that precedes it there.
    default
        Value if not given, None if it depends on other options.
    field
        The field that it sets, as a dotted path from a plan: "job.layout.tp".
    also
        Other accepted names, from Megatron-LM, which help does not list.
    has_no
        For a boolean: whether the command line has a --no-… form.
    names
        The kind of name that it takes, for shell completion.
    is_hidden
        Help pages omit it, because few people type it.
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
        values = self.default if isinstance(self.default, tuple) else (self.default,)
        default = ",".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
        return self.help.replace("{default}", default)


@dataclass(frozen=True)
class OptionDeclaration:
    """An option: key, types of its value (without None), and properties."""

    name: str
    kinds: tuple[Any, ...]
    option: Option

    @property
    def flag(self) -> str:
        return self.option.flag or flag_of(self.name)

    @property
    def also(self) -> tuple[str, ...]:
        takes_one_value = not self.option.has_no and not self.is_mapping
        own = [f"--{self.name.replace('_', '-')}"] if self.name in FLAGS and takes_one_value else []
        return (*self.option.also, *own)

    @property
    def keyword(self) -> str:
        """Name in Python: the flag with underscores."""
        return self.flag[2:].replace("-", "_")

    @property
    def choices(self) -> list[Any]:
        return allowed_values(self.kinds)

    @property
    def listed(self) -> Any:
        """Type of the items if the value can only be a list."""
        items = [get_args(kind)[0] for kind in self.kinds if get_origin(kind) is Sequence]
        return items[0] if items and str not in self.kinds else None

    @property
    def is_mapping(self) -> bool:
        """A mapping is given on the command line by repeating the option."""
        return any(get_origin(kind) is Mapping for kind in self.kinds)

    @property
    def separator(self) -> str:
        """The character between key and value of a mapping: NAME=VALUE for text, RANK:FACTOR for numbers."""
        return "=" if "=" in (self.option.metavar or "") else ":"


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
    "overlap_p2p": "--overlap-p2p-communication",
    "stragglers": "--straggler",
}
"""Flags that differ from the key; if the option takes one value, the key with dashes is accepted too."""


def flag_of(name: str) -> str:
    """Return the command-line name of an option.

    >>> flag_of("micro_batch"), flag_of("overlap_p2p"), flag_of("seq_len")
    ('--micro-batch-size', '--overlap-p2p-communication', '--seq-len')
    """
    return FLAGS.get(name, f"--{name.replace('_', '-')}")


@cache
def declared_options(declared: type) -> dict[str, OptionDeclaration]:
    return {
        name: OptionDeclaration(name, value_types(get_args(hint)[0]), option)
        for name, hint in declared.__annotations__.items()
        for option in get_args(hint)
        if isinstance(option, Option)
    }


def value_types(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the single type; quoted classes of ppsim become `str`."""
    kinds = get_args(hint) if type(None) in get_args(hint) else (hint,)
    return tuple(str if isinstance(kind, ForwardRef) else kind for kind in kinds if kind is not type(None))


def allowed_values(kinds: Sequence[Any]) -> list[Any]:
    """The result is empty if any text is allowed."""
    choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    return [] if str in kinds else choices


def command_arguments(word: OptionDeclaration, value: Any) -> list[str]:
    if value is None:
        return []
    if word.is_mapping:
        return [f"{word.flag} {shlex.quote(f'{key}{word.separator}{each}')}" for key, each in value.items()]
    if bool in word.kinds:
        off = [f"--no-{word.flag[2:]}"] if word.option.has_no else []
        return [word.flag] if value else off
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    return [f"{word.flag} {shlex.quote(','.join(map(str, value)) if listed else str(value))}"]


def options_by_section(declarations: Iterable[OptionDeclaration]) -> dict[str, list[str]]:
    options: dict[str, list[str]] = {}
    last: dict[str, str] = {}
    for word in declarations:
        names = options.setdefault(word.option.section, [])
        before = word.option.after or last.get(word.option.section)
        names.insert(names.index(before) + 1 if before in names else len(names), word.name)
        last[word.option.section] = word.name
    return options


_MOST_TOKENS = 10**9  # maximum per sequence


def require_least(name: str, value: float | None, least: int = 1) -> None:
    if value is not None and value < least:
        raise ConfigError(f"{flag_of(name)} must be at least {least}: got {value}")


def require_tokens(name: str, tokens: int | None) -> None:
    if tokens is not None and tokens > _MOST_TOKENS:
        raise ConfigError(f"{flag_of(name)} must be at most {_MOST_TOKENS}: got {tokens}, for one sequence")


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def with_defaults(declarations: Mapping[str, OptionDeclaration], options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: word.option.default for name, word in declarations.items()} | given_options(options)


def field_values(
    declarations: Mapping[str, OptionDeclaration], options: Mapping[str, Any], under: str = ""
) -> dict[str, Any]:
    """Return the fields directly below `under` that the options and their defaults set."""
    values = {}
    given = with_defaults(declarations, options)
    for name, word in declarations.items():
        above, _, field = (word.option.field or "").rpartition(".")
        if field and above == under and given[name] is not None:
            values[field] = given[name]
    return values


def option_values(declarations: Mapping[str, OptionDeclaration], holder: Any) -> dict[str, Any]:
    """Return the inverse of `field_values`."""
    values = {}
    for name, word in declarations.items():
        value = holder if word.option.field else None
        for field in (word.option.field or "").split("."):
            value = getattr(value, field, None)
        values[name] = value
    return values
