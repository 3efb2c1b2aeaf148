"""Building blocks of terminal output: lines, tables and facts."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ppsim.simulation.verdict import MemoryVerdict

WIDTH = 100
"""Columns of output into a pipe or a file; on a terminal, output is as wide as the terminal."""

SCREEN_LINES = 18
"""Maximum number of lines of `project` and `explain` without `--full`."""

MOST_ROWS = 16
"""Rows of a table by rank or stage; larger tables are shortened unless all rows are requested."""

_LEAST_TEXT = 24  # minimum width of a last column of text; below it, spare columns are dropped
_TIE = "␠"  # a non-breaking space, replaced by a space when printed
_UNITS = re.compile(r"(?<=\d) (?=(?:%|(?:s|ms|µs|ns|[KMGT]?i?B|GB/s|GPUs?|[kMGTP]?FLOP|[kMGTP])\b))")
_FIRST_COLOUR, _RED, _YELLOW = 30, 31, 33
_WORDS = re.compile(r"(?:^\s*)?\S+\s*")
_STYLES = r"\x1b\[[\d;]*m"


class WrappedLines(Protocol):
    """Content that can be laid out in a given width."""

    def lines(self, width: int) -> Iterator[str]:
        """Yield lines of at most `width` columns."""


class Page:
    """Output of a command, without trailing spaces."""

    @property
    def width(self) -> int:
        if not sys.stdout.isatty():
            return WIDTH
        from shutil import get_terminal_size

        return get_terminal_size().columns

    def add(self, *parts: "str | WrappedLines", wraps: bool = True) -> None:
        """Print texts and tables; "" is an empty line, no part is none, and a number and its unit stay together.

        With `wraps=False`, lines that are too long are truncated.
        """
        import click

        if not parts:
            return
        width = self.width
        lines: list[str] = []
        for part in parts:
            if not isinstance(part, str):
                lines += part.lines(width)
            elif wraps:
                lines += wrapped(part, width)
            else:
                lines += (_clipped(line, width) for line in part.split("\n"))
        text = "\n".join(line.rstrip() for line in lines).replace(_TIE, " ")
        click.echo(click.unstyle(text) if os.environ.get("TERM") in ("dumb", "unknown") else text)


def styled(text: str, *codes: int) -> str:
    """Return a text in an ECMA-48 style, e.g. 2 (dim) or 31 (red)."""
    if codes[0] >= _FIRST_COLOUR and os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m" if text else text


def painted(text: str, *, ink: str, fill: str) -> str:
    """Colours are #RRGGBB, or the nearest of 256 colours if the terminal has no more."""
    return styled(text, 38, *_colour(ink), 48, *_colour(fill))


def _colour(colour: str) -> tuple[int, ...]:
    parts = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return (2, *parts)
    red, green, blue = (round(part / 95 if part < 95 else 1 + (part - 95) / 40) for part in parts)
    return 5, 16 + 36 * red + 6 * green + blue


def bold(text: str) -> str:
    return styled(text, 1)


def verdict_line(verdict: MemoryVerdict | None, more: str = "") -> list[str]:
    """The line is red if the step does not fit, yellow if in doubt, and missing if memory is unknown."""
    if verdict is None:
        return []
    colours = [_RED] if verdict.fits is False else [_YELLOW] if verdict.is_tight or verdict.is_too_large else []
    return [bold(styled(f"{verdict}{more}", *colours) if colours else f"{verdict}{more}")]


def _tied(text: str) -> str:
    return _UNITS.sub(_TIE, text)


def _cells(text: str) -> int:
    if "\x1b" in text:
        text = re.sub(_STYLES, "", text)
    if text.isascii() or all(one < "\u0300" or "\u2000" <= one < "\u2300" or one == _TIE for one in text):
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)


def wrapped(text: str, width: int, *, folds: bool = True) -> list[str]:
    """Break at spaces, not between a number and its unit; with `folds`, also words that are too long."""
    text = _tied(text)
    if _cells(text) <= width and "\n" not in text:
        return [text]
    lines = []
    for paragraph in text.split("\n"):
        line = ""
        for word in _WORDS.findall(paragraph):
            if line and _cells(line + word.rstrip()) > width:
                lines.append(line.rstrip())
                line = ""
            while folds and _cells(word.rstrip()) > width:
                lines.append(word[:width])
                word = word[width:]
            line += word
        lines.append(line.rstrip())
    return lines


def cut(text: str, width: int) -> str:
    return text if _cells(text) <= width else f"{_clipped(text, width - 1)}…" if width else ""


def _clipped(text: str, width: int) -> str:
    """Truncate the text, not the styles in it: without its end, a style would reach the next line."""
    if "\x1b" not in text:
        return text[:width]
    parts = []
    for part in re.split(f"({_STYLES})", text):
        is_style = part.startswith("\x1b")
        parts.append(part if is_style else part[:width])
        width -= 0 if is_style else len(parts[-1])
    return "".join(parts)


def _beside(
    columns: Sequence[Sequence[str]], width: int, *, gap: int, wraps: Sequence[bool], right: Sequence[bool],
    has_header: bool,
) -> Iterator[str]:  # fmt: skip
    """The header is bold or, without a header, the first column."""
    widths = [max(map(_cells, column)) for column in columns]
    _narrow(widths, wraps, width - gap * (len(columns) - 1))
    last_text = len(widths) - 1 if has_header else None
    for number, row in enumerate(zip(*columns, strict=True)):
        is_header = has_header and number == 0
        shown = [
            [cut(line, wide) for line in (wrapped(cell, wide, folds=index == last_text) if may_wrap else [cell])]
            for index, (cell, wide, may_wrap) in enumerate(zip(row, widths, wraps, strict=True))
        ]
        height = max(map(len, shown))
        for index, (lines, wide) in enumerate(zip(shown, widths, strict=True)):
            at = 0 if is_header else len(lines)
            lines[at:at] = [""] * (height - len(lines))
            for line, text in enumerate(lines):
                blanks = " " * (wide - _cells(text))
                told = bold(text) if is_header or not (has_header or index) else text
                lines[line] = blanks + told if right[index] else told + blanks
        yield from map((" " * gap).join, zip(*shown, strict=True))


def _narrow(widths: list[int], wraps: Sequence[bool], width: int) -> None:
    """Reduce the widest columns: first those that may wrap, then any."""
    while sum(widths) > max(width, 0):
        free = [index for index, wrap in enumerate(wraps) if wrap and widths[index]]
        free = free or [index for index, one in enumerate(widths) if one]
        widest = max(widths[index] for index in free)
        widths[next(index for index in free if widths[index] == widest)] -= 1


class _Facts:
    """Names and values in two columns."""

    def __init__(self, rows: Iterable[tuple[str, str]]) -> None:
        self._columns = list(zip(*rows, strict=True))

    def lines(self, width: int) -> Iterator[str]:
        if not self._columns:
            return iter(())
        return _beside(self._columns, width, gap=2, wraps=(False, True), right=(False, False), has_header=False)


def facts(rows: Iterable[tuple[str, str | Sequence[str]]]) -> WrappedLines:
    """A value may have several lines."""
    return _Facts(
        ("" if index else name, _tied(line))
        for name, value in rows
        for index, line in enumerate([value] if isinstance(value, str) else value)
    )


@dataclass(frozen=True)
class TableLines:
    """A table whose first `left` columns are aligned left.

    With `wraps`, the last column is text that may wrap. If the table is too wide, first the gaps shrink, then the
    columns named in `spare` are dropped in this order, then the left columns wrap. Numbers never wrap.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    wraps: bool = False
    spare: Sequence[str] = ()

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, str]], **options: Any) -> "TableLines":
        header = list(rows[0]) if rows else []
        return cls(header, [[row[name] for name in header] for row in rows], **options)

    def lines(self, width: int) -> Iterator[str]:
        if not self.header:
            return
        shown, gap, left_out = list(range(len(self.header))), 2, []
        if self._width(shown, gap) > width:
            gap = 1
        for name in (name for name in self.spare if name in self.header):
            if self._width(shown, gap) > width:
                shown.remove(self.header.index(name))
                left_out.append(name)
        is_tight = self._width(shown, gap) > width
        last_text = len(self.header) - 1 if self.wraps else None
        yield from _beside(
            [[row[index] for row in (self.header, *self.rows)] for index in shown], width, gap=gap,
            wraps=[index == last_text or (is_tight and index < self.left) for index in shown],
            right=[index >= self.left and index != last_text for index in shown],
            has_header=True,
        )  # fmt: skip
        if left_out:
            said = f"columns omitted to fit {width} characters: {', '.join(left_out)}"
            yield from (styled(line, 2) for line in wrapped(said, width))

    def _width(self, shown: Sequence[int], gap: int) -> int:
        widths = [max(_cells(row[index]) for row in (self.header, *self.rows)) for index in shown]
        if self.wraps:
            widths[-1] = min(widths[-1], _LEAST_TEXT)
        return sum(widths) + gap * (len(shown) - 1)


def notable_items(count: int, notable: Iterable[int], *, most: int = MOST_ROWS) -> list[int]:
    """Return the indices of the rows to show: all, or the first, the last, the notable and every k-th.

    >>> notable_items(6, [3])
    [0, 1, 2, 3, 4, 5]
    >>> notable_items(64, [5], most=8)
    [0, 5, 16, 32, 48, 63]
    """
    if count <= most:
        return list(range(count))
    step = 2
    while len(range(0, count, step)) >= most:
        step *= 2
    return sorted({*range(0, count, step), count - 1, *notable})
