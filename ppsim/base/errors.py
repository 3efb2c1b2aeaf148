"""What can go wrong, as one tree.

::

    PpsimError                      everything a user's input can cause; exit code 2 unless noted
    ├── ConfigError (ValueError)    an argument, an option or a cost file is wrong
    │   └── CostsError              costs that are none, or not those of the table they are for
    ├── ScheduleError (ValueError)  a schedule table is malformed, incomplete or out of order
    │   └── Deadlock                a complete table whose actions wait for each other; exit code 1
    ├── DoesNotFit                  valid, but more memory than there is; exit code 1
    ├── MissingExtra                needs an optional dependency that is not installed
    └── RunFailed                   a run or a measurement started and did not finish; exit code 1
"""

from typing import ClassVar


class PpsimError(Exception):
    """Base of every error ppsim raises for a user's input; `exit_code` is what the command line returns."""

    exit_code: ClassVar[int] = 2

    def __str__(self) -> str:
        """Return the message as it can be printed: a line that quotes a long value is shortened."""
        lines = super().__str__().encode("utf-8", "backslashreplace").decode().split("\n")
        return "\n".join(
            f"{line[:_BEGIN]} … {line[-_END:]}" if len(line) > _BEGIN + _END else line for line in lines
        )


_BEGIN, _END = 1200, 400  # characters of a line that is shortened


class ConfigError(PpsimError, ValueError):
    """An argument, an option or a file of costs is wrong; the message names the value and the nearest fix."""


class CostsError(ConfigError):
    """Costs that are none, or not those of the table they are for; the message names the keys."""


class ScheduleError(PpsimError, ValueError):
    """A schedule table is malformed, incomplete or out of order; the message names the actions."""


class Deadlock(ScheduleError):
    """A complete table that can never finish; the message names the actions that wait for each other."""

    exit_code = 1


class DoesNotFit(PpsimError):
    """A valid plan that needs more memory than there is; the message names the rank, the peak and the limit."""

    exit_code = 1


class MissingExtra(PpsimError):
    """A command needs an optional dependency that is not installed; the message names the extra."""


class RunFailed(PpsimError):
    """A run or a measurement was started and did not finish; the message carries the failing part's own error."""

    exit_code = 1
