"""Timelines and search results as interactive pages, print figures and traces."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ppsim.plot.figures.memory import memory_figure
    from ppsim.plot.figures.pareto import pareto_figure
    from ppsim.plot.figures.style import save_figure
    from ppsim.plot.figures.timeline import timeline_figure

_HOME = {  # imported on first use, as in `ppsim`
    "memory_figure": "ppsim.plot.figures.memory",
    "pareto_figure": "ppsim.plot.figures.pareto",
    "save_figure": "ppsim.plot.figures.style",
    "timeline_figure": "ppsim.plot.figures.timeline",
}

__all__ = [
    "memory_figure", "pareto_figure", "save_figure", "timeline_figure",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ppsim.plot' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
