"""The style shared by all figures, and writing a figure to a file."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ppsim.base.errors import ConfigError
from ppsim.base.files import write_atomically
from ppsim.plot import palette
from ppsim.schedule.table import Op

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

Width = Literal["one-column", "two-column"]

WIDTHS: dict[Width, float] = {"one-column": 3.33, "two-column": 7.0}
"""Inches: column and text width of ACM (sigconf) and USENIX; IEEE, ICML and MLSys differ by about 5 % at most."""

FIGURE_SUFFIXES = (".svg", ".pdf", ".png")

TEXT_POINTS, TITLE_POINTS, CELL_POINTS = 7.0, 7.5, 5.5
POINTS = 72.0  # per inch
LEGEND_ROW = 0.14  # inches
GRID = palette.COLOURS[Op.IDLE]

_METADATA: dict[str, dict[str, None]] = {  # removed, so that two runs write the same bytes
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
    ".png": {"Software": None},
}
_THIN = 0.5
_SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # included in matplotlib, so that every machine draws the same
    "font.size": TEXT_POINTS,
    "axes.titlesize": TITLE_POINTS,
    "axes.labelsize": TEXT_POINTS,
    "xtick.labelsize": TEXT_POINTS,
    "ytick.labelsize": TEXT_POINTS,
    "legend.fontsize": TEXT_POINTS,
    "text.color": palette.TEXT,
    "axes.labelcolor": palette.TEXT,
    "axes.edgecolor": palette.TEXT,
    "xtick.color": palette.TEXT,
    "ytick.color": palette.TEXT,
    "axes.linewidth": _THIN,
    "xtick.major.width": _THIN,
    "ytick.major.width": _THIN,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "axes.labelpad": 2.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": _THIN,
    "lines.linewidth": 1.0,
    "lines.markersize": 3.5,
    "lines.markeredgewidth": 0.7,
    "legend.fancybox": False,  # a white background without a frame, so that no grid line crosses the text
    "legend.edgecolor": "none",
    "legend.framealpha": 1.0,
    "legend.handlelength": 2.2,
    "legend.labelspacing": 0.35,
    "legend.columnspacing": 1.2,
    "legend.borderpad": 0.2,
    "hatch.linewidth": 0.3,
    "pdf.fonttype": 42,  # TrueType, embedded: many venues refuse Type 3
    "svg.fonttype": "path",  # a viewer without the font would set wider text
    "svg.hashsalt": "ppsim",  # a fixed salt; the default gives random ids in an SVG
}


@contextmanager
def settings() -> Iterator[None]:
    """Set the style, independent of matplotlibrc; needed when a figure is made and again when it is drawn."""
    import matplotlib.style

    with matplotlib.style.context(["default", _SETTINGS]):
        yield


def new_figure(width: Width, height: float) -> "Figure":
    """Return an empty figure of `height` inches that belongs to no pyplot window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(inches(width), height))


@contextmanager
def new_axes(width: Width, height: float) -> "Iterator[tuple[Figure, Axes]]":
    with settings():
        figure = new_figure(width, height)
        figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.02)
        yield figure, figure.subplots()


def inches(width: Width) -> float:
    if width not in WIDTHS:
        raise ConfigError(f"a figure is {' or '.join(WIDTHS)} wide: got {width!r}")
    return WIDTHS[width]


def legend_rows(figure: "Figure", handles: list[Any], *, width: float) -> "list[Legend]":
    """Legend entries in rows at most `width` inches wide."""
    rows: list[Legend] = []
    taken: list[Any] = []
    for handle in handles:
        longer = _legend_row(figure, [*taken, handle])
        if taken and longer.get_window_extent().width > width * figure.dpi:
            longer.remove()
            taken = [handle]
            rows.append(_legend_row(figure, taken))
        else:
            if taken:
                rows.pop().remove()
            taken = [*taken, handle]
            rows.append(longer)
    return rows


def place_rows(figure: "Figure", rows: "list[Legend]", *, left: float, top: float) -> None:
    """`left` and `top` are inches from the upper left corner; the figure must have its final size."""
    across, height = figure.get_size_inches()
    for index, row in enumerate(rows):
        at = (left / across, 1 - (top + index * LEGEND_ROW) / height)
        row.set_bbox_to_anchor(at, transform=figure.transFigure)


def _legend_row(figure: "Figure", handles: list[Any]) -> "Legend":
    return figure.legend(
        handles=handles, loc="upper left", ncols=len(handles), borderaxespad=0.0, borderpad=0.0,
        handlelength=1.2, handleheight=0.8, handletextpad=0.5, columnspacing=0.95,
    )  # fmt: skip


def figure_bytes(figure: "Figure", suffix: str, *, dpi: int = 300) -> bytes:
    """Return the same bytes for the same figure.

    Raises `ConfigError` for an unknown suffix.
    """
    if suffix not in FIGURE_SUFFIXES:
        raise ConfigError(f"cannot write a figure as '{suffix}': give it one of {', '.join(FIGURE_SUFFIXES)}")
    buffer = io.BytesIO()
    with settings():
        figure.savefig(buffer, format=suffix[1:], dpi=dpi, metadata=_METADATA[suffix])
    return buffer.getvalue()


def save_figure(figure: "Figure", path: str | Path) -> None:
    """Write a figure in the format of its suffix, completely or not at all."""
    write_atomically(path, figure_bytes(figure, Path(path).suffix))
