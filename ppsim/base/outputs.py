"""`-o PATH`: the suffix decides what is written, and nothing half-written is left behind."""

import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import check_place, to_json, write_whole

if TYPE_CHECKING:
    from ppsim.plot.view import View
    from ppsim.runs.compare import Comparison
    from ppsim.simulation.timeline import Timeline

SUFFIXES = {
    ".html": "interactive timeline",
    ".svg": "figure",
    ".pdf": "figure",
    ".png": "figure",
    ".json": "report with the timeline",
    ".csv": "schedule table",
    ".json.gz": "trace for Perfetto",
}


def suffix_of(path: str, suffixes: Iterable[str] = SUFFIXES) -> str:
    """Return which of `suffixes` decides; raises `ConfigError` for a path without, or with no place to write."""
    for suffix in sorted(suffixes, key=len, reverse=True):
        if path.endswith(suffix):
            break
    else:
        raise ConfigError(f"cannot tell what to write to {path}: give it one of {', '.join(suffixes)}")
    check_place(path)
    return suffix


def check_paths(paths: Sequence[str], suffixes: Iterable[str] = SUFFIXES) -> None:
    """Raise `ConfigError` for a path that cannot be written by its suffix or folder, before any work is done."""
    for path in paths:
        suffix_of(path, suffixes)


def write_outputs(
    paths: Sequence[str],
    *,
    views: Sequence["View"],
    report: Callable[[], dict[str, Any]],
    memory_limit_bytes: float | None = None,
    comparison: "Comparison | None" = None,
    announce: Callable[[str], None] = lambda message: None,
) -> None:
    """Write each path by its suffix: pictures and trace of all views, the table of the first, the report.

    `comparison` is that of the two views, measured and projected, where they are.
    """
    timelines, titles = [view.timeline for view in views], [view.title for view in views]
    for path in paths:
        suffix = suffix_of(path)
        content: str | bytes
        if suffix == ".html":
            from ppsim.plot.html import timeline_html

            content = timeline_html(views, memory_limit_bytes=memory_limit_bytes, comparison=comparison)
        elif suffix in (".svg", ".pdf", ".png"):
            content = _figure(timelines, titles, memory_limit_bytes, suffix)
        elif suffix == ".json":
            content = to_json(report())
        elif suffix == ".csv":
            from ppsim.schedule.grammar import format_table

            content = format_table(timelines[0].schedule)
        else:
            from ppsim.plot.trace import chrome_trace

            content = gzip.compress(json.dumps(chrome_trace(timelines, titles)).encode(), mtime=0)
        write_whole(path, content)
        announce(f"wrote {path} ({SUFFIXES[suffix]})")


def _figure(
    timelines: "Sequence[Timeline]", titles: Sequence[str], memory_limit_bytes: float | None, suffix: str
) -> bytes:
    from ppsim.plot.figures.style import figure_bytes
    from ppsim.plot.figures.timeline import timeline_figure

    return figure_bytes(timeline_figure(timelines, titles=titles, memory_limit_bytes=memory_limit_bytes), suffix)
