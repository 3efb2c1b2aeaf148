"""Options as keyword arguments of API functions."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Any, ForwardRef, Literal, TypeVar, get_args, get_origin

from ppsim.base.errors import ConfigError
from ppsim.base.name_lookup import NameLookup
from ppsim.base.option_declarations import allowed_values, declared_options, require_least, value_types

_Verb = TypeVar("_Verb", bound=Callable[..., Any])


def accept_options(declared: type) -> Callable[[_Verb], _Verb]:
    """Return a decorator for a function with `**options: Unpack[declared]`.

    The function receives every option, None if not given. The names of the command line, with underscores, are
    accepted too. Quoted types in the declaration are not imported.
    """
    hints = option_types(declared)
    keywords = {word.keyword: name for name, word in declared_options(declared).items()}

    def decorate(verb: _Verb) -> _Verb:
        signature = inspect.signature(verb)
        own = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        own_names = {one.name for one in own}
        names = {keyword: name for keyword, name in keywords.items() if keyword not in own_names}

        @wraps(verb)
        def checked(*args: Any, **options: Any) -> Any:
            given = {names.get(name, name): value for name, value in options.items()}
            if len(given) < len(options):
                twice = next(name for name in options if name != names.get(name, name) in options)
                raise ConfigError(f"{names[twice]} and {twice} are one option: give one of them")
            words = {name: value for name, value in given.items() if name not in own_names}
            require_valid_options(declared, words, verb.__name__)
            return verb(*args, **dict.fromkeys(hints) | given)

        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_quoted(hint))
            for name, hint in hints.items()
        ]
        checked.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return decorate


def option_types(declared: type) -> dict[str, Any]:
    hints = declared.__annotations__.items()
    return {name: get_args(hint)[0] if hasattr(hint, "__metadata__") else hint for name, hint in hints}


def _quoted(hint: Any) -> Any:
    return hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint


def require_valid_options(declared: type, options: Mapping[str, Any], verb: str) -> None:
    hints, declarations = option_types(declared), declared_options(declared)
    for name, value in options.items():
        if name not in hints:
            raise ConfigError(f"{verb} has no '{name}': {NameLookup('word', hints).hint(name)}")
        if value is None:
            continue
        if (choices := allowed_values(value_types(hints[name]))) and value not in choices:
            raise ConfigError(f"{name} is {value!r}: choose one of {', '.join(map(str, choices))}")
        inside = get_args(hints[name])
        kinds = [kind for kind in inside if kind is not NoneType] if NoneType in inside else [hints[name]]
        is_list = len(kinds) == 1 and get_origin(kinds[0]) is Sequence  # the decorated function checks the items
        if not choices and not is_list and not any(_is_of(value, kind) for kind in kinds):
            whats = " or ".join(dict.fromkeys(_what(kind) for kind in kinds))
            raise ConfigError(f"{name} must be {whats}: got {value!r}")
        least = declarations[name].option.least if name in declarations else None
        if least is not None and isinstance(value, int | float):
            require_least(name, value, least)


_PLAIN: dict[Any, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
}


def _is_of(value: Any, kind: Any) -> bool:
    """Objects of ppsim are accepted where a text is declared."""
    if kind in _PLAIN:
        return isinstance(value, _PLAIN[kind][0]) and (kind is bool or not isinstance(value, bool))
    if kind in (str, Path) or isinstance(kind, ForwardRef):
        return isinstance(value, str | Path) or type(value).__module__.partition(".")[0] == "ppsim"
    if get_origin(kind) in (Literal, Mapping):
        return value in get_args(kind) if get_origin(kind) is Literal else isinstance(value, Mapping)
    is_listed = hasattr(value, "__getitem__") and not isinstance(value, str | Mapping)
    return is_listed and all(_is_of(one, get_args(kind)[0]) for one in value)


def _what(kind: Any) -> str:
    if kind in _PLAIN or kind in (str, Path):
        return _PLAIN[kind][1] if kind in _PLAIN else "a text"
    if isinstance(kind, ForwardRef):
        names = [name for name in kind.__forward_arg__.split(" | ") if name not in ("Path", "None")]
        return " or ".join("a text" if name == "str" else f"a {name}" for name in names)
    of = get_args(kind)
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, of))}"
    return "a mapping, as {3: 1.2}" if get_origin(kind) is Mapping else f"a list, {_what(of[0])} each"
