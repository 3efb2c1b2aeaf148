"""Quantities of a projection as text with suitable units."""

from collections.abc import Callable

from ppsim.base.units import count, percent, seconds, size
from ppsim.projection.projection import Projection
from ppsim.projection.quantities import QUANTITIES, Unit, View

_TEXT: dict[Unit, Callable[[float], str]] = {"": "{:,.0f}".format, "s": seconds, "bytes": size, "ratio": percent}


def texts_of(projection: Projection, view: View) -> dict[str, str]:
    """Return the known quantities of a view by label."""
    found = ((one, one.of(projection)) for one in QUANTITIES if view in one.views)
    return {one.label: _text(value, one.unit) for one, value in found if value is not None}


def _text(value: float, unit: Unit) -> str:
    if unit in _TEXT:
        return _TEXT[unit](value)
    return f"{count(value)}{'' if unit.startswith('FLOP') else ' '}{unit}"
