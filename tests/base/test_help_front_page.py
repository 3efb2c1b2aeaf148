"""The width of help texts."""

import os

import pytest

from ppsim.base.help_front_page import COMMANDS, _wrapped, front_page, page_width


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


def test_a_command_is_followed_by_two_spaces_at_least_and_its_line() -> None:
    page = front_page(100)
    longest = max(len(name) for name in COMMANDS)
    assert longest < len("-h, --help") == 10
    assert "\n  -h, --help  Show this message and exit.\n" in page
    assert f"\n  {'schedules':10}  List the schedules, or print the properties of one.\n" in page
    assert page.startswith("Usage: ppsim [OPTIONS] COMMAND [ARGS]...\n\n  Project training time")
    assert "\n\nOptions:\n" in page
    assert page.endswith("exit.\n")
    assert "\b" not in page


def test_lines_of_commands_are_wrapped_to_the_width_with_their_indentation() -> None:
    """Two spaces, ten of the longest name, two spaces and 26 characters are 40 columns."""
    assert "\n  --version   Show the version and exit.\n" in front_page(40)
    assert f"\n  --version   Show the version and\n{'':14}exit.\n" in front_page(39)


def test_paragraphs_are_wrapped_and_examples_are_not() -> None:
    page = front_page(50)
    paragraph = page.split("\n\n")[1].splitlines()
    assert all(line.startswith("  ") and len(line) <= 50 for line in paragraph)
    assert [line.strip() for line in paragraph] == _wrapped(" ".join(paragraph), 48)
    assert "\n    ppsim project --pp 8 --vpp 2 -o timeline.html          time and causes\n" in page
