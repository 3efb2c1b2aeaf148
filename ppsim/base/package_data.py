"""Location of the data that ships with ppsim."""

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def data_folder(name: str) -> Path:
    """Return a folder inside the package or, if it does not exist, at the top level of the checkout.

    A wheel has all data inside `ppsim/`; a checkout, an editable install and an unpacked sdist have some of the
    data next to it.
    """
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name
