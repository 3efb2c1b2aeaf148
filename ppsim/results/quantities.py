"""The quantities of a projection as text, in the unit that suits each."""

from collections.abc import Callable

from ppsim.base.units import count, percent, seconds, size
from ppsim.projection.projection import Projection
from ppsim.projection.quantities import QUANTITIES, Unit, View

_TEXT: dict[Unit, Callable[[float], str]] = {
    "": lambda value: f"{value:,.0f}",
    "s": seconds,
    "bytes": size,
    "ratio": percent,
    "tokens/s": lambda value: f"{count(value)} tokens/s",
    "tokens/s per GPU": lambda value: f"{count(value)} tokens/s per GPU",
    "FLOP/s": lambda value: f"{count(value)}FLOP/s",
    "FLOP/s per GPU": lambda value: f"{count(value)}FLOP/s per GPU",
}


def texts_of(projection: Projection, view: View) -> dict[str, str]:
    """Return the known quantities of a view by label, as text."""
    found = ((one, one.of(projection)) for one in QUANTITIES if view in one.views)
    return {one.label: _TEXT[one.unit](value) for one, value in found if value is not None}


def text_of_quantity(projection: Projection, key: str) -> str | None:
    """Return one quantity as text, None if it is unknown."""
    (one,) = (one for one in QUANTITIES if one.key == key)
    value = one.of(projection)
    return None if value is None else _TEXT[one.unit](value)
