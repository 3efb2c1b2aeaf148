"""The width of help texts."""

import os

import pytest

from ppsim.base.help_front_page import _wrapped, page_width


@pytest.mark.parametrize(
    ("columns", "terminal", "width"),
    [
        ("90", 120, 88),
        ("0", 100, 98),
        (None, 100, 98),
        (None, 0, 78),
        (None, None, 78),
        ("wide", 100, 78),
        ("1000", None, 98),
        ("20", None, 50),
    ],
)
def test_the_width_is_that_of_the_variable_the_terminal_or_80_columns(
    monkeypatch: pytest.MonkeyPatch, columns: str | None, terminal: int | None, width: int
) -> None:
    def size(descriptor: int) -> os.terminal_size:
        if terminal is None or descriptor != 1:
            raise OSError
        return os.terminal_size((terminal, 24))

    monkeypatch.setattr(os, "get_terminal_size", size)
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert page_width() == width


def test_a_line_is_as_long_as_it_may_be() -> None:
    assert _wrapped("one two three", 7) == ["one two", "three"]
    assert _wrapped("one two three", 6) == ["one", "two", "three"]
    assert _wrapped("exceeding it", 3) == ["exceeding", "it"]
    assert _wrapped("", 3) == [""]
