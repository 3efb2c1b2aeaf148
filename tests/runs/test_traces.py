"""Ranges of actions, by hand: steps, ranks, receives and kernels."""

from dataclasses import replace
from typing import Any

import pytest

from ppsim import Action, Op
from ppsim.base.errors import ConfigError
from ppsim.runs import traces as traces_module
from ppsim.runs.traces import (
    CellRange,
    RankTrace,
    TimeRange,
    _on_device,
    _on_host,
    _step_record,
    in_rank_order,
    message_bytes_of,
    missing_ranks_of,
    require_as_many_steps,
    require_like_steps,
    result_of,
    shortened,
    split_by_names,
    table_rows_of,
    with_common_steps,
)
from tests.defaults import number_defaults


def cell(begin: float, end: float, op: Op, stage: int = 0, microbatch: int = 0, **fields: Any) -> CellRange:
    return CellRange(begin, end, Action(op, stage, microbatch), **fields)


def step(at: float, stage: int = 0) -> list[CellRange]:
    return [cell(at, at + 1, Op.F, stage), cell(at + 2, at + 3, Op.B, stage)]


def trace(*steps: list[CellRange], source: str = "a", **fields: Any) -> RankTrace:
    return RankTrace(
        **({"source": source, "rank": None, "host": "h", "on_device": False, "steps": list(steps)} | fields)
    )


def test_a_repeated_action_starts_a_step() -> None:
    found = split_by_names(trace([*step(0), *step(10), *step(20)]))
    assert [[one.begin for one in cells] for cells in found.steps] == [[0, 2], [10, 12], [20, 22]]
    unknown = trace([cell(0, 1, Op.F, -1), cell(1, 2, Op.F, -1)])
    assert split_by_names(unknown) is unknown
    assert (unknown.is_told, found.is_told, found.stages) == (False, True, [0])


def test_steps_that_differ_are_refused() -> None:
    assert require_like_steps(trace(step(0), step(10))).steps
    for steps, sentence in (
        ([step(0)], "a has one step only"),
        ([step(0), step(10)[:1]], "a: step 2 lacks 0B0, which step 1 has"),
        ([step(0), step(10), step(20)[::-1]], "step 3 has other actions than step 1, or another order"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            require_like_steps(trace(*steps))


def test_ranks_have_as_many_steps() -> None:
    require_as_many_steps([trace(step(0)), trace(step(0))])
    with pytest.raises(ConfigError, match="b has 1 steps, a has 2"):
        require_as_many_steps([trace(step(0), step(1)), trace(step(0), source="b")])


def test_iterations_that_a_rank_lacks_are_left_out() -> None:
    first = trace(step(0), step(10), step(20), numbers=[5, 6, 7])
    second = trace(step(10), step(20), numbers=[6, 7])
    common = with_common_steps([first, second])
    assert [one.numbers for one in common] == [[6, 7], [6, 7]]
    assert [one.steps[0][0].begin for one in common] == [10, 10]
    few = [trace(step(0), step(10), numbers=[5, 6]), trace(step(10), numbers=[6])]
    assert with_common_steps(few) == few, "one of two is not most"
    unknown = [trace(step(0), step(10), step(20)), second]
    assert with_common_steps(unknown) == unknown
    marked = trace(step(0.5), step(10.5), step(20.5), marks=[0.0, 10.0, 20.0], numbers=[5, 6, 7])
    assert with_common_steps([marked, second])[0].steps[0][0].begin == 10.5
    assert with_common_steps([marked, second])[0].marks == []


def test_numbers_in_a_sentence_are_shortened() -> None:
    assert shortened(range(8)) == "0, 1, 2, 3, 4, 5, 6, 7"
    assert shortened(range(9)) == "0, 1, 2, 3, 4, 5, 6, 7, …"


def test_ranks_are_in_the_order_of_their_numbers_or_stages() -> None:
    low, high = trace(step(0, 0), source="low", rank=4), trace(step(0, 1), source="high", rank=2)
    assert in_rank_order([high, low]) == [low, high], "4 and 2 count other ranks too"
    numbered = replace(low, rank=1), replace(high, rank=0)
    assert in_rank_order(numbered) == [numbered[1], numbered[0]]
    with pytest.raises(ConfigError, match="low and low both hold stage 0"):
        in_rank_order([low, low])
    with pytest.raises(ConfigError, match="no trace of the rank with stage 1: give all, or explain --ranks N"):
        in_rank_order([low, trace(step(0, 2))])
    sending = trace([*step(0, 0), cell(1, 2, Op.SEND_F, 0)])
    with pytest.raises(ConfigError, match="no trace of the rank with stage 1"):
        in_rank_order([sending])
    with pytest.raises(ConfigError, match="no trace of the rank with stage 1"):
        in_rank_order([low, trace(step(0, 2))], num_ranks=2)
    assert [one.stages for one in in_rank_order([trace(step(0, 3)), trace(step(0, 1))], num_ranks=4)] == [[0], [1]]
    assert in_rank_order([sending], num_ranks=2) == [replace(sending, steps=[step(0, 0)])]
    assert in_rank_order([low]) == [low]


@pytest.mark.parametrize(
    ("ranks", "size", "missing"),
    [
        ([0, 4], 16, [8, 12]),
        ([4, 8], 16, [0, 12]),
        ([1, 3], 8, [5, 7]),
        ([0, 1], 2, []),
        ([0, 0], 8, []),
        ([3], 4, [0, 1, 2]),
    ],
)
def test_missing_ranks_are_as_far_apart_as_the_others(ranks: list[int], size: int, missing: list[int]) -> None:
    assert missing_ranks_of([trace(step(0), rank=rank, num_ranks=size) for rank in ranks]) == missing
    assert missing_ranks_of([trace(step(0), rank=rank) for rank in ranks], size) == missing


def test_rows_have_computation_and_messages() -> None:
    made = trace([cell(0, 1, Op.UNSHARD), *step(0), cell(4, 5, Op.SEND_F)])
    assert [[str(one) for one in row] for row in table_rows_of([made])] == [["0F0", "0B0", "0SEND_F0"]]


def test_the_bytes_of_a_message_are_the_median_of_the_sends() -> None:
    sends = [cell(0, 1, Op.SEND_F, message_bytes=size) for size in (8.0, None, 2.0, 4.0)]
    received = [cell(0, 1, Op.RECV_F, message_bytes=100.0)]
    assert message_bytes_of([trace(sends), trace(received)]) == 4.0
    assert message_bytes_of([trace(received)]) is None


def records(*steps: list[CellRange], **fields: Any) -> list[dict[str, Any]]:
    """Return the records of the first step of a single rank."""
    found: list[dict[str, Any]] = result_of([trace(*steps, **fields)], num_warm_up=0)["steps"][0][0]["records"]
    return found


def test_an_action_on_the_host_runs_from_its_last_receive() -> None:
    waits = [TimeRange(-0.5, 0.25), TimeRange(0.25, 0.5)]
    first, second = records([replace(step(0)[0], waits=waits, work={"x": 1.0}), step(0)[1]])
    assert first == {
        "name": "0F0", "begin": 0, "end": 1, "waits": [[0, 0.25], [0.25, 0.5]], "calls": [0.5], "work": {"x": 1.0},
    }  # fmt: skip
    assert (second["calls"], second["waits"]) == ([2], [])


def test_ranks_on_two_clocks_are_on_one_base() -> None:
    late = trace(step(0, 1), source="b", base_ns=1_500_000_000)
    found = result_of([trace(step(0), base_ns=500_000_000), late], num_warm_up=0)
    assert [rank["records"][0]["begin"] for rank in found["steps"][0]] == [0, 1.0]
    assert (found["num_warm_up"], found["differences"]) == (0, None)
    with pytest.raises(ConfigError, match="a has 1 steps: none is left after 1 of warm-up"):
        result_of([trace(step(0))], num_warm_up=1)
    with pytest.raises(ConfigError, match="a holds no kernels, other ranks' traces do"):
        result_of([trace(step(0)), trace(step(0), source="b", on_device=True)], num_warm_up=0)


def test_the_time_to_a_collective_is_from_the_last_action_of_the_step() -> None:
    steps = [step(0), step(10), step(20)]
    assert result_of([trace(*steps, collectives=[1.0, 4.5, 25.0])], num_warm_up=0)["to_collective_s"] == [
        (1.5,), (None,),
    ]  # fmt: skip
    kernels = [replace(one, device=[(one.begin, TimeRange(one.begin + 0.5, one.end + 0.5))]) for one in steps[0]]
    found = result_of([trace(kernels, steps[1], collectives=[4.5], on_device=False)], num_warm_up=0)
    assert found["to_collective_s"] == [(1.0,)]


def test_a_transfer_of_two_kernels_runs_once_both_have_started() -> None:
    def kernel(op: Op, stage: int, begin: float, end: float) -> CellRange:
        return cell(begin, end, op, stage, device=[(begin, TimeRange(begin, end))])

    sender = trace([*step(0), kernel(Op.SEND_F, 0, 1.0, 5.0)])
    receiver = trace([kernel(Op.RECV_F, 1, 2.0, 4.0), *step(4, 1)], source="b")
    first, second = result_of([sender, receiver], num_warm_up=0)["steps"][0]
    assert (first["transfers"], second["transfers"]) == ({}, {"0SEND_F0": (2.0, 5.0)})
    alone = trace([cell(2.0, 4.0, Op.RECV_F, 1), *step(4, 1)], source="b")
    assert result_of([sender, alone], num_warm_up=0)["steps"][0][1]["transfers"] == {}


def test_a_fused_cell_divides_its_receives_at_the_end_of_its_first_part() -> None:
    both = (Action(Op.F, 0, 1), Action(Op.B, 0, 0))
    waits = [TimeRange(0.0, 1.0), TimeRange(3.0, 4.0)]
    fused = CellRange(
        0.0,
        10.0,
        both,
        waits=waits,
        nodes=[TimeRange(4.5, 6.0), TimeRange(6.0, 9.0)],
        operators=[TimeRange(1.0, 2.5), TimeRange(5.0, 6.0)],
    )
    [forward_first] = records([fused])
    assert forward_first["calls"] == [1.0, 4.5]
    assert forward_first["waits"] == [[0.0, 1.0], [2.5, 4.0]]
    at_the_node = replace(
        fused,
        operators=[TimeRange(1.0, 2.5), TimeRange(2.5, 4.5)],
        waits=[TimeRange(0.0, 1.0), TimeRange(4.5, 4.5)],
    )
    assert records([at_the_node])[0]["calls"] == [4.5, 4.5], (
        "an operator that ends where the backward begins is the forward's"
    )
    backward = replace(fused, cell=both[::-1], nodes=[TimeRange(1.0, 2.5)])
    [backward_first] = records([backward])
    assert backward_first["calls"] == [1.0, 4.0]
    assert backward_first["waits"] == [[0.0, 1.0], [2.5, 4.0]]


def fused(*ops: Op, begin: float = 10.0, end: float = 30.0, **fields: Any) -> CellRange:
    return CellRange(begin, end, tuple(Action(op, 0, number) for number, op in enumerate(ops)), **fields)


def spans(*times: tuple[float, float]) -> list[TimeRange]:
    return [TimeRange(*one) for one in times]


@pytest.mark.parametrize(
    ("made", "record"),
    [
        (
            cell(1.0, 9.0, Op.F, waits=spans((0.5, 2.0), (2.5, 3.0)), work={"load": 0.5}),
            {"name": "0F0", "calls": [3.0], "waits": [[1.0, 2.0], [2.5, 3.0]], "work": {"load": 0.5}},
        ),
        (cell(1.0, 9.0, Op.F), {"name": "0F0", "calls": [1.0], "waits": [], "work": {}}),
        (
            fused(
                Op.F, Op.B, nodes=spans((20.0, 24.0), (24.0, 28.0)), operators=spans((12.0, 17.0), (17.0, 18.5), (21.0, 22.0)),
                waits=spans((9.0, 11.0), (11.0, 12.0), (18.6, 19.0), (19.0, 19.5), (21.0, 22.0)),
            ),
            {"name": "(0F0;0B1)OVERLAP_F_B", "calls": [12.0, 20.0], "waits": [[10.0, 12.0], [19.0 - 0.5, 19.5]], "work": {}},
        ),
        (
            fused(Op.F, Op.B, nodes=spans((20.0, 28.0)), waits=spans((9.0, 11.0))),
            {"name": "(0F0;0B1)OVERLAP_F_B", "calls": [11.0, 20.0], "waits": [[10.0, 11.0]], "work": {}},
        ),
        (
            fused(Op.B, Op.F, nodes=spans((12.0, 14.0), (13.0, 18.0)), waits=spans((9.0, 11.0), (18.0, 18.0), (19.0, 21.0), (22.0, 23.0))),
            {"calls": [18.0, 23.0], "waits": [[10.0, 18.0], [18.0, 23.0]], "work": {}},
        ),
        (
            fused(Op.B, Op.F, nodes=spans((12.0, 18.0))),
            {"calls": [10.0, 18.0], "waits": [[10.0, 10.0]], "work": {}},
        ),
    ],
)  # fmt: skip
def test_an_action_on_the_host_starts_after_its_receives_and_its_parts_are_divided_by_the_nodes(
    made: CellRange, record: dict[str, Any]
) -> None:
    found = _on_host(made, "a")
    assert (found["begin"], found["end"]) == (made.begin, made.end)
    assert {name: found[name] for name in record if name != "name"} == {
        name: value for name, value in record.items() if name != "name"
    }
    if len(made.members) == 1:
        assert found["name"] == record["name"]


def work(*times: tuple[float, float, float]) -> list[tuple[float, TimeRange]]:
    return [(launched, TimeRange(begin, end)) for launched, begin, end in times]


def test_an_action_on_the_device_runs_from_its_first_kernel_to_its_last_end() -> None:
    alone = _on_device(
        cell(1.0, 9.0, Op.F, device=work((1.0, 2.0, 8.0), (1.5, 3.0, 5.0)), launch_wait_s=0.25), 0.0, "a"
    )
    assert alone == {"name": "0F0", "begin": 2.0, "end": 8.0, "waits": [], "calls": [2.0], "launch_wait_s": 0.25}
    device = work((11.0, 12.0, 15.0), (20.0, 20.5, 21.0), (20.1, 22.0, 29.0), (25.0, 21.5, 24.0))
    forward_first = fused(Op.F, Op.B, nodes=spans((20.0, 26.0)), device=device, launch_wait_s=0.25)
    found = _on_device(forward_first, 0.0, "a")
    assert (found["begin"], found["end"], found["calls"], found["launch_wait_s"]) == (12.0, 29.0, [12.0, 21.5], 0.0)
    backward_first = fused(Op.B, Op.F, nodes=spans((11.0, 20.0)), device=device)
    assert _on_device(backward_first, 0.0, "a")["calls"] == [12.0, 21.5]
    late = fused(Op.B, Op.F, nodes=spans((11.0, 28.0)), device=device)
    assert _on_device(late, 0.0, "a")["calls"] == [12.0, 29.0]


def test_an_action_without_kernels_is_an_input_gradient_of_the_first_stage() -> None:
    for last, at in ((0.5, 1.0), (7.0, 7.0)):
        found = _on_device(cell(1.0, 9.0, Op.I), last, "a")
        assert (found["begin"], found["end"], found["calls"]) == (at, at, [at])
    for wrong in (cell(1.0, 9.0, Op.F), fused(Op.I, Op.F)):
        with pytest.raises(ConfigError, match=r"a: .* launched no kernel"):
            _on_device(wrong, 0.0, "a")


@pytest.mark.parametrize(
    "made",
    [
        fused(Op.F, Op.F, nodes=spans((1.0, 2.0))),
        fused(Op.F, Op.B),
        fused(Op.F, Op.B, Op.B, nodes=spans((1.0, 2.0))),
    ],
)
def test_of_fused_actions_only_a_forward_and_a_backward_with_nodes_are_told_apart(made: CellRange) -> None:
    with pytest.raises(ConfigError, match="cannot be told apart"):
        _on_host(made, "a")


def test_the_records_of_a_step_have_the_passes_messages_and_transfers_of_each_rank() -> None:
    first = [
        cell(0.0, 1.0, Op.F, device=work((0.0, 0.5, 1.5))), cell(1.0, 2.0, Op.SEND_F, device=work((1.0, 1.5, 4.0))),
        cell(2.0, 3.0, Op.I), cell(8.0, 9.0, Op.RECV_B),
    ]  # fmt: skip
    second = [
        cell(1.0, 2.0, Op.RECV_F, stage=1, device=work((1.0, 2.5, 3.0), (1.0, 3.0, 3.5))),
        cell(2.0, 3.0, Op.F, stage=1, device=work((2.0, 4.0, 5.0))),
    ]  # fmt: skip
    traces = [trace(one, on_device=True) for one in (first, second)]
    records = _step_record([first, second], traces)
    lines = records[0]["records"]
    assert [(one["name"], one["begin"], one["end"], one["calls"]) for one in lines] == [
        ("0F0", 0.5, 1.5, [0.5]), ("0SEND_F0", 1.0, 2.0, []), ("0I0", 2.0, 2.0, [2.0]), ("0RECV_B0", 8.0, 9.0, []),
    ]  # fmt: skip
    assert records[0]["transfers"] == {}
    assert records[1]["transfers"] == {"0SEND_F0": (2.5, 4.0)}
    assert [one["name"] for one in records[1]["records"]] == ["1RECV_F0", "1F0"]
    on_host = [replace(one, on_device=False) for one in traces]
    assert _step_record([first, second], on_host)[0]["records"][0]["begin"] == 0.0


def test_numbers_that_callers_may_leave_out() -> None:
    assert number_defaults(traces_module) == {"CellRange": {"launch_wait_s": 0.0}, "RankTrace": {"base_ns": 0}}
