"""Reading of measured runs; the format is detected from the content."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from os.path import isdir
from pathlib import Path
from typing import Any

import numpy as np

from ppsim.api.run_result import RunResult
from ppsim.api.schedule_detection import detect_schedule
from ppsim.base.errors import ConfigError
from ppsim.base.files import read_json
from ppsim.base.units import percent, seconds
from ppsim.catalog.build import build
from ppsim.runs.clocks import Alignment
from ppsim.runs.log_totals import LogTotals
from ppsim.runs.rank_alignment import align_ranks
from ppsim.runs.readers import csv_rows as rows
from ppsim.runs.readers import nsight
from ppsim.runs.readers.patterns import NamePattern, patterns_with
from ppsim.runs.readers.stream import entries_of, lines_of, opened
from ppsim.runs.run import Run
from ppsim.runs.timeline_file import FORMAT, run_from_json, timeline_from_json
from ppsim.runs.timeline_import import ImportedRun, import_run
from ppsim.runs.traces import RankTrace, RunRecordings, shortened
from ppsim.schedule.grammar import read_schedule
from ppsim.schedule.table import NONE, Op, Schedule
from ppsim.simulation.stage_costs import StageCosts
from ppsim.trainers import recordings
from ppsim.trainers.megatron.read_log import is_log, read_log
from ppsim.trainers.megatron.read_trace import has_spans, read_spans
from ppsim.trainers.primus.read_trace import is_dump, read_dump
from ppsim.trainers.torch.read_trace import read_trace

_SUFFIXES = (".json", ".json.gz", ".jsonl", ".jsonl.gz", ".sqlite")
_PEEKED = 2**16


@dataclass(frozen=True, repr=False)
class MeasuredRun(RunResult):
    """A measured run: its steps, the timeline of the median step, and metadata.

    `facts` is the part `run` of the output of `ppsim read --json`.

    >>> import ppsim
    >>> table = ppsim.build("1f1b", pp=2, microbatches=4)
    >>> ppsim.save(ppsim.train(table, model="nano", partitions=2, steps=2), "run.json")
    >>> ppsim.read("run.json").timeline.schedule == table
    True
    """

    @property
    def title(self) -> str:
        return f"{' = '.join(self.facts['schedule']['names']) or 'own order'}, measured"


def read(
    *recorded: str | Path,
    schedule: Schedule | str | Path | None = None,
    pattern: Sequence[str] = (),
    warm_up: int = 1,
) -> MeasuredRun | LogTotals:
    """Return a recorded run: its steps on one clock, the detected schedule, and metadata.

    `recorded` is one of

    - a file of `ppsim train` or `ppsim read`,
    - a folder of Primus' `dump_pp_data`,
    - torch.profiler traces, Nsight Systems sqlite exports or OpenTelemetry spans of Megatron-LM (files or a folder;
      one file per rank or node),
    - a CSV of actions, or
    - a Megatron-LM log, which gives `LogTotals`.

    `schedule` is needed if ranks have several stages and the recording does not name the stage of each action.
    `pattern` are regular expressions with the groups kind, stage, chunk, microbatch, rank, for ranges with other
    names. The first `warm_up` steps of a recording are dropped. Raises `ConfigError` if there is no run.

    >>> import ppsim
    >>> with open("passes.csv", "w") as file:
    ...     _ = file.write("rank,kind,start,end\\n" + "0,F,0,1\\n0,B,1,3\\n0,F,4,5\\n0,B,5,8\\n")
    >>> ppsim.read("passes.csv").step_times_s
    [4.0]
    """
    table = schedule if schedule is None or isinstance(schedule, Schedule) else read_schedule(schedule)
    opened = open_run(*recorded, table=table, patterns=patterns_with(pattern), warm_up=warm_up)
    if isinstance(opened, LogTotals):
        return opened
    found = detect_schedule(opened.timeline.schedule)
    facts = vars(found) | {"sentence": found.sentence}
    question = missing_rank_question(opened.measured.run)
    return replace(opened, facts=opened.facts | {"schedule": facts, "question": question})


def open_run(
    *recorded: str | Path,
    table: Schedule | None = None,
    patterns: Sequence[NamePattern] | None = None,
    given: StageCosts | None = None,
    warm_up: int = 1,
    num_ranks: int | None = None,
) -> MeasuredRun | LogTotals:
    """`given` are the expected action times; with `num_ranks`, ranks may be missing."""
    if warm_up < 0:
        raise ConfigError(f"--warm-up must not be negative: got {warm_up}")
    if not recorded:
        raise ConfigError("there must be at least one measured run")
    patterns = patterns_with(()) if patterns is None else patterns
    if len(recorded) == 1 and not isdir(recorded[0]):
        kind = file_format(recorded[0])
        if kind in ("timeline", "other"):
            return _of_file(recorded[0], table, given)
        if kind == "log":
            return read_log(recorded[0], num_warm_up=warm_up)
    recordings = read_recordings(recorded, patterns, num_ranks=num_ranks)
    if table is None:
        table = _table_told(recordings)
    run, facts = align_ranks(recordings, table=table, given=given, num_warm_up=warm_up, num_ranks=num_ranks)
    measured = import_run(run, warm_up)
    if recordings.kind.startswith("CSV"):
        _require_seconds(run)
    return MeasuredRun(measured, facts | {"chosen_step": measured.chosen_step})


def _of_file(path: str | Path, table: Schedule | None, given: StageCosts | None) -> MeasuredRun:
    data = read_json(path)
    run, (timeline, _) = run_from_json(data, str(path)), timeline_from_json(data, str(path))
    run = with_costs(run, str(path), table, given)
    facts = data.get("run") or {}
    known = {
        "emulated": run.has_own_costs,
        "step_times_s": run.step_times_s.tolist(),
        "between_steps_s": list(run.gaps_s),
        "knows_transfers": run.knows_transfers,
        "num_warm_up": facts["num_warm_up"] if isinstance(facts.get("num_warm_up"), int) else 0,
        "chosen_step": facts["chosen_step"] if isinstance(facts.get("chosen_step"), int) else 0,
        "clocks": facts["clocks"] if _is_alignment(facts.get("clocks")) else None,
        "reserved_bytes": facts["reserved_bytes"] if _are_numbers(facts.get("reserved_bytes")) else None,
        "missing_ranks": facts["missing_ranks"] if _are_numbers(facts.get("missing_ranks")) else [],
        "job_ranks": facts["job_ranks"] if isinstance(facts.get("job_ranks"), int) else None,
    }
    measured = ImportedRun(timeline, run, known["step_times_s"], known["chosen_step"])
    return MeasuredRun(measured, facts | known)


def _is_alignment(content: Any) -> bool:
    names = [field.name for field in fields(Alignment)]
    return isinstance(content, dict) and _are_numbers([content.get(name, 0) for name in names])


def _are_numbers(content: Any) -> bool:
    return isinstance(content, list) and bool(content) and all(type(one) in (int, float) for one in content)


def with_costs(run: Run, source: str, table: Schedule | None, given: StageCosts | None) -> Run:
    """Replace the costs, except the P2P settings, for which the run's graph was built.

    Raises `ConfigError` for a run of another schedule.
    """
    if table is not None and table.compute_only() != run.graph.schedule:
        raise ConfigError(f"{source} was measured with another table than --schedule {table.name}.csv")
    if given is None:
        return run
    network = {name: getattr(run.costs, name) for name in ("channel", "communication", "receives")}
    return replace(run, costs=given.replace(**network), has_own_costs=True)


_OTHER_FILES = {
    (b":W&B",): "a file of Weights & Biases",
    (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"): "a pickle, such as a dump of torch's flight recorder",
}
"""Recordings without passes, by their first bytes."""


def _require_passes(path: str | Path, kind: str) -> None:
    if kind:
        raise ConfigError(
            f"{path} is {kind}, which has no passes with their times: record with torch.profiler (activities CPU "
            "and CUDA, on all pipeline ranks, three steps or more), and give the traces of export_chrome_trace"
        )


def file_format(path: str | Path) -> str:
    with opened(path) as file:
        begin = file.read(_PEEKED)
    kind = next((kind for magics, kind in _OTHER_FILES.items() if begin.startswith(magics)), "")
    _require_passes(path, "an event file of TensorBoard" if "tfevents" in Path(path).name else kind)
    if begin.startswith(nsight.MAGIC):
        return "sqlite"
    text = begin.decode("utf-8-sig", "replace")
    if text.lstrip().startswith("{"):
        return _kind_of_json(path)
    if rows.has_header(text.partition("\n")[0]):
        return "csv"
    if has_spans(text):
        return "spans"
    if is_log(text) or _is_long_log(path, text):
        return "log"
    raise ConfigError(
        f"{path} is not a recording that ppsim can read. It reads timelines of ppsim (-o NAME.json), "
        f"{recordings()}, exports of Nsight Systems (nsys export --type sqlite), and CSVs with columns "
        f"{', '.join(rows.NEEDED)}"
    )


def _is_long_log(path: str | Path, begin: str) -> bool:
    """Search the whole file: a log begins with all arguments, so its first iteration may come late."""
    if "\x00" in begin or "�" in begin:
        return False
    with closing(lines_of(path, errors="replace")) as lines:
        return any(is_log(line) for line in lines)


def _kind_of_json(path: str | Path) -> str:
    with closing(entries_of(path, "traceEvents")) as entries:
        for key, value in entries:
            if key == "traceEvents":
                return "trace"
            if key == "resourceSpans" or (key == "context" and isinstance(value, dict) and "span_id" in value):
                return "spans"
            if key == "format":
                return "timeline" if value == FORMAT else "other"
            if isinstance(value, dict) and "fwd_start" in value:
                return "dump"
            if key == "schema" and isinstance(value, str):
                _require_passes(path, "an execution trace (of torch's ExecutionTraceObserver, for HTA and Chakra)")
    return "other"


def read_recordings(
    recorded: Sequence[str | Path], patterns: Sequence[NamePattern], *, num_ranks: int | None = None
) -> RunRecordings:
    paths = [Path(one) for one in recorded]
    if len(paths) == 1 and is_dump(paths[0]):
        return read_dump(paths[0], num_ranks=num_ranks)
    files = [file for path in paths for file in files_of(path)]
    kinds = {file_format(file) for file in files}
    if len(kinds) > 1 or not kinds <= {"trace", "spans", "sqlite", "csv"} or (kinds == {"csv"} and len(files) > 1):
        raise ConfigError(_why_not_together(files, kinds))
    if kinds == {"csv"}:
        return rows.read_rows(files[0])
    if kinds == {"spans"}:
        return read_spans(files, num_ranks=num_ranks)
    traces: list[RankTrace] = []
    for file in files:
        if kinds == {"trace"}:
            traces.append(read_trace(file, patterns))
        else:
            traces += nsight.read_processes(file, patterns)
    return RunRecordings(
        source=str(recorded[0]),
        traces=traces,
        kind="traces of torch.profiler" if kinds == {"trace"} else "exports of Nsight Systems",
        passes_by="the device's work" if traces[0].on_device else "ranges on the host",
    )


def _why_not_together(files: Sequence[str], kinds: set[str]) -> str:
    if kinds == {"dump"}:
        return f"{files[0]} is one rank of a dump: give the folder that holds all of them, pp_rank_0.json and on"
    return (
        f"{', '.join(files[:4])} are no ranks of one run: several files are traces of torch.profiler, exports of "
        "Nsight Systems, or OpenTelemetry spans, one per rank or node (found: "
        f"{', '.join(sorted(kinds))}); give a folder that has nothing else, a folder of Primus' dump_pp_data, or "
        "one timeline, CSV or log"
    )


def files_of(path: str | Path) -> list[str]:
    if not isdir(path):
        return [str(path)]
    files = sorted(str(file) for file in Path(path).iterdir() if file.name.endswith(_SUFFIXES))
    if not files:
        reports = sorted(file.name for file in Path(path).iterdir() if file.name.endswith(".nsys-rep"))
        hint = (
            f"; export {reports[0]} with nsys export --type sqlite"
            if reports
            else "; give a CSV or a log as a file"
        )
        raise ConfigError(f"{path} holds no .json, .json.gz, .jsonl or .sqlite file{hint}")
    return files


def inputs_of(path: str | Path) -> list[str]:
    """Return the files that no output may overwrite."""
    return [str(file) for file in Path(path).iterdir()] if isdir(path) else [str(path)]


def _table_told(recordings: RunRecordings) -> Schedule | None:
    """Without stages in the recording, interleaved ranks are assumed to run Megatron-LM's schedule."""
    if recordings.vpp is None or recordings.vpp == 1 or all(trace.is_told for trace in recordings.traces):
        return None
    step = recordings.traces[0].steps[0]
    forwards = sum(action.op is Op.F for cell in step for action in cell.members)
    return build(
        "interleaved-1f1b", pp=len(recordings.traces), vpp=recordings.vpp, microbatches=forwards // recordings.vpp
    )


_LONGEST_STEP_S, _SHORTEST_PASS_S = 1000.0, 1e-6
"""No real step takes longer, and no real pass is shorter."""


def _require_seconds(run: Run) -> None:
    """Raise `ConfigError` if the times of a CSV are probably in another unit than their columns state."""
    passes = (run.end - run.start)[:, : run.graph.num_actions]
    usual_s, step_s = float(np.median(passes)), float(np.median(run.step_times_s))
    if step_s > _LONGEST_STEP_S:
        raise ConfigError(
            f"{run.source}: a step takes {seconds(step_s)}: are these milliseconds? Name the columns start_ms and "
            "end_ms (or start_us and end_us)"
        )
    if 0 < usual_s < _SHORTEST_PASS_S:
        raise ConfigError(
            f"{run.source}: a pass takes {seconds(usual_s)}: are these seconds? Name the columns start_s and end_s"
        )


def missing_ranks_note(opened: RunResult) -> str:
    """Return a sentence on ranks that the files count, or else the question of `missing_rank_question`."""
    if absent := opened.facts.get("missing_ranks"):
        return f"rank {shortened(absent)} of the job has no recording"
    return missing_rank_question(opened.measured.run)


def missing_rank_question(run: Run) -> str:
    """Return a question if the last stage waits for its backwards as an earlier stage does, "" otherwise."""
    table = run.graph.schedule
    if table.vpp > 1 or (table.fused != NONE).any() or table.num_slices > 1:
        return ""
    last = table.stage == table.num_stages - 1
    forward, backward = (np.flatnonzero(last & (table.op == op)) for op in (Op.F, Op.B))
    if not len(backward) or backward[0] > forward[-1]:  # all forwards come first
        return ""
    ends, starts = (
        times[:, entries[np.argsort(table.microbatch[entries])]]
        for times, entries in ((run.end, forward), (run.start, backward))
    )
    usual_s = float(np.median((run.end - run.start)[:, forward]))
    part = float((starts - ends > _WAITS * usual_s).mean())
    if part < _NEARLY_ALL:
        return ""
    return (
        f"Is a rank missing? The last stage waits between the forward and the backward of {percent(part)} of its "
        "microbatches, as a rank before the last one does."
    )


_WAITS, _NEARLY_ALL = 0.5, 0.8
"""Wait after a forward, in forwards, and the part of the microbatches with it, of a rank before the last one."""


def open_run_if_path(*measured: Any, **options: Any) -> RunResult:
    if isinstance(measured[0], RunResult):
        return measured[0]
    opened = open_run(*measured, **options)
    if isinstance(opened, LogTotals):
        raise ConfigError(
            f"{opened.source} is a log, which has totals and no timeline: ppsim read prints them, and says how a "
            f"timeline is recorded"
        )
    return opened
