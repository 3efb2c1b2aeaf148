"""Location of the data that ships with ppsim."""

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def data_folder(name: str) -> Path:
    """Return a folder inside the package or at the top level of the checkout.

    A wheel has all data inside `ppsim/`; a checkout, an editable install and an unpacked sdist have some of it
    outside.
    """
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name
