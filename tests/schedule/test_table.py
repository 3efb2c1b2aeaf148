"""Tables: actions, columns, chains, rounds and equality."""

from typing import Any

import numpy as np
import pytest

from ppsim import Action, Op, Schedule, build
from ppsim.base.errors import ScheduleError
from ppsim.schedule import table as table_module
from ppsim.schedule.table import IDLE
from tests.defaults import number_defaults

F, B = Op.F, Op.B
ROWS = [
    [Action(F, 0, 0), (Action(F, 0, 1), Action(B, 0, 0)), IDLE, Action(B, 0, 1)],
    [Action(F, 1, 0), Action(B, 1, 0)],
]


def table(**fields: Any) -> Schedule:
    return Schedule.from_rows(ROWS, **fields)


def test_ops_compute_or_have_a_microbatch() -> None:
    assert [op.name for op in Op if op.is_compute] == ["F", "B", "I", "W"]
    assert [op.name for op in Op if not op.has_microbatch] == [
        "IDLE", "UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD",
    ]  # fmt: skip


def test_an_action_is_written_with_its_stage_and_microbatch() -> None:
    assert [str(one) for one in (Action(F, 3, 0), Action(Op.UNSHARD, 2), IDLE)] == ["3F0", "2UNSHARD", ""]
    assert str(Action(Op.RECV_F, 2, 5).matching_send) == "1SEND_F5"
    assert str(Action(Op.RECV_B, 2, 5).matching_send) == "3SEND_B5"


def test_rows_are_columns_and_rows_again() -> None:
    made = table()
    assert made.rows() == ROWS
    assert made.op.tolist() == [F, F, B, Op.IDLE, B, F, B]
    assert made.fused.tolist() == [-1, 0, 0, -1, -1, -1, -1]
    assert (made.rank_offsets.tolist(), made.rank.tolist()) == ([0, 5, 7], [0] * 5 + [1] * 2)
    assert (made.num_ranks, made.num_stages, made.num_microbatches, made.num_actions, len(made)) == (2, 2, 2, 7, 7)
    assert made.stage_to_rank.tolist() == [0, 1]
    assert made[4] == Action(B, 0, 1)
    assert not made.op.flags.writeable
    two = Schedule.from_rows([[(Action(F, 0, 0), Action(B, 0, 1)), (Action(F, 0, 2), Action(B, 0, 3))]])
    assert len(two.rows()[0]) == 2
    assert table(num_slices=2).num_microbatches == 1


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"num_replicas": 0}, "replicas and slices must be at least 1: got 0 and 1"),
        ({"num_slices": 0, "num_microbatches": 1}, "must be at least 1: got 1 and 0"),
    ],
)
def test_less_than_one_replica_or_slice_is_refused(fields: dict[str, int], sentence: str) -> None:
    with pytest.raises(ScheduleError, match=sentence):
        table(**fields)


def columns(**fields: Any) -> dict[str, Any]:
    made = table()
    return {name: getattr(made, name) for name in (
        "op", "stage", "microbatch", "fused", "rank_offsets", "stage_to_rank", "num_microbatches",
    )} | fields  # fmt: skip


def test_columns_of_two_lengths_and_uneven_rounds_are_refused() -> None:
    with pytest.raises(ScheduleError, match=r"must have one length, got \[6, 7\]"):
        Schedule(**columns(stage=np.zeros(6, np.int32)))
    with pytest.raises(ScheduleError, match="2 microbatches cannot be divided into 3 rounds of 1 model replicas"):
        Schedule(**columns(num_rounds=3))
    with pytest.raises(ScheduleError, match="cannot be divided into 0 rounds"):
        Schedule(**columns(num_rounds=0))
    assert Schedule(**columns(num_rounds=2)).num_rounds == 2
    assert Schedule(**columns(num_microbatches=3)).num_rounds == 1


def test_chains_serve_their_part_of_the_microbatches_in_rounds() -> None:
    placed = [0, 1, 1, 0]
    outline = Schedule.outline(placed, num_microbatches=8)
    assert (outline.vpp, outline.num_actions, outline.num_model_stages, outline.num_ranks) == (2, 0, 4, 2)
    assert outline.chain_of_unit.tolist() == [0] * 8
    empty = {
        name: np.zeros(0, kind)
        for name, kind in (("op", np.int8), ("stage", np.int32), ("microbatch", np.int32), ("fused", np.int32))
    }
    made = Schedule(
        **empty, rank_offsets=np.zeros(3, np.int64), stage_to_rank=np.array(placed, np.int32), num_microbatches=8,
        num_replicas=2, num_slices=2, num_rounds=2,
    )  # fmt: skip
    assert (made.num_units, made.num_model_stages, made.model_stage.tolist()) == (16, 2, [0, 1, 0, 1])
    assert made.chain_of_unit.tolist() == [0] * 8 + [1] * 8
    assert made.round_of_unit.tolist() == ([0] * 4 + [1] * 4) * 2
    assert made.stages_of(0) == [0, 3]
    assert made.stages_of(7) == []
    assert made.one_line == "'', pp=2, vpp=2, microbatches=8, replicas=2, slices=2, rounds=2, 0 actions"


def test_tables_are_equal_if_their_entries_are() -> None:
    assert table(name="a") == table(name="b")
    assert table() != table(num_microbatches=3)
    assert table() != Schedule.from_rows(ROWS[::-1], stage_to_rank=[1, 0])
    renumbered = Schedule(**columns(fused=np.array([-1, 5, 5, -1, -1, -1, -1], np.int32)))
    assert renumbered == table()
    assert Schedule(**columns(fused=np.full(7, -1, np.int32))) != table()
    assert table() != "table"
    with pytest.raises(TypeError):
        hash(table())


def test_communication_and_split_backwards_are_seen_in_the_ops() -> None:
    assert (table().has_communication, table().splits_backward) == (False, False)
    split = build("zb-h1", pp=2, microbatches=2)
    assert (split.has_communication, split.splits_backward) == (False, True)
    sent = Schedule.from_rows([[Action(F, 0, 0), Action(Op.SEND_F, 0, 0)], [Action(F, 1, 0)]])
    assert sent.has_communication
    assert [str(one) for one in sent.compute_only()] == ["0F0", "1F0"]
    assert split.compute_only() is split


def test_a_frame_has_a_row_per_entry() -> None:
    frame = table().to_frame()
    assert frame["name"].tolist() == ["0F0", "0F1", "0B0", "", "0B1", "1F0", "1B0"]
    assert frame["position"].tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert frame["op"].tolist() == ["F", "F", "B", "IDLE", "B", "F", "B"]


def test_what_is_left_out_in_schedule_table_has_these_values() -> None:
    assert number_defaults(table_module) == {
        "Action": {"microbatch": -1},
        "Schedule": {"num_replicas": 1, "num_slices": 1, "num_rounds": 1},
        "Schedule.from_rows": {"num_replicas": 1, "num_slices": 1},
        "Schedule.from_columns": {"num_slices": 1},
    }  # fmt: skip
