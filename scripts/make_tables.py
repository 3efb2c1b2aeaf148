"""Write tables from declarations in the code: trainers into README.md, costs and quantities into docs/formats.md.

python scripts/make_tables.py
"""

import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path

from ppsim.projection.quantities import QUANTITIES
from ppsim.simulation.stage_costs import StageCosts
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


def costs() -> str:
    """Return the table of the keys of a costs file: names and meanings from the docstring of `StageCosts`."""
    defaults = {one.name: one.default for one in fields(StageCosts)}
    rows = []
    entries = re.findall(r"^(\w+(?:, \w+)*)\n((?: {4}.*\n)+)", inspect.getdoc(StageCosts) or "", flags=re.MULTILINE)
    for names, text in entries:
        keys = names.split(", ")
        values = dict.fromkeys(_default(defaults.pop(key)) for key in keys)
        meaning = re.sub(r"\bNone\b", "null", " ".join(text.split()).removesuffix("."))
        rows.append([", ".join(f"`{key}`" for key in keys), ", ".join(values), meaning])
    assert not defaults, f"the docstring does not describe {', '.join(defaults)}"
    return _table(["key", "default", "meaning"], rows, ["---"] * 3)


def _default(value) -> str:
    return (
        "required"
        if value is MISSING
        else "null"
        if value is None
        else f"{value:g}"
        if value == 0
        else f"`{value}`"
    )


def _table(head, rows, rule) -> str:
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in [head, rule, *rows])


TABLES = {"README.md": [trainers], "docs/formats.md": [costs, quantities]}


def page(name: str) -> str:
    """Return a document with its tables."""
    text = (ROOT / name).read_text()
    for made in TABLES[name]:
        begin, end = (
            f"<!-- {made.__name__}: written by scripts/make_tables.py -->",
            f"<!-- end of {made.__name__} -->",
        )
        assert begin in text, f"{name} has no {begin}"
        before, after = text[: text.index(begin)], text[text.index(end) :]
        text = f"{before}{begin}\n\n{made()}\n\n{after}"
    return text


if __name__ == "__main__":
    for name in TABLES:
        (ROOT / name).write_text(page(name))
