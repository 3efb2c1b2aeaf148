"""The CSV on disk: lossless both ways, and nothing malformed gets in."""

import csv
import io
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppsim import Action, Op, Schedule, build, read_schedule
from ppsim.base.errors import ScheduleError
from ppsim.schedule import grammar
from ppsim.schedule import grammar as grammar_module
from ppsim.schedule.grammar import format_cell, format_table, parse_cell, parse_table
from ppsim.schedule.lowering import lower
from ppsim.schedule.table import IDLE
from tests.defaults import number_defaults
from tests.strategies import tables

compute = st.builds(Action, st.sampled_from([Op.F, Op.B, Op.I, Op.W]), st.integers(0, 300), st.integers(0, 2000))
others = st.sampled_from([op for op in Op if op is not Op.IDLE and not op.is_compute])
communication = st.builds(
    lambda op, stage, microbatch: Action(op, stage, microbatch if op.has_microbatch else -1),
    others, st.integers(0, 300), st.integers(0, 2000),
)  # fmt: skip
fused = st.lists(compute, min_size=1, max_size=3).map(tuple)


@given(st.one_of(compute, communication, fused, st.just(IDLE)))
def test_every_cell_reads_back_as_itself(cell):
    assert parse_cell(format_cell(cell)) == cell


@given(st.lists(st.lists(st.one_of(compute, fused, st.just(IDLE)), min_size=1, max_size=8), min_size=1, max_size=5))
def test_a_table_with_fused_and_idle_cells_is_lossless_both_ways(rows):
    table = Schedule.from_rows(rows)
    text = format_table(table)
    assert parse_table(text) == table
    assert parse_table(text).rows() == rows
    assert format_table(parse_table(text)) == text


@given(tables(max_ranks=4, max_microbatches=6))
def test_the_compute_and_communication_variant_is_lossless(table):
    lowered = lower(table)
    counts = {"num_replicas": table.num_replicas, "num_slices": table.num_slices}
    assert parse_table(format_table(lowered), **counts) == lowered


def test_blanks_around_a_cell_and_ragged_rows_are_read():
    table = parse_table("0F0, 0F1 ,,0B0,0B1\r\n 1F0,1B0,1F1,1B1\r\n")
    assert [str(action) for action in table] == ["0F0", "0F1", "", "0B0", "0B1", "1F0", "1B0", "1F1", "1B1"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0F0xyz", "'0F0xyz' is no action"),  # torch reads it as 0F0
        ("0f0", "'0f0' is no action"),
        ("F0", "'F0' is no action"),
        ("0F", "'0F' has no microbatch"),
        ("0SEND_F", "'0SEND_F' has no microbatch"),
        ("0UNSHARD3", "'0UNSHARD3' has a microbatch"),
        ("(0F1;0B0)FUSED", "is no fused action"),
        ("(0F1;0SEND_F0)OVERLAP_F_B", "only F, B, I and W can be fused"),
        ("()OVERLAP_F_B", "'' is no action"),
        ("# my schedule", "'# my schedule' is no action"),
    ],
)
def test_a_malformed_cell_is_named_with_row_column_and_text(text, reason):
    with pytest.raises(ScheduleError) as error:
        parse_table(f"0F0,0B0\n1F0,{text},1B0\n")
    assert "row 2 (rank 1), column 2" in str(error.value)
    assert reason in str(error.value)


def test_all_malformed_cells_are_reported_together():
    with pytest.raises(ScheduleError) as error:
        parse_table("x,0F0\n1F0,y\n\n")
    assert all(
        place in str(error.value) for place in ("row 1 (rank 0), column 1", "row 2 (rank 1), column 2", "row 3")
    )


def test_a_file_that_is_missing_empty_or_binary_is_refused(tmp_path):
    with pytest.raises(ScheduleError, match="cannot read"):
        read_schedule(tmp_path / "none.csv")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ScheduleError, match="is empty"):
        read_schedule(tmp_path / "empty.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScheduleError, match="not a text file"):
        read_schedule(tmp_path / "binary.csv")


def test_a_table_is_immutable():
    table = parse_table("0F0,0B0\n")
    with pytest.raises(ValueError, match="read-only"):
        table.op[0] = 1


@given(tables(max_ranks=4, max_microbatches=6))
def test_reading_by_column_and_cell_by_cell_gives_the_same_table(table):
    text = format_table(table)
    counts = {"num_replicas": table.num_replicas, "num_slices": table.num_slices}
    by_cell = parse_table(text.replace(",", " ,", 1), **counts)  # with a blank, which no column takes
    assert parse_table(text, **counts) == by_cell == table


@pytest.mark.parametrize(
    "rows",
    [
        [[IDLE], [Action(Op.F, 0, 0)]],
        [[IDLE, Action(Op.F, 0, 1), IDLE], [], [IDLE, IDLE]],
        [[(Action(Op.F, 1, 0),), (Action(Op.F, 1, 1), Action(Op.B, 0, 0))], [(Action(Op.F, 0, 1),), IDLE]],
        [[]],
    ],
)
def test_a_table_is_written_as_the_csv_of_its_cells(rows):
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([format_cell(cell) for cell in row] for row in rows)
    assert format_table(Schedule.from_rows(rows)) == text.getvalue()


@pytest.mark.parametrize(
    "text", ["0F0,1234567F0\n", "0F0,0F1234567\n", "0F,0B0\n", "F0,0B0\n", "0F0B,0\n", "12,0FB0\n"]
)
def test_nothing_malformed_gets_in_by_column(text):
    with pytest.raises(ScheduleError, match=r"is no action|has no microbatch"):
        parse_table(text)


def test_calls_to_write_and_to_read_a_table_do_not_grow_with_it():
    """Columns are worked on as a whole: four times as many actions take as many calls."""

    def num_calls(microbatches):
        table = build("interleaved-1f1b", pp=4, vpp=2, microbatches=microbatches)
        calls = Counter()

        def count(_, event, called):
            calls[event] += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            again = parse_table(format_table(table))
        finally:
            sys.setprofile(None)
        assert again == table
        return calls.total()

    few = num_calls(64)
    assert num_calls(256) < 1.1 * few < 2000


def test_a_table_reads_the_same_in_pieces_of_any_length(monkeypatch):
    text = format_table(build("zbv", pp=4, microbatches=12)).replace("\n", ",,\n", 1)
    whole = parse_table(text)
    assert Op.IDLE in whole.op
    for at_once in (1, 100, 1000):
        monkeypatch.setattr(grammar, "_AT_ONCE", at_once)
        columns = grammar._columns_of(text)
        assert columns is not None
        assert Schedule.from_columns(*columns) == whole


def test_what_is_left_out_in_schedule_grammar_has_these_values() -> None:
    assert number_defaults(grammar_module) == {
        "parse_table": {"num_replicas": 1},
        "read_schedule": {"num_replicas": 1},
    }  # fmt: skip


def test_lines_of_windows_are_read_by_column():
    columns = grammar._columns_of("0F0,,0B0\r\n1F0,1B0\r\n")
    assert columns is not None
    assert [column.tolist() for column in columns] == [
        [Op.F, Op.IDLE, Op.B, Op.F, Op.B], [0, -1, 0, 1, 1], [0, -1, 0, 0, 0], [-1] * 5, [0, 3, 5],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("12F345,6B78\n", [[Op.F, Op.B], [12, 6], [345, 78], [-1] * 2, [0, 2]]),
        ("999999F0,0I123456\n0W1\n", [[Op.F, Op.I, Op.W], [999999, 0, 0], [0, 123456, 1], [-1] * 3, [0, 2, 3]]),
        (",0F0\n", [[Op.IDLE, Op.F], [-1, 0], [-1, 0], [-1] * 2, [0, 2]]),
        (",\n0F0\n", [[Op.IDLE, Op.IDLE, Op.F], [-1, -1, 0], [-1, -1, 0], [-1] * 3, [0, 2, 3]]),
        ("0F0", [[Op.F], [0], [0], [-1], [0, 1]]),
    ],
)
def test_columns_have_the_numbers_of_each_cell(text, columns):
    read = grammar._columns_of(text)
    assert read is not None
    assert [column.tolist() for column in read] == columns


@pytest.mark.parametrize(
    "text",
    ["", "\n", "0F0\n\n1F0\n", "1234567F0\n", "0F1234567\n", "0F0,F0\n", "0F\n", "7\n", "0F0B\n", "7,0F0\n", "0X0\n",
     " 0F0\n", "(0F0;0B0)OVERLAP_F_B\n", "0SEND_F0\n", "0F0,0UNSHARD\n"],
)  # fmt: skip
def test_other_cells_and_blank_rows_are_left_to_the_reader_of_cells(text):
    assert grammar._columns_of(text) is None


def test_eight_malformed_cells_are_shown_and_the_others_counted():
    for number, more in ((8, ""), (9, "\n  … and 1 more"), (11, "\n  … and 3 more")):
        with pytest.raises(ScheduleError) as error:
            parse_table(",".join(["x"] * number), source="T.csv")
        shown = "".join(
            f"\n  row 1 (rank 0), column {column}: 'x' is no action, which reads <stage><op><microbatch> as in 3F0"
            for column in range(1, 9)
        )
        assert str(error.value) == f"T.csv is malformed:{shown}{more}"


def test_a_blank_row_and_a_broken_quote_are_named():
    with pytest.raises(
        ScheduleError, match=r"^the table is malformed:\n  row 2 is blank; a rank needs at least one action$"
    ):
        parse_table("0F0\n\n1F0\n")
    with pytest.raises(ScheduleError, match=r"^T\.csv is not a CSV file: "):
        parse_table('0F0,"0B0"x\n', source="T.csv")
    with pytest.raises(ScheduleError, match=r"^T\.csv is empty; a schedule has one row per rank$"):
        parse_table("", source="T.csv")


def test_a_table_without_actions_has_an_empty_row_per_rank():
    assert grammar.format_rows(Schedule.outline([0, 1, 1, 0], num_microbatches=2)) == ["", ""]
