"""Write the table and the picture of packages in docs/explanation/architecture.md.

    python scripts/make_architecture.py

Layers come from the import contract in pyproject.toml, sentences from the docstrings of the packages.
"""

import ast
import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
PICTURE = PAGE.with_suffix(".svg")
_BEGIN = "<!-- packages: written by scripts/make_architecture.py -->\n"
_END = "<!-- end of packages -->\n"

_WIDTH, _HEIGHT, _GAP, _MARGIN = 760, 34, 10, 40
"""Sizes of the picture in pixels: width, height of a layer, space between boxes, and margin for layer numbers."""


def layers() -> list[list[str]]:
    """Return the packages of each layer, the highest layer first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = (one["layers"] for one in contracts if one.get("containers") == ["ppsim"])
    return [layer.split(" | ") for layer in found if layer != "__main__"]


def sentence(package: str) -> str:
    """Return the first sentence of a package's docstring."""
    docstring = ast.get_docstring(ast.parse((ROOT / "ppsim" / package / "__init__.py").read_text())) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def picture() -> str:
    """Return the picture: a row per layer, a box per package, with the package's sentence as tooltip."""
    rows = layers()
    height = len(rows) * (_HEIGHT + _GAP) + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="14" text-anchor="middle">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for row, packages in enumerate(rows):
        top = _GAP + row * (_HEIGHT + _GAP)
        wide = (_WIDTH - _MARGIN - _GAP * len(packages)) / len(packages)
        parts.append(f'<text x="{_MARGIN / 2}" y="{top + 22}" fill="#555555">{len(rows) - 1 - row}</text>')
        for column, package in enumerate(packages):
            left = _MARGIN + column * (wide + _GAP)
            parts.append(
                f"<g><title>{escape(sentence(package))}</title>"
                f'<rect x="{left:.1f}" y="{top}" width="{wide:.1f}" height="{_HEIGHT}" rx="4" fill="#dbe7f5" '
                f'stroke="#3d6fa5"/>'
                f'<text x="{left + wide / 2:.1f}" y="{top + 22}" fill="#12263c">{package}/</text></g>'
            )
    return "\n".join([*parts, "</svg>\n"])


def packages() -> str:
    """Return the table of packages, layer by layer."""
    rows = layers()
    table = [
        f"| {len(rows) - 1 - row} | `{package}/` | {sentence(package)} |"
        for row, packages in enumerate(rows)
        for package in packages
    ]
    return "\n".join(["| layer | package | content |", "|--:|---|---|", *table, ""])


def page() -> str:
    """Return the complete page."""
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    return before + _BEGIN + "\n" + packages() + "\n" + _END + rest.partition(_END)[2]


if __name__ == "__main__":
    PAGE.write_text(page())
    PICTURE.write_text(picture())
