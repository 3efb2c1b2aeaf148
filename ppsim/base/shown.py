"""The text of a result, which is what the command line prints of it: for `str()` and `ppsim.report`."""

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any


class Shown:
    """A result whose `str` is the text that the command line prints of it."""

    def __str__(self) -> str:
        return text_of(self)


def text_of(what: Any, **options: Any) -> str:
    """Return the text of a result; `ppsim.TEXTS` says what prints it, by the name of its class.

    That table is the one place where results, which know nothing of terminals, and their texts meet.
    """
    import ppsim

    module, _, name = ppsim.TEXTS[type(what).__name__].partition(":")
    return printed(getattr(import_module(module), name), what, **options)


def printed(show: Callable[..., None], *shown: Any, **options: Any) -> str:
    """Return what `show(*shown, **options)` writes to standard output, as in a pipe: plain, 100 columns wide."""
    page = io.StringIO()
    with redirect_stdout(page):
        show(*shown, **options)
    return page.getvalue().rstrip("\n")
