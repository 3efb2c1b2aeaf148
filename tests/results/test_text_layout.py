"""Tables and facts are as their rows say."""

import pytest

from ppsim.base.display import capture_output
from ppsim.results.text_layout import (
    Page,
    TableLines,
    _cells,
    _clipped,
    _colour,
    bold,
    cut,
    facts,
    notable_items,
    painted,
    styled,
    verdict_line,
    wrapped,
)


def shown(renderable: object) -> list[str]:
    return capture_output(lambda: Page().add(renderable)).splitlines()


def test_rows_that_name_their_cells_make_the_header_and_may_come_in_another_order() -> None:
    rows = [{"name": "a", "size": "1 B"}, {"size": "20 B", "name": "b"}]
    assert shown(TableLines.of(rows)) == ["name  size", "a      1 B", "b     20 B"]
    assert shown(TableLines.of(rows)) == shown(TableLines(["name", "size"], [["a", "1 B"], ["b", "20 B"]]))
    assert shown(TableLines.of([])) == []


def test_a_fact_of_several_lines_has_them_below_each_other_beside_its_name() -> None:
    assert shown(facts([("one", "1"), ("two", ["2", "and 2"])])) == ["one  1", "two  2", "     and 2"]


def test_letters_as_wide_as_two_take_two_columns() -> None:
    assert shown(TableLines(["name", "size"], [["模型", "1 B"], ["a", "20 B"]])) == [
        "name  size",
        "模型   1 B",
        "a     20 B",
    ]


def test_a_word_that_is_too_long_is_cut_in_a_table_and_goes_on_below_in_a_text(monkeypatch) -> None:
    monkeypatch.setattr("ppsim.results.text_layout.WIDTH", 10)
    assert shown(facts([("one", "two three-and-four")])) == ["one  two", "     thre…"]
    table = TableLines(["no", "note"], [["1", "three-and-four"]], wraps=True)
    assert shown(table) == ["no note", "1  three-a", "   nd-four"], "the last column of a table goes on below, too"
    assert shown("two three-and-four") == ["two", "three-and-", "four"]


def test_styles_take_no_columns_and_are_for_a_terminal(monkeypatch) -> None:
    text = f"{bold('of a model')}, {styled('red', 31)}"
    assert shown(text) == ["of a model, red"]
    monkeypatch.setattr("ppsim.results.text_layout.WIDTH", 16)
    assert shown(text) == ["of a model, red"]
    monkeypatch.setenv("NO_COLOR", "1")
    assert (bold("a"), styled("red", 31)) == ("\x1b[1ma\x1b[0m", "red")


ROWS = [["abcdef", "10 GiB", "1"], ["b", "2 GiB", "16"]]


@pytest.mark.parametrize(
    ("width", "spare", "expected"),
    [
        (18, ("dp",), ["name      size  dp", "abcdef  10 GiB   1", "b        2 GiB  16"]),
        (17, ("dp",), ["name     size dp", "abcdef 10 GiB  1", "b       2 GiB 16"]),
        (16, ("dp",), ["name     size dp", "abcdef 10 GiB  1", "b       2 GiB 16"]),
        (15, ("dp", "size", "tp"), ["name     size", "abcdef 10 GiB", "b       2 GiB", "columns omitted", "to fit 15", "characters: dp"]),
        (12, (), ["n…   size dp", "a… 10 GiB  1", "b   2 GiB 16"]),
        (4, (), [" … …", " … 1", " … …"]),
    ],
)  # fmt: skip
def test_a_table_that_is_too_wide_loses_gaps_then_columns_then_letters_of_its_names(
    width, spare, expected, monkeypatch
) -> None:
    monkeypatch.setattr("ppsim.results.text_layout.WIDTH", width)
    assert shown(TableLines(["name", "size", "dp"], ROWS, spare=spare))[: len(expected)] == expected


def test_cells_of_several_lines_stand_at_the_bottom_of_a_header_and_at_the_top_of_a_row(monkeypatch) -> None:
    monkeypatch.setattr("ppsim.results.text_layout.WIDTH", 5)
    assert shown(TableLines(["aa bb", "n"], [["one two", "1"]])) == ["aa", "bb  n", "one 1", "two"]


def test_a_last_column_of_text_has_at_least_24_columns_before_another_is_left_out(monkeypatch) -> None:
    table = TableLines(["no", "dp", "note"], [["1", "2", "a " * 20]], wraps=True, spare=["dp"])
    for width, header in ((30, "no dp note"), (29, "no note")):
        monkeypatch.setattr("ppsim.results.text_layout.WIDTH", width)
        assert shown(table)[0] == header


@pytest.mark.parametrize(
    ("text", "cells"),
    [("abc", 3), ("e\u0301", 1), ("é", 1), ("模型", 4), ("1␠s", 3), ("→…", 2), ("\x1b[1;31mab\x1b[0m", 2)],
)
def test_columns_are_those_of_the_letters_that_are_seen(text, cells) -> None:
    assert _cells(text) == cells


def test_a_text_is_truncated_outside_its_styles() -> None:
    red = "\x1b[31mabc\x1b[0mdef"
    assert (_clipped(red, 4), _clipped("abcdef", 4)) == ("\x1b[31mabc\x1b[0md", "abcd")
    assert (cut("abcd", 4), cut("abcde", 4), cut("abc", 0)) == ("abcd", "abc…", "")
    assert capture_output(lambda: Page().add("a" * 101 + "\nb", wraps=False)).splitlines() == ["a" * 100, "b"]


def test_a_number_and_its_unit_stay_together() -> None:
    assert wrapped("of 10 GiB", 6) == ["of", "10␠GiB"]
    assert wrapped("of 10 GPUs or 10 apples", 8) == ["of", "10␠GPUs", "or 10", "apples"]
    assert (wrapped("a\n b", 9), wrapped("", 9), wrapped("abcde", 2), wrapped("abcde", 2, folds=False)) == (
        ["a", " b"], [""], ["ab", "cd", "e"], ["abcde"],
    )  # fmt: skip


def test_a_colour_is_the_nearest_of_the_cube_of_256_unless_the_terminal_has_all(monkeypatch) -> None:
    """The cube has levels 0, 95, 135, …, 255: 16 + 36 red + 6 green + blue."""
    monkeypatch.delenv("COLORTERM", raising=False)
    found = [_colour(colour) for colour in ("#000000", "#ffffff", "#ff8000", "#5f5f5f", "#2f3000", "#0000ff")]
    assert found == [(5, 16), (5, 231), (5, 16 + 36 * 5 + 6 * 2), (5, 16 + 36 + 6 + 1), (5, 16 + 6), (5, 16 + 5)]
    monkeypatch.setenv("COLORTERM", "TrueColor")
    assert painted("x", ink="#010203", fill="#ff8000") == "\x1b[38;2;1;2;3;48;2;255;128;0mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert (styled("a", 29), styled("a", 30), styled("", 1)) == ("\x1b[29ma\x1b[0m", "a", "")


class Verdict:
    def __init__(self, fits: bool | None, *, is_tight: bool = False, is_too_large: bool = False) -> None:
        self.fits, self.is_tight, self.is_too_large = fits, is_tight, is_too_large

    def __str__(self) -> str:
        return "it"


@pytest.mark.parametrize(
    ("verdict", "style"),
    [
        (Verdict(False, is_tight=True), "\x1b[31m"), (Verdict(True, is_tight=True), "\x1b[33m"),
        (Verdict(None, is_too_large=True), "\x1b[33m"), (Verdict(True), ""),
    ],
)  # fmt: skip
def test_a_misfit_is_red_and_a_doubt_yellow(verdict, style, monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    end = "\x1b[0m" if style else ""
    assert verdict_line(verdict, "!") == [f"\x1b[1m{style}it!{end}\x1b[0m"]
    assert verdict_line(None) == []


def test_of_many_rows_every_second_fourth_or_eighth_is_shown_with_the_last() -> None:
    assert notable_items(16, [3]) == list(range(16))
    assert notable_items(17, [3]) == [0, 2, 3, 4, 6, 8, 10, 12, 14, 16]
    assert notable_items(32, []) == [*range(0, 32, 4), 31]
    assert notable_items(31, []) == [*range(0, 31, 4), 30]
    assert notable_items(29, []) == [*range(0, 29, 2)]


def test_nothing_to_print_is_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    page = Page()
    page.add()
    page.add("", "a")
    assert capsys.readouterr().out == "\na\n"


def test_the_header_of_a_table_and_the_names_of_facts_are_bold() -> None:
    table = TableLines(["name", "size"], [["a", "1 B"], ["b", "20 B"]])
    name, size = bold("name"), bold("size")
    assert list(table.lines(40)) == [f"{name}  {size}", "a      1 B", "b     20 B"]
    assert [line.rstrip() for line in facts([("one", "1"), ("two", ["2", "and 2"])]).lines(40)] == [
        f"{bold('one')}  1", f"{bold('two')}  2", "     and 2",
    ]  # fmt: skip
