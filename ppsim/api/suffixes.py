"""What `-o` writes of timelines, of a search and of a validation: the suffix decides."""

import csv
import gzip
import io
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ppsim.base import outputs
from ppsim.base.files import to_json
from ppsim.plot.view import View
from ppsim.runs.compare import Comparison

if TYPE_CHECKING:  # a run is written where pydantic, which a search needs, may be missing
    from ppsim.tuning.search import Tuned

TIMELINE = {
    ".html": "interactive timeline",
    ".svg": "figure",
    ".pdf": "figure",
    ".png": "figure",
    ".json": "report with the timeline",
    ".csv": "schedule table",
    ".json.gz": "trace for Perfetto",
}
SEARCH = {
    ".json": "answer, with which a search goes on",
    ".csv": "table",
    ".html": "iteration time over memory",
    ".svg": "iteration time over memory",
    ".pdf": "iteration time over memory",
    ".png": "iteration time over memory",
}
VALIDATION = {
    ".json": "validation",
    ".csv": "rows",
    ".svg": "projected against measured",
    ".pdf": "projected against measured",
    ".png": "projected against measured",
}
Say = Callable[[str], None]


def silent(message: str) -> None:
    """Say nothing: files that a program asks for are no news to it."""


def write_timelines(
    paths: Sequence[str],
    *,
    views: Sequence[View],
    report: Callable[[], dict[str, Any]],
    memory_limit_bytes: float | None = None,
    comparison: Comparison | None = None,
    announce: Say = silent,
) -> None:
    """Write each path by its suffix: pictures and trace of all views, the table of the first, the report.

    `comparison` is that of the two views, measured and projected, where they are.
    """
    timelines, titles = [view.timeline for view in views], [view.title for view in views]

    def content(suffix: str) -> str | bytes:
        if suffix == ".html":
            from ppsim.plot.html import timeline_html

            return timeline_html(views, memory_limit_bytes=memory_limit_bytes, comparison=comparison)
        if suffix == ".json":
            return to_json(report())
        if suffix == ".csv":
            from ppsim.schedule.grammar import format_table

            return format_table(timelines[0].schedule)
        if suffix == ".json.gz":
            from ppsim.plot.trace import chrome_trace

            return gzip.compress(json.dumps(chrome_trace(timelines, titles)).encode(), mtime=0)
        from ppsim.plot.figures.style import figure_bytes
        from ppsim.plot.figures.timeline import timeline_figure

        figure = timeline_figure(timelines, titles=titles, memory_limit_bytes=memory_limit_bytes)
        return figure_bytes(figure, suffix)

    outputs.write(paths, TIMELINE, content, announce=announce)


def write_search(paths: Sequence[str], tuned: "Tuned", *, announce: Say = silent) -> None:
    """Write each path by its suffix."""

    def content(suffix: str) -> str | bytes:
        if suffix == ".json":
            return to_json(tuned.to_json())
        if suffix == ".csv":
            return _rows(tuned)
        if suffix == ".html":
            from ppsim.api.views import search_view
            from ppsim.plot.pareto import pareto_html

            return pareto_html(search_view(tuned))
        from ppsim.plot.figures.pareto import pareto_figure
        from ppsim.plot.figures.style import figure_bytes

        limit = tuned.question.memory_limit_bytes
        return figure_bytes(pareto_figure(tuned.configurations(), memory_limit_bytes=limit), suffix)

    outputs.write(paths, SEARCH, content, announce=announce)


def write_validation(paths: Sequence[str], sets: Sequence[dict[str, Any]], *, announce: Say = silent) -> None:
    """Write sets, each as `ppsim.validation.score.to_json` gives it, to each path by its suffix."""
    from ppsim.validation.rows import rows_of

    def content(suffix: str) -> str | bytes:
        if suffix == ".json":
            return to_json({"sets": sets})
        if suffix == ".csv":
            return str(rows_of(sets).to_csv(index=False, lineterminator="\n"))
        from ppsim.plot.figures.accuracy import accuracy_figure
        from ppsim.plot.figures.style import figure_bytes

        return figure_bytes(accuracy_figure(rows_of(sets)), suffix)

    outputs.write(paths, VALIDATION, content, announce=announce)


def _rows(tuned: "Tuned") -> str:
    """The best and the Pareto set, a line each, fastest first; `pareto` is 1 in the set."""
    rows = tuned.rows()
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(row | {"pareto": int(row["pareto"])})
    return text.getvalue()
