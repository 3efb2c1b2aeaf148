"""The parts of the interactive pages: templates, styles, scripts, and plotly.js, which draws."""

from importlib.resources import files


def part(name: str) -> str:
    """Return a part of a page by its file name."""
    return (files(__name__) / name).read_text(encoding="utf-8")


def plotly_js() -> str:
    """Return plotly.js, the bundle for plots with two axes."""
    return part("plotly/plotly-cartesian.min.js")
