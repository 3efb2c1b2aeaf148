"""Tables and facts are as their rows say."""

from ppsim.base.display import capture_output
from ppsim.results.text_layout import Page, TableLines, bold, facts, styled


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
