"""torch.profiler's traces are read as what they are of: the host's ranges on a CPU, kernels on a device."""

import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from ppsim import StageCosts, build, simulate
from ppsim.runs.calibrate import calibrate
from ppsim.runs.loss_attribution import attribute_losses
from ppsim.runs.readers.recording import Recording, launch_wait_s
from ppsim.runs.run import Run
from ppsim.runs.timeline_import import run_of
from ppsim.runs.traces import in_rank_order, message_bytes_of, result_of, table_rows_of
from ppsim.schedule.grammar import format_table
from ppsim.schedule.table import Schedule
from ppsim.simulation.timeline import Timeline
from ppsim.trainers.torch import read_trace as trace_module
from ppsim.trainers.torch.read_trace import read_trace, recording_of
from tests.cli.running import ppsim, words_of
from tests.runtime.traces import edited, rescaled, traces_of, written

COSTS = StageCosts(
    forward_s=20e-3, backward_input_s=20e-3, backward_weight_s=14e-3, transfer_s=4e-3, action_overhead_s=1e-3,
    hop_overhead_s=2e-3, channel="edge", overlap_slowdown=0.25,
)  # fmt: skip
GAP_S = 0.03
DATA = Path(__file__).parents[2] / "runs" / "data" / "kineto"


def timeline_of(name: str, *, pp: int = 2, **costs: Any) -> Timeline:
    return simulate(build(name, pp=pp, microbatches=8), COSTS.replace(**costs))


def run_of_traces(traces: list[Any], num_warm_up: int = 1) -> Run:
    with TemporaryDirectory() as folder:
        ranks = in_rank_order([read_trace(file) for file in written(traces, Path(folder))])
    table = Schedule.from_rows(table_rows_of(ranks))
    result = result_of(ranks, num_warm_up=num_warm_up)
    return run_of(result, table, None, source="traces", message_bytes=message_bytes_of(ranks))


@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zbv-fixed", "zb-h1", "dualpipev"])
def test_the_table_and_every_action_come_back_from_a_trace(name: str, cuda: bool) -> None:
    """Fused cells too: forward and backward are told apart by autograd's nodes."""
    timeline = timeline_of(name)
    run = run_of_traces(traces_of([timeline] * 3, gap_s=GAP_S, cuda=cuda))
    assert run.graph.schedule == timeline.schedule
    actions = timeline.num_actions
    first = run.start[:, :actions].min(axis=1, keepdims=True)
    alone = (
        timeline.schedule.fused < 0
    )  # within a fused cell a wait of the host begins when its part before has ended
    for found, expected in ((run.start - first, timeline.start), (run.end - first, timeline.end)):
        expected = expected - timeline.begin_s
        assert found[:, :actions][:, alone] == pytest.approx(np.stack([expected[:actions][alone]] * 2), abs=2e-6)
        assert found[:, :actions] == pytest.approx(np.stack([expected[:actions]] * 2), abs=1.1e-3)
    assert run.gaps_s == pytest.approx([GAP_S], abs=1e-6)
    assert run.knows_transfers == cuda


def test_kernels_of_a_transfer_are_it_from_when_the_second_of_them_runs() -> None:
    """NCCL's receive waits on the device for its sender; the sender's kernel has the size in its arguments."""
    timeline = timeline_of("1f1b")
    run = run_of_traces(traces_of([timeline] * 2, gap_s=GAP_S, cuda=True, message_bytes=2**20))
    first = run.start[0, : timeline.num_actions].min()
    assert run.start[0] - first == pytest.approx(timeline.start - timeline.begin_s, abs=2e-6)
    assert run.end[0] - first == pytest.approx(timeline.end - timeline.begin_s, abs=2e-6)
    assert run.message_bytes == 2**20


@pytest.mark.parametrize("batched", [False, True])
def test_the_size_of_a_message_is_told_by_the_kernel_or_by_the_host(batched: bool) -> None:
    timeline = timeline_of("1f1b")
    traces = traces_of([timeline] * 2, gap_s=GAP_S, cuda=True, message_bytes=2**20, batched=batched)
    kernels = [event for event in traces[0]["traceEvents"] if "nccl" in event["name"].lower()]
    assert [event for event in kernels if "In msg nelems" in event["args"]] == ([] if batched else kernels)
    run = run_of_traces(traces)
    assert run.message_bytes == 2**20
    assert run.knows_transfers


def test_calibration_from_kernels_finds_what_was_put_in() -> None:
    """Of four steps one straggles and the first, of warm-up, takes twice as long."""
    runs = []
    for size in (2**20, 2**24):
        step = timeline_of("1f1b", pp=4, transfer_s=size / 4e9)
        steps = [rescaled(step, 2.0), step, rescaled(step, 3.0), step, step]
        runs.append(run_of_traces(traces_of(steps, gap_s=GAP_S, cuda=True, message_bytes=size)))
    found = calibrate(runs)
    assert found.action.value == pytest.approx(1e-3, rel=0.01)
    assert found.line == pytest.approx((2e-3, 4e9), rel=0.01)
    assert found.slowdown is not None
    assert found.slowdown.value == pytest.approx(0.25, rel=0.03)
    assert found.step is not None
    assert found.step.value == pytest.approx(GAP_S, rel=1e-3)
    assert [residual.error for residual in found.residuals] == pytest.approx([0, 0], abs=0.01)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


TRACES = traces_of([timeline_of("1f1b")] * 3, gap_s=GAP_S, cuda=False)
ON_DEVICE = traces_of([timeline_of("1f1b")] * 3, gap_s=GAP_S, cuda=True)


def test_a_folder_loose_files_and_packed_ones_are_read_alike(folder: Path) -> None:
    written(TRACES, folder / "plain")
    written(TRACES, folder / "packed", packed=True)
    calls = [["plain"], ["packed"], ["plain/rank1.json", "packed/rank0.json.gz"]]
    files = [json.loads(ppsim("calibrate", *paths, "--json").stdout) for paths in calls]
    for file in files:
        file["residuals"][0].pop("source")
    assert files[0] == files[1] == files[2]
    assert files[0]["action_overhead_s"] == pytest.approx(1e-3, rel=1e-2)


def test_the_file_is_taken_by_simulate_project_and_compare(folder: Path) -> None:
    written(ON_DEVICE, folder / "traces")
    (folder / "C.json").write_text(
        '{"forward_s": 0.02, "backward_input_s": 0.02, "backward_weight_s": 0.014, "transfer_s": 0.004}'
    )
    ppsim("calibrate", "traces", "--costs", "C.json", "-o", "overheads.json")
    file = json.loads((folder / "overheads.json").read_text())
    assert file["format"] == "ppsim-calibration/1"
    assert file["overheads"]["overlap_slowdown"] == pytest.approx(0.25, rel=0.05)
    ppsim("build", "1f1b", "--pp", 2, "--num-microbatches", 8, "-o", "T.csv")
    report = json.loads(
        ppsim("simulate", "T.csv", "--costs", "C.json", "--calibration", "overheads.json", "--json").stdout
    )
    assert report["step_time_s"] == pytest.approx(timeline_of("1f1b").step_time_s, rel=0.01)
    assert report["step_overhead_s"] == pytest.approx(GAP_S, rel=1e-3)
    assert report["iteration_time_s"] == report["step_time_s"] + report["step_overhead_s"]
    with_it = json.loads(ppsim("project", "--pp", 4, "--calibration", "overheads.json", "--json").stdout)
    tokens = with_it["tokens_per_s"] * with_it["iteration_time_s"]
    plain = json.loads(ppsim("project", "--pp", 4, "--json").stdout)
    assert tokens == pytest.approx(plain["tokens_per_s"] * plain["step_time_s"])
    text = words_of(ppsim("project", "--pp", 4, "--calibration", "overheads.json", "--full").stdout)
    assert "iteration" in text
    assert "with 30.0 ms between steps" in text
    assert "% longer" in text


def test_costs_are_those_of_a_projection_as_well_and_the_rest_is_overhead(folder: Path) -> None:
    """Passes measured at 20 ms that were projected at 19.6 ms with overheads of their own."""
    written(TRACES, folder / "traces")
    costs = {"forward_s": 0.0196, "backward_input_s": 0.0196, "backward_weight_s": 0.014, "action_overhead_s": 0.5}
    (folder / "C.json").write_text(json.dumps(costs))
    (folder / "T.csv").write_text(format_table(build("1f1b", pp=2, microbatches=8)))
    ppsim("simulate", "T.csv", "--costs", "C.json", "-o", "projected.json")
    by_file, by_projection = (
        json.loads(ppsim("calibrate", "traces", "--costs", name, "--json").stdout)
        for name in ("C.json", "projected.json")
    )
    assert by_file == by_projection
    own = json.loads(ppsim("calibrate", "traces", "--json").stdout)
    assert by_file["action_overhead_s"] == pytest.approx(own["action_overhead_s"] + 0.0004, abs=6e-4)
    assert by_file["action_overhead_s"] > own["action_overhead_s"]
    assert by_file["residuals"][0]["error_without"] < own["residuals"][0]["error_without"]


def is_range(*names: str) -> Any:
    return lambda event: not (event.get("cat") == "user_annotation" and event["name"] in names)


def once(event: Any) -> bool:
    return bool(event["ts"] < 100e6 + 0.9 * timeline_of("1f1b").step_time_s * 1e6) if "ts" in event else True


THIRD = 100e6 + 2.1 * (timeline_of("1f1b").step_time_s + GAP_S) * 1e6

# name: (traces, arguments, words)
REFUSED = {
    "no ranges": (edited(TRACES, 0, lambda event: not event["name"].startswith("PP:")), [], "rank0.json has no range that names a pass of a pipeline"),
    "a range that is no action": ([TRACES[0] | {"traceEvents": [{"ph": "X", "cat": "user_annotation", "name": "PP:F_0", "ts": 1, "dur": 1}]}], [], "the range PP:F_0 names no action"),
    "one rank missing": (TRACES[:1], [], "no trace of the rank with stage 1"),
    "the first rank missing": (TRACES[1:], [], "no trace of the rank with stage 0"),
    "a rank twice": ([TRACES[0], TRACES[0], TRACES[1]], [], "both hold stage 0: two traces of one rank"),
    "one step": (traces_of([timeline_of("1f1b")], gap_s=GAP_S, cuda=False), [], "has one step only"),
    "no step after the warm-up": (TRACES, ["--warm-up", "3"], "has 3 steps: none is left after 3 of warm-up"),
    "a step that is cut off": (edited(TRACES, 1, lambda event: event.get("ts", 0) < THIRD), [], "rank1.json: step 3 lacks 1F"),
    "an action missing": (edited(TRACES, 1, is_range("PP:1B5")), [], "1B5 is missing"),
    "unlike steps": ([TRACES[0], traces_of([timeline_of("1f1b")] * 2, gap_s=GAP_S, cuda=False)[1]], [], "has 2 steps, t/rank0.json has 3: files of two runs"),
    "no kernels on a rank": ([ON_DEVICE[0], TRACES[1]], [], "rank1.json holds no kernels, other ranks' traces do"),
    "no kernels in a range": (edited(ON_DEVICE, 0, lambda event: not (event.get("cat") == "kernel" and event["ts"] < 100e6 + 15e3)), [], "rank0.json: 0F0 launched no kernel"),
    "another table": (TRACES, ["--schedule", "other.csv"], "was recorded with another table than --schedule other"),
    "no trace": ([{"traceEvents": [{"ph": "X"}]}], [], "is no trace of torch.profiler: an entry lacks 'name'"),
    "a start that no clock shows": ([TRACES[0] | {"baseTimeNanoseconds": 10**400}, TRACES[1]], [], "rank0.json: baseTimeNanoseconds must be at most"),
    "an endless range": ([{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": float("inf")}]}], [], "aten::mm is from 1e-06 to inf s"),
    "nothing known": ([{"something": 1}], [], "t/rank0.json are no ranks of one run: several files are traces of torch.profiler"),
    "a negative warm-up": (TRACES, ["--warm-up", "-1"], "--warm-up must not be negative: got -1"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_trace_that_lacks_what_is_needed_is_refused_with_a_sentence(folder: Path, case: str) -> None:
    traces, arguments, words = REFUSED[case]
    (folder / "other.csv").write_text(format_table(build("gpipe", pp=2, microbatches=8)))
    written(traces, folder / "t")
    result = ppsim("calibrate", "t", *arguments, "-o", "o.json", code=2)
    assert words in words_of(result.output)
    assert not (folder / "o.json").exists()


def test_a_file_that_is_cut_off_is_named(folder: Path) -> None:
    (plain,) = written(TRACES[:1], folder / "plain")
    (packed,) = written(TRACES[:1], folder / "packed", packed=True)
    for path in (plain, packed):
        path.write_bytes(path.read_bytes()[:-200])
    assert "plain/rank0.json is not valid JSON: character" in ppsim("calibrate", "plain/rank0.json", code=2).output
    assert "packed/rank0.json.gz is cut off" in ppsim("calibrate", "packed", code=2).output
    packed.write_bytes(b"not gzip")
    assert "cannot read packed/rank0.json.gz" in ppsim("calibrate", "packed", code=2).output
    (folder / "empty").mkdir()
    assert "empty holds no .json, .json.gz, .jsonl or .sqlite file" in ppsim("calibrate", "empty", code=2).output


def test_passes_on_an_h100_are_those_of_the_kernels_that_they_launched() -> None:
    """Recorded by scripts/gpu_probe.py: F, I and W of a layer. Here found by each launch's correlation."""
    path = DATA / "h100_f_i_w.json.gz"
    events = [one for one in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if "cat" in one]
    kernels = {
        one["args"]["correlation"]: one for one in events if one["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
    }
    read = read_trace(path)
    assert read.on_device
    record = result_of([read], num_warm_up=1)["steps"][-1][0]["records"]
    assert [line["name"] for line in record] == ["0F0", "0I0", "0W0"]
    for line in record:
        whole = [one for one in events if one["name"] == f"PP:{line['name']}" and one["cat"] == "user_annotation"][
            -1
        ]
        launched = [
            kernels[one["args"]["correlation"]]
            for one in events
            if one["cat"] in ("cuda_runtime", "cuda_driver")
            and whole["ts"] <= one["ts"] <= whole["ts"] + whole["dur"]
            and one["args"].get("correlation") in kernels
        ]
        begin, end = min(one["ts"] for one in launched), max(one["ts"] + one["dur"] for one in launched)
        assert len(launched) >= 5
        assert line["end"] - line["calls"][0] == pytest.approx((end - begin) / 1e6, rel=0.02), line["name"]


def test_the_device_waits_for_launches_where_holistic_trace_analysis_says_so() -> None:
    """Its version 0.5.0 gives 2,615,830 µs for this trace, of host wait on stream 7, which has whole microseconds."""
    recording = recording_of(DATA / "h100_f_i_w.json.gz")
    work = [(launched, one) for launched, number in recording.launches for one in recording.device.get(number, ())]
    assert launch_wait_s(work) == pytest.approx(2.615830, rel=0.005)


def test_time_in_which_the_device_waits_for_launches_is_a_cause_of_its_own(tmp_path: Path) -> None:
    """Times in ms; a pass of 10 ms has an all-reduce from 4 to 4.5, and no kernel until 5.5, launched at 5."""
    events, number = [], 0
    for begin, name in (
        (25 * step + 10 * place, f"PP:0{op}0") for step in range(3) for place, op in enumerate("FB")
    ):
        launches = [
            ("gemm", 0, 0, 4),
            ("nccl_all_reduce", 0.1, 4, 4.5),
            ("gemm", 5, 5.5, 9.5),
            ("gemm", 5.1, 9.5, 10),
        ]
        events.append(("user_annotation", name, begin, begin + 9.9, {}))
        for kernel, launched, start, end in launches:
            number += 1
            found = {"correlation": number}
            events.append(("cuda_runtime", "cudaLaunchKernel", begin + launched, begin + launched, found))
            events.append(("kernel", kernel, begin + start, begin + end, found))
    trace = {
        "traceEvents": [
            {"ph": "X", "cat": kind, "name": name, "ts": 1e3 * begin, "dur": 1e3 * (end - begin), "args": args}
            for kind, name, begin, end, args in events
        ]
    }
    run = run_of_traces([trace])
    assert run.launch_wait_s == pytest.approx(np.full((2, 2), 1e-3))
    causes = {loss.cause: loss for loss in attribute_losses(run).losses}
    assert causes["kernel launches"].seconds == pytest.approx(2e-3)
    assert causes["kernel launches"].gain_s == pytest.approx(2e-3)
    assert causes["kernel launches"].detail == "device idle: 10.00 % of F, 10.00 % of B"
    assert causes["compute"].seconds == pytest.approx(18e-3)


@pytest.mark.parametrize("cuda", [False, True])
def test_the_rank_that_comes_late_to_the_collective_between_steps_is_known(cuda: bool) -> None:
    """Every rank is in an all-reduce 1 ms after its last pass, rank 1 after 20 ms."""
    timeline = timeline_of("1f1b", pp=4)
    traces = traces_of([timeline] * 4, gap_s=GAP_S, cuda=cuda)
    name, kind = ("ncclDevKernel_AllReduce_Sum_f32", "kernel") if cuda else ("gloo:all_reduce", "user_annotation")
    last = (timeline.end - timeline.begin_s)[: timeline.num_actions]
    for rank, trace in enumerate(traces):
        for step in range(4):
            end = 1e8 + 1e6 * (step * (timeline.step_time_s + GAP_S) + last[timeline.schedule.rank == rank].max())
            late = 20e3 if rank == 1 else 1e3
            args = {"correlation": 10**6 + step, "stream": 9}
            trace["traceEvents"].append(
                {
                    "ph": "X",
                    "cat": kind,
                    "name": name,
                    "ts": end + late,
                    "dur": 5.0,
                    "pid": 1,
                    "tid": 9,
                    "args": args,
                }
            )
    run = run_of_traces(traces)
    assert np.array(run.to_collective_s) == pytest.approx(np.array([[0.001, 0.02, 0.001, 0.001]] * 2), abs=2e-4)
    between = next(loss for loss in attribute_losses(run).losses if loss.cause == "time between steps")
    assert between.detail.startswith("rank 1 starts its first collective 20.0 ms after its last pass")


def test_elements_of_messages_have_these_bytes() -> None:
    sizes = {
        "float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2, "int": 4, "long": 8,
        "byte": 1, "char": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    }  # fmt: skip
    assert sizes == trace_module._ELEMENT_BYTES
    assert trace_module._CHECKED == 65536


def event(kind: str, name: str, begin_us: float, duration_us: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "ts": begin_us, "dur": duration_us, "args": args}


def recorded(folder: Path, *events: dict[str, Any], **header: Any) -> Recording:
    path = folder / "trace.json"
    path.write_text(json.dumps({**header, "traceEvents": list(events)}))
    return recording_of(path)


HOST = [
    event("cpu_op", "aten::mm", 10, 5),
    event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 20, 7),
    event("cpu_op", "record_param_comms", 30, 1, **{"Collective name": "send", "In msg nelems": 6, "dtype": "BFloat16"}),
    event("cpu_op", "record_param_comms", 32, 1, **{"Collective name": "recv", "In msg nelems": 6, "dtype": "BFloat16"}),
    event("cpu_op", "other", 34, 1, **{"Collective name": "send", "In msg nelems": 6, "dtype": "BFloat16"}),
    event("user_annotation", "nccl:all_reduce", 40, 3),
    event("user_annotation", "ProfilerStep#4", 50, 9),
    {"ph": "i", "cat": "cpu_op", "name": "aten::mm", "ts": 99, "dur": 5},
]  # fmt: skip


def test_every_event_of_a_host_is_kept_as_its_kind(tmp_path: Path) -> None:
    found = recorded(
        tmp_path, *HOST, baseTimeNanoseconds=77, host_name="node3", distributedInfo={"rank": 2, "world_size": 8}
    )
    assert (found.base_ns, found.host, found.rank, found.num_ranks) == (77, "node3", 2, 8)
    times = [[round(1e6 * time) for time in row] for row in (*found.operators, *found.nodes)]
    assert times == [[10, 15], [30, 31], [32, 33], [34, 35], [20, 27]]
    assert [(round(1e6 * begin), size) for begin, size in found.messages] == [(30, 12.0)]
    assert found.collectives == pytest.approx([40e-6])
    assert [(round(1e6 * begin), round(1e6 * end), step) for begin, end, step in found.steps] == [(50, 59, 4)]
    assert (found.launches, found.device, found.waits) == ([], {}, [])


def test_a_trace_without_a_rank_has_none(tmp_path: Path) -> None:
    found = recorded(tmp_path, *HOST, distributedInfo={"rank": "2"}, other={"rank": 5})
    assert (found.rank, found.num_ranks, found.host, found.base_ns) == (None, None, "", 0)
    found = recorded(tmp_path, *HOST, distributedInfo=[1, 2])
    assert (found.rank, found.num_ranks) == (None, None)


def kernel(number: int, begin_us: float, name: str, **args: Any) -> dict[str, Any]:
    return event("kernel", name, begin_us, 4, correlation=number, **args)


def sized(count: Any, ranks: Any, dtype: str = "Float", side: str = "In") -> dict[str, Any]:
    return {f"{side} msg nelems": count, "dtype": dtype, "Group size": ranks}


def test_work_on_a_device_replaces_the_operators_and_collectives_of_the_host(tmp_path: Path) -> None:
    reduce, gather = "ncclDevKernel_AllReduce_Sum_f32", "ncclDevKernel_AllGather_RING"
    found = recorded(
        tmp_path,
        *HOST,
        event("cuda_runtime", "cudaLaunchKernel", 100, 1, correlation=3),
        event("cuda_runtime", "cudaDeviceSynchronize", 101, 1),
        kernel(3, 110, "gemm"),
        *HOST,
        kernel(4, 120, reduce, **sized(5, 2)),
        kernel(5, 130, gather, **sized(7, 4, side="Out")),
        kernel(6, 140, reduce, **sized(5, 1)),
        kernel(7, 150, reduce, **sized(5, "2")),
        kernel(8, 160, reduce, **sized(0, 2)),
        kernel(9, 170, reduce, **sized(5, 2, dtype="strange")),
        kernel(10, 180, "ncclDevKernel_SendRecv", **sized(5, 2)),
        event("kernel", "gemm", 190, 4),
    )
    assert found.operators == []
    assert [round(1e6 * begin) for begin in found.collectives] == [120, 130, 140, 150, 160, 170]
    assert [(round(1e6 * begin), number) for begin, number in found.launches] == [(100, 3)]
    assert sorted(found.device) == [3, 4, 5, 6, 7, 8, 9, 10]
    work = found.device[10][0]
    assert (round(1e6 * work.begin), round(1e6 * work.end), work.message_bytes) == (180, 184, 20.0)
    messages = [(kind, size, ranks, round(1e6 * seconds)) for kind, size, ranks, seconds in found.kernels.messages]
    assert messages == [("all-reduce", 20.0, 2, 4), ("all-gather", 28.0, 4, 4)]
    assert len(found.nodes) == 2


def test_room_is_asked_for_while_a_trace_is_read_and_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Recording, "require_room", lambda self, fewer: asked.append(fewer))
    monkeypatch.setattr(trace_module, "_CHECKED", 3)
    recorded(tmp_path, *HOST)
    assert asked == ["torch.profiler.schedule(active=3)"] * 4  # entries 0, 3 and 6 of 8
