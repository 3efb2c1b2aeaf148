"""Where the data that ppsim brings along lies."""

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def data_folder(name: str) -> Path:
    """Return a folder inside the package or, where it has none, one of the checkout's top level.

    An installed wheel holds all in `ppsim/`; a checkout, an editable install and an unpacked sdist some beside it.
    """
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name
