"""Reader of OpenTelemetry spans of Megatron-LM (`--otel-enabled`, NVIDIA/Megatron-LM#6438, August 2026).

Spans measure host time: a kernel may run after its span. Two formats are read: OTLP JSON (`resourceSpans`) from the
file exporter of the OpenTelemetry Collector, one object per line, and spans of the SDK's console exporter, which
writes an object over several lines. megatron/training/training.py and megatron/core have the names.
Pipeline ranks are the outermost dimension, as in Megatron-LM's default order tp-cp-ep-dp-pp.
"""

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.limits import LARGEST_COUNT, short_text
from ppsim.runs.readers.stream import lines_of
from ppsim.runs.traces import RECEIVE, CellRange, RankTrace, RunRecordings
from ppsim.schedule.grammar import MOST
from ppsim.schedule.table import NONE, Action, Op

_ITERATION = "megatron.train.iteration"
_OPS = {"megatron.microbatch.forward": Op.F, "megatron.microbatch.backward": Op.B}
_NUMBER = "megatron.iteration"
_EVALUATION = "evaluation"
_WORK = {
    "megatron.grad_sync.finish": "gradient reduction",
    "megatron.train.iteration.optimizer": "optimizer",
    "megatron.train.params_norm": "parameter norm",
    "megatron.train.log": "logging",
    "megatron.train.gc_collect": "garbage collection",
    "megatron.checkpoint.exposed_save": "checkpoint",
    "megatron.evaluate": _EVALUATION,
    "megatron.p2p.recv_forward": RECEIVE,
    "megatron.p2p.recv_backward": RECEIVE,
}
"""Spans between actions, none of which contains another, with the names in an explanation."""
_GROUPS = "--otel-span-groups per_step,microbatch"


@dataclass
class _Rank:
    """Times in nanoseconds since the epoch."""

    source: str
    num_ranks: int
    num_stages: int
    host: str
    iterations: list[tuple[int, int]] = field(default_factory=list)
    actions: list[tuple[int, int, Op]] = field(default_factory=list)
    work: list[tuple[int, int, str]] = field(default_factory=list)


def has_spans(text: str) -> bool:
    """Return True for the standard output of a run that contains spans of the console exporter."""
    return '\n{\n    "name": "megatron.' in text


def read_spans(files: Sequence[str], *, num_ranks: int | None = None) -> RunRecordings:
    """Return the recordings of the first data- and tensor-parallel index that is recorded on all pipeline ranks.

    With `num_ranks`, return those of the first index on the pipeline ranks that were recorded.
    """
    ranks: dict[int, _Rank] = {}
    for file in files:
        _read(file, ranks)
    if not any(rank.actions for rank in ranks.values()):
        raise ConfigError(f"{files[0]} has no spans of microbatches: run Megatron-LM with {_GROUPS}")
    chosen = _pipeline(files[0], {number: rank for number, rank in ranks.items() if rank.actions}, num_ranks)
    base = min(begin for rank in chosen.values() for begin, _, _ in rank.actions)
    traces = [_trace(rank, index, base) for index, rank in chosen.items()]
    by = "the host's time in each forward and backward step; kernels may run later"
    return RunRecordings(files[0], traces, kind="OpenTelemetry spans of Megatron-LM", passes_by=by)


def _pipeline(source: str, ranks: Mapping[int, _Rank], num_ranks: int | None) -> dict[int, _Rank]:
    """Return the recordings by pipeline rank."""
    one = next(iter(ranks.values()))
    apart = one.num_ranks // one.num_stages  # distance between the global ranks of pipeline neighbours
    pipelines: dict[int, dict[int, _Rank]] = defaultdict(dict)
    for number, rank in sorted(ranks.items()):
        pipelines[number % apart][number // apart] = rank
    chosen = max(pipelines.values(), key=len)
    if num_ranks or len(chosen) == one.num_stages:
        return chosen
    here = ", ".join(map(str, sorted(ranks)))
    raise ConfigError(
        f"{source} has spans of rank {here}, and no whole pipeline of {one.num_stages} ranks: set "
        f"MEGATRON_OTEL_RANK_STRATEGY=all_ranks and give all files, or explain --ranks {one.num_stages} with some"
    )


def _trace(rank: _Rank, index: int, base: int) -> RankTrace:
    evaluations = [(begin, end) for begin, end, name in rank.work if name == _EVALUATION]
    actions = sorted(
        action for action in rank.actions if not any(begin <= action[0] < end for begin, end in evaluations)
    )
    work: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for begin, end, name in rank.work:
        work[bisect_left(actions, (begin,))][name] += (end - begin) / 1e9
    cells = [
        CellRange((begin - base) / 1e9, (end - base) / 1e9, Action(op, NONE, NONE), work=work[index])
        for index, (begin, end, op) in enumerate(actions)
    ]
    iterations = sorted(rank.iterations)
    marks, numbers = [(begin - base) / 1e9 for begin, _ in iterations], [number for _, number in iterations]
    return RankTrace(
        rank.source, index, rank.host, on_device=False, steps=[cells], base_ns=base, marks=marks,
        numbers=numbers * (min(numbers, default=-1) >= 0), num_ranks=rank.num_stages,
    )  # fmt: skip


def _read(path: str, ranks: dict[int, _Rank]) -> None:
    with closing(lines_of(path)) as lines:
        for number, text in _objects(lines):
            try:
                for resource, name, *times in _spans(json.loads(text)):
                    if name == _ITERATION or name in _OPS or name in _WORK:
                        _keep(path, ranks, resource, name, *times)
            except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
                why = f"it lacks {error}" if isinstance(error, KeyError) else error
                raise ConfigError(f"{path}: line {number} is no OpenTelemetry span: {why}") from None


def _objects(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    """Yield each JSON object with the number of its last line; one of many lines begins with "{" alone.

    Other lines between the objects are a log: the console exporter writes to the standard output.
    """
    part = ""
    for number, line in enumerate(lines, start=1):
        part += line if part or line.startswith("{") else ""
        if part and (line.startswith("}") or part[1:2] != "\n"):
            yield number, part
            part = ""
    if part:
        yield number, part


def _keep(
    path: str, ranks: dict[int, _Rank], resource: Mapping[str, Any], name: str, begin: int, end: int, iteration: int
) -> None:
    index, num_ranks, num_stages = (
        int(resource[key]) for key in ("dl.rank", "dl.world_size", "dl.pipeline_parallel.size")
    )
    shown = f"rank {short_text(index)} of {short_text(num_ranks)}, pipeline of {short_text(num_stages)}"
    if not (0 <= index < num_ranks < MOST and num_stages > 0) or num_ranks % num_stages:
        raise ValueError(shown)
    if not 0 <= begin <= end < LARGEST_COUNT * 10**9:
        raise ValueError(f"from {short_text(begin)} to {short_text(end)} ns")
    host = str(resource.get("host.name", path))
    rank = ranks.setdefault(index, _Rank(f"{path}: rank {index}", num_ranks, num_stages, host))
    first = next(iter(ranks.values()))
    if (num_ranks, num_stages) != (first.num_ranks, first.num_stages):
        raise ValueError(f"{shown}, but {first.source} is of {first.num_ranks}, pipeline of {first.num_stages}")
    if name == _ITERATION:
        rank.iterations.append((begin, iteration))
    elif name in _OPS:
        rank.actions.append((begin, end, _OPS[name]))
    else:
        rank.work.append((begin, end, _WORK[name]))


def _spans(found: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str, int, int, int]]:
    """Yield resource, name, begin, end and iteration (−1 if unknown) of each span; metrics have none."""
    if not {"resourceSpans", "resource_metrics"} & found.keys():
        begin, end = (_nanoseconds(found[key]) for key in ("start_time", "end_time"))
        iteration = int(found.get("attributes", {}).get(_NUMBER, -1))
        yield found["resource"]["attributes"], found["name"], begin, end, iteration
    for group in found.get("resourceSpans", ()):
        resource = _plain(group["resource"]["attributes"])
        for scope in group["scopeSpans"]:
            for span in scope["spans"]:
                begin, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
                iteration = int(_plain(span.get("attributes") or []).get(_NUMBER, -1))
                yield resource, span["name"], begin, end, iteration


def _plain(attributes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {attribute["key"]: next(iter(attribute["value"].values()), None) for attribute in attributes}


def _nanoseconds(time: str) -> int:
    moment = datetime.fromisoformat(time)
    return int(moment.replace(microsecond=0).timestamp()) * 10**9 + moment.microsecond * 1000
