"""What all that is printed is made of: lines, tables and facts, in 100 columns or those of the terminal."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ppsim.simulation.verdict import Verdict

WIDTH = 100
"""Columns of what goes into a pipe or a file; a terminal has its own number."""

SCREEN_LINES = 18
"""Lines of what `project` and `explain` print without `--full`."""

MOST_ROWS = 16
"""Rows of a table with one a rank or stage, up to which all are shown without being asked for."""

_LEAST_TEXT = 24  # columns of a last column of text, below which numbers make room for it
_TIE = "␠"  # stands for a blank at which no line may end, and is one again when printed
_UNITS = re.compile(r"(?<=\d) (?=(?:%|(?:s|ms|µs|ns|[KMGT]?i?B|GB/s|GPUs?|[kMGTP]?FLOP|[kMGTP])\b))")
_FIRST_COLOUR, _RED = 30, 31
_WORDS = re.compile(r"\s*\S+\s*")
_STYLES = r"\x1b\[[\d;]*m"


class Lines(Protocol):
    """What is laid out in as many columns as there are."""

    def lines(self, width: int) -> Iterator[str]:
        """Yield its lines, none wider."""


class Page:
    """What a command has to say, collected and then printed without trailing blanks."""

    @property
    def width(self) -> int:
        """The columns there are."""
        if not sys.stdout.isatty():
            return WIDTH
        from shutil import get_terminal_size

        return get_terminal_size().columns

    def add(self, *parts: "str | Lines", wraps: bool = True) -> None:
        """Print texts and tables below each other, "" for an empty line. A number and its unit stay together.

        Lines of a text that are not to wrap are cut.
        """
        import click

        width = self.width
        lines: list[str] = []
        for one in parts:
            if not isinstance(one, str):
                lines += one.lines(width)
            elif wraps:
                lines += _wrapped(_tied(one), width)
            else:
                lines += (line[:width] for line in one.split("\n"))
        text = "\n".join(line.rstrip() for line in lines).replace(_TIE, " ")
        click.echo(click.unstyle(text) if os.environ.get("TERM") in ("dumb", "unknown") else text)


def styled(text: str, *codes: int) -> str:
    """Return a text in a style of ECMA-48, 2 for dim, 31 for red: `Page` leaves it out but on a terminal."""
    if codes[0] >= _FIRST_COLOUR and os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m" if text else text


def painted(text: str, *, ink: str, fill: str) -> str:
    """Return a text in colours, each #RRGGBB, or the nearest of a terminal that has 256."""
    return styled(text, 38, *_colour(ink), 48, *_colour(fill))


def _colour(colour: str) -> tuple[int, ...]:
    parts = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return (2, *parts)
    red, green, blue = (round(part / 95 if part < 95 else 1 + (part - 95) / 40) for part in parts)
    return 5, 16 + 36 * red + 6 * green + blue


def bold(text: str) -> str:
    """Return a text that is bold on a terminal."""
    return styled(text, 1)


def verdict_line(verdict: Verdict | None, more: str = "") -> list[str]:
    """Return the line that says whether a step fits, red if it does not; none if no bytes are known."""
    if verdict is None:
        return []
    return [bold(styled(f"{verdict}{more}", _RED) if verdict.fits is False else f"{verdict}{more}")]


def _tied(text: str) -> str:
    return _UNITS.sub(_TIE, text)


def _cells(text: str) -> int:
    """The columns that a text takes."""
    if "\x1b" in text:
        text = re.sub(_STYLES, "", text)
    if text.isascii() or all(one < "\u0300" or "\u2000" <= one < "\u2300" or one == _TIE for one in text):
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)


def _wrapped(text: str, width: int, *, folds: bool = True) -> list[str]:
    """The lines of a text, broken between words, and within those that are too long if it `folds` them."""
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
    """Return a text in at most `width` columns, with … in place of what is left out."""
    return text if _cells(text) <= width else f"{text[: width - 1]}…" if width else ""


def _beside(
    columns: Sequence[Sequence[str]], width: int, *, gap: int, wraps: Sequence[bool], right: Sequence[bool],
    has_header: bool,
) -> Iterator[str]:  # fmt: skip
    """Yield the lines of columns of cells; bold is what names the others: a header, or the first column."""
    widths = [max(map(_cells, column)) for column in columns]
    _narrow(widths, wraps, width - gap * (len(columns) - 1))
    for number, row in enumerate(zip(*columns, strict=True)):
        is_header = has_header and number == 0
        shown = [
            [cut(line, wide) for line in (_wrapped(cell, wide, folds=False) if may_wrap else [cell])]
            for cell, wide, may_wrap in zip(row, widths, wraps, strict=True)
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
    """Take columns from the widest until all fit: from those that wrap and, where that is not enough, from all."""
    while sum(widths) > max(width, 0):
        free = [index for index, one in enumerate(wraps) if one and widths[index]]
        free = free or [index for index, one in enumerate(widths) if one]
        widest = max(widths[index] for index in free)
        widths[next(index for index in free if widths[index] == widest)] -= 1


class _Facts:
    """Names and values in two columns."""

    def __init__(self, rows: Iterable[tuple[str, str]]) -> None:
        self._columns = list(zip(*rows, strict=True))

    def lines(self, width: int) -> Iterator[str]:
        """Yield a line a fact, and more of what is longer."""
        if not self._columns:
            return iter(())
        return _beside(self._columns, width, gap=2, wraps=(False, True), right=(False, False), has_header=False)


def facts(rows: Iterable[tuple[str, str | Sequence[str]]]) -> Lines:
    """Return names and values in two columns; a value of several lines has them below each other."""
    return _Facts(
        ("" if index else name, _tied(line))
        for name, value in rows
        for index, line in enumerate([value] if isinstance(value, str) else value)
    )


@dataclass(frozen=True)
class Columns:
    """A table.

    The first `left` columns are aligned left, the others right. The last one is text that may wrap where it
    `wraps`; numbers never do. Where the table is too wide, blanks between columns go first, then the columns named
    in `spare`, in that order, and a line says which; then the text on the left wraps too.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    wraps: bool = False
    spare: Sequence[str] = ()

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, str]], **options: Any) -> "Columns":
        """Return the table of rows, one or more, that name their cells; all have the same names."""
        header = list(rows[0])
        return cls(header, [[row[name] for name in header] for row in rows], **options)

    def lines(self, width: int) -> Iterator[str]:
        """Yield the table, and what was left out of it."""
        shown, gap, left_out = list(range(len(self.header))), 2, []
        if self._width(shown, gap) > width:
            gap = 1
        for name in self.spare:
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
            said = f"no room for {', '.join(left_out)}: wider terminals and pipes have all columns"
            yield from (styled(line, 2) for line in _wrapped(said, width))

    def _width(self, shown: Sequence[int], gap: int) -> int:
        widths = [max(_cells(row[index]) for row in (self.header, *self.rows)) for index in shown]
        if self.wraps:
            widths[-1] = min(widths[-1], _LEAST_TEXT)
        return sum(widths) + gap * (len(shown) - 1)


def some_of(count: int, notable: Iterable[int], *, most: int = MOST_ROWS) -> list[int]:
    """Return which of `count` rows to show, ascending: all up to `most`, else first, last, notable and every k-th.

    k is a power of two, and large enough that no more than `most` are shown beside the notable ones.

    >>> some_of(6, [3])
    [0, 1, 2, 3, 4, 5]
    >>> some_of(64, [5], most=8)
    [0, 5, 16, 32, 48, 63]
    """
    if count <= most:
        return list(range(count))
    step = 2
    while len(range(0, count, step)) >= most:
        step *= 2
    return sorted({*range(0, count, step), count - 1, *notable})
