"""Options of a verb as keywords: words declared once (`ppsim.base.words`), for `help()` and the check of a call."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from numbers import Integral
from typing import Any, ForwardRef, TypeVar, get_args

from ppsim.base.errors import ConfigError
from ppsim.base.names import Names
from ppsim.base.words import choices_of, kinds_of

_Verb = TypeVar("_Verb", bound=Callable[..., Any])


def takes(declared: type) -> Callable[[_Verb], _Verb]:
    """Return a decorator for a function of `**options: Unpack[declared]`.

    The function gets every word, None for those that were not given. Its signature names them, so that `help()` and
    completion do. A call raises `ConfigError` for an unknown word, with the close matches, for a choice that there
    is not, and for a number that is not whole where it must be. Classes that the declaration has in quotes
    stay so, and are not imported.
    """
    hints = hints_of(declared)

    def decorate(verb: _Verb) -> _Verb:
        signature = inspect.signature(verb)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        own_names = {one.name for one in own}

        @wraps(verb)
        def checked(*args: Any, **options: Any) -> Any:
            words = {name: value for name, value in options.items() if name not in own_names}
            require_words(hints, words, verb.__name__)
            return verb(*args, **dict.fromkeys(hints) | options)

        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_quoted(hint))
            for name, hint in hints.items()
        ]
        checked.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return decorate


def hints_of(declared: type) -> dict[str, Any]:
    """Return the types of the words, as they are declared."""
    hints = declared.__annotations__.items()
    return {name: get_args(hint)[0] if hasattr(hint, "__metadata__") else hint for name, hint in hints}


def _quoted(hint: Any) -> Any:
    """A type, or the text of one that is declared in quotes."""
    return hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint


def require_words(hints: Mapping[str, Any], options: Mapping[str, Any], verb: str) -> None:
    """Raise `ConfigError` for the first option that the hints do not allow."""
    for name, value in options.items():
        if name not in hints:
            raise ConfigError(f"{verb} has no '{name}': {Names('word', hints).hint(name)}")
        if value is None:
            continue
        kinds = kinds_of(hints[name])
        if (choices := choices_of(kinds)) and value not in choices:
            raise ConfigError(f"{name} is {value!r}: choose one of {', '.join(map(str, choices))}")
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)
        if kinds == (int,) and not is_whole:
            raise ConfigError(f"{name} is a whole number: got {value!r}")
