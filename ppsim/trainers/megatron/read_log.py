"""Reader of logs of Megatron-LM or of a trainer built on it, such as Primus; a log has no timeline.

These lines are read:

- iterations of `training_log`: `elapsed time per iteration (ms): 3240.1` (Primus adds the mean after a slash)
- timers below `(min, max) time across ranks (ms):` or `max time across ranks (ms):` (megatron/core/timers.py,
  `--timing-log-level`), with one line per rank for `--timing-log-option all`
- timers of old versions in one line: `time (ms) | forward-compute: 61.9 | backward-compute: 103.5`
- memory: `[Rank 0] … memory (MB) | max allocated: …`
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from ppsim.base.errors import ConfigError
from ppsim.base.limits import number_from
from ppsim.runs.log_totals import LogTotals
from ppsim.runs.readers.stream import lines_of

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NUMBER = re.compile(r"\biteration +(\d{1,12})/")
_ITERATION = re.compile(r"elapsed time per iteration \(ms\): *(\d[^\s|/]*)")
# The lookbehind keeps matching linear in the length of the line: a match starts only at the first letter of a name.
_TIMER = re.compile(r"(?<![\w-])([a-z][\w-]*) \.*: \(([\d.]+), ([\d.]+)\)")
_LINE = re.compile(r"\btime \(ms\)((?: *\| *[a-z][\w-]*: *[\d.]+)+)")
_OF_LINE = re.compile(r"([a-z][\w-]*): *([\d.]+)")
_MOST = re.compile(r"(?<![\w-])([a-z][\w-]*) \.+: ([\d.]+)\s*$")
_HEADING = re.compile(r"(?:^|\s)([a-z][\w-]*):\s*$")
_RANK = re.compile(r"\brank +(\d{1,9}): ([\d.]+)\s*$")
_MEMORY = re.compile(r"(max allocated|max reserved): *([\d.]+)")
_MIB = 2**20


def is_log(text: str) -> bool:
    return _ITERATION.search(_COLOUR.sub("", text)) is not None


def read_log(path: str | Path, *, num_warm_up: int = 1) -> LogTotals:
    return _totals(lines_of(path, errors="replace"), str(path), num_warm_up)


def _totals(lines: Iterable[str], source: str, num_warm_up: int) -> LogTotals:
    totals = _Found()
    for line in lines:
        totals.add(_COLOUR.sub("", line))
    if not totals.iterations:
        garbled = f" ({totals.num_garbled} garbled lines were skipped)" if totals.num_garbled else ""
        raise ConfigError(f"{source} has no line 'elapsed time per iteration (ms): …'{garbled}")
    return LogTotals(
        source=source,
        iterations_s=totals.iterations[num_warm_up:],
        timers_s={name: _medians(pairs[num_warm_up:] or pairs) for name, pairs in totals.timers.items() if pairs},
        memory_bytes=totals.memory,
        num_warm_up=num_warm_up,
        num_garbled=totals.num_garbled,
        num_restarts=totals.num_restarts,
    )


@dataclass
class _Found:
    """Values in seconds and bytes. Lines are garbled if ranks write into each other's lines."""

    iterations: list[float] = field(default_factory=list)
    timers: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    is_new: bool = False
    memory: dict[str, float] = field(default_factory=dict)
    heading: str = ""
    num_garbled: int = 0
    num_restarts: int = 0
    last: int = -1

    def add(self, line: str) -> None:
        try:
            self._add_times(line)
            for name, text in _MEMORY.findall(line) if "memory (MB)" in line else ():
                self.memory[name] = max(self.memory.get(name, 0.0), _number(text) * _MIB)
        except ConfigError:
            self.num_garbled += 1

    def _add_times(self, line: str) -> None:
        if match := _ITERATION.search(line):
            number = int(named[1]) if (named := _NUMBER.search(line)) else self.last
            if number < self.last:  # a restart begins a run of its own
                self.iterations, self.timers, self.num_restarts = [], defaultdict(list), self.num_restarts + 1
            self.last = number
            self.iterations.append(_number(match[1], least=_LEAST_MS) / 1e3)
        elif match := _LINE.search(line):
            for name, text in _OF_LINE.findall(match[1]):
                self.timers[name].append((float("nan"), _number(text) / 1e3))
        elif match := _TIMER.search(line):
            self.timers[match[1]].append((_number(match[2]) / 1e3, _number(match[3]) / 1e3))
        elif match := _MOST.search(line):
            self.timers[match[1]].append((float("nan"), _number(match[2]) / 1e3))
        elif (match := _RANK.search(line)) and self.heading:
            _add_rank(self.timers[self.heading], _number(match[2]) / 1e3, is_first=self.is_new)
            self.is_new = False
        elif match := _HEADING.search(line):
            self.heading, self.is_new = match[1], True


_LEAST_MS = 1e-3  # a shorter iteration time counts as garbled


def _number(text: str, *, least: float = 0.0) -> float:
    return number_from(text, "the line", least=least, most=_MOST_NUMBER)


_MOST_NUMBER = 1e12  # ms, or MB


def _add_rank(pairs: list[tuple[float, float]], seconds: float, *, is_first: bool) -> None:
    if is_first:
        pairs.append((seconds, seconds))
    else:
        pairs[-1] = (min(pairs[-1][0], seconds), max(pairs[-1][1], seconds))


def _medians(pairs: list[tuple[float, float]]) -> tuple[float | None, float]:
    most = median(most for _, most in pairs)
    least = [least for least, _ in pairs if least == least]
    return (median(least) if least else None, most)
