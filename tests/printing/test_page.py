"""Tables and facts are as their rows say."""

from ppsim.base.shown import printed
from ppsim.printing.page import Columns, Page, facts


def shown(renderable: object) -> list[str]:
    return printed(lambda: Page().add(renderable)).splitlines()


def test_rows_that_name_their_cells_make_the_header_and_may_come_in_another_order() -> None:
    rows = [{"name": "a", "size": "1 B"}, {"size": "20 B", "name": "b"}]
    assert shown(Columns.of(rows)) == ["name  size", "a      1 B", "b     20 B"]
    assert shown(Columns.of(rows)) == shown(Columns(["name", "size"], [["a", "1 B"], ["b", "20 B"]]))


def test_a_fact_of_several_lines_has_them_below_each_other_beside_its_name() -> None:
    assert shown(facts([("one", "1"), ("two", ["2", "and 2"])])) == ["one  1", "two  2", "     and 2"]
