"""Read and write torch.distributed.pipelining's CSV format: one row per rank, one action per cell.

::

    file   = [ slices newline ] row { newline row }       row r is rank r
    slices = "# slices " number                  only if microbatches are cut into slices; torch refuses this line
    row    = cell { "," cell }
    cell   = "" | action                         "" is an idle slot
    action = stage op [ microbatch ]  |  "(" action { ";" action } ")OVERLAP_F_B"
    op     = F | B | I | W                       the compute-only file
           | SEND_F | RECV_F | SEND_B | RECV_B | UNSHARD | RESHARD | REDUCE_GRAD
           | WAIT_SEND_F | WAIT_SEND_B | WAIT_REDUCE_GRAD        the compute+comms file

A RECV names the receiving stage: `2RECV_F0` receives the message of `1SEND_F0`. torch reads `0F0xyz` as `0F0` and
ignores unknown text; this reader raises an error.
"""

import csv
import io
import re
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Ints32, Ints64
from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.base.files import read_text
from ppsim.base.limits import DATA_BYTES
from ppsim.schedule.table import IDLE, NONE, Action, Cell, Op, Schedule, is_joined

MOST = 999_999
"""Largest stage or microbatch number in a file."""

_FUSED_SUFFIX = ")OVERLAP_F_B"
_ACTION = re.compile(
    r"(\d{1,6})("
    + "|".join(sorted((op.name for op in Op if op is not Op.IDLE), key=len, reverse=True))
    + r")(\d{1,6})?"
)
_OPS = {op.name: (op, op.has_microbatch) for op in Op}
_MOST_ERRORS_SHOWN = 8


def parse_cell(text: str) -> Cell:
    """Raises `ScheduleError` with the reason; the caller adds row and column.

    >>> str(parse_cell("3F0")), [str(action) for action in parse_cell("(3F1;4B0)OVERLAP_F_B")]
    ('3F0', ['3F1', '4B0'])
    """
    text = text.strip()
    if not text:
        return IDLE
    if not text.startswith("("):
        return _parse_action(text)
    if not text.endswith(_FUSED_SUFFIX):
        raise ScheduleError(f"'{text}' is no fused action, which ends in {_FUSED_SUFFIX}")
    members = tuple(_parse_action(member.strip()) for member in text[1 : -len(_FUSED_SUFFIX)].split(";"))
    for member in members:
        if not member.op.is_compute:
            raise ScheduleError(f"'{text}' fuses {member}; only F, B, I and W can be fused")
    return members


def _parse_action(text: str) -> Action:
    match = _ACTION.fullmatch(text)
    if match is None:
        raise ScheduleError(f"'{text}' is no action, which reads <stage><op><microbatch> as in 3F0")
    stage, name, microbatch = match.groups()
    op, has_microbatch = _OPS[name]
    if has_microbatch and microbatch is None:
        raise ScheduleError(f"'{text}' has no microbatch, which {name} needs as in {stage}{name}0")
    if not has_microbatch and microbatch is not None:
        raise ScheduleError(f"'{text}' has a microbatch, which {name} does not take")
    return Action(op, int(stage), int(microbatch) if microbatch else NONE)


def format_cell(cell: Cell) -> str:
    if isinstance(cell, Action):
        return str(cell)
    return "(" + ";".join(map(str, cell)) + _FUSED_SUFFIX


def parse_table(
    text: str, *, name: str = "", source: str = "the table", num_replicas: int = 1, num_slices: int | None = None
) -> Schedule:
    """Arguments and errors as in `read_schedule`; error messages start with `source`."""
    match = _SLICES_LINE.match(text)
    text, named_slices = (text[match.end() :], int(match[1])) if match else (text, None)
    if named_slices and num_slices not in (None, named_slices):
        raise ScheduleError(f"{source} is a table of {named_slices} slices per microbatch: got {num_slices}")
    num_slices = named_slices or (1 if num_slices is None else num_slices)
    first_row = 2 if named_slices else 1
    columns = _columns_of(text)
    if columns is not None:
        return Schedule.from_columns(*columns, name=name, num_replicas=num_replicas, num_slices=num_slices)
    rows: list[list[Cell]] = []
    errors: list[str] = []
    try:
        for number, texts in enumerate(csv.reader(io.StringIO(text, newline=""), strict=True), start=first_row):
            if not texts:
                errors.append(f"row {number} is blank; a rank needs at least one action")
            row: list[Cell] = []
            for column, cell in enumerate(texts, start=1):
                try:
                    row.append(parse_cell(cell))
                except ScheduleError as error:
                    errors.append(f"row {number} (rank {len(rows)}), column {column}: {error}")
            rows.append(row)
    except csv.Error as error:
        raise ScheduleError(f"{source} is not a CSV file: {error}") from None
    if not rows:
        raise ScheduleError(f"{source} is empty; a schedule has one row per rank")
    if errors:
        more = len(errors) - _MOST_ERRORS_SHOWN
        shown = errors[:_MOST_ERRORS_SHOWN] + ([f"… and {more} more"] if more > 0 else [])
        raise ScheduleError(f"{source} is malformed:\n  " + "\n  ".join(shown))
    return Schedule.from_rows(rows, name=name, num_replicas=num_replicas, num_slices=num_slices)


_SLICES_LINE = re.compile(r"# slices ([1-9]\d{0,5})\r?\n")


_DIGIT, _COMMA, _NEWLINE, _OTHER = 16, 17, 18, 19
_KINDS = bytearray([_OTHER] * 256)
"""Class of each byte: an op letter, a digit, a comma, a newline, or anything else."""
for _name in "FBIW":
    _KINDS[ord(_name)] = Op[_name]
_KINDS[ord("0") : ord("9") + 1] = [_DIGIT] * 10
_KINDS[ord(",")], _KINDS[ord("\n")] = _COMMA, _NEWLINE

_MOST_DIGITS = 6
_AT_ONCE = 1 << 18
"""Approximate number of bytes parsed in one go, in whole rows, so that the arrays fit in the processor's cache."""


def _columns_of(text: str) -> list[NDArray[Any]] | None:
    """Return the columns of a table of F, B, I, W and idle cells only, or None for other or malformed tables."""
    data = text.replace("\r\n", "\n").removesuffix("\n").encode() + b"\n"
    parts, counts, begin = [], [], 0
    while begin < len(data):
        end = data.find(b"\n", min(begin + _AT_ONCE, len(data) - 1)) + 1
        if (part := _columns_of_rows(data[begin:end])) is None:
            return None
        parts.append(part[:-1])
        counts.append(part[-1])
        begin = end
    op, stage, microbatch = (np.concatenate(column) for column in zip(*parts, strict=True))
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), *counts])
    return [op, stage, microbatch, np.full(len(op), NONE, dtype=np.int32), np.cumsum(offsets)]


def _columns_of_rows(data: bytes) -> list[NDArray[Any]] | None:
    """Return op, stage and microbatch of each cell, and the number of cells per row."""
    kinds = np.frombuffer(data.translate(_KINDS), dtype=np.uint8)
    marks = np.flatnonzero(kinds != _DIGIT)
    kind = kinds[marks]
    is_end = kind >= _COMMA
    before = np.diff(marks, prepend=-1)  # number of digits before a mark, plus one
    letters: _Places = slice(0, None, 2)
    ends: _Places = slice(1, None, 2)
    numbered: _Places = slice(None)
    named: _Places = slice(None)
    if is_end[letters].any() or not is_end[ends].all():
        is_behind_end = np.concatenate(([True], is_end[:-1]))
        is_idle = is_end & is_behind_end
        # Each op letter is between the ends of two cells, and an idle cell has no digits.
        if not (is_end | is_behind_end).all() or (before[is_idle] != 1).any():
            return None
        letters, ends, numbered, named = ~is_end, is_end, ~is_idle, ~is_idle[is_end]
    num_digits = np.minimum(before[numbered] - 1, _MOST_DIGITS + 1).astype(np.uint8)
    if kind.max() == _OTHER or not 1 <= num_digits.min(initial=1) <= num_digits.max(initial=1) <= _MOST_DIGITS:
        return None
    last = kind[ends]
    num_cells = np.diff(np.flatnonzero(last == _NEWLINE), prepend=-1)
    op = np.full(len(last), Op.IDLE, dtype=np.int8)
    stage, microbatch = (np.full(len(last), NONE, dtype=np.int32) for _ in range(2))
    numbers = _numbers_before(np.frombuffer(data, dtype=np.uint8), marks[numbered], num_digits)
    op[named], stage[named], microbatch[named] = kind[letters], numbers[0::2], numbers[1::2]
    is_blank = (num_cells == 1) & (op[np.cumsum(num_cells) - 1] == Op.IDLE)
    return None if is_blank.any() else [op, stage, microbatch, num_cells]


_Places: TypeAlias = slice | NDArray[np.bool_]


def _numbers_before(data: NDArray[np.uint8], end: Ints64, num_digits: NDArray[np.uint8]) -> Ints32:
    digits = data - np.uint8(ord("0"))
    numbers = digits[end - 1].astype(np.int32)
    for digit in range(1, int(num_digits.max(initial=0))):
        numbers += digits[end - (1 + digit)] * (num_digits > digit) * np.int32(10**digit)
    return numbers


def format_table(schedule: Schedule) -> str:
    slices = f"# slices {schedule.num_slices}\n" if schedule.num_slices > 1 else ""
    return slices + "".join(f"{row}\n" for row in format_rows(schedule))


def format_rows(schedule: Schedule) -> list[str]:
    if not len(schedule):
        return [""] * schedule.num_ranks
    texts = _texts_of(schedule)
    rows = ["".join(texts[begin:end]) for begin, end in pairwise((3 * schedule.rank_offsets).tolist())]
    lone_idle = np.diff(schedule.rank_offsets) == 1  # written as "": the row must not look blank
    for rank in np.flatnonzero(lone_idle).tolist():
        rows[rank] = rows[rank] or '""'
    return rows


def _texts_of(schedule: Schedule) -> list[str]:
    """Return three strings per entry: text before the microbatch, the microbatch, and the separator after it."""
    joined = is_joined(schedule)
    joined[np.flatnonzero(schedule.rank[1:] != schedule.rank[:-1])] = False
    is_fused = schedule.fused != NONE
    opens = is_fused & ~np.concatenate(([False], joined))
    closes = is_fused & ~np.concatenate((joined, [False]))
    is_last = np.zeros(len(schedule), dtype=np.bool_)
    is_last[schedule.rank_offsets[1:][np.diff(schedule.rank_offsets) > 0] - 1] = True

    heads = (schedule.stage.astype(np.int64) * len(Op) + schedule.op - Op.IDLE) * 2 + opens
    names = {}
    for head in sorted({*heads.tolist()}):
        stage, op = divmod(head // 2, len(Op))
        action = "" if op + Op.IDLE == Op.IDLE else f"{stage}{Op(op + Op.IDLE).name}"
        names[head] = "(" * (head % 2) + action
    has_microbatch = np.isin(schedule.op, [op for op in Op if op.has_microbatch])
    numbers = np.where(has_microbatch, schedule.microbatch, np.iinfo(np.int32).min).tolist()
    microbatches = {number: str(number) for number in set(numbers)} | {np.iinfo(np.int32).min: ""}
    # bit 0: end of a cell; bit 1: end of a fused cell; bit 2: end of a row
    tails = np.where(np.concatenate((joined, [False])), 0, 1) + 2 * closes + 4 * is_last
    between = {0: ";", 1: ",", 3: f"{_FUSED_SUFFIX},", 5: "", 7: _FUSED_SUFFIX}
    texts = [""] * (3 * len(schedule))
    texts[0::3] = map(names.__getitem__, heads.tolist())
    texts[1::3] = map(microbatches.__getitem__, numbers)
    texts[2::3] = map(between.__getitem__, tails.tolist())
    return texts


def read_schedule(path: str | Path, *, num_replicas: int = 1, num_slices: int | None = None) -> Schedule:
    """Read a schedule from a torch CSV file; the file's stem becomes its name.

    `num_replicas` is the number of model replicas. `num_slices` is the number of slices per microbatch, for a file
    without the slices line. Raises `ScheduleError` for an unreadable or malformed file, with row and column (from
    1) of up to 8 malformed cells.

    >>> import ppsim
    >>> table = ppsim.build("zb-h1", pp=4, microbatches=8)
    >>> ppsim.save(table, "T.csv")
    >>> ppsim.read_schedule("T.csv") == table
    True
    """
    path = Path(path)
    try:
        text = read_text(path, most=DATA_BYTES)
    except ConfigError as error:
        raise ScheduleError(f"{error}; a schedule is a CSV with one row per rank") from None
    return parse_table(text, name=path.stem, source=str(path), num_replicas=num_replicas, num_slices=num_slices)
