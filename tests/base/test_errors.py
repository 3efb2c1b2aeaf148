"""Errors have the exit codes of the command line, and messages of bounded length."""

import pytest

from ppsim.base import errors
from ppsim.base.errors import MissingExtra, PpsimError

CODES = {
    "PpsimError": 2, "ConfigError": 2, "CannotRun": 1, "CostsError": 2, "ScheduleError": 2, "Deadlock": 1, "DoesNotFit": 1,
    "MissingExtra": 2, "RunFailed": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", CODES)
def test_wrong_input_exits_with_2_and_impossible_input_with_1(name: str) -> None:
    error = getattr(errors, name)
    assert issubclass(error, PpsimError)
    assert error.exit_code == CODES[name]
    values = ("ConfigError", "CannotRun", "CostsError", "ScheduleError", "Deadlock")
    assert issubclass(error, ValueError) == (name in values)


def test_a_long_line_of_a_message_keeps_its_ends() -> None:
    longest = "a" * 1200 + "b" * 400
    assert str(PpsimError(longest)) == longest
    assert str(PpsimError(f"one\n{longest[:1200]}c{longest[1200:]}")) == f"one\n{'a' * 1200} … {'b' * 400}"


def test_an_alternative_to_an_extra_is_optional() -> None:
    assert not str(MissingExtra.of("tune", "this needs joblib")).endswith("give --jobs 1")
    assert str(MissingExtra.of("tune", "this needs joblib", otherwise="give --jobs 1")).endswith(
        ", or give --jobs 1"
    )
