"""The hierarchy of errors, with exit codes of the command line.

::

    PpsimError                      exit code 2 unless noted
    ├── ConfigError (ValueError)
    │   ├── CannotRun               1
    │   └── CostsError
    ├── ScheduleError (ValueError)
    │   └── Deadlock                1
    ├── DoesNotFit                  1
    ├── MissingExtra
    └── RunFailed                   1
"""

from numbers import Integral
from reprlib import repr as in_short
from typing import Any, ClassVar, Self

from ppsim.base.version import DISTRIBUTION, __version__


class PpsimError(Exception):
    """Base of all errors caused by a user's input; `exit_code` is the exit status of the command line."""

    exit_code: ClassVar[int] = 2

    def __str__(self) -> str:
        """Lines that quote a long value are shortened."""
        lines = super().__str__().encode("utf-8", "backslashreplace").decode().split("\n")
        return "\n".join(
            f"{line[:_BEGIN]} … {line[-_END:]}" if len(line) > _BEGIN + _END else line for line in lines
        )


_BEGIN, _END = 1200, 400  # characters shown of a long line's begin and end


class ConfigError(PpsimError, ValueError):
    """An argument, an option or a file is wrong; the message has the value and the nearest valid one."""


class CannotRun(ConfigError):
    """A trainer refuses a valid plan; the message has its reason and the nearest fix."""

    exit_code = 1


class CostsError(ConfigError):
    """Costs are invalid, or do not match their schedule."""


class ScheduleError(PpsimError, ValueError):
    """A schedule is malformed, incomplete or out of order."""


class Deadlock(ScheduleError):
    """A complete schedule that can never finish; the message has the actions that wait for each other."""

    exit_code = 1


class DoesNotFit(PpsimError):
    """A valid plan needs more memory than available."""

    exit_code = 1


class MissingExtra(PpsimError):
    """A command needs an optional dependency that is not installed."""

    @classmethod
    def of(cls, extra: str, problem: str, *, otherwise: str = "") -> Self:
        """Return the error with the command that installs `extra`, and an alternative.

        >>> print(MissingExtra.of("tune", "this needs joblib", otherwise="give --jobs 1"))
        this needs joblib: pip install 'ppsim-pipeline[tune]' (in a clone: pip install '.[tune]'), or give --jobs 1
        """
        return cls(f"{problem}: {install_hint(extra)}" + (f", or {otherwise}" if otherwise else ""))


class RunFailed(PpsimError):
    """A run or a measurement started and did not finish."""

    exit_code = 1


def unexpected_error(error: Exception) -> str:
    """Return the beginning of the sentence on an error that ppsim did not raise itself.

    >>> unexpected_error(KeyError("pp")).partition(" (")[2]
    "KeyError: 'pp')"
    """
    return f"unexpected error in ppsim {__version__} ({' '.join(f'{type(error).__name__}: {error}'.split())})"


def install_hint(extra: str) -> str:
    """If ppsim is not installed, only the command for a clone works.

    >>> install_hint("torch")
    "pip install 'ppsim-pipeline[torch]' (in a clone: pip install '.[torch]')"
    """
    return f"pip install '{DISTRIBUTION}[{extra}]' (in a clone: pip install '.[{extra}]')"


def require_kind(name: str, value: Any, kind: type, expected: str) -> None:
    """`expected` describes the expected class in the message.

    >>> require_kind("pp", "2", Integral, "a whole number")
    Traceback (most recent call last):
    ppsim.base.errors.ConfigError: pp must be a whole number: got '2'
    """
    if not isinstance(value, kind) or (kind is Integral and isinstance(value, bool)):
        raise ConfigError(f"{name} must be {expected}: got {in_short(value)}")
