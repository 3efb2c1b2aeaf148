"""Type checks of arguments of the public Python API."""

from numbers import Integral
from reprlib import repr as in_short
from typing import Any

from ppsim.base.errors import ConfigError


def require_kind(name: str, value: Any, kind: type, expected: str) -> None:
    """`expected` describes the expected class in the message.

    >>> require_kind("pp", "2", Integral, "a whole number")
    Traceback (most recent call last):
    ppsim.base.errors.ConfigError: pp must be a whole number: got '2'
    """
    if not isinstance(value, kind) or (kind is Integral and isinstance(value, bool)):
        raise ConfigError(f"{name} must be {expected}: got {in_short(value)}")
