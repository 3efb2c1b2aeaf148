"""The trace for viewers: each action once, at its time; flows tie what waits for what; counters return."""

import json
from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings

from ppsim import StageCosts, build, simulate
from ppsim.plot.trace import chrome_trace
from tests.strategies import tables_and_costs

COSTS = StageCosts(
    forward_s=1e-3, backward_input_s=1e-3, backward_weight_s=1e-3, activation_bytes=2.0**30, transfer_s=1e-4,
    static_bytes=5.0,
)  # fmt: skip


def timeline_of(name="1f1b", pp=4, microbatches=8, vpp=1, costs=COSTS):
    return simulate(build(name, pp=pp, vpp=vpp, microbatches=microbatches), costs)


def events_of(trace, phase):
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


@settings(max_examples=30)
@given(tables_and_costs())
def test_each_action_is_there_once_at_its_time(table_and_costs):
    timeline = simulate(*table_and_costs)
    trace = chrome_trace([timeline], [""])
    json.dumps(trace, allow_nan=False)
    slices = {event["args"]["action"]: event for event in events_of(trace, "X") if "action" in event["args"]}
    names = [str(action) for action in timeline.schedule]
    assert sorted(slices) == sorted(names)
    tolerance = 0.2 + 1e-3 * timeline.step_time_s  # µs: rounding to eighths; gaps of 1e-9 of the step are none
    for node, name in enumerate(names):
        event = slices[name]
        assert event["ts"] == pytest.approx(1e6 * (timeline.start[node] - timeline.begin_s), abs=tolerance)
        assert event["dur"] == pytest.approx(1e6 * (timeline.end[node] - timeline.start[node]), abs=tolerance)


@settings(max_examples=30)
@given(tables_and_costs())
def test_slices_of_a_thread_never_overlap(table_and_costs):
    threads = defaultdict(list)
    for event in events_of(chrome_trace([simulate(*table_and_costs)], [""]), "X"):
        threads[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in threads.values():
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


def test_an_action_says_what_it_is_and_waited_for():
    trace = chrome_trace([timeline_of()], [""])
    (event,) = [event for event in events_of(trace, "X") if event["args"].get("action") == "2F0"]
    assert event == {
        "pid": 1, "tid": 4, "ph": "X", "name": "F 0", "cat": "F", "ts": 2200.0, "dur": 1000.0,
        "args": {"action": "2F0", "stage": 2, "microbatch": 0, "waited for": "1F0 on rank 1"},
    }  # fmt: skip


def test_times_are_exact_in_whole_nanoseconds():
    trace = chrome_trace([timeline_of(costs=COSTS.replace(forward_s=1 / 3000))], [""])
    for event in events_of(trace, "X"):
        assert (event["ts"] * 1000).is_integer()
        assert (event["dur"] * 1000).is_integer()


def test_a_flow_runs_from_the_producer_through_the_transfer_to_the_consumer():
    timeline = timeline_of()
    trace = chrome_trace([timeline], [""])
    slices = events_of(trace, "X")

    def named(flow):
        (inside,) = [
            each for each in slices
            if each["tid"] == flow["tid"] and each["ts"] <= flow["ts"] < each["ts"] + each["dur"]
        ]  # fmt: skip
        return inside["args"].get("action", "transfer")

    ends = {phase: {flow["id"]: named(flow) for flow in events_of(trace, phase)} for phase in "stf"}
    assert set(ends["t"].values()) == {"transfer"}
    expected = [
        (timeline.name_of(source), timeline.name_of(target))
        for source, target in zip(timeline.graph.source.tolist(), timeline.graph.target.tolist(), strict=True)
    ]
    assert [(ends["s"][flow], ends["f"][flow]) for flow in ends["s"]] == expected


def test_counters_return_to_where_they_started_and_reach_the_peak():
    timeline = timeline_of()
    counters = defaultdict(list)
    for event in events_of(chrome_trace([timeline], [""]), "C"):
        counters[event["name"]].append(event["args"]["bytes"])
    assert list(counters) == [f"rank {rank} memory" for rank in range(4)]
    for rank, held in enumerate(counters.values()):
        assert held[0] == held[-1] == 5.0
        assert max(held) == timeline.memory.peak_bytes[rank]


def test_a_timeline_is_a_process_and_a_rank_its_threads():
    trace = chrome_trace([timeline_of(), timeline_of("zbv-fixed", vpp=2)], ["measured", "projected"])
    names = {
        event["pid"]: event["args"]["name"] for event in events_of(trace, "M") if event["name"] == "process_name"
    }
    assert names == {1: "measured", 2: "projected"}
    threads = [
        event["args"]["name"]
        for event in events_of(trace, "M")
        if event["name"] == "thread_name" and event["pid"] == 1
    ]
    assert threads == [f"rank {rank} {what}" for rank in range(4) for what in ("compute", "send")]
    ids = Counter(flow["id"] for flow in events_of(trace, "s"))
    assert set(ids.values()) == {1}


def test_without_transfer_times_flows_join_the_actions_themselves():
    bare = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    trace = chrome_trace([timeline_of(costs=bare)], [""])
    assert not events_of(trace, "t")
    assert not events_of(trace, "C")
    assert len(events_of(trace, "s")) == len(events_of(trace, "f")) == 48
    assert len(events_of(trace, "X")) == 64
