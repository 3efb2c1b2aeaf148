"""Display of results: text of the command line, one-line `repr`, notebook card, and pictures.

`ppsim.TEXTS`, `CARDS` and `PICTURES` name the display functions, so that result classes contain no formatting code.
"""

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import MISSING, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ppsim.base.errors import ConfigError

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from matplotlib.axes import Axes

_LONGEST = 40  # characters of a value in a line


class HasRepr:
    """An object with a one-line `repr` and, if its class has one, a notebook card."""

    @property
    def one_line(self) -> str:
        """The fields that differ from their defaults."""
        return ", ".join(_set_fields(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.one_line})"

    def _repr_html_(self) -> str | None:
        import ppsim

        made_by = ppsim.CARDS.get(type(self).__name__)
        return str(load_function(made_by)(self)) if made_by else None


class Printable(HasRepr):
    """A result whose `str` is the output of the command line."""

    def __str__(self) -> str:
        return text_of(self)


class Drawable(HasRepr):
    """A result that can be drawn."""

    def figure(self) -> "go.Figure":
        return load_function(self._pictures()[0])(self)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw with matplotlib on `ax` (None: axes of a new pyplot figure)."""
        axes: Axes = load_function(self._pictures()[1])(self, ax)
        return axes

    def _pictures(self) -> tuple[str, str]:
        import ppsim

        return ppsim.PICTURES[type(self).__name__]


def load_function(place: str) -> Callable[..., Any]:
    """`place` has the form "module:name"."""
    module, _, name = place.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def _set_fields(what: Any) -> list[str]:
    changed = []
    for field in fields(what):
        value = getattr(what, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.repr and not _is_same(value, default):
            changed.append(f"{field.name}={_in_short(value)}")
    return changed


def _is_same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


def _in_short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = " ".join(repr(value).split())
    if isinstance(value, HasRepr) or len(text) <= _LONGEST:
        return text
    if isinstance(value, str):
        return f"{text[:_LONGEST]}…'"
    return f"{type(value).__name__}(… {len(value)})" if hasattr(value, "__len__") else f"{type(value).__name__}(…)"


def show(what: Any, **options: Any) -> None:
    import ppsim

    if (made_by := ppsim.TEXTS.get(type(what).__name__)) is None:
        raise ConfigError(f"cannot print {type(what).__name__}: it is no result of ppsim's")
    load_function(made_by)(what, **options)


def text_of(what: Any, **options: Any) -> str:
    return capture_output(show, what, **options)


def capture_output(show: Callable[..., None], *shown: Any, **options: Any) -> str:
    """Return the standard output of `show(*shown, **options)`: plain text, 100 columns wide, like in a pipe."""
    page = io.StringIO()
    with redirect_stdout(page):
        show(*shown, **options)
    return page.getvalue().rstrip("\n")
