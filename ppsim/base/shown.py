"""How a result shows itself: its text, as the command line prints it, a line, a notebook's card, and pictures.

Three tables of the face (`ppsim.TEXTS`, `CARDS`, `PICTURES`) say what makes them, by the name of its class: the one
place where results, which know nothing of terminals and pictures, meet these.
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

_LONGEST = 40  # of a value in a line


class InBrief:
    """An object whose `repr` is one line, and that a notebook shows as a card where there is one for its class."""

    @property
    def brief(self) -> str:
        """What the line says: the fields that are not as they are by default."""
        return ", ".join(_set_fields(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.brief})"

    def _repr_html_(self) -> str | None:
        """Return what a notebook shows; None where that is the line."""
        import ppsim

        made_by = ppsim.CARDS.get(type(self).__name__)
        return str(loaded(made_by)(self)) if made_by else None


class Shown(InBrief):
    """A result whose `str` is the text that the command line prints of it."""

    def __str__(self) -> str:
        return text_of(self)


class Pictured(InBrief):
    """A result that is drawn: by plotly, to look into, and by matplotlib, to print."""

    def figure(self) -> "go.Figure":
        """Return a plotly Figure, which a notebook shows and which has more to say under the pointer."""
        return loaded(self._pictures()[0])(self)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw with matplotlib, on `ax` or on axes of a new pyplot figure, and return them."""
        axes: Axes = loaded(self._pictures()[1])(self, ax)
        return axes

    def _pictures(self) -> tuple[str, str]:
        import ppsim

        return ppsim.PICTURES[type(self).__name__]


def loaded(place: str) -> Callable[..., Any]:
    """Return the function that "module:name" stands for, imported when it is called."""
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def _set_fields(what: Any) -> list[str]:
    """The fields of a dataclass that differ from their defaults, each as name=value."""
    found = []
    for field in fields(what):
        value = getattr(what, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.repr and not _is_same(value, default):
            found.append(f"{field.name}={_in_short(value)}")
    return found


def _is_same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


def _in_short(value: Any) -> str:
    """A value in a few characters: what is long by how much there is of it."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = " ".join(repr(value).split())
    if isinstance(value, InBrief) or len(text) <= _LONGEST:
        return text
    if isinstance(value, str):
        return f"{text[:_LONGEST]}…'"
    return f"{type(value).__name__}(… {len(value)})" if hasattr(value, "__len__") else f"{type(value).__name__}(…)"


def show(what: Any, **options: Any) -> None:
    """Print a result; `ppsim.TEXTS` says how, by the name of its class."""
    import ppsim

    if (made_by := ppsim.TEXTS.get(type(what).__name__)) is None:
        raise ConfigError(f"cannot print {type(what).__name__}: it is no result of ppsim's")
    loaded(made_by)(what, **options)


def text_of(what: Any, **options: Any) -> str:
    """Return the text of a result."""
    return printed(show, what, **options)


def printed(show: Callable[..., None], *shown: Any, **options: Any) -> str:
    """Return what `show(*shown, **options)` writes to standard output, as in a pipe: plain, 100 columns wide."""
    page = io.StringIO()
    with redirect_stdout(page):
        show(*shown, **options)
    return page.getvalue().rstrip("\n")
