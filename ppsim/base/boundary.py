"""Where files come in: pydantic's findings as sentences with key paths, all of them at once."""

import difflib
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from ppsim.base.errors import ConfigError


class Strict(BaseModel):
    """A model of a file: unknown keys, strings for numbers, NaN and infinity are refused.

    What checks it is built when the first file is read, not when its class is imported.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)


NonNegative = Annotated[float, Field(ge=0, le=1e30)]  # what a sum of many cannot push to infinity
AboveZero = Annotated[float, Field(gt=0, le=1e30)]
Count = Annotated[int, Field(ge=0, le=10**15)]
Positive = Annotated[int, Field(ge=1, le=10**15)]
OneOrMany = Annotated[
    list[NonNegative],
    Field(min_length=1),
    BeforeValidator(lambda value: value if isinstance(value, list) else [value]),
]

Matrix = Annotated[list[Annotated[list[NonNegative], Field(min_length=1)]], Field(min_length=1)]
"""Rows of numbers."""


Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], data: Any, source: str) -> Model:
    """Return `data` as a `model`; raises `ConfigError` naming `source` and every wrong key with its path."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        findings = [_sentence(model, finding, _path(finding["loc"], data)) for finding in error.errors()]
        sentences = list(dict.fromkeys(findings))
        if len(sentences) > _MOST_SENTENCES:
            sentences[_MOST_SENTENCES:] = [f"… and {len(sentences) - _MOST_SENTENCES} more"]
        raise ConfigError(f"{source} is wrong: " + "\n  ".join(sentences)) from None


def retyped(model: type[Model], fields: dict[str, Any]) -> type[Model]:
    """Return a model whose fields named have other types, and must be there, or are of a type and a default."""
    types: dict[str, Any] = {name: one if isinstance(one, tuple) else (one, ...) for name, one in fields.items()}
    return create_model(model.__name__, __base__=model, **types)


_MOST_SENTENCES = 20

_MESSAGES = {  # where pydantic's own words are long or speak of Python
    "finite_number": "must be finite",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    "too_short": "must not be empty",
    "model_type": "must be a JSON object",
    "dict_type": "must be a JSON object",
    "list_type": "must be a list",
}


def _path(loc: tuple[Any, ...], data: Any) -> str:
    """The key path as the file has it: a number that stands for a list of one has no index."""
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


def _sentence(model: type[BaseModel], finding: Any, path: str) -> str:
    if finding["type"] == "extra_forbidden":
        close = difflib.get_close_matches(str(finding["loc"][-1]), _keys_at(model, finding["loc"][:-1]), n=1)
        return f"{path}: unknown key" + (f" (did you mean {close[0]}?)" if close else "")
    if finding["type"] == "missing":
        return f"{path}: missing"
    if finding["type"] == "value_error":
        return f"{path}: {finding['ctx']['error']}"
    got = repr(finding["input"])
    if finding["type"] in _MESSAGES:
        message = _MESSAGES[finding["type"]].format(**finding.get("ctx", {}))
    else:
        message = finding["msg"][0].lower() + finding["msg"][1:]
    return f"{path or 'the whole'}: {message}, got {got if len(got) < 60 else got[:57] + '…'}"


def _keys_at(model: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    """The keys that the model knows at a path of nested models; none where the path leaves them."""
    for part in path:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        nested = [a for a in (annotation, *getattr(annotation, "__args__", ())) if _is_model(a)]
        if not nested:
            return []
        model = nested[0]
    return list(model.model_fields)


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
