"""What a command prints, as text: for `str()` of what it shows."""

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any


def printed(show: Callable[..., None], *shown: Any, **options: Any) -> str:
    """Return what `show(*shown, **options)` writes to standard output, as in a pipe: plain, 100 columns wide."""
    page = io.StringIO()
    with redirect_stdout(page):
        show(*shown, **options)
    return page.getvalue().rstrip("\n")
