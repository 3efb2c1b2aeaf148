"""The schedule of a run is found in the catalogue, action by action, or the nearest is named."""

from ppsim import Schedule, build
from ppsim.api.schedule_detection import _common, detect_schedule
from ppsim.schedule.grammar import parse_table


def test_every_table_of_the_catalogue_is_known_by_its_name() -> None:
    for name in ("gpipe", "eager-1f1b", "zb-h1", "interleaved-1f1b", "interleaved-zb", "dualpipev", "zbv-fixed"):
        assert name in detect_schedule(build(name, pp=4, microbatches=8)).names


def test_an_own_order_says_where_it_parts_from_the_nearest() -> None:
    """Rank 2 of 1F1B with two of its passes swapped."""
    rows = build("1f1b", pp=4, microbatches=8).rows()
    rows[2][3], rows[2][4] = rows[2][4], rows[2][3]
    found = detect_schedule(Schedule.from_rows(rows))
    assert found.names == []
    assert found.sentence == (
        "an own order, nearest to 1f1b: 1 of 4 ranks differ, rank 2 first at action 3, where it runs 2B1 and 1f1b has 2F2"
    )


def test_the_nearest_has_the_most_actions_before_the_first_difference() -> None:
    """All ranks of ZB-H1 with their last two actions swapped: still nearer to ZB-H1 than to ZB-H2."""
    rows = build("zb-h1", pp=4, microbatches=8).rows()
    for row in rows:
        row[-1], row[-2] = row[-2], row[-1]
    found = detect_schedule(Schedule.from_rows(rows))
    assert found.nearest == "zb-h1"
    assert found.difference.startswith(f"4 of 4 ranks differ, rank 0 first at action {len(rows[0]) - 2}, ")


def test_one_rank_differs_without_a_number_of_ranks() -> None:
    rows = build("1f1b", pp=1, microbatches=4).rows()
    rows[0][1:3] = rows[0][2], rows[0][1]
    assert detect_schedule(Schedule.from_rows(rows)).difference.startswith("it differs, rank 0 first at action ")


def test_a_placement_that_the_catalogue_does_not_have_has_no_nearest_schedule() -> None:
    rows = build("1f1b", pp=4, microbatches=4).rows()
    found = detect_schedule(Schedule.from_rows([rows[1], rows[0], *rows[2:]]))
    assert (found.names, found.nearest, found.difference) == ([], None, "")
    assert "no schedule of the catalogue" in found.sentence


def test_actions_in_common_are_those_before_the_first_difference_of_each_rank() -> None:
    table, other = (
        parse_table("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"),
        parse_table("0F0,0F1,0B1,0B0\n1F0,1B0,1F1,1B1\n"),
    )
    assert _common(table, table) == 8
    assert _common(table, other) == 2 + 4
    assert _common(parse_table("0F0,0B0\n"), parse_table("0F0,0B0,0F1,0B1\n")) == 2
