"""Write the rooms into docs/explanation/architecture.md: python scripts/make_architecture.py

Floors are those of the contract in pyproject.toml, sentences those of the rooms' own docstrings.
"""

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
_BEGIN = "<!-- rooms: written by scripts/make_architecture.py -->\n"
_END = "<!-- end of rooms -->\n"


def floors() -> list[list[str]]:
    """Return the rooms of each floor, the highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (one["layers"] for one in contracts if one.get("containers") == ["ppsim"])
    return [floor.split(" | ") for floor in layers if floor != "__main__"]


def sentence(room: str) -> str:
    """Return the first sentence of a room's docstring."""
    docstring = ast.get_docstring(ast.parse((ROOT / "ppsim" / room / "__init__.py").read_text())) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def rooms() -> str:
    """Return the picture of the house and the table of its rooms."""
    rows = floors()
    width = max(len("   ".join(f"[ {room} ]" for room in row)) for row in rows)
    house = [
        f"{floor}  {'   '.join(f'[ {room} ]' for room in row).center(width).rstrip()}"
        for floor, row in zip(range(len(rows), 0, -1), rows, strict=True)
    ]
    table = [f"| `{room}/` | {sentence(room)} |" for row in rows for room in row]
    return "\n".join(
        [
            "<!-- not output -->",
            "```text",
            *house,
            "```",
            "",
            "| room | what lives there |",
            "|---|---|",
            *table,
            "",
        ]
    )


def page() -> str:
    """Return the whole page."""
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    return before + _BEGIN + "\n" + rooms() + "\n" + _END + rest.partition(_END)[2]


if __name__ == "__main__":
    PAGE.write_text(page())
