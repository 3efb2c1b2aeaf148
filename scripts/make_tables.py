"""Write tables from declarations in the code: trainers into README.md, quantities into docs/formats.md.

python scripts/make_tables.py
"""

import re
from pathlib import Path

from ppsim.projection.quantities import QUANTITIES
from ppsim.trainers import TRAINERS

ROOT = Path(__file__).parents[1]


def trainers() -> str:
    """Return the table of trainers, with the formats that ppsim reads and writes."""
    rows = (
        [one.name, *("yes" if has else "" for has in (one.config, one.to_config, one.export, one.recording))]
        for one in TRAINERS
    )
    head = ["trainer", "configuration read", "configuration written", "schedule written", "recording read"]
    return _table(head, rows, ["---", *[":-:"] * 4])


def quantities() -> str:
    """Return the table of a projection's quantities in JSON."""
    rows = ([f"`{one.key}`", one.unit or "–", one.meaning] for one in QUANTITIES if "json" in one.views)
    return _table(["key", "unit", "meaning"], rows, ["---"] * 3)


def _table(head, rows, rule) -> str:
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in [head, rule, *rows])


TABLES = {"README.md": ("trainers", trainers), "docs/formats.md": ("quantities", quantities)}


def page(name: str) -> str:
    """Return a document with its table."""
    text, (what, made) = (ROOT / name).read_text(), TABLES[name]
    begin, end = f"<!-- {what}: written by scripts/make_tables.py -->", f"<!-- end of {what} -->"
    assert begin in text, f"{name} has no {begin}"
    return re.sub(f"{re.escape(begin)}.*{re.escape(end)}", f"{begin}\n\n{made()}\n\n{end}", text, flags=re.DOTALL)


if __name__ == "__main__":
    for name in TABLES:
        (ROOT / name).write_text(page(name))
