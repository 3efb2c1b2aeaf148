"""Validation of input files: reports all errors at once, with key paths.

A file format is a frozen dataclass. Pydantic checks users' files and is imported only if there is one. Files that
ship with ppsim are checked by tests instead.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, dataclass_transform, get_args, get_origin

from ppsim.base.errors import ConfigError
from ppsim.base.limits import LARGEST_COUNT, integer_if_equal, short_text

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class FileSchema:
    """Base class of file formats: rejects unknown keys, strings in place of numbers, NaN and infinity.

    Subclasses become frozen dataclasses and use the methods below, because generating methods per class would cost
    1 ms of start-up each. `config` overrides pydantic's configuration.
    """

    __pydantic_config__: Mapping[str, Any] = {"extra": "forbid", "strict": True, "allow_inf_nan": False}

    def __init_subclass__(cls, **config: Any) -> None:
        cls.__pydantic_config__ = {**cls.__pydantic_config__, **config}
        dataclass(init=False, repr=False, eq=False, kw_only=True)(cls)

    def __init__(self, **given: Any) -> None:
        there = fields(self)  # type: ignore[arg-type]
        if wrong := [name for name in given if name not in {one.name for one in there}]:
            raise TypeError(f"{type(self).__name__} has no field '{wrong[0]}'")
        for one in there:
            if one.name not in given and one.default is MISSING and one.default_factory is MISSING:
                raise TypeError(f"{type(self).__name__} needs the field '{one.name}'")
            made = one.default if one.default_factory is MISSING or one.name in given else one.default_factory()
            vars(self)[one.name] = given.get(one.name, made)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check combinations of fields; raises `ValueError`."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field '{name}'")

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Return pydantic's schema, which accepts a mapping for an object; the fields stay strict."""
        return handler(source) | {"strict": False}


class Bounds:
    """Bounds of a number or a length in an annotation."""

    __is_annotated_types_grouped_metadata__ = True  # makes pydantic iterate over it

    def __init__(self, **bounds: float) -> None:
        self.bounds = bounds

    def __iter__(self) -> Iterator[Any]:
        from pydantic import Field

        yield from Field(**self.bounds).metadata  # type: ignore[call-overload]


class ConvertBefore:
    """Converts a value before the check of its type; a `ValueError` becomes the error message."""

    def __init__(self, made: Callable[[Any], Any]) -> None:
        self.made = made

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(self.made, handler(source))


class ConvertAfter(ConvertBefore):
    """Converts a value after the check of its type."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self.made, handler(source))


NonNegative = Annotated[float, Bounds(ge=0, le=1e30)]  # sums of such numbers stay finite
AboveZero = Annotated[float, Bounds(gt=0, le=1e30)]
Moment = Annotated[float, Bounds(ge=-1e12, le=1e12)]  # seconds, more than 30,000 years
Count = Annotated[
    int, Bounds(ge=0, le=LARGEST_COUNT), ConvertBefore(integer_if_equal)
]  # JSON may contain 8.5e10 for bytes
Positive = Annotated[int, Bounds(ge=1, le=LARGEST_COUNT), ConvertBefore(integer_if_equal)]
OneOrMany = Annotated[
    list[NonNegative],
    Bounds(min_length=1),
    ConvertBefore(lambda value: value if isinstance(value, list) else [value]),
]

Matrix = Annotated[list[Annotated[list[NonNegative], Bounds(min_length=1)]], Bounds(min_length=1)]
"""Rows of numbers."""


Model = TypeVar("Model", bound=FileSchema)


def validated(model: type[Model], data: Any, source: str) -> Model:
    """The `ConfigError` has `source` and the path of every wrong key."""
    from pydantic import ValidationError

    try:
        checked: Model = _checker(model).validate_python(data)  # type: ignore[arg-type]
    except ValidationError as error:
        findings = error.errors(include_url=False)
        shown = [_sentence(model, finding, _path(finding["loc"], data)) for finding in findings[:_MOST_SENTENCES]]
        sentences = list(dict.fromkeys(shown))
        if len(findings) > _MOST_SENTENCES:
            sentences.append(f"… and {len(findings) - _MOST_SENTENCES} more")
        raise ConfigError(f"{source} is wrong: " + "\n  ".join(sentences)) from None
    return checked


@cache
def _checker(model: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    return TypeAdapter(model)


def load_packaged(model: type[Model], data: Any) -> Model:
    loaded: Model = _maker(model)(data)  # type: ignore[arg-type]
    return loaded


@cache
def _maker(kind: Any) -> Callable[[Any], Any]:
    origin, inner = get_origin(kind), [argument for argument in get_args(kind) if argument is not NoneType]
    if isinstance(kind, type) and issubclass(kind, FileSchema):
        makers = {one.name: _maker(one.type) for one in fields(kind)}  # type: ignore[arg-type]
        return lambda data: kind(**{name: makers[name](value) for name, value in data.items()})
    if origin is Annotated:
        steps = [_maker(inner[0])]
        for one in kind.__metadata__:
            if isinstance(one, ConvertBefore):
                steps.insert(len(steps) if isinstance(one, ConvertAfter) else 0, one.made)
        return lambda value: _through(steps, value)
    if origin is list:
        return lambda value: [*map(_maker(inner[0]), value)]
    if origin is dict:
        return lambda value: {key: _maker(inner[1])(one) for key, one in value.items()}
    if len(inner) == 1 and len(get_args(kind)) == 2:
        return lambda value: value if value is None else _maker(inner[0])(value)
    return float if kind is float else lambda value: value


def _through(steps: list[Callable[[Any], Any]], value: Any) -> Any:
    for step in steps:
        value = step(value)
    return value


def with_field_types(
    model: type[Model], types: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> type[Model]:
    """Fields without an entry in `defaults` are required."""
    of_class = {name: (defaults or {}).get(name, field()) for name in types}
    return type(model.__name__, (model,), {"__annotations__": dict(types), **of_class})


def non_default_fields(what: FileSchema) -> dict[str, Any]:
    return {
        one.name: value for one in fields(what)  # type: ignore[arg-type]
        if (value := getattr(what, one.name)) != one.default or one.default is MISSING
    }  # fmt: skip


_MOST_SENTENCES = 20

_MESSAGES = {  # replace pydantic's messages that are long or mention Python
    "finite_number": "must be finite",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    "too_short": "must not be empty",
    "dataclass_type": "must be a JSON object",
    "dict_type": "must be a JSON object",
    "list_type": "must be a list",
}


def _path(loc: tuple[Any, ...], data: Any) -> str:
    """A number that was converted to a list has no index."""
    text = ""
    for part in loc:
        if isinstance(part, int) and not isinstance(data, list):
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
        try:
            data = data[part]
        except (LookupError, TypeError):
            data = None
    return text.lstrip(".")


def _sentence(model: type[FileSchema], finding: Any, path: str) -> str:
    if finding["type"] == "unexpected_keyword_argument":
        close = difflib.get_close_matches(str(finding["loc"][-1]), _keys_at(model, finding["loc"][:-1]), n=1)
        return f"{path}: unknown key" + (f" (did you mean {close[0]}?)" if close else "")
    if finding["type"] == "missing":
        return f"{path}: missing"
    if finding["type"] == "value_error":
        return f"{path}: {finding['ctx']['error']}"
    got = short_text(finding["input"])
    if finding["type"] in _MESSAGES:
        message = _MESSAGES[finding["type"]].format(**finding.get("ctx", {}))
    else:
        message = finding["msg"][0].lower() + finding["msg"][1:]
    return f"{path or 'the whole'}: {message}, got {got}"


def _keys_at(model: type[FileSchema], path: tuple[Any, ...]) -> list[str]:
    for part in path:
        if isinstance(part, int):
            continue
        types = {one.name: one.type for one in fields(model)}  # type: ignore[arg-type]
        nested = next(_models_in(types.get(part)), None)
        if nested is None:
            return []
        model = nested
    return [one.name for one in fields(model)]  # type: ignore[arg-type]


def _models_in(kind: Any) -> "Iterator[type[FileSchema]]":
    if isinstance(kind, type) and issubclass(kind, FileSchema):
        yield kind
    for argument in get_args(kind):
        yield from _models_in(argument)
