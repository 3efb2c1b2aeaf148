"""What we write is what torch reads: its own loader, its own lowering, its own generators."""

from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("torch")

from torch.distributed.pipelining import schedules

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.schedule.grammar import format_cell, format_table
from ppsim.schedule.lowering import lower
from ppsim.trainers.torch.write_schedule import torch_csv
from tests.runtime.cases import BUILDERS, stage_of, table_of


def loaded(table: ppsim.Schedule, text: str, path: Path, *, format: str, defer: bool = False) -> Any:
    stage = stage_of(num_ranks=table.num_ranks, num_stages=table.num_stages)
    runtime = schedules._PipelineScheduleRuntime([stage], table.num_microbatches, defer_pp_recv=defer)
    path.write_text(text)
    runtime._load_csv(str(path), format=format)
    return runtime


def cells(row: list[Any]) -> list[str]:
    """A row as text, with runs of FSDP actions sorted: torch takes them from a set."""
    out: list[str] = []
    run: list[str] = []
    for action in map(str, row):
        if "RESHARD" in action:
            run.append(action)
        else:
            out += [*sorted(run), action]
            run = []
    return out + sorted(run)


@pytest.mark.parametrize("receives", ["torch", "deferred"])
@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.oracle
def test_our_lowering_is_torchs_own(name: str, receives: Any, tmp_path: Path) -> None:
    for p in (1, 2, 3, 4):
        for m in (1, 3, 4, 12):
            try:
                table = table_of(name, p=p, m=m)
            except ConfigError:
                continue
            runtime = loaded(
                table, format_table(table), tmp_path / "T.csv", format="compute_only", defer=receives == "deferred"
            )
            ours = lower(table, receives=receives)
            for rank, row in enumerate(ours.rows()):
                expected = cells(runtime.pipeline_order_with_comms[rank])
                assert cells([format_cell(cell) for cell in row]) == expected, (p, m, rank)


@pytest.mark.parametrize(
    ("name", "v"), [("interleaved-1f1b", 4), ("interleaved-1f1b", 5), ("looped-bfs", 4), ("hanayo", 4)]
)
@pytest.mark.oracle
def test_a_rank_of_more_stages_than_torch_keeps_gathered_lets_go_of_them_as_torch_does(
    name: str, v: int, tmp_path: Path
) -> None:
    """Three at a time: one forward, one backward, one being fetched."""
    for p, m in ((2, 4), (4, 8)):
        table = ppsim.build(name, pp=p, vpp=v, microbatches=m)
        runtime = loaded(table, format_table(table), tmp_path / "T.csv", format="compute_only")
        gathered = 0
        for rank, row in enumerate(lower(table).rows()):
            mine = [format_cell(cell) for cell in row]
            assert cells(mine) == cells(runtime.pipeline_order_with_comms[rank])
            held = list(accumulate(("UNSHARD" in cell) - ("RESHARD" in cell) for cell in mine))
            gathered = max(gathered, *held)
        assert gathered == 3


@pytest.mark.parametrize("name", BUILDERS)
def test_torch_reads_the_table_with_communication_unchanged(name: str, tmp_path: Path) -> None:
    table = table_of(name, p=4, m=8)
    text = torch_csv(table, with_communication=True)
    runtime = loaded(table, text, tmp_path / "T.csv", format="compute_comms")
    rows = [runtime.pipeline_order_with_comms[rank] for rank in range(4)]
    assert [[str(action) for action in row] for row in rows] == [line.split(",") for line in text.splitlines()]


def torchs_own(kind: Any, *, p: int, v: int, m: int) -> list[list[str]]:
    stages = []
    for chunk in range(v):
        stages.append(stage_of(num_ranks=p, num_stages=p * v))
        stages[-1].stage_index = p * chunk
    order = kind(stages, m, loss_fn=mock.Mock()).pipeline_order
    return [["" if action is None else str(action) for action in order[rank]] for rank in range(p)]


def compute(rows: list[list[str]]) -> list[list[str]]:
    return [[cell for cell in row if cell] for row in rows]


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_interleaved_1f1b_is_the_order_torch_generates(p: int, groups: int) -> None:
    for v in (2, 3, 4):
        m = groups * p
        ours = ppsim.build("interleaved-1f1b", pp=p, vpp=v, microbatches=m)
        mine = [[format_cell(cell) for cell in row] for row in ours.rows()]
        assert mine == compute(torchs_own(schedules.ScheduleInterleaved1F1B, p=p, v=v, m=m))


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("name", ["looped-bfs", "interleaved-zb"])
def test_looped_schedules_are_the_order_torch_generates(name: str, p: int) -> None:
    own = {"looped-bfs": schedules.ScheduleLoopedBFS, "interleaved-zb": schedules.ScheduleInterleavedZeroBubble}
    for v in (2, 3, 4):
        for m in (1, p - 1, p, 2 * p, 2 * p + 2, 3 * p):
            try:
                expected = compute(torchs_own(own[name], p=p, v=v, m=m))
            except ValueError:  # torch's interleaved zero-bubble takes equal groups only
                assert name == "interleaved-zb"
                assert m % (m // p) != 0
                continue
            ours = ppsim.build(name, pp=p, vpp=v, microbatches=m)
            assert [[format_cell(cell) for cell in row] for row in ours.rows()] == expected


@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_dualpipev_is_the_order_torch_generates_with_the_same_pairs(p: int) -> None:
    for m in (2 * p, 2 * p + 1, 3 * p, 5 * p):
        ours = ppsim.build("dualpipev", pp=p, microbatches=m)
        mine = [[format_cell(cell) for cell in row] for row in ours.rows()]
        assert mine == compute(torchs_own(schedules.ScheduleDualPipeV, p=p, v=2, m=m))


@pytest.mark.parametrize("p", [2, 4, 8])
def test_zbv_forwards_in_the_order_torch_generates(p: int) -> None:
    """The V of forwards and input gradients is fixed by the method; where W goes is torch's own choice."""
    for m in (2 * p, 3 * p, 4 * p):
        ours = ppsim.build("zbv-fixed", pp=p, microbatches=m)
        mine = [[format_cell(cell) for cell in row] for row in ours.rows()]
        for chunk_order, own in zip(
            mine, compute(torchs_own(schedules.ScheduleZBVZeroBubble, p=p, v=2, m=m)), strict=True
        ):
            assert [cell for cell in chunk_order if "W" not in cell] == [cell for cell in own if "W" not in cell]
