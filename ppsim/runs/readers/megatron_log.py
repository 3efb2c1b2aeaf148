"""Megatron-LM's log (and that of trainers built on it, Primus among them) → totals: there is no timeline in it.

Read are the lines of `training_log` (`elapsed time per iteration (ms): 3240.1`, Primus' with the mean behind a
slash), the timers below a line `(min, max) time across ranks (ms):` or `max time across ranks (ms):`
(megatron/core/timers.py, `--timing-log-level`), with `--timing-log-option all` a line a rank, and `[Rank 0] …
memory (MB) | max allocated: …`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from ppsim.base.errors import ConfigError
from ppsim.runs.readers.stream import lines_of
from ppsim.runs.totals import Totals

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ITERATION = re.compile(r"elapsed time per iteration \(ms\): *([\d.]+)")
_TIMER = re.compile(r"([a-z][\w-]*) \.*: \(([\d.]+), ([\d.]+)\)")
_MOST = re.compile(r"([a-z][\w-]*) \.+: ([\d.]+)\s*$")
_HEADING = re.compile(r"(?:^|\s)([a-z][\w-]*):\s*$")
_RANK = re.compile(r"\brank +(\d+): ([\d.]+)\s*$")
_MEMORY = re.compile(r"(max allocated|max reserved): *([\d.]+)")
_MIB = 2**20


def is_log(text: str) -> bool:
    """Return whether a text has a line of an iteration."""
    return _ITERATION.search(_COLOUR.sub("", text)) is not None


def read_log(path: str | Path, *, num_warm_up: int = 1) -> Totals:
    """Return the totals of a log, a line at a time; raises `ConfigError` for one without iterations."""
    return _totals(lines_of(path, errors="replace"), str(path), num_warm_up)


def _totals(lines: Iterable[str], source: str, num_warm_up: int) -> Totals:
    iterations: list[float] = []
    timers: dict[str, list[tuple[float, float]]] = defaultdict(list)
    memory: dict[str, float] = {}
    heading = ""
    for raw in lines:
        line = _COLOUR.sub("", raw)
        if found := _ITERATION.search(line):
            iterations.append(float(found[1]) / 1e3)
        elif found := _TIMER.search(line):
            timers[found[1]].append((float(found[2]) / 1e3, float(found[3]) / 1e3))
        elif found := _MOST.search(line):
            timers[found[1]].append((float("nan"), float(found[2]) / 1e3))
        elif (found := _RANK.search(line)) and heading:
            _add_rank(timers[heading], int(found[1]), float(found[2]) / 1e3)
        elif found := _HEADING.search(line):
            heading = found[1]
        for name, size in _MEMORY.findall(line) if "memory (MB)" in line else ():
            memory[name] = max(memory.get(name, 0.0), float(size) * _MIB)
    if not iterations:
        raise ConfigError(f"{source} has no line 'elapsed time per iteration (ms): …'")
    return Totals(
        source=source,
        iterations_s=iterations[num_warm_up:],
        timers_s={name: _medians(pairs[num_warm_up:] or pairs) for name, pairs in timers.items()},
        memory_bytes=memory,
        num_warm_up=num_warm_up,
    )


def _add_rank(pairs: list[tuple[float, float]], rank: int, seconds: float) -> None:
    """Widen the last pair by one more rank; ranks begin anew with each log."""
    if not pairs or rank == 0:
        pairs.append((seconds, seconds))
    else:
        pairs[-1] = (min(pairs[-1][0], seconds), max(pairs[-1][1], seconds))


def _medians(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Of the least and of the most; where only the most was logged, that is all that is known."""
    most = median(most for _, most in pairs)
    least = [least for least, _ in pairs if least == least]
    return (median(least) if least else most, most)
