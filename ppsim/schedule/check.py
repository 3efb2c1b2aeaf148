"""Check that a table is complete, ordered and free of deadlock, and name the wrong actions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ppsim.base.display import Printable
from ppsim.base.errors import Deadlock, ScheduleError, require_kind
from ppsim.schedule.analysis_cache import cached
from ppsim.schedule.dependencies import dependencies, index_of
from ppsim.schedule.explain_cycle import lines_around
from ppsim.schedule.grammar import MOST
from ppsim.schedule.graph import CHANNELS, build_graph, graph_of, messages_in, order_messages
from ppsim.schedule.lowering import RECEIVES
from ppsim.schedule.messages import MessageTable
from ppsim.schedule.option_types import Channel, Communication, Receives
from ppsim.schedule.placement import style_of
from ppsim.schedule.table import NONE, Op, Schedule
from ppsim.schedule.waits import broken_waits

_MOST_SHOWN = 4

Outcome = Literal["runs", "deadlock", "misordered"]


@dataclass(frozen=True)
class Finding:
    """One error or warning."""

    severity: Literal["error", "warning"]
    rule: str
    message: str


@dataclass(frozen=True)
class CommunicationCheck:
    """Whether a table runs with one way of communicating."""

    communication: Communication
    channel: Channel
    receives: Receives
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True, repr=False)
class CheckReport(Printable):
    """Findings and, without errors, a verdict for each combination of channel and receives."""

    findings: list[Finding] = field(default_factory=list)
    verdicts: list[CommunicationCheck] = field(default_factory=list)

    @property
    def one_line(self) -> str:
        runs = sum(verdict.outcome == "runs" for verdict in self.verdicts)
        return f"{len(self.errors)} errors, runs on {runs} of {len(self.verdicts)} kinds of channels and receives"

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]


def validate(schedule: Schedule) -> None:
    """Raise `ScheduleError` for the first broken rule; `build_graph` detects deadlocks between ranks."""
    cached(schedule, "rules", lambda: _require_rules(schedule))


def _require_rules(schedule: Schedule) -> None:
    for finding in _broken_rules(schedule):
        raise ScheduleError(finding.message)


def check(schedule: Schedule) -> CheckReport:
    """Return the errors, warnings and deadlocks of a table. A deadlock on an ideal network is an error.

    >>> import ppsim
    >>> report = ppsim.check(ppsim.build("1f1b", pp=2, microbatches=4))
    >>> [(one.channel, one.outcome) for one in report.verdicts if one.receives == "deferred"]
    [('edge', 'runs'), ('pair', 'deadlock'), ('direction', 'runs'), ('rank', 'deadlock'), ('ideal', 'runs')]
    """
    require_kind("schedule", schedule, Schedule, "a ppsim.Schedule, as from ppsim.build or ppsim.read_schedule")
    findings = list(_broken_rules(schedule))
    if findings:
        return CheckReport(findings)
    try:
        build_graph(schedule)
    except ScheduleError as error:
        rule = "deadlock" if isinstance(error, Deadlock) else "messages"
        return CheckReport([Finding("error", rule, str(error))])
    # A compute+comms table contains its receives, so their places are fixed.
    places: list[Receives] = ["torch"] if schedule.has_communication else list(RECEIVES)
    messages = cache(lambda: messages_in(schedule))
    by_place = [_verdicts(messages, receives) for receives in places]
    overlapping = [verdict for verdicts in by_place for verdict in verdicts[:-1]]
    warnings = [Finding("warning", rule, message) for rule, message in _warnings(schedule)]
    return CheckReport(warnings, [*overlapping, *(verdicts[-1] for verdicts in by_place)])


_AS_IN = {"edge": ("rank", "pair"), "pair": ("rank",), "direction": ("rank",)}
"""For each channel, channels that merge its queues. A table that runs on one of these also runs on the channel."""


def _verdicts(messages: Callable[[], MessageTable], receives: Receives) -> list[CommunicationCheck]:
    verdicts: dict[tuple[Communication, Channel], CommunicationCheck] = {}
    placed: MessageTable | None = None
    ways: list[tuple[Communication, Channel]] = [("overlap", channel) for channel in CHANNELS if channel != "ideal"]
    ways.append(("blocking", "ideal"))
    for way in sorted(ways, key=lambda way: len(_AS_IN.get(way[1], ()))):
        communication, channel = way
        implied = [verdicts["overlap", one] for one in _AS_IN.get(channel, ())]  # type: ignore[index]
        outcome: Outcome = "runs"
        reason = ""
        if not any(verdict.outcome == "runs" for verdict in implied):
            try:
                placed = placed or order_messages(
                    messages().moved(), receives
                )  # a copy: its caches are freed with it
                graph_of(placed, communication=communication, channel=channel)
            except ScheduleError as error:
                outcome = "deadlock" if isinstance(error, Deadlock) else "misordered"
                reason = str(error)
        verdicts[way] = CommunicationCheck(communication, channel, receives, outcome, reason)
    return [verdicts[way] for way in ways]


# --- rules ---


def _broken_rules(schedule: Schedule) -> Iterator[Finding]:
    """Yield the findings of the first broken rule, because later rules assume that earlier ones hold."""
    compute = schedule.compute_only()
    for rule, finder in (
        ("placement", _misplaced_stages), ("microbatch-ids", _odd_microbatches), ("replicas", _odd_replicas),
        ("complete", _incomplete), ("order", _misordered), ("loss-order", _loss_order), ("fused", _odd_fusions),
        ("waits", broken_waits),
    ):  # fmt: skip
        messages = list(islice(finder(schedule if finder is broken_waits else compute), _MOST_SHOWN))
        yield from (Finding("error", rule, message) for message in messages)
        if messages:
            return


def _misplaced_stages(compute: Schedule) -> Iterator[str]:
    if not len(compute):
        yield "the table has no F, B, I or W"
        return
    for idle in np.flatnonzero(np.diff(compute.rank_offsets) == 0):
        yield f"rank {idle} has no action; every rank needs a stage"
    for entry in np.flatnonzero(compute.rank != compute.stage_to_rank[compute.stage]):
        stage, rank = int(compute.stage[entry]), int(compute.rank[entry])
        yield (
            f"stage {stage} is on rank {compute.stage_to_rank[stage]} and, with {compute[int(entry)]}, on rank "
            f"{rank}; a stage lives on one rank"
        )
        return
    missing = np.flatnonzero(np.bincount(compute.stage, minlength=compute.num_stages) == 0)
    if len(missing):
        yield (
            f"stage {missing[0]} is on no rank; with {compute.num_stages - 1} as the largest, stages must be "
            f"0 … {compute.num_stages - 1}"
        )


def _odd_microbatches(compute: Schedule) -> Iterator[str]:
    if compute.num_units > max(len(compute), MOST):  # avoid an array far larger than the table
        yield (
            f"microbatches in {compute.num_slices} slices need as many actions, the table has {len(compute)}; "
            f"--slices must be at most {int(compute.microbatch.max()) + 1}"
        )
        return
    used = np.bincount(compute.microbatch, minlength=compute.num_units) > 0
    largest = len(used) - 1
    if len(used) > compute.num_units:
        yield f"microbatch {largest} is one too many: there are {compute.num_units}, numbered from 0"
    elif not used.all():
        missing = int(np.argmin(used))
        of_slices = f" in {compute.num_slices} slices" if compute.num_slices > 1 else ""
        yield (
            f"microbatch {missing} occurs nowhere; with {largest} as the largest, microbatches must be "
            f"numbered 0 … {largest}{of_slices}"
        )


def _odd_replicas(compute: Schedule) -> Iterator[str]:
    num_replicas, num_stages = compute.num_replicas, compute.num_stages
    if num_stages % num_replicas:
        yield f"{num_stages} stages cannot be divided into {num_replicas} model replicas of equal length"
        return
    if num_replicas == 1:
        if replicas := _replicas_of(compute):
            yield (
                f"a table of {replicas} replicas: each chain of {num_stages // replicas} stages runs microbatches "
                f"of its own; read it as such (--replicas {replicas}). torch, which holds one chain, cannot run it"
            )
        return
    if compute.num_microbatches < num_replicas:
        yield f"{compute.num_microbatches} microbatches leave a chain of {num_replicas} without any"
        return
    chain = np.arange(num_stages) // compute.num_model_stages
    for entry in np.flatnonzero(chain[compute.stage] != compute.chain_of_unit[compute.microbatch]).tolist():
        action = compute[entry]
        yield (
            f"{action} crosses over: stage {action.stage} belongs to chain {chain[action.stage]}, microbatch "
            f"{action.microbatch} to chain {compute.chain_of_unit[action.microbatch]}"
        )


def _replicas_of(compute: Schedule) -> int | None:
    """Return the number of model replicas of a table that was read as one chain, or None."""
    num_pairs = compute.num_stages * compute.num_units  # pairs of stage and microbatch: two or three actions each
    for num_replicas in range(max(2, 2 * num_pairs // len(compute)), 3 * num_pairs // len(compute) + 1):
        read_so = replace(compute, num_replicas=num_replicas)
        if next(_odd_replicas(read_so), None) is None and next(_incomplete(read_so), None) is None:
            return num_replicas
    return None


def _incomplete(compute: Schedule) -> Iterator[str]:
    # avoid a huge array for few actions
    num_units = compute.num_units
    num_pairs = compute.num_stages * num_units
    if num_pairs // compute.num_replicas > len(compute):
        yield (
            f"{compute.num_stages} stages and {num_units} microbatches need at least "
            f"{2 * num_pairs // compute.num_replicas} actions, the table has {len(compute)}"
        )
        return
    key = compute.stage.astype(np.int64) * num_units + compute.microbatch
    count = {op: np.bincount(key[compute.op == op], minlength=num_pairs) for op in (Op.F, Op.B, Op.I, Op.W)}
    chain = np.arange(compute.num_stages) // compute.num_model_stages
    wanted = (chain[:, np.newaxis] == compute.chain_of_unit[np.newaxis, :]).ravel()

    def name(pair: int, op: Op) -> str:
        return f"{pair // num_units}{op.name}{pair % num_units}"

    def home(pair: int) -> str:
        return f"stage {pair // num_units} is on rank {compute.stage_to_rank[pair // num_units]}"

    for op in (Op.F, Op.B, Op.I, Op.W):
        for pair in np.flatnonzero(count[op] > 1).tolist():
            entries = np.flatnonzero((compute.op == op) & (key == pair)).tolist()
            yield f"{name(pair, op)} runs {len(entries)} times\n" + lines_around(compute, entries)
    for pair in np.flatnonzero(wanted & (count[Op.F] == 0)).tolist():
        yield f"{name(pair, Op.F)} is missing; {home(pair)}"
    both = (count[Op.B] > 0) & ((count[Op.I] > 0) | (count[Op.W] > 0))
    for pair in np.flatnonzero(both).tolist():
        other = Op.I if count[Op.I][pair] else Op.W
        yield f"{name(pair, Op.B)} and {name(pair, other)} both run; a backward is either B, or I and W"
    neither = wanted & ((count[Op.B] + count[Op.I] + count[Op.W]) == 0)
    for pair in np.flatnonzero(neither).tolist():
        split = f"{name(pair, Op.I)} and {name(pair, Op.W)}"
        yield f"{name(pair, Op.B)} is missing (or {split}); {home(pair)}"
    for has, lacks in ((Op.I, Op.W), (Op.W, Op.I)):
        for pair in np.flatnonzero((count[has] > 0) & (count[lacks] == 0) & ~both).tolist():
            entry = int(np.flatnonzero((compute.op == has) & (key == pair))[0])
            yield (f"{name(pair, lacks)} is missing; {name(pair, has)} needs it\n" + lines_around(compute, [entry]))


def _misordered(compute: Schedule) -> Iterator[str]:
    needs = dependencies(compute)
    entries = np.arange(len(compute))
    for needed in (needs.own, needs.neighbour, needs.slice):
        on_rank = (needed != NONE) & (compute.rank[needed] == compute.rank)
        for entry in np.flatnonzero(on_rank & (needed > entries)).tolist():
            yield (
                f"rank {compute.rank[entry]} runs {compute[entry]} before {compute[int(needed[entry])]}, which it "
                f"needs\n" + lines_around(compute, [entry, int(needed[entry])])
            )


def _loss_order(compute: Schedule) -> Iterator[str]:
    """Require forwards in microbatch order on the last stage: torch appends losses and looks them up by number."""
    depth = compute.num_model_stages
    for last, forwards in enumerate(index_of(compute, (Op.F,))[depth - 1 :: depth]):
        units = np.flatnonzero(compute.chain_of_unit == last)
        late = np.flatnonzero(np.diff(forwards[units]) < 0)
        if len(late):
            microbatch = int(units[late[0]])
            entries = [int(forwards[microbatch + 1]), int(forwards[microbatch])]
            yield (
                f"the last stage forwards microbatch {microbatch + 1} before {microbatch}; torch would take one's "
                f"loss for the other's and train on wrong gradients\n" + lines_around(compute, entries)
            )


def _odd_fusions(compute: Schedule) -> Iterator[str]:
    """No part may need the result of another part: torch starts a fused cell only when it has all inputs."""
    fused = compute.fused
    if not np.any(fused != NONE):
        return
    needed = dependencies(compute).neighbour
    inside: NDArray[np.bool_] = (needed != NONE) & (fused != NONE) & (fused[needed] == fused)
    for entry in np.flatnonzero(inside).tolist():
        yield (
            f"{compute[entry]} is fused with {compute[int(needed[entry])]}, whose result it needs\n"
            + lines_around(compute, [entry, int(needed[entry])])
        )


def why_not_in_torch(schedule: Schedule) -> str | None:
    if schedule.num_replicas > 1:
        return f"it holds one chain of stages, this table has {schedule.num_replicas} replicas of the model"
    if schedule.num_slices > 1:
        return f"it runs whole microbatches, this table cuts each into {schedule.num_slices} slices"
    return None


def compute_for(runtime: str, schedule: Schedule) -> Schedule:
    """Raises `ScheduleError` for an invalid table, and for a table with model replicas or slices."""
    validate(schedule)
    if reason := why_not_in_torch(schedule):
        raise ScheduleError(f"{runtime} cannot run {schedule.name or 'this table'}: {reason}")
    return schedule.compute_only()


def _warnings(schedule: Schedule) -> Iterator[tuple[str, str]]:
    if reason := why_not_in_torch(schedule):
        yield "torch", f"torch cannot run this table: {reason}"
        return
    compute = schedule.compute_only()
    if schedule.splits_backward:
        yield (
            "torch-2.13",
            "I and W need torch 2.13 or newer: older versions compute wrong gradients for a weight that a stage "
            "uses twice",
        )
        if np.any((compute.op == Op.I) & (compute.stage == 0)):
            yield (
                "first-stage-split",
                "stage 0 has no input gradient: torch runs nothing in its I and the whole backward in its W",
            )
    if style_of(compute.stage_to_rank.tolist(), compute.num_ranks) == "custom":
        yield "placement-style", "the placement is neither looped nor V-shaped; torchtitan builds only these two"
    if schedule.has_communication:
        reduced = set(schedule.stage[schedule.op == Op.REDUCE_GRAD].tolist())
        for stage in range(schedule.num_stages):
            if stage not in reduced:
                yield (
                    "reduce-grad",
                    f"stage {stage} has no REDUCE_GRAD; torch would leave its gradients "
                    f"{schedule.num_microbatches} times too large",
                )
