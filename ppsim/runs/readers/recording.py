"""One process's recording from any profiler, converted to a trace.

An action's kernels are those launched within its range by any thread (an autograd thread launches the backward),
except NCCL's.
"""

import re
import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from statistics import median
from typing import NamedTuple, TypeVar

from ppsim.base.errors import ConfigError, PpsimError
from ppsim.base.files import prefix_errors
from ppsim.runs.kernel_totals import KernelTotals
from ppsim.runs.readers.patterns import STEP, NameCounts, ParsedName, named_in
from ppsim.runs.traces import CellRange, RankTrace, TimeRange, split_by_names
from ppsim.schedule.table import NONE, Action, Cell, Op

MOST_KEPT = 6_000_000
"""Maximum number of ranges, launches, kernels and operators per process, at about 200 bytes each."""

_LIKE = r"(?P<kind>forward|backward) (?P<microbatch>\d+)"
"""A pattern to suggest if no better one was found."""

_Item = TypeVar("_Item")


class DeviceWork(NamedTuple):
    """A kernel, copy or fill on the device; `message_bytes` is known for some NCCL kernels."""

    begin: float
    end: float
    is_nccl: bool
    message_bytes: float | None


@dataclass
class Recording:
    """The recording of one process, in seconds from `base_ns` on.

    `ranges` are actions with the index of the matching pattern. `launches` have a time and the number under which
    `device` has the launched work. `messages` are times and message sizes noted by the host. `waits` (for
    receives), `nodes` (of autograd) and `operators` are ranges on the host, which divide fused actions.
    """

    source: str
    names: NameCounts
    rank: int | None = None
    num_ranks: int | None = None
    host: str = ""
    base_ns: int = 0
    ranges: list[tuple[float, float, int, ParsedName]] = field(default_factory=list)
    steps: list[tuple[float, float, int]] = field(default_factory=list)
    launches: list[tuple[float, int]] = field(default_factory=list)
    device: dict[int, list[DeviceWork]] = field(default_factory=dict)
    messages: list[tuple[float, float]] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)
    nodes: list[tuple[float, float]] = field(default_factory=list)
    operators: list[tuple[float, float]] = field(default_factory=list)
    collectives: list[float] = field(default_factory=list)
    kernels: KernelTotals = field(default_factory=KernelTotals)

    def keep_range(self, name: str, begin: float, end: float) -> None:
        if STEP.fullmatch(name):
            self.steps.append((begin, end, int(re.findall(r"\d+", name)[-1])))
        elif matched := self.names.match(name):
            pattern_index, match = matched
            _require_order(begin, end, f"{self.source}: the range {name}")
            with prefix_errors(self.source):
                self.ranges.append((begin, end, pattern_index, named_in(match, self.source)))

    def keep_work(self, number: int, begin: float, end: float, name: str, message_bytes: float | None) -> None:
        _require_order(
            begin, max(end, begin), f"{self.source}: the device's '{name}'"
        )  # some work is recorded with an end before its begin
        self.device.setdefault(number, []).append(DeviceWork(begin, end, "nccl" in name.lower(), message_bytes))
        self.kernels.add(name, max(end - begin, 0.0))

    def require_room(self, instead: str) -> None:
        """Raise `ConfigError` if the recording is too large for memory; `instead` says how to record less."""
        kept = (self.ranges, self.launches, self.messages, self.waits, self.nodes, self.operators)
        if len(self.device) + sum(len(one) for one in kept) > MOST_KEPT:
            raise ConfigError(
                f"{self.source} holds more than {MOST_KEPT:,} ranges, launches, work and operators, which memory "
                f"is to hold: profile fewer steps ({instead})"
            )


@contextmanager
def limit_recording(source: str, what: str) -> Iterator[None]:
    """Convert errors from malformed entries to `ConfigError`."""
    try:
        yield
    except PpsimError:
        raise
    except sqlite3.Error as error:
        raise ConfigError(f"{source} is no {what}, or is cut off: {error}") from None
    except KeyError as error:
        raise ConfigError(f"{source} is no {what}: an entry lacks {error}") from None
    except (TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{source} is no {what}: an entry is not as its format says ({error})") from None


def _require_order(begin: float, end: float, what: str) -> None:
    if not -inf < begin <= end < inf:
        raise ConfigError(f"{what} is from {begin:.9g} to {end:.9g} s: it must end, and not before it begins")


def kernels_per_step(recording: Recording) -> tuple[KernelTotals, float | None]:
    """Return device time by kind per step, and the median step time, None if steps have no range.

    Raises `ConfigError` if there are no kernels, or neither ranges of steps nor actions.
    """
    if not recording.device:
        raise ConfigError(f"{recording.source} has no kernels")
    steps = sorted(recording.steps)
    if len(steps) > 1:
        return recording.kernels.per_step(len(steps)), median(b[0] - a[0] for a, b in pairwise(steps))
    cells = [named.cell for _, _, _, named in sorted(recording.ranges, key=lambda one: one[0])]
    number = cells.count(cells[0]) if cells and NONE not in _places(cells[0]) else 0
    if not steps and not number:
        raise ConfigError(
            f"{recording.source} has kernels and no range of a step: call torch.profiler's step(), or name the "
            "steps (iteration 1, …), so that the kernels of a step are known"
        )
    return recording.kernels.per_step(len(steps) or number), steps[0][1] - steps[0][0] if steps else None


def _places(cell: Cell) -> tuple[int, int]:
    first = cell if isinstance(cell, Action) else cell[0]
    return first.stage, first.microbatch


def trace_of(recording: Recording) -> RankTrace:
    """Return the trace, in steps if names are complete; raises `ConfigError` without an action."""
    places = [place for _, _, place, named in recording.ranges if _op_of(named).is_compute]
    if not places:
        seen, pattern = recording.names.most_common(), recording.names.likely_pattern()
        record = (
            ""
            if pattern
            else ", or record them: ppsim.integrations.torch.named_passes does so for torch's "
            "Schedule1F1B, which names none; or torch.profiler.record_function('Forward 3')"
        )
        raise ConfigError(
            f"{recording.source} has no range that names a pass of a pipeline (torch's PP:3F0, 'Forward 3', "
            f"Megatron-LM's forward_step, …); it has {f'ranges {seen}' if seen else 'no named range at all'}: tell "
            f"how passes are named, as ppsim read --pattern '{pattern or _LIKE}' -o run.json{record}"
        )
    best = min(places)
    wanted = [(begin, end, named) for begin, end, place, named in recording.ranges if place == best]
    wanted.sort(key=lambda one: one[0])
    for kept in (recording.launches, recording.messages, recording.nodes, recording.operators, recording.steps):
        kept.sort()
    recording.waits.sort(key=lambda wait: wait[1])
    ranges = [_cell_range(recording, begin, end, named) for begin, end, named in wanted]
    ranks = {named.rank for _, _, named in wanted if named.rank is not None}
    if len(ranks) > 1:
        raise ConfigError(f"{recording.source} holds passes of {len(ranks)} ranks: give one recording a rank")
    return split_by_names(RankTrace(
        recording.source, next(iter(ranks), recording.rank), recording.host, bool(recording.device), [ranges],
        base_ns=recording.base_ns, marks=[begin for begin, _, _ in recording.steps],
        numbers=[number for _, _, number in recording.steps], num_ranks=recording.num_ranks,
        collectives=sorted(recording.collectives),
    ))  # fmt: skip


def _op_of(named: ParsedName) -> Op:
    return named.cell.op if isinstance(named.cell, Action) else named.cell[0].op


def _cell_range(recording: Recording, begin: float, end: float, named: ParsedName) -> CellRange:
    item = CellRange(begin, end, named.cell, chunk=named.chunk)
    inside = _between(recording.launches, item, key=lambda launch: launch[0])
    work = [(moment, one) for moment, number in inside for one in recording.device.get(number, ())]
    sizes = [one.message_bytes for _, one in work if one.message_bytes]
    sizes += [size for _, size in _between(recording.messages, item, key=lambda message: message[0])]
    wait_s = launch_wait_s(work) if item.is_compute else 0.0
    if item.is_compute:
        work = [(moment, one) for moment, one in work if not one.is_nccl]
    joined = replace(
        item,
        waits=[TimeRange(*wait) for wait in _between(recording.waits, item, key=lambda wait: wait[1])],
        device=sorted(
            ((moment, TimeRange(one.begin, one.end)) for moment, one in work), key=lambda one: one[1].begin
        ),
        message_bytes=next(iter(sizes), None),
        launch_wait_s=wait_s,
    )
    if len(item.members) == 1:
        return joined
    nodes, operators = (
        [TimeRange(*one) for one in _between(spans, item, key=lambda span: span[0])]
        for spans in (recording.nodes, recording.operators)
    )
    return replace(joined, nodes=nodes, operators=operators)


def launch_wait_s(launches: list[tuple[float, DeviceWork]]) -> float:
    """Return the device's idle time that ends with work launched while it was idle.

    `launches` have their times. This is the time called host wait in Holistic Trace Analysis (idle time breakdown).
    """
    ordered = sorted(launches, key=lambda launch: launch[1].begin)
    wait_s, busy_until = 0.0, ordered[0][1].end if ordered else 0.0
    for launched, running in ordered:
        if launched > busy_until:
            wait_s += max(0.0, running.begin - busy_until)
        busy_until = max(busy_until, running.end)
    return wait_s


def _between(sorted_items: list[_Item], at: TimeRange, *, key: Callable[[_Item], float]) -> list[_Item]:
    first = bisect_left(sorted_items, at.begin, key=key)
    return sorted_items[first : bisect_right(sorted_items, at.end, key=key)]
