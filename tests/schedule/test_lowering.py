"""Tables with communication in torch's order: every send, receive and stage operation of small tables."""

import re

import pytest
from hypothesis import given

from ppsim import Action, Op, Schedule, build
from ppsim.schedule.grammar import parse_table
from ppsim.schedule.lowering import NUM_UNSHARDED, lower
from ppsim.schedule.option_types import Receives
from tests.strategies import tables

STAGE_OPS = (Op.UNSHARD, Op.RESHARD, Op.REDUCE_GRAD, Op.WAIT_REDUCE_GRAD)


def rows_of(table: Schedule) -> list[str]:
    """The rows with S and R for sends and receives, and a fused cell as its parts joined by +."""
    cells = [
        ["+".join(map(str, [cell] if isinstance(cell, Action) else cell)) for cell in row] for row in table.rows()
    ]
    return [" ".join(row).replace("SEND_", "S").replace("RECV_", "R") for row in cells]


def test_a_send_follows_its_action_and_its_receive_is_appended_to_the_row_of_that_moment() -> None:
    """Ranks take turns, one cell each: 1F0 runs before 0F1 is sent."""
    assert rows_of(lower(build("1f1b", pp=2, microbatches=2))) == [
        "0UNSHARD 0F0 0SF0 0F1 0SF1 0RB0 0B0 0RB1 0B1 0REDUCE_GRAD 0RESHARD",
        "1UNSHARD 1RF0 1F0 1RF1 1B0 1SB0 1F1 1B1 1SB1 1REDUCE_GRAD 1RESHARD",
    ]


@pytest.mark.parametrize("receives", ["ordered", "deferred"])
def test_other_receives_are_just_before_their_use(receives: Receives) -> None:
    table = build("1f1b", pp=2, microbatches=2)
    second = "1UNSHARD 1RF0 1F0 1B0 1SB0 1RF1 1F1 1B1 1SB1 1REDUCE_GRAD 1RESHARD"
    assert rows_of(lower(table, receives=receives)) == [rows_of(lower(table))[0], second]


def test_a_rank_holds_three_stages_unsharded() -> None:
    row = " ".join([*(f"{stage}F0" for stage in range(5)), *(f"{stage}B0" for stage in (4, 3, 2, 1, 0))])
    table = parse_table(row.replace(" ", ",") + "\n")
    assert NUM_UNSHARDED == 3
    assert rows_of(lower(table)) == [
        "0UNSHARD 1UNSHARD 2UNSHARD 0F0 0RESHARD 3UNSHARD 1F0 1RESHARD 4UNSHARD 2F0 3F0 4F0 4B0 4REDUCE_GRAD "
        "4RESHARD 1UNSHARD 3B0 3REDUCE_GRAD 3RESHARD 0UNSHARD 2B0 2REDUCE_GRAD 2RESHARD 1B0 1REDUCE_GRAD 1RESHARD "
        "0B0 0REDUCE_GRAD 0RESHARD"
    ]
    waiting = rows_of(lower(table, waits=True))[0]
    assert waiting == re.sub(r"(\d)REDUCE_GRAD", r"\1REDUCE_GRAD \1WAIT_REDUCE_GRAD", rows_of(lower(table))[0])


def stage_operations(table: Schedule, rank: int) -> list[str]:
    """torch's `_add_unshard_reshard`, cell by cell: the next three stages, and all stages of the cell with the third."""
    cells = [(cell,) if isinstance(cell, Action) else cell for cell in table.rows()[rank]]
    last = {action.stage: action for cell in cells for action in cell if action.op in (Op.B, Op.W)}
    active: list[int] = []
    done: list[str] = []
    for index, cell in enumerate(cells):
        coming: list[int] = []
        for later in cells[index:]:
            coming += dict.fromkeys(action.stage for action in later if action.stage not in coming)
            if len(coming) >= 3:
                break
        done += [f"{stage}RESHARD" for stage in sorted(active) if stage not in coming]
        done += [f"{stage}UNSHARD" for stage in coming if stage not in active]
        active = coming
        done += map(str, cell)
        done += [f"{action.stage}REDUCE_GRAD" for action in cell if last[action.stage] == action]
    return [*done, *(f"{stage}RESHARD" for stage in sorted(active))]


def without_messages(table: Schedule, rank: int) -> list[str]:
    entries = [table[entry] for entry in table.entries_of(rank)]
    return [str(action) for action in entries if action.op.is_compute or action.op in STAGE_OPS]


@given(tables(max_ranks=3, max_microbatches=8))
def test_stages_are_unsharded_resharded_and_reduced_as_cell_by_cell(table: Schedule) -> None:
    lowered = lower(table)
    for rank in range(table.num_ranks):
        assert without_messages(lowered, rank) == stage_operations(table, rank)


@pytest.mark.parametrize(
    "row",
    [
        "0F0,1F0,2F0,(3F0;0F1)OVERLAP_F_B,4F0,4B0,1F1,(3B0;2F1)OVERLAP_F_B,3F1,4F1,4B1,3B1,2B1,1B1,2B0,1B0,0B1,0B0",
        "0F0,0F1,1F0,(1F1;2F0)OVERLAP_F_B,(3F0;2F1)OVERLAP_F_B,4F0,(3F1;4B0)OVERLAP_F_B,4F1,4I1,(4W1;3B0;3I1)OVERLAP_F_B,"
        "2B0,(1B0;3W1;2I1)OVERLAP_F_B,0I0,(0W0;2W1;1B1)OVERLAP_F_B,0B1",
        "(0F0;0F1)OVERLAP_F_B,(1F0;1F1)OVERLAP_F_B,2F0,2F1,3F0,3F1,3B0,(3B1;2B0)OVERLAP_F_B,(2B1;1B0)OVERLAP_F_B,1B1,(0B0;0B1)OVERLAP_F_B",
    ],
)  # fmt: skip
def test_a_cell_has_all_its_stages_unsharded(row: str) -> None:
    table = parse_table(row + "\n")
    assert without_messages(lower(table), 0) == stage_operations(table, 0)
