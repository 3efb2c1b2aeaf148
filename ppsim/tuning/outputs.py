"""What `ppsim tune -o` writes: the suffix decides."""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from ppsim.base import outputs
from ppsim.base.files import to_json, write_whole
from ppsim.tuning.search import Tuned

SUFFIXES = {
    ".json": "answer, with which a search goes on",
    ".csv": "table",
    ".html": "iteration time over memory",
    ".svg": "iteration time over memory",
    ".pdf": "iteration time over memory",
    ".png": "iteration time over memory",
}


def check_paths(paths: Sequence[str]) -> None:
    """Raise `ConfigError` for a path that cannot be written, before any work is done."""
    outputs.check_paths(paths, SUFFIXES)


def write_outputs(paths: Sequence[str], tuned: Tuned, *, announce: Callable[[str], None]) -> None:
    """Write each path by its suffix."""
    for path in paths:
        suffix = Path(path).suffix
        content: str | bytes
        if suffix == ".json":
            content = to_json(tuned.to_json())
        elif suffix == ".csv":
            content = _csv(tuned)
        elif suffix == ".html":
            from ppsim.plot.pareto import pareto_html

            content = pareto_html(tuned)
        else:
            content = _figure(tuned, suffix)
        write_whole(path, content)
        announce(f"wrote {path} ({SUFFIXES[suffix]})")


def _figure(tuned: Tuned, suffix: str) -> bytes:
    from ppsim.plot.figures.pareto import pareto_figure
    from ppsim.plot.figures.style import figure_bytes

    limit = tuned.question.memory_limit_bytes
    return figure_bytes(pareto_figure(tuned.configurations(), memory_limit_bytes=limit), suffix)


def _csv(tuned: Tuned) -> str:
    """The best and the Pareto set, a line each, fastest first; `pareto` is 1 in the set."""
    rows = tuned.rows()
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(row | {"pareto": int(row["pareto"])})
    return text.getvalue()
