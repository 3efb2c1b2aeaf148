"""Defaults of fields and of parameters, as tests compare them with what a file or caller may leave out."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

_EMPTY = (None, "", (), MISSING, inspect.Parameter.empty)


def field_defaults(kind: Any) -> dict[str, Any]:
    """Return the defaults of a dataclass, except None and empty ones."""
    return {one.name: one.default for one in fields(kind) if one.default not in _EMPTY}


def parameter_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of a function, except None and empty ones."""
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.default not in _EMPTY}
