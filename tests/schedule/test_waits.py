"""The waits of torch 2.15: where they go, that they change no time, and what is wrong with a table that lacks some."""

import re

import pytest
from hypothesis import given

import ppsim
from ppsim import Op
from ppsim.base.errors import ScheduleError
from ppsim.schedule.check import check, validate
from ppsim.schedule.grammar import format_table, parse_table
from ppsim.schedule.lowering import lower
from ppsim.schedule.table import Action
from ppsim.schedule.waits import has_waits, with_waits, without_waits
from tests.strategies import tables, tables_and_costs

WAIT_FOR = {Op.SEND_F: Op.WAIT_SEND_F, Op.SEND_B: Op.WAIT_SEND_B, Op.REDUCE_GRAD: Op.WAIT_REDUCE_GRAD}


def parts(cell):
    return (cell,) if isinstance(cell, Action) else cell


@given(tables())
def test_every_send_and_reduction_has_one_wait_where_torch_2_15_puts_it(table):
    for row in lower(table, waits=True).rows():
        due = []  # the waits at the end of the row, in the order of sending
        for position, cell in enumerate(row):
            for action in parts(cell):
                if action.op is Op.REDUCE_GRAD:  # torch may append a receive between the two
                    rest = [c for c in row[position + 1 :] if parts(c)[0].op not in (Op.RECV_F, Op.RECV_B)]
                    assert rest[0] == action._replace(op=Op.WAIT_REDUCE_GRAD)
                elif action.op in WAIT_FOR:
                    due.append(action._replace(op=WAIT_FOR[action.op]))
        position = 0
        while position < len(row):
            cell = row[position]
            position += 1
            for action in parts(cell):
                wait = Action(Op.WAIT_SEND_F, action.stage, action.microbatch)
                if action.op in (Op.B, Op.I) and wait in due:
                    assert row[position] == wait  # behind the whole cell, in the order of its parts
                    due.remove(wait)
                    position += 1
        assert row[len(row) - len(due) :] == due
        assert sum(action.op in WAIT_FOR.values() for cell in row for action in parts(cell)) == sum(
            action.op in WAIT_FOR for cell in row for action in parts(cell)
        )


@given(tables())
def test_waits_are_added_to_a_table_with_communication_and_taken_away_again(table):
    lowered = lower(table)
    waiting = with_waits(lowered)
    assert without_waits(waiting) == lowered
    assert with_waits(waiting) == waiting
    assert check(waiting).errors == []
    assert has_waits(waiting)


@given(tables_and_costs())
def test_a_table_with_waits_is_read_back_checked_and_takes_as_long_as_without(table_and_costs):
    table, costs = table_and_costs
    waiting = lower(table, waits=True)
    again = parse_table(format_table(waiting), num_replicas=table.num_replicas, num_slices=table.num_slices)
    assert again == waiting
    assert ppsim.simulate(again, costs).step_time_s == ppsim.simulate(table, costs).step_time_s
    channel = costs.replace(channel="edge")
    without = without_waits(again)
    assert ppsim.simulate(again, channel).step_time_s == ppsim.simulate(without, channel).step_time_s


TABLE = format_table(lower(ppsim.build("1f1b", pp=2, microbatches=2), waits=True))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("0WAIT_SEND_F1,", ""), "rank 0 never waits for 0SEND_F1; torch 2.15 refuses"),
        ((",1WAIT_SEND_B0", ",1WAIT_SEND_B0,1WAIT_SEND_B0"), "rank 1 runs 1WAIT_SEND_B0 without a send before it"),
        (("1RECV_F0", "1WAIT_SEND_B0,1RECV_F0"), "rank 1 runs 1WAIT_SEND_B0 without a send before it"),
        (("1REDUCE_GRAD,1WAIT_REDUCE_GRAD", "1REDUCE_GRAD"), "rank 1 never waits for 1REDUCE_GRAD"),
        (("0REDUCE_GRAD,", ""), "rank 0 runs 0WAIT_REDUCE_GRAD while no reduction is under way"),
        (("0REDUCE_GRAD,", "0REDUCE_GRAD,0REDUCE_GRAD,"), "rank 0 starts 0REDUCE_GRAD before it has waited for 0REDUCE_GRAD"),
    ],
)  # fmt: skip
def test_a_wait_without_its_send_and_a_send_without_its_wait_are_named(change, words):
    validate(parse_table(TABLE))
    assert TABLE.count(change[0]) == 1
    with pytest.raises(ScheduleError, match=re.escape(words)):
        validate(parse_table(TABLE.replace(*change)))
