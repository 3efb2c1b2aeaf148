"""Write tables from declarations in the code into README.md and docs.

python scripts/make_tables.py
"""

import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path

from ppsim.base.option_declarations import declared_options
from ppsim.projection.loss_breakdown import loss_budget
from ppsim.projection.options import PlanOptions
from ppsim.projection.quantities import QUANTITIES
from ppsim.runs.loss_causes import CAUSES
from ppsim.simulation.stage_costs import StageCosts
from ppsim.trainers import TRAINERS
from ppsim.trainers import stacks as trainer_stacks

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
    for keys, text in _described(StageCosts):
        values = dict.fromkeys(_default(defaults.pop(key)) for key in keys)
        rows.append([", ".join(f"`{key}`" for key in keys), ", ".join(values), re.sub(r"\bNone\b", "null", text)])
    assert not defaults, f"the docstring does not describe {', '.join(defaults)}"
    return _table(["key", "default", "meaning"], rows, ["---"] * 3)


def terms() -> str:
    """Return the table of the terms of the time breakdown, from the docstring of `loss_budget`."""
    rows = ([", ".join(names), text] for names, text in _described(loss_budget))
    return _table(["term", "meaning"], rows, ["---"] * 2)


def stacks() -> str:
    """Return the table of the stacks, with the options that each of them sets."""
    rows = []
    for name, one in trainer_stacks.stacks().items():
        inherited = [f"the options of {one.extends}"] if one.extends else []
        rows.append([name, one.title, ", ".join([*inherited, *map(_stack_default, one.lines)])])
    return _table(["stack", "software", "options"], rows, ["---"] * 3)


def _stack_default(one: trainer_stacks.StackDefault) -> str:
    options = declared_options(PlanOptions)

    def text(word: str, value: bool | float | str) -> str:
        flag = options[word].flag
        return f"{flag} {value}" if not isinstance(value, bool) else flag if value else f"--no-{flag[2:]}"

    conditions = [
        *([" or ".join(one.dtypes)] if one.dtypes else []),
        *([" or ".join(one.devices)] if one.devices else []),
        *(["MoE" if one.experts else "dense"] if one.experts is not None else []),
        *(["pipeline" if one.pipelined else "no pipeline"] if one.pipelined is not None else []),
        *([" or ".join(text("zero", stage) for stage in one.zero)] if one.zero else []),
        *(
            f"not with {' or '.join(text(word, value) for value in values) or options[word].flag}"
            for word, values in one.unless.items()
        ),
    ]
    return f"`{text(one.word, one.value)}`" + (f" ({', '.join(conditions)})" if conditions else "")


def causes() -> str:
    """Return the table of the causes of lost time that `ppsim explain` finds."""
    return _table(["cause", "meaning"], CAUSES.items(), ["---"] * 2)


def _described(item) -> list[tuple[list[str], str]]:
    """Return the names and the text of each entry in a docstring: a line of names, then an indented text."""
    found = re.findall(r"^(\w[^()\n]*)\n((?: {4}.*(?:\n|\Z))+)", inspect.getdoc(item) or "", flags=re.MULTILINE)
    return [(names.split(", "), " ".join(text.split()).removesuffix(".")) for names, text in found]


def _default(value) -> str:
    if value is MISSING:
        return "required"
    if value is None:
        return "null"
    return f"`{value}`" if isinstance(value, str) else f"{value:g}"


def _table(head, rows, rule) -> str:
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in [head, rule, *rows])


TABLES = {
    "README.md": [trainers],
    "docs/formats.md": [costs, quantities],
    "docs/project.md": [terms, stacks],
    "docs/howto/slow_run.md": [causes],
}


def page(name: str) -> str:
    """Return a document with its tables."""
    text = (ROOT / name).read_text()
    for made in TABLES[name]:
        what = made.__name__
        begin, end = f"<!-- {what}: written by scripts/make_tables.py -->", f"<!-- end of {what} -->"
        assert begin in text, f"{name} has no {begin}"
        text = f"{text[: text.index(begin)]}{begin}\n\n{made()}\n\n{text[text.index(end) :]}"
    return text


if __name__ == "__main__":
    for name in TABLES:
        (ROOT / name).write_text(page(name))
