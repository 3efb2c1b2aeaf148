"""CSV of actions, for recordings in other formats: rank, kind, stage, microbatch, start, end and optionally step.

Times are in seconds, or in the unit of the column name (start_ms). Without `step`, a repeated action starts a new
step. The optional column `clock` names the clock of a row's times.
"""

import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ppsim.base.errors import ConfigError
from ppsim.runs.readers.patterns import KINDS
from ppsim.runs.readers.recording import MOST_KEPT
from ppsim.runs.readers.stream import lines_of
from ppsim.runs.traces import CellRange, RankTrace, RunRecordings, require_like_steps, split_by_names
from ppsim.schedule.grammar import MOST
from ppsim.schedule.table import NONE, Action

NEEDED = ("rank", "kind", "start", "end")


_UNITS = {"": 1.0, "_s": 1.0, "_ms": 1e-3, "_us": 1e-6, "_ns": 1e-9}
"""Suffixes of the columns start and end, with their unit in seconds."""


def has_header(line: str) -> bool:
    names = [name.strip().lower() for name in line.split(",")]
    return {"rank", "kind"} <= set(names) and _unit_of(names) is not None


def _unit_of(names: Sequence[str]) -> str | None:
    return next((unit for unit in _UNITS if {f"start{unit}", f"end{unit}"} <= set(names)), None)


def read_rows(path: str | Path) -> RunRecordings:
    """Read a CSV; raises a `ConfigError` that names the wrong line."""
    lines = csv.DictReader(lines_of(path), skipinitialspace=True)
    try:
        return _recordings(lines, str(path))
    except csv.Error as error:
        raise ConfigError(f"{path}: line {lines.line_num + 1} is no line of a CSV: {error}") from None


def _recordings(lines: "csv.DictReader[str]", path: str) -> RunRecordings:
    lines.fieldnames = [name.strip().lower() for name in lines.fieldnames or ()]
    unit = _unit_of(lines.fieldnames)
    columns_read = {*lines.fieldnames, *(("start", "end") if unit is not None else ())}
    if unit is None or not columns_read >= set(NEEDED):
        missing = next(name for name in NEEDED if name not in columns_read)
        raise ConfigError(f"{path} lacks the column {missing}: there must be {', '.join(NEEDED)}")
    ranks: dict[int, dict[int, list[CellRange]]] = defaultdict(lambda: defaultdict(list))
    clocks: dict[int, str] = {}
    for row in lines:
        where = f"{path}: line {lines.line_num}"
        if lines.line_num > MOST_KEPT:
            raise ConfigError(f"{path} has more than {MOST_KEPT:,} lines, which memory is to hold: fewer steps do")
        rank, step, cell = _cell_range(row, unit, where)
        ranks[rank][step].append(cell)
        if clocks.setdefault(rank, row.get("clock") or "") != (row.get("clock") or ""):
            raise ConfigError(f"{where}: rank {rank} has two clocks")
    if not ranks:
        raise ConfigError(f"{path} has no passes below its header")
    traces = []
    for rank in sorted(ranks):
        source = f"{path}: rank {rank}"
        steps = [_one_by_one(ranks[rank][step], source) for step in sorted(ranks[rank])]
        trace = RankTrace(source, rank, clocks[rank], on_device=False, steps=steps)
        columns = trace.is_told
        traces.append(
            trace if not columns else require_like_steps(trace) if len(steps) > 1 else split_by_names(trace)
        )
    return RunRecordings(path, traces, kind="CSV of passes", passes_by="its times")


_ROUNDED = 1e-3
"""Overlap of two actions that counts as rounding, as a fraction of the shorter one."""


def _one_by_one(passes: list[CellRange], source: str) -> list[CellRange]:
    """Sort the actions of a rank by start; raises `ConfigError` if two overlap."""
    ordered: list[CellRange] = []
    for cell in sorted(passes, key=lambda cell: (cell.begin, cell.end)):
        if ordered and cell.begin < (before := ordered[-1]).end:
            if before.end - cell.begin > _ROUNDED * min(before.end - before.begin, cell.end - cell.begin):
                first, second = (one.members[0].op.name for one in (before, cell))
                raise ConfigError(
                    f"{source} has two passes at once, {first} from {before.begin:.9g} s to {before.end:.9g} s and "
                    f"{second} from {cell.begin:.9g} s: a rank runs one after the other, so give each the time in "
                    f"which it alone ran"
                )
            cell = replace(cell, begin=before.end, end=max(before.end, cell.end))
        ordered.append(cell)
    return ordered


def _cell_range(row: dict[str, str], unit: str, where: str) -> tuple[int, int, CellRange]:
    kind = (row["kind"] or "").strip()
    if kind.lower() not in KINDS:
        raise ConfigError(f"{where}: kind '{kind}' is none of {', '.join(KINDS)}")
    rank, step, stage, microbatch = (_number(row, name, where, default) for name, default in _DEFAULTS.items())
    try:
        begin, end = (float(row[name + unit]) * _UNITS[unit] for name in ("start", "end"))
    except (TypeError, ValueError):
        got = " and ".join(f"'{row[name + unit] or ''}'" for name in ("start", "end"))
        raise ConfigError(f"{where}: start and end must be numbers: got {got}") from None
    if not -float("inf") < begin <= end < float("inf"):
        raise ConfigError(f"{where}: start and end must be numbers, end not before start: got {begin} and {end}")
    return rank, step, CellRange(begin, end, Action(KINDS[kind.lower()], stage, microbatch))


_DEFAULTS = {"rank": None, "step": 0, "stage": NONE, "microbatch": NONE}


def _number(row: dict[str, str], name: str, where: str, default: int | None) -> int:
    text = (row.get(name) or "").strip()
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MOST)) and int(text) <= MOST):
        raise ConfigError(f"{where}: {name} must be a whole number from 0 on: got '{text}'")
    return int(text)
