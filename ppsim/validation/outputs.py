"""What `ppsim validate -o` writes: the suffix decides."""

from collections.abc import Callable, Sequence
from typing import Any

from ppsim.base import outputs
from ppsim.base.files import to_json, write_whole
from ppsim.validation.rows import rows_of

SUFFIXES = {
    ".json": "validation",
    ".csv": "rows",
    ".svg": "projected against measured",
    ".pdf": "projected against measured",
    ".png": "projected against measured",
}


def check_paths(paths: Sequence[str]) -> None:
    """Raise `ConfigError` for a path that cannot be written, before any work is done."""
    outputs.check_paths(paths, SUFFIXES)


def write_outputs(paths: Sequence[str], sets: Sequence[dict[str, Any]], *, announce: Callable[[str], None]) -> None:
    """Write sets, each as `ppsim.validation.score.to_json` gives it, to each path by its suffix."""
    for path in paths:
        suffix = outputs.suffix_of(path, SUFFIXES)
        content: str | bytes
        if suffix == ".json":
            content = to_json({"sets": sets})
        elif suffix == ".csv":
            content = rows_of(sets).to_csv(index=False, lineterminator="\n")
        else:
            from ppsim.plot.figures.accuracy import accuracy_figure
            from ppsim.plot.figures.style import figure_bytes

            content = figure_bytes(accuracy_figure(rows_of(sets)), suffix)
        write_whole(path, content)
        announce(f"wrote {path} ({SUFFIXES[suffix]})")
