"""Defaults of fields and of parameters, as tests compare them with what a file or caller may leave out."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from types import ModuleType
from typing import Any

_EMPTY = (None, "", (), MISSING, inspect.Parameter.empty)


def field_defaults(kind: Any) -> dict[str, Any]:
    """Return the defaults of a dataclass, except None and empty ones."""
    return {one.name: one.default for one in fields(kind) if one.default not in _EMPTY}


def parameter_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of a function, except None and empty ones."""
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.default not in _EMPTY}


def number_defaults(module: ModuleType) -> dict[str, dict[str, float]]:
    """Return the defaults of a module that are numbers or flags, by dataclass, named tuple, function or method."""
    found: dict[str, dict[str, float]] = {}
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        functions = {name: value} if inspect.isfunction(inspect.unwrap(value)) else {}
        if inspect.isclass(value):
            own = vars(value).get("__annotations__", {})
            given = field_defaults(value) if is_dataclass(value) else getattr(value, "_field_defaults", {})
            found[name] = {field: default for field, default in given.items() if field in own}
            methods = {
                key: getattr(one, "__func__", one) for key, one in vars(value).items() if not key.startswith("__")
            }
            functions = {f"{name}.{key}": one for key, one in methods.items() if inspect.isfunction(one)}
        found |= {key: parameter_defaults(function) for key, function in functions.items()}
    numbers = {
        key: {name: value for name, value in given.items() if isinstance(value, int | float)}
        for key, given in found.items()
    }
    return {key: given for key, given in numbers.items() if given}
