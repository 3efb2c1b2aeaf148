"""How commands show that work goes on: one bar, on standard error, and only on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ppsim.base.words import given_of
from ppsim.cli.common import say

if TYPE_CHECKING:
    from rich.progress import Progress


@dataclass(frozen=True)
class Bar:
    """What a command tells of its work: of a bar on a terminal, of nothing in a pipe."""

    progress: "Progress | None" = None
    is_timed: bool = False

    def update(self, text: str | None = None, *, done: float | None = None, total: float | None = None) -> None:
        """Change the text, how much is done and how much there is; None leaves it."""
        if self.progress is None:
            return
        task = self.progress.tasks[0]
        completed: Any = task.elapsed if self.is_timed else done
        self.progress.update(task.id, **given_of({"completed": completed, "total": total, "text": text}))

    def say(self, message: str) -> None:
        """Print a line about the work, above the bar."""
        if self.progress is None:
            say(message)
        else:
            self.progress.console.print(message, markup=False, highlight=False)


@contextmanager
def progress(
    text: str, *, total: float | None = None, unit: str = "", limit_s: float | None = None
) -> Iterator[Bar]:
    """Show a bar while the work of the block goes on.

    `total` is how many things there are to do, each a `unit`, or a part of 1 without one; None where nobody knows,
    and the bar only moves. `limit_s` is for work that ends by the clock: seconds until then.
    """
    from ppsim.base.compiling import told_of_compiling

    if not sys.stderr.isatty():
        with told_of_compiling(say):
            yield Bar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    count = "{task.completed:.0f}/{task.total:.0f} " + unit if unit else "{task.percentage:3.0f} %"
    columns = [BarColumn(), *([TextColumn(count)] if total else []), TimeElapsedColumn()]
    shown = Progress(*columns, TextColumn("{task.fields[text]}"), console=Console(stderr=True), transient=True)
    bar = Bar(shown, is_timed=limit_s is not None)
    with shown, told_of_compiling(bar.say):
        shown.add_task("", total=limit_s or total, text=text)
        yield bar


def searching(bar: Bar) -> Callable[[float, float], None]:
    """Return what shows the best time that a search has found, and how far above its bound it is."""
    from ppsim.base.units import percent, seconds

    def show(value_s: float, bound_s: float) -> None:
        gap = f", {percent(value_s / bound_s - 1)} above the bound" if bound_s > 0 else ""
        bar.update(f"searching for a table, best {seconds(value_s)}{gap}")

    return show
