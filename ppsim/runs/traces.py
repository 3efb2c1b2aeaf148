"""Traces of a recorded run's ranks, which every reader returns, and their conversion to `ppsim train`'s records."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Literal

from ppsim.base.errors import ConfigError
from ppsim.schedule.grammar import format_cell
from ppsim.schedule.table import NONE, Action, Cell, Op

RECEIVE = "receive"
"""Name of the work of a rank that waits for a message."""


@dataclass(frozen=True)
class TimeRange:
    """A time range, in seconds of the host's clock."""

    begin: float
    end: float


@dataclass(frozen=True)
class CellRange(TimeRange):
    """One execution of an action, or of fused actions, and everything traced inside it.

    `waits` are the waits for receives. `device` has the launch time and the time range of all launched work.
    `nodes` (of autograd) and `operators` (all others on the host) are recorded for fused actions only. An unknown
    stage or microbatch is NONE. If the stage is unknown, `chunk` is its index among the rank's stages. `work` has
    the seconds of the rank's other work after its previous action, by name. `launch_wait_s` is the time in which
    the device was idle between two kernels, and the second was not launched before the first had ended.
    """

    cell: Cell
    waits: list[TimeRange] = field(default_factory=list)
    device: list[tuple[float, TimeRange]] = field(default_factory=list)
    nodes: list[TimeRange] = field(default_factory=list)
    operators: list[TimeRange] = field(default_factory=list)
    message_bytes: float | None = None
    chunk: int | None = None
    work: Mapping[str, float] = field(default_factory=dict)
    launch_wait_s: float = 0.0

    @property
    def members(self) -> tuple[Action, ...]:
        return (self.cell,) if isinstance(self.cell, Action) else self.cell

    @property
    def is_compute(self) -> bool:
        return self.members[0].op.is_compute


@dataclass(frozen=True)
class RankTrace:
    """The steps of one rank, each a list of ranges in the order of their start.

    While stages or microbatches are unknown, all ranges are in one list. `marks` are the known starts of steps, and
    `numbers` are the iterations that begin there (for a trace without marks: of `steps`). `rank` counts the
    `num_ranks` of the whole job, if that is known. Times count from `base_ns`, on a clock that all ranks of
    a `host` share.
    """

    source: str
    rank: int | None
    host: str
    on_device: bool
    steps: list[list[CellRange]]
    base_ns: int = 0
    marks: list[float] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    collectives: list[float] = field(default_factory=list)
    num_ranks: int | None = None

    @property
    def is_told(self) -> bool:
        """True if the stage and microbatch of every action are known."""
        actions = [action for step in self.steps for cell in step if cell.is_compute for action in cell.members]
        return all(NONE not in (action.stage, action.microbatch) for action in actions)

    @property
    def stages(self) -> list[int]:
        return sorted({action.stage for cell in self.steps[0] if cell.is_compute for action in cell.members})


@dataclass(frozen=True)
class RunRecordings:
    """The ranks of one run as a reader found them.

    `kind` is the profiler or trainer, `passes_by` the source of the action times, `vpp` the number of stages per
    rank. With `clocks` "one", all ranks share a clock; with "host", the ranks of one host; with "step", each rank's
    clock restarts with each step.
    """

    source: str
    traces: list[RankTrace]
    kind: str
    passes_by: str
    clocks: Literal["one", "host", "step"] = "host"
    vpp: int | None = None
    reserved_bytes: list[float] | None = None


def split_by_names(trace: RankTrace) -> RankTrace:
    """Split a trace into steps if its names are complete: a repeated action starts a new step."""
    if not trace.is_told:
        return trace
    steps: list[list[CellRange]] = [[]]
    seen: set[Action] = set()
    for cell in (cell for step in trace.steps for cell in step):
        numbered = [action for action in cell.members if action.op.has_microbatch]
        if seen.intersection(numbered):
            steps.append([])
            seen = set()
        seen.update(numbered)
        steps[-1].append(cell)
    return require_like_steps(replace(trace, steps=steps))


def require_like_steps(trace: RankTrace) -> RankTrace:
    """Raise `ConfigError` for a single step or steps that differ in actions or order."""
    names = [[format_cell(cell.cell) for cell in step if cell.is_compute] for step in trace.steps]
    if len(names) < 2:
        raise ConfigError(f"{trace.source} has one step only: the first is warm-up, trace three or more")
    for number, step in enumerate(names[1:], start=2):
        missing = [name for name in names[0] if name not in set(step)]
        if missing:
            raise ConfigError(
                f"{trace.source}: step {number} lacks {missing[0]}, which step 1 has: trace whole steps"
            )
        if step != names[0]:
            raise ConfigError(f"{trace.source}: step {number} has other actions than step 1, or another order")
    return trace


def require_as_many_steps(traces: Sequence[RankTrace]) -> None:
    least, most = (choose(traces, key=lambda trace: len(trace.steps)) for choose in (min, max))
    if len(least.steps) < len(most.steps):
        raise ConfigError(
            f"{least.source} has {len(least.steps)} steps, {most.source} has {len(most.steps)}: files of two runs, "
            f"or of one that was cut off; trace the same steps"
        )


def with_common_steps(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Leave out iterations that a rank lacks, if the iterations of all steps are known and most are common."""
    iterations = [dict(zip(_numbers_of(trace), trace.steps, strict=False)) for trace in traces]
    common = sorted(set.intersection(*map(set, iterations)))
    lengths = [len(trace.steps) for trace in traces]
    if [*map(len, iterations)] != lengths or 2 * len(common) <= max(lengths):
        return list(traces)
    return [
        replace(trace, steps=[steps[number] for number in common], numbers=common, marks=[])
        for trace, steps in zip(traces, iterations, strict=True)
    ]


def _numbers_of(trace: RankTrace) -> list[int]:
    if not trace.marks or not trace.numbers:
        return trace.numbers
    entries = [bisect_right(trace.marks, step[0].begin) - 1 for step in trace.steps]
    return [trace.numbers[entry] for entry in entries if entry >= 0]


_NO_TIMES = {"cell", "message_bytes", "chunk", "work", "launch_wait_s"}


def _later(content: Any, seconds: float) -> Any:
    if isinstance(content, TimeRange):
        times = {member.name for member in fields(content)} - _NO_TIMES
        return replace(content, **{name: _later(getattr(content, name), seconds) for name in times})
    return (
        type(content)(_later(one, seconds) for one in content)
        if isinstance(content, list | tuple)
        else content + seconds
    )


_SHOWN = 8


def shortened(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:_SHOWN])) + ", …" * (len(numbers) > _SHOWN)


def in_rank_order(traces: Sequence[RankTrace], *, num_ranks: int | None = None) -> list[RankTrace]:
    """Return the traces by pipeline rank; raises `ConfigError` for a missing or repeated rank.

    With more `num_ranks` than traces, ranks may be missing; then the other ranks' stages are renumbered.

    Recorded rank numbers other than 0 … p−1 are ignored, because they also count ranks of other kinds of
    parallelism. Then the order of the stages decides.
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
    beyond = max(holder) + 1
    sends = [cell.members[0] for trace in traces for cell in trace.steps[0] if cell.members[0].op is Op.SEND_F]
    missing = sorted(set(range(beyond)) - set(holder)) or [beyond] * any(send.stage == beyond - 1 for send in sends)
    if missing and len(traces) >= (num_ranks or 0):
        raise ConfigError(
            f"no trace of the rank with stage {shortened(missing)}: give all, or explain --ranks N without it"
        )
    if missing:
        traces = [_renumbered(trace, sorted(holder)) for trace in traces]
    if sorted(-1 if trace.rank is None else trace.rank for trace in traces) == list(range(len(traces))):
        return sorted(traces, key=lambda trace: trace.rank or 0)
    return sorted(traces, key=lambda trace: trace.stages[0])


def _renumbered(trace: RankTrace, stages: Sequence[int]) -> RankTrace:
    """Return the passes of a rank with stages counted in `stages`, without messages, which missing ranks share."""
    steps = [
        [with_actions(cell, lambda _, action: action._replace(stage=stages.index(action.stage))) for cell in step
         if cell.is_compute]
        for step in trace.steps
    ]  # fmt: skip
    return replace(trace, steps=steps)


def with_actions(cell: CellRange, changed: Callable[[CellRange, Action], Action]) -> CellRange:
    actions = tuple(changed(cell, action) for action in cell.members)
    return replace(cell, cell=actions[0] if isinstance(cell.cell, Action) else actions)


def missing_ranks_of(traces: Sequence[RankTrace], num_ranks: int | None = None) -> list[int]:
    """Return the ranks of a job's pipeline without a trace, which are equally far apart in the job."""
    ranks = sorted({trace.rank or 0 for trace in traces})
    size = min(trace.num_ranks or 0 for trace in traces) or num_ranks or 0
    if len(ranks) < len(traces):
        return []
    apart = min((after - before for before, after in pairwise(ranks)), default=1)
    return sorted(set(range(ranks[0] % apart, size, apart)) - {*ranks})


def table_rows_of(traces: Sequence[RankTrace]) -> list[list[Cell]]:
    """Return the table's rows as the first step ran them, including sends and receives."""
    wanted = (*range(Op.F, Op.W + 1), Op.SEND_F, Op.RECV_F, Op.SEND_B, Op.RECV_B)
    return [[cell.cell for cell in trace.steps[0] if cell.members[0].op in wanted] for trace in traces]


def result_of(traces: Sequence[RankTrace], *, num_warm_up: int) -> dict[str, Any]:
    """Return the steps of all ranks as `ppsim train`'s ranks report them.

    Raises `ConfigError` for too few steps, and for ranks with different numbers of steps.
    """
    traces = with_common_steps(traces)
    require_as_many_steps(traces)
    number = len(traces[0].steps)
    if num_warm_up >= number:
        raise ConfigError(f"{traces[0].source} has {number} steps: none is left after {num_warm_up} of warm-up")
    if len({trace.on_device for trace in traces}) > 1:
        without = next(trace.source for trace in traces if not trace.on_device)
        raise ConfigError(f"{without} holds no kernels, other ranks' traces do: trace CPU and CUDA on all")
    base_ns = min(trace.base_ns for trace in traces)
    on_one_base = [
        trace.steps if trace.base_ns == base_ns else _later(trace.steps, (trace.base_ns - base_ns) / 1e9)
        for trace in traces
    ]
    return {
        "steps": [_step_record(list(step), traces) for step in zip(*on_one_base, strict=True)],
        "num_warm_up": num_warm_up,
        "differences": None,
        "numbers": traces[0].numbers,
        "to_collective_s": list(zip(*map(_to_collectives, traces), strict=True)),
    }


def _to_collectives(trace: RankTrace) -> list[float | None]:
    spans = [
        [span for cell in step if cell.is_compute for span in ([one for _, one in cell.device] or [cell])]
        for step in trace.steps
    ]
    collectives: list[float | None] = []
    for step, following in pairwise(spans):
        end, begin = max(one.end for one in step), min(one.begin for one in following)
        index = bisect_left(trace.collectives, end)
        is_between = index < len(trace.collectives) and trace.collectives[index] < begin
        collectives.append(trace.collectives[index] - end if is_between else None)
    return collectives


def message_bytes_of(traces: Sequence[RankTrace]) -> float | None:
    sizes = sorted(
        cell.message_bytes
        for trace in traces
        for cell in trace.steps[0]
        if cell.members[0].op in (Op.SEND_F, Op.SEND_B) and cell.message_bytes is not None
    )
    return sizes[len(sizes) // 2] if sizes else None


def _step_record(ranks: list[list[CellRange]], traces: Sequence[RankTrace]) -> list[dict[str, Any]]:
    """Return the records of one step; a transfer is known if both of its ends are kernels."""
    ends = {
        str(cell.members[0]): TimeRange(cell.device[0][1].begin, max(one.end for _, one in cell.device))
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
                sender = str(action.matching_send)
                if str(action) in ends and sender in ends:
                    here, there = ends[str(action)], ends[sender]
                    # Each kernel runs from its launch on, but no data moves before both kernels have started.
                    transfers[sender] = (max(here.begin, there.begin), max(here.end, there.end))
        records.append({"records": lines, "transfers": transfers})
    return records


def _on_host(cell: CellRange, source: str) -> dict[str, Any]:
    """Actions run from the end of their last receive to the end of the range."""
    calls = [max((wait.end for wait in cell.waits), default=cell.begin)]
    waits = [[max(wait.begin, cell.begin), wait.end] for wait in cell.waits]
    if len(cell.members) > 1:
        forward_first, node_begin, node_end = _parts(cell, source)
        if forward_first:
            # The forward's end is not recorded: use the last operator before the backward's receive.
            second = node_begin
            done = max(
                (operator.end for operator in cell.operators if operator.end <= node_begin), default=node_begin
            )
        else:
            done = node_end
            second = max((wait.end for wait in cell.waits if wait.end > done), default=done)
        first = max((wait.end for wait in cell.waits if wait.end <= done), default=cell.begin)
        later = [[done, wait.end] for wait in cell.waits if done < wait.end <= second]
        calls, waits = [first, second], [[cell.begin, first], *later[-1:]]
    times = {"begin": cell.begin, "end": cell.end, "waits": waits, "calls": calls}
    return {"name": format_cell(cell.cell), **times, "work": cell.work}


def _on_device(cell: CellRange, last: float, source: str) -> dict[str, Any]:
    """Actions run from the start of their first kernel to the end of the last."""
    name = format_cell(cell.cell)
    if not cell.device:
        if all(action.op is Op.I for action in cell.members):  # I of a first stage, which does nothing
            at = max(last, cell.begin)
            return {"name": name, "begin": at, "end": at, "waits": [], "calls": [at]}
        raise ConfigError(f"{source}: {name} launched no kernel: trace CPU and CUDA activities, and whole steps")
    begin, end = cell.device[0][1].begin, max(one.end for _, one in cell.device)
    calls = [begin]
    if len(cell.members) > 1:
        forward_first, node_begin, node_end = _parts(cell, source)
        turn = node_begin if forward_first else node_end
        calls.append(min((one.begin for moment, one in cell.device if moment > turn), default=end))
    wait_s = cell.launch_wait_s if len(calls) == 1 else 0.0
    return {"name": name, "begin": begin, "end": end, "waits": [], "calls": calls, "launch_wait_s": wait_s}


def _parts(cell: CellRange, source: str) -> tuple[bool, float, float]:
    """Return whether the forward of a fused action comes first, and the range of autograd's nodes."""
    kinds = [action.op is Op.F for action in cell.members]
    if sorted(kinds) != [False, True] or not cell.nodes:
        raise ConfigError(
            f"{source}: the actions of {format_cell(cell.cell)} cannot be told apart; of a fused cell only one "
            f"forward and one backward can, by the nodes of autograd"
        )
    return kinds[0], cell.nodes[0].begin, max(node.end for node in cell.nodes)
