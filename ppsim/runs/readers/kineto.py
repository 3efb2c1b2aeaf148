"""torch.profiler's chrome traces of a pipelined run → what `ppsim train` records of one. Imports no torch.

The format is Kineto's (pytorch/kineto, libkineto/src/output_json.cpp): complete events ("ph": "X") with `ts` and
`dur` in microseconds, from `baseTimeNanoseconds` on, one clock for all processes of a host. What is read:

- `user_annotation` "PP:3F0": the range in which torch's runtime executes a cell, on the host.
- `user_annotation` "gloo:recv" and "ppsim:wait", which end when a receive has been waited for (CPU).
- `cpu_op` "autograd::engine::evaluate_function…": tells the backward of a fused cell from its forward.
- `cpu_op` "record_param_comms": what a send carries, where its kernel does not tell. Torch up to 2.12 batches
  sends, whose kernel is launched at the end of NCCL's group, behind these (pytorch/pytorch#194693).
- `cuda_runtime`, `cuda_driver`: launches; the `correlation` in `args` is that of what they launched.
- `kernel`, `gpu_memcpy`, `gpu_memset`: the device's work. A trace that has any is read by it: an action is from
  its first kernel's start to its last one's end, wherever on the host it was launched within the range (a backward
  is launched by a thread of autograd's). NCCL's kernels are no part of it; what a send or receive launched is a
  transfer.
"""

import gzip
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.base.files import read_json
from ppsim.schedule.grammar import format_cell, parse_cell
from ppsim.schedule.table import Action, Cell, Op

WAIT_MARK = "ppsim:wait"
_PREFIX = "PP:"
_WAITS = (WAIT_MARK, "gloo:recv")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_AUTOGRAD = "autograd::engine::evaluate_function"
_MESSAGE = "record_param_comms"
_ELEMENT_BYTES = {
    "float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2, "int": 4,
    "long": 8, "byte": 1, "char": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
"""What NCCL's kernels call their `dtype`, in small letters."""


_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Span:
    """Something with a begin and an end, in seconds of the host's clock."""

    begin: float
    end: float


@dataclass(frozen=True)
class CellRange(Span):
    """One execution of a cell: its text without prefix, what it is, and what was traced inside it.

    `waits` are receives waited for; `device` is what it launched, each with the moment of its launch; `nodes` are
    autograd's, `operators` the others on the host, both of a fused cell only. `message_bytes` is what it sent,
    where that is told.
    """

    cell: Cell
    waits: list[Span] = field(default_factory=list)
    device: list[tuple[float, Span]] = field(default_factory=list)
    nodes: list[Span] = field(default_factory=list)
    operators: list[Span] = field(default_factory=list)
    message_bytes: float | None = None

    @property
    def members(self) -> tuple[Action, ...]:
        """The actions of the cell."""
        return (self.cell,) if isinstance(self.cell, Action) else self.cell

    @property
    def is_compute(self) -> bool:
        """Whether it is an F, B, I or W, or fused of them."""
        return self.members[0].op.is_compute


@dataclass(frozen=True)
class RankTrace:
    """The steps of one rank, each a list of ranges in the order of their begin. `rank` is None where not told."""

    source: str
    rank: int | None
    host: str
    on_device: bool
    steps: list[list[CellRange]]

    @property
    def stages(self) -> list[int]:
        """The stages that it computes."""
        return sorted({action.stage for cell in self.steps[0] if cell.is_compute for action in cell.members})


def is_trace(data: Any) -> bool:
    """Return whether parsed JSON is a chrome trace."""
    return isinstance(data, dict) and isinstance(data.get("traceEvents"), list)


def read_json_or_gz(path: str | Path) -> Any:
    """Return the content of a JSON file, packed with gzip or not; raises `ConfigError` for one that is cut off."""
    if not str(path).endswith(".gz"):
        return read_json(path)
    try:
        return json.loads(gzip.decompress(Path(path).read_bytes()))
    except OSError as error:  # gzip.BadGzipFile is one
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except EOFError:
        raise ConfigError(f"{path} is cut off: its gzip stream has no end") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from None


def trace_from_json(data: Any, source: str) -> RankTrace:
    """Return the steps in one rank's trace; raises `ConfigError` for no ranges, a single step, or unlike steps.

    A step ends where an action comes again.
    """
    try:
        events = [event for event in data["traceEvents"] if event.get("ph") == "X"]
        events.sort(key=lambda event: event["ts"])
        base_s = data.get("baseTimeNanoseconds", 0) / 1e9
        ranges, on_device = _ranges(events, base_s, source)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ConfigError(f"{source} is no trace of torch.profiler: {type(error).__name__}: {error}") from None
    if not ranges:
        raise ConfigError(
            f"{source} has no PP: ranges, with which torch's pipeline runtime names its actions (ScheduleGPipe and "
            f"Schedule1F1B do not: load their table into _PipelineScheduleRuntime)"
        )
    steps = _steps(ranges)
    names = [[format_cell(cell.cell) for cell in step if cell.is_compute] for step in steps]
    if len(steps) < 2:
        raise ConfigError(f"{source} has one step only: the first is warm-up, trace three or more")
    for number, step in enumerate(names[1:], start=1):
        missing = [name for name in names[0] if name not in set(step)]
        if missing:
            raise ConfigError(f"{source}: step {number} lacks {missing[0]}, which step 0 has: trace whole steps")
        if step != names[0]:
            raise ConfigError(f"{source}: step {number} has other actions than step 0, or another order")
    told = data.get("distributedInfo") or {}
    rank = told.get("rank") if isinstance(told, dict) else None
    return RankTrace(source, rank, str(data.get("host_name", "")), on_device, steps)


def in_rank_order(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Return the traces by pipeline rank; raises `ConfigError` for one that is missing or there twice.

    Ranks are those that the traces tell, where they are 0 … p−1; beside other kinds of parallelism those are not
    the pipeline's, which are then taken by each one's first stage.
    """
    holder: dict[int, RankTrace] = {}
    for trace in traces:
        for stage in trace.stages:
            if stage in holder:
                raise ConfigError(
                    f"{holder[stage].source} and {trace.source} both hold stage {stage}: two traces of one rank, "
                    f"or of two replicas (give one a pipeline rank)"
                )
            holder[stage] = trace
    missing = sorted(set(range(max(holder) + 1)) - set(holder)) or _stages_beyond(traces, max(holder))
    if missing:
        raise ConfigError(
            f"no trace of the rank with stage {', '.join(map(str, missing))}: give the traces of all pipeline ranks"
        )
    hosts = sorted({trace.host for trace in traces})
    if len(hosts) > 1:
        raise ConfigError(
            f"the traces are of {len(hosts)} hosts ({', '.join(hosts)}), whose clocks may differ by more than an "
            f"action takes: trace ranks of one host"
        )
    if sorted(-1 if trace.rank is None else trace.rank for trace in traces) == list(range(len(traces))):
        return sorted(traces, key=lambda trace: trace.rank or 0)
    return sorted(traces, key=lambda trace: trace.stages[0])


def _stages_beyond(traces: Iterable[RankTrace], last: int) -> list[int]:
    """The stage behind the last where somebody sends to it."""
    sends = {
        action.stage
        for trace in traces
        for cell in trace.steps[0]
        for action in cell.members
        if action.op is Op.SEND_F
    }
    return [last + 1] if last in sends else []


def table_rows_of(traces: Sequence[RankTrace]) -> list[list[Cell]]:
    """Return the table's rows as the first step ran them, sends and receives included."""
    wanted = (*range(Op.F, Op.W + 1), Op.SEND_F, Op.RECV_F, Op.SEND_B, Op.RECV_B)
    return [[cell.cell for cell in trace.steps[0] if cell.members[0].op in wanted] for trace in traces]


def result_of(traces: Sequence[RankTrace], *, num_warm_up: int) -> dict[str, Any]:
    """Return the ranks' steps in the shape in which the ranks of `ppsim train` report theirs.

    `ppsim.runs.recorded.run_of` makes the run of it. Raises `ConfigError` for ranks with unlike numbers of steps,
    and for too few.
    """
    counts = {trace.source: len(trace.steps) for trace in traces}
    if len(set(counts.values())) > 1:
        least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        raise ConfigError(f"{least} has {counts[least]} steps, {most} has {counts[most]}: trace the same steps")
    number = len(traces[0].steps)
    if num_warm_up >= number:
        raise ConfigError(f"{traces[0].source} has {number} steps: none is left after {num_warm_up} of warm-up")
    if len({trace.on_device for trace in traces}) > 1:
        without = next(trace.source for trace in traces if not trace.on_device)
        raise ConfigError(f"{without} holds no kernels, other ranks' traces do: trace CPU and CUDA on all")
    return {
        "steps": [_step_record([trace.steps[step] for trace in traces], traces) for step in range(number)],
        "num_warm_up": num_warm_up,
        "differences": None,
    }


def message_bytes_of(traces: Sequence[RankTrace]) -> float | None:
    """Return what the sends carry (the median), None where the traces do not tell."""
    sizes = sorted(
        cell.message_bytes
        for trace in traces
        for cell in trace.steps[0]
        if cell.members[0].op in (Op.SEND_F, Op.SEND_B) and cell.message_bytes is not None
    )
    return sizes[len(sizes) // 2] if sizes else None


def _ranges(events: list[dict[str, Any]], base_s: float, source: str) -> tuple[list[CellRange], bool]:
    """Every cell's ranges with what was traced inside them, in the order of the events, which is that of time."""

    def span(event: dict[str, Any]) -> Span:
        begin = base_s + event["ts"] / 1e6
        return Span(begin, begin + event.get("dur", 0) / 1e6)

    named, waits, launches, messages = [], [], [], []
    operators: list[Span] = []
    nodes: list[Span] = []
    device: dict[Any, list[dict[str, Any]]] = {}
    for event in events:
        kind, name = event.get("cat"), event["name"]
        if kind == "user_annotation" and name.startswith(_PREFIX):
            named.append((span(event), name.removeprefix(_PREFIX)))
        elif kind == "user_annotation" and name in _WAITS:
            waits.append(span(event))
        elif kind == "cpu_op":
            (nodes if name.startswith(_AUTOGRAD) else operators).append(span(event))
            if name == _MESSAGE and event.get("args", {}).get("Collective name") == "send":  # others wait, say
                messages.append((span(event).begin, event))
        elif kind in _LAUNCHES and "correlation" in event.get("args", {}):
            launches.append((span(event).begin, event["args"]["correlation"]))
        elif kind in _ON_DEVICE and "correlation" in event.get("args", {}):
            device.setdefault(event["args"]["correlation"], []).append(event)
    waits.sort(key=lambda wait: wait.end)
    found = []
    for at, name in named:
        try:
            cell = parse_cell(name)
        except ScheduleError as error:
            raise ConfigError(f"{source}: the range {_PREFIX}{name} names no action: {error}") from None
        item = CellRange(at.begin, at.end, cell)
        inside = _between(launches, at, key=lambda launch: launch[0])
        work = [(moment, event) for moment, number in inside for event in device.get(number, ())]
        told = [event for _, event in (*work, *_between(messages, at, key=lambda message: message[0]))]
        if item.is_compute:
            work = [(moment, event) for moment, event in work if "nccl" not in event["name"].lower()]
        found.append(
            replace(
                item,
                waits=_between(waits, at, key=lambda wait: wait.end),
                device=sorted(((moment, span(event)) for moment, event in work), key=lambda one: one[1].begin),
                message_bytes=next((size for event in told if (size := _bytes_of(event["args"]))), None),
            )
        )
    for place, item in enumerate(found):
        if len(item.members) > 1:
            mine = [_between(spans, item, key=lambda one: one.begin) for spans in (nodes, operators)]
            found[place] = replace(item, nodes=mine[0], operators=mine[1])
    return found, bool(device)


def _between(sorted_items: list[_Item], at: Span, *, key: Callable[[_Item], float]) -> list[_Item]:
    """Those whose key lies within the span."""
    first = bisect_left(sorted_items, at.begin, key=key)
    return sorted_items[first : bisect_right(sorted_items, at.end, key=key)]


def _bytes_of(args: dict[str, Any]) -> float | None:
    """What a kernel of NCCL carries, or the operator that asked for it: elements and type, where they are noted."""
    count, element = args.get("In msg nelems"), _ELEMENT_BYTES.get(str(args.get("dtype", "")).lower())
    return float(count * element) if isinstance(count, int) and count > 0 and element else None


def _steps(ranges: list[CellRange]) -> list[list[CellRange]]:
    steps: list[list[CellRange]] = [[]]
    seen: set[Action] = set()
    for cell in ranges:
        numbered = [action for action in cell.members if action.op.has_microbatch]
        if seen.intersection(numbered):
            steps.append([])
            seen = set()
        seen.update(numbered)
        steps[-1].append(cell)
    return steps


def _step_record(ranks: list[list[CellRange]], traces: Sequence[RankTrace]) -> list[dict[str, Any]]:
    """One step of all ranks; a transfer is known where both of its ends are kernels."""
    ends = {
        str(cell.members[0]): Span(cell.device[0][1].begin, max(one.end for _, one in cell.device))
        for rank in ranks
        for cell in rank
        if cell.device and not cell.is_compute
    }
    records = []
    for cells, trace in zip(ranks, traces, strict=True):
        last = 0.0
        lines: list[dict[str, Any]] = []
        transfers: dict[str, tuple[float, float]] = {}
        for cell in cells:
            if cell.is_compute:
                line = _on_device(cell, last, trace.source) if trace.on_device else _on_host(cell, trace.source)
                last = line["end"]
                lines.append(line)
                continue
            action = cell.members[0]
            lines.append({"name": str(action), "begin": cell.begin, "end": cell.end, "waits": [], "calls": []})
            if action.op in (Op.RECV_F, Op.RECV_B):
                sender = _sender_of(action)
                if str(action) in ends and sender in ends:
                    here, there = ends[str(action)], ends[sender]
                    # Both kernels run from when they are launched: nothing moves before the second of them.
                    transfers[sender] = (max(here.begin, there.begin), max(here.end, there.end))
        records.append({"records": lines, "transfers": transfers})
    return records


def _sender_of(receive: Action) -> str:
    """`2RECV_F0` takes what `1SEND_F0` sent."""
    step = -1 if receive.op is Op.RECV_F else 1
    return str(Action(Op(receive.op - 1), receive.stage + step, receive.microbatch))


def _on_host(cell: CellRange, source: str) -> dict[str, Any]:
    """A cell whose work is on the host: each of its actions from its last receive on, to the end of the range."""
    calls = [max((wait.end for wait in cell.waits), default=cell.begin)]
    waits = [[max(wait.begin, cell.begin), wait.end] for wait in cell.waits]
    if len(cell.members) > 1:
        forward_first, node_begin, node_end = _parts(cell, source)
        if forward_first:
            # Nothing tells when the forward ended but its last operator before the backward's receive was there.
            second = node_begin
            done = max((one.end for one in cell.operators if one.end <= node_begin), default=node_begin)
        else:
            done = node_end
            second = max((wait.end for wait in cell.waits if wait.end > done), default=done)
        first = max((wait.end for wait in cell.waits if wait.end <= done), default=cell.begin)
        later = [[done, wait.end] for wait in cell.waits if done < wait.end <= second]
        calls, waits = [first, second], [[cell.begin, first], *later[-1:]]
    return {"name": format_cell(cell.cell), "begin": cell.begin, "end": cell.end, "waits": waits, "calls": calls}


def _on_device(cell: CellRange, last: float, source: str) -> dict[str, Any]:
    """A cell whose work is kernels: each of its actions from its first one's start to its last one's end."""
    name = format_cell(cell.cell)
    if not cell.device:
        if all(action.op is Op.I for action in cell.members):  # of a first stage, which does nothing
            at = max(last, cell.begin)
            return {"name": name, "begin": at, "end": at, "waits": [], "calls": [at]}
        raise ConfigError(f"{source}: {name} launched no kernel: trace CPU and CUDA activities, and whole steps")
    begin, end = cell.device[0][1].begin, max(one.end for _, one in cell.device)
    calls = [begin]
    if len(cell.members) > 1:
        forward_first, node_begin, node_end = _parts(cell, source)
        turn = node_begin if forward_first else node_end
        calls.append(min((one.begin for moment, one in cell.device if moment > turn), default=end))
    return {"name": name, "begin": begin, "end": end, "waits": [], "calls": calls}


def _parts(cell: CellRange, source: str) -> tuple[bool, float, float]:
    """Of a fused forward and backward: whether the forward comes first; when autograd's nodes began and ended."""
    kinds = [action.op is Op.F for action in cell.members]
    if sorted(kinds) != [False, True] or not cell.nodes:
        raise ConfigError(
            f"{source}: the actions of {format_cell(cell.cell)} cannot be told apart; of a fused cell only one "
            f"forward and one backward can, by the nodes of autograd"
        )
    return kinds[0], cell.nodes[0].begin, max(node.end for node in cell.nodes)
