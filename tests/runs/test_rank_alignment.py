"""Whether the clocks of ranks agree, and which step, stage and microbatch a recorded pass is of."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ppsim import build
from ppsim.base.errors import ConfigError
from ppsim.runs import rank_alignment
from ppsim.runs.rank_alignment import (
    _by_marks,
    _is_ordered,
    _stages_by,
    _steps_closed,
    align_ranks,
    identify_actions,
)
from ppsim.runs.traces import CellRange, RankTrace, RunRecordings
from ppsim.schedule.table import NONE, Action, Op
from tests.defaults import number_defaults
from tests.runs.test_calibrate import run_of


@pytest.mark.parametrize(
    ("late_s", "is_ordered"),
    [(0.0, True), (0.9e-3, True), (1.1e-3, False), (15e-3, False), (30e-3, False), (-30e-3, False)],
)
def test_clocks_differ_if_an_input_is_made_long_after_its_action_begins(late_s: float, is_ordered: bool) -> None:
    """Transfers take no time, so that some actions of the second rank begin when its input is made."""
    run = run_of("1f1b", pp=2, vpp=1, size=0.0)
    of_first = np.zeros(run.start.shape[1])
    of_first[: run.graph.num_actions][run.graph.schedule.rank == 0] = late_s
    assert _is_ordered(replace(run, start=run.start + of_first, end=run.end + of_first)) is is_ordered


def trace_of(text: str, rank: int | None = 0, *, stage: int = NONE, chunks: str = "", **told) -> RankTrace:
    """A pass of one second for each letter, in one list, with its index among the rank's stages in `chunks`."""
    cells = [
        CellRange(float(at), at + 1.0, Action(Op[letter], stage, NONE), chunk=int(chunks[at]) if chunks else None)
        for at, letter in enumerate(text)
    ]
    return RankTrace(f"rank{rank}.json", rank, "host", True, [cells], **told)


def steps_of(trace: RankTrace) -> list[list[str]]:
    return [[str(cell.cell) for cell in step] for step in trace.steps]


def test_steps_without_names_are_as_many_as_the_rank_with_the_fewest_ends_of_its_forwards_has() -> None:
    """Rank 0 has no open forward after each step of three microbatches, rank 1 after each microbatch."""
    first, last = trace_of("FFBFBB" * 2, 0), trace_of("FBFBFB" * 2, 1)
    assert (_steps_closed(first), _steps_closed(last)) == (2, 6)
    found = identify_actions([last, first])
    assert steps_of(found[0]) == [["0F0", "0F1", "0B0", "0F2", "0B1", "0B2"]] * 2
    assert steps_of(found[1]) == [["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"]] * 2


def test_weight_gradients_behind_the_last_input_gradient_end_no_step() -> None:
    (found,) = identify_actions([trace_of("FFIFIWIWW" * 2)])
    assert steps_of(found) == [["0F0", "0F1", "0I0", "0F2", "0I1", "0W0", "0I2", "0W1", "0W2"]] * 2


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (("FFB", "FB"), "rank0.json has 1 forwards more than backwards"),
        (("FBBB", "FB"), "rank0.json has 2 backwards more than forwards"),
        (("FFFBBBFB" * 2, "FFBB" * 3), r"rank1.json has 12 passes in 3 steps|rank0.json has 16 passes in 3 steps"),
    ],
)
def test_parts_of_steps_are_refused(texts: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        identify_actions([trace_of(text, rank) for rank, text in enumerate(texts)])


def test_a_table_names_the_passes_in_its_order_and_has_as_many_ranks() -> None:
    """On the first of two ranks, with stages 0 and 2."""
    table = build("interleaved-1f1b", pp=2, vpp=2, microbatches=2)
    row = [str(action) for action in table if table.stage_to_rank[action.stage] == 0]
    assert row == ["0F0", "0F1", "2F0", "2F1", "2B0", "2B1", "0B0", "0B1"]
    found = identify_actions([trace_of("FFFFBBBB" * 2, rank) for rank in range(2)], table)
    assert steps_of(found[0]) == [row, row]
    assert steps_of(found[1])[1][:4] == ["1F0", "1F1", "3F0", "3F1"]
    with pytest.raises(ConfigError, match="recordings of 1 ranks, and the table has 2"):
        identify_actions([trace_of("FFFFBBBB" * 2)], table)
    with pytest.raises(ConfigError, match="more passes F in a step than the table: 4"):
        identify_actions([trace_of("FFFFFBBBBB" * 2, rank) for rank in range(2)], table)
    with pytest.raises(ConfigError, match="has a chunk 2, and the table has 2 stages there"):
        identify_actions([trace_of("FB" * 2, rank, chunks="2020") for rank in range(2)], table)


@pytest.mark.parametrize("table", [None, build("interleaved-1f1b", pp=2, vpp=2, microbatches=1)])
def test_a_chunk_is_every_pth_stage(table) -> None:
    found = identify_actions([trace_of("FFBB" * 2, rank, chunks="0110" * 2) for rank in range(2)], table)
    assert [steps_of(trace)[1] for trace in found] == [["0F0", "2F0", "2B0", "0B0"], ["1F0", "3F0", "3B0", "1B0"]]


@pytest.mark.parametrize(
    ("marks", "numbers", "lengths"),
    [
        ([0.0, 4.0, 8.0], [], [4, 4, 4]),
        ([1.0, 4.0, 8.0], [], [4, 4]),
        ([0.0, 4.0, 8.0, 11.0], [], [4, 4]),
        ([0.0, 4.0, 8.0, 11.0], [5, 6, 7, 8], [4, 4]),
        ([0.0, 4.0, 7.0, 8.0], [], [4, 3, 1, 4]),
        ([0.0, 4.0, 7.0, 8.0], [5, 6, 7, 8], [4, 4]),
    ],
)
def test_steps_between_marks_are_left_out_at_the_ends_if_they_have_not_the_usual_number_of_passes(
    marks: list[float], numbers: list[int], lengths: list[int]
) -> None:
    """Passes before the first mark are of no step; numbered steps are left out wherever they are."""
    trace = trace_of("FFBB" * 3, marks=marks, numbers=numbers)
    assert [len(step) for step in _by_marks(trace)] == lengths


def test_stages_are_known_by_names_table_chunks_or_the_rank() -> None:
    table = build("1f1b", pp=2, microbatches=2)
    named = replace(trace_of("FB"), steps=[[CellRange(0.0, 1.0, Action(Op.F, 0, 0))]])
    for traces, given, vpp, expected in (
        ([named], table, None, "names"), ([trace_of("FB")], table, None, "table"),
        ([trace_of("FB", chunks="00")], None, 2, "chunks"), ([trace_of("FB"), trace_of("FB", chunks="00")], None, 2, "configuration"),
        ([trace_of("FB")], None, None, "rank"),
    ):  # fmt: skip
        assert _stages_by(SimpleNamespace(traces=traces, vpp=vpp), given) == expected


@pytest.mark.parametrize(
    ("clocks", "hosts", "late_s", "apart"),
    [
        ("one", "ab", -1.5, None),
        ("host", "aa", 0.0, None),
        ("host", "aa", -1.5, [0, 1]),
        ("host", "ab", 0.0, [0, 1]),
        ("step", "aa", 0.0, [0, 1]),
        ("step", "ab", 0.0, [0, 1]),
    ],
)
def test_clocks_are_aligned_where_they_may_differ(clocks, hosts, late_s, apart, monkeypatch) -> None:
    """Those of one host are believed, unless an input is made after its use; then each rank has its own."""
    calls: list[tuple[list[int], bool]] = []
    monkeypatch.setattr(
        rank_alignment, "align_clocks", lambda run, ranks, by_step: calls.append((ranks, by_step)) or (run, None)
    )
    passes = [
        [(Op.F, 0.0, 1.0), (Op.B, 3.0, 4.0)],
        [(Op.F, 1.0 + late_s, 2.0 + late_s), (Op.B, 2.0 + late_s, 3.0 + late_s)],
    ]
    traces = [
        RankTrace(f"rank{rank}.json", rank, hosts[rank], False, [
            [CellRange(10.0 * step + begin, 10.0 * step + end, Action(op, rank, 0)) for op, begin, end in passes[rank]]
            for step in range(3)
        ])
        for rank in range(2)
    ]  # fmt: skip
    run, facts = align_ranks(
        RunRecordings("r", traces, "csv", "times", clocks=clocks), table=None, given=None, num_warm_up=1
    )
    assert calls == ([] if apart is None else [(apart, clocks == "step")])
    assert (len(run.start), facts["num_warm_up"], facts["stages_by"], facts["clocks"]) == (2, 1, "names", None)
    assert (facts["emulated"], facts["missing_ranks"], facts["job_ranks"]) == (False, [], None)


def test_numbers_that_callers_may_leave_out() -> None:
    assert number_defaults(rank_alignment) == {"_is_ordered": {"early_s": 0.001}}
