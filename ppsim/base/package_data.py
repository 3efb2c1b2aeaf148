"""Location of the data that ships with ppsim."""

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def data_folder(name: str) -> Path:
    """Return a folder inside the package or, for some data of a checkout or sdist, next to it."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name
