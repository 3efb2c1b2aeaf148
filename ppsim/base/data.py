"""Where the data that ppsim brings along lies."""

from importlib import resources
from pathlib import Path

_PACKAGE = Path(str(resources.files("ppsim")))


def data_folder(name: str) -> Path:
    """Return a folder of the checkout's top level, or the wheel's copy of it inside the package.

    An installed wheel holds it in `ppsim/`; a checkout, an editable install and an unpacked sdist beside it.
    """
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name
