"""What all that is printed is made of: lines, tables and facts, in 100 columns or those of the terminal."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 100
"""Columns of what goes into a pipe or a file; a terminal has its own number."""

MOST_ROWS = 16
"""Rows of a table with one a rank or stage, up to which all are shown without being asked for."""

_LEAST_TEXT = 24  # columns of a last column of text, below which numbers make room for it
_TIE = "␠"  # stands for a blank at which no line may end, and is one again when printed
_UNITS = re.compile(r"(?<=\d) (?=(?:%|(?:s|ms|µs|ns|[KMGT]?i?B|GB/s|GPUs?|[kMGTP]?FLOP|[kMGTP])\b))")


class Page:
    """What a command has to say, collected and then printed without trailing blanks."""

    def __init__(self) -> None:
        import sys

        from rich.console import Console

        self._console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False, emoji=False)

    @property
    def width(self) -> int:
        """The columns there are."""
        return self._console.width

    def add(self, *renderables: Any, markup: bool = True) -> None:
        """Print the renderables below each other, "" for an empty line. A number and its unit stay together."""
        import click

        with self._console.capture() as capture:
            for one in renderables:
                self._console.print(_tied(one) if isinstance(one, str) else one, markup=markup)
        click.echo("\n".join(line.rstrip() for line in capture.get().replace(_TIE, " ").splitlines()))


def _tied(text: str) -> str:
    return _UNITS.sub(_TIE, text)


def facts(rows: Iterable[tuple[str, str | Sequence[str]]]) -> Any:
    """Return names and values in two columns; a value of several lines has them below each other."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    made.add_column(no_wrap=True, style="bold")
    made.add_column()
    for name, value in rows:
        for index, line in enumerate([value] if isinstance(value, str) else value):
            made.add_row("" if index else name, _tied(line))
    return made


@dataclass(frozen=True)
class Columns:
    """A table; rich renders it into the columns that a console has.

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

    def __rich_console__(self, console: Any, options: Any) -> Iterable[Any]:
        """Yield the table, and what was left out of it."""
        from rich.table import Table

        shown, gap, left_out = list(range(len(self.header))), 2, []
        if self._width(shown, gap) > options.max_width:
            gap = 1
        for name in self.spare:
            if self._width(shown, gap) > options.max_width:
                shown.remove(self.header.index(name))
                left_out.append(name)
        made = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
        is_tight = self._width(shown, gap) > options.max_width
        for index in shown:
            is_last_text = self.wraps and index == len(self.header) - 1
            wraps = is_last_text or (is_tight and index < self.left)
            justify: Any = "left" if index < self.left or is_last_text else "right"
            made.add_column(self.header[index], justify=justify, no_wrap=not wraps)
        for row in self.rows:
            made.add_row(*(row[index] for index in shown))
        yield made
        if left_out:
            yield f"[dim]no room for {', '.join(left_out)}: wider terminals and pipes have all columns[/dim]"

    def _width(self, shown: Sequence[int], gap: int) -> int:
        from rich.cells import cell_len

        widths = [max(cell_len(row[index]) for row in (self.header, *self.rows)) for index in shown]
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
