"""The schedule table on disk: torch.distributed.pipelining's CSV, one row a rank, one cell an action.

::

    file   = row { newline row }                 no header; row r is rank r
    row    = cell { "," cell }
    cell   = "" | action                         "" is an idle slot
    action = stage op [ microbatch ]  |  "(" action { ";" action } ")OVERLAP_F_B"
    op     = F | B | I | W                       the compute-only file
           | SEND_F | RECV_F | SEND_B | RECV_B | UNSHARD | RESHARD | REDUCE_GRAD
           | WAIT_SEND_F | WAIT_SEND_B | WAIT_REDUCE_GRAD        the compute+comms file

A RECV names the receiving stage: `2RECV_F0` takes what `1SEND_F0` sent. Torch itself reads `0F0xyz` as `0F0`
and drops what it does not know; this reader refuses it.
"""

import csv
import io
import re
from pathlib import Path

from ppsim.base.errors import ScheduleError
from ppsim.schedule.table import IDLE, NONE, Action, Cell, Op, Schedule

MOST = 999_999
"""The largest number that a file names, of a stage or of a microbatch."""

_FUSED_SUFFIX = ")OVERLAP_F_B"
_ACTION = re.compile(
    r"(\d{1,6})("
    + "|".join(sorted((op.name for op in Op if op is not Op.IDLE), key=len, reverse=True))
    + r")(\d{1,6})?"
)
_OPS = {op.name: (op, op.has_microbatch) for op in Op}
_MOST_ERRORS_SHOWN = 8


def parse_cell(text: str) -> Cell:
    """Return the action or the fused actions that one cell names; `IDLE` for an empty cell.

    Raises `ScheduleError` with the reason, without the place, which only the caller knows.

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
    """Return the text of one cell, the inverse of `parse_cell`."""
    if isinstance(cell, Action):
        return str(cell)
    return "(" + ";".join(map(str, cell)) + _FUSED_SUFFIX


def parse_table(
    text: str, *, name: str = "", source: str = "the table", num_replicas: int = 1, num_slices: int = 1
) -> Schedule:
    """Return the schedule that a CSV text spells out; placement and microbatches are read off its actions.

    The grammar knows neither replicas nor slices: who reads a table that has them says how many.

    Raises `ScheduleError` naming `source`, and row, column and text of every malformed cell. Columns and rows are
    counted from 1, as a spreadsheet does.
    """
    rows: list[list[Cell]] = []
    errors: list[str] = []
    try:
        for number, texts in enumerate(csv.reader(io.StringIO(text, newline=""), strict=True), start=1):
            if not texts:
                errors.append(f"row {number} is blank; a rank needs at least one action")
            row: list[Cell] = []
            for column, cell in enumerate(texts, start=1):
                try:
                    row.append(parse_cell(cell))
                except ScheduleError as error:
                    errors.append(f"row {number} (rank {number - 1}), column {column}: {error}")
            rows.append(row)
    except csv.Error as error:
        raise ScheduleError(f"{source} is not a CSV file: {error}") from None
    if not rows:
        raise ScheduleError(f"{source} is empty; a schedule has one row a rank")
    if errors:
        more = len(errors) - _MOST_ERRORS_SHOWN
        shown = errors[:_MOST_ERRORS_SHOWN] + ([f"… and {more} more"] if more > 0 else [])
        raise ScheduleError(f"{source} is malformed:\n  " + "\n  ".join(shown))
    return Schedule.from_rows(rows, name=name, num_replicas=num_replicas, num_slices=num_slices)


def format_table(schedule: Schedule) -> str:
    """Return the CSV text of a schedule, the inverse of `parse_table`."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    for row in schedule.rows():
        writer.writerow([format_cell(cell) for cell in row])
    return out.getvalue()


def read_schedule(path: str | Path, *, num_replicas: int = 1, num_slices: int = 1) -> Schedule:
    """Read a schedule from a torch CSV file, compute-only or with communication; its name is the file's stem.

    `num_replicas` and `num_slices` say how many chains of stages, and how many slices of a microbatch, it has.

    Raises `ScheduleError` for a malformed file (every bad cell with row, column and text) and for a file that
    cannot be read.

    >>> import ppsim
    >>> table = ppsim.build("zb-h1", pp=4, microbatches=8)
    >>> ppsim.save(table, "T.csv")
    >>> ppsim.read_schedule("T.csv") == table
    True
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ScheduleError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ScheduleError(f"{path} is not a text file; a schedule is a CSV with one row a rank") from None
    return parse_table(text, name=path.stem, source=str(path), num_replicas=num_replicas, num_slices=num_slices)
