"""Progress of commands and searches: one bar on standard error, on a terminal or in a notebook."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, RLock, Thread

_LENGTH = 40  # columns of a bar
_IN_NOTEBOOK = 100  # columns of an output cell
_REDRAWN_S = 0.1
_PULSE = 8  # width of the moving part of a bar without a known end
_BACK, _HIDDEN, _SHOWN = "\r\x1b[K", "\x1b[?25l", "\x1b[?25h"  # clear the line; hide and show the cursor
_PLAIN, _DIM, _DONE, _ELAPSED = 0, 2, 35, 33


class Bar:
    """A bar on a terminal, silent in a pipe."""

    def __init__(
        self, text: str = "", *, total: float | None = None, unit: str = "", limit_s: float | None = None
    ) -> None:
        self._text, self._total, self._unit, self._is_timed = text, limit_s or total, unit, limit_s is not None
        self._has_count = bool(total)
        self._done, self._began_s = 0.0, time.monotonic()
        self._lock, self._ended = RLock(), Event()
        self._is_shown = False

    def update(self, text: str | None = None, *, done: float | None = None, total: float | None = None) -> None:
        """None leaves a value unchanged."""
        self._text = self._text if text is None else text
        self._done = self._done if done is None else done
        self._total = self._total if total is None else total

    def say(self, message: str) -> None:
        with self._lock:
            if self._is_shown:
                sys.stderr.write(_BACK)
            print(message, file=sys.stderr)
            self._draw()

    @contextmanager
    def shown(self) -> Iterator[None]:
        self._is_shown = True
        sys.stderr.write(_HIDDEN)
        self._draw()
        drawing = Thread(target=self._redraw, daemon=True)
        drawing.start()
        try:
            yield
        finally:
            self._ended.set()
            drawing.join()
            self._is_shown = False
            sys.stderr.write(_BACK + _SHOWN)
            sys.stderr.flush()

    def _redraw(self) -> None:
        while not self._ended.wait(_REDRAWN_S):
            self._draw()

    def _draw(self) -> None:
        with self._lock:
            if self._is_shown:
                sys.stderr.write(_BACK + self._line())
                sys.stderr.flush()

    def _line(self) -> str:
        from ppsim.results.text_layout import styled

        elapsed_s = time.monotonic() - self._began_s
        done = elapsed_s if self._is_timed else self._done
        part = min(done / self._total, 1.0) if self._total else 0.0
        count = f" {done:.0f}/{self._total:.0f} {self._unit}" if self._unit else f" {100 * part:3.0f} %"
        count = count if self._has_count else ""
        begin, end = 0, round(_LENGTH * part)
        if self._total is None:
            begin = int(elapsed_s / _REDRAWN_S) % (_LENGTH - _PULSE)
            end = begin + _PULSE
        dash = "━" if "utf" in (sys.stderr.encoding or "").lower() else "-"
        minutes, seconds = divmod(int(elapsed_s), 60)
        parts = [
            (dash * begin, _DIM), (dash * (end - begin), _DONE), (dash * (_LENGTH - end), _DIM),
            (count, _DONE), (f" {minutes // 60}:{minutes % 60:02}:{seconds:02}", _ELAPSED),
            (f" {self._text}", _PLAIN),
        ]  # fmt: skip
        shown, left = "", _columns() - 1
        for text, style in parts:
            shown += styled(text[:left], style)
            left = max(0, left - len(text))
        return shown


def _columns() -> int:
    said = os.environ.get("COLUMNS", "")
    if said.isdigit():
        return int(said)
    return os.get_terminal_size(sys.stderr.fileno()).columns if sys.stderr.isatty() else _IN_NOTEBOOK


@contextmanager
def progress(
    text: str, *, total: float | None = None, unit: str = "", limit_s: float | None = None
) -> Iterator[Bar]:
    """Show a bar during the block.

    `total` is the number of items (None: the bar only moves). Without a `unit`, the bar shows the percentage.
    `limit_s` is for work that stops after a time limit.
    """
    from ppsim.base.numba_jit import announce_compiling

    bar = Bar(text, total=total, unit=unit, limit_s=limit_s)
    with announce_compiling(bar.say):
        is_terminal = sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        is_notebook = type(sys.stderr).__module__.startswith("ipykernel.")
        if not is_terminal and not is_notebook:
            yield bar
            return
        with bar.shown():
            yield bar


@contextmanager
def searching_layouts() -> Iterator[Callable[[int, int, float | None], None]]:
    """Show the progress of `ppsim.tune`; the function takes decided configurations, all, and the best seconds."""
    from ppsim.base.units import seconds

    with progress("finding a lower bound of each", total=1, unit="configurations") as bar:

        def show(decided: int, total: int, best_s: float | None) -> None:
            best = "" if best_s is None else f", best {seconds(best_s)}"
            bar.update(
                f"simulating those that may be best, the quickest bounds first{best}", done=decided, total=total
            )

        yield show


def searching(bar: Bar) -> Callable[[float, float], None]:
    from ppsim.base.units import percent, seconds

    def show(value_s: float, bound_s: float) -> None:
        gap = f", {percent(value_s / bound_s - 1)} above the bound" if bound_s > 0 else ""
        bar.update(f"searching for a table, best {seconds(value_s)}{gap}")

    return show
