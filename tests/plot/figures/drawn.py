"""What a figure has drawn, as lines of text, for tests that compare all of it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Annotation


def lines_of(figure: Figure) -> list[str]:
    """Return the size of a figure, and its axes and legends with their lines, texts and limits."""
    figure.draw_without_rendering()
    across, height = figure.get_size_inches()
    found = [f"figure {across:.2f} × {height:.2f}"]
    for axes in figure.axes:
        found += _of_axes(axes)
    return found + [_of_legend(legend) for legend in figure.legends]


def _of_axes(axes: Axes) -> Iterator[str]:
    box = axes.get_position()
    yield f"axes {_numbers([box.x0, box.y0, box.x1, box.y1])} x {_numbers(axes.get_xlim())} y {_numbers(axes.get_ylim())}"
    grids = [any(line.get_visible() for line in lines) for lines in (axes.get_xgridlines(), axes.get_ygridlines())]
    ticks = [[label.get_text() for label in one] for one in (axes.get_xticklabels(), axes.get_yticklabels())]
    spines = [side for side, spine in axes.spines.items() if spine.get_visible()]
    yield f"labels {axes.get_xlabel()!r} {axes.get_ylabel()!r} title {axes.get_title('left')!r} grids {grids} spines {spines}"
    yield f"ticks {ticks} scales {axes.get_xscale()} {axes.get_yscale()}"
    for line in axes.lines:
        label = "" if line.get_label().startswith("_") else line.get_label()
        yield (
            f"line {label!r} {to_hex(line.get_color())} {line.get_linestyle()}{line.get_drawstyle()} {line.get_linewidth():g} "
            f"{line.get_marker()} {line.get_markersize():g} {line.get_alpha()} sum {np.sum(line.get_xydata()):.4g}"
        )
    numbers = [text for text in axes.texts if text.get_text().isdigit()]
    if numbers:
        places = np.sum([text.get_position() for text in numbers], axis=0)
        colours = " ".join(sorted({to_hex(text.get_color()) for text in numbers}))
        kinds = {(text.get_ha(), text.get_va(), text.get_fontsize(), text.get_clip_on()) for text in numbers}
        yield f"numbers {len(numbers)} at {_numbers(places)} {colours} {sorted(kinds)} {''.join(t.get_text() for t in numbers)}"
    for text in axes.texts:
        if text not in numbers:
            yield _of_text(text)
    for collection in axes.collections:
        colours = sorted({to_hex(colour) for colour in np.atleast_2d(collection.get_facecolor())})
        edges = sorted({to_hex(colour) for colour in np.atleast_2d(collection.get_edgecolor())})
        points = np.concatenate([path.vertices[:4] for path in collection.get_paths()])
        yield (
            f"cells {len(collection.get_paths())} {colours} edges {edges} {np.mean(collection.get_linewidth()):g} "
            f"hatch {collection.get_hatch()} raster {collection.get_rasterized()} sum {points.sum():.5g}"
        )
    for patch in axes.patches:
        yield f"bar {to_hex(patch.get_facecolor())} {_numbers([patch.get_x(), patch.get_y(), patch.get_width(), patch.get_height()])}"
    if (legend := axes.get_legend()) is not None:
        yield _of_legend(legend)


def _of_text(text: Any) -> str:
    place = _numbers(text.xyann) if isinstance(text, Annotation) else ""
    return (
        f"text {text.get_text()!r} {place} at {_numbers(text.get_position())} {text.get_ha()} {text.get_va()} {text.get_fontsize():g} "
        f"{text.get_fontweight()} {to_hex(text.get_color())} math {text.get_parse_math()}"
    )


def _of_legend(legend: Legend) -> str:
    box = legend.get_window_extent().transformed(legend.figure.transFigure.inverted())
    colours = [
        one.get_color() if hasattr(one, "get_color") else one.get_facecolor() for one in legend.legend_handles
    ]
    handles = [to_hex(to_rgba_array(colour)[0]) for colour in colours]
    return f"legend {[text.get_text() for text in legend.get_texts()]} {handles} {_numbers([box.x0, box.y0, box.x1, box.y1])}"


def _numbers(values: Any) -> str:
    return ", ".join(f"{float(value):.3g}" for value in values)
