"""One process's recording: order, kernels per step and the work of an action."""

from collections import Counter
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.runs.readers import recording as module
from ppsim.runs.readers.patterns import NameCounts, ParsedName, patterns_with
from ppsim.runs.readers.recording import DeviceWork, Recording, kernels_per_step, launch_wait_s, trace_of
from ppsim.runs.traces import TimeRange
from ppsim.schedule.table import NONE, Action, Op
from tests.defaults import number_defaults


def recording(**fields: Any) -> Recording:
    return Recording("r.json", NameCounts(patterns_with(()), Counter()), **fields)


def action(op: Op, microbatch: int, stage: int = 0) -> Action:
    return Action(op, stage, microbatch)


def with_kernels(**fields: Any) -> Recording:
    """Return a recording with 12 s of GEMMs in two kernels."""
    made = recording(**fields)
    made.keep_work(1, 0.0, 5.0, "nvjet_gemm", None)
    made.keep_work(2, 5.0, 12.0, "nvjet_gemm", None)
    return made


def test_a_name_is_a_step_or_an_action_and_the_end_comes_after_the_begin() -> None:
    made = recording()
    made.keep_range("ProfilerStep#12", 1.0, 3.0)
    made.keep_range("PP:3F5", 1.5, 2.5)
    made.keep_range("nothing", 1.5, 2.5)
    made.keep_range("PP:3F6", 2.5, 2.5)
    assert made.steps == [(1.0, 3.0, 12)]
    assert [(begin, end, named.cell) for begin, end, _, named in made.ranges] == [
        (1.5, 2.5, action(Op.F, 5, 3)), (2.5, 2.5, action(Op.F, 6, 3)),
    ]  # fmt: skip
    for begin, end in ((2.5, 1.5), (1.0, float("inf")), (float("nan"), 1.0)):
        with pytest.raises(ConfigError, match=r"r.json: the range PP:3F5 is from"):
            made.keep_range("PP:3F5", begin, end)


def test_work_of_the_device_is_kept_by_its_launch_and_counted_by_kind() -> None:
    made = with_kernels()
    made.keep_work(2, 12.0, 11.0, "ncclDevKernel_SendRecv", 64.0)
    assert made.device == {
        1: [DeviceWork(0.0, 5.0, False, None)],
        2: [DeviceWork(5.0, 12.0, False, None), DeviceWork(12.0, 11.0, True, 64.0)],
    }
    assert made.kernels.counts == {"gemm": 2, "send-receive": 1}
    assert made.kernels.seconds == {"gemm": 12.0, "send-receive": 0.0}
    with pytest.raises(ConfigError, match=r"r.json: the device's 'gemm' is from"):
        made.keep_work(1, float("nan"), 1.0, "gemm", None)


@pytest.mark.parametrize(
    ("steps", "cells", "number", "step_s"),
    [
        ([(20.0, 29.0, 3), (0.0, 9.0, 1), (11.0, 18.0, 2)], [], 3, 10.0),
        ([(2.0, 9.0, 1)], [], 1, 7.0),
        ([(2.0, 9.0, 1)], [action(Op.F, 0), action(Op.F, 1), action(Op.F, 0)], 1, 7.0),
        ([], [action(Op.F, 4), action(Op.F, 5), action(Op.F, 4), action(Op.B, 4), action(Op.F, 4)], 3, None),
    ],
)
def test_kernels_are_divided_by_the_steps_or_by_the_times_of_the_first_action(
    steps: list[tuple[float, float, int]], cells: list[Action], number: int, step_s: float | None
) -> None:
    ranges = [(float(index), index + 0.5, 0, ParsedName(cell)) for index, cell in enumerate(cells)]
    totals, seconds = kernels_per_step(with_kernels(steps=steps, ranges=ranges[::-1]))
    assert (totals.counts, totals.seconds) == ({"gemm": 2 / number}, {"gemm": 12.0 / number})
    assert seconds == step_s


def test_kernels_of_unknown_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"r.json has no kernels"):
        kernels_per_step(recording(steps=[(0.0, 1.0, 1)]))
    for cell in (Action(Op.F, NONE, 0), Action(Op.F, 0, NONE)):
        with pytest.raises(ConfigError, match=r"r.json has kernels and no range of a step"):
            kernels_per_step(with_kernels(ranges=[(0.0, 1.0, 0, ParsedName(cell))]))
    with pytest.raises(ConfigError, match=r"r.json has kernels and no range of a step"):
        kernels_per_step(with_kernels())


def test_a_trace_has_the_actions_of_the_first_pattern_with_their_launches_messages_and_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "split_by_names", lambda trace: trace)
    cells = [action(Op.F, 0), action(Op.B, 0), action(Op.SEND_F, 0)]
    made = recording(
        rank=5, num_ranks=8, host="node", base_ns=77,
        ranges=[
            (20.0, 29.0, 1, ParsedName(cells[1])), (0.0, 9.0, 1, ParsedName(cells[0])),
            (10.0, 12.0, 1, ParsedName(cells[2])), (0.0, 9.0, 2, ParsedName(action(Op.F, 7))),
        ],
        steps=[(30.0, 40.0, 8), (0.0, 30.0, 7)],
        launches=[(21.0, 3), (9.0, 1), (0.0, 2), (11.0, 4), (9.5, 5)],
        device={
            1: [DeviceWork(8.0, 10.0, False, None)], 2: [DeviceWork(1.0, 2.0, False, None)],
            3: [DeviceWork(21.0, 22.0, True, 99.0)], 4: [DeviceWork(11.0, 12.0, True, 33.0)], 5: [],
        },
        messages=[(25.0, 64.0), (8.0, 16.0)],
        waits=[(18.0, 21.0), (6.0, 8.5)],
        collectives=[5.0, 3.0],
    )  # fmt: skip
    trace = trace_of(made)
    assert (trace.source, trace.rank, trace.num_ranks, trace.host, trace.base_ns) == ("r.json", 5, 8, "node", 77)
    assert (trace.marks, trace.numbers, trace.collectives) == ([0.0, 30.0], [7, 8], [3.0, 5.0])
    assert trace.on_device
    [[forward, send, backward]] = trace.steps
    assert [one.cell for one in (forward, send, backward)] == [cells[0], cells[2], cells[1]]
    assert forward.device == [(0.0, TimeRange(1.0, 2.0)), (9.0, TimeRange(8.0, 10.0))]
    assert (forward.message_bytes, forward.launch_wait_s) == (16.0, 6.0)
    assert forward.waits == [TimeRange(6.0, 8.5)]
    assert (send.device, send.message_bytes, send.launch_wait_s) == ([(11.0, TimeRange(11.0, 12.0))], 33.0, 0.0)
    assert (backward.device, backward.message_bytes, backward.waits) == ([], 99.0, [TimeRange(18.0, 21.0)])


def test_passes_of_two_ranks_are_no_recording_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "split_by_names", lambda trace: trace)
    ranges = [(float(rank), rank + 0.5, 0, ParsedName(action(Op.F, rank), rank=rank)) for rank in (2, 3)]
    with pytest.raises(ConfigError, match=r"r.json holds passes of 2 ranks: give one recording a rank"):
        trace_of(recording(ranges=ranges))
    assert trace_of(recording(ranges=ranges[:1], rank=7)).rank == 2, "the name has the rank"


@pytest.mark.parametrize(
    ("launches", "wait_s"),
    [
        ([], 0.0),
        ([(0.0, 1.0, 3.0), (2.9, 4.0, 6.0)], 0.0),
        ([(0.0, 1.0, 3.0), (3.0, 4.0, 6.0)], 0.0),
        ([(0.0, 1.0, 3.0), (3.5, 4.0, 6.0)], 1.0),
        ([(3.5, 4.0, 6.0), (0.0, 1.0, 3.0)], 1.0),
        ([(0.0, 1.0, 9.0), (0.5, 2.0, 3.0), (9.5, 10.0, 11.0)], 1.0),
        ([(0.0, 1.0, 9.0), (9.5, 8.0, 11.0)], 0.0),
        ([(2.0, 4.0, 5.0), (7.0, 7.5, 8.0), (11.0, 12.0, 13.0)], 2.5 + 4.0),
    ],
)
def test_the_device_waits_for_work_that_was_launched_while_it_was_idle(
    launches: list[tuple[float, float, float]], wait_s: float
) -> None:
    work = [(launched, DeviceWork(begin, end, False, None)) for launched, begin, end in launches]
    assert launch_wait_s(work) == wait_s


def test_a_recording_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.MOST_KEPT == 6_000_000
    made = with_kernels(
        ranges=[(0.0, 1.0, 0, ParsedName(action(Op.F, 0)))], launches=3 * [(0.0, 1)], messages=4 * [(0.0, 1.0)],
        waits=5 * [(0.0, 1.0)], nodes=6 * [(0.0, 1.0)], operators=7 * [(0.0, 1.0)], steps=9 * [(0.0, 1.0, 1)],
    )  # fmt: skip
    monkeypatch.setattr(module, "MOST_KEPT", 2 + 1 + 3 + 4 + 5 + 6 + 7)
    made.require_room("schedule=…")
    monkeypatch.setattr(module, "MOST_KEPT", 27)
    with pytest.raises(ConfigError, match=r"holds more than 27 ranges, .*: profile fewer steps \(schedule=…\)"):
        made.require_room("schedule=…")


def test_numbers_that_callers_may_leave_out() -> None:
    assert number_defaults(module) == {"Recording": {"base_ns": 0}}


def test_a_recording_holds_six_million_entries() -> None:
    assert module.MOST_KEPT == 6_000_000
