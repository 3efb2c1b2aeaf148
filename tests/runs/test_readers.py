"""Runs of other trainers are read as what they are: dumps, traces by names of their own, exports, CSVs, logs."""

import csv
import gzip
import json
import pickle
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ppsim as public
from ppsim import StageCosts, build, simulate
from ppsim.base.errors import ConfigError
from ppsim.runs.readers.csv_rows import read_rows
from ppsim.runs.readers.nsight import read_recordings
from ppsim.runs.readers.stream import opened
from ppsim.runs.traces import RankTrace, missing_ranks_of
from ppsim.schedule.table import NONE, Action, Op
from ppsim.simulation.timeline import Timeline
from tests.cli.running import ppsim, words_of
from tests.runtime.traces import rescaled, traces_of, written

DATA = Path(__file__).parent / "data"
DUMP = DATA / "primus_pp8_1f1b"
COSTS = StageCosts(
    forward_s=20e-3, backward_input_s=20e-3, backward_weight_s=14e-3, transfer_s=3e-3, action_overhead_s=1e-3
)


def timeline_of(name: str, *, pp: int = 4, microbatches: int = 8, **shape: Any) -> Timeline:
    return simulate(build(name, pp=pp, microbatches=microbatches, **shape), COSTS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- Primus' dumps ---


@pytest.fixture(scope="module")
def primus() -> Any:
    return public.read(DUMP)


def test_a_real_dump_is_1f1b_on_one_clock(primus: Any) -> None:
    """MI300X: 19 steps after the first, a median of 3.24 s; per P2P transfer of some 0.6 ms is what the clocks leave."""
    assert primus.facts["schedule"]["names"] == ["1f1b"]
    assert primus.timeline.schedule == build("1f1b", pp=8, microbatches=16)
    assert len(primus.step_times_s) == 19
    assert np.median(primus.step_times_s) == pytest.approx(3.2447, abs=1e-4)
    assert primus.facts["clocks"]["num_clocks"] == 8
    assert 0.5e-3 < primus.facts["clocks"]["hop_s"] < 0.8e-3
    assert primus.facts["reserved_bytes"][0] == pytest.approx(104.3 * 2**30, rel=1e-3)
    assert not primus.facts["knows_transfers"]
    assert primus.facts["between_steps_s"] == []


def test_no_pass_of_a_real_dump_starts_before_its_input_is_there(primus: Any) -> None:
    run = primus.measured.run
    slack = run.start[:, run.graph.target] - run.end[:, run.graph.source]
    assert slack.min() > 0.4e-3


def test_a_real_dump_is_simulated_within_what_was_found_of_it(primus: Any) -> None:
    """The medians of its passes come out 2.0 % short; what each took, with one gap of 0.8 ms before all, 0.07 % long."""
    found = public.compare(primus)
    assert found.step_error == pytest.approx(-0.0203, abs=0.001)
    assert found.replay_gap_s == pytest.approx(0.8e-3, rel=0.01)
    assert found.replay_error == pytest.approx(0.0007, abs=0.0002)


def test_a_dump_is_taken_by_every_command_that_takes_a_run(folder: Path) -> None:
    ppsim("read", DUMP, "-o", "run.json", "-o", "run.csv", "-o", "run.html")
    assert (folder / "run.csv").read_text().startswith("0F0,0F1,0F2,0F3,0F4,0F5,0F6,0F7,0B0")
    direct, through = (json.loads(ppsim("compare", one, "--json").stdout) for one in (DUMP, "run.json"))
    assert direct == through
    fitted = json.loads(ppsim("calibrate", DUMP, "-o", "overheads.json", "--json").stdout)
    assert (fitted["action_overhead_s"], fitted["hop_overhead_s"]) == pytest.approx((0.27e-3, 0.52e-3), rel=0.05)
    assert (fitted["first_pass_s"], fitted["last_pass_s"]) == pytest.approx((1.9e-3, 18e-3), rel=0.05)
    assert abs(fitted["residuals"][0]["error"]) < 0.005
    again = json.loads(ppsim("calibrate", "run.json", "--json").stdout)
    assert again["hop_overhead_s"] == pytest.approx(fitted["hop_overhead_s"])
    printed = words_of(ppsim("project", "--pp", 8, "--calibration", "overheads.json", "--full").stdout)
    assert "runtime: megatron" in printed
    assert "the last action of the first stage's rank takes 18.0 ms longer" in printed
    assert "passes that vary" in printed


def dump_of(
    steps: list[Timeline], folder: Path, *, split: bool = False, told: bool = False, config: bool = True
) -> None:
    """What Primus would write of these steps: every rank's times from its own start of the step."""
    folder.mkdir()
    schedule = steps[0].schedule
    lists = {Op.F: "fwd", Op.B: "bwd", Op.I: "bwd", Op.W: "wgrad"}
    for rank in range(schedule.num_ranks):
        begin, end = schedule.rank_offsets[rank : rank + 2]
        iterations = {}
        for number, step in enumerate(steps):
            found: dict[str, Any] = {"total": 1.0, "memory": 40.0 - rank}
            for entry in range(begin, end):
                op, stage, microbatch = schedule[entry]
                values = {
                    "start": (step.start[entry] - step.start[begin]) * 1e3,
                    "end": (step.end[entry] - step.start[begin]) * 1e3,
                }
                if told:
                    values |= {"minibatch": microbatch, "chunk": stage // schedule.num_ranks}
                for key, value in values.items():
                    found.setdefault(f"{lists[op]}_{key}", []).append(value)
            iterations[str(number + 1)] = found
        (folder / f"pp_rank_{rank}.json").write_text(json.dumps(iterations))
    if config:
        (folder / "config.json").write_text(
            json.dumps(
                {"pp_size": schedule.num_ranks, "vp_size": schedule.vpp, "num_mbs": schedule.num_microbatches}
            )
        )


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zb-h1"])
def test_a_dump_of_any_of_megatrons_tables_comes_back(folder: Path, name: str, told: bool) -> None:
    """Also where it does not tell chunks: Megatron-LM's table then says which pass is of which."""
    step = timeline_of(name)
    dump_of([step] * 3, folder / "dump", told=told)
    run = public.read("dump")
    assert run.facts["schedule"]["names"] == [name]
    actions = step.num_actions
    begins = run.timeline.start[:actions] - step.start[:actions]
    assert np.abs(begins - begins[0]).max() < 3.1e-3  # clocks are aligned to within a hop
    assert run.step_times_s == pytest.approx([step.step_time_s] * 2, abs=3.1e-3)


@pytest.mark.parametrize("size", [4, None])
def test_a_dump_without_one_of_its_ranks_is_explained_if_their_number_is_stated(
    folder: Path, size: int | None
) -> None:
    dump_of([timeline_of("1f1b")] * 3, folder / "dump")
    edit(folder / "dump" / "config.json", lambda found: found | {"pp_size": size})
    (folder / "dump" / "pp_rank_3.json").unlink()
    assert ppsim("explain", "dump", "--ranks", 4).stdout.startswith("without rank 3: ")
    if size is None:
        assert "Is a rank missing?" in ppsim("read", "dump").stdout
    beyond = words_of(ppsim("explain", "dump", "--ranks", 9, code=2 if size else 0).output)
    assert ("--ranks 9: the job had 4 ranks" in beyond) == bool(size)
    if size:
        fewer = words_of(ppsim("explain", "dump", "--ranks", 3, code=2).output)
        assert "--ranks 3: dump/config.json says pp_size 4" in fewer


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def later(times: Any) -> Any:
    """Backwards half a second before they can be: as of a run with other costs."""
    for step in times.values():
        for key in ("bwd_start", "bwd_end"):
            step[key] = [time - 60 for time in step[key]]
    return times


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a rank's file missing": (lambda dump: (dump / "pp_rank_2.json").unlink(), "lacks pp_rank_2.json: give all, or explain --ranks 4 without it"),
    "a file beyond the ranks": (lambda dump: edit(dump / "config.json", lambda found: found | {"pp_size": 3}), "holds pp_rank_3.json, and its config.json says pp_size 3"),
    "half-written": (lambda dump: (dump / "pp_rank_1.json").write_text((dump / "pp_rank_1.json").read_text()[:900]), "pp_rank_1.json is not valid JSON: line 1"),
    "fewer iterations": (lambda dump: edit(dump / "pp_rank_3.json", lambda found: {"1": found["1"]}), "has 1 steps, dump/pp_rank_0.json has 3: files of two runs"),
    "another number of microbatches": (lambda dump: edit(dump / "config.json", lambda found: found | {"num_mbs": 12}), "has 8 forwards an iteration, where config.json says 12"),
    "clocks that no offset explains": (lambda dump: edit(dump / "pp_rank_2.json", later), "the clocks of the ranks cannot be aligned"),
    "no times": (lambda dump: edit(dump / "pp_rank_0.json", lambda found: found | {"2": found["2"] | {"fwd_end": ["x"] * 8}}), "iteration 2: fwd_start and fwd_end of entry 0 are no times"),
    "no lists": (lambda dump: (dump / "pp_rank_0.json").write_text("[1]"), "pp_rank_0.json is no file of dump_pp_data"),
    "a configuration of words": (lambda dump: (dump / "config.json").write_text('{"pp_size": "four"}'), "config.json: pp_size is \"four\": it must be a whole number"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_dump_is_refused_with_a_sentence(folder: Path, case: str) -> None:
    breaks, words = BROKEN[case]
    dump_of([timeline_of("1f1b")] * 3, folder / "dump")
    breaks(folder / "dump")
    result = ppsim("read", "dump", "-o", "run.json", code=2)
    assert words in words_of(result.output)
    assert not (folder / "run.json").exists()


def test_one_rank_of_a_dump_asks_for_the_folder(folder: Path) -> None:
    assert "give the folder that holds all of them" in words_of(
        ppsim("read", DUMP / "pp_rank_0.json", code=2).output
    )


# --- traces whose passes have other names ---

MEGATRON = "megatron/core/pipeline_parallel/schedules.py(314): {kind}_step"
NAMES = {
    "torch's GPipe and 1F1B": lambda action: (
        f"{'Forward' if action.op is Op.F else 'Backward'} {action.microbatch}"
    ),
    "zero-bubble": lambda action: f"{'F' if action.op is Op.F else 'B'}{action.microbatch}.0.0",
    "Megatron-LM's functions": lambda action: MEGATRON.format(kind="forward" if action.op is Op.F else "backward"),
    "DeepSpeed": lambda action: f"PipelineEngine._exec_{'forward' if action.op is Op.F else 'backward'}_pass",
}


def renamed(traces: list[Any], name_of: Callable[[Action], str], *, steps: bool = False) -> list[Any]:
    """The traces with passes called otherwise, and no ranges of sends and receives."""
    for trace in traces:
        events = []
        for event in trace["traceEvents"]:
            found = re.fullmatch(r"PP:(\d+)([A-Z_]+)(\d+)", event["name"])
            if found and found[2] in ("F", "B"):
                event["name"] = name_of(Action(Op[found[2]], int(found[1]), int(found[3])))
                if "schedules.py" in event["name"] and event["cat"] == "user_annotation":
                    event["cat"] = "python_function"
            if not event["name"].startswith("PP:"):
                events.append(event)
        trace["traceEvents"] = events
    return traces


@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize("trainer", NAMES)
def test_passes_are_found_by_the_names_of_trainers(folder: Path, trainer: str, cuda: bool) -> None:
    """Stage and microbatch follow from the order where names do not tell them."""
    step = timeline_of("1f1b")
    written(renamed(traces_of([step] * 3, gap_s=0.03, cuda=cuda), NAMES[trainer]), folder / "traces")
    run = public.read("traces")
    assert run.facts["schedule"]["names"] == ["1f1b"]
    assert run.facts["passes_by"] == ("the device's work" if cuda else "ranges on the host")
    assert run.measured.run.gaps_s == pytest.approx([0.03], abs=1e-6)
    if cuda:  # on a host, ranges hold the wait for their message too
        assert run.timeline.start[: step.num_actions] == pytest.approx(
            step.start[: step.num_actions] - step.begin_s, abs=2e-6
        )


def test_a_pattern_of_ones_own_goes_before_the_table(folder: Path) -> None:
    def name_of(action: Action) -> str:
        return f"my stage {action.stage} {action.op.name.lower()} #{action.microbatch}"

    written(renamed(traces_of([timeline_of("1f1b")] * 2, gap_s=0.03, cuda=True), name_of), folder / "traces")
    message = words_of(ppsim("read", "traces", code=2).output)
    assert "traces/rank0.json has no range that names a pass" in message
    assert "'my stage 0 f #0'" in message
    assert "--pattern" in message
    given = r"my stage (?P<stage>\d+) (?P<kind>[fb]) #(?P<microbatch>\d+)"
    report = json.loads(ppsim("read", "traces", "--pattern", given, "--json").stdout)
    assert report["run"]["schedule"]["names"] == ["1f1b"]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(", "--pattern '(' is no regular expression"),
        (r"(?P<stage>\d+)", "does not tell a forward from a backward"),
        (r"(?P<kind>.)(?P<what>.)", "has a group what: there are cell, rank, stage"),
        (r"my stage \d+ (?P<kind>. #\d+)", "is of kind 'f #0', which is none of f, fwd"),
    ],
)
def test_a_pattern_that_cannot_be_is_refused(folder: Path, pattern: str, words: str) -> None:
    traces = traces_of([timeline_of("1f1b")] * 2, gap_s=0.03, cuda=True)
    written(renamed(traces, lambda action: f"my stage {action.stage} f #{action.microbatch}"), folder / "traces")
    assert words in words_of(ppsim("read", "traces", "--pattern", pattern, code=2).output)


def test_hosts_with_clocks_of_their_own_are_aligned(folder: Path) -> None:
    """Two nodes of two ranks, the second 5 s ahead and with another zero of its times."""
    step = timeline_of("1f1b")
    traces = traces_of([step] * 3, gap_s=0.03, cuda=True)
    for trace in traces[2:]:
        trace["host_name"] = "second"
        trace["baseTimeNanoseconds"] += 5_000_000_000
    written(traces, folder / "traces")
    run = public.read("traces")
    assert run.facts["clocks"]["num_clocks"] == 2
    assert run.step_times_s == pytest.approx([step.step_time_s] * 2, abs=4e-3)
    assert run.measured.run.gaps_s == pytest.approx([0.03], abs=4e-3)


def test_times_keep_their_nanoseconds(folder: Path) -> None:
    """Seconds of the epoch as floats would have steps of 0.24 µs: times count from the recording's own zero."""
    events, number = [], 0
    for step in range(2):
        for name, dur in (("PP:0F0", 1.284), ("PP:0B0", 2.561)):
            number += 1
            at = 7.1e12 + step * 100 + number * 10.123
            args = {"correlation": number}
            events.append({"ph": "X", "cat": "user_annotation", "name": name, "ts": at, "dur": 3.0})
            events.append(
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 1, "dur": 1, "args": args}
            )
            events.append({"ph": "X", "cat": "kernel", "name": "gemm", "ts": at + 2, "dur": dur, "args": args})
    trace = {"baseTimeNanoseconds": 1_711_964_646_000_000_000, "traceEvents": events}
    (folder / "trace.json").write_text(json.dumps(trace))
    run = public.read("trace.json").measured.run
    assert (run.end - run.start)[0] == pytest.approx([1.284e-6, 2.561e-6], abs=2e-9)


# --- real CUDA and HIP traces ---

PASSES = ["--pattern", "## (?P<kind>forward|backward) ##"]


@pytest.mark.parametrize(("name", "num_steps", "forward_s"), [("a100_ddp", 2, 0.0976), ("v100_resnet", 4, 0.0305)])
def test_a_real_cuda_trace_is_read_by_its_kernels(name: str, num_steps: int, forward_s: float) -> None:
    """One rank of one microbatch: from the first kernel launched in a range to the end of the last."""
    path = DATA / "kineto" / f"{name}.json.gz"
    run = public.read(path, pattern=PASSES[1:])
    assert run.facts["passes_by"] == "the device's work"
    assert [str(action) for action in run.timeline.schedule] == ["0F0", "0B0"]
    assert len(run.step_times_s) == num_steps
    with gzip.open(path) as file:
        events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
    launches = {event["args"]["correlation"]: event["ts"] for event in events if event["cat"] == "cuda_runtime"}
    kernels = [event for event in events if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
    (at,) = [event for event in events if event["name"] == "## forward ##"][1:2]
    ours = [
        one
        for one in kernels
        if at["ts"] <= launches[one["args"]["correlation"]] <= at["ts"] + at["dur"] and "nccl" not in one["name"]
    ]
    whole = max(one["ts"] + one["dur"] for one in ours) - min(one["ts"] for one in ours)
    taken = (run.measured.run.end - run.measured.run.start)[0, 0]
    assert taken == pytest.approx(whole / 1e6, abs=5e-7)
    assert taken == pytest.approx(forward_s, rel=0.05)


def test_what_a_real_trace_does_not_say_of_its_messages_is_missing() -> None:
    """Kernels ncclKernel_SendRecv of a recommender, of before NCCL's arguments were noted."""
    run = public.read(DATA / "kineto" / "sendrecv.json.gz", pattern=PASSES[1:])
    assert run.facts["message_bytes"] is None
    assert not run.facts["knows_transfers"]
    assert run.facts["reserved_bytes"] is None
    assert "not recorded" in str(run)


def test_a_real_trace_without_passes_says_what_it_saw() -> None:
    message = words_of(ppsim("read", DATA / "kineto" / "mi250_minitoy.json.gz", code=2).output)
    assert "has no range that names a pass of a pipeline" in message
    assert "'Optimizer.step#SGD.step'" in message


# --- Nsight Systems ---

SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT);
"""


def export_of(traces: list[Any], path: Path, *, host: str = "node0", zero_ns: int = 0, first: int = 0) -> None:
    """The sqlite export of a session that recorded these ranks, of which the first runs on device `first`."""
    file = sqlite3.connect(path)
    file.executescript(SCHEMA)
    strings: dict[str, int] = {}

    def number_of(text: str) -> int:
        return strings.setdefault(text, len(strings) + 1)

    for rank, trace in enumerate(traces):
        pid = (1 << 48) | ((4000 - rank) << 24)  # processes in another order than devices
        for event in trace["traceEvents"]:
            if event["ph"] != "X":
                continue
            begin, end = (round(time * 1e3) - zero_ns for time in (event["ts"], event["ts"] + event["dur"]))
            if event["cat"] == "user_annotation":
                text = (event["name"], None) if rank % 2 else (None, number_of(event["name"]))
                file.execute(
                    "INSERT INTO NVTX_EVENTS (start, end, eventType, text, textId, globalTid) VALUES (?,?,59,?,?,?)",
                    (begin, end, *text, pid | 7),
                )
            elif event["cat"] == "cuda_runtime":
                file.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,0,?,?,?,0,NULL)",
                    (begin, end, pid | 8, event["args"]["correlation"], number_of("cudaLaunchKernel")),
                )
            elif event["cat"] == "kernel":
                name = number_of(event["name"])
                file.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,1,?,?,?,?,?,NULL)",
                    (
                        begin,
                        end,
                        first + rank,
                        event["args"]["stream"],
                        event["args"]["correlation"],
                        pid,
                        name,
                        name,
                    ),
                )
    file.executemany("INSERT INTO StringIds VALUES (?, ?)", [(number, text) for text, number in strings.items()])
    file.execute(
        "INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '', '')", (1_700_000_000_000_000_000 + zero_ns,)
    )
    file.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, '', 'Hostname', 0, ?)", (host,))
    file.commit()
    file.close()


def test_an_export_of_nsight_systems_is_read_a_process_a_rank(folder: Path) -> None:
    step = timeline_of("1f1b")
    export_of(renamed(traces_of([step] * 3, gap_s=0.03, cuda=True), NAMES["zero-bubble"]), folder / "run.sqlite")
    run = public.read("run.sqlite")
    assert run.facts["kind"] == "exports of Nsight Systems"
    assert run.facts["schedule"]["names"] == ["1f1b"]
    actions = step.num_actions
    assert run.timeline.end[:actions] == pytest.approx(step.end[:actions] - step.begin_s, abs=2e-6)


def test_kernels_have_their_short_names_and_processes_without_passes_count_if_they_have_steps(folder: Path) -> None:
    file = sqlite3.connect("run.sqlite")
    file.executescript(SCHEMA)
    process = (1 << 48) | (4000 << 24)
    file.executemany(
        "INSERT INTO StringIds VALUES (?, ?)", [(1, "ProfilerStep#1"), (2, "ProfilerStep#2"), (3, "ampere_gemm")]
    )
    file.executemany(
        "INSERT INTO NVTX_EVENTS (start, end, eventType, textId, globalTid) VALUES (?, ?, 59, ?, ?)",
        [(0, 2_000_000_000, 1, process | 7), (2_000_000_000, 4_000_000_000, 2, process | 7)],
    )
    file.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (0, 1, 0, ?, 5, 3, 0, NULL)", (process | 7,))
    file.execute(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (0, 500000000, 0, 1, 7, 5, ?, 1, 3, NULL)", (process,)
    )
    file.commit()
    file.close()
    (recording,) = read_recordings("run.sqlite")
    assert recording.steps == [(0.0, 2.0, 1), (2.0, 4.0, 2)]
    assert recording.launches == [(0.0, 5)]
    assert (recording.rank, recording.source) == (None, "run.sqlite")
    assert list(recording.kernels.seconds.values()) == [0.5]


def test_exports_of_two_nodes_are_aligned(folder: Path) -> None:
    """Each session's times count from its own begin, which the export tells; the nodes' clocks are 0.2 s apart."""
    step = timeline_of("1f1b")
    traces = traces_of([step] * 3, gap_s=0.03, cuda=True)
    export_of(traces[:2], folder / "a.sqlite")
    export_of(traces[2:], folder / "b.sqlite", host="node1", zero_ns=200_000_000)
    run = public.read("a.sqlite", "b.sqlite")
    assert run.facts["clocks"]["num_clocks"] == 2
    assert run.step_times_s == pytest.approx([step.step_time_s] * 2, abs=4e-3)


def test_an_export_without_launches_names_the_missing_table(folder: Path) -> None:
    export_of(
        renamed(traces_of([timeline_of("1f1b")] * 3, gap_s=0.03, cuda=True), NAMES["zero-bubble"]),
        folder / "run.sqlite",
    )
    with closing(sqlite3.connect(folder / "run.sqlite")) as file:
        file.execute("DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")
    output = words_of(ppsim("read", "run.sqlite", code=2).output)
    assert "no table CUPTI_ACTIVITY_KIND_RUNTIME" in output


def test_an_export_that_lacks_what_is_needed_is_refused(folder: Path) -> None:
    sqlite3.connect(folder / "empty.sqlite").executescript("CREATE TABLE StringIds (id INTEGER, value TEXT);")
    assert "has no NVTX ranges" in words_of(ppsim("read", "empty.sqlite", code=2).output)
    export_of(traces_of([timeline_of("1f1b")] * 2, gap_s=0.03, cuda=True), folder / "run.sqlite")
    (folder / "cut.sqlite").write_bytes((folder / "run.sqlite").read_bytes()[:9000])
    assert "cut.sqlite is no export of Nsight Systems, or is cut off" in words_of(
        ppsim("read", "cut.sqlite", code=2).output
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ("CREATE VIEW StringIds AS SELECT id, value FROM plain", "StringIds is computed"),
        ("CREATE TABLE StringIds (id INTEGER, value AS (hex(zeroblob(200000000))))", "StringIds is computed"),
        (
            "CREATE TABLE StringIds AS SELECT id, printf('%.*c', 1100000, 'x') AS value FROM plain LIMIT 1",
            "too big",
        ),
        ("CREATE TABLE StringIds AS SELECT id + 2000 AS id, value FROM plain; {}", "interrupted"),
    ],
)
def test_an_export_whose_rows_take_endless_steps_or_bytes_is_refused(folder: Path, changes: str, said: str) -> None:
    export_of(traces_of([timeline_of("1f1b")], gap_s=0.03, cuda=True), folder / "run.sqlite")
    number = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 2000) INSERT INTO"
    ranges = f"{number} NVTX_EVENTS (start, end, eventType, textId, globalTid) SELECT x, x, 59, x, 0 FROM n"
    many = f"{number} StringIds SELECT x, 'x' FROM n; {ranges};"
    with closing(sqlite3.connect(folder / "run.sqlite")) as file:
        file.executescript("ALTER TABLE StringIds RENAME TO plain;" + changes.format(many))
    output = words_of(ppsim("read", "run.sqlite", code=2).output)
    assert "run.sqlite is no export of Nsight Systems" in output
    assert said in output


# --- CSVs ---


def csv_of(steps: list[Timeline], path: Path, *, columns: str = "rank,kind,stage,microbatch,start,end") -> None:
    schedule = steps[0].schedule
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns.split(","), extrasaction="ignore")
        writer.writeheader()
        offset = 0.0
        for number, step in enumerate(steps):
            for entry, (op, stage, microbatch) in enumerate(schedule):
                writer.writerow({"rank": schedule.rank[entry], "kind": op.name, "stage": stage, "microbatch": microbatch,
                                 "start": offset + step.start[entry], "end": offset + step.end[entry], "step": number})  # fmt: skip
            offset += step.step_time_s + 0.5


@pytest.mark.parametrize(
    "columns",
    ["rank,kind,stage,microbatch,start,end", "rank,kind,start,end", "step,rank,kind,microbatch,start,end"],
)
def test_a_csv_of_passes_comes_back(folder: Path, columns: str) -> None:
    step = timeline_of("1f1b")
    csv_of([step] * 3, folder / "passes.csv", columns=columns)
    run = public.read("passes.csv")
    assert run.timeline.schedule == step.schedule
    assert run.timeline.start[: step.num_actions] == pytest.approx(step.start[: step.num_actions] - step.begin_s)
    assert run.measured.run.gaps_s == pytest.approx([0.5])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rank,kind,start\n0,F,1\n", "is not a recording that ppsim can read"),
        ("rank,kind,start,end\n", "has no passes below its header"),
        ("rank,kind,start,end\n0,X,1,2\n", "line 2: kind 'X' is none of f, fwd"),
        ("rank,kind,start,end\n-1,F,1,2\n", "line 2: rank must be a whole number from 0 on: got '-1'"),
        ("rank,kind,start,end\n1000000,F,1,2\n", "line 2: rank must be a whole number from 0 on: got '1000000'"),
        ("rank,kind,start,end\n0,F,2,1\n", "end not before start: got 2.0 and 1.0"),
        ("rank,kind,start,end\n0,F,a,1\n", "start and end must be numbers: got 'a' and '1'"),
        ("rank,kind,start,end\n0,F," + "9" * 200_000 + ",1\n", "line 2 is no line of a CSV: field larger"),
        ("rank,kind,start,end\n0,F,0,1\n0,F,2,3\n0,B,3,4\n", "has 1 forwards more than backwards"),
        (
            "rank,kind,start_ms,end_ms\n0,F,0,2\n0,B,1.5,3\n",
            "rank 0 has two passes at once, F from 0 s to 0.002 s and B from 0.0015 s: a rank runs one after the other",
        ),
    ],
)
def test_a_csv_that_is_wrong_is_refused_with_its_line(folder: Path, text: str, words: str) -> None:
    (folder / "passes.csv").write_text(text)
    assert words in words_of(ppsim("read", "passes.csv", code=2).output)


def test_passes_of_a_csv_that_rounding_lays_over_each_other_are_one_behind_the_other(folder: Path) -> None:
    rows = [f"0,F,{at},{at + 1}\n0,B,{at + 0.9995},{at + 3}\n" for at in (0, 4, 8)]
    (folder / "passes.csv").write_text("rank,kind,start,end\n" + "".join(rows))
    assert public.read("passes.csv").timeline.bubble_ratio == pytest.approx(0, abs=1e-12)


# --- logs ---

LOG = """
using world size: 64, data-parallel size: 8
 [2025-08-01 07:19:37] iteration        1/    5000 | consumed samples:          128 | elapsed time per iteration (ms): 19138.8 | throughput per GPU (TFLOP/s/GPU): 80.2 | global batch size:   128 |
(min, max) time across ranks (ms):
    forward-backward ...............................: (18001.00, 18001.50)
[Rank 0] (after 1 iterations) memory (MB) | allocated: 10770.38 | max allocated: 15754.89 | reserved: 16334.0 | max reserved: 16334.0
\x1b[32m[rank-63]\x1b[0m iteration        2/    5000 | consumed samples:          256 | elapsed time per iteration (ms): 5100.0/5100.0 |
(min, max) time across ranks (ms):
    forward-backward ...............................: (4000.00, 4400.00)
    forward-recv ...................................: (1.00, 900.00)
 iteration        3/    5000 | elapsed time per iteration (ms): 5300.0 |
(min, max) time across ranks (ms):
    forward-backward ...............................: (4100.00, 4600.00)
"""


def test_timers_of_all_ranks_are_one_window_each_if_rank_0_lacks_them(folder: Path) -> None:
    """--timing-log-option all: the first stage receives no forwards, and rank 0 has no line below the heading."""
    window = "  forward-recv:\n     rank  2: {}.00\n     rank  3: {}.00\n"
    lines = [
        f" iteration {number}/ 9 | elapsed time per iteration (ms): 1000.0 |\n{window.format(low, high)}"
        for number, (low, high) in enumerate([(500, 507), (102, 107), (104, 109)])
    ]
    (folder / "train.log").write_text("".join(lines))
    found = json.loads(ppsim("read", "train.log", "--json").stdout)
    assert found["timers_s"]["forward-recv"] == pytest.approx([0.103, 0.108])


def test_a_log_of_the_most_has_no_least(folder: Path) -> None:
    line = " iteration 1/ 9 | elapsed time per iteration (ms): 1000.0 |\n    forward-recv .....: 107.00\n"
    (folder / "train.log").write_text(2 * line)
    found = json.loads(ppsim("read", "train.log", "--json").stdout)
    assert found["timers_s"]["forward-recv"] == [None, pytest.approx(0.107)]
    assert "not logged" in words_of(ppsim("read", "train.log").stdout)


def test_a_log_that_a_restart_continued_is_two_runs_and_the_last_counts(folder: Path) -> None:
    lines = [
        f" iteration {number:8}/ 90 | elapsed time per iteration (ms): {ms:.1f} |"
        for number, ms in ((7, 900), (8, 910), (9, 920), (8, 1000), (9, 1010), (10, 1020))
    ]
    (folder / "train.log").write_text("\n".join(lines))
    found = json.loads(ppsim("read", "train.log", "--json").stdout)
    assert (found["iterations_s"], found["num_restarts"]) == ([1.01, 1.02], 1)
    assert "1: the iteration number goes back; only the last run is shown" in words_of(
        ppsim("read", "train.log").stdout
    )


def test_an_iteration_that_a_file_of_a_dump_lacks_is_left_out(folder: Path) -> None:
    shutil.copytree(DUMP, folder / "dump")
    numbers = list(json.loads((folder / "dump" / "pp_rank_3.json").read_text()))
    edit(
        folder / "dump" / "pp_rank_3.json", lambda found: {one: found[one] for one in numbers if one != numbers[4]}
    )
    whole, without = (
        json.loads(ppsim("read", one, "--json").stdout)["run"]["step_times_s"] for one in (DUMP, "dump")
    )
    assert without == whole[:3] + whole[4:], "the first step is warm-up"


def test_timers_of_old_versions_are_in_one_line(folder: Path) -> None:
    lines = [
        f" iteration {number}/ 90 | elapsed time per iteration (ms): 900.0 |\n"
        f" time (ms) | forward-compute: {100 + number:.2f} | backward-compute: 200.50 | optimizer: 30.00"
        for number in range(1, 4)
    ]
    (folder / "train.log").write_text("\n".join(lines))
    found = json.loads(ppsim("read", "train.log", "--json").stdout)["timers_s"]
    assert {name: most for name, (_, most) in found.items()} == pytest.approx(
        {"forward-compute": 0.1025, "backward-compute": 0.2005, "optimizer": 0.03}
    )


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("run.wandb", b":W&B\xbe\x8d\x00", "a file of Weights & Biases"),
        ("events.out.tfevents.1790.host.0", b"\x18\x00\x00\x00\x00", "an event file of TensorBoard"),
        ("nccl_trace_rank_0", pickle.dumps({"entries": []}), "a pickle, such as a dump of torch's flight recorder"),
        ("et.json", b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}', "an execution trace"),
    ],
)
def test_a_file_without_passes_is_refused_with_what_to_record(
    folder: Path, name: str, content: bytes, kind: str
) -> None:
    (folder / name).write_bytes(content)
    text = words_of(ppsim("read", name, code=2).output)
    assert f"{name} is {kind}" in text
    assert "record with torch.profiler (activities CPU and CUDA" in text


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (1e5, "a step takes 400000 s: are these milliseconds? Name the columns start_ms and end_ms"),
        (1e-7, "a pass takes 200 ns: are these seconds? Name the columns start_s and end_s"),
        (1.0, ""),
    ],
)
def test_times_of_an_impossible_unit_are_refused(folder: Path, scale: float, words: str) -> None:
    rows = [(0, "F", 0, 1), (0, "B", 1, 3), (0, "F", 4, 5), (0, "B", 5, 8)]
    lines = [f"{rank},{kind},{begin * scale},{end * scale}" for rank, kind, begin, end in rows]
    (folder / "passes.csv").write_text("\n".join(["rank,kind,start,end", *lines]))
    output = words_of(ppsim("read", "passes.csv", code=2 if words else 0).output)
    assert words in output


def test_a_log_has_totals(folder: Path) -> None:
    (folder / "train.log").write_text(LOG)
    found = json.loads(ppsim("read", "train.log", "-o", "totals.json", "--json").stdout)
    assert found == json.loads((folder / "totals.json").read_text())
    assert found["iterations_s"] == [5.1, 5.3]
    assert found["iteration_time_s"] == pytest.approx(5.2)
    assert found["timers_s"]["forward-backward"] == pytest.approx([4.05, 4.5])
    assert found["timers_s"]["forward-recv"] == [0.001, 0.9]
    assert found["memory_bytes"]["max allocated"] == pytest.approx(15754.89 * 2**20)
    assert "5.20 s, the median of 2 logged" in words_of(ppsim("read", "train.log").stdout)
    assert "has totals and no timeline" in words_of(ppsim("compare", "train.log", code=2).output)
    assert "no iteration left after 3 of warm-up" in words_of(
        ppsim("read", "train.log", "--warm-up", 3, code=2).output
    )


# --- which schedule it was ---


# --- what cannot be read ---


def test_two_recordings_that_are_not_one_run_are_refused(folder: Path) -> None:
    written(traces_of([timeline_of("1f1b")] * 2, gap_s=0.03, cuda=True), folder / "traces")
    (folder / "train.log").write_text(LOG)
    message = words_of(ppsim("read", "traces/rank0.json", "train.log", code=2).output)
    assert "are no ranks of one run" in message
    assert "found: log, trace" in message


def test_two_replicas_are_refused_as_one_pipeline(folder: Path) -> None:
    """Eight ranks of two pipelines, whose names tell no stage."""
    traces = [trace for _ in range(2) for trace in traces_of([timeline_of("1f1b")] * 2, gap_s=0.03, cuda=True)]
    for rank, trace in enumerate(renamed(traces, NAMES["DeepSpeed"])):
        trace["distributedInfo"]["rank"] = rank
    written(traces, folder / "traces")
    message = words_of(ppsim("read", "traces", code=2).output)
    assert "these ranks' passes make no one pipeline" in message
    assert "give the recordings of one replica" in message


def test_several_stages_that_nobody_tells_ask_for_the_table(folder: Path) -> None:
    """Interleaved, by names that tell only forward and backward: with the table each pass is known."""
    step = timeline_of("interleaved-1f1b")
    written(renamed(traces_of([step] * 2, gap_s=0.03, cuda=True), NAMES["DeepSpeed"]), folder / "traces")
    assert "stages assumed: one per rank" in words_of(ppsim("read", "traces").stdout)
    ppsim("build", "interleaved-1f1b", "--pp", 4, "--num-microbatches", 8, "-o", "T.csv")
    run = public.read("traces", schedule="T.csv")
    assert run.facts["stages_by"] == "table"
    assert run.timeline.schedule == step.schedule
    actions = step.num_actions
    assert run.timeline.start[:actions] == pytest.approx(step.start[:actions] - step.begin_s, abs=2e-6)


def test_traces_of_two_runs_are_refused(folder: Path) -> None:
    """Of the same shape, but not the same run: no clock explains how their messages met."""
    one = traces_of([timeline_of("1f1b")] * 3, gap_s=0.03, cuda=True)
    other = traces_of([rescaled(timeline_of("1f1b"), 1.7)] * 3, gap_s=0.03, cuda=True)
    for trace in other:
        trace["host_name"] = "other"
    written([*one[:2], *other[2:]], folder / "traces")
    assert "cannot be aligned" in words_of(ppsim("read", "traces", code=2).output)


def test_a_bomb_is_refused_before_it_fills_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A string without end, and more than a trace can be: neither is unpacked to its end."""
    monkeypatch.setattr("ppsim.runs.readers.stream.LONGEST", 2**20)
    (folder / "long.json.gz").write_bytes(gzip.compress(b'{"traceEvents": ["' + b"x" * 2**25))
    assert "a value is longer than 1 MiB" in words_of(ppsim("read", "long.json.gz", code=2).output)
    monkeypatch.setattr("ppsim.runs.readers.stream.LEAST_UNPACKED", 2**22)
    (folder / "wide.json.gz").write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 2**24))
    assert "unpacks to more than" in words_of(ppsim("read", "wide.json.gz", code=2).output)


def test_a_packed_file_may_unpack_to_the_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppsim.runs.readers.stream.LEAST_UNPACKED", 1000)
    monkeypatch.setattr("ppsim.runs.readers.stream.MOST_UNPACKED", 1)
    for number, is_allowed in ((1000, True), (1001, False)):
        Path("a.gz").write_bytes(gzip.compress(b" " * number))
        with nullcontext() if is_allowed else pytest.raises(ConfigError), opened("a.gz") as file:
            assert len(file.read()) == number
    monkeypatch.setattr("ppsim.runs.readers.recording.MOST_KEPT", 100)
    written(traces_of([timeline_of("1f1b")] * 2, gap_s=0.03, cuda=True), folder / "traces")
    assert "profile fewer steps" in words_of(ppsim("read", "traces", code=2).output)


def event(**told: Any) -> str:
    """A trace of one event: a pass, but for what is told of it."""
    return json.dumps({"traceEvents": [{"ph": "X", "cat": "user_annotation", "name": "PP:0F0", "ts": 1.0} | told]})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"traceEvents": []}', "it has no named range at all"),
        ('{"traceEvents": [1]}', "is no trace of torch.profiler: an entry is not as its format says"),
        ('{"traceEvents": [{"ph": "X", "ts": 0}]}', "is no trace of torch.profiler: an entry lacks 'name'"),
        (event(ts="x"), "an entry is not as its format says (unsupported operand"),
        (event(ts=float("nan")), "an entry is not as its format says (PP:0F0 is from nan to nan s)"),
        (event(dur=-5), "the range PP:0F0 is from 1e-06 to -4e-06 s: it must end, and not before it begins"),
        (event(cat="kernel", args={"correlation": "abc"}), "(invalid literal for int() with base 10: 'abc')"),
    ],
)
def test_a_trace_of_odd_events_is_refused_with_what_is_odd(folder: Path, text: str, words: str) -> None:
    (folder / "trace.json").write_text(text)
    assert words in words_of(ppsim("read", "trace.json", code=2).output)


def test_logs_and_csvs_are_read_packed_too(folder: Path) -> None:
    csv_of([timeline_of("1f1b")] * 2, folder / "passes.csv")
    (folder / "train.log").write_text("an argument\n" * 10_000 + LOG)
    for name in ("passes.csv", "train.log"):
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
        plain, packed = (ppsim("read", one, "--json").stdout for one in (name, f"{name}.gz"))
        assert packed.replace(".gz", "") == plain


def test_a_file_of_passes_that_end_before_they_start_is_refused(folder: Path) -> None:
    ppsim("read", DUMP, "-o", "run.json")
    edit(folder / "run.json", lambda found: found | {"steps": found["steps"] | {"end_s": found["steps"]["start_s"], "start_s": found["steps"]["end_s"]}})  # fmt: skip
    assert "steps.end_s[0][0] is before the start" in words_of(ppsim("explain", "run.json", code=2).output)


def test_no_output_replaces_a_file_of_the_run(folder: Path) -> None:
    shutil.copytree(DUMP, folder / "dump")
    assert "this command reads it" in words_of(ppsim("read", "dump", "-o", "dump/config.json", code=2).output)


def test_a_csv_says_its_unit_in_the_names_of_its_columns_and_is_asked_for_it(folder: Path) -> None:
    """The same passes in milliseconds: without the unit they are hours, which `read` says."""
    rows = [(0, "F", 0.0, 0.02), (1, "F", 0.02, 0.04), (1, "B", 0.04, 0.08), (0, "B", 0.08, 0.12)]
    for name, unit, factor in (
        ("s.csv", "", 1.0),
        ("ms.csv", "_ms", 1e3),
        ("us.csv", "_us", 1e6),
        ("wrong.csv", "", 1e3),
    ):
        lines = [
            f"{rank},{kind},{(begin + late) * factor},{(end + late) * factor}"
            for late in (0.0, 0.2, 0.4)
            for rank, kind, begin, end in rows
        ]
        Path(name).write_text("\n".join([f"rank,kind,start{unit},end{unit}", *lines]))
    steps = [public.read(name).timeline.step_time_s for name in ("s.csv", "ms.csv", "us.csv")]
    assert steps == pytest.approx([0.12] * 3)
    assert "name columns in ms start_ms and end_ms" in words_of(ppsim("read", "wrong.csv").stdout)
    assert "units" not in ppsim("read", "ms.csv").stdout


@pytest.mark.parametrize("trace", ["a100_ddp", "v100_resnet", "sendrecv"])
def test_the_pattern_that_a_refusal_gives_reads_the_trace(trace: str) -> None:
    """Of ranges ## forward ## and ## backward ##, in HTA's traces."""
    path = DATA / "kineto" / f"{trace}.json.gz"
    with pytest.raises(ConfigError, match="ppsim read --pattern") as refused:
        public.read(path)
    pattern = str(refused.value).split("--pattern '")[1].split("'")[0]
    assert public.read(path, pattern=pattern).timeline.step_time_s > 0.05


@pytest.mark.parametrize("late_s", [0.0, 0.01, -0.01])
def test_a_rank_whose_clock_is_off_is_aligned_by_its_messages(folder: Path, late_s: float) -> None:
    """Passes of 20 and 40 ms; rank 1's clock is 10 ms early or late, and no row names a clock."""
    table = build("1f1b", pp=3, microbatches=6)
    step = simulate(table, StageCosts(forward_s=0.02, backward_s=0.04, transfer_s=3e-4))
    rows = ["rank,kind,stage,microbatch,start,end"]
    for number in range(3):
        for entry, action in enumerate(table):
            shift = 0.6 * number + late_s * (table.rank[entry] == 1)
            times = f"{step.start[entry] + shift},{step.end[entry] + shift}"
            rows.append(f"{table.rank[entry]},{action.op.name},{action.stage},{action.microbatch},{times}")
    (folder / "passes.csv").write_text("\n".join(rows))
    run = public.read("passes.csv")
    assert run.step_times_s == pytest.approx([step.step_time_s] * 2, abs=1e-3)
    assert (run.facts["clocks"] is None) == (late_s == 0.0)


@pytest.mark.parametrize(("ppm", "num_hosts"), [(1.0, 2), (-1.0, 2), (50.0, 2), (50.0, 4), (0.0, 2)])
def test_a_host_whose_clock_is_fast_is_aligned_over_the_whole_run(folder: Path, ppm: float, num_hosts: int) -> None:
    """Thirty steps in 45 minutes; messages take 0.1 to 0.5 ms. 1 ppm are 2.7 ms, which no constant offset explains."""
    table, dice = build("1f1b", pp=4, microbatches=6), np.random.default_rng(1)
    rows, starts = ["rank,kind,stage,microbatch,start,end,clock"], []
    for number in range(30):
        step = simulate(table, StageCosts(forward_s=0.02, backward_s=0.04, transfer_s=dice.uniform(1e-4, 5e-4)))
        starts.append(step.start[: len(table)] + 93.0 * number)
        for entry, (op, stage, microbatch) in enumerate(table):
            host = stage * num_hosts // 4
            begin, end = (
                float((time[entry] + 93.0 * number) * (1 + host * 1e-6 * ppm) + 5.0 * host)
                for time in (step.start, step.end)
            )
            rows.append(f"{stage},{op.name},{stage},{microbatch},{begin},{end},{host}")
    (folder / "passes.csv").write_text("\n".join(rows))
    found = public.read("passes.csv")
    begins = found.measured.run.start[:, : len(table)]
    assert np.abs(begins - begins[0, 0] - (np.array(starts[1:]) - starts[1][0])).max() < 4e-4
    assert found.facts["clocks"]["drift"] == pytest.approx(1e-6 * abs(ppm) * (num_hosts - 1), rel=0.1)
    assert (
        "ppm between the fastest and the slowest clock" in words_of(ppsim("read", "passes.csv").stdout)
    ) == bool(ppm)


def test_two_runs_with_steps_of_nearly_the_same_length_are_no_drift(folder: Path) -> None:
    table = build("1f1b", pp=2, microbatches=4)
    step, rows = simulate(table, StageCosts(forward_s=0.02, backward_s=0.04, transfer_s=1e-3)), []
    for number in range(20):
        for entry, (op, stage, microbatch) in enumerate(table):
            begin, end = (float(time[entry]) + number * (1 + 3e-4 * stage) for time in (step.start, step.end))
            rows.append(f"{stage},{op.name},{microbatch},{begin},{end},{stage}")
    (folder / "passes.csv").write_text("\n".join(["rank,kind,microbatch,start,end,clock", *rows]))
    assert "cannot be aligned" in words_of(ppsim("read", "passes.csv", code=2).output)


def test_a_csv_may_hold_the_largest_number_of_a_table(folder: Path) -> None:
    Path("passes.csv").write_text("rank,kind,microbatch,start,end\n0,F,999999,0,1\n")
    assert read_rows("passes.csv").traces[0].steps[0][0].cell == Action(Op.F, NONE, 999_999)


def test_traces_without_the_number_of_their_rank_have_no_missing_ranks() -> None:
    traces = [RankTrace(f"{name}.json", None, "host", on_device=False, steps=[], num_ranks=4) for name in "ab"]
    assert missing_ranks_of(traces) == []
