"""Formats of recordings by their content, and doubts about what they hold."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ppsim
from ppsim.api import read as reading
from ppsim.errors import ConfigError
from ppsim.runs.run import Run
from ppsim.runs.timeline_file import FORMAT
from ppsim.schedule.table import NONE, Op

LOG = " [2026-01-01 00:00:00] iteration       10/      20 | elapsed time per iteration (ms): 2000.0 |\n"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"SQLite format 3\x00rest", "sqlite"),
        (b'{"traceEvents": []}', "trace"),
        (b'\xef\xbb\xbf  {"other": 1, "traceEvents": []}', "trace"),
        (b'{"resourceSpans": []}', "spans"),
        (b'{"context": {"span_id": "1"}}', "spans"),
        (b'{"context": {"trace_id": "1"}}', "other"),
        (b'{"context": "span_id"}', "other"),
        (json.dumps({"format": FORMAT}).encode(), "timeline"),
        (b'{"format": "x"}', "other"),
        (b'{"0": {"fwd_start": [1]}}', "dump"),
        (b'{"0": ["fwd_start"]}', "other"),
        (b'{"schema": 3}', "other"),
        (b"rank,kind,start,end\n0,F,0,1\n", "csv"),
        (LOG.encode(), "log"),
        (b"arguments ...\n" * 10_000 + LOG.encode(), "log"),
    ],
)
def test_a_format_is_told_by_the_content(content: bytes, kind: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert reading.file_format(file) == kind


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("run.wandb", b":W&B\x00", "is a file of Weights & Biases, which has no passes"),
        (
            "trace_rank_0",
            b"\x80\x02}",
            "is a pickle, such as a dump of torch's flight recorder, which has no passes",
        ),
        ("trace_rank_1", b"\x80\x05}", "is a pickle, such as a dump"),
        ("events.out.tfevents.1", b"x", "is an event file of TensorBoard, which has no passes"),
        ("et.json", b'{"schema": "1.1.0"}', "is an execution trace .of torch's ExecutionTraceObserver"),
        ("notes.txt", b"nothing\n", "is not a recording that ppsim can read. It reads timelines of ppsim"),
        ("binary", b"\x00" * 70_000 + LOG.encode(), "is not a recording"),
        ("latin", b"\xff\xfe" * 40_000 + LOG.encode(), "is not a recording"),
    ],
)
def test_other_files_are_refused_with_what_they_are(
    name: str, content: bytes, sentence: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=sentence):
        reading.file_format(file)


def test_a_folder_has_its_recordings_in_order_and_all_its_files_are_inputs(tmp_path: Path) -> None:
    suffixes = (".json", ".json.gz", ".jsonl", ".jsonl.gz", ".sqlite")
    names = [f"{letter}{suffix}" for letter, suffix in zip("edcba", suffixes, strict=True)]
    for name in (*names, "notes.txt"):
        (tmp_path / name).touch()
    assert reading.files_of(tmp_path) == [str(tmp_path / name) for name in sorted(names)]
    assert sorted(reading.inputs_of(tmp_path)) == [str(tmp_path / name) for name in sorted((*names, "notes.txt"))]
    assert reading.files_of(tmp_path / "notes.txt") == reading.inputs_of(tmp_path / "notes.txt")
    assert reading.files_of("no-such.json") == ["no-such.json"]


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (["b.nsys-rep", "a.nsys-rep"], "file; export a.nsys-rep with nsys export --type sqlite"),
        (["run.log"], "file; give a CSV or a log as a file"),
    ],
)
def test_a_folder_without_a_recording_has_a_hint(names: list[str], hint: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=f"holds no .json, .json.gz, .jsonl or .sqlite {hint}"):
        reading.files_of(tmp_path)


def test_files_of_several_kinds_are_no_run(tmp_path: Path) -> None:
    passes, other, rank = (tmp_path / name for name in ("a.csv", "b.csv", "c.json"))
    for file in (passes, other):
        file.write_text("rank,kind,start,end\n0,F,0,1\n")
    rank.write_text('{"0": {"fwd_start": [1]}}')
    for files, kinds in (((passes, other), "csv"), ((passes, rank), "csv, dump")):
        with pytest.raises(ConfigError, match=rf"are no ranks of one run: .* \(found: {kinds}\); give a folder"):
            reading.open_run(*files)
    with pytest.raises(ConfigError, match=f"{rank} is one rank of a dump: give the folder"):
        reading.read_recordings([rank], ())
    sentence = reading._why_not_together([f"{number}.csv" for number in range(6)], {"csv"})
    assert sentence.startswith("0.csv, 1.csv, 2.csv, 3.csv are no ranks of one run")


def test_a_run_needs_a_file_and_a_warm_up_that_is_not_negative() -> None:
    with pytest.raises(ConfigError, match="--warm-up must not be negative: got -1"):
        reading.open_run("a.csv", warm_up=-1)
    with pytest.raises(ConfigError, match="there must be at least one measured run"):
        reading.open_run()


@pytest.mark.parametrize(
    ("content", "is_one"),
    [
        ([1, 2.5], True),
        ([], False),
        ([1, True], False),
        (["1"], False),
        ((1, 2), False),
        (None, False),
        ({}, False),
    ],
)
def test_numbers_of_a_file_are_a_list_that_has_some(content: Any, is_one: bool) -> None:
    assert reading._are_numbers(content) is is_one


def test_an_alignment_of_clocks_has_numbers_only() -> None:
    assert reading._is_alignment({"hop_s": 0.5, "num_clocks": 2, "more": "text"})
    assert not reading._is_alignment({"hop_s": "0.5"})
    assert not reading._is_alignment([0.5])


def run_of(**fields: Any) -> Any:
    """One rank of two steps with a forward and a backward."""
    given = {
        "start": np.zeros((2, 3)), "end": np.array([[1.0, 3.0, 9e9], [1.0, 3.0, 9e9]]), "source": "a.csv",
        "step_times_s": np.array([4.0, 6.0]), "graph": SimpleNamespace(num_actions=2),
    }  # fmt: skip
    return SimpleNamespace(**given | fields)


def test_times_of_another_unit_are_refused() -> None:
    reading._require_seconds(run_of())
    reading._require_seconds(run_of(step_times_s=np.array([1000.0])))
    with pytest.raises(ConfigError, match=r"a step takes .*: are these milliseconds"):
        reading._require_seconds(run_of(step_times_s=np.array([1001.0])))
    times = np.array([[1e-6, 1e-6, 1.0]])
    reading._require_seconds(run_of(start=np.zeros((1, 3)), end=times))
    reading._require_seconds(run_of(start=np.zeros((1, 3)), end=0 * times))
    with pytest.raises(ConfigError, match="a pass takes 900 ns: are these seconds"):
        reading._require_seconds(run_of(start=np.zeros((1, 3)), end=0.9 * times))


def test_ranks_without_a_recording_are_named_before_a_question() -> None:
    absent = SimpleNamespace(facts={"missing_ranks": [3]}, measured=None)
    assert reading.missing_ranks_note(absent) == "rank 3 of the job has no recording"  # type: ignore[arg-type]


def waiting(wait_s: float, *, waits: int = 10, **sizes: int) -> Any:
    """Return a run of 1F1B whose last rank waits between its forward and backward in some of 10 microbatches."""
    table = ppsim.build("1f1b", pp=2, microbatches=10)
    start, end = np.zeros((1, table.num_actions)), np.zeros((1, table.num_actions))
    for entry, (op, microbatch) in enumerate(zip(table.op.tolist(), table.microbatch.tolist(), strict=True)):
        start[0, entry] = 100.0 * microbatch + (0.0 if op == Op.F else 2.0 + wait_s * (microbatch < waits))
        end[0, entry] = start[0, entry] + 2.0
    made = {name: getattr(table, name) for name in ("vpp", "num_slices", "num_stages", "stage", "op", "microbatch")}
    given = made | {"fused": table.fused} | sizes
    return SimpleNamespace(graph=SimpleNamespace(schedule=SimpleNamespace(**given)), start=start, end=end)


@pytest.mark.parametrize(
    ("run", "part"),
    [
        (waiting(1.1), "100.00 %"), (waiting(1.1, waits=8), "80.00 %"), (waiting(1.1, waits=7), ""), (waiting(1.0), ""),
        (waiting(1.1, vpp=2), ""), (waiting(1.1, num_slices=2), ""),
    ],
)  # fmt: skip
def test_a_last_stage_that_waits_for_its_backwards_raises_the_question_of_a_missing_rank(
    run: Any, part: str
) -> None:
    question = reading.missing_rank_question(run)
    assert (f"the backward of {part} of its microbatches" in question) if part else question == ""
    table = run.graph.schedule
    table.fused = np.where(np.arange(len(table.fused)) == 3, 1, NONE)
    assert reading.missing_rank_question(run) == ""


def test_interleaved_ranks_that_do_not_name_their_stages_run_the_schedule_of_megatron() -> None:
    table = ppsim.build("interleaved-1f1b", pp=2, vpp=3, microbatches=4)
    step = [SimpleNamespace(members=[SimpleNamespace(op=op)]) for op in 12 * [Op.F] + 12 * [Op.B]]

    def told(*is_told: bool, vpp: int | None = 3) -> Any:
        traces = [SimpleNamespace(is_told=one, steps=[step, []]) for one in is_told]
        return reading._table_told(SimpleNamespace(vpp=vpp, traces=traces))  # type: ignore[arg-type]

    assert told(False, False) == told(True, False) == table
    assert told(True, True) is told(False, False, vpp=1) is told(False, False, vpp=None) is None


def test_costs_of_the_user_keep_the_network_of_the_run() -> None:
    table = ppsim.build("1f1b", pp=2, microbatches=4)
    costs = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, channel="edge")
    run = SimpleNamespace(graph=SimpleNamespace(schedule=table), costs=costs)
    assert reading.with_costs(run, "a", table, None) is run  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a was measured with another table than --schedule"):
        reading.with_costs(run, "a", ppsim.build("gpipe", pp=2, microbatches=4), None)  # type: ignore[arg-type]


def test_a_log_has_no_timeline(tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    file.write_text(LOG * 3)
    with pytest.raises(ConfigError, match=r"run.log is a log, which has totals and no timeline"):
        reading.open_run_if_path(file)


ALIGNED = {"num_clocks": 2, "hop_s": 0.5}


@pytest.mark.parametrize(
    ("facts", "known"),
    [
        (None, {"num_warm_up": 0, "chosen_step": 0, "clocks": None, "reserved_bytes": None, "missing_ranks": [], "job_ranks": None}),
        (
            {
                "num_warm_up": 3, "chosen_step": 1, "clocks": ALIGNED, "reserved_bytes": [5, 6.5], "missing_ranks": [7],
                "job_ranks": 9, "kind": "torch",
            },
            {
                "num_warm_up": 3, "chosen_step": 1, "clocks": ALIGNED, "reserved_bytes": [5, 6.5], "missing_ranks": [7],
                "job_ranks": 9, "kind": "torch",
            },
        ),
        (
            {
                "num_warm_up": "3", "chosen_step": 1.5, "clocks": [2], "reserved_bytes": ["5"], "missing_ranks": 7,
                "job_ranks": "9", "step_times_s": [1.0], "emulated": False, "between_steps_s": [], "knows_transfers": True,
            },
            {"num_warm_up": 0, "chosen_step": 0, "clocks": None, "reserved_bytes": None, "missing_ranks": [], "job_ranks": None},
        ),
    ],
)  # fmt: skip
def test_facts_of_a_file_are_of_its_run_and_those_of_another_type_are_left_out(
    monkeypatch: pytest.MonkeyPatch, facts: Any, known: dict[str, Any]
) -> None:
    run = SimpleNamespace(
        has_own_costs=True, step_times_s=np.array([2.5, 3.5]), gaps_s=(0.25, 0.75), knows_transfers=False
    )
    data = {"run": facts}
    monkeypatch.setattr(reading, "read_json", lambda path: data)
    monkeypatch.setattr(
        reading, "run_from_json", lambda content, path: run if (content, path) == (data, "a") else 0
    )
    monkeypatch.setattr(reading, "timeline_from_json", lambda content, path: ((content, path), None))
    monkeypatch.setattr(reading, "with_costs", lambda *given: run if given == (run, "a", "table", "costs") else 0)
    found = reading._of_file("a", "table", "costs")  # type: ignore[arg-type]
    of_run = {
        "emulated": True,
        "step_times_s": [2.5, 3.5],
        "between_steps_s": [0.25, 0.75],
        "knows_transfers": False,
    }
    assert found.facts == of_run | known
    measured = found.measured
    assert (measured.timeline, measured.run) == ((data, "a"), run)
    assert (measured.step_times_s, measured.chosen_step) == ([2.5, 3.5], known["chosen_step"])


def test_a_run_has_the_costs_of_its_table_but_its_own_network() -> None:
    table = ppsim.build("1f1b", pp=2, microbatches=4)
    costs = ppsim.StageCosts(forward_s=1.0, backward_input_s=2.0, backward_weight_s=3.0)
    own = costs.replace(channel="rank", communication="blocking", receives="ordered")
    timeline = ppsim.simulate(table, costs)
    times = timeline.start[None], timeline.end[None]
    run = Run("a", timeline.graph, own, *times, has_own_costs=False)
    given = costs.replace(forward_s=7.0)
    found = reading.with_costs(run, "a", table, given)
    assert found.has_own_costs
    network = found.costs.channel, found.costs.communication, found.costs.receives
    assert (found.costs.forward_s, *network) == (7.0, "rank", "blocking", "ordered")


def test_no_run_and_a_negative_warm_up_are_refused() -> None:
    with pytest.raises(ConfigError, match="--warm-up must not be negative: got -1"):
        reading.open_run("a", warm_up=-1)
    with pytest.raises(ConfigError, match="at least one measured run"):
        reading.open_run(warm_up=0)


@pytest.mark.parametrize(
    ("kind", "on_device", "expected"),
    [
        ("trace", True, (["a:p", "b:p"], "traces of torch.profiler", "the device's work")),
        ("sqlite", False, (["a.0", "a.1", "b.0", "b.1"], "exports of Nsight Systems", "ranges on the host")),
    ],
)
def test_traces_have_a_rank_per_file_and_exports_several(
    kind: str, on_device: bool, expected: tuple[list[str], str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rank(name: str) -> Any:
        return SimpleNamespace(name=name, on_device=on_device)

    patterns: Any = "p"
    monkeypatch.setattr(reading, "is_dump", lambda path: False)
    monkeypatch.setattr(reading, "files_of", lambda path: [path])
    monkeypatch.setattr(reading, "file_format", lambda file: kind)
    monkeypatch.setattr(reading, "read_trace", lambda file, patterns: rank(f"{file}:{patterns}"))
    monkeypatch.setattr(
        reading.nsight, "read_processes", lambda file, patterns: [rank(f"{file}.{number}") for number in range(2)]
    )
    recordings = reading.read_recordings(["a", Path("b")], patterns)
    names, title, passes_by = expected
    assert [trace.name for trace in recordings.traces] == names  # type: ignore[attr-defined]
    assert (recordings.source, recordings.kind, recordings.passes_by) == ("a", title, passes_by)


def test_spans_dumps_and_rows_have_readers_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns: Any = ()
    monkeypatch.setattr(reading, "files_of", lambda path: [str(path)])
    monkeypatch.setattr(reading, "is_dump", lambda path: str(path) == "dump")
    monkeypatch.setattr(reading, "read_dump", lambda path, *, num_ranks: ("dump", path, num_ranks))
    monkeypatch.setattr(reading, "read_spans", lambda files, *, num_ranks: ("spans", files, num_ranks))
    monkeypatch.setattr(reading.rows, "read_rows", lambda file: ("rows", file))
    assert reading.read_recordings(["dump"], patterns, num_ranks=3) == ("dump", Path("dump"), 3)
    monkeypatch.setattr(reading, "file_format", lambda file: "spans")
    assert reading.read_recordings(["a", "dump"], patterns, num_ranks=5) == ("spans", ["a", "dump"], 5)
    monkeypatch.setattr(reading, "file_format", lambda file: "csv")
    assert reading.read_recordings(["a"], patterns) == ("rows", "a")
    monkeypatch.setattr(reading, "file_format", lambda file: "other")
    with pytest.raises(ConfigError, match=r"^a are no ranks of one run"):
        reading.read_recordings(["a"], patterns)
